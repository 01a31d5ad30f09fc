"""The limits of one pair of records."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import cached_property, lru_cache
from pathlib import Path

import msgspec

from accucompare.bundle.flags import roundoff
from accucompare.bundle.format import Record
from accucompare.compare.constants import (
    CLEAR,
    FED_ROUNDINGS,
    FED_ROUNDINGS_OF_SUMS,
    MOST_OF_SUMS,
    ORDERS_OF_SUMS,
    SMALLEST_COSINE,
)
from accucompare.compare.limit_facts import LimitOrigin, LimitsOfPair, LimitSource
from accucompare.compare.limits.baseline import floor
from accucompare.compare.remarks import PairRemark
from accucompare.errors import UsageError
from accucompare.numbers import DTYPES

_THREE_DIGITS_UP = Context(prec=3, rounding=ROUND_CEILING)


class SmallestLimit(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The smallest limit that would pass a pair."""

    name: str  # ``atol``, ``rtol``, ``rel_l2``, ``cosine``, ``excess``; ``different`` for integers
    error: float  # what was measured; for a cosine, 1 - cosine

    def __str__(self) -> str:
        """``atol 2.40e-05``, ``cosine 0.999``, ``3 different``; ``""`` if none would pass."""
        if self.name == "different":
            return f"{self.error:.0f} different"
        return f"{self.name} {value}" if (value := self.value) else ""

    @property
    def value(self) -> str:
        """The number alone, to be given as a limit; ``""`` if no finite limit would pass."""
        match self.name:
            case "cosine":
                return _cosine(self.error)
            case "excess":
                if math.isfinite(self.error):
                    return f"{float(_THREE_DIGITS_UP.create_decimal(Decimal(self.error))):g}"
                return ""
            case "different":
                return f"{self.error:.0f}"
        if not self.error:
            return "0"
        above = math.nextafter(self.error, math.inf)  # the error may have been rounded down
        if math.isinf(above):
            return ""
        digits = f"{_THREE_DIGITS_UP.create_decimal(Decimal(above)):.2e}"
        return digits if math.isfinite(float(digits)) else ""


def _cosine(one_minus_cosine: float) -> str:
    """The cosine, its distance from 1 rounded to two digits; ``""`` if too small for a limit."""
    if not one_minus_cosine:
        return "1"
    unit = Decimal(1).scaleb(-min(max(1 - Decimal(one_minus_cosine).adjusted(), 2), 16))
    limit = (1 - Decimal(one_minus_cosine)).quantize(unit, rounding=ROUND_FLOOR)
    # the limit is read as a float, which near 1 is coarser than the printed digits
    while 1.0 - float(limit) < one_minus_cosine:
        limit -= unit
    return str(limit) if float(limit) >= SMALLEST_COSINE else ""


#: A type that rounds by this or more is coarse.
COARSE = roundoff("hf32")


@dataclass(frozen=True)
class Tolerance:
    """The limits of a pair of records, all of which must be kept; ``None`` is no limit.

    Attributes:
        atol, rtol: every element has |candidate - golden| <= atol + rtol * |golden|; if only one is
            given, the other is 0.
        rel_l2: largest relative L2 error.
        cosine: smallest cosine similarity.
        tolerances: for ``accucompare.diff``: a TOML file of limits by layer; the first rule that
            applies wins, these limits judge the rest.
        source: where the limits come from.
        by_default: whether these are defaults, which a baseline replaces if there is one.
        ceiling: the largest relative L2 error that is rounding, whatever judges, if known.
        fed: whether the candidate was fed, so that an error over the ceiling was made here.
        summing: the relative L2 error of another order of long sums; a baseline has only one order.
        composed: what rounding makes although the baseline is nearer: of a recurrent module that
            is composed of operators, where the baseline's is fused; of terms that cancel.
        kernels: how many times as far off as others a device's kernel may be.
        noise: the relative L2 error that rounding makes of a gradient whose terms cancel, or that
            is made of such a one; 0 for others.
        unjudged: why no baseline judges.
    """

    atol: float | None = None
    rtol: float | None = None
    rel_l2: float | None = None
    cosine: float | None = None
    tolerances: str | Path | None = None
    source: LimitOrigin = LimitSource.UNKNOWN
    by_default: bool = False
    ceiling: float | None = None
    fed: bool = False
    summing: float = 0.0
    composed: float = 0.0
    kernels: float = 1.0
    noise: float = 0.0
    unjudged: tuple[PairRemark, ...] = ()

    def __post_init__(self) -> None:
        for name in ("atol", "rtol", "rel_l2", "cosine"):
            value = getattr(self, name)
            if value is None:
                continue
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not 0 <= value <= sys.float_info.max
            ):
                raise UsageError(
                    f"{name} must be a finite number that is not negative, but is {value!r}"
                )
        if self.cosine is not None and not SMALLEST_COSINE <= self.cosine <= 1.0:
            raise UsageError(
                f"cosine is the smallest similarity that passes, between {SMALLEST_COSINE} and 1"
                f" (such as 0.999), but is {self.cosine!r}; it is not 1 - cosine"
            )

    @property
    def has_limit(self) -> bool:
        """Whether there is any limit."""
        return (self.atol, self.rtol, self.rel_l2, self.cosine) != (None, None, None, None)

    def is_no_rounding(self, rel_l2: float) -> bool:
        """Whether an error is clearly over the ceiling; unknown (false) for golden's zeros."""
        return self.ceiling is not None and CLEAR * self.ceiling < rel_l2 < math.inf

    def scaled(self, factor: float) -> Tolerance:
        """The same with ceiling scaled and, unless the user's, the relative limit."""
        return self if factor == 1.0 else _scaled(self, factor)

    def of_rounding_alone(self, terms: float) -> Tolerance:
        """The same for what rounding left of terms so many times as large: their own limits.

        A baseline may round less, as fused kernels do. The user's limits stay."""
        scaled = self.scaled(terms)
        return replace(scaled, summing=scaled.rel_l2 or 0.0) if self.by_default else scaled

    def of_terms(self, times: float, dtype: str) -> Tolerance:
        """The same with room for the least rounding of terms so many times as large, whatever the
        baseline; the user's limits stay."""
        if times <= 1.0 or not self.by_default or dtype not in DTYPES:
            return self
        return replace(self, composed=max(self.composed, floor(dtype) * times))

    def driven(self, error: float, most: float) -> Tolerance:
        """The same where rounding alone makes this error, and hardly ever more than ``most``."""
        return replace(
            with_ceiling(self, most), composed=max(self.composed, error) if self.by_default else 0.0
        )

    def of_sums(self, terms: int, dtype: str) -> Tolerance:
        """The same with room for another order of summing so many terms; the user's limits stay."""
        if not terms:
            return self
        rounding = min(DTYPES[dtype].rounding, DTYPES["float32"].rounding)
        return self.of_another_order(
            min(ORDERS_OF_SUMS * math.sqrt(terms) * rounding, MOST_OF_SUMS)
        )

    def of_another_order(self, error: float) -> Tolerance:
        """The same with room for another order's error, or formula's; the user's limits stay."""
        if not self.by_default or self.rel_l2 is None:
            return self
        return replace(self, rel_l2=max(self.rel_l2, error), summing=error)

    def of_roundings(self, error: float) -> Tolerance:
        """The same with room for roundings of this relative L2 error; the user's limits stay."""
        if not error or not self.by_default or self.rel_l2 is None:
            return self
        return replace(self, rel_l2=max(self.rel_l2, FED_ROUNDINGS / 2 * error), composed=error)

    def of_kernels(self, times: float) -> Tolerance:
        """The same where a device's kernel is so many times as far off; the user's limits stay."""
        if times == 1.0 or not self.by_default or self.rel_l2 is None:
            return self
        return replace(self, rel_l2=self.rel_l2 * times, kernels=times)

    def of_spacing(self, dtype: str, rmse: float, rel_l2: float) -> Tolerance:
        """The same with room for rounding to the numbers nearest to zero, or for zeros in place of
        subnormal ones; the user's limits stay.

        Args:
            dtype: the candidate's.
            rmse, rel_l2: the error.
        """
        most = FED_ROUNDINGS * max(DTYPES[dtype].spacing, DTYPES[dtype].flushed) / 2
        if not (most and 0.0 < rmse <= most and rel_l2 < math.inf) or not self.by_default:
            return self
        room = rel_l2 * most / rmse
        return replace(
            with_ceiling(self, room),
            rel_l2=max(self.rel_l2 or 0.0, room),
            summing=max(self.summing, room),
        )

    def of_zero(self, terms: float, record: Record) -> Tolerance:
        """The same for zeros that rounding left of terms of this norm; the user's limits stay."""
        if not terms or not self.by_default or self.rel_l2 is None:
            return self
        most = fed_limit(DTYPES[record.dtype].rounding)
        return replace(
            self, rel_l2=None, atol=most * terms / math.sqrt(max(math.prod(record.shape), 1))
        )

    @cached_property
    def judged(self) -> LimitsOfPair:
        """What a verdict keeps of the limits."""
        limits = self.atol, self.rtol, self.rel_l2, self.cosine
        return LimitsOfPair(*limits, self.source, self.by_default, self.unjudged)


#: For integers and booleans.
EXACT = Tolerance(source=LimitSource.EXACT)


@lru_cache(maxsize=4096)
def _scaled(tolerance: Tolerance, factor: float) -> Tolerance:
    rel_l2, ceiling = (
        None if each is None else each * factor for each in (tolerance.rel_l2, tolerance.ceiling)
    )
    return replace(
        tolerance, rel_l2=rel_l2 if tolerance.by_default else tolerance.rel_l2, ceiling=ceiling
    )


def with_ceiling(tolerance: Tolerance, least: float) -> Tolerance:
    """The same with a ceiling of at least so much."""
    return replace(tolerance, ceiling=max(tolerance.ceiling or 0.0, least))


def fed_limit(rounding: float) -> float:
    """The largest relative L2 error of a fed call in which each value rounds by so much."""
    return (FED_ROUNDINGS if rounding >= COARSE else FED_ROUNDINGS_OF_SUMS) * rounding
