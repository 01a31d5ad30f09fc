"""``accucompare.assert_layers_close``."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accucompare.api import Comparison, diff
from accucompare.bundle.reading import Bundle, open_bundle
from accucompare.case import Case
from accucompare.compare.limits import Tolerance
from accucompare.errors import ReportError, UsageError
from accucompare.places import Place, place_of
from accucompare.recorder.capture_options import DEFAULTS, CaptureOptions
from accucompare.report.words import failure, nan_on_both
from accucompare.text import printable, with_article

if TYPE_CHECKING:
    from torch import nn

    from accucompare.recorder.session import Session

    Side = nn.Module | Case | str | os.PathLike[str] | Bundle | Session


def assert_layers_close(
    candidate: Side,
    golden: Side,
    *,
    inputs: Any = None,
    baseline: Side | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    rel_l2: float | None = None,
    cosine: float | None = None,
    equal_nan: bool = False,
    report: str | Path | None = None,
    **others: Any,
) -> None:
    """Assert that every layer of the candidate is close to golden's.

    Each side is a model, a ``Case``, a bundle (its directory, or opened), or the session of an
    ended capture. Models and cases run here, golden first, then the baseline, then the candidate,
    each on its own device and in its own mode and dtype.

    Args:
        inputs: for models and for a ``Case`` without inputs: a tensor, a tuple of positional
            arguments, a dict of keyword arguments, or a list of those, one a step. They are copied
            to each model's device, but not cast: a model of another dtype takes a ``Case`` with its
            own inputs.
        baseline: trusted, in the candidate's precision: errors are judged as multiples of its
            errors.
        atol, rtol, rel_l2, cosine: limits, as in ``accucompare.Tolerance``. Without any, the
            baseline judges, or a table by dtype.
        equal_nan: whether NaN in the same places on both sides is equal; by default it fails, as in
            ``torch.testing.assert_close``.
        report: where to write a report if the assertion fails: a page if it ends in .html, else an
            Excel report.
        others: ``tolerances``, ``map``, ``only``, ``skip``, as for ``accucompare.diff``.

    Raises:
        AssertionError: if a layer is not close, nothing could be compared, or closeness could not
            be shown (an incomplete capture, for example). The message has all culprits, counts, the
            smallest limits that would pass, and why a report could not be written.
        UsageError: if an option makes no sense, a model has no inputs, or a side is something else.
        BundleError, CaptureError: as from reading and capturing.

    Example:
        >>> assert_layers_close(ported, original, inputs=batch, rel_l2=1e-4)
    """
    __tracebackhide__ = True
    if report is not None and Path(report).suffix.lower() not in (".xlsx", ".html"):
        raise UsageError(
            f"report={os.fspath(report)!r}: must end in .xlsx (an Excel report) or .html (a page)"
        )
    with tempfile.TemporaryDirectory(prefix="accucompare.") as folder:
        made = Path(folder)
        trusted = bundle_of(golden, made / "golden", inputs, "golden")
        options = options_of(trusted)
        judged_by = (
            None
            if baseline is None
            else bundle_of(baseline, made / "baseline", inputs, "baseline", options)
        )
        tested = bundle_of(candidate, made / "candidate", inputs, "candidate", options)
        limits = Tolerance(atol, rtol, rel_l2, cosine, others.pop("tolerances", None))
        comparison = diff(trusted, tested, baseline=judged_by, limits=limits, **others)
        require_close(comparison, report, made, equal_nan)


def require_close(
    comparison: Comparison,
    report: str | Path | None = None,
    made: Place | None = None,
    equal_nan: bool = False,
) -> None:
    """Raise the AssertionError of a comparison that does not pass, after writing its report.

    Args:
        comparison, report, equal_nan: as in ``assert_layers_close``.
        made: the directory of captures made for this comparison alone, removed after it.
    """
    __tracebackhide__ = True
    nan = "" if equal_nan or not comparison.passed else nan_on_both(comparison)
    if comparison.passed and not nan:
        return
    places = {"Golden": comparison.golden.path, "Candidate": comparison.candidate.path}
    places = {
        name: path for name, path in places.items() if made is None or made not in path.parents
    }
    lines = [
        nan or failure(comparison),
        *(f"{name}: {printable(str(path))}" for name, path in places.items()),
    ]
    if report is not None:
        write = (
            comparison.to_html if Path(report).suffix.lower() == ".html" else comparison.to_excel
        )
        try:
            lines.append(f"Report: {printable(str(write(report)))}")
        except ReportError as error:  # the assertion must not be lost for it
            lines.append(f"No report: {printable(str(error))}")
    raise AssertionError("\n".join(lines))


def bundle_of(
    side: Side, out: Path, inputs: Any, name: str, options: CaptureOptions = DEFAULTS
) -> Place:
    """The directory of a side's bundle; a model or a case is captured into ``out``. Raises
    UsageError if it has no bundle and cannot be captured, or has no inputs.

    Args:
        inputs: for a model, or a case without inputs.
        name: how an error calls the side.
    """
    if isinstance(side, (str, os.PathLike)):
        return place_of(os.fspath(side))
    if isinstance(side, Bundle):
        return side.path
    # late: bundles are compared without torch
    from accucompare.recorder.session import Session

    return side.path if isinstance(side, Session) else captured(side, out, inputs, name, options)


def captured(
    side: nn.Module | Case, out: Path, inputs: Any, name: str, options: CaptureOptions
) -> Place:
    """Capture a model or a case; arguments and errors as for ``bundle_of``."""
    from torch import nn

    from accucompare.recorder.session import capture_model

    case = Case(side) if isinstance(side, nn.Module) else side
    if not isinstance(case, Case):
        raise UsageError(
            f"{name} must be a model, a Case, a bundle or the session of a capture, but is"
            f" {with_article(type(side).__name__)}"
        )
    if case.inputs is None and inputs is None:
        raise UsageError(
            f"{name} is a model and needs inputs: give inputs=…, or Case(model, inputs) in the"
            " model's place"
        )
    return capture_model(
        case if case.inputs is not None else replace(case, inputs=inputs), out, options
    )


def options_of(bundle: Place) -> CaptureOptions:
    """The options that record a model as this bundle was recorded. Raises BundleError if it is
    missing or damaged."""
    with open_bundle(bundle) as opened:
        made = opened.manifest.options
    names = ("mode", "level", "seed", "only", "skip", "roles")
    taken = {name: value for name in names if (value := getattr(made, name)) is not None}
    if made.sketch is not None:
        taken["sketch_size"] = made.sketch.size
    return CaptureOptions(**taken)
