"""Every option of the command line, declared once. What differs between commands, such as the help
text, is a parameter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import click

from accucompare.asked import ASKED
from accucompare.errors import UsageError
from accucompare.places import Url, local, place_of
from accucompare.selection import (
    DumpFormat,
    FloatType,
    OnFinding,
    RoleGroup,
    RoundedType,
    Standard,
    Steps,
    Viewer,
)

F = TypeVar("F", bound=Callable[..., Any])


class _OneOf(click.Choice):  # type: ignore[type-arg]  # generic only in newer versions
    """One of an Enum's values, which the command gets as that Enum."""

    def __init__(self, kind: type[Enum], *but: Enum) -> None:
        super().__init__([each.value for each in kind if each not in but])
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._kind(super().convert(value, param, ctx))


class _Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes such as 512MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", value.lower())
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is no size; write it as 512MiB or 1GiB", param, ctx)
        return int(float(match[1]) * 1024 ** " kmgt".index(match[2] or " "))


class _Read(click.ParamType):  # type: ignore[type-arg]
    """What a function makes of the text; ValueError says what is wrong with it."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _LocalPath(click.Path):
    """A path of this machine."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            local(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)


class _FloatRange(click.FloatRange):
    """Without NaN and Inf, which no range leaves out."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number


class _BundlePlace(click.Path):
    """A directory, or a URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        place = place_of(value) if isinstance(value, str) else value
        return place if isinstance(place, Url) else super().convert(place, param, ctx)


#: All else than a bundle.
LOCAL = _PATH = _LocalPath(path_type=Path)
#: Where a bundle is.
PLACE = _BundlePlace(path_type=Path)


def _help(name: str) -> str:
    """The help of a capture's option."""
    return str(ASKED[name].metadata["help"])


def _made_of(name: str, **more: Any) -> Callable[[F], F]:
    """A capture's option as its field in ``asked`` has it: a flag, one of an Enum's values, or a
    number between two.
    """
    default, about = ASKED[name].default, ASKED[name].metadata
    flag, given = f"--{name.replace('_', '-')}", {"help": _help(name), **more}
    if default is True:
        return click.option(f"{flag}/--no-{name}", default=True, show_default=True, **given)
    if default is False:
        return click.option(flag, is_flag=True, **given)
    if about["one_of"] is not None:
        given["type"] = _OneOf(about["one_of"])
    if about["between"] is not None:
        given["type"] = click.IntRange(*about["between"])
    if default not in (None, ()):
        given |= {"default": getattr(default, "value", default), "show_default": True}
    return click.option(flag, **given)


def _files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


# What runs, and how.
case = click.argument("case", required=False, shell_complete=_files)


def device(
    help: str = "cpu, cuda, cuda:N, npu or npu:N.",
    default: str | None = "cpu",
    required: bool = False,
) -> Callable[[F], F]:
    known: dict[str, Any] = (
        {} if required else {"default": default}
    )  # click 8.3 takes a default of None for a value, and misses nothing
    return click.option(
        "--device", **known, show_default=True, required=required, metavar="DEVICE", help=help
    )


def dtype(
    help: str = "Cast the model and its floating inputs to this type.  [default: as they are]",
    *but: FloatType,
) -> Callable[[F], F]:
    return click.option("--dtype", type=_OneOf(FloatType, *but), help=help)


def seed(default: str = "0") -> Callable[[F], F]:
    text = f"Seed of weights and random operations.  [default: {default}]"
    return click.option("--seed", type=click.IntRange(0, (1 << 32) - 1), help=text)


def steps(
    default: str = "one for each of the case's inputs", may_choose: bool = True
) -> Callable[[F], F]:
    """``may_choose``: a list of the steps to record may be given, too."""
    what = (
        "Steps to run; or a list of those to record, as 0,10,100-102: the run goes on to the last."
        if may_choose
        else "Steps to run."
    )
    kind = _Read("LIST", Steps.of) if may_choose else click.IntRange(1)
    return click.option(
        "--steps",
        type=kind,
        metavar="N|LIST" if may_choose else None,
        help=f"{what}  [default: {default}]",
    )


def repeat(help: str) -> Callable[[F], F]:
    return click.option(
        "--repeat", type=click.IntRange(1, 9), default=1, show_default=True, help=help
    )


def level(help: str = _help("level")) -> Callable[[F], F]:
    return _made_of("level", help=help)


def bundle(name: str) -> Callable[[F], F]:
    """An argument: the directory or the URL of a bundle."""
    return click.argument(name, type=PLACE)


def out(
    help: str,
    default: str | None = None,
    metavar: str = "DIR",
    required: bool = False,
    kind: click.Path = _PATH,
) -> Callable[[F], F]:
    """``kind``: ``PLACE`` where a bundle is written."""
    return click.option(
        "--out",
        type=kind,
        default=default,
        show_default=True,
        required=required,
        metavar=metavar,
        help=help,
    )


def overwrite(help: str) -> Callable[[F], F]:
    return click.option("--overwrite", is_flag=True, help=help)


def force(help: str = _help("force")) -> Callable[[F], F]:
    return click.option("--force", is_flag=True, help=help)


def hf32(help: str = _help("hf32"), may_forbid: bool = True) -> Callable[[F], F]:
    return _permission("hf32", help, may_forbid)


def tf32(help: str = _help("tf32"), may_forbid: bool = True) -> Callable[[F], F]:
    return _permission("tf32", help, may_forbid)


deterministic = _made_of("deterministic")
emulate = _made_of("emulate")
round_weights = click.option(
    "--round-weights",
    type=_OneOf(RoundedType),
    help=(
        "First round weights, buffers and floating inputs to this type; they keep their dtype. "
        " [default: as in --like or --feed]"
    ),
)
mode = _made_of("mode")
sketch_size = _made_of("sketch_size")
roles = _made_of("roles", type=_Read("roles", RoleGroup.parse), metavar="LIST")
backward = _made_of("backward")
save_state = _made_of("save_state")
with_baseline = click.option(
    "--with-baseline",
    is_flag=False,
    flag_value="float32,bfloat16",
    metavar="[PRECISION,…]",
    help=(
        "Afterwards run CASE in each precision (float32, bfloat16, float16, hf32, tf32), every"
        " layer on this capture's inputs, and keep how large an error rounding alone makes. locate"
        " and diff judge by it on any machine.  [without a list: float32,bfloat16]"
    ),
)
baseline_tensors = click.option(
    "--baseline-tensors",
    is_flag=True,
    help="With --with-baseline: keep the baselines' tensors, not only their errors.",
)
like = _made_of("like", type=PLACE, metavar="BUNDLE")
feed = _made_of("feed", type=PLACE, metavar="GOLDEN")
round_feed = _made_of("round_feed")
queue = click.option(
    "--queue",
    type=_Size(),
    default="1GiB",
    show_default=True,
    help="Most bytes of tensors that may wait to be written.",
)

# Of scripts.
model = click.option(
    "--model",
    metavar="NAME",
    help=(
        "Of a script: which model, as `accucompare run --list` names it.  [default: the one that is"
        " trained]"
    ),
)
lists = click.option(
    "--list",
    "lists",
    is_flag=True,
    help="Print each process with its models, and who trains them; done without it, too.",
)
arm = click.option(
    "--arm",
    type=_PATH,
    metavar="FILE",
    help="Of a script: begin when this file appears; --steps count from there.",
)

# Which layers, and what is compared with what.


def only(verb: str = "Compare") -> Callable[[F], F]:
    return click.option(
        "--only",
        multiple=True,
        metavar="GLOB",
        help=f"{verb} only the layers that match. Can be given several times.",
    )


skip = _made_of("skip", multiple=True, metavar="GLOB")
maps = _made_of("map", multiple=True, metavar="OLD=NEW")
golden = click.option(
    "--golden", type=PLACE, metavar="BUNDLE", help="The trusted bundle.  [default: made on the CPU]"
)
golden_case = click.option(
    "--golden-case",
    metavar="CASE",
    help=(
        "The case that golden is captured from, and its baseline.  [default: CASE, if golden names"
        " the same]"
    ),
)
golden_python = click.option(
    "--golden-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PATH",
    help=(
        "Python interpreter of golden's environment: it captures the baseline, and golden's"
        " operators."
    ),
)
ops = click.option(
    "--ops",
    is_flag=True,
    help="Then find the operator of the culprit, with its source line; its report is …-ops.xlsx.",
)
baseline = click.option(
    "--baseline",
    type=PLACE,
    metavar="BUNDLE",
    help="A trusted device's bundle in CANDIDATE's precision: it shows the error to expect.",
)
atol = click.option(
    "--atol", type=float, help="Largest |candidate - golden|, on top of rtol * |golden|."
)
rtol = click.option(
    "--rtol", type=float, help="Largest |candidate - golden| / |golden|, on top of atol."
)
rel_l2 = click.option("--rel-l2", type=float, help="Largest relative L2 error of a tensor.")
cosine = click.option(
    "--cosine", type=float, help="Smallest cosine similarity of a tensor, such as 0.999."
)
tolerances = click.option(
    "--tolerances", type=_PATH, metavar="TOML", help="Limits by layer, type, role and dtype."
)
accept = click.option(
    "--accept",
    type=_OneOf(Standard),
    help=(
        "Judge two runs of training by a standard instead: losses and gradient norms decide the"
        " exit code, rows are shown only."
    ),
)
verify = click.option(
    "--verify",
    is_flag=True,
    help="Also read tensors whose digests are equal; by default they count as equal.",
)
workers = click.option(
    "--workers",
    type=click.IntRange(1),
    help="Threads that read and measure.  [default: one per processor]",
)
cluster = click.option(
    "--cluster",
    metavar="ADDRESS",
    help=(
        "Compare on a Dask cluster: its scheduler's address, such as tcp://host:8786; or local, or"
        " local:8 for processes here."
    ),
)
keep_going = click.option(
    "--keep-going",
    is_flag=True,
    help="Compare the other records when some cannot be read (the exit code is still 2).",
)

# What is shown and written.


def report(default: str | None) -> Callable[[F], F]:
    """``default``: what a report is called that was not asked for; ``None`` if none is written
    then.
    """
    usual = "[default: none]" if default is None else f"[default: reports/{default}.xlsx]"
    text = (
        "Report: .xlsx, or .html for a page in a browser; or none. Can be given several times. "
        f" {usual}"
    )
    return click.option("--report", "reports", type=_PATH, multiple=True, metavar="PATH", help=text)


def quiet(prints: str = "the verdict line only") -> Callable[[F], F]:
    return click.option("-q", "--quiet", is_flag=True, help=f"Print {prints}.")


def json(lines: str = "") -> Callable[[F], F]:
    """``lines``: what else is to say of it."""
    return click.option(
        "--json",
        "json_path",
        type=_PATH,
        metavar="PATH",
        help=f"Write everything as JSON, too{lines}.",
    )


#: Of ``json``, where it writes a comparison.
JSON_LINES = "; to PATH.jsonl as JSON lines, a row each"
parquet = click.option(
    "--parquet",
    "parquet_path",
    type=_PATH,
    metavar="PATH",
    help="Write every row as Parquet, too, for pandas, DuckDB or Polars.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")

# Of export.
viewer = click.option("--to", type=_OneOf(Viewer), required=True, help="The viewer.")

# Of show and doctor.
call = click.option(
    "--call", type=click.IntRange(0), default=0, show_default=True, help="Call index."
)
role = click.option(  # values of Role, which would need NumPy
    "--role",
    type=click.Choice(
        [
            "input",
            "output",
            "computed_buffer",
            "buffer_update",
            "argument_update",
            "buffer_before",
            "buffer_after",
            "op_input",
            "op_output",
        ]
    ),
    metavar="ROLE",
    default="output",
    show_default=True,
    help=(
        "input, output, computed_buffer, buffer_update, argument_update, buffer_before,"
        " buffer_after, op_input or op_output."
    ),
)
path = click.option("--path", help="Path in a nested value, as the list of records shows it.")
step = click.option("--step", type=click.IntRange(0), help="Step.  [default: 0; all, without NAME]")
rank = click.option("--rank", type=click.IntRange(0), help="Rank.  [default: 0; all, without NAME]")
slices = click.option(
    "--slice", "slices", metavar="SLICE", help="Part to print or save, as in NumPy: '0, :4'."
)
save = click.option(
    "--save",
    type=_LocalPath(path_type=Path, dir_okay=False),
    metavar="NPY",
    help="Save the values; bfloat16 becomes float32.",
)
timeout = click.option(
    "--timeout",
    type=_FloatRange(0, min_open=True, max=3600),
    default=60,
    show_default=True,
    help="Seconds to wait for devices to answer.",
)

# Of import.
dump_format = click.option(
    "--from", "format_name", type=_OneOf(DumpFormat), help="The format.  [default: recognised]"
)
name_pattern = click.option(
    "--name-pattern",
    metavar="PATTERN",
    help=(
        "Of a folder of tensors: what is what in their names. {name}, {call}, {role}, {path},"
        " {step}, {rank}, {_} for anything; what is in [] may be missing."
    ),
)
onnx_model = click.option(
    "--onnx",
    type=LOCAL,
    metavar="MODEL.onnx",
    help=(
        "Of Polygraphy's outputs: the model that it ran, which says which module computes a value."
    ),
)

# Of watch.
on_finding = click.option(
    "--on-finding",
    type=_OneOf(OnFinding),
    default=OnFinding.RAISE.value,
    show_default=True,
    help="Stop at the first finding; print it and go on; or save its reproducer and go on.",
)
frames = click.option(
    "--frames",
    type=click.IntRange(0),
    default=21,
    show_default=True,
    help="How many of the last calls to show with a finding.",
)
trace_steps = click.option(
    "--trace-step",
    "trace_steps",
    type=click.IntRange(0),
    multiple=True,
    help="Show every call of this step. Can be given several times.",
)
abort_after_step = click.option(
    "--abort-after-step",
    type=click.IntRange(0),
    help="Stop after this step, with or without a finding.",
)
pause_after = click.option(
    "--pause-after",
    type=click.IntRange(1),
    metavar="N",
    help=(
        "When the loss was NaN or Inf in N steps running, stop, and save what the first of them"
        " started from, for --like."
    ),
)
every = click.option(
    "--every",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Watch only every Nth step; the others cost nothing.",
)
checks_every = click.option(
    "--checks-every",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help=(
        "Look closely at every Nth step for the checklist (norms, optimizer state, units); 0 leaves"
        " the checklist out."
    ),
)
thresholds = click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="NAME=VALUE",
    help=(
        "Judge by this in place of a check's default, such as loss-spike=20. Can be given several"
        " times."
    ),
)
threshold_file = click.option(
    "--thresholds",
    "threshold_file",
    type=_PATH,
    metavar="TOML",
    help="A file of such lines: loss-spike = 20",
)
allow = click.option(
    "--allow",
    multiple=True,
    metavar="GLOB",
    help="Layers whose output may be infinite. Can be given several times.",
)
near = click.option(
    "--near",
    type=_FloatRange(1),
    default=4.0,
    show_default=True,
    help="Warn of values within this factor of the largest number of their dtype.",
)
flag_per_module = click.option(
    "--flag-per-module",
    is_flag=True,
    help="Read a saturating NPU's overflow flag after each module; slow.",
)
agree = click.option(
    "--agree",
    is_flag=True,
    help="Let ranks agree before each update, so that all stop at a finding.",
)
kernel_dump = click.option(
    "--kernel-dump",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help=(
        "Let an NPU write the inputs and outputs of all kernels of the first step into this"
        " directory."
    ),
)


def _permission(name: str, help: str, may_forbid: bool) -> Callable[[F], F]:
    """A flag that lets a device round. With ``may_forbid``, --no-NAME forbids it, and without
    either the setting stays.
    """
    flag = f"--{name}/--no-{name}" if may_forbid else f"--{name}"
    return click.option(flag, is_flag=True, default=None if may_forbid else False, help=help)
