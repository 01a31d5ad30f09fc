"""What is checked inside one run of several ranks, and what was found; facts, without words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from accucompare.places import Place
from accucompare.selection import Word


class RankCheck(Word):
    """What must hold between the ranks of one run, in the order in which it is shown."""

    COMPLETE = "ranks-and-steps"
    SETTINGS = "settings"
    WEIGHTS = "weights"
    BATCHES = "batches"
    CALLS = "calls"
    LAYOUTS = "layouts"
    DROPOUT = "dropout"
    GRADIENTS = "gradients"
    REDUCTION = "reduction"
    LOOP = "loop"
    NORM = "clipped-norm"
    UPDATES = "updates"
    TIED = "tied-weights"
    PADDING = "vocabulary-padding"


class RankStatus(Word):
    """A check's result, the worst first."""

    FAIL = "FAIL"
    NOT_LOOKED_AT = "NOT LOOKED AT"
    PASS = "PASS"


class NotSeenWhy(str, Enum):
    """Why a check has looked at nothing."""

    RANKS_MISSING = "ranks missing"
    STEPS_MISSING = "steps missing"
    ENDED_EARLY = "ended early"
    NO_RECORDS = "no records"
    NO_LAYOUT = "no layout"
    NO_MESH = "no mesh"
    NO_INPUTS = "no inputs"
    NO_SAME_CALL = "no same call"
    NO_DROPOUT = "no dropout"
    SEEDED_ALIKE = "seeded alike"
    NO_VALUES = "no values"
    NO_GRADIENTS = "no gradients"
    NO_CALL_GRADIENTS = "no call gradients"
    SEVERAL_UPDATES = "several updates"
    CHANGED_BY_LOOP = "changed by the loop"
    NO_SERIES = "no series"
    NOT_CLIPPED = "not clipped"
    CLIPPED_ONCE = "clipped once"
    NOT_UPDATED = "not updated"
    NOT_TIED = "not tied"
    TIED_ONCE = "tied, recorded once"
    NOTHING_TELLS = "nothing tells"


class LoopNumber(Word):
    """A number of a training's loop."""

    LEARNING_RATE = "the learning rate of"
    LOSS_SCALE = "the loss scale"
    SKIPPED = "whether the update was skipped"
    UPDATES = "the number of updates"
    CLIP_FACTOR = "the clip factor"
    LOSSES = "the losses of one batch"


class RankFact(msgspec.Struct, frozen=True, tag=True):
    """What was measured."""


class NotSeen(RankFact, frozen=True):
    """Nothing was looked at; ``ranks`` and ``steps`` are those that are missing."""

    why: NotSeenWhy
    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()


class AllHold(RankFact, frozen=True):
    """So many values in so many steps are as they must be; ``of`` ranks."""

    count: int
    steps: int = 0
    left: int = 0  # how many more could not be looked at
    error: float | None = None  # the largest relative error, where values were added up
    factor: float | None = None  # the largest factor on the mean that all gradients have in common
    reduced: str = ""  # ``sum`` or ``mean``, of gradients


class SettingApart(RankFact, frozen=True):
    """A setting has several values; ``values``: each as text, with the ranks that have it."""

    kind: str
    name: str
    values: tuple[tuple[str, tuple[int, ...]], ...]


class ReplicasApart(RankFact, frozen=True):
    """Ranks that should hold the same bits do not; ``rel_l2`` is ``None`` without values."""

    rel_l2: float | None = None


class PartsApart(RankFact, frozen=True):
    """The parts do not fill the whole, or overlap."""

    shape: tuple[int, ...]


class ChangedBetween(RankFact, frozen=True):
    """Some ranks' parts of a weight changed between updates, and the others' did not."""


class OutputsApart(RankFact, frozen=True):
    """One input and equal weights gave several outputs. ``backward``: one gradient too, and
    several gradients of the input."""

    rel_l2: float | None = None
    backward: bool = False


class BatchTwice(RankFact, frozen=True):
    """Ranks that should share out the rows were given one batch."""


class BatchApart(RankFact, frozen=True):
    """Ranks that should be given one batch were given several."""


class MasksApart(RankFact, frozen=True):
    """Of one input, dropout kept other elements; ``share`` of them."""

    share: float


class MasksAlike(RankFact, frozen=True):
    """Of unlike batches, dropout kept the same elements, all of ``elements``."""

    elements: int


class ScaledGradient(RankFact, frozen=True):
    """A gradient is ``factor`` times the mean over ``ranks`` places of what their calls gave."""

    factor: float
    ranks: int
    usual: float | None = None  # the factor of most gradients


class UnevenGradient(RankFact, frozen=True):
    """A gradient is a sum of the calls' gradients, but not with one factor."""

    # ranks, call, and the factor of what they gave
    weights: tuple[tuple[tuple[int, ...], int, float], ...]


class OtherGradient(RankFact, frozen=True):
    """A gradient is no sum of the calls' gradients, by this share of their norms."""

    error: float


class NumberApart(RankFact, frozen=True):
    """A number of the loop has several values; ``name`` of a learning rate; else as
    ``SettingApart``."""

    what: LoopNumber
    name: str
    values: tuple[tuple[str, tuple[int, ...]], ...]


class NormUneven(RankFact, frozen=True):
    """The norm of the clipped gradients is not the same in all steps that clipped."""

    lowest: float
    highest: float
    steps: int


@dataclass(frozen=True)
class RankPlace:
    """Where something was seen; ``step`` and ``role`` are ``None`` where there is none."""

    name: str = ""
    step: int | None = None
    role: str | None = None
    call: int = 0
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Violation:
    """Something that does not hold, and where."""

    fact: RankFact
    place: RankPlace


@dataclass(frozen=True)
class RankOutcome:
    """What one check has seen."""

    check: RankCheck
    status: RankStatus
    measured: RankFact  # of the first violation; or what holds; or why nothing was looked at
    place: RankPlace = field(default_factory=RankPlace)  # of the first violation
    violations: Sequence[Violation] = ()  # all of them, in causal order; at most ``MOST_KEPT``
    count: int = 0  # how many there are


class RankAnswer(str, Enum):
    """What all checks together say."""

    HOLDS = "holds"
    BROKEN = "broken"
    NOT_SURE = "not sure"


#: 0: what was looked at holds; 1: something does not; 2: nothing to rely on.
RANK_EXIT_CODES = {RankAnswer.HOLDS: 0, RankAnswer.BROKEN: 1, RankAnswer.NOT_SURE: 2}


@dataclass(frozen=True)
class RunChecks:
    """The checks of one run of several ranks.

    Attributes:
        path: of the bundle.
        ranks: how many there are.
        steps: that all ranks have.
        outcomes: one of each check, in order.
    """

    path: Place
    ranks: int
    steps: Sequence[int]
    outcomes: Sequence[RankOutcome]

    def of(self, status: RankStatus) -> list[RankOutcome]:
        return [each for each in self.outcomes if each.status is status]

    def __getitem__(self, check: str) -> RankOutcome:
        """The outcome of a check, by its name."""
        return next(each for each in self.outcomes if each.check == check)

    @property
    def answer(self) -> RankAnswer:
        """The first rule that holds decides."""
        if self.of(RankStatus.FAIL):
            return RankAnswer.BROKEN
        complete = self[RankCheck.COMPLETE].status is RankStatus.PASS
        looked = [
            each
            for each in self.of(RankStatus.PASS)
            if each.check not in (RankCheck.COMPLETE, RankCheck.SETTINGS)
        ]
        return RankAnswer.HOLDS if complete and looked else RankAnswer.NOT_SURE

    @property
    def passed(self) -> bool:
        return self.answer is RankAnswer.HOLDS

    @property
    def exit_code(self) -> int:
        """The command's exit code: 0, 1 or 2."""
        return RANK_EXIT_CODES[self.answer]


#: Violations of a check that are kept; the others are counted.
MOST_KEPT = 20


class Tally:
    """What a check has seen so far.

    Attributes:
        looked, left: how many values were looked at, and how many could not be.
        steps: in which.
        unseen: why, where nothing was.
        told: fields of ``AllHold``.
    """

    def __init__(self, check: RankCheck, unseen: NotSeenWhy) -> None:
        self.check = check
        self.looked = self.left = self.count = 0
        self.steps: set[int] = set()
        self.unseen = NotSeen(unseen)
        self.told: dict[str, Any] = {}
        self.violations: list[Violation] = []

    def see(self, step: int | None = None, count: int = 1) -> None:
        self.looked += count
        if step is not None:
            self.steps.add(step)

    def fail(self, fact: RankFact, place: RankPlace) -> None:
        self.count += 1
        if len(self.violations) < MOST_KEPT:
            self.violations.append(Violation(fact, place))

    def outcome(self) -> RankOutcome:
        if self.violations:
            first = self.violations[0]
            kept = tuple(self.violations)
            return RankOutcome(
                self.check, RankStatus.FAIL, first.fact, first.place, kept, self.count
            )
        if not self.looked:
            return RankOutcome(self.check, RankStatus.NOT_LOOKED_AT, self.unseen)
        held = AllHold(self.looked, len(self.steps), self.left, **self.told)
        return RankOutcome(self.check, RankStatus.PASS, held)
