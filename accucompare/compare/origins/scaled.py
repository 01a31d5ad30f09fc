"""Gradients that are golden's times one number: normalisation, reduction, clipping, loss scale.

Cosine and norms give each tensor's least-squares factor on golden, and what is left. Factors are
averaged by squared norms, so that a gradient that is mere rounding (a key's bias) has no say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from accucompare.bundle.format import Role
from accucompare.compare.constants import (
    DISTINCT,
    FEWEST_GRADIENTS,
    FREE_GRADIENTS,
    OF_REST,
    SPREAD,
)
from accucompare.compare.limits import DEFAULT_REL_L2
from accucompare.compare.rows import Row, Status
from accucompare.numbers import DTYPES

#: A power of two of at least this size, or one over it, is most likely a loss scale.
_LOSS_SCALE = 256

#: The largest number of ranks, or of backwards, that explains a factor.
_MOST_PARTS = 4096


class FactorCause(Enum):
    """What a factor on all gradients often comes from."""

    OTHER_SIGN = auto()
    LOSS_SCALE = auto()
    MEAN = auto()  # over accumulated backwards or ranks
    SUM = auto()
    CLIPPING = auto()


@dataclass(frozen=True)
class ScaledGradients:
    """All gradients of a step are golden's times one number."""

    factor: float  # that number
    spread: float  # RMS of the factors' relative distances from it, weighted by squared norms
    count: int  # how many gradients
    # rank, step: the first with it
    rank: int
    step: int
    row: Row  # the first that shows it: of the loss, or else of the largest gradient
    # whether the loss's gradient has the factor already; ``None`` if that is unknown
    of_loss: bool | None = None
    # whether the gradients are of parameters, not those that come out of the loss
    of_parameters: bool = True

    @property
    def cause(self) -> tuple[FactorCause, int]:
        """What such a factor often comes from, and how many parts explain it."""
        return _cause(self.factor, max(SPREAD, OF_REST * self.spread))

    def holds(self, row: Row) -> bool:
        """Whether a row shows this same factor."""
        found = _factor(row)
        return found is not None and abs(found[0] / self.factor - 1) <= max(
            _allowed(row), OF_REST * found[1]
        )


def find_scaled(rows: Iterable[Row]) -> ScaledGradients | None:
    """The first step whose gradients are golden's times a number other than 1, if any."""
    steps: dict[tuple[int, int], tuple[list[Row], list[Row]]] = {}
    for row in rows:
        record = row.record
        if record is None or record.role not in (Role.PARAM_GRAD, Role.GRAD_OUTPUT):
            continue
        own, of_loss = steps.setdefault((record.step, record.rank), ([], []))
        if record.role is Role.PARAM_GRAD:
            own.append(row)
        elif record.parent is None:
            of_loss.append(row)
    for (step, rank), (own, of_loss) in sorted(steps.items()):
        if (found := _common(own, FEWEST_GRADIENTS)) is not None:
            scaled = ScaledGradients(found[0], found[1], len(own), rank, step, found[2])
            # the loss makes the factor if its gradient has it already
            made = next(filter(scaled.holds, of_loss), None)
            right = bool(of_loss) and all(row.status is not Status.FAIL for row in of_loss)
            return replace(
                scaled, row=made or scaled.row, of_loss=True if made else False if right else None
            )
        if (found := _common(of_loss, 1)) is not None:  # fed, or without gradients of parameters
            return ScaledGradients(
                found[0], found[1], len(of_loss), rank, step, found[2], True, of_parameters=False
            )
    return None


def _common(rows: Sequence[Row], fewest: int) -> tuple[float, float, Row] | None:
    """The factor common to all, its spread, and the row of the largest gradient.

    If these are too few gradients to tell, each one's values must have the factor as exactly."""
    if not any(row.status is Status.FAIL for row in rows):
        return None
    measured = []
    for row in rows:
        # no gradient on both sides, or without data
        if row.status is not Status.FAIL and row.metrics is None:
            continue
        found = _factor(row)
        if found is None:
            if row.status is Status.FAIL:
                return None
            continue
        measured.append((row, *found, _norm(row)))
    if len(measured) < fewest:
        return None
    total = math.fsum(norm * norm for *_, norm in measured)
    factor = math.fsum(own * norm * norm for _, own, _, norm in measured) / total
    allowed = max(_allowed(row) for row, *_ in measured)
    if not factor or abs(factor - 1) <= DISTINCT * allowed:
        return None
    spread = math.sqrt(
        math.fsum(((own / factor - 1) * norm) ** 2 for _, own, _, norm in measured) / total
    )
    left = math.sqrt(math.fsum((rest * norm) ** 2 for _, _, rest, norm in measured) / total)
    most = (
        max(DEFAULT_REL_L2[dtype] for row, *_ in measured for dtype in _dtypes(row))
        * FREE_GRADIENTS
    )
    single = all(
        abs(own / factor - 1) <= max(allowed, OF_REST * rest) for _, own, rest, _ in measured
    )
    if spread > allowed or left > most or not single:
        return None
    if len(measured) < FEWEST_GRADIENTS and (
        left > allowed
        or measured[0][0].metrics is None
        or measured[0][0].metrics.compared < FEWEST_GRADIENTS
    ):
        return None
    return (
        factor,
        max(spread, left) if len(measured) < FEWEST_GRADIENTS else spread,
        max(measured, key=lambda each: each[-1])[0],
    )


def _norm(row: Row) -> float:
    statistics = row.golden.statistics if row.golden is not None else None
    return 0.0 if statistics is None else statistics.l2 or 0.0


def _allowed(row: Row) -> float:
    """How far factors may be apart, by the coarser type of the two."""
    return max(SPREAD, *(DTYPES[dtype].rounding for dtype in _dtypes(row)))


def _dtypes(row: Row) -> list[str]:
    return [
        record.dtype
        for record in (row.golden, row.candidate)
        if record is not None and record.dtype in DEFAULT_REL_L2
    ]


def _factor(row: Row) -> tuple[float, float] | None:
    """The least-squares factor on golden, and what is left relative to the candidate."""
    golden, candidate, metrics = row.golden, row.candidate, row.metrics
    if (
        golden is None
        or candidate is None
        or metrics is None
        or metrics.nonfinite_mismatch
        or metrics.nothing_finite
    ):
        return None
    if len(_dtypes(row)) < 2:
        return None
    if (
        golden.statistics is None
        or candidate.statistics is None
        or not golden.statistics.l2
        or candidate.statistics.l2 is None
    ):
        return None
    ratio = candidate.statistics.l2 / golden.statistics.l2
    if row.by_statistics:
        return _by_extrema(row, ratio)
    apart = metrics.one_minus_cosine
    return (1.0 - apart) * ratio, math.sqrt(max(apart * (2.0 - apart), 0.0))


def _by_extrema(row: Row, ratio: float) -> tuple[float, float] | None:
    """The same by statistics: the ratio of the norms, if the extrema have it too."""
    assert row.golden is not None
    assert row.candidate is not None
    golden, candidate = row.golden.statistics, row.candidate.statistics
    if (
        golden is None
        or candidate is None
        or None in (golden.min, golden.max, candidate.min, candidate.max)
    ):
        return None
    for sign, ends in (
        (1.0, (candidate.min, candidate.max)),
        (-1.0, (candidate.max, candidate.min)),
    ):
        pairs = zip((golden.min, golden.max), ends, strict=True)
        if all(
            math.isclose(
                sign * ratio * float(own or 0.0), float(other or 0.0), rel_tol=_allowed(row)
            )
            for own, other in pairs
        ):
            return sign * ratio, 0.0
    return None


def _cause(factor: float, allowed: float) -> tuple[FactorCause, int]:
    """What a factor often comes from, and how many parts explain it."""
    size, inverse = abs(factor), 1.0 / abs(factor)
    large = max(size, inverse)
    power = 2.0 ** round(math.log2(large))
    if factor < 0:
        return FactorCause.OTHER_SIGN, 0
    if power >= _LOSS_SCALE and abs(large / power - 1) <= allowed:
        return FactorCause.LOSS_SCALE, 0
    whole = round(large)
    if 2 <= whole <= _MOST_PARTS and abs(large / whole - 1) <= allowed:
        return FactorCause.MEAN if inverse > 1 else FactorCause.SUM, whole
    return FactorCause.CLIPPING, 0
