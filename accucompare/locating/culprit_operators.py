from __future__ import annotations

import glob
import shlex
from dataclasses import replace

from accucompare.api import Comparison, diff
from accucompare.bundle.format import display_name
from accucompare.compare.origins import Stage
from accucompare.errors import CaptureError
from accucompare.locating.fed_comparison import compare_fed, other_versions
from accucompare.locating.golden_code import GoldenCode, as_arguments
from accucompare.locating.locate_setup import LocateSetup
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.feeding import held_steps
from accucompare.report.words import culprit_place, preflight_words
from accucompare.selection import FloatType, Level, RoundedType
from accucompare.text import without_credentials


def locate_operators(setup: LocateSetup, comparison: Comparison) -> Comparison | None:
    """After ``locate``: which operator of the first culprit's module makes the error?

    Golden, candidate and baseline are captured again, with the operators of that one module.
    Returns the fed comparison of that module's operators, with the backward's nodes for a culprit
    in a backward. ``None`` if there is no culprit, or its error is made in the loss's backward or
    in an update, whose operators are not recorded. Raises CaptureError if golden cannot be made
    again here; CaseError, DeviceError, BundleError, UsageError as for ``locate``.

    Args:
        setup, comparison: what ``locate`` was given and returned.
    """
    if not comparison.culprits:
        return None
    stage = comparison.culprits[0].stage
    if stage not in (Stage.FORWARD, Stage.BACKWARD) or comparison.culprits[0].scaled is not None:
        setup.announce(
            "operators: only those of a module's forward and backward are recorded, and"
            f" {culprit_place(comparison.culprits[0])} is neither"
        )
        return None
    name, manifest = comparison.culprits[0].name, comparison.golden.manifest
    made, first, folder = manifest.capture, comparison.golden.path, setup.out / "ops"
    options = CaptureOptions(
        level=Level.OP,
        backward=stage is Stage.BACKWARD,
        seed=made.get("seed"),
        steps=held_steps(manifest),
        only=glob.escape(name),
        overwrite=setup.overwrite,
        like=first if manifest.state is not None else made.get("like"),
    )
    code = GoldenCode(setup.options.golden_python, setup.options.golden_case)
    code.check()
    other = other_versions(comparison.golden.manifest, comparison.candidate.manifest)
    if other and setup.options.golden_python is None:
        raise CaptureError(
            f"{first}: its operators cannot be captured here, since"
            f" {preflight_words.other_code_words(other)}; name the Python that has golden's"
            " versions"
            " (--golden-python PATH)"
        )
    of = "the backward of " if stage is Stage.BACKWARD else ""
    setup.announce(f"operators of {of}{display_name(name)}: golden on the CPU")
    dtype, rounded = made.get("dtype"), made.get("round_weights")
    golden = code.capture(
        code.case_of(manifest, setup.case) or setup.case,
        folder / "golden",
        replace(options, emulate=made.get("emulate")),
        dtype and FloatType(dtype),
        rounded and RoundedType(rounded),
    )
    again = diff(first, golden, only=options.only)
    if not again.passed:
        cure = "" if manifest.state is not None else "; capture it with --save-state"
        raise CaptureError(
            f"{first}: captured again here, {display_name(name)} gives other values than it"
            f" holds{cure}"
        )
    of_golden = replace(options, feed=golden, force=setup.options.force)
    pairs = ((row.golden, row.candidate) for row in comparison.rows)
    theirs = next(
        (
            theirs.name
            for ours, theirs in pairs
            if ours is not None and theirs is not None and ours.name == name
        ),
        name,
    )
    of_candidate = replace(of_golden, map=comparison.maps, only=glob.escape(theirs))
    return compare_fed(setup, code, folder, of_golden, of_candidate, made_here=True)


def operators_by_hand(setup: LocateSetup, comparison: Comparison) -> tuple[str, str, str]:
    """What to type if ``locate_operators`` raised: captures of golden and candidate, and a diff."""
    golden = comparison.golden.manifest
    made, name = golden.options, comparison.culprits[0].name
    of_golden = {
        "level": "op",
        "only": [glob.escape(name)],
        "dtype": made.dtype,
        "round_weights": made.round_weights,
        "seed": made.seed or None,
        "steps": held_steps(golden),
        "like": comparison.golden.path if golden.state is not None else made.like,
        "out": "golden-ops",
    }
    of_candidate = {
        "device": setup.device,
        "level": "op",
        "dtype": setup.dtype,
        "map": comparison.maps,
        "feed": "golden-ops",
        "out": "candidate-ops",
    }
    case = setup.options.golden_case or golden.case or setup.case or "CASE"
    ours = ["accucompare", "capture", case, *as_arguments(of_golden)]
    own_case = [setup.case] if setup.case else []
    theirs = ["accucompare", "capture", *own_case, *as_arguments(of_candidate)]
    return (
        without_credentials(shlex.join(ours)),
        shlex.join(theirs),
        "accucompare diff golden-ops candidate-ops",
    )
