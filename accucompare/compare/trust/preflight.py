"""Differences in how two bundles were captured. Most reported mismatches come from one of these, so
they are reported first.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from accucompare.bundle.flags import FLAGS
from accucompare.bundle.format import Manifest
from accucompare.bundle.reading import Bundle
from accucompare.compare.limits import (
    baseline_command,
    float_dtype,
    other_code,
    other_configuration,
    other_surroundings,
    place,
    product_formats,
    suggested,
)
from accucompare.compare.pairing import Renaming, SharedNames, renamed_model
from accucompare.compare.rows import About, PreflightFinding, RefusedBaseline
from accucompare.compare.trust.unverified import unverified
from accucompare.numbers import same_fingerprint
from accucompare.selection import Mode


def preflight_findings(
    golden: Bundle, candidate: Bundle, renamings: Sequence[Renaming] = ()
) -> list[PreflightFinding]:
    """Compare two manifests; the most telling findings first.

    Args:
        golden, candidate: the bundles.
        renamings: of golden's layers; they apply to parameters and buffers too.
    """
    pair = Pairing(golden, candidate, renamings)
    findings = [finding for check in _CHECKS for finding in check(pair)]
    return sorted(findings, key=lambda finding: not finding.serious)


@dataclass(frozen=True)
class Pairing:
    """Golden and the bundle that is compared with it, which messages call ``name``."""

    golden: Bundle
    candidate: Bundle
    renamings: Sequence[Renaming] = ()
    name: str = "candidate"

    @property
    def sides(self) -> tuple[tuple[str, Bundle], ...]:
        return ("golden", self.golden), (self.name, self.candidate)


PreflightCheck = Callable[[Pairing], Iterator[PreflightFinding]]


def _completeness(pair: Pairing) -> Iterator[PreflightFinding]:
    for side, bundle in pair.sides:
        for rank, manifest in bundle.manifests.items():
            if manifest.complete:
                continue
            stopped = manifest.stopped or {"error": "it was killed, or is still running"}
            place = f" in {stopped['module']}" if stopped.get("module") else ""
            place += f" in step {stopped['step']}" if stopped.get("step") is not None else ""
            where = f" (rank {rank})" if bundle.manifest.ranks > 1 else ""
            yield PreflightFinding(
                "incomplete",
                f"{side}{where} is incomplete: stopped{place}: {stopped.get('error', 'unknown')}",
            )
        if bundle.missing_ranks:
            yield PreflightFinding(
                "incomplete",
                f"{side} lacks rank(s) {_some(bundle.missing_ranks)} of {bundle.manifest.ranks}",
            )


_OF_MODE = {
    Mode.SKETCH: (
        "sketches: errors are estimates, and each limit leaves room for theirs; --atol and --rtol"
        " need tensors"
    ),
    Mode.STATS: (
        "statistics only: errors are lower bounds, and values in another order are not seen"
    ),
    Mode.DIGEST: "digests only: what differs is seen, and not how far",
}


def _mode(pair: Pairing) -> Iterator[PreflightFinding]:
    for mode, words in _OF_MODE.items():
        both = (("golden", pair.golden), ("the candidate", pair.candidate))
        if sides := [name for name, bundle in both if bundle.manifest.options.mode == mode]:
            yield PreflightFinding(
                "mode",
                f"{' and '.join(sides)} {'hold' if len(sides) == 2 else 'holds'} {words}",
                serious=False,
            )


def _imported(pair: Pairing) -> Iterator[PreflightFinding]:
    for side, bundle in pair.sides:
        if (imported := bundle.manifest.options.imported) is not None:
            unknown = [
                words
                for section, key, words, serious, _ in _SETTINGS
                if serious and _get(bundle.manifest, section, key) is None
            ]
            message = (
                f"{side} was imported from {imported.format}, whose dumps do not tell of:"
                f" {', '.join(unknown)}"
            )
            yield PreflightFinding("import", message, serious=False)


def _steps(pair: Pairing) -> Iterator[PreflightFinding]:
    sides = [
        {(rank, entry.step) for rank, entry in bundle.steps()}
        | {
            (rank, entry.step)
            for rank, manifest in bundle.manifests.items()
            for entry in manifest.series
        }
        for bundle in (pair.golden, pair.candidate)
    ]
    if sides[0] != sides[1]:
        counts = [
            f"{len(side)} step(s) of {len({rank for rank, _ in side})} rank(s)" for side in sides
        ]
        yield PreflightFinding(
            "steps", f"golden holds {counts[0]}, the {pair.name} {counts[1]}", about=About.STEPS
        )


def _weights(pair: Pairing) -> Iterator[PreflightFinding]:
    for rank, (ours, theirs) in _by_rank(pair.golden, pair.candidate):
        if ours.described_at != theirs.described_at:
            steps = (
                f"golden's are those of step {ours.described_at}, the {pair.name}'s those of step"
                f" {theirs.described_at}"
            )
            yield PreflightFinding(
                "weights",
                f"weights{rank} cannot be held against each other: {steps}",
                serious=False,
            )
            continue
        golden = renamed_model(ours.model, theirs.model, pair.renamings)
        names = SharedNames(golden, theirs.model)
        for kind in ("parameters", "buffers"):
            renamed, others = golden.get(kind) or {}, theirs.model.get(kind) or {}
            computed = {
                name
                for table in (renamed, others)
                for name, entry in table.items()
                if entry.get("computed")
            }
            fallback = theirs.options.fallback
            narrowed = tuple(
                f"{name}." for name in (() if fallback is None else fallback.modules)
            )  # these have another type on purpose
            computed |= {name for name in others if name.startswith(narrowed)}
            loaded = [
                {name: entry for name, entry in table.items() if name not in computed}
                for table in (renamed, others)
            ]
            loaded = [
                {
                    name: entry
                    for name, entry in table.items()
                    if name in other or not names.same(name, table is loaded[0])
                }
                for table, other in zip(loaded, reversed(loaded), strict=True)
            ]
            if (
                ours.options.imported or theirs.options.imported
            ):  # a dump has the weights of the modules that ran, by each of their names
                loaded = [
                    {
                        name: entry
                        for name, entry in table.items()
                        if all(name in each for each in loaded)
                    }
                    for table in loaded
                ]
            about = About.WEIGHTS if kind == "parameters" else About.GIVEN
            yield from _digests(f"{kind}{rank}", loaded[0], loaded[1], pair.name, about)
            for name in sorted(computed & renamed.keys() & others.keys()):
                if same_fingerprint(renamed[name], others[name]) is False:
                    message = (
                        f"the model computes another {name} than golden's did (it is in no"
                        " checkpoint)"
                    )
                    yield PreflightFinding(f"computed buffers{rank}", message)


#: Stands for the steps until it is known which have the same finding.
_INPUTS = "inputs"


def _inputs(pair: Pairing) -> Iterator[PreflightFinding]:
    for rank, (ours, theirs) in _by_rank(pair.golden, pair.candidate):
        of_steps: dict[PreflightFinding, list[int]] = {}
        for step in sorted(ours.inputs.keys() & theirs.inputs.keys(), key=int):
            for finding in _digests(_INPUTS, ours.inputs[step], theirs.inputs[step], pair.name):
                of_steps.setdefault(finding, []).append(int(step))
        for finding, steps in of_steps.items():
            inputs = f"inputs of step{'' if len(steps) == 1 else 's'} {_ranges(steps)}{rank}"
            yield replace(
                finding, topic=inputs, message=finding.message.replace(_INPUTS, inputs, 1)
            )


def _unverified(pair: Pairing) -> Iterator[PreflightFinding]:
    yield from unverified(pair.sides if pair.name == "candidate" else pair.sides[1:], pair.golden)


def _by_rank(golden: Bundle, candidate: Bundle) -> Iterator[tuple[str, tuple[Manifest, Manifest]]]:
    """The two manifests of each rank that both have, with words for the rank if there are
    several."""
    for rank in sorted(golden.manifests.keys() & candidate.manifests.keys()):
        yield (
            (f" of rank {rank}" if golden.manifest.ranks > 1 else ""),
            (golden.manifests[rank], candidate.manifests[rank]),
        )


def _digests(
    what: str,
    golden: dict[str, Any],
    candidate: dict[str, Any],
    side: str,
    about: About = About.GIVEN,
) -> Iterator[PreflightFinding]:
    """Findings on two tables of fingerprints by name. ``side`` is the name of the second, ``about``
    what differences are about.
    """
    shared = sorted(golden.keys() & candidate.keys())
    same = {name: same_fingerprint(golden[name], candidate[name]) for name in shared}
    different = [name for name in shared if same[name] is False]
    if different:
        yield PreflightFinding(
            what,
            f"{len(different)} of {len(shared)} {what} differ: {_some(different)}",
            about=about,
        )
    changes: dict[tuple[str, str, bool], list[str]] = {}
    for name in shared:
        ours, theirs = golden[name]["dtype"], candidate[name]["dtype"]
        if ours != theirs and same[name] is not False:
            changes.setdefault((ours, theirs, bool(same[name])), []).append(name)
    kept = {
        golden[name]["dtype"]
        for name in shared
        if golden[name]["dtype"] == candidate[name]["dtype"]
    }
    for (ours, theirs, known), names in changes.items():
        change = (
            f"{ours} in golden, {theirs} in the"
            f" {side}{'' if known else ', too different to say whether they agree'}"
        )
        if ours in kept:  # others kept this dtype, so this is probably an accident
            yield PreflightFinding(
                what,
                f"{len(names)} of {len(shared)} {what} are {change}: {_some(names)}",
                about=About.GIVEN,
            )
        else:
            agree = "; the same after rounding" if known else ""
            yield PreflightFinding(
                what, f"{what} are {change}{agree}", serious=False, about=About.GIVEN
            )
    alone = sorted(golden.keys() ^ candidate.keys())
    if alone and shared:
        yield PreflightFinding(
            what, f"{len(alone)} {what} on one side only: {_some(alone)}", about=About.GIVEN
        )


def _ranges(steps: Sequence[int]) -> str:
    """``0 to 3, 7`` of sorted steps."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    return _some([str(first) if first == last else f"{first} to {last}" for first, last in runs])


def _some(names: Sequence[str | int]) -> str:
    return ", ".join(map(str, names[:3])) + (
        f", and {len(names) - 3} more" if len(names) > 3 else ""
    )


def _settings(pair: Pairing) -> Iterator[PreflightFinding]:
    for section, key, words, serious, about in _SETTINGS:
        ours, theirs = (
            _get(bundle.manifest, section, key) for bundle in (pair.golden, pair.candidate)
        )
        if any(
            value is None and bundle.manifest.options.imported
            for value, (_, bundle) in zip((ours, theirs), pair.sides, strict=True)
        ):
            continue  # what another tool's dump does not say
        if ours != theirs and not (
            key in ("random", "optimizer") and None in (ours, theirs)
        ):  # a killed, or older, capture could not say
            yield PreflightFinding(
                words,
                f"{words}: golden {_shown(ours)}, {pair.name} {_shown(theirs)}",
                serious,
                about=about,
            )


# : Settings that two captures should share: section of the manifest, dotted key, name in messages,
# whether it is serious, what it is about.
_SETTINGS = (
    ("model", "training", "train mode", True, About.MODE),
    ("model", "active_dropout", "active dropout modules", True, About.MODE),
    ("model", "class", "model class", False, About.OTHER),
    ("capture", "seed", "seed", True, About.SEED),
    ("environment", "autocast", "autocast", True, About.OTHER),
    ("capture", "emulate", "emulated precision", True, About.OTHER),
    ("capture", "optimizer", "optimizer", True, About.OTHER),
    ("capture", "only", "--only", False, About.OTHER),
    ("capture", "skip", "--skip", False, About.OTHER),
    ("environment", "random", "random operations", True, About.MODE),
    ("environment", "device.type", "device", False, About.OTHER),
    ("environment", "git.commit", "git commit", False, About.OTHER),
)


def _versions(pair: Pairing) -> Iterator[PreflightFinding]:
    ours, theirs = (bundle.manifest.versions for bundle in (pair.golden, pair.candidate))
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if any(
            name not in bundle.manifest.versions and bundle.manifest.options.imported
            for _, bundle in pair.sides
        ):
            continue
        if ours.get(name) != theirs.get(name) and name not in ("python", "accucompare"):
            yield PreflightFinding(
                name,
                f"{name}: golden {_shown(ours.get(name))}, {pair.name} {_shown(theirs.get(name))}",
                serious=False,
            )


def _surroundings(pair: Pairing) -> Iterator[PreflightFinding]:
    if found := other_surroundings(pair.golden.manifest, pair.candidate.manifest):
        more = (
            f"; and {len(found) - _MOST_SURROUNDINGS} more"
            if len(found) > _MOST_SURROUNDINGS
            else ""
        )
        said = "; ".join(each.told(pair.name) for each in found[:_MOST_SURROUNDINGS])
        yield PreflightFinding("environment", f"environment: {said}{more}", serious=False)


#: The most environment variables and libraries that are named.
_MOST_SURROUNDINGS = 5


def _configuration(pair: Pairing) -> Iterator[PreflightFinding]:
    attributes = list(
        other_configuration(pair.golden.manifest, pair.candidate.manifest, pair.renamings)
    )
    for name, key, ours, theirs in attributes[:_MOST_CONFIGURED]:
        yield PreflightFinding(
            "configuration",
            f"{place(name, key)}: golden {ours!r}, {pair.name} {theirs!r}",
            about=About.CONFIGURATION,
        )
    if len(attributes) > _MOST_CONFIGURED:
        more = (
            f"{len(attributes) - _MOST_CONFIGURED} more attributes of modules differ, such as"
            f" {place(*attributes[-1][:2])}"
        )
        yield PreflightFinding("configuration", more, about=About.CONFIGURATION)


#: The most attributes of modules that get a line each.
_MOST_CONFIGURED = 5


def _flags(pair: Pairing) -> Iterator[PreflightFinding]:
    ours, theirs = (bundle.manifest.flags for bundle in (pair.golden, pair.candidate))
    for name in sorted(ours.keys() & theirs.keys()):
        if ours[name] != theirs[name]:
            yield PreflightFinding(
                "flags", f"{name}: golden {_shown(ours[name])}, candidate {_shown(theirs[name])}"
            )
    for side, flags in (("golden", ours), ("candidate", theirs)):
        in_force = [flag for flag in FLAGS if flags.get(flag.name) in flag.values]
        lowered = [
            flag.name
            for flag in in_force
            if flag.products and ours.get(flag.name) != theirs.get(flag.name)
        ]
        if lowered:
            yield PreflightFinding(
                "flags", f"{side} may compute float32 in fewer bits: {', '.join(lowered)}"
            )
        for flag in in_force:
            if flag.saturates:
                yield PreflightFinding(
                    "flags", f"{side} saturates: {flag.effect} ({flag.name} is off)"
                )


def _feeding(pair: Pairing) -> Iterator[PreflightFinding]:
    for manifest in pair.candidate.manifests.values():
        feed = manifest.feed
        left = () if feed is None else feed.not_fed
        if left:
            places = _some(
                [f"{entry.name or '(root)'} {entry.role} ({entry.why})" for entry in left]
            )
            yield PreflightFinding(
                "feed", f"{len(left)} values of golden were not fed: {places}", serious=False
            )


def _scaler(pair: Pairing) -> Iterator[PreflightFinding]:
    """A ``GradScaler`` on one side only: gradients are then scaled on the one, and not on the
    other.
    """
    trained = [
        [entry for manifest in bundle.manifests.values() for entry in manifest.series]
        for bundle in (pair.golden, pair.candidate)
    ]
    scales = [
        next((entry.loss_scale for entry in series if entry.loss_scale is not None), None)
        for series in trained
    ]
    if all(trained) and (scales[0] is None) is not (scales[1] is None):
        ours, theirs = (
            "none" if scale is None else f"scales losses by {scale:g}" for scale in scales
        )
        yield PreflightFinding(
            "gradient scaler", f"gradient scaler: golden {ours}, {pair.name} {theirs}"
        )


def _rounding(pair: Pairing) -> Iterator[PreflightFinding]:
    ours, theirs = (float_dtype(bundle.manifest) for bundle in (pair.golden, pair.candidate))
    narrower = theirs in ("bfloat16", "float16") and ours in ("float32", "float64")
    if (
        narrower
        and pair.golden.manifest.options.round_weights != theirs
        and pair.candidate.manifest.fed
    ):
        message = (
            f"golden's weights are not rounded to {theirs} as the candidate's are, which hides"
            " small errors"
        )
        yield PreflightFinding(
            "round_weights", f"{message}; capture it with --round-weights {theirs}", serious=False
        )


def _notes(pair: Pairing) -> Iterator[PreflightFinding]:
    for side, bundle in pair.sides:
        for manifest in bundle.manifests.values():
            for note in manifest.notes:
                yield PreflightFinding("note", f"{side}: {note}", serious=False)


def _get(manifest: Manifest, section: str, key: str) -> Any:
    value: Any = getattr(manifest, section)
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _shown(value: Any) -> str:
    words = {"True": "on", "False": "off", "None": "none"}
    return words.get(str(value), str(value))


_CHECKS: tuple[PreflightCheck, ...] = (
    _unverified,
    _completeness,
    _imported,
    _mode,
    _weights,
    _inputs,
    _steps,
    _configuration,
    _settings,
    _versions,
    _flags,
    _surroundings,
    _scaler,
    _feeding,
    _rounding,
    _notes,
)

# : What a baseline must share with golden; findings about ``OTHER`` are ignored, since its
# precision is the candidate's.
_BASELINE_CHECKS: tuple[PreflightCheck, ...] = (_unverified, _weights, _inputs, _steps, _settings)
_HARMLESS = (About.SEED, About.STEPS)  # if weights, inputs and random numbers agree


def preflight_baseline(
    golden: Bundle,
    candidate: Bundle,
    baseline: Bundle | None,
    renamings: Sequence[Renaming] = (),
    refused: RefusedBaseline | None = None,
) -> list[PreflightFinding]:
    """What makes a baseline a poor judge; or, if one would help and none may judge, the command
    that captures it.
    """
    if refused is not None:
        cure = (
            f"where golden was captured, run: {refused.cure}; or let golden bring its own: capture"
            " --save-state --with-baseline"
        )
        return [
            PreflightFinding("refused baseline", f"{refused}; fixed limits judge"),
            PreflightFinding("baseline", cure, serious=False),
        ]
    if baseline is None:
        dtypes = [float_dtype(bundle.manifest) for bundle in (golden, candidate)]
        if not candidate.manifest.fed and (dtypes[0] == dtypes[1] or "" in dtypes):
            return []
        if Mode.DIGEST in (
            golden.manifest.options.mode,
            candidate.manifest.options.mode,
        ):  # no error is known, for a baseline to judge
            return []
        advice = suggested(golden, candidate)
        other = other_code(golden.manifest, candidate.manifest).versions
        where = (
            f" (where golden was captured: there {other[0][0]} is {other[0][1]})" if other else ""
        )
        then = shlex.join(
            ["accucompare", "diff", str(golden.path), str(candidate.path), "--baseline", advice.out]
        )
        return [
            PreflightFinding(
                "baseline",
                f"a baseline tells rounding from a bug: {advice.words}{where}, then {then}",
                serious=False,
            )
        ]
    pair = Pairing(golden, baseline, renamings, "baseline")
    findings = [
        replace(
            finding,
            topic=f"baseline {finding.topic}",
            message=f"baseline: {finding.message}",
            of_baseline=finding.about not in _HARMLESS,
        )
        for check in _BASELINE_CHECKS
        for finding in check(pair)
        if finding.serious and finding.about is not About.OTHER
    ]
    ours, theirs = product_formats(baseline.manifest), product_formats(candidate.manifest)
    lowered = next((name for name in theirs if name), "")
    if theirs != ours and lowered and float_dtype(candidate.manifest) == "float32":
        message = (
            f"the candidate may round what goes into float32 products to {lowered}, the baseline"
            " does not"
        )
        findings.append(
            PreflightFinding("baseline", f"{message}: {baseline_command(golden, candidate)}")
        )
    return findings
