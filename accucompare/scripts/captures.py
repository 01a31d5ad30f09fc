"""Capturing a script, and locating where two runs of it part. Needs no torch."""

from __future__ import annotations

import contextlib
import glob
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from accucompare.api import Comparison, diff
from accucompare.bundle.format import Compiled
from accucompare.bundle.reading import open_bundle
from accucompare.bundle.writing import (
    forget_previous,
    locked,
    prepare_directory,
    refuse_directory,
    restore_previous,
)
from accucompare.compare.compiled_facts import CompiledFound, CompiledLevel
from accucompare.compare.limits import own_baseline, suggested
from accucompare.errors import CaptureError, UsageError
from accucompare.launched import starts_ranks
from accucompare.places import Place, is_file, place_of, whole
from accucompare.scripts.launch import Ended, run
from accucompare.scripts.outcome import troubles
from accucompare.scripts.plan import Plan
from accucompare.selection import Steps

#: Set to nothing, these hide accelerators, so that the script takes the CPU.
HIDING = dict.fromkeys(
    ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"), ""
)


@dataclass(frozen=True)
class Captured:
    """A script that was captured."""

    ended: Ended
    written: bool  # whether there is a bundle
    troubles: list[str]  # what is wrong with it, one sentence each


def capture_script(
    command: Sequence[str], plan: Plan, overwrite: bool, variables: Mapping[str, str] | None = None
) -> Captured:
    """Run a script and capture its model into the plan's directory. Raises CaptureError if an
    earlier bundle may not be overwritten; UsageError if the command cannot be run.

    Args:
        plan: if it is fed and has no seed, it takes golden's seed and so its random numbers.
        variables: for the script's environment, beside this process's.
    """
    directory = place_of(plan.out)
    if plan.seed is None and (golden := plan.options.get("feed")):
        with open_bundle(golden) as bundle:
            plan = msgspec.structs.replace(plan, seed=bundle.manifest.capture.get("seed"))
    with locked(directory):
        prepare_directory(directory, overwrite)
        try:
            ended = run(command, plan, variables or {})
            if written := is_file(directory / "manifest.json"):
                forget_previous(directory)
        finally:
            with contextlib.suppress(OSError):
                restore_previous(directory)
                if isinstance(directory, Path):
                    directory.rmdir()  # where nothing was written
    found = troubles(plan, ended.seen, ended.unheard)
    if written:
        with open_bundle(directory) as bundle:
            for rank, manifest in sorted(bundle.manifests.items()):
                if not manifest.complete:
                    reason = (manifest.stopped or {}).get(
                        "error", "the process was ended before it could finish"
                    )
                    found.append(f"{directory}: is incomplete, rank {rank}: {reason}")
            found += [f"{directory}: rank {rank} is missing" for rank in bundle.missing_ranks]
    return Captured(ended, written, found)


def steps_held_of(golden: Place) -> Steps | None:
    with open_bundle(golden) as bundle:
        return Steps.held(entry.step for entry in bundle.manifest.run_steps)


def locate_script(
    command: Sequence[str],
    device: str,
    out: Place,
    plan: Plan,
    *,
    golden: Place | None,
    map: Sequence[str],
    overwrite: bool,
    announce: Callable[[str], None],
    **compared: Any,
) -> Comparison:
    """Run a script again, each layer on golden's inputs, and compare.

    The script chooses its device: golden is made with all accelerators hidden, the candidate
    without. If golden is of one device and the command starts several ranks, they run free first,
    for their layout. No baseline is made, since that needs the script in another precision;
    golden's own baseline judges, or else fixed limits. Raises CaptureError if a capture failed, or
    ran on another device; UsageError, BundleError as from capturing and comparing.

    Args:
        device: type of device that the candidate must run on.
        out: directory of the bundles.
        plan: for both captures.
        golden: the trusted bundle; ``None`` to make one.
        map: renamings of golden's layers, as for ``accucompare.capture``.
        compared: options of ``accucompare.diff``.
    """
    in_parts = golden is not None and starts_ranks(command) and _ranks_of(golden) == 1
    made_here = [*(["golden"] if golden is None else []), *(["layout"] if in_parts else [])]
    for name in (*made_here, "candidate"):
        refuse_directory(out / name, overwrite)
    if golden is None:
        golden = out / "golden"
        announce("golden: the script with all accelerators hidden from it, so on the CPU")
        made = msgspec.structs.replace(plan, out=whole(golden.absolute()), steps=plan.steps or "1")
        _captured(command, made, overwrite, "cpu", HIDING)
    fed = {**plan.options, "feed": whole(golden.absolute()), "map": list(map)}
    steps = plan.steps or str(steps_held_of(golden) or 1)
    if in_parts:
        layout = out / "layout"
        announce("layout: the script's ranks, free-running")
        free = msgspec.structs.replace(plan, out=whole(layout.absolute()), steps=steps)
        _captured(command, free, overwrite, device, {})
        if _ranks_of(layout) > 1:
            fed["layout_of"] = whole(layout.absolute())
    announce(
        f"candidate: the script, each module on golden's inputs, on {device} if that is what it"
        " chooses"
    )
    candidate = out / "candidate"
    _captured(
        command,
        msgspec.structs.replace(plan, out=whole(candidate.absolute()), options=fed, steps=steps),
        overwrite,
        device,
        {},
    )
    with open_bundle(golden) as ours, open_bundle(candidate) as theirs:
        baseline, maps = own_baseline(ours, theirs), theirs.manifest.capture["map"]
        advice = suggested(ours, theirs)
    if baseline is None:
        compare = shlex.join(
            ["accucompare", "diff", whole(golden), whole(candidate), "--baseline", advice.out]
        )
        announce(
            "no baseline: that of a script would be the script in other types; fixed limits judge"
        )
        announce(
            f"a baseline, where golden's script can compute in {advice.computes_in} on the CPU:"
            f" {advice.command}, then {compare}"
        )
    return diff(golden, candidate, baseline=baseline, map=maps, **compared)


def locate_compiled_script(
    command: Sequence[str],
    device: str,
    out: Place,
    plan: Plan,
    *,
    overwrite: bool,
    announce: Callable[[str], None],
    **compared: Any,
) -> Comparison:
    """Run a script three times: what regions it has, those eagerly, and those compiled and fed.

    Golden is the script itself on the same device, so errors are judged by fixed limits.

    Args, Raises: as of ``locate_script``; the plan's options name a backend.
    """
    backend = str(plan.options["compile"])
    for name in ("regions", "golden", "candidate"):
        refuse_directory(out / name, overwrite)

    def captured(name: str, told: str, **options: Any) -> Place:
        place = out / name
        announce(f"{name}: the script, {told}")
        made = {**plan.options, **options}
        asked = msgspec.structs.replace(
            plan, out=whole(place.absolute()), options=made, steps=plan.steps or "1"
        )
        _captured(command, asked, overwrite, device, {})
        return place

    def compiled_in(bundle: Place) -> Compiled:
        with open_bundle(bundle) as opened:
            return opened.manifest.options.compiled or Compiled(backend)

    tried = compiled_in(captured("regions", f"its regions compiled by {backend}"))
    if not tried.regions:
        raise CaptureError(f"{out / 'regions'}: no region could be compiled: {tried.eager}")
    regions = [glob.escape(name) or "(root)" for name in tried.regions]
    golden = captured("golden", "the same regions eagerly", compile=None, regions=regions)
    feed = whole(golden.absolute())
    candidate = captured("candidate", "compiled, on golden's inputs", regions=regions, feed=feed)
    found = diff(golden, candidate, **compared)
    compiled = compiled_in(candidate)
    compiled = Compiled(backend, compiled.regions, {**tried.eager, **compiled.eager})
    level = CompiledLevel(compiled, found.passed)
    whole_model = "" in tried.regions
    why = "a script's graphs are not searched; its model in a case is (locate CASE --compile)"
    why = why if found.exit_code == 1 else ""
    return replace(found, compiled=CompiledFound(backend, (level,), whole_model, no_operator=why))


def _ranks_of(bundle: Place) -> int:
    with open_bundle(bundle) as opened:
        return opened.manifest.ranks


def _captured(
    command: Sequence[str], plan: Plan, overwrite: bool, device: str, variables: Mapping[str, str]
) -> None:
    """Capture; CaptureError if the bundle is not what was asked for."""
    made = capture_script(command, plan, overwrite, variables)
    if made.ended.code:
        raise CaptureError(
            f"the script ended with exit code {made.ended.code}, so that {place_of(plan.out)}"
            " cannot be compared"
        )
    if made.troubles:
        raise CaptureError("; ".join(made.troubles))
    with open_bundle(plan.out) as bundle:
        ran_on = str((bundle.manifest.environment.get("device") or {}).get("type"))
    if ran_on != device:
        cure = (
            "give a bundle of a run on the CPU (--golden)"
            if variables
            else "name the device that it is given by its own options"
        )
        raise UsageError(
            f"the script ran on {ran_on}, and was meant to run on {device}; it chooses that itself:"
            f" {cure}"
        )
