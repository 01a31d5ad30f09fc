"""The commands: parse, call, print, exit code. What they need is imported when they run, so that ``--help`` is instant."""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accucompare.cli import options as shared
from accucompare.cli.group import DIFFERENT, PASS, TROUBLE, cli
from accucompare.errors import CaptureError, UsageError
from accucompare.files import is_stdout, is_stream
from accucompare.text import printable

if TYPE_CHECKING:
    from accucompare.api import Comparison


class _Size(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions
    """A number of bytes such as 512MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", value.lower())
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is no size; write it as 512MiB or 1GiB", param, ctx)
        return int(float(match[1]) * 1024 ** " kmgt".index(match[2] or " "))


@cli.command(
    epilog=shared.examples(
        "accucompare capture --device cpu --out golden",
        "accucompare capture model.py:case --device npu --dtype bfloat16",
        "accucompare capture model.py --device npu --deterministic --no-hf32",
        "accucompare capture model.py --device cpu --emulate hf32 --out hf32",
        "accucompare capture model.py --out golden --only 'encoder.*' --skip '*.dropout'",
        "accucompare capture model.py --out golden --mode stats      # digests and statistics, no tensors",
        "accucompare capture model.py --out golden --save-state      # weights and inputs too, then elsewhere:",
        "accucompare capture model.py --device npu --like golden     # same weights, inputs, seed, selection",
        "accucompare capture model.py --like golden --map 'encoder.layer.*=layers.*'   # its layers are called otherwise",
        "accucompare capture model.py --device npu --dtype bfloat16 --feed golden --out npu-fed",
        "accucompare capture model.py --dtype float64 --feed npu --out answers    # what should each layer have given?",
        "accucompare capture model.py --out golden --round-weights bfloat16       # the weights that bfloat16 has",
        "accucompare capture model.py --out ops --level op --only encoder.0.attention  # and its operators",
        "accucompare capture model.py --device npu --repeat 2        # does it agree with itself?",
    )
)
@click.argument("case", required=False)
@shared.device
@shared.dtype
@click.option(
    "--round-weights",
    type=click.Choice(["bfloat16", "float16"]),
    help="Round weights, buffers and floating inputs to this type first; they keep their own.  [default: as --like or --feed]",
)
@click.option(
    "--mode",
    type=click.Choice(["tensors", "stats"]),
    default="tensors",
    show_default=True,
    help="Keep every distinct tensor, or only digests and statistics: a bundle of a few kilobytes.",
)
@click.option(
    "--level",
    type=click.Choice(["module", "op"]),
    default="module",
    show_default=True,
    help="op: record every operator in the code of the layers chosen by --only, too, with its source line.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Directory to write.  [default: the device's type]")
@shared.seed
@shared.steps
@click.option("--only", multiple=True, metavar="GLOB", help="Record only the layers that match; may be repeated.")
@shared.compared_skip
@click.option("--overwrite", is_flag=True, help="Replace an earlier bundle in the directory.")
@click.option("--save-state", is_flag=True, help="Save weights and inputs too, for --like.")
@click.option(
    "--with-baseline",
    is_flag=False,
    flag_value="float32,bfloat16",
    metavar="[PRECISION,…]",
    help="Then run CASE fed with this capture (each layer given its inputs) for candidates of each precision (float32, bfloat16, "
    "float16, hf32, tf32), and keep how large an error rounding alone makes. locate and diff judge by it, wherever they run.  "
    "[without a list: float32,bfloat16]",
)
@click.option("--baseline-tensors", is_flag=True, help="With --with-baseline, keep what the layers computed, too, not only the errors.")
@click.option(
    "--like",
    type=click.Path(path_type=Path),
    metavar="BUNDLE",
    help="Start from a bundle captured with --save-state: its weights, inputs, seed, selection and mode.",
)
@click.option(
    "--feed",
    type=click.Path(path_type=Path),
    metavar="GOLDEN",
    help="Give every layer golden's inputs, and its caller golden's outputs, so that what is recorded shows each layer's own error.",
)
@shared.maps
@click.option("--force", is_flag=True, help="Feed from a golden of other weights or of another class of model, too.")
@click.option(
    "--repeat",
    type=click.IntRange(1, 9),
    default=1,
    show_default=True,
    help="Capture so many times from scratch, into DIR, DIR/repeat1, …, to see whether the device agrees with itself.",
)
@shared.deterministic
@shared.hf32
@shared.tf32
@click.option(
    "--emulate",
    type=click.Choice(["hf32", "tf32", "bf16", "fp16"]),
    help="On the CPU: round what goes into products to this format, to see the size of error to expect of it.",
)
@click.option("--queue", type=_Size(), default="1GiB", show_default=True, help="Most bytes of tensors that may wait to be written.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def capture(
    case: str | None,
    device: str,
    out: Path | None,
    with_baseline: str | None,
    baseline_tensors: bool,
    queue: int,
    quiet: bool,
    **options: Any,
) -> int:
    """Run CASE and record what every layer takes and gives.

    CASE is file.py[:callable] or package.module[:callable]; the callable, `case` if not named, returns an accucompare.Case.
    Without CASE, [tool.accucompare] case of the nearest pyproject.toml is run, or else ./case.py.
    """
    from accucompare.devices import DeviceName

    name = DeviceName.parse(device)
    directory = out if out is not None else Path(name.type)
    _refuse_existing(directory, options["overwrite"])
    precisions = _precisions(with_baseline, baseline_tensors, options)
    from accucompare.devices import open_device

    open_device(name)  # before anything else imports torch
    from accucompare.recorder.capture_case import FloatType, RoundedType, capture_case, repeat_of
    from accucompare.recorder.session import rank_and_ranks
    from accucompare.report.terminal import print_capture, progress_bar, reader_may_leave

    options["dtype"] = FloatType(options["dtype"]) if options["dtype"] else None
    options["round_weights"] = RoundedType(options["round_weights"]) if options["round_weights"] else None
    with progress_bar("capturing", "steps", quiet) as progress, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "accucompare could not record")  # it is said below
        capture_case(case, directory, name, queue_bytes=queue, progress=progress, **options)
    written = [repeat_of(directory, run) for run in range(options["repeat"])]
    if not quiet:
        with reader_may_leave():
            for path in written:
                print_capture(path)
    for path in written:
        _refuse_incomplete(path, rank_and_ranks()[0])
    if precisions:
        from accucompare.recorder.baselines import capture_baselines

        capture_baselines(case, directory, name, precisions, tensors=baseline_tensors, announce=_announcer(quiet))
    return PASS


@cli.command(
    epilog=shared.examples(
        "accucompare diff golden/ npu/ --atol 1e-3",
        "accucompare diff golden/ npu/ --baseline cpu-bf16/           # rounding, or a bug?",
        "accucompare diff golden/ npu/ --rel-l2 1e-2 --cosine 0.999 --report reports/npu.xlsx",
        "accucompare diff golden/ npu/ --tolerances limits.toml --json npu.json",
        "accucompare diff golden/ npu/ --map 'encoder.layers.*=blocks.*' --skip '*.dropout'",
        "",
        "Exit code: 0 within tolerance, 1 differences, 2 trouble (nothing compared is trouble).",
    )
)
@click.argument("golden", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    metavar="BUNDLE",
    help="A trusted device's bundle in CANDIDATE's precision, which shows the error to expect.",
)
@click.option("--atol", type=float, help="Largest |candidate - golden|, on top of rtol * |golden|.")
@click.option("--rtol", type=float, help="Largest |candidate - golden| / |golden|, on top of atol.")
@click.option("--rel-l2", type=float, help="Largest relative L2 error of a tensor.")
@click.option("--cosine", type=float, help="Smallest cosine similarity of a tensor, such as 0.999.")
@click.option("--tolerances", type=click.Path(path_type=Path), metavar="TOML", help="Limits by layer, type, role and dtype.")
@shared.maps
@shared.compared_only
@shared.compared_skip
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="XLSX", help="Excel report.  [default: reports/GOLDEN-vs-CANDIDATE.xlsx]"
)
@shared.json
@click.option("--verify", is_flag=True, help="Read and verify equal tensors too; by default equal digests are believed.")
@click.option("--workers", type=click.IntRange(1), help="Threads that read and measure.  [default: one a processor]")
@click.option("--keep-going", is_flag=True, help="Compare the other records when some cannot be read (still exit code 2).")
@shared.verdict_only
def diff(golden: Path, candidate: Path, report: Path | None, json_path: Path | None, quiet: bool, **options: Any) -> int:
    """Compare the bundle CANDIDATE with the bundle GOLDEN, layer by layer, and write an Excel report.

    Without any tolerance, the baseline judges, or else a relative L2 limit for each dtype (float32 1e-4, float16 1e-2, bfloat16 5e-2).

    What it prints, in short: a row is a pair of records (or one without partner), a culprit the place where an error is made: a layer, or
    glue, code of a layer's own between its children. x limit is an error as a multiple of its limit, excess as one of the baseline's error.
    Fed is a candidate captured with --feed, each layer on golden's inputs, so that each error is its own.
    """
    from accucompare.api import diff as compare
    from accucompare.report.terminal import progress_bar

    report = report or Path("reports") / f"{shared.stem(golden)}-vs-{shared.stem(candidate)}.xlsx"
    shared.refuse_other_than_xlsx(report)
    shared.refuse_places({"--report": report, "--json": json_path})
    with progress_bar("comparing", "bytes", quiet) as progress:
        comparison = compare(golden, candidate, progress=progress, **options)
    return _conclude(comparison, report, json_path, quiet)


@cli.command(
    epilog=shared.examples(
        "accucompare locate model.py --device npu --golden golden/",
        "accucompare locate model.py --device npu --dtype bfloat16      # makes golden itself, on the CPU",
        "accucompare locate ported.py --device cpu --golden golden/     # is the bug in the code that was ported?",
        "accucompare locate model.py --device cpu --golden golden/ --golden-python old/bin/python  # or in another release?",
        "accucompare locate ported.py --device cpu --golden golden/ --map auto     # which calls its layers otherwise",
        "accucompare locate model.py --device npu --ops                 # and in which operator, on which line?",
        "",
        "Exit code: 0 rounding, 1 a bug, 2 trouble.",
    )
)
@click.argument("case", required=False)
@click.option("--device", required=True, metavar="DEVICE", help="The device under test: cpu, cuda, cuda:N, npu or npu:N.")
@click.option("--golden", type=click.Path(path_type=Path), metavar="BUNDLE", help="The trusted bundle.  [default: made on the CPU]")
@click.option(
    "--golden-case",
    metavar="CASE",
    help="The case that golden is of: the baseline's, and golden's own if it is made here.  [default: as golden says, or CASE]",
)
@click.option(
    "--golden-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Python of the environment that golden was captured in; it makes the baseline, and golden's operators, in a process of its own.",
)
@shared.maps
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="What to compute in.  [default: the case's own type]")
@click.option("--out", type=click.Path(path_type=Path), default="locate", show_default=True, metavar="DIR", help="Directory for bundles.")
@click.option("--seed", type=click.IntRange(0, (1 << 32) - 1), help="Seed of weights and random operations.  [default: golden's, or 0]")
@click.option("--steps", type=click.IntRange(1), help="Steps to run.  [default: golden's, or one for each of the case's inputs]")
@click.option(
    "--repeat",
    type=click.IntRange(1, 9),
    default=1,
    show_default=True,
    help="Run the device, and golden if it is made, so often: does each agree with itself?",
)
@shared.compared_only
@shared.compared_skip
@click.option("--ops", is_flag=True, help="Then say which operator of the culprit it is, with its source line; report in …-ops.xlsx.")
@click.option("--hf32", is_flag=True, help="Let an NPU round what goes into float32 products; otherwise it may not while this runs.")
@click.option("--tf32", is_flag=True, help="The same for a GPU.")
@shared.deterministic
@click.option("--report", type=click.Path(path_type=Path), metavar="XLSX", help="Excel report.  [default: reports/DIR.xlsx]")
@shared.json
@click.option("--overwrite", is_flag=True, help="Replace the bundles of an earlier run.")
@click.option("--force", is_flag=True, help="Go on although golden has other weights.")
@click.option("-q", "--quiet", is_flag=True, help="Print the answer only.")
def locate(case: str | None, device: str, ops: bool, report: Path | None, json_path: Path | None, quiet: bool, **options: Any) -> int:
    """Run CASE on a device and say whether it differs from golden by rounding or by a bug, and in which layer the bug is.

    Each layer is given golden's inputs (it is fed), so that its error is its own, and is judged by what rounding alone does to it on the
    CPU. A culprit is the place where an error is made: a layer, or glue, code of a layer's own between its children. Its excess is its
    error as a multiple of what rounding makes there.
    """
    from accucompare.devices import DeviceName

    report = report if report is not None else Path("reports") / f"{shared.stem(options['out'])}.xlsx"
    shared.refuse_other_than_xlsx(report)
    made = [options["out"] / name for name in ("golden", "candidate", "baseline", "ops")]
    shared.refuse_places({"--report": report, "--json": json_path}, made)
    name = DeviceName.parse(device)
    from accucompare.locate import locate as find
    from accucompare.locate import locate_operators

    announce = _announcer(quiet)
    comparison = find(case, name, announce=announce, **options)
    code = _conclude(comparison, report, json_path, quiet)
    if ops:
        again = {option: value for option, value in options.items() if option not in _NOT_AGAIN}
        operators = locate_operators(comparison, case, name, announce=announce, **again)
        if operators is not None:
            of_ops = [path and (path if is_stream(path) else path.with_stem(f"{path.stem}-ops")) for path in (report, json_path)]
            _conclude(operators, of_ops[0] or report, of_ops[1], quiet)
    return code


@cli.command(
    epilog=shared.examples(
        "accucompare show golden",
        "accucompare show golden encoder.layers.0.fc1",
        "accucompare show golden encoder.layers.0.fc1 --role input --slice '0, :4' --save fc1.npy",
        "accucompare show golden '(root)' --path logits",
        "accucompare show golden 'encoder.*.fc1'                  # all records of these layers",
    )
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("name", required=False)
@click.option("--call", type=click.IntRange(0), default=0, show_default=True, help="Call index.")
@click.option(
    "--role", type=click.Choice(["input", "output", "computed_buffer", "op_input", "op_output"]), default="output", show_default=True
)
@click.option("--path", help="Place in a nested value, as the list of records shows it.")
@click.option("--step", type=click.IntRange(0), help="Step.  [default: 0; all, without NAME]")
@click.option("--rank", type=click.IntRange(0), help="Rank.  [default: 0; all, without NAME]")
@click.option("--slice", "slices", metavar="SLICE", help="Part to print or save, as in NumPy: '0, :4'.")
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), metavar="NPY", help="Save the values; bfloat16 becomes float32.")
def show(bundle: Path, name: str | None, slices: str | None, save: Path | None, **place: Any) -> int:
    """List the records of BUNDLE, or print one tensor's values and statistics.

    NAME is a layer's qualified name; the model itself is '(root)'. A glob, such as 'encoder.*', lists the records of the layers that match.
    """
    from accucompare.bundle.reader import open_bundle
    from accucompare.report.terminal import print_records, print_tensor, reader_may_leave

    shared.refuse_places({"--save": save})
    with open_bundle(bundle) as opened, reader_may_leave():
        if name is None or (set(name) & set("*?[") and all(record.name != name for record in opened.records())):
            if save is not None or slices is not None:
                raise UsageError("--slice and --save need the NAME of a layer")
            print_records(opened, place["step"], place["rank"], name)
        else:
            record = opened.find(name, **{key: value for key, value in place.items() if value is not None})
            print_tensor(opened, record, slices, save)
    return PASS


@cli.command(
    epilog=shared.examples(
        "accucompare verify golden",
        "accucompare verify npu/ --quiet         # after it was copied, say",
        "",
        "Exit code: 0 every byte is as it was written, 2 it is damaged or incomplete.",
    )
)
@click.argument("bundle", type=click.Path(path_type=Path))
@shared.verdict_only
def verify(bundle: Path, quiet: bool) -> int:
    """Read all of BUNDLE, every rank, step and record, and say whether it is as it was written."""
    from accucompare.bundle.reader import open_bundle
    from accucompare.bundle.verification import verify as read_all
    from accucompare.report.terminal import print_verified, progress_bar, reader_may_leave

    with open_bundle(bundle) as opened:
        with progress_bar("verifying", "bytes", quiet) as progress:
            found = read_all(opened, progress)
        with reader_may_leave():
            print_verified(opened, found, quiet)
        return PASS if opened.complete and not found.damage else TROUBLE


@cli.command(
    epilog=shared.examples(
        "accucompare doctor",
        "accucompare doctor --json > doctor.json         # to attach to a question",
        "accucompare doctor --device npu --quiet         # does the NPU work?",
        "",
        "Exit code: 0 nothing is wrong, 2 trouble: a package is missing, too old or broken, an installed",
        "torch does not work even on the CPU, or the device named by --device is not available. Without",
        "--device, that there is no GPU, no NPU or no torch is none.",
    )
)
@click.option("--device", metavar="DEVICE", help="Look for this device only, such as npu or cuda:1.  [default: cpu, cuda and npu]")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True, max=3600),
    default=60,
    show_default=True,
    help="Seconds that devices are given to answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@shared.verdict_only
def doctor(device: str | None, timeout: float, as_json: bool, quiet: bool) -> int:
    """Say what this machine offers, what is wrong with it, and the cure.

    Versions, the kernel in use, devices, flags and environment variables that make numbers differ. Each device is really used.
    """
    from accucompare.devices import DeviceName
    from accucompare.doctor import examine
    from accucompare.report.doctor import print_examination

    found = examine(DeviceName.parse(device) if device is not None else None, timeout)
    print_examination(found, as_json=as_json, quiet=quiet)
    return PASS if found.ok else TROUBLE


def _precisions(with_baseline: str | None, tensors: bool, options: dict[str, Any]) -> tuple[str, ...]:
    """The baselines to make after a capture."""
    if with_baseline is None:
        if tensors:
            raise UsageError("--baseline-tensors: says what to keep of the baselines that --with-baseline makes; give both")
        return ()
    for option in ("feed", "mode"):
        if options[option] not in (None, "tensors"):
            raise UsageError(f"--with-baseline: the baselines are fed with this capture, which --{option} {options[option]} does not allow")
    from accucompare.compare.brought import parse_precisions

    return parse_precisions(with_baseline)


def _announcer(quiet: bool) -> Callable[[str], None]:
    """Says on stderr what is done, unless nobody wants to know."""
    return (lambda doing: None) if quiet else (lambda doing: click.echo(f"… {printable(doing)}", err=True))


def _refuse_existing(directory: Path, overwrite: bool) -> None:
    """Say at once, before torch is imported and the model built, that something is in the way."""
    from accucompare.bundle.writer import refuse_directory

    refuse_directory(directory, overwrite)


def _refuse_incomplete(path: Path, rank: int) -> None:
    """Say that a capture ran to its end, and yet what it wrote is not whole."""
    from accucompare.bundle.reader import open_bundle

    with open_bundle(path) as bundle:
        manifest = bundle.manifests[rank]
    if not manifest.complete:
        raise CaptureError(f"{path}: is incomplete: {(manifest.stopped or {}).get('error')}")


#: Options of locate that do not matter, or are golden's, when it goes on to operators.
_NOT_AGAIN = ("golden", "map", "seed", "steps", "repeat", "only", "skip")


def _conclude(comparison: Comparison, report: Path, json_path: Path | None, quiet: bool) -> int:
    """Write the reports, print what came out, and give the exit code."""
    from accucompare.report.terminal import print_comparison, reader_may_leave

    try:
        comparison.to_excel(report)
    finally:  # each is written, whether or not the other can be
        if json_path is not None:
            comparison.to_json(json_path)
    on_stdout = any(path is not None and is_stdout(path) for path in (report, json_path))
    with reader_may_leave(), contextlib.redirect_stdout(sys.stderr if on_stdout else sys.stdout):
        print_comparison(comparison, report, quiet)
    if comparison.trouble:
        return TROUBLE
    return PASS if comparison.passed else DIFFERENT
