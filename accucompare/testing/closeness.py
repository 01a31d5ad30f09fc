"""``accucompare.assert_layers_close``: two models, bundles or captures agree layer by layer, or the
error says where they do not."""

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
from accucompare.text import printable

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

    Each side is a model, a ``Case``, a bundle (its directory, or opened), or the session of a
    capture that has ended. A model or a case is run here: golden first, then the baseline, then the
    candidate, each where it is and in the mode and the type that it has.

    Args:
        candidate: what is tested.
        golden: what is trusted.
        inputs: of the models, as a ``Case`` takes them: a tensor, a tuple of positional arguments,
            a dict of keyword arguments, or a list of those, one a step. They are copied to each
            model's device, and not cast: a model of another type takes a ``Case`` with inputs of
            its own. A ``Case`` without inputs takes these.
        baseline: what is trusted in the candidate's precision: errors are judged by how many times
            as large they are as its own.
        atol, rtol, rel_l2, cosine: limits, as of ``accucompare.Tolerance``. Without any, the
            baseline judges, or a table by dtype.
        equal_nan: whether NaN in the same places on both sides is equal; as for
            ``torch.testing.assert_close``, it fails otherwise.
        report: where to write a report if the assertion fails: an Excel report, or a page if the
            name ends in .html.
        others: ``tolerances``, ``map``, ``only``, ``skip``, as for ``accucompare.diff``.

    Raises:
        AssertionError: if a layer is not close, if nothing could be compared, or if closeness could
            not be shown (of a capture that did not run to its end, for example). The message has
            all culprits, counts, and the smallest limits that would pass.
        UsageError: if an option makes no sense, a model has no inputs, or a side is something else.
        BundleError, CaptureError: as those who read and capture do. A report that cannot be written
            is said in the AssertionError.

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
    """Raise the AssertionError of a comparison that does not pass, after its report is written.

    Args:
        comparison, report, equal_nan: as of ``assert_layers_close``.
        made: the directory of what was captured for this comparison alone, and is removed after it.
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
        except ReportError as error:  # the assertion is not lost for it
            lines.append(f"No report: {printable(str(error))}")
    raise AssertionError("\n".join(lines))


def bundle_of(
    side: Side, out: Path, inputs: Any, name: str, options: CaptureOptions = DEFAULTS
) -> Place:
    """The directory of a side's bundle; a model or a case is captured into ``out``.

    Args:
        inputs: of a model, or of a case without inputs of its own.
        name: how an error calls the side.
        options: of the capture.

    Raises:
        UsageError: if it is nothing that has a bundle, or has no inputs.
    """
    if isinstance(side, (str, os.PathLike)):
        return place_of(os.fspath(side))
    if isinstance(side, Bundle):
        return side.path
    # not before: bundles are compared without torch
    from accucompare.recorder.session import (
        Session,
    )

    return side.path if isinstance(side, Session) else captured(side, out, inputs, name, options)


def captured(
    side: nn.Module | Case, out: Path, inputs: Any, name: str, options: CaptureOptions
) -> Place:
    """Capture a model or a case; arguments and errors as of ``bundle_of``."""
    from torch import nn

    from accucompare.recorder.session import capture_model

    case = Case(side) if isinstance(side, nn.Module) else side
    if not isinstance(case, Case):
        raise UsageError(
            f"{name} must be a model, a Case, a bundle or the session of a capture, but is a"
            f" {type(side).__name__}"
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
    """The options to capture a model with, so that it is recorded as this bundle was.

    Raises:
        BundleError: if it is missing or damaged.
    """
    with open_bundle(bundle) as opened:
        made = opened.manifest.options
    names = ("mode", "level", "seed", "only", "skip", "roles")
    taken = {name: value for name in names if (value := getattr(made, name)) is not None}
    if made.sketch is not None:
        taken["sketch_size"] = made.sketch.size
    return CaptureOptions(**taken)
