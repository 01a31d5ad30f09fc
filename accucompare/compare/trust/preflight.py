"""Differences in how two bundles were captured. They cause most mismatches, so they come first."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from accucompare.bundle.flags import FLAGS
from accucompare.bundle.format import Manifest
from accucompare.bundle.reading import Bundle
from accucompare.compare import preflight_facts as facts
from accucompare.compare.constants import FREE_GRADIENTS
from accucompare.compare.limits import (
    DEFAULT_REL_L2,
    float_dtype,
    held_otherwise,
    left_otherwise,
    other_code,
    other_configuration,
    other_surroundings,
    product_formats,
    suggested,
)
from accucompare.compare.pairing import Renaming, SharedNames, renamed_model
from accucompare.compare.preflight_facts import (
    About,
    BesideGolden,
    CaptureSetting,
    DigestTable,
    PreflightFinding,
)
from accucompare.compare.trust.unverified import unverified
from accucompare.numbers import same_fingerprint
from accucompare.selection import Mode


def preflight_findings(
    golden: Bundle, candidate: Bundle, renamings: Sequence[Renaming] = ()
) -> list[PreflightFinding]:
    """Compare two manifests; the most telling findings first. ``renamings``: of golden's layers;
    they apply to parameters and buffers too."""
    pair = Pairing(golden, candidate, renamings)
    findings = [finding for check in _CHECKS for finding in check(pair)]
    return sorted(findings, key=lambda finding: not finding.serious)


@dataclass(frozen=True)
class Pairing:
    """Golden and the bundle that is compared with it."""

    golden: Bundle
    candidate: Bundle
    renamings: Sequence[Renaming] = ()
    side: BesideGolden = BesideGolden.CANDIDATE

    @property
    def sides(self) -> tuple[tuple[BesideGolden, Bundle], ...]:
        return (BesideGolden.GOLDEN, self.golden), (self.side, self.candidate)


PreflightCheck = Callable[[Pairing], Iterator[PreflightFinding]]


def _completeness(pair: Pairing) -> Iterator[PreflightFinding]:
    for side, bundle in pair.sides:
        for rank, manifest in bundle.manifests.items():
            if manifest.complete:
                continue
            stopped = manifest.stopped or {}
            if "rank" in stopped:
                lacking = stopped["rank"], stopped["steps"], stopped["of"]
                yield PreflightFinding(facts.RankLacksSteps(side, *lacking))
                continue
            yield PreflightFinding(
                facts.CaptureStopped(
                    side,
                    rank if bundle.manifest.ranks > 1 else None,
                    stopped.get("module") or "",
                    stopped.get("step"),
                    stopped.get("error", "unknown") if stopped else None,
                )
            )
        if bundle.missing_ranks:
            missing = facts.RanksMissing(side, tuple(bundle.missing_ranks), bundle.ranks)
            yield PreflightFinding(missing)


def _mode(pair: Pairing) -> Iterator[PreflightFinding]:
    for mode in (Mode.SKETCH, Mode.STATS, Mode.DIGEST):
        held = [bundle.manifest.options.mode == mode for bundle in (pair.golden, pair.candidate)]
        if any(held):
            yield PreflightFinding(facts.HeldInMode(mode, *held), serious=False)


def _imported(pair: Pairing) -> Iterator[PreflightFinding]:
    for side, bundle in pair.sides:
        if (imported := bundle.manifest.options.imported) is not None:
            unknown = tuple(
                setting
                for setting, serious, _ in _SETTINGS
                if serious and _get(bundle.manifest, setting) is None
            )
            yield PreflightFinding(
                facts.ImportedDump(side, imported.format, unknown), serious=False
            )


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
        golden, other = ((len(side), len({rank for rank, _ in side})) for side in sides)
        yield PreflightFinding(facts.OtherSteps(golden, other, pair.side), about=About.STEPS)


def _weights(pair: Pairing) -> Iterator[PreflightFinding]:
    for rank, (ours, theirs) in _by_rank(pair.golden, pair.candidate):
        if ours.described_at != theirs.described_at:
            steps = facts.WeightsOfSteps(rank, ours.described_at, theirs.described_at, pair.side)
            yield PreflightFinding(steps, serious=False)
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
            # fallback modules have another type on purpose
            narrowed = tuple(f"{name}." for name in (() if fallback is None else fallback.modules))
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
            # a dump has the weights of the modules that ran, by each of their names
            if ours.options.imported or theirs.options.imported:
                loaded = [
                    {
                        name: entry
                        for name, entry in table.items()
                        if all(name in each for each in loaded)
                    }
                    for table in loaded
                ]
            about = About.WEIGHTS if kind == "parameters" else About.GIVEN
            yield from _digests(DigestTable(kind, rank), loaded[0], loaded[1], pair.side, about)
            for name in sorted(computed & renamed.keys() & others.keys()):
                if same_fingerprint(renamed[name], others[name]) is False:
                    yield PreflightFinding(facts.ComputedOtherwise(name, rank))


def _inputs(pair: Pairing) -> Iterator[PreflightFinding]:
    for rank, (ours, theirs) in _by_rank(pair.golden, pair.candidate):
        of_steps: dict[PreflightFinding, list[int]] = {}
        table = DigestTable("inputs", rank)  # of all steps that have the same finding
        for step in sorted(ours.inputs.keys() & theirs.inputs.keys(), key=int):
            golden = ours.inputs[step]
            others = {
                name: {**each, "shape": golden[name]["shape"]}
                if name in golden and _of_one_batch(golden[name]["shape"], each["shape"])
                else each
                for name, each in theirs.inputs[step].items()
            }
            for finding in _digests(table, golden, others, pair.side):
                of_steps.setdefault(finding, []).append(int(step))
        for finding, steps in of_steps.items():
            fact = finding.fact
            if isinstance(fact, (facts.OtherDigests, facts.OtherTypes, facts.OneSidedEntries)):
                fact = msgspec.structs.replace(fact, table=replace(table, steps=tuple(steps)))
            yield replace(finding, fact=fact)


def _of_one_batch(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether one shape is the other with samples and tokens in one row: digests tell the rest."""
    longer, shorter = sorted((list(one), list(other)), key=len, reverse=True)
    return len(shorter) > 0 and [math.prod(longer[:2]), *longer[2:]] == shorter


def _unverified(pair: Pairing) -> Iterator[PreflightFinding]:
    sides = pair.sides if pair.side is BesideGolden.CANDIDATE else pair.sides[1:]
    yield from unverified(sides, pair.golden)
    for side, bundle in sides:
        draws = bundle.manifest.options.unplaced_draws
        if draws and bundle.ranks > bundle.manifest.ranks:  # put together
            yield PreflightFinding(facts.DrawsApart(side, draws), about=About.UNVERIFIED)


def _by_rank(
    golden: Bundle, candidate: Bundle
) -> Iterator[tuple[int | None, tuple[Manifest, Manifest]]]:
    """The two manifests of each rank that both have, with the rank if there are several."""
    for rank in sorted(golden.manifests.keys() & candidate.manifests.keys()):
        both = golden.manifests[rank], candidate.manifests[rank]
        yield (rank if golden.manifest.ranks > 1 else None), both


def _digests(
    table: DigestTable,
    golden: dict[str, Any],
    candidate: dict[str, Any],
    side: BesideGolden,
    about: About = About.GIVEN,
) -> Iterator[PreflightFinding]:
    """Findings on two tables of fingerprints by name.

    Args:
        table: what they are of.
        side: whose the second is.
        about: what differences are about.
    """
    shared = sorted(golden.keys() & candidate.keys())
    same = {name: same_fingerprint(golden[name], candidate[name]) for name in shared}
    different = tuple(name for name in shared if same[name] is False)
    if different:
        yield PreflightFinding(facts.OtherDigests(table, different, len(shared)), about=about)
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
        by_chance = ours in kept  # others kept this dtype, so this is probably an accident
        named = tuple(names) if by_chance else ()
        fact = facts.OtherTypes(table, ours, theirs, side, known, named, len(shared))
        yield PreflightFinding(fact, serious=by_chance, about=About.GIVEN)
    alone = tuple(sorted(golden.keys() ^ candidate.keys()))
    if alone and shared:
        yield PreflightFinding(facts.OneSidedEntries(table, alone), about=About.GIVEN)


def _settings(pair: Pairing) -> Iterator[PreflightFinding]:
    for setting, serious, about in _SETTINGS:
        ours, theirs = (_get(bundle.manifest, setting) for bundle in (pair.golden, pair.candidate))
        if any(
            value is None and bundle.manifest.options.imported
            for value, (_, bundle) in zip((ours, theirs), pair.sides, strict=True)
        ):
            continue  # what another tool's dump does not say
        unsaid = setting in (CaptureSetting.RANDOM, CaptureSetting.OPTIMIZER)
        # a killed, or older, capture could not say
        if ours != theirs and not (unsaid and None in (ours, theirs)):
            fact = facts.SettingDiffers(setting, ours, theirs, pair.side)
            yield PreflightFinding(fact, serious, about=about)


#: Settings that two captures should share, whether each is serious, and what it is about.
_SETTINGS = (
    (CaptureSetting.TRAINING, True, About.MODE),
    (CaptureSetting.DROPOUT, True, About.MODE),
    (CaptureSetting.MODEL_CLASS, False, About.OTHER),
    (CaptureSetting.SEED, True, About.SEED),
    (CaptureSetting.AUTOCAST, True, About.OTHER),
    (CaptureSetting.EMULATED, True, About.OTHER),
    (CaptureSetting.OPTIMIZER, True, About.OTHER),
    (CaptureSetting.ONLY, False, About.OTHER),
    (CaptureSetting.SKIP, False, About.OTHER),
    (CaptureSetting.RANDOM, True, About.MODE),
    (CaptureSetting.DEVICE, False, About.OTHER),
    (CaptureSetting.COMMIT, False, About.OTHER),
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
            fact = facts.VersionDiffers(name, ours.get(name), theirs.get(name), pair.side)
            yield PreflightFinding(fact, serious=False)


def _surroundings(pair: Pairing) -> Iterator[PreflightFinding]:
    if found := other_surroundings(pair.golden.manifest, pair.candidate.manifest):
        yield PreflightFinding(facts.SurroundingsDiffer(tuple(found), pair.side), serious=False)


def _configuration(pair: Pairing) -> Iterator[PreflightFinding]:
    attributes = list(
        other_configuration(pair.golden.manifest, pair.candidate.manifest, pair.renamings)
    )
    for name, key, ours, theirs in attributes[:_MOST_CONFIGURED]:
        fact = facts.AttributeDiffers(name, key, repr(ours), repr(theirs), pair.side)
        yield PreflightFinding(fact, about=About.CONFIGURATION)
    if len(attributes) > _MOST_CONFIGURED:
        more = facts.MoreAttributes(len(attributes) - _MOST_CONFIGURED, *attributes[-1][:2])
        yield PreflightFinding(more, about=About.CONFIGURATION)


def _left(pair: Pairing) -> Iterator[PreflightFinding]:
    manifests = pair.golden.manifest, pair.candidate.manifest
    dtypes = {float_dtype(manifest) for manifest in manifests}
    limit = max(DEFAULT_REL_L2.get(dtype, 0.0) for dtype in dtypes)
    if any(manifest.options.backward for manifest in manifests):
        limit *= FREE_GRADIENTS
    for name, key, *values in left_otherwise(*manifests, pair.renamings, limit):
        ours, theirs = (None if value is None else repr(value) for value in values)
        fact = facts.LeftDiffers(name, key, ours, theirs, pair.side)
        yield PreflightFinding(fact, about=About.LEFT)
    for name, golden in held_otherwise(*manifests, pair.renamings):
        yield PreflightFinding(facts.OneHolds(name, golden, pair.side), about=About.LEFT)
    for side, bundle in pair.sides:
        left = bundle.manifest.options.left
        for name in () if left is None else left.beyond:
            yield PreflightFinding(facts.LeftUnlooked(name, side), about=About.LEFT)


#: The most attributes of modules that get a line each.
_MOST_CONFIGURED = 5


def _flags(pair: Pairing) -> Iterator[PreflightFinding]:
    ours, theirs = (bundle.manifest.flags for bundle in (pair.golden, pair.candidate))
    for name in sorted(ours.keys() & theirs.keys()):
        if ours[name] != theirs[name]:
            yield PreflightFinding(facts.FlagDiffers(name, ours[name], theirs[name]))
    for side, flags in ((BesideGolden.GOLDEN, ours), (BesideGolden.CANDIDATE, theirs)):
        in_force = [flag for flag in FLAGS if flags.get(flag.name) in flag.values]
        lowered = tuple(
            flag.name
            for flag in in_force
            if flag.products and ours.get(flag.name) != theirs.get(flag.name)
        )
        if lowered:
            yield PreflightFinding(facts.LowerPrecision(side, lowered))
        for flag in in_force:
            if flag.saturates:
                yield PreflightFinding(facts.Saturates(side, flag.effect, flag.name))


def _feeding(pair: Pairing) -> Iterator[PreflightFinding]:
    for manifest in pair.candidate.manifests.values():
        left = () if manifest.feed is None else manifest.feed.not_fed
        if left:
            places = tuple((entry.name, str(entry.role), entry.why) for entry in left)
            yield PreflightFinding(facts.NotFedValues(len(left), places), serious=False)


def _scaler(pair: Pairing) -> Iterator[PreflightFinding]:
    """A ``GradScaler`` on one side only: only that side's gradients are then scaled."""
    trained = [
        [entry for manifest in bundle.manifests.values() for entry in manifest.series]
        for bundle in (pair.golden, pair.candidate)
    ]
    scales = [
        next((entry.loss_scale for entry in series if entry.loss_scale is not None), None)
        for series in trained
    ]
    if all(trained) and (scales[0] is None) is not (scales[1] is None):
        yield PreflightFinding(facts.ScalerDiffers(scales[0], scales[1], pair.side))


def _rounding(pair: Pairing) -> Iterator[PreflightFinding]:
    ours, theirs = (float_dtype(bundle.manifest) for bundle in (pair.golden, pair.candidate))
    narrower = theirs in ("bfloat16", "float16") and ours in ("float32", "float64")
    if (
        narrower
        and pair.golden.manifest.options.round_weights != theirs
        and pair.candidate.manifest.fed
    ):
        yield PreflightFinding(facts.WeightsNotRounded(theirs), serious=False)


def _notes(pair: Pairing) -> Iterator[PreflightFinding]:
    for side, bundle in pair.sides:
        for manifest in bundle.manifests.values():
            for note in manifest.notes:
                yield PreflightFinding(facts.CaptureNote(side, note), serious=False)


def _get(manifest: Manifest, setting: CaptureSetting) -> Any:
    section, key = setting.value
    value: Any = getattr(manifest, section)
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


_CHECKS: tuple[PreflightCheck, ...] = (
    _unverified,
    _completeness,
    _imported,
    _mode,
    _weights,
    _inputs,
    _steps,
    _configuration,
    _left,
    _settings,
    _versions,
    _flags,
    _surroundings,
    _scaler,
    _feeding,
    _rounding,
    _notes,
)

#: What a baseline must share with golden; not ``OTHER``, for it has the candidate's precision.
_BASELINE_CHECKS: tuple[PreflightCheck, ...] = (_unverified, _weights, _inputs, _steps, _settings)
_HARMLESS = (About.SEED, About.STEPS)  # if weights, inputs and random numbers agree


def preflight_baseline(
    golden: Bundle,
    candidate: Bundle,
    baseline: Bundle | None,
    renamings: Sequence[Renaming] = (),
    refused: facts.RefusedBaseline | None = None,
) -> list[PreflightFinding]:
    """What makes a baseline a poor judge; or, if none may judge and one would help, its command."""
    if refused is not None:
        proper = PreflightFinding(facts.ProperBaseline(refused.cure), serious=False)
        return [PreflightFinding(refused), proper]
    if baseline is None:
        dtypes = [float_dtype(bundle.manifest) for bundle in (golden, candidate)]
        if not candidate.manifest.fed and (dtypes[0] == dtypes[1] or "" in dtypes):
            return []
        # no error is known for a baseline to judge
        if Mode.DIGEST in (golden.manifest.options.mode, candidate.manifest.options.mode):
            return []
        advice = suggested(golden, candidate)
        other = other_code(golden.manifest, candidate.manifest).versions
        then = shlex.join(
            ["accucompare", "diff", str(golden.path), str(candidate.path), "--baseline", advice.out]
        )
        helps = facts.BaselineHelps(advice, then, other[0][:2] if other else None)
        return [PreflightFinding(helps, serious=False)]
    pair = Pairing(golden, baseline, renamings, BesideGolden.BASELINE)
    findings = [
        replace(finding, beside_baseline=True, of_baseline=finding.about not in _HARMLESS)
        for check in _BASELINE_CHECKS
        for finding in check(pair)
        if finding.serious and finding.about is not About.OTHER
    ]
    ours, theirs = product_formats(baseline.manifest), product_formats(candidate.manifest)
    lowered = next((name for name in theirs if name), "")
    if theirs != ours and lowered and float_dtype(candidate.manifest) == "float32":
        findings.append(
            PreflightFinding(facts.ProductsRounded(lowered, suggested(golden, candidate)))
        )
    return findings
