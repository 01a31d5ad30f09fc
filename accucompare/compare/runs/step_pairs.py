"""The steps of two training runs side by side, and settings that differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from accucompare.bundle.format import Manifest, StepSeries
from accucompare.compare.constants import SAME_RATE
from accucompare.compare.runs.wander import Apart, Quantity

#: The manifests of a bundle, by rank.
Manifests = Mapping[int, Manifest]


class Setting(str, Enum):
    """What a step was told to do, or did, that is no result of arithmetic."""

    LR = "learning rate"
    LOSS_SCALE = "loss scale"
    SKIPPED = "skipped updates"
    UPDATES = "updates"
    BACKWARDS = "losses"


@dataclass(frozen=True, slots=True)
class OtherSetting:
    """A setting that differs."""

    # setting, name: which, and of what: ``AdamW.0``
    setting: Setting
    name: str
    # rank, step: the first step with it
    rank: int
    step: int
    # golden, candidate: each one's value there; ``None`` for nothing
    golden: float | None
    candidate: float | None
    steps: int = 1  # in how many steps it differs
    # those of the candidate's ranks that were told otherwise there, if not all were
    ranks: tuple[int, ...] = ()

    @property
    def parts(self) -> bool:
        """Whether it changes the update; loss scales are divided out, and losses summed."""
        return self.setting in (Setting.LR, Setting.UPDATES)


@dataclass(frozen=True, slots=True)
class StepPair:
    """A step of one rank on both sides; one of them may lack it."""

    rank: int
    step: int
    golden: StepSeries | None
    candidate: StepSeries | None
    loss: Apart | None = None
    norm: Apart | None = None
    clipped: Apart | None = None

    @property
    def numbers(self) -> Iterator[tuple[Quantity, Apart]]:
        """What can be compared, in the order of the rungs."""
        for quantity, apart in (
            (Quantity.LOSS, self.loss),
            (Quantity.NORM, self.norm),
            (Quantity.CLIPPED, self.clipped),
        ):
            if apart is not None:
                yield quantity, apart

    @property
    def clipped_to(self) -> tuple[float | None, float | None]:
        """The norms of both sides' clipped gradients; ``None`` for a side that does not clip."""
        ours, theirs = self.golden, self.candidate
        return (
            None if ours is None else ours.clipped_norm,
            None if theirs is None else theirs.clipped_norm,
        )

    @property
    def optimizers(self) -> tuple[str, str] | None:
        """The classes of both sides' updating optimizers, if they differ."""
        if (
            self.golden is None
            or self.candidate is None
            or not (self.golden.updates and self.candidate.updates)
        ):
            return None
        ours, theirs = (
            ", ".join(dict.fromkeys(name.partition(".")[0].partition("#")[0] for name in side.lr))
            for side in (self.golden, self.candidate)
        )
        return (ours, theirs) if ours and theirs and ours != theirs else None


def settings_of(pairs: Iterable[StepPair], by_rank: Manifests) -> list[OtherSetting]:
    """The settings that differ, ordered by their first steps. ``by_rank``: the candidate's
    manifests, if its ranks are compared as one."""
    found: dict[tuple[Setting, str], OtherSetting] = {}
    for pair in pairs:
        for setting, name, ours, theirs in _told(pair):
            first = found.get((setting, name))
            if first is None:
                ranks = _ranks_told(by_rank, pair, (setting, name))
                rank = ranks[0] if ranks else pair.rank
                first = OtherSetting(setting, name, rank, pair.step, ours, theirs, 0, ranks)
            found[setting, name] = replace(first, steps=first.steps + 1)
    return list(found.values())


def _ranks_told(by_rank: Manifests, pair: StepPair, told: tuple[Setting, str]) -> tuple[int, ...]:
    """The ranks whose step was told otherwise than golden's; none, if all were."""
    ranks = [
        rank
        for rank, manifest in by_rank.items()
        for entry in manifest.series
        if entry.step == pair.step
        and any(each[:2] == told for each in _told(replace(pair, candidate=entry)))
    ]
    return tuple(sorted(ranks)) if len(ranks) < len(by_rank) else ()


def _told(pair: StepPair) -> Iterator[tuple[Setting, str, float | None, float | None]]:
    """A step's settings: which, of what, and both values."""
    ours, theirs = pair.golden, pair.candidate
    if ours is None or theirs is None:
        return
    rates = theirs.lr
    # another optimizer class, such as a device's fused one
    if len(ours.lr) == len(rates) and ours.lr.keys().isdisjoint(rates):
        rates = dict(zip(ours.lr, rates.values(), strict=True))
    # as many rates for other groups: what tells the groups apart is no rate
    one_rate = len({*ours.lr.values(), *rates.values()}) == 1
    for name in [*ours.lr, *(name for name in rates if name not in ours.lr)]:
        if one_rate and ours.lr and rates:
            break
        both = ours.lr.get(name), rates.get(name)
        if None in both or not math.isclose(both[0] or 0.0, both[1] or 0.0, rel_tol=SAME_RATE):
            yield Setting.LR, name, *both
    if ours.loss_scale != theirs.loss_scale:
        yield Setting.LOSS_SCALE, "", ours.loss_scale, theirs.loss_scale
    if ours.skipped != theirs.skipped:
        yield Setting.SKIPPED, "", int(ours.skipped), int(theirs.skipped)
    elif ours.updates != theirs.updates:
        yield Setting.UPDATES, "", ours.updates, theirs.updates
    if len(ours.losses) != len(theirs.losses):
        yield Setting.BACKWARDS, "", len(ours.losses), len(theirs.losses)
