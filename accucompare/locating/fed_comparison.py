"""The fed capture of a candidate, its baseline, and their comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from accucompare.api import Comparison, diff
from accucompare.bundle.format import Manifest
from accucompare.bundle.reading import open_bundle
from accucompare.compare.limits import OtherCode, other_code, own_baseline, suggested
from accucompare.compare.preflight_facts import RefusedBaseline
from accucompare.locating.baseline_run import BaselineRun
from accucompare.locating.golden_code import GoldenCode
from accucompare.locating.locate_setup import LocateSetup
from accucompare.places import Place, place_of
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.feeding import held_steps
from accucompare.report.words import preflight_words
from accucompare.text import printable


def compare_fed(
    setup: LocateSetup,
    code: GoldenCode,
    folder: Place,
    of_golden: CaptureOptions,
    of_candidate: CaptureOptions,
    repeat: int = 1,
    made_here: bool = False,
    **compared: Any,
) -> Comparison:
    """Capture the candidate, fed with golden, find its baseline, prove that, and compare.

    Args:
        setup: the candidate's case, device and numerics.
        code: what runs golden's code.
        folder: for the bundles that are made.
        of_golden, of_candidate: options of the fed captures: the baseline's have golden's layer
            names, the candidate's its own.
        repeat: how often to run the candidate.
        made_here: this process made golden, too: then a proof is due only if something is wrong.
        compared: options of ``diff``.
    """
    from accucompare.recorder.session import capture_case

    golden = place_of(of_golden.feed or "")
    with open_bundle(golden) as bundle:
        manifest = bundle.manifest
    like = golden if manifest.state is not None else of_golden.like
    what = "operator" if manifest.capture.get("level") == "op" else "module"
    options = replace(
        of_candidate,
        like=like,
        hf32=setup.options.hf32,
        tf32=setup.options.tf32,
        deterministic=setup.options.deterministic,
    )
    made, layout = folder / "candidate", None
    if setup.group is not None and manifest.ranks == 1:
        layout = folder / "layout"
        setup.announce(f"layout: the same {setup.group.ranks} ranks, free-running")
        free = replace(options, feed=None, map=(), seed=manifest.capture.get("seed"))
        free = replace(free, steps=options.steps or held_steps(manifest))
        setup.group.capture(setup.case, layout, setup.device, free, dtype=setup.dtype)
        options = replace(options, layout_of=layout)
    setup.announce(f"candidate: each {what} on golden's inputs, on {setup.device}")
    if setup.group is not None:
        setup.group.capture(setup.case, made, setup.device, options, dtype=setup.dtype)
    else:
        capture_case(setup.case, made, setup.device, options, dtype=setup.dtype, repeat=repeat)
    with open_bundle(golden) as ours, open_bundle(made) as theirs:
        brought, candidate = own_baseline(ours, theirs), theirs.manifest
        cure = suggested(ours, theirs)
    maps = candidate.capture["map"]  # auto is resolved in it
    run, refused = None, None
    if brought is not None:
        setup.announce(f"baseline: golden's own, {brought}")
    else:
        of_baseline = replace(of_golden, like=like)
        if code.python is None and code.case_of(manifest, setup.case) == setup.case:
            # otherwise golden's own case runs, which has golden's names
            of_baseline = replace(of_baseline, map=maps, only=of_candidate.only)
        other = other_versions(manifest, candidate)
        run = _baseline(setup, code, manifest, candidate, folder / "baseline", of_baseline, layout)
        if run is None and other:
            refused = RefusedBaseline(None, other, cure)
    if run is not None and not made_here:
        run.prove()

    def compare() -> Comparison:
        setup.announce("comparing")
        baseline = None if run is None else run.out
        return diff(golden, made, baseline=baseline, map=maps, **compared)

    comparison = compare()
    if run is not None and what == "module":
        if made_here and not comparison.passed and run.prove():
            comparison = compare()
        if run.look_again(comparison, candidate):
            comparison = compare()
        comparison = replace(comparison, not_proved=run.failed or comparison.not_proved)
    return comparison if refused is None else replace(comparison, refused=refused)


def other_versions(golden: Manifest, candidate: Manifest) -> OtherCode:
    """Packages that golden ran in another version: nothing made here can then be its baseline."""
    return OtherCode(versions=other_code(golden, candidate).versions)


def _baseline(
    setup: LocateSetup,
    code: GoldenCode,
    golden: Manifest,
    candidate: Manifest,
    out: Place,
    options: CaptureOptions,
    layout: Place | None,
) -> BaselineRun | None:
    """Make the baseline; ``None``, announced, if that is not possible."""
    other = other_versions(golden, candidate)
    if other and code.python is None:
        setup.announce(
            f"no baseline: {preflight_words.other_code_words(other)}; capture golden with"
            " --with-baseline, or name the Python that has them (--golden-python PATH)"
        )
        return None
    case = code.case_of(golden, setup.case)
    if case is None:
        setup.announce(
            "no baseline: golden was captured from"
            f" {printable(golden.case) or 'a case without a name'}, and what a bundle names is not"
            " run; name that case with --golden-case, or the candidate's if only the device may be"
            " wrong"
        )
        return None
    run = BaselineRun(code, case, golden, out, options, setup.announce, layout)
    return run if run.make(candidate) else None
