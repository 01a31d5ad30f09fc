"""The command `fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accucompare.asked import FitOptions
from accucompare.cli import options as option
from accucompare.cli.group import cli
from accucompare.cli.help import examples
from accucompare.cli.logs import announcer
from accucompare.cli.outputs import is_page, refuse_file, refuse_json, reports_to_write, stem
from accucompare.errors import UsageError
from accucompare.files import PYTHON_FILE
from accucompare.places import Place
from accucompare.selection import FloatType


@cli.command(
    epilog=examples(
        "accucompare capture model.py --out golden",
        "accucompare fit model.py --golden golden/ --device npu --dtype bfloat16 --rel-l2 1e-3",
        "accucompare fit model.py --golden golden/ --dtype float16 --rel-l2 1e-3 --on logits",
        "accucompare fit model.py --golden golden/ --dtype bfloat16 --budget 10%   # the best for"
        " that cost",
        "",
        "Exit code: 0 within what was asked, as a run has shown; 1 nothing reaches it; 2 trouble.",
    )
)
@option.case
@option.golden("The trusted bundle of the same case, in float32.", required=True)
@option.device()
@option.dtype(
    "What everything else computes in; float32 for a device that rounds operands (HF32, TF32).",
    FloatType.FLOAT64,
    required=True,
)
@option.rel_l2
@option.budget
@option.of(FitOptions)
@option.out("Directory for the code, and for what is recorded on the way.", "fit")
@option.code
@option.report("DIR")
@option.json()
@option.quiet("the answer only")
def fit(
    case: str | None,
    reports: tuple[Path, ...],
    json_path: Path | None,
    code: Path | None,
    quiet: bool,
    **options: Any,
) -> int:
    """Find what CASE must keep in float32 to be within a tolerance.

    All other layers compute in --dtype. Each layer's own error, and backwards of golden's code, say
    how far each layer moves the output. The cheapest choice that should do is run on the device,
    then cheaper ones: the last that is within the tolerance is the answer, and its run the proof.

    A layer is kept whole, or its own code alone: what it computes between the layers in it. Prints
    each run, and writes the code that does the same."""
    out: Path = options.pop("out")
    golden: Place = options["golden"]
    if golden.resolve() in (out.resolve(), *out.resolve().parents):
        raise UsageError(f"--out {out}: lies in golden {golden}; choose another place")
    reports = reports_to_write(reports, Path("reports") / f"{stem(out)}.xlsx")
    if code is None:
        code = out / "keep_in_float32.py"
    inputs = {"CASE": None if case is None else Path(case.partition(":")[0])}
    files = {"--report": reports, "--json": json_path, "--code": code}
    refuse_json(json_path, files, inputs=inputs)
    refuse_file("--code", code, PYTHON_FILE)
    from accucompare.devices import DeviceName, open_device

    device = DeviceName.parse(options["device"])
    open_device(device)  # before anything else imports torch
    from accucompare.compare.fits import FitGoal
    from accucompare.fitting import FitSetup, fit_case
    from accucompare.report.console import reader_may_leave
    from accucompare.report.terminal import print_fit

    asked = FitOptions(**option.taken(FitOptions, options))
    setup = FitSetup(
        case,
        golden,
        device,
        options["dtype"],
        FitGoal(options["rel_l2"], options["budget"], str(asked.by)),
        out,
        asked,
        announcer(quiet),
    )
    found = fit_case(setup)
    if not found.changes_anything:
        code = None  # nothing to paste
    with reader_may_leave():
        print_fit(found, "" if code is None else str(code), quiet)
    if code is not None:
        found.to_python(code)
    for report in reports:
        (found.to_html if is_page(report) else found.to_excel)(report)
    if json_path is not None:
        found.to_json(json_path)
    return found.exit_code
