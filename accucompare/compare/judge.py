"""What is said of a pair: whether it passes, why, and where a difference came from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from accucompare.bundle.dtypes import DTYPES, Kind
from accucompare.bundle.records import Layout, Record, Role
from accucompare.compare.bounds import can_bound
from accucompare.compare.comparison import UNMATCHED, Reason, Status, Verdict
from accucompare.compare.measure import Metrics
from accucompare.compare.tolerance import EXACT, SMALLEST_COSINE, Tolerance


def judge_without_data(golden: Record, candidate: Record) -> Verdict | None:
    """The verdict on a pair that cannot or need not be measured; ``None`` if it is to be measured.

    A difference is called introduced here too, until ``Origins.trace`` has seen it.
    """
    if golden.layout is not candidate.layout and not {golden.layout, candidate.layout} <= {Layout.STRIDED, Layout.SCALAR}:
        return Verdict(Reason.DTYPE, detail=_both(golden, candidate))
    if _kind(golden) is not _kind(candidate):
        return Verdict(Reason.DTYPE, detail=_both(golden, candidate))
    if golden.shape != candidate.shape:
        return Verdict(Reason.SHAPE, detail=f"golden is {list(golden.shape)}, the candidate {list(candidate.shape)}")
    if (golden.member is not None and candidate.member is not None) or can_bound(golden, candidate):
        return None
    detail = _described(golden) if _described(golden) == _described(candidate) else _both(golden, candidate)
    if golden.digest is None or candidate.digest is None:
        return Verdict(Reason.NOT_COMPARABLE, detail=detail)
    return Verdict(Reason.IDENTICAL if golden.digest == candidate.digest else Reason.INTRODUCED, detail=detail)


def _kind(record: Record) -> Kind | bool:
    """What kind of number a record holds; of an opaque value, whether it can be compared."""
    return DTYPES[record.dtype].kind if record.dtype in DTYPES else record.digest is not None


def _both(golden: Record, candidate: Record) -> str:
    return f"golden is {_described(golden)}, the candidate {_described(candidate)}"


def _described(record: Record) -> str:
    if record.layout is Layout.OPAQUE:
        return record.detail
    if record.layout is Layout.STRIDED:
        return record.dtype
    words = f"a {record.layout.value} {record.dtype} tensor" if record.dtype else f"a {record.layout.value} value"
    return f"{words} ({record.detail})" if record.detail else words


def judge(golden: Record, candidate: Record, metrics: Metrics, tolerance: Tolerance) -> Verdict:
    """The verdict on a measured pair, as if everything that went into the call were within tolerance.

    ``Origins.trace`` says afterwards whether the error was inherited.
    """
    if golden.digest == candidate.digest and golden.dtype == candidate.dtype:
        return Verdict(Reason.IDENTICAL, str(tolerance), tolerance.source, used=0.0, rel_l2_limit=tolerance.rel_l2)
    if metrics.nonfinite_mismatch:
        detail = _nonfinite_detail(metrics)
        return Verdict(Reason.NON_FINITE, str(tolerance), tolerance.source, "", math.inf, detail, rel_l2_limit=tolerance.rel_l2)
    detail = ""
    if metrics.saturated:
        largest = DTYPES[candidate.dtype].largest
        detail = f"{metrics.saturated} value(s) saturated at {candidate.dtype}'s largest, {largest:g}, where golden is larger"
    if DTYPES[golden.dtype].kind in (Kind.INT, Kind.BOOL):
        reason = Reason.OK if metrics.max_abs == 0 else Reason.INTRODUCED
        return Verdict(reason, str(EXACT), EXACT.source, used=math.inf if metrics.max_abs else 0.0)
    limits = _limits(metrics, tolerance)
    if math.isinf(metrics.rel_l2) and tolerance.rel_l2 is not None:
        detail = f"golden is all zeros, so no relative limit would pass; {_up('atol', metrics.max_abs)} would"
    return Verdict(
        reason=Reason.OK if all(limit.passes for limit in limits) else Reason.INTRODUCED,
        tolerance=str(tolerance),
        rule=tolerance.source,
        needed=", ".join(limit.needed for limit in limits if limit.needed),
        used=max(limit.used for limit in limits),
        detail=detail,
        rel_l2_limit=tolerance.rel_l2,
    )


@dataclass(frozen=True)
class _Limit:
    passes: bool
    used: float
    needed: str


def _limits(metrics: Metrics, tolerance: Tolerance) -> list[_Limit]:
    limits = []
    if tolerance.atol is not None or tolerance.rtol is not None:
        assert metrics.over_tolerance is not None
        assert metrics.tolerance_used is not None
        assert metrics.needed_atol is not None
        assert metrics.max_rel is not None
        relative = not tolerance.atol and tolerance.rtol
        needed = _up("rtol", metrics.max_rel) if relative else _up("atol", metrics.needed_atol)
        passes = metrics.over_tolerance == 0
        used = min(metrics.tolerance_used, 1.0) if passes else metrics.tolerance_used
        limits.append(_Limit(passes, used, needed))
    if tolerance.rel_l2 is not None:
        limits.append(_at_most(metrics.rel_l2, tolerance.rel_l2, _up("rel_l2", metrics.rel_l2)))
    if tolerance.cosine is not None:
        limits.append(_at_most(metrics.one_minus_cosine, 1.0 - tolerance.cosine, _cosine(metrics.one_minus_cosine)))
    return limits


def _at_most(measured: float, limit: float, needed: str) -> _Limit:
    used = measured / limit if limit else (math.inf if measured else 0.0)
    return _Limit(measured <= limit, used, needed)


_THREE_DIGITS_UP = Context(prec=3, rounding=ROUND_CEILING)


def _up(name: str, value: float) -> str:
    """Three digits, rounded up: a limit of what is printed passes. ``""`` if no finite limit would."""
    if not value:
        return f"{name} 0"
    above = math.nextafter(value, math.inf)  # the value may have been rounded down
    if math.isinf(above):
        return ""
    digits = f"{_THREE_DIGITS_UP.create_decimal(Decimal(above)):.2e}"
    return f"{name} {digits}" if math.isfinite(float(digits)) else ""


def _cosine(one_minus_cosine: float) -> str:
    """The cosine similarity with as many nines as it takes to show two digits of its distance from 1, rounded down.

    ``""`` if it is so small that it can be no limit (see ``Tolerance``).
    """
    if not one_minus_cosine:
        return "cosine 1"
    unit = Decimal(1).scaleb(-min(max(1 - Decimal(one_minus_cosine).adjusted(), 2), 16))
    limit = (1 - Decimal(one_minus_cosine)).quantize(unit, rounding=ROUND_FLOOR)
    while 1.0 - float(limit) < one_minus_cosine:  # as the limit will be read; near 1 floats are coarser than the digits printed
        limit -= unit
    return f"cosine {limit}" if float(limit) >= SMALLEST_COSINE else ""


def _nonfinite_detail(metrics: Metrics) -> str:
    parts = []
    if metrics.golden_nan != metrics.candidate_nan:
        parts.append(f"golden has {metrics.golden_nan} NaN, the candidate {metrics.candidate_nan}")
    if metrics.golden_inf != metrics.candidate_inf:
        parts.append(f"golden has {metrics.golden_inf} Inf, the candidate {metrics.candidate_inf}")
    if metrics.saturated:
        parts.append(f"{metrics.saturated} saturated in the candidate")
    counts = "; ".join(parts) or f"NaN or Inf in {metrics.nonfinite_mismatch} different places"
    return f"{counts}; the first at {list(metrics.nonfinite_index or ())}"


Call = tuple[int, int, str, int]


@dataclass
class _CallState:
    known: bool = False  # it has a row of its own; its children's come earlier if nothing went into it, or if it was left out
    over: bool = False  # an input of the call, or an output of a call made inside it, is over tolerance
    has_children: bool = False


@dataclass
class Origins:
    """Tells where errors come from, fed row by row in execution order.

    Without a baseline or a fed capture this is what tolerances alone can tell: an output over tolerance is *introduced* by a
    module all of whose inputs were within; it is *glue* if the module's children were within too, for then its own code made
    the error; an input over tolerance is *glue* if everything its parent had until then was within; all else is *inherited*. An
    input of an outermost call has no parent: it is *inputs differ* if nothing before it in its step was over.
    """

    _calls: dict[Call, _CallState] = field(default_factory=dict)
    _steps_over: set[tuple[int, int]] = field(default_factory=set)

    def trace(self, record: Record, verdict: Verdict) -> Verdict:
        """The verdict with its reason made exact, where the error could have come from elsewhere."""
        call = self._calls.setdefault((record.rank, record.step, record.name, record.call), _CallState())
        call.known = True
        parent = None
        if record.parent is not None:
            parent = self._calls.setdefault((record.rank, record.step, *record.parent), _CallState())
            parent.has_children = True
        over = verdict.status is Status.FAIL and verdict.reason not in UNMATCHED
        if verdict.reason is Reason.INTRODUCED:
            verdict = replace(verdict, reason=self._reason(record, call, parent))
        if over:
            self._steps_over.add((record.rank, record.step))
            if record.role is Role.INPUT:
                call.over = True
            if parent is not None:
                parent.over = True
        return verdict

    def _reason(self, record: Record, call: _CallState, parent: _CallState | None) -> Reason:
        if record.role is Role.INPUT:
            earlier = parent.over if parent is not None and parent.known else (record.rank, record.step) in self._steps_over
            if earlier:
                return Reason.INHERITED
            return Reason.INPUTS_DIFFER if record.parent is None else Reason.GLUE
        if call.over:
            return Reason.INHERITED
        return Reason.GLUE if call.has_children else Reason.INTRODUCED
