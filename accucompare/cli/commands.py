"""The commands: parse, call, print, exit code. Each imports what it needs when it runs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accucompare.asked import AskedOfCapture, LocateOptions
from accucompare.cli import options as option
from accucompare.cli.decode_command import device_of_locate, locate_decode
from accucompare.cli.group import PASS, TROUBLE, cli
from accucompare.cli.help import examples
from accucompare.cli.logs import announcer, told_later
from accucompare.cli.option_types import PLACE
from accucompare.cli.outputs import Outputs, finish, reports_to_write, stem
from accucompare.cli.scripts import (
    OF_CASES,
    MayRunScript,
    capture_script,
    command_after_dashes,
    locate_script,
)
from accucompare.errors import AccucompareError, CaptureError, UsageError
from accucompare.files import is_stream
from accucompare.launched import launched_as
from accucompare.places import Place
from accucompare.selection import FloatType, Mode, RoleGroup
from accucompare.text import printable, printable_lines

if TYPE_CHECKING:
    from accucompare.api import Comparison
    from accucompare.locating import LocateSetup, RankGroup


@cli.command(
    cls=MayRunScript,
    epilog=examples(
        "accucompare capture --device cpu --out golden",
        "accucompare capture model.py:case --device npu --dtype bfloat16",
        "accucompare capture model.py --device npu --deterministic --no-hf32",
        "accucompare capture model.py --device cpu --emulate hf32 --out hf32",
        "accucompare capture model.py --dtype bfloat16 --as-layout tp8 --out one-as-tp8   # its"
        " baseline",
        "accucompare capture model.py --out golden --only 'encoder.*' --skip '*.dropout'",
        "accucompare capture model.py --out golden --mode stats      # digests and statistics, no"
        " tensors",
        "accucompare capture model.py --out golden --save-state      # weights and inputs too, then"
        " elsewhere:",
        "accucompare capture model.py --device npu --like golden     # same weights, inputs, seed,"
        " selection",
        "accucompare capture model.py --like golden --map 'encoder.layer.*=layers.*'   # its layers"
        " have other names",
        "accucompare capture model.py --device npu --dtype bfloat16 --feed golden --out npu-fed",
        "torchrun --nproc-per-node 4 -m accucompare capture model.py --feed golden --layout-of free"
        " --out fed   # its part to each rank",
        "accucompare capture model.py --dtype float64 --feed npu --out answers    # the exact"
        " output of each layer",
        "accucompare capture model.py --out golden --round-weights bfloat16       # the weights of"
        " a bfloat16 run",
        "accucompare capture model.py --out ops --level op --only encoder.0.attention  # and its"
        " operators",
        "accucompare capture model.py --device npu --repeat 2        # does it agree with itself?",
        "accucompare capture --out golden -- python train.py --lr 1e-4            # a script, as"
        " it is",
        "accucompare capture --steps 0,100 -- torchrun --nproc-per-node 8 train.py",
        "accucompare capture --arm now --steps 3 -- python train.py  # the next 3 steps after:"
        " touch now",
    ),
)
@option.case
@option.device()
@option.dtype()
@option.round_weights
@option.out(
    "Directory or URL (s3://…) to write to; files for a URL wait in TMPDIR.  [default: the device's"
    " type]",
    kind=PLACE,
)
@option.of(AskedOfCapture)
@option.with_baseline
@option.baseline_tensors
@option.repeat(
    "Number of captures, each from scratch, into DIR, DIR/repeat1, …: does the device agree with"
    " itself?"
)
@option.queue
@option.model
@option.arm
@option.quiet("nothing but errors")
def capture(
    case: str | None, device: str, out: Place | None, repeat: int, quiet: bool, **options: Any
) -> int:
    """Run CASE, or a script, and record the inputs and outputs of every layer.

    CASE is file.py[:callable] or package.module[:callable]; the callable, `case` if not named,
    returns an accucompare.Case. Without CASE, [tool.accucompare] case of the nearest pyproject.toml
    is run, or else ./case.py.

    A script is run by its COMMAND, unedited, with the same output, results and exit code. Its model
    is found; recorded is its first step, or those of --steps, into captured/ or --out. Seeds and
    flags are left alone unless --seed or --deterministic is given."""
    asked = {**option.taken(AskedOfCapture, options), "queue_bytes": options.pop("queue")}
    of_script = {name: options.pop(name) for name in ("model", "arm")}
    if asked["force"] and asked["feed"] is None:
        raise UsageError(
            "--force: feeds even from a golden with other weights, and none is named; name it with"
            " --feed"
        )
    if (command := command_after_dashes()) is not None:
        return capture_script(command, out, quiet, {**asked, **of_script})
    from accucompare.bundle.writing import refuse_directory
    from accucompare.devices import DeviceName, open_device

    name = DeviceName.parse(device)
    directory = out if out is not None else Path(name.type)
    rank, _ = launched_as()
    if not rank:  # before torch is imported and the model built; the others may come later
        refuse_directory(directory, asked["overwrite"])
    tensors = options.pop("baseline_tensors")
    precisions = _precisions(options.pop("with_baseline"), tensors, asked)
    open_device(name)  # before anything else imports torch
    from accucompare.cli.progress import compilation_bar, progress_bar
    from accucompare.recorder.capture_options import CaptureOptions
    from accucompare.recorder.session import capture_case, rank_and_ranks, repeat_of
    from accucompare.report.console import reader_may_leave
    from accucompare.report.terminal import print_capture

    compiling = asked["compile"] is not None
    with (
        compilation_bar(quiet) if compiling else contextlib.nullcontext(),
        progress_bar("capturing", "steps", quiet or compiling) as progress,
        told_later("accucompare.recorder.session.session"),
    ):
        checked = CaptureOptions(**asked)
        capture_case(case, directory, name, checked, repeat=repeat, progress=progress, **options)
    written = [repeat_of(directory, run) for run in range(repeat)]
    if not quiet and not rank:
        with reader_may_leave():
            for path in written:
                print_capture(path)
    for path in written:
        _refuse_incomplete(path, rank_and_ranks()[0])
    if precisions:
        from accucompare.recorder.session import capture_baselines

        capture_baselines(
            case, directory, name, precisions, tensors=tensors, announce=announcer(quiet)
        )
    return PASS


@cli.command(
    epilog=examples(
        "accucompare diff golden/ npu/ --atol 1e-3",
        "accucompare diff golden/ npu/ --baseline cpu-bf16/           # rounding, or a bug?",
        "accucompare diff golden/ npu/ --rel-l2 1e-2 --cosine 0.999 --report reports/npu.xlsx",
        "accucompare diff golden/ npu/ --tolerances limits.toml --json npu.json",
        "accucompare diff golden/ npu/ --parquet npu.parquet          # every row, for pandas or"
        " DuckDB",
        "accucompare diff golden64/ npu/ --reference gpu/             # which is nearer to golden?",
        "accucompare diff golden/ npu/ --accept mindformers           # do two runs of training"
        " meet that standard?",
        "accucompare diff golden/ npu/ --map 'encoder.layers.*=blocks.*' --skip '*.dropout'",
        "",
        "Exit code: 0 identical, rounding or within tolerance; 1 a bug, or different; 2 not sure,"
        " or trouble.",
    )
)
@option.bundle("golden")
@option.bundle("candidate")
@option.baseline
@option.reference
@option.atol
@option.rtol
@option.rel_l2
@option.cosine
@option.tolerances
@option.layout
@option.accept
@option.of(LocateOptions, "map", "only", "skip")
@option.report("GOLDEN-vs-CANDIDATE")
@option.json(option.JSON_LINES)
@option.parquet
@option.verify
@option.workers
@option.cluster
@option.keep_going
@option.quiet()
def diff(
    golden: Place,
    candidate: Place,
    reports: tuple[Path, ...],
    json_path: Path | None,
    parquet_path: Path | None,
    quiet: bool,
    **options: Any,
) -> int:
    """Compare two bundles, layer by layer, and write a report.

    Without a tolerance option, the baseline judges, or else a relative L2 limit for each dtype
    (float32 1e-4, float16 1e-2, bfloat16 5e-2).

    Words in the output: a row is a pair of records, or a record without partner. A culprit is the
    place where an error is made: a layer, or glue (a layer's own code between its children). x
    limit is the error as a multiple of its limit, excess as a multiple of the baseline's error. A
    fed candidate was captured with --feed: each layer ran on golden's inputs, so each error is the
    layer's own.

    Two free-running runs of training are also compared step by step, by what --roles series
    records. With --accept, a standard for losses and gradient norms gives the exit code, and
    failing rows do not change it."""
    from accucompare.api import diff as compare
    from accucompare.cli.progress import progress_bar
    from accucompare.compare.diff_options import Work
    from accucompare.compare.limits import Tolerance

    reports = reports_to_write(
        reports, Path("reports") / f"{stem(golden)}-vs-{stem(candidate)}.xlsx"
    )
    outputs = Outputs(reports, json_path, parquet_path).checked(
        inputs={"--tolerances": options["tolerances"], "--layout": options["layout"]}
    )
    with progress_bar("comparing", "bytes", quiet) as progress:
        limits = Tolerance(
            **{
                name: options.pop(name)
                for name in ("atol", "rtol", "rel_l2", "cosine", "tolerances")
            }
        )
        work = Work(
            **{name: options.pop(name) for name in ("verify", "keep_going", "workers", "cluster")},
            progress=progress,
        )
        comparison = compare(golden, candidate, limits=limits, work=work, **options)
    return finish(comparison, outputs, quiet)


#: For locate, --device says where the script is meant to run.
_NOT_LOCATED = {name: why for name, why in OF_CASES.items() if name != "device"}


@cli.command(
    cls=MayRunScript,
    epilog=examples(
        "accucompare locate model.py --device npu --golden golden/",
        "accucompare locate model.py --device npu --dtype bfloat16      # makes golden itself, on"
        " the CPU",
        "accucompare locate ported.py --device cpu --golden golden/     # is the bug in the code"
        " that was ported?",
        "accucompare locate model.py --device cpu --golden golden/ --golden-python old/bin/python "
        " # or in another release?",
        "accucompare locate ported.py --device cpu --golden golden/ --map auto     # its layers"
        " have other names",
        "accucompare locate model.py --compile inductor                 # is the compiled model"
        " right?",
        "accucompare locate model.py --device npu --ops                 # and in which operator, on"
        " which line?",
        "torchrun --nproc-per-node 4 -m accucompare locate tp.py --device cpu --golden-case one.py "
        " # which layer, on which rank?",
        "accucompare locate model.py --decode 16                        # is the model's cache"
        " right?",
        "accucompare locate --device cuda --golden golden/ -- torchrun --nproc-per-node 4 train.py",
        "accucompare locate --device npu --golden golden/ -- python train.py --device npu   # a"
        " script, as it is",
        "",
        "Exit code: 0 rounding, 1 a bug, 2 not sure, or trouble.",
    ),
)
@option.case
@option.device(
    "The device under test: cpu, cuda, cuda:N, npu or npu:N.  [required, but cpu with --compile]",
    None,
    unless=device_of_locate,
)
@option.decode
@option.golden()
@option.dtype("What to compute in.  [default: the case's own type]", FloatType.FLOAT64)
@option.out("Directory or URL for bundles.", "locate", kind=PLACE)
@option.of(LocateOptions)
@option.ops
@option.report("DIR")
@option.json(option.JSON_LINES)
@option.parquet
@option.overwrite("Replace the bundles of an earlier run.")
@option.model
@option.quiet("the answer only")
def locate(
    case: str | None,
    device: str,
    reports: tuple[Path, ...],
    json_path: Path | None,
    parquet_path: Path | None,
    quiet: bool,
    **options: Any,
) -> int:
    """Run CASE, or a script: does it differ by rounding, or by a bug?

    If by a bug, in which layer?

    Each layer runs on golden's inputs (it is fed), so its error is its own; it is judged by the
    error that rounding alone makes there on the CPU. A culprit is the place where an error is made:
    a layer, or glue (a layer's own code between its children). Its excess is its error as a
    multiple of rounding's.

    A script chooses its device itself, and --device says which that must be. Without --golden it is
    first run with all accelerators hidden.

    Under torchrun, all ranks run the candidate, and rank 0 answers: golden is run by one process
    alone, the layout is taken from a free run, and each rank is fed its part of golden."""
    if (decode := options.pop("decode")) is not None:
        return locate_decode(case, device, decode, json_path, quiet, **options)
    rank, ranks = launched_as()
    if ranks == 1:
        return _locate(case, device, reports, json_path, parquet_path, quiet, None, **options)
    from accucompare.locating import RankGroup

    group = RankGroup.of_launcher()
    if rank:
        return group.follow()
    with group.led() as codes:
        codes.append(
            _locate(case, device, reports, json_path, parquet_path, quiet, group, **options)
        )
    return codes[0]


def _locate(
    case: str | None,
    device: str,
    reports: tuple[Path, ...],
    json_path: Path | None,
    parquet_path: Path | None,
    quiet: bool,
    group: RankGroup | None,
    **options: Any,
) -> int:
    """``locate`` in one process, or on rank 0."""
    from accucompare.devices import DeviceName

    reports = reports_to_write(reports, Path("reports") / f"{stem(options['out'])}.xlsx")
    of_ranks = ("golden", "layout", "candidate", "baseline", "ops")
    compiled = ("regions", "layers", "blocks", "whole")
    made = [options["out"] / name for name in (*of_ranks, *compiled)]
    given = {
        "CASE": _file_of(case),
        "--golden-case": _file_of(options["golden_case"]),
        "--golden-python": options["golden_python"],
    }
    outputs = Outputs(reports, json_path, parquet_path).checked(made, given)
    name, ops, announce = DeviceName.parse(device), options.pop("ops"), announcer(quiet)
    if (command := command_after_dashes(_NOT_LOCATED)) is not None:
        if group is not None:
            raise UsageError(
                "locate: a script is not run inside of torchrun; give torchrun in the command after"
                " --, as in: accucompare locate --device cuda -- torchrun train.py"
            )
        return finish(locate_script(command, name.type, options, announce), outputs, quiet)
    from accucompare.cli.progress import compilation_bar
    from accucompare.locating import LocateSetup, locate_case

    rest = LocateOptions(**option.taken(LocateOptions, options))
    options.pop("model")
    setup = LocateSetup(case, name, options=rest, announce=announce, group=group, **options)
    if ops and group is not None:
        raise UsageError("--ops: operators of several ranks are not fed; leave it out")
    if ops:
        setup.refuse_taken("ops/golden", "ops/candidate", "ops/baseline")
    if rest.compile is not None and ops:
        raise UsageError("--ops: --compile names the operator by itself; leave --ops out")
    with contextlib.nullcontext() if rest.compile is None else compilation_bar(quiet):
        comparison = locate_case(setup)
    code = finish(comparison, outputs, quiet)
    if ops:
        _go_on_to_operators(setup, comparison, outputs.each(_of_operators), quiet)
    return code


def _go_on_to_operators(
    setup: LocateSetup, comparison: Comparison, outputs: Outputs, quiet: bool
) -> None:
    """Compare the first culprit's operators, or say how to. The answer stands either way."""
    from accucompare.locating import locate_operators, operators_by_hand

    try:
        operators = locate_operators(setup, comparison)
    except (AccucompareError, SystemExit) as error:
        commands = [printable(each) for each in operators_by_hand(setup, comparison)]
        click.echo(
            f"accucompare: --ops: the operators cannot be compared: {printable_lines(str(error))}",
            err=True,
        )
        click.echo("the answer above stands; its operators, by hand:", err=True)
        for command, where in zip(commands, ("  # where golden was captured", "", ""), strict=True):
            click.echo(f"  {command}{where}", err=True)
        return
    if operators is not None:
        finish(operators, outputs, quiet)


@cli.command(
    epilog=examples(
        "accucompare doctor",
        "accucompare doctor --json > doctor.json         # to attach to a question",
        "accucompare doctor --device npu --quiet         # does the NPU work?",
        "",
        "Exit code: 0 no trouble; 2 a package is missing, too old or broken, an installed torch"
        " does not",
        "work on the CPU, or the device named by --device is not available. A missing GPU, NPU or"
        " torch",
        "is trouble only if --device was given.",
    )
)
@option.device(
    "Examine this device only, such as npu or cuda:1.  [default: cpu, cuda and npu]", default=None
)
@option.timeout
@option.as_json
@option.quiet()
def doctor(device: str | None, timeout: float, as_json: bool, quiet: bool) -> int:
    """Show what this machine offers, what is wrong, and the cure.

    Lists versions, the kernel in use, devices, and the flags and environment variables that change
    numbers. Each device is tried."""
    from accucompare.devices import DeviceName
    from accucompare.doctor import examine
    from accucompare.report.doctor_output import print_examination

    found = examine(DeviceName.parse(device) if device is not None else None, timeout)
    print_examination(found, as_json=as_json, quiet=quiet)
    return PASS if found.ok else TROUBLE


def _precisions(
    with_baseline: str | None, tensors: bool, options: dict[str, Any]
) -> tuple[str, ...]:
    if with_baseline is None:
        if tensors:
            raise UsageError("--baseline-tensors: needs --with-baseline, whose baselines it keeps")
        return ()
    for name in ("feed", "mode"):
        if options[name] not in (None, Mode.TENSORS):
            raise UsageError(
                f"--with-baseline: the baselines are fed with this capture, which --{name}"
                f" {options[name]} does not allow"
            )
    if options["roles"] is not None and RoleGroup.FORWARD not in options["roles"]:
        raise UsageError(
            "--with-baseline: the baselines are fed with this capture's forward; add forward to"
            " --roles"
        )
    from accucompare.compare.limits import parse_precisions

    return parse_precisions(with_baseline)


def _file_of(case: str | None) -> Path | None:
    return Path(case.partition(":")[0]) if case else None


def _refuse_incomplete(path: Place, rank: int) -> None:
    """Raise CaptureError if a capture reached its end but left an incomplete bundle."""
    from accucompare.bundle.reading import open_bundle

    with open_bundle(path) as bundle:
        manifest = bundle.manifests[rank]
    if not manifest.complete:
        raise CaptureError(f"{path}: is incomplete: {(manifest.stopped or {}).get('error')}")


def _of_operators(path: Path) -> Path:
    """Where a report on operators goes: beside that on layers."""
    return path if is_stream(path) else path.with_stem(f"{path.stem}-ops")
