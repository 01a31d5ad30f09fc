"""Whether the numbers of the loop are the same on all ranks, and the norm by which it clips."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from accucompare.bundle.format import Manifest, Role, StepSeries
from accucompare.bundle.reading import Bundle
from accucompare.compare.constants import SAME_NUMBER, SAME_NUMBER_OF_HALVES, SAME_RATE
from accucompare.compare.invariants import rank_facts as facts
from accucompare.compare.invariants.gradient_checks import clip_factor, clipped_by
from accucompare.compare.invariants.rank_facts import (
    LoopNumber,
    NotSeen,
    NotSeenWhy,
    RankPlace,
    Tally,
)
from accucompare.compare.invariants.run_of_ranks import RunOfRanks, StepOfRanks, apart, by_value
from accucompare.compare.layouts import IncompleteError
from accucompare.devices import is_a_librarys

#: Variables that say which rank a process is.
_OWN = ("RANK", "VISIBLE_DEVICES", "MASTER_", "TORCHELASTIC_", "PROCID", "LOCALID", "HOST", "NODE")


def check_complete(bundle: Bundle) -> facts.RankOutcome:
    """Whether every rank and every step of each is there."""
    steps = {
        rank: {entry.step for entry in manifest.steps}
        for rank, manifest in bundle.manifests.items()
    }
    every = set[int]().union(*steps.values())
    unseen: NotSeen | None = None
    if bundle.missing_ranks:
        unseen = NotSeen(NotSeenWhy.RANKS_MISSING, tuple(bundle.missing_ranks))
    elif short := {rank: every - own for rank, own in steps.items() if every - own}:
        missing = tuple(sorted(set[int]().union(*short.values())))
        unseen = NotSeen(NotSeenWhy.STEPS_MISSING, tuple(sorted(short)), missing)
    elif early := [rank for rank, each in bundle.manifests.items() if not each.complete]:
        unseen = NotSeen(NotSeenWhy.ENDED_EARLY, tuple(sorted(early)))
    if unseen is not None:
        place = RankPlace(ranks=unseen.ranks)
        return facts.RankOutcome(
            facts.RankCheck.COMPLETE, facts.RankStatus.NOT_LOOKED_AT, unseen, place
        )
    tally = Tally(facts.RankCheck.COMPLETE, NotSeenWhy.NO_RECORDS)
    tally.looked, tally.steps = len(steps), every
    return tally.outcome()


def check_settings(bundle: Bundle) -> facts.RankOutcome:
    """Whether versions, flags, variables, libraries and code are the same on all ranks."""
    tally = Tally(facts.RankCheck.SETTINGS, NotSeenWhy.NO_RECORDS)
    tables = {rank: dict(_settings(manifest)) for rank, manifest in bundle.manifests.items()}
    names = dict.fromkeys(name for table in tables.values() for name in table)
    for kind, name in names:
        held = {rank: table.get((kind, name)) for rank, table in tables.items()}
        # what was not loaded, or not read, on a rank is no other there
        read = kind == "variable" and not is_a_librarys(name)
        if (read or kind in ("version", "library", "source")) and None in held.values():
            continue
        tally.see()
        if ranks := apart(held):
            tally.fail(facts.SettingApart(kind, name, by_value(held)), RankPlace(ranks=ranks))
    return tally.outcome()


def _settings(manifest: Manifest) -> Iterator[tuple[tuple[str, str], Any]]:
    device = manifest.environment.get("device")
    yield ("device", ""), device.get("name") if isinstance(device, dict) else None
    yield ("mode", ""), manifest.model.get("training")
    yield ("run", ""), manifest.options.run or None
    for kind, table in (
        ("version", manifest.versions),
        ("flag", manifest.flags),
        ("variable", manifest.variables or {}),
        ("library", manifest.libraries),
        ("source", manifest.code.sources or {}),
    ):
        for name, value in table.items():
            if kind != "variable" or not any(word in name for word in _OWN):
                yield (kind, name), value


#: What it is, and whose.
_Number = tuple[LoopNumber, str]


def check_loop(run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
    entries = run.series(step.number)
    if len(entries) < 2:
        return
    tables = {rank: dict(_numbers(entry)) for rank, entry in entries.items()}
    for name in dict.fromkeys(name for table in tables.values() for name in table):
        held = {rank: table.get(name) for rank, table in tables.items()}
        limit = SAME_RATE
        if name[0] is LoopNumber.CLIP_FACTOR:
            limit = SAME_NUMBER_OF_HALVES if _has_halves(step) else SAME_NUMBER
        _same(tally, step.number, name, held, limit)
    losses: dict[Any, dict[int, Any]] = {}
    for rank, entry in entries.items():
        if entry.losses and (batch := step.batches.get(rank) or entry.batch):
            losses.setdefault(batch, {})[rank] = entry.losses
    for same in losses.values():
        if len(same) > 1:
            _same(tally, step.number, (LoopNumber.LOSSES, ""), same, SAME_NUMBER)


def _numbers(entry: StepSeries) -> Iterator[tuple[_Number, Any]]:
    for name, rate in entry.lr.items():
        yield (LoopNumber.LEARNING_RATE, name), rate
    yield (LoopNumber.LOSS_SCALE, ""), entry.loss_scale
    yield (LoopNumber.SKIPPED, ""), entry.skipped
    yield (LoopNumber.UPDATES, ""), entry.updates
    yield (LoopNumber.CLIP_FACTOR, ""), clip_factor(entry)


def _same(tally: Tally, step: int, what: _Number, held: dict[int, Any], limit: float) -> None:
    """Numbers count as the same that are within a relative limit of the first rank's."""
    tally.see(step)
    first = held[min(held)]
    alike = {rank: first if _near(value, first, limit) else value for rank, value in held.items()}
    if ranks := apart(alike):
        tally.fail(facts.NumberApart(*what, by_value(alike)), RankPlace("", step, None, 0, ranks))


def _near(value: Any, first: Any, limit: float) -> bool:
    if isinstance(value, tuple) and isinstance(first, tuple):
        return len(value) == len(first) and all(
            _near(*each, limit) for each in zip(value, first, strict=True)
        )
    if isinstance(value, float) and isinstance(first, float):
        return math.isclose(value, first, rel_tol=limit) or (
            math.isnan(value) and math.isnan(first)
        )
    return bool(value == first)


class ClippedNorms:
    """The norms of the gradients of all ranks put together, in the steps that clipped them.

    A loop multiplies gradients with max_norm over the norm that it has found. If that is their
    norm, the clipped ones have the norm max_norm in every step."""

    def __init__(self) -> None:
        self.norms: dict[int, float] = {}
        self.halves = False

    def check(self, run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
        factors = [clip_factor(entry) for entry in run.series(step.number).values()]
        known = [factor for factor in factors if factor is not None]
        if not known or len(known) < len(factors) or _near(min(known), 1.0, SAME_RATE):
            return
        squares = []
        for _, group in step.of(Role.PARAM_GRAD):
            record = group[min(group)]
            try:
                norm = run.norm(run.wholes(group)[0])
            except (IncompleteError, IndexError):
                norm = None
            if norm is None or run.parameter_of(record) in run.by_hand:
                tally.unseen = NotSeen(NotSeenWhy.NO_LAYOUT)
                return
            squares.append(norm**2)
        self.halves |= _has_halves(step)
        if squares and all(map(math.isfinite, squares)):
            # what the clipped ones have, or would have
            factor = known[0] / clipped_by(run, step)
            self.norms[step.number] = factor * math.sqrt(math.fsum(squares))

    def finish(self, tally: Tally) -> None:
        if len(self.norms) < 2:
            if self.norms:
                tally.unseen = NotSeen(NotSeenWhy.CLIPPED_ONCE)
            return
        for step in self.norms:
            tally.see(step)
        low, high = min(self.norms.values()), max(self.norms.values())
        if high - low > (SAME_NUMBER_OF_HALVES if self.halves else SAME_NUMBER) * high:
            fact = facts.NormUneven(low, high, len(self.norms))
            usual = sorted(self.norms.values())[len(self.norms) // 2]
            step = max(self.norms, key=lambda each: abs(self.norms[each] - usual))
            tally.fail(fact, RankPlace("", step, Role.PARAM_GRAD.value))


def _has_halves(step: StepOfRanks) -> bool:
    return any(
        record.dtype in ("bfloat16", "float16")
        for _, group in step.of(Role.PARAM_GRAD)
        for record in group.values()
    )
