"""What differs about how two bundles were captured: most reported mismatches are one of these, so it is said first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from accucompare.bundle.manifest import Manifest
from accucompare.bundle.reader import Bundle
from accucompare.compare.align import Renaming, rename
from accucompare.compare.comparison import Finding


def preflight(golden: Bundle, candidate: Bundle, renamings: Sequence[Renaming] = ()) -> list[Finding]:
    """Compare two manifests; the most telling findings first.

    Args:
        golden, candidate: the bundles.
        renamings: of golden's layers, which hold for their parameters and buffers too.
    """
    findings = [finding for check in _CHECKS for finding in check(golden, candidate, renamings)]
    return sorted(findings, key=lambda finding: not finding.serious)


Check = Callable[[Bundle, Bundle, Sequence[Renaming]], Iterator[Finding]]


def _completeness(golden: Bundle, candidate: Bundle, renamings: Sequence[Renaming]) -> Iterator[Finding]:
    for side, bundle in (("golden", golden), ("candidate", candidate)):
        for rank, manifest in bundle.manifests.items():
            if manifest.complete:
                continue
            stopped = manifest.stopped or {"error": "it was killed, or is still running"}
            place = f" in {stopped['module']}" if stopped.get("module") else ""
            place += f" in step {stopped['step']}" if stopped.get("step") is not None else ""
            where = f" (rank {rank})" if bundle.manifest.ranks > 1 else ""
            yield Finding("incomplete", f"{side}{where} is incomplete: stopped{place}: {stopped.get('error', 'unknown')}")
        if bundle.missing_ranks:
            yield Finding("incomplete", f"{side} lacks rank(s) {_some(bundle.missing_ranks)} of {bundle.manifest.ranks}")


def _mode(golden: Bundle, candidate: Bundle, renamings: Sequence[Renaming]) -> Iterator[Finding]:
    sides = [name for name, bundle in (("golden", golden), ("the candidate", candidate)) if bundle.manifest.capture.get("mode") == "stats"]
    if sides:
        hold = "hold" if len(sides) == 2 else "holds"
        message = f"{' and '.join(sides)} {hold} statistics only: errors are lower bounds, and values in another order are not seen"
        yield Finding("mode", message, serious=False)


def _steps(golden: Bundle, candidate: Bundle, renamings: Sequence[Renaming]) -> Iterator[Finding]:
    sides = [{(rank, entry.step) for rank, entry in bundle.steps()} for bundle in (golden, candidate)]
    if sides[0] != sides[1]:
        counts = [f"{len(side)} step(s) of {len({rank for rank, _ in side})} rank(s)" for side in sides]
        yield Finding("steps", f"golden holds {counts[0]}, the candidate {counts[1]}")


def _weights(golden: Bundle, candidate: Bundle, renamings: Sequence[Renaming]) -> Iterator[Finding]:
    for rank, (ours, theirs) in _by_rank(golden, candidate):
        for kind in ("parameters", "buffers"):
            renamed = {_renamed(name, renamings): entry for name, entry in (ours.model.get(kind) or {}).items()}
            yield from _digests(f"{kind}{rank}", renamed, theirs.model.get(kind) or {})


def _inputs(golden: Bundle, candidate: Bundle, renamings: Sequence[Renaming]) -> Iterator[Finding]:
    for rank, (ours, theirs) in _by_rank(golden, candidate):
        for step in (step for step in ours.inputs if step in theirs.inputs):
            yield from _digests(f"inputs of step {step}{rank}", ours.inputs[step], theirs.inputs[step])


def _by_rank(golden: Bundle, candidate: Bundle) -> Iterator[tuple[str, tuple[Manifest, Manifest]]]:
    """The manifests of each rank that both have, with words for the rank, if there are several."""
    for rank in sorted(golden.manifests.keys() & candidate.manifests.keys()):
        yield (f" of rank {rank}" if golden.manifest.ranks > 1 else ""), (golden.manifests[rank], candidate.manifests[rank])


def _renamed(name: str, renamings: Sequence[Renaming]) -> str:
    """What a parameter of a renamed layer is called."""
    layer, _, own = name.rpartition(".")
    new = rename(layer, renamings)
    return name if new is None else ".".join(part for part in (new, own) if part)


def _digests(what: str, golden: dict[str, Any], candidate: dict[str, Any]) -> Iterator[Finding]:
    """Findings on two tables of fingerprints by name."""
    shared = sorted(golden.keys() & candidate.keys())
    same = {name: _same_tensor(golden[name], candidate[name]) for name in shared}
    different = [name for name in shared if same[name] is False]
    if different:
        yield Finding(what, f"{len(different)} of {len(shared)} {what} differ: {_some(different)}")
    changes: dict[tuple[str, str], list[str]] = {}
    for name in shared:
        ours, theirs = golden[name]["dtype"], candidate[name]["dtype"]
        if ours != theirs and same[name] is not False:
            known = "" if same[name] else ", too different to say whether they agree"
            changes.setdefault((ours, f"{ours} in golden, {theirs} in the candidate{known}"), []).append(name)
    kept = {golden[name]["dtype"] for name in shared if golden[name]["dtype"] == candidate[name]["dtype"]}
    for (ours, change), names in changes.items():
        if ours in kept:  # others of this dtype kept it: an accident, more often than not
            yield Finding(what, f"{len(names)} of {len(shared)} {what} are {change}: {_some(names)}")
        else:
            agree = "" if "too different" in change else "; the same after rounding"
            yield Finding(what, f"{what} are {change}{agree}", serious=False)
    alone = sorted(golden.keys() ^ candidate.keys())
    if alone and shared:
        yield Finding(what, f"{len(alone)} {what} on one side only: {_some(alone)}")


def _same_tensor(golden: dict[str, Any], candidate: dict[str, Any]) -> bool | None:
    """Whether two fingerprints agree, under a type that both were rounded to; ``None`` if there is no such type."""
    if golden["shape"] != candidate["shape"]:
        return False
    if golden["dtype"] == candidate["dtype"]:
        shared = [golden["dtype"]]
    else:
        both = golden["digests"].keys() & candidate["digests"].keys()
        shared = [name for name in (candidate["dtype"], golden["dtype"], "int64") if name in both]
    found = [golden["digests"].get(name) == candidate["digests"].get(name) for name in shared[:1]]
    return found[0] if found else None


def _some(names: Sequence[str | int]) -> str:
    return ", ".join(map(str, names[:3])) + (f", and {len(names) - 3} more" if len(names) > 3 else "")


def _settings(golden: Bundle, candidate: Bundle, renamings: Sequence[Renaming]) -> Iterator[Finding]:
    for section, key, words, serious in _SETTINGS:
        ours, theirs = (_get(bundle.manifest, section, key) for bundle in (golden, candidate))
        if ours != theirs and not (key == "random" and None in (ours, theirs)):  # a killed capture could not say
            yield Finding(words, f"{words}: golden {_shown(ours)}, candidate {_shown(theirs)}", serious)


#: Settings that two captures should share: section of the manifest, dotted key, how it is called, whether it is serious.
_SETTINGS = (
    ("model", "training", "train mode", True),
    ("model", "active_dropout", "active dropout modules", True),
    ("model", "class", "model class", False),
    ("capture", "seed", "seed", True),
    ("environment", "autocast", "autocast", True),
    ("capture", "emulate", "emulated precision", True),
    ("capture", "only", "--only", False),
    ("capture", "skip", "--skip", False),
    ("environment", "random", "random operations", True),
    ("environment", "device.type", "device", False),
    ("environment", "versions.torch", "torch", False),
    ("environment", "versions.torch_npu", "torch_npu", False),
    ("environment", "versions.cann", "CANN", False),
    ("environment", "versions.transformers", "transformers", False),
    ("environment", "git.commit", "git commit", False),
)


def _flags(golden: Bundle, candidate: Bundle, renamings: Sequence[Renaming]) -> Iterator[Finding]:
    ours, theirs = ((bundle.manifest.environment.get("flags") or {}) for bundle in (golden, candidate))
    for name in sorted(ours.keys() & theirs.keys()):
        if ours[name] != theirs[name]:
            yield Finding("flags", f"{name}: golden {_shown(ours[name])}, candidate {_shown(theirs[name])}")
    for side, flags in (("golden", ours), ("candidate", theirs)):
        lowered = [name for name in _REDUCED_PRECISION if flags.get(name) in _LOWERED and ours.get(name) != theirs.get(name)]
        if lowered:
            yield Finding("flags", f"{side} may compute float32 in fewer bits: {', '.join(lowered)}")


_REDUCED_PRECISION = (
    "cuda.matmul.allow_tf32",
    "cudnn.allow_tf32",
    "mkldnn.matmul.fp32_precision",
    "mkldnn.conv.fp32_precision",
    "npu.matmul.allow_hf32",
    "npu.conv.allow_hf32",
)
_LOWERED = (True, "tf32", "bf16")


def _notes(golden: Bundle, candidate: Bundle, renamings: Sequence[Renaming]) -> Iterator[Finding]:
    for side, bundle in (("golden", golden), ("candidate", candidate)):
        for manifest in bundle.manifests.values():
            for note in manifest.notes:
                yield Finding("note", f"{side}: {note}", serious=False)


def _get(manifest: Manifest, section: str, key: str) -> Any:
    value: Any = getattr(manifest, section)
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _shown(value: Any) -> str:
    words = {"True": "on", "False": "off", "None": "none"}
    return words.get(str(value), str(value))


_CHECKS: tuple[Check, ...] = (_completeness, _mode, _weights, _inputs, _steps, _settings, _flags, _notes)
