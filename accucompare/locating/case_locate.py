"""``accucompare.locate``: fed captures, a baseline and a comparison in one call."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from accucompare.api import Comparison
from accucompare.asked import LocateOptions, whole_group
from accucompare.bundle.reading import open_bundle
from accucompare.case import file_of
from accucompare.compare.pairing import read_maps
from accucompare.devices import DeviceName, open_device
from accucompare.errors import CaseError, UsageError
from accucompare.locating.fed_comparison import compare_fed
from accucompare.locating.golden_code import GoldenCode
from accucompare.locating.locate_setup import LocateSetup
from accucompare.places import Place, place_of
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.selection import FloatType, RoundedType, listed

_LOGGER = logging.getLogger(__name__)


def locate(
    case: str | Path | None,
    device: str,
    *,
    golden: str | Place | None = None,
    dtype: str | None = None,
    out: str | Place = "locate",
    overwrite: bool = False,
    options: LocateOptions = LocateOptions(),
) -> Comparison:
    """Run a case on a device, each module on golden's inputs; compare errors with rounding's.

    The command ``accucompare locate`` does the same. Progress is logged at level INFO.

    Args:
        case: ``file.py[:callable]`` or ``package.module[:callable]``; the callable, by default
            ``case``, returns an ``accucompare.Case``. ``None`` stands for the case that the nearest
            pyproject.toml names, or ``./case.py``.
        device: under test: ``"cpu"``, ``"cuda"``, ``"cuda:N"``, ``"npu"`` or ``"npu:N"``.
        golden: directory or URL of the trusted bundle. By default, golden is made on the CPU in
            float32, with weights and inputs rounded to ``dtype``.
        dtype: what the candidate computes in: ``"float32"``, ``"bfloat16"`` or ``"float16"``; by
            default the case's own type.
        out: directory or URL for the bundles ``golden``, ``candidate`` and ``baseline``.
        overwrite: replace the bundles of an earlier run.
        options: the command's other options, as an ``accucompare.LocateOptions``.

    Returns:
        The fed comparison with its baseline; see ``answer``, ``conclusion`` and ``culprits``.

    Raises:
        CaseError: if the case cannot be found or built.
        DeviceError: if the device is not there.
        CaptureError: if the model raised, or a bundle cannot be written.
        BundleError: if golden is missing, damaged, or of a newer format.
        UsageError: if an argument makes no sense, or golden and the case do not belong together.

    Example:
        >>> comparison = locate("model.py:faulty", "cpu", golden="golden", out="located",
        ...                     options=LocateOptions(golden_case="model.py"))
        >>> comparison.answer.value, comparison.culprits[0].name
        ('bug', 'blocks.1.bn1')
    """
    setup = LocateSetup(
        case=None if case is None else str(case),
        device=DeviceName.parse(device),
        golden=golden,
        dtype=None if dtype is None else _candidate_type(dtype),
        out=place_of(out),
        overwrite=overwrite,
        options=whole_group(LocateOptions, options, "options"),
        announce=_LOGGER.info,
    )
    return locate_case(setup)


def _candidate_type(dtype: str) -> FloatType:
    known = [each for each in FloatType if each is not FloatType.FLOAT64]
    if dtype not in known:
        raise UsageError(
            f"dtype must be one of {', '.join(each.value for each in known)}, but is {dtype!r}"
        )
    return FloatType(dtype)


def locate_case(setup: LocateSetup) -> Comparison:
    """``locate`` with all that it was asked as one object."""
    options, golden = setup.options, setup.golden
    if options.compile is not None:
        open_device(setup.device)
        from accucompare.locating.compiled_levels import locate_compiled  # imports torch

        return locate_compiled(setup)
    if options.regions:
        raise UsageError("regions (--regions): are what is compiled; give --compile, too")
    open_device(setup.device)  # before torch is imported, and before anything is written
    maps = listed(options.map)
    read_maps(maps)
    if maps and golden is None:
        raise UsageError(
            "map (--map): needs golden (--golden BUNDLE); without it golden is made from the"
            " same case and has the"
            " same names"
        )
    if setup.group is not None and options.repeat > 1:
        raise UsageError("repeat (--repeat): several ranks are run once; leave it out")
    code = GoldenCode(
        setup.golden_python,
        options.golden_case if golden is not None else options.golden_case or setup.case,
    )
    code.check()
    made_here = golden is None
    names = ["golden"] if made_here else []
    names += [] if setup.group is None else ["layout"]
    setup.refuse_taken(*names, "candidate", "baseline")
    if golden is None:
        golden = _golden_of(setup, code)
    else:
        cases = {"golden_case (--golden-case)": options.golden_case, "CASE": setup.case}
        _check(place_of(golden), setup.out, cases)
    with open_bundle(golden) as bundle:
        made_with = bundle.manifest.options
    backward = options.backward and bool(made_with.backward)
    if options.backward and made_with.loss and not backward:
        setup.announce(
            f"{golden}: was captured without gradients, so only the forward is judged; capture it"
            " anew for the training"
        )
    of_golden = CaptureOptions(
        feed=golden,
        seed=options.seed,
        steps=options.steps,
        backward=backward,
        force=options.force,
        overwrite=setup.overwrite,
    )
    of_candidate = replace(of_golden, map=maps)
    comparison = compare_fed(
        setup,
        code,
        setup.out,
        of_golden,
        of_candidate,
        options.repeat,
        made_here,
        only=options.only,
        skip=options.skip,
    )
    return replace(comparison, golden_made_here=made_here)


def _golden_of(setup: LocateSetup, code: GoldenCode) -> Place:
    """Make golden on the CPU in float32, from weights rounded to the candidate's type."""
    options = setup.options
    alone = "" if setup.group is None else ", by one process alone"
    setup.announce(f"golden: {code.case or 'the case'} on the CPU, in float32{alone}")
    same_device = (
        setup.group is None
        and setup.device.type == "cpu"
        and setup.dtype in (None, FloatType.FLOAT32)
    )
    if same_device and options.golden_case is None and options.golden_python is None:
        setup.announce(
            "the candidate is the same case on the same device: that shows whether it repeats"
            " itself; --golden compares with another"
        )
    made = CaptureOptions(
        seed=options.seed,
        steps=options.steps,
        save_state=options.golden_python is not None,  # another release may draw other weights
        overwrite=setup.overwrite,
        backward=options.backward,
    )
    half = setup.dtype in (FloatType.BFLOAT16, FloatType.FLOAT16)
    rounded = RoundedType(str(setup.dtype)) if half else None
    out = setup.out / "golden"
    return code.capture(code.case, out, made, FloatType.FLOAT32, rounded, options.repeat)


def _check(golden: Place, folder: Place, cases: Mapping[str, str | None]) -> None:
    """Refuse a bundle that cannot be golden, and outputs or cases inside it: a bundle is data."""
    with open_bundle(golden) as bundle:
        if bundle.manifest.capture.get("feed"):
            raise UsageError(
                f"{golden}: is itself fed, so it is no golden; give the bundle that it was fed with"
            )
    if golden.resolve() in (folder.resolve(), *folder.resolve().parents):
        raise UsageError(f"{folder}: lies in golden {golden}; choose another place (--out, out=)")
    for option, case in cases.items():
        # with a baseline that golden brings, golden's code is not needed
        if case is not None and file_of(case).suffix == ".py" and not file_of(case).is_file():
            raise CaseError(f"{option} {case}: there is no file {file_of(case)}")
        if case is not None and golden.resolve() in file_of(case).resolve().parents:
            raise UsageError(
                f"{option} {case}: lies in golden {golden}, and a bundle holds no code; copy it"
                " elsewhere if you trust it"
            )
