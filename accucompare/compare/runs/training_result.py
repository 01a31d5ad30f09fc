"""The steps of two runs of training, compared."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from accucompare.compare.runs.parting import Parting
from accucompare.compare.runs.step_pairs import OtherSetting, StepPair
from accucompare.compare.runs.wander import Apart, Quantity, Wander


class JudgedBy(str, Enum):
    """What says how far runs may be apart."""

    GIVEN = "given limits"
    BASELINE = "baseline"
    REPEAT = "second golden run"
    DEFAULT = "default limits"
    NOTHING = "nothing"  # a fed candidate's steps are golden's


@dataclass(frozen=True)
class TrainingResult:
    """The steps of two runs compared."""

    pairs: tuple[StepPair, ...]  # every step of either side, by rank and step
    judged_by: JudgedBy  # what said how far they may be apart
    dtype: str  # the coarsest floating type of the two sides, for default limits
    # what the two sides were told to do differently, each once
    settings: tuple[OtherSetting, ...] = ()
    # where they part by more than rounding; ``None`` if they do not, or nothing judges
    parting: Parting | None = None
    other_bits: Parting | None = None  # where they first hold other bits
    # loss, norm: drift and scatter; ``None`` without such numbers
    loss: Wander | None = None
    norm: Wander | None = None
    # expected_loss, expected_norm: the same for the run that judges
    expected_loss: Wander | None = None
    expected_norm: Wander | None = None
    # whether digests could show that data agree; ``None`` if they cannot
    same_batches: bool | None = None
    several_ranks: bool = False
    # whether both compute in one type; else other bits are normal and say nothing
    same_type: bool = True

    @property
    def updated(self) -> bool:
        """Whether steps made updates, so that each goes on with what the one before it made."""
        return any(
            side is not None and side.updates
            for pair in self.pairs
            for side in (pair.golden, pair.candidate)
        )

    @property
    def compared(self) -> int:
        """Steps with a number on both sides."""
        return sum(any(True for _ in pair.numbers) for pair in self.pairs)

    @property
    def judged(self) -> int:
        """Steps with a finite, judged number on both sides."""
        if self.judged_by is JudgedBy.NOTHING:
            return 0
        return sum(any(apart.finite for _, apart in pair.numbers) for pair in self.pairs)

    @property
    def alone(self) -> tuple[int, int]:
        """How many steps only golden has, and only the candidate."""
        return sum(pair.candidate is None for pair in self.pairs), sum(
            pair.golden is None for pair in self.pairs
        )

    @property
    def identical(self) -> bool:
        """Whether all recorded numbers, batches and parameters are bit for bit golden's."""
        whole = all(
            pair.golden is not None and pair.candidate is not None and pair.golden.weights
            for pair in self.pairs
        )
        return bool(self.pairs) and whole and self.other_bits is None

    @property
    def not_finite(self) -> StepPair | None:
        """The first step with a number that is NaN or infinite on both sides."""
        return next(
            (pair for pair in self.pairs if any(not (a.finite or a.over) for _, a in pair.numbers)),
            None,
        )

    @property
    def beyond(self) -> tuple[StepPair, Quantity, Apart] | None:
        """The first number far beyond rounding that passes as the judging run is as far off."""
        found = (
            (pair, quantity, apart)
            for pair in self.pairs
            for quantity, apart in pair.numbers
            if apart.beyond
        )
        return next(found, None)

    @property
    def proves_nothing(self) -> bool:
        """Whether steps within their limits prove nothing."""
        if self.judged_by is JudgedBy.NOTHING:
            return False
        return self.beyond is not None or self.alone[0] > 0
