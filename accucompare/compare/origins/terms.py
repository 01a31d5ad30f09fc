"""How large the terms of golden's sums are, which says how far rounding may be off."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from accucompare.bundle.format import Record, Role
from accucompare.compare.constants import CANCELS, RECURRENT, SUMMED
from accucompare.compare.limits import Tolerance
from accucompare.compare.origins.module_calls import CallKey, call_of, parameter_of, source_of
from accucompare.numbers import DTYPES

#: A parameter's gradient: of one call, and whole.
PARAMETER_GRADIENTS = (Role.CALL_GRAD, Role.PARAM_GRAD)

#: What a module makes of its sums.
OF_SUMS = (Role.OUTPUT, Role.BUFFER_UPDATE, Role.GRAD_INPUT, Role.CALL_GRAD, Role.PARAM_GRAD)


@dataclass
class Terms:
    """How much larger golden's terms of a gradient or an update are than their sum.

    A sum is rounded as its terms are, and they may cancel: the gradient of a key's bias is zero but
    for rounding. An update is rounded as its parameter is. What a call writes into a buffer may be
    a mean of its inputs: after a normalisation, zero but for rounding. A mean of n terms has one
    term's rounding, divided by the square root of n."""

    # L2 norm of all that arrived at a call's outputs
    _arrived: dict[CallKey, float] = field(default_factory=dict)
    # the same at one of its nodes
    _nodes: dict[tuple[CallKey, str, int], float] = field(default_factory=dict)
    # of the terms of a parameter's gradient
    _sizes: dict[tuple[int, int, str], float] = field(default_factory=dict)
    # L2 norm of a parameter before an update
    _values: dict[tuple[int, int, int, str], float] = field(default_factory=dict)
    # in this step: L2 norm and size of what calls were given
    _given: dict[CallKey, list[tuple[float, int]]] = field(default_factory=dict)
    # spread of what a normalisation takes, and of what it gives, by call
    _spreads: dict[CallKey, dict[Role, float]] = field(default_factory=dict)
    # how many times as large the terms are of the gradient that arrived at a call
    _cancelled: dict[CallKey, float] = field(default_factory=dict)
    # the same of a parameter's gradient, and of a step's last input gradient, with its L2 norm
    _of_parameters: dict[tuple[int, int, str], float] = field(default_factory=dict)
    _last: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    # how many values each sum of a module has
    _summed: dict[str, int] = field(default_factory=dict)
    # how many values arrived at a module's output
    _elements: dict[str, int] = field(default_factory=dict)
    # mean length of a recurrent module's sequences
    _length: dict[str, float] = field(default_factory=dict)

    def summed(self, record: Record) -> int:
        """How many values a ``SUMMED`` module sums for a channel or sample; 0 if unknown."""
        if record.role is Role.OUTPUT and record.type in SUMMED and len(record.shape) > 1:
            each = record.shape[SUMMED[record.type]]
            self._summed[record.name] = max(
                self._summed.get(record.name, 0), math.prod(record.shape) // max(each, 1)
            )
        return self._summed.get(record.name, 0) if record.role in OF_SUMS else 0

    def added(self, record: Record) -> int:
        """How many terms a bias's gradient sums; 0 for other records, or if unknown."""
        if record.role is Role.GRAD_OUTPUT:
            self._elements[record.name] = max(
                self._elements.get(record.name, 0), math.prod(record.shape)
            )
        if record.role not in PARAMETER_GRADIENTS or len(record.shape) != 1:
            return 0
        return self._elements.get(record.name, 0) // max(record.shape[0], 1)

    def roundings(self, record: Record) -> float:
        """How many roundings a value takes in a ``RECURRENT`` module composed of operators."""
        if record.role is Role.OUTPUT and len(record.shape) > 1:
            if record.path == "0" or record.path.startswith("0."):
                self._length[record.name] = math.prod(record.shape[:-1])
            elif record.name in self._length and record.path in ("1", "1.0"):
                self._length[record.name] /= max(math.prod(record.shape[1:-1]), 1)
        if record.role not in OF_SUMS:
            return 0.0
        forward = RECURRENT[record.type]
        if record.role in PARAMETER_GRADIENTS:
            return 2.0 * forward + self._length.get(record.name, 0.0) / 2.0
        return 2.0 * forward if record.role is Role.GRAD_INPUT else forward

    def give(self, record: Record) -> None:
        """Remember an input of a call; it may become a term of a buffer's update."""
        size, call = _size(record), call_of(record)
        if self._given and next(iter(self._given))[:2] != call[:2]:
            self._given.clear()
        self._given.setdefault(call, []).append((size, math.prod(record.shape)))

    def spread(self, record: Record) -> None:
        """Remember how far the values vary that a normalisation takes or gives."""
        found = record.statistics
        if "Norm" in record.type and found is not None and found.l2 and found.mean is not None:
            square = found.l2**2 / math.prod(record.shape) - found.mean**2
            own = self._spreads.setdefault(call_of(record), {})
            own.setdefault(record.role, math.sqrt(max(square, 0.0)))

    def normalised(self, record: Record) -> float:
        """How many times as large as a normalisation's input gradient its terms are; 1 if unknown,
        or smaller."""
        size, own = _size(record), self._spreads.get(call_of(record), {})
        if record.role is not Role.GRAD_INPUT or not size or not own.get(Role.INPUT):
            return 1.0
        terms = self._arrived.get(call_of(record), 0.0) * own.get(Role.OUTPUT, 0.0)
        return max(terms / own[Role.INPUT] / size, 1.0)

    def cancelled(self, record: Record) -> float:
        """The same of a free-running gradient: what rounds where terms cancel goes on to all
        gradients behind."""
        size, call, part = _size(record), call_of(record), _part(record)
        last, times = self._last.get(call[:2], (0.0, 1.0))
        if not size:
            return 1.0
        if record.role is Role.GRAD_OUTPUT:
            arrived = max(self._cancelled.get(call, 1.0), last * times / size)
            found = self._cancelled[call] = arrived
        elif record.role is Role.GRAD_INPUT:
            # of a module inside
            same = times if math.isclose(size, last, rel_tol=1e-6) else 1.0
            found = max(self.normalised(record), self._cancelled.get(call, 1.0), same)
            self._last[call[:2]] = size, found if found >= CANCELS else 0.0
        elif record.role is Role.CALL_GRAD:
            found = self._cancelled.get(call, 1.0)
            self._of_parameters[part] = max(self._of_parameters.get(part, 1.0), found)
        else:
            found = self._of_parameters.get(part, 1.0)
        return found if found >= CANCELS else 1.0

    def widened(self, tolerance: Tolerance, record: Record, dtype: str) -> Tolerance:
        """The limits of golden's record, with room for the rounding of its terms.

        ``dtype``: the candidate's.
        """
        size, call, part = _size(record), call_of(record), _part(record)
        update = (record.rank, record.step, record.call, part[-1])
        terms = size
        if record.role is Role.GRAD_OUTPUT:
            self._arrived[call] = math.hypot(self._arrived.get(call, 0.0), size)
        elif record.role is Role.CALL_GRAD:
            # a bias: the sum of what arrived
            terms = max(size, self._arrived.get(call, 0.0)) if len(record.shape) == 1 else size
            self._sizes[part] = math.hypot(self._sizes.get(part, 0.0), terms)
        elif record.role is Role.OP_GRAD_OUTPUT:
            self._nodes[(call, *record.operator)] = size
        elif record.role is Role.OP_GRAD_INPUT and len(record.shape) == 1:
            terms = max(size, self._nodes.get((call, *record.operator), 0.0))
        elif record.role is Role.BUFFER_UPDATE:
            own = math.prod(record.shape)
            terms = max(
                (
                    given * min(own / count, 1.0)
                    for given, count in self._given.get(call, ())
                    if count
                ),
                default=size,
            )
        elif record.role is Role.PARAM_GRAD:
            terms = self._sizes.get(part, size)
        elif record.role is Role.PARAM_BEFORE:
            self._values[update] = size
        elif record.role is Role.PARAM_UPDATE:
            terms = self._values.get(update, size)
        if not size:
            return tolerance.of_zero(terms, record)
        if record.role in (Role.GRAD_OUTPUT, Role.GRAD_INPUT):
            # as of queries that are all alike: their gradient's terms cancel
            arrived = self._arrived.get(source_of(record) or call, 0.0)
            if size <= DTYPES[record.dtype].rounding * arrived:
                return tolerance.of_rounding_alone(arrived / size)
        times = max(terms / size, 1.0)
        if record.role is not Role.PARAM_UPDATE:  # whose rounding a baseline shows
            tolerance = tolerance.of_terms(times, dtype)
        return tolerance.scaled(times)


def _size(record: Record) -> float:
    return (record.statistics.l2 if record.statistics is not None else None) or 0.0


def _part(record: Record) -> tuple[int, int, str]:
    return record.rank, record.step, parameter_of(record)
