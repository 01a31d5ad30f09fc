"""How far losses and gradient norms of two runs may be apart by rounding, and how far they are.

**Envelope.** Rounding parts two runs slowly: one step's difference is trained into the next.
Another run of golden (a baseline in the candidate's precision, or golden's second run) shows how
far. The limit is its largest relative difference until that step, or the floor of the dtype, times
what ``compare.limits.baseline`` allows for chance. The first ten steps are taken together, since a
single number may be small by chance.

**Without one**, the dtype's default limits for tensors hold, four times as wide for gradient norms.

**Drift and scatter.** The mean and standard deviation of the signed relative difference over the
steps. A mean far from zero for its standard error is a bias, whatever its size. Neighbouring steps
are alike, so the standard error counts n (1 - r) / (1 + r) independent steps, r being the
correlation of neighbours."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from accucompare.bundle.format import StepSeries
from accucompare.compare.constants import BIASED, CLEAR, FEWEST_STEPS, FREE_GRADIENTS, TOGETHER
from accucompare.compare.limits import (
    CEILING,
    DEFAULT_REL_L2,
    Tolerance,
    floor,
    precision_of,
    ratio_limit,
)

#: (rank, step).
StepOfRank = tuple[int, int]


class Quantity(str, Enum):
    """A number of a step that is compared."""

    LOSS = "loss"
    NORM = "gradient norm"
    CLIPPED = "gradient norm after clipping"


#: How much wider a default limit is than a value's.
_WIDER = {Quantity.LOSS: 1.0, Quantity.NORM: FREE_GRADIENTS, Quantity.CLIPPED: FREE_GRADIENTS}


def value_of(series: StepSeries | None, quantity: Quantity) -> float | None:
    """A step's number; the loss is the sum over its backwards, as gradients are."""
    if series is None:
        return None
    if quantity is Quantity.LOSS:
        return sum(series.losses) if series.losses else None
    return series.grad_norm if quantity is Quantity.NORM else series.clipped_norm


def used_norm(series: StepSeries) -> float | None:
    """The gradient norm that the step's updates used, clipped or not; ``None`` if unknown."""
    return series.grad_norm if series.clipped_norm is None else series.clipped_norm


def relative(golden: float, candidate: float) -> float:
    """(candidate - golden) / |golden|; 0 if equal or both NaN, inf if not finite or golden is 0."""
    if golden == candidate or (math.isnan(golden) and math.isnan(candidate)):
        return 0.0
    if not (math.isfinite(golden) and math.isfinite(candidate)) or not golden:
        return -math.inf if candidate < golden else math.inf
    return (candidate - golden) / abs(golden)


@dataclass(frozen=True, slots=True)
class Apart:
    """A number of a step on both sides."""

    golden: float
    candidate: float
    limit: float  # the largest |relative|
    ceiling: float  # a larger difference is not rounding, whatever another run shows

    @property
    def relative(self) -> float:
        return relative(self.golden, self.candidate)

    @property
    def finite(self) -> bool:
        """Whether it is finite on both sides, so that the difference tells something."""
        return math.isfinite(self.golden) and math.isfinite(self.candidate)

    @property
    def over(self) -> bool:
        return not abs(self.relative) <= self.limit

    @property
    def clearly_over(self) -> bool:
        """Whether it is too far over its limit for chance."""
        return not abs(self.relative) <= CLEAR * self.limit

    @property
    def beyond(self) -> bool:
        """Whether it is within a limit that is itself larger than rounding."""
        return not self.over and abs(self.relative) > self.ceiling


@dataclass(frozen=True)
class RunLimits:
    """How far numbers may be apart by rounding alone."""

    dtype: str  # the coarsest floating type that the two sides compute in
    given: Tolerance  # what the user gave; it judges alone, if it limits single numbers
    # what other runs of golden allow, by quantity, rank and step
    envelopes: Mapping[Quantity, Mapping[StepOfRank, float]]

    @property
    def by_user(self) -> bool:
        """Whether the user's limits judge. A cosine tells nothing about single numbers."""
        return (self.given.atol, self.given.rtol, self.given.rel_l2) != (None, None, None)

    def apart(
        self, quantity: Quantity, place: StepOfRank, golden: float | None, candidate: float | None
    ) -> Apart | None:
        """A number on both sides with its limit; ``None`` if a side has none."""
        if golden is None or candidate is None:
            return None
        if self.by_user:
            return Apart(golden, candidate, self._given(golden), math.inf)
        default = DEFAULT_REL_L2[self.dtype] * _WIDER[quantity]
        limit = self.envelopes.get(quantity, {}).get(place, default)
        return Apart(golden, candidate, limit, CEILING[self.dtype][1] * _WIDER[quantity])

    def _given(self, golden: float) -> float:
        limits = [] if self.given.rel_l2 is None else [self.given.rel_l2]
        if self.given.atol is not None or self.given.rtol is not None:
            size = abs(golden)
            limits.append(
                (self.given.rtol or 0.0) + ((self.given.atol or 0.0) / size if size else math.inf)
            )
        return min(limits)


def envelope(
    golden: Mapping[StepOfRank, float], other: Mapping[StepOfRank, float], dtype: str
) -> dict[StepOfRank, float]:
    """The limits that another run of golden allows, at each step that both have.

    Args:
        golden, other: a number of both runs, by rank and step.
        dtype: the candidate's.
    """
    precision, limits = precision_of(dtype), {}
    for rank in sorted({rank for rank, _ in golden}):
        places = sorted(place for place in golden.keys() & other.keys() if place[0] == rank)
        found = [abs(relative(golden[place], other[place])) for place in places]
        for number, place in enumerate(places):
            known = [error for error in found[: max(number + 1, TOGETHER)] if math.isfinite(error)]
            most = max([*known, floor(dtype)])
            limits[place] = precision.slack * ratio_limit(len(known)) * most
    return limits


@dataclass(frozen=True, slots=True)
class Wander:
    """How a number of two runs differs over the steps, relative to golden's."""

    steps: int  # how many were finite on both sides
    drift: float  # mean of the signed relative difference
    scatter: float  # its standard deviation
    error: float  # the standard error of the mean

    @property
    def biased(self) -> bool:
        """Whether the mean is further from zero than scatter explains."""
        return self.steps >= FEWEST_STEPS and abs(self.drift) > BIASED * self.error

    @classmethod
    def of(cls, differences: Sequence[float]) -> Wander | None:
        """``None`` without differences."""
        if not differences:
            return None
        count, mean = len(differences), statistics.fmean(differences)
        if count < 2:
            return cls(count, mean, 0.0, math.inf)
        deviations = [each - mean for each in differences]
        squares = math.fsum(each * each for each in deviations)
        scatter = math.sqrt(squares / (count - 1))
        alike = (
            math.fsum(one * following for one, following in pairwise(deviations)) / squares
            if squares
            else 0.0
        )
        alike = min(max(alike, 0.0), 1.0 - 1.0 / count)
        return cls(
            count,
            mean,
            scatter,
            scatter / math.sqrt(max(count * (1.0 - alike) / (1.0 + alike), 1.0)),
        )


def wander(numbers: Iterable[tuple[float | None, float | None]]) -> Wander | None:
    """Drift and scatter of golden's and another run's numbers, without those not finite."""
    both = [(ours, theirs) for ours, theirs in numbers if ours is not None and theirs is not None]
    found = [relative(*pair) for pair in both if all(map(math.isfinite, pair))]
    return Wander.of([each for each in found if math.isfinite(each)])
