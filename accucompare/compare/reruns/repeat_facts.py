"""What is known of a run that was repeated; facts, without words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from accucompare.selection import Word


@dataclass(frozen=True)
class Disagreement:
    """A value of which not all runs have the same bits."""

    name: str
    type: str
    call: int
    role: str
    path: str
    step: int | None  # ``None`` for a weight, before the first step
    rank: int
    device: str
    values: int  # how many different ones there are
    odd: Sequence[int]  # the runs, from 0, that have another value than most
    missing: Sequence[int] = ()  # the runs, from 0, that have no such value


@dataclass(frozen=True)
class Disagreements:
    """What some runs have in common."""

    runs: int  # how many there are
    ranks: int  # how many each has
    steps: Sequence[int]  # those that were compared
    values: int  # how many values were
    first: Disagreement | None = None  # in execution order, of those that disagree
    count: int = 0  # how many values do
    odd: Sequence[int] = ()  # the runs, from 0, in which a value is not that of most runs
    # modules with values that disagree, in execution order: how many of each
    layers: Mapping[str, int] = field(default_factory=dict)


class NotReplayedWhy(Word):
    """Why no step was replayed."""

    AGREED = "agreed"
    OF_SCRIPT = "of a script"
    WEIGHTS = "weights"


@dataclass(frozen=True)
class Replays:
    """One step, again and again from its state and inputs, until it disagreed with itself."""

    step: int  # its number
    found: Disagreements  # of the replays


class RepeatedAnswer(Word):
    """Whether the runs agree."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    NOT_SURE = "not sure"


@dataclass(frozen=True)
class Repeated:
    """A case, or a script, that was run several times.

    Attributes:
        what: the case, or the script's command.
        found: of the runs.
        replays: of the first step that disagrees, or why there are none.
    """

    what: str
    found: Disagreements
    replays: Replays | NotReplayedWhy

    @property
    def answer(self) -> RepeatedAnswer:
        """The first rule that holds decides."""
        if self.found.first is not None:
            return RepeatedAnswer.DISAGREES
        return RepeatedAnswer.AGREES if self.found.values else RepeatedAnswer.NOT_SURE

    @property
    def passed(self) -> bool:
        return self.answer is RepeatedAnswer.AGREES

    @property
    def exit_code(self) -> int:
        """0: the run agrees with itself; 1: it does not; 2: nothing was compared."""
        return [*RepeatedAnswer].index(self.answer)
