"""The command line's options, made of the fields of ``asked``, or declared here, if only commands
have them. Parameters give what differs by command."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from accucompare.cli.option_types import (
    LOCAL,
    PLACE,
    FiniteRange,
    LocalPath,
    OneOf,
    ReadBy,
    SizeType,
)
from accucompare.selection import (
    DumpFormat,
    FloatType,
    RoleGroup,
    RoundedType,
    Standard,
    Steps,
    Viewer,
)

F = TypeVar("F", bound=Callable[..., Any])


#: Types of options made of fields, where default and range do not tell them.
_TYPES: dict[str, Any] = {
    "as_layout": PLACE,
    "like": PLACE,
    "feed": PLACE,
    "layout_of": PLACE,
    "golden_python": click.Path(exists=True, dir_okay=False, path_type=Path),
    "kernel_dump": click.Path(path_type=Path, file_okay=False),
    "roles": ReadBy("roles", RoleGroup.parse),
    "steps": ReadBy("LIST", Steps.of),
    "trace_steps": click.IntRange(0),
}


def of(kind: Any, *names: str) -> Callable[[F], F]:
    """The options of a group of ``accucompare.asked``: those named, or all fields."""
    made = [_made_of(each) for each in fields(kind) if not names or each.name in names]
    return lambda command: functools.reduce(lambda done, add: add(done), made, command)


def taken(kind: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Take a group's options out of a command's."""
    return {each.name: options.pop(each.name) for each in fields(kind)}


def _made_of(told: Field[Any]) -> Callable[[F], F]:
    """An option made of a field: a flag, one of an Enum's values, a number, or a list."""
    default, about, flag = told.default, told.metadata, f"--{told.name.replace('_', '-')}"
    given: dict[str, Any] = {"help": about["help"]}
    if told.type == "bool | None":
        return click.option(f"{flag}/--no-{told.name}", is_flag=True, default=None, **given)
    if default is True:
        return click.option(f"{flag}/--no-{told.name}", default=True, show_default=True, **given)
    if default is False:
        return click.option(flag, is_flag=True, **given)
    if about["shown"] is not None:
        given["metavar"] = about["shown"]
    if about["one_of"] is not None:
        given["type"] = OneOf(about["one_of"])
    elif about["between"] is not None:
        kind = FiniteRange if isinstance(default, float) else click.IntRange
        given["type"] = kind(*about["between"])
    elif told.name in _TYPES:
        given["type"] = _TYPES[told.name]
    if about["alone"] is not None:
        # eager: another option's default may depend on it
        given |= {"is_flag": False, "flag_value": about["alone"], "is_eager": True}
        given["callback"] = _no_case
    if default == ():
        given["multiple"] = True
    elif default is not None:
        given |= {"default": getattr(default, "value", default), "show_default": True}
    singular = [flag.removesuffix("s"), told.name] if told.name == "trace_steps" else [flag]
    return click.option(*singular, **given)


def _no_case(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """An option that may stand alone takes a word behind it for its value."""
    if value is not None and ".py" in value:
        raise click.BadParameter(
            f"{value} is a case, and was taken for the option's value; write the case before it",
            ctx,
            param,
        )
    return value


def _files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


# What runs, and how.
case = click.argument("case", required=False, shell_complete=_files)


def device(
    help: str = "cpu, cuda, cuda:N, npu or npu:N.",
    default: str | None = "cpu",
    required: bool = False,
    unless: Callable[..., str] | None = None,
) -> Callable[[F], F]:
    """``unless``: says whether it must be given, and what it is otherwise."""
    # click 8.3 takes a default of None for a value, and misses nothing
    known: dict[str, Any] = {} if required else {"default": default, "callback": unless}
    return click.option(
        "--device", **known, show_default=True, required=required, metavar="DEVICE", help=help
    )


decode = click.option(
    "--decode",
    type=click.IntRange(1),
    metavar="N",
    is_eager=True,
    help="Is the model's cache right? The sequence of CASE is run as a whole, and again with the"
    " last N tokens one by one, in chunks, and with padding. --device is then cpu by default.",
)


def dtype(
    help: str = "Cast the model and its floating inputs to this type.  [default: as they are]",
    *but: FloatType,
    required: bool = False,
) -> Callable[[F], F]:
    return click.option("--dtype", type=OneOf(FloatType, *but), required=required, help=help)


def repeat(help: str) -> Callable[[F], F]:
    return click.option(
        "--repeat", type=click.IntRange(1, 9), default=1, show_default=True, help=help
    )


times = click.option(
    "--times",
    type=click.IntRange(2),
    default=10,
    show_default=True,
    help="Number of runs, each from scratch; and the most replays of a step that disagrees.",
)
batch_axis = click.option(
    "--batch-axis",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="The axis of the inputs along which their samples lie.",
)
bitwise = click.option("--bitwise", is_flag=True, help="Fail if any bits change, by rounding, too.")


def bundle(name: str) -> Callable[[F], F]:
    """An argument: the directory or the URL of a bundle."""
    return click.argument(name, type=PLACE)


def out(
    help: str,
    default: str | None = None,
    metavar: str = "DIR",
    required: bool = False,
    kind: click.Path = LOCAL,
) -> Callable[[F], F]:
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


round_weights = click.option(
    "--round-weights",
    type=OneOf(RoundedType),
    help=(
        "First round weights, buffers and floating inputs to this type; they keep their dtype. "
        " [default: as in --like or --feed]"
    ),
)
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
queue = click.option(
    "--queue",
    type=SizeType(),
    default="1GiB",
    show_default=True,
    help="Most bytes of tensors that may wait to be written.",
)

# For scripts.
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
    help="Print each process with its models, and who trains them; the default.",
)
arm = click.option(
    "--arm",
    type=LOCAL,
    metavar="FILE",
    help="Of a script: begin when this file appears; --steps count from there.",
)

# What is compared with what.


def golden(
    help: str = "The trusted bundle.  [default: made on the CPU]", required: bool = False
) -> Callable[[F], F]:
    return click.option("--golden", type=PLACE, metavar="BUNDLE", required=required, help=help)


against = click.option(
    "--against",
    metavar="RUN",
    help=(
        "Compare the newest run's errors with those of best (each layer's smallest), first, or a"
        " RUN."
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
    help="A trusted device's bundle in the candidate's precision: it shows the error to expect.",
)
reference = click.option(
    "--reference",
    type=PLACE,
    metavar="BUNDLE",
    help="A third bundle, such as a GPU's: is it nearer to golden than CANDIDATE? Judges nothing.",
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
    "--tolerances", type=LOCAL, metavar="TOML", help="Limits by layer, type, role and dtype."
)
layout = click.option(
    "--layout",
    type=LOCAL,
    metavar="TOML",
    help="How the candidate's ranks hold some tensors, where nothing else tells.",
)
accept = click.option(
    "--accept",
    type=OneOf(Standard),
    help=(
        "Judge two runs of training by a standard instead: losses and gradient norms decide the"
        " exit code; failing rows do not change it."
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
    """``default``: the name of the report if none was asked for; ``None`` for no report."""
    usual = "[default: none]" if default is None else f"[default: reports/{default}.xlsx]"
    text = (
        "Report: .xlsx, or .html for a page in a browser; or none. Can be given several times. "
        f" {usual}"
    )
    return click.option("--report", "reports", type=LOCAL, multiple=True, metavar="PATH", help=text)


def quiet(prints: str = "the verdict line only") -> Callable[[F], F]:
    return click.option("-q", "--quiet", is_flag=True, help=f"Print {prints}.")


def json(lines: str = "") -> Callable[[F], F]:
    """``lines``: is added to the help."""
    return click.option(
        "--json",
        "json_path",
        type=LOCAL,
        metavar="PATH",
        help=f"Write everything as JSON, too{lines}.",
    )


#: For ``json`` of a comparison.
JSON_LINES = "; to PATH.jsonl as JSON lines, a row each"

# For fit.


def _share(text: str) -> float:
    """``10%`` or ``0.1``."""
    number = text.strip()
    try:
        return float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        raise ValueError(f"{text!r} is no share; write 10%") from None


budget = click.option(
    "--budget",
    type=ReadBy("SHARE", _share),
    metavar="SHARE",
    help="In place of a tolerance: keep at most this share in float32, such as 10%.",
)
code = click.option(
    "--code",
    type=LOCAL,
    metavar="PY",
    help="Where to write the code to paste.  [default: keep_in_float32.py in --out]",
)
parquet = click.option(
    "--parquet",
    "parquet_path",
    type=LOCAL,
    metavar="PATH",
    help="Write every row as Parquet, too, for pandas, DuckDB or Polars.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")

# For export.
viewer = click.option("--to", type=OneOf(Viewer), required=True, help="The viewer.")

# For gradcheck.
only_checked = click.option(
    "--only",
    multiple=True,
    metavar="GLOB",
    help="Check only the layers that match. Can be given several times.",
)

# For show and doctor.
_UNNAMED = "; all, without NAME]"
call = click.option("--call", type=click.IntRange(0), help=f"Call index.  [default: 0{_UNNAMED}")
_ROLES = (  # values of Role, which would need NumPy
    *("input", "output", "computed_buffer", "buffer_update", "argument_update"),
    *("buffer_before", "buffer_after", "grad_output", "grad_input", "call_grad", "param_grad"),
    *("param_before", "state_before", "param_update", "state_after", "param_changed"),
    *("op_input", "op_output", "op_grad_output", "op_grad_input"),
)
role = click.option(
    "--role",
    type=click.Choice(_ROLES),
    metavar="ROLE",
    help=(
        "Role, as the list of records shows it, such as input or param_grad. "
        f" [default: output{_UNNAMED}"
    ),
)
path = click.option("--path", help="Path in a nested value, as the list of records shows it.")
step = click.option("--step", type=click.IntRange(0), help=f"Step.  [default: 0{_UNNAMED}")
rank = click.option("--rank", type=click.IntRange(0), help=f"Rank.  [default: 0{_UNNAMED}")
slices = click.option(
    "--slice", "slices", metavar="SLICE", help="Part to print or save, as in NumPy: '0, :4'."
)
save = click.option(
    "--save",
    type=LocalPath(path_type=Path, dir_okay=False),
    metavar="NPY",
    help="Save the values; bfloat16 becomes float32.",
)
timeout = click.option(
    "--timeout",
    type=FiniteRange(0, min_open=True, max=3600),
    default=60,
    show_default=True,
    help="Seconds to wait for devices to answer.",
)

# For import.
dump_format = click.option(
    "--from", "format_name", type=OneOf(DumpFormat), help="The format.  [default: recognised]"
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

# For watch.
steps_to_run = click.option(
    "--steps",
    type=click.IntRange(1),
    help="Steps to run.  [default: one for each of the case's inputs]",
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
    type=LOCAL,
    metavar="TOML",
    help="A file of such lines: loss-spike = 20",
)
