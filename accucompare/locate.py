"""Is it rounding or a bug, and where is the bug? What an expert would do, in one call: fed captures, a baseline, a comparison."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from accucompare.bundle.manifest import Manifest
from accucompare.bundle.reader import open_bundle
from accucompare.bundle.records import display_name
from accucompare.case import is_here
from accucompare.compare.comparison import Comparison
from accucompare.compare.diff import diff
from accucompare.compare.outcomes import Progress
from accucompare.compare.suggest import float_dtype, product_formats
from accucompare.devices import DeviceName, open_device
from accucompare.errors import CaptureError, UsageError

#: Called with what is being done now, before it begins.
Announce = Callable[[str], None]

_HALF = ("bfloat16", "float16")


def locate(
    target: str | None,
    device: DeviceName,
    *,
    golden: str | Path | None = None,
    golden_case: str | None = None,
    out: str | Path = "locate",
    dtype: str | None = None,
    hf32: bool = False,
    tf32: bool = False,
    deterministic: bool = False,
    seed: int | None = None,
    steps: int | None = None,
    repeat: int = 1,
    only: str | Iterable[str] = (),
    skip: str | Iterable[str] = (),
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
        golden_case: the case that golden was captured from, for the baseline; as golden's manifest has it, if not given. Without
            ``golden``, it is made from this case.
        out: directory for the bundles that are made: ``golden``, ``candidate`` and ``baseline``.
        dtype: what the candidate computes in; its own type, if not given.
        hf32, tf32: let the device round the operands of float32 products; otherwise it is forbidden while this runs, for what it does to
            every layer would hide small faults.
        deterministic, seed, steps, overwrite, force: as for ``accucompare.capture``.
        repeat: how often to run the candidate, to see whether it agrees with itself.
        only, skip: globs of the layers to compare and to leave out.
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
    if golden is not None:
        _check(Path(golden), folder)
    else:
        golden_case = golden_case or target
        announce(f"golden: {golden_case or 'the case'} on the CPU, in float32")
        golden = capture_case(
            golden_case,
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
    compared = {"only": only, "skip": skip, "progress": progress}
    return _compared((target, golden_case), device, Path(golden), folder, {**candidate, "repeat": repeat}, options, announce, compared)


def locate_operators(
    comparison: Comparison,
    target: str | None,
    device: DeviceName,
    *,
    golden_case: str | None = None,
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
        target, device, golden_case, out, dtype, hf32, tf32, deterministic, overwrite, force, announce, progress: as for ``locate``;
            the bundles go to ``ops`` in ``out``.

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
        _trusted_case(trusted, target, golden_case) or target,
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
    compared = {"progress": progress}
    return _compared((target, golden_case), device, golden, folder, candidate, {**options, "force": force}, announce, compared, like)


def _compared(
    cases: tuple[str | None, str | None],
    device: DeviceName,
    golden: Path,
    folder: Path,
    of_candidate: dict[str, Any],
    options: dict[str, Any],
    announce: Announce,
    compared: dict[str, Any],
    like: str | Path | None = None,
) -> Comparison:
    """Capture candidate and baseline, fed with golden, and compare.

    Args:
        cases: the candidate's, and golden's if it is known.
        of_candidate, options: of ``capture_case``, for the candidate and for both.
        compared: of ``diff``.
    """
    from accucompare.capture.run import FloatType, capture_case

    with open_bundle(golden) as bundle:
        trusted = bundle.manifest
    like = golden if trusted.state is not None else like
    what = "operator" if trusted.capture.get("level") == "op" else "module"
    announce(f"candidate: each {what} on golden's inputs, on {device}")
    candidate = capture_case(cases[0], folder / "candidate", device, like=like, feed=golden, **of_candidate, **options)
    case = _trusted_case(trusted, *cases)
    baseline: Path | None = None
    if case is None:
        announce(
            f"no baseline: the case that golden was captured from ({trusted.environment.get('case') or 'not named'}) is not here, and the "
            "candidate's may have the fault; name it with --golden-case, or the candidate's if only the device may be wrong"
        )
    else:
        with open_bundle(candidate) as bundle:
            precision, emulate = _of_baseline(trusted, bundle.manifest)
        announce(f"baseline: {case} on the CPU, in {precision}{f' with products in {emulate}' if emulate else ''}")
        of_baseline: dict[str, Any] = {"dtype": FloatType(precision), "emulate": emulate, "like": like, "feed": golden}
        try:
            baseline = capture_case(case, folder / "baseline", DeviceName("cpu"), **of_baseline, **options)
        except CaptureError as error:  # a model that does not run in that type on the CPU; the candidate's rounding judges then
            announce(f"no baseline, since {error}")
    announce("comparing")
    return diff(golden, candidate, baseline=baseline, **compared)


def _check(golden: Path, folder: Path) -> None:
    """Refuse what cannot be golden, and to write into it."""
    with open_bundle(golden) as bundle:
        if bundle.manifest.capture.get("feed"):
            raise UsageError(f"{golden}: is itself fed, so it is no golden; give the bundle that it was fed with")
    if golden.resolve() in (folder.resolve(), *folder.resolve().parents):
        raise UsageError(f"--out {folder}: lies in golden {golden}; choose another directory")


def _trusted_case(golden: Manifest, target: str | None, named: str | None) -> str | None:
    """The case that golden was captured from: a fault in the candidate's code must not be in the baseline's. ``None`` if it is not here."""
    case = named or golden.environment.get("case")
    return case if case and (case == target or is_here(case)) else None


def _of_baseline(golden: Manifest, candidate: Manifest) -> tuple[str, str | None]:
    """The type that the baseline computes in, and the precision of its products.

    In golden's own type the CPU would give golden itself; float64 then shows golden's rounding, which is the candidate's.
    """
    ours, theirs = float_dtype(golden), float_dtype(candidate)
    lowered = next((each for each in product_formats(candidate) if each and theirs == "float32"), None)
    if lowered is not None:
        return theirs, lowered
    return ("float64" if theirs in (ours, "") else theirs), None
