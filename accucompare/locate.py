"""Is it rounding or a bug, and where is the bug? What an expert would do, in one call: fed captures, a baseline, a comparison."""

from __future__ import annotations

import glob
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accucompare.bundle.manifest import Manifest
from accucompare.bundle.reader import open_bundle
from accucompare.bundle.records import display_name
from accucompare.compare.comparison import Comparison
from accucompare.compare.diff import diff
from accucompare.compare.outcomes import Progress
from accucompare.compare.suggest import float_dtype, product_formats
from accucompare.devices import DeviceName, open_device
from accucompare.errors import CaptureError

#: Called with what is being done now, before it begins.
Announce = Callable[[str], None]

_HALF = ("bfloat16", "float16")


def locate(
    target: str | None,
    device: DeviceName,
    *,
    golden: str | Path | None = None,
    out: str | Path = "locate",
    dtype: str | None = None,
    hf32: bool = False,
    tf32: bool = False,
    deterministic: bool = False,
    seed: int | None = None,
    steps: int | None = None,
    overwrite: bool = False,
    force: bool = False,
    announce: Announce = lambda doing: None,
    progress: Progress | None = None,
) -> Comparison:
    """Run a case on a device, each module on golden's inputs, and compare with what rounding alone does to it.

    Args:
        target: the case, see ``accucompare.case.load_case``.
        device: the device under test.
        golden: the trusted bundle; without it, one is made on the CPU in float32, with weights and inputs rounded to ``dtype``.
        out: directory for the bundles that are made: ``golden``, ``candidate`` and ``baseline``.
        dtype: what the candidate computes in; its own type, if not given.
        hf32, tf32: let the device round the operands of float32 products; otherwise it is forbidden while this runs, for what it does to
            every layer would hide small faults.
        deterministic, seed, steps, overwrite, force: as for ``accucompare.capture``.
        announce: called with each thing that is done.
        progress: of the comparison.

    Returns:
        The fed comparison with its baseline; ``conclusion`` and ``culprits`` are the answer.

    Raises:
        CaseError, DeviceError, CaptureError, BundleError, UsageError: as the captures and the comparison do.
    """
    open_device(device)  # before torch is imported, and before anything is written
    from accucompare.capture.run import FloatType, RoundedType, capture_case

    folder = Path(out)
    half = dtype if dtype in _HALF else None
    if golden is None:
        announce("golden: the case on the CPU, in float32")
        golden = capture_case(
            target,
            folder / "golden",
            DeviceName("cpu"),
            dtype=FloatType.FLOAT32,
            round_weights=RoundedType(half) if half else None,
            seed=seed,
            steps=steps,
            overwrite=overwrite,
        )
    candidate = {"dtype": FloatType(dtype) if dtype else None, "hf32": hf32, "tf32": tf32, "deterministic": deterministic}
    options = {"seed": seed, "steps": steps, "force": force, "overwrite": overwrite}
    return _compared(target, device, Path(golden), folder, candidate, options, announce, progress)


def locate_operators(
    comparison: Comparison,
    target: str | None,
    device: DeviceName,
    *,
    out: str | Path = "locate",
    dtype: str | None = None,
    hf32: bool = False,
    tf32: bool = False,
    deterministic: bool = False,
    overwrite: bool = False,
    force: bool = False,
    announce: Announce = lambda doing: None,
    progress: Progress | None = None,
) -> Comparison | None:
    """After ``locate``: which operator of the first culprit's module makes the error?

    Golden, candidate and baseline are captured again, with the operators of that one module.

    Args:
        comparison: what ``locate`` returned.
        target, device, out, dtype, hf32, tf32, deterministic, overwrite, force, announce, progress: as for ``locate``; the bundles go to
            ``ops`` in ``out``.

    Returns:
        The fed comparison of that module's operators; ``None`` if there is no culprit.

    Raises:
        CaptureError: if golden cannot be made again here.
        CaseError, DeviceError, BundleError, UsageError: as for ``locate``.
    """
    if not comparison.culprits:
        return None
    from accucompare.capture.run import FloatType, RoundedType, capture_case

    name, trusted = comparison.culprits[0].name, comparison.golden.manifest
    made, first, folder = trusted.capture, comparison.golden.path, Path(out) / "ops"
    only = [glob.escape(name)]
    options: dict[str, Any] = {
        "seed": made.get("seed"),
        "steps": len(trusted.steps),
        "overwrite": overwrite,
        "level": "op",
        "only": only,
    }
    like = first if trusted.state is not None else made.get("like")
    announce(f"operators of {display_name(name)}: golden on the CPU")
    golden = capture_case(
        _trusted_case(trusted, target),
        folder / "golden",
        DeviceName("cpu"),
        dtype=FloatType(made["dtype"]) if made.get("dtype") else None,
        round_weights=RoundedType(made["round_weights"]) if made.get("round_weights") else None,
        emulate=made.get("emulate"),
        like=like,
        **options,
    )
    again = diff(first, golden, only=only)
    if not again.passed:
        raise CaptureError(
            f"{first}: cannot be captured again here, {display_name(name)} gives other values than it holds; capture it with --save-state"
        )
    candidate = {"dtype": FloatType(dtype) if dtype else None, "hf32": hf32, "tf32": tf32, "deterministic": deterministic}
    return _compared(target, device, golden, folder, candidate, {**options, "force": force}, announce, progress, like)


def _compared(
    target: str | None,
    device: DeviceName,
    golden: Path,
    folder: Path,
    of_candidate: dict[str, Any],
    options: dict[str, Any],
    announce: Announce,
    progress: Progress | None,
    like: str | Path | None = None,
) -> Comparison:
    """Capture candidate and baseline, fed with golden, and compare. The options are those of ``capture_case``."""
    from accucompare.capture.run import FloatType, capture_case

    with open_bundle(golden) as bundle:
        trusted = bundle.manifest
    like = golden if trusted.state is not None else like
    what = "operator" if trusted.capture.get("level") == "op" else "module"
    announce(f"candidate: each {what} on golden's inputs, on {device}")
    candidate = capture_case(target, folder / "candidate", device, like=like, feed=golden, **of_candidate, **options)
    with open_bundle(candidate) as bundle:
        precision, emulate = _of_baseline(trusted, bundle.manifest)
    trusted_case = _trusted_case(trusted, target)
    announce(f"baseline: {trusted_case or 'the same'} on the CPU, in {precision}{f' with products in {emulate}' if emulate else ''}")
    try:
        baseline: Path | None = capture_case(
            trusted_case,
            folder / "baseline",
            DeviceName("cpu"),
            dtype=FloatType(precision),
            emulate=emulate,
            like=like,
            feed=golden,
            **options,
        )
    except CaptureError as error:  # a model that does not run in that type on the CPU; the candidate's rounding judges then
        announce(f"no baseline, since {error}")
        baseline = None
    announce("comparing")
    return diff(golden, candidate, baseline=baseline, progress=progress)


def _trusted_case(golden: Manifest, target: str | None) -> str | None:
    """The case that golden was captured from, if it is here: a fault in the candidate's code must not be in the baseline's."""
    case = golden.environment.get("case")
    if not case or case == target:
        return target
    return case if Path(case.rpartition(":")[0] if ".py:" in case else case).is_file() else target


def _of_baseline(golden: Manifest, candidate: Manifest) -> tuple[str, str | None]:
    """The type that the baseline computes in, and the precision of its products.

    In golden's own type the CPU would give golden itself; float64 then shows golden's rounding, which is the candidate's.
    """
    ours, theirs = float_dtype(golden), float_dtype(candidate)
    lowered = next((each for each in product_formats(candidate) if each and theirs == "float32"), None)
    if lowered is not None:
        return theirs, lowered
    return ("float64" if theirs in (ours, "") else theirs), None
