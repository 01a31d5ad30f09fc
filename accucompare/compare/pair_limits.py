"""The limits of each pair: those in force, and the dtypes that rounded before it in its step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache

from accucompare.bundle.flags import roundoff
from accucompare.bundle.format import NODE_ROLES, TRAINING_ROLES, Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.constants import CANCELS, FREE_GRADIENTS, RECURRENT, ROUNDED_DECAY, SUMMED
from accucompare.compare.limits import (
    COPIES,
    EXACT,
    LimitsInForce,
    Rule,
    Tolerance,
    fed_limit,
    floor,
    is_half,
    kernels_of,
    product_formats,
)
from accucompare.compare.origins import OF_SUMS, PARAMETER_GRADIENTS, Terms, parameter_of
from accucompare.compare.pairing import Pair
from accucompare.compare.rows import same_bits
from accucompare.numbers import DTYPES


def limits_in_force(rules: tuple[Rule, ...], limits: Tolerance, candidate: Bundle) -> LimitsInForce:
    """The limits in force; a fed candidate's default depends on its float32 products' format."""
    matmul, conv = map(roundoff, product_formats(candidate.manifest))
    classes = candidate.manifest.code.classes or {}

    def torchs(name: str) -> bool:
        return all(home.startswith("torch.nn.modules.") for home in classes.get(name) or [""])

    copies, model = frozenset(filter(torchs, COPIES)), candidate.manifest.model
    other_mode, sums = set(model.get("other_mode") or ()), set(filter(torchs, SUMMED))
    trains = {
        name
        for name in model.get("modules") or ()
        if bool(model.get("training")) is not (name in other_mode)
    }
    summing = frozenset(
        name
        for name, kind in (model.get("modules") or {}).items()
        if kind in sums and (name in trains or kind == "GroupNorm")
    )
    device = candidate.manifest.environment.get("device") or {}
    return LimitsInForce(
        rules,
        limits,
        candidate.manifest.fed,
        matmul,
        max(matmul, conv),
        copies,
        summing,
        recurrent=frozenset(filter(torchs, RECURRENT)),
        on_device=isinstance(device, dict) and device.get("type", "cpu") != "cpu",
    )


#: What optimizers call a mean of squared gradients.
_MEANS_OF_SQUARES = ("exp_avg_sq", "square_avg")
_OF_BACKWARDS = frozenset((*TRAINING_ROLES, *NODE_ROLES))
#: What an update is given.
_GIVEN = frozenset((Role.PARAM_GRAD, Role.PARAM_BEFORE, Role.STATE_BEFORE))


@dataclass
class PairLimits:
    """The limits of pair after pair in execution order, and what they depend on.

    That is first the coarsest floating dtype in which the two sides have differed so far in a step.
    Values that agree bring no rounding error into later ones; neither do scales (float8_e8m0fnu).
    What changed between two steps may be made of the earlier one's values.
    """

    _coarsest: dict[tuple[int, int], str] = field(default_factory=dict)
    _terms: Terms = field(default_factory=Terms)
    # the dtypes of the parameters that an update adds to
    _parameters: dict[tuple[int, int, int, str], frozenset[str]] = field(default_factory=dict)
    # by a module's update: whether what it was given has golden's bits, by role
    _given: dict[tuple[int, int, int, str], dict[Role, bool]] = field(default_factory=dict)
    # the dtypes of what calls have given to a parameter's gradient: a wider one adds them up
    _added: dict[tuple[int, int, str], frozenset[str]] = field(default_factory=dict)
    # the limits, if no rules go by layer
    _of_dtypes: dict[tuple[str, str, str, str, Role, bool], Tolerance] = field(default_factory=dict)
    # the largest room so far for a device's kernel
    _kernels: dict[tuple[int, int], float] = field(default_factory=dict)
    # the largest error so far of a recurrent module's roundings
    _composed: dict[tuple[int, int], float] = field(default_factory=dict)

    def tolerance_for(self, pair: Pair, in_force: LimitsInForce) -> Tolerance:
        """The limits for the next pair in execution order."""
        golden, candidate = pair.golden, pair.candidate
        dtypes = _floating(
            golden.dtype if golden is not None else "",
            candidate.dtype if candidate is not None else "",
        )
        step = pair.record.rank, pair.record.step
        before = self._coarsest.get(step, "")
        if pair.record.role in (Role.BUFFER_BEFORE, Role.PARAM_CHANGED):
            earlier = self._coarsest.get((step[0], step[1] - 1), "")
            before = _coarsest_of(before, frozenset({earlier} - {""}))
        if dtypes and not same_bits(golden, candidate):
            self._coarsest[step] = _coarsest_of(before, dtypes, but="float8_e8m0fnu") or "float64"
        as_if_fed = golden is not None and self._is_as_if_fed(golden, candidate)
        if golden is None or candidate is None or golden.dtype not in dtypes:
            return EXACT
        if golden.role in (Role.PARAM_BEFORE, Role.PARAM_UPDATE):
            update = (*step, golden.call, parameter_of(golden))
            dtypes |= self._parameters.setdefault(update, dtypes)
        if golden.role in (Role.CALL_GRAD, Role.PARAM_GRAD):
            added = (*step, parameter_of(golden))
            dtypes |= self._added.setdefault(added, dtypes)
            self._added[added] = dtypes
        if as_if_fed:
            in_force, before = replace(in_force, fed=True), ""
        coarsest = _coarsest_of(before, dtypes)
        kind = candidate.type, candidate.role, as_if_fed
        alike = (golden.dtype, candidate.dtype, coarsest, *kind)
        tolerance = None if in_force.rules else self._of_dtypes.get(alike)
        if tolerance is None:
            tolerance = in_force.tolerance_for(golden, candidate, coarsest)
            self._of_dtypes[alike] = tolerance
        if candidate.name in in_force.sums:
            tolerance = tolerance.of_sums(self._terms.summed(golden), coarsest)
        # room in fixed limits only: a baseline's own error includes it
        if terms := self._terms.added(golden):
            tolerance = replace(tolerance.of_sums(terms, coarsest), summing=tolerance.summing)
        if in_force.on_device and candidate.dtype == "float32":
            tolerance = tolerance.of_kernels(self._of_kernels(golden, in_force.fed))
        if in_force.recurrent:
            tolerance = tolerance.of_roundings(self._of_roundings(golden, candidate, in_force))
        of_device = in_force.on_device and golden.role is Role.PARAM_UPDATE
        if of_device or _is_mean_of_squares(golden):
            tolerance = tolerance.of_another_order(ROUNDED_DECAY)
        return self._with_terms(golden, candidate.dtype, tolerance, in_force.fed, coarsest)

    def _with_terms(
        self, golden: Record, dtype: str, tolerance: Tolerance, fed: bool, coarsest: str
    ) -> Tolerance:
        """The limits with room for the rounding of the terms of golden's value."""
        if golden.role is Role.INPUT:
            self._terms.give(golden)
        if golden.role in (Role.INPUT, Role.OUTPUT):
            self._terms.spread(golden)
        if golden.role is Role.BUFFER_UPDATE:
            return self._terms.widened(tolerance, golden, dtype)
        if golden.role not in _OF_BACKWARDS:
            return tolerance
        if fed:
            times = self._terms.normalised(golden)
            tolerance = tolerance.of_terms(times, dtype)
            tolerance = tolerance.scaled(times if times >= CANCELS else 1.0)
            return self._terms.widened(tolerance, golden, dtype)
        widened = self._terms.widened(tolerance, golden, dtype).scaled(FREE_GRADIENTS)
        cancelled = self._terms.cancelled(golden)
        if cancelled == 1.0 or not tolerance.rel_l2:
            return widened
        room = FREE_GRADIENTS * cancelled * (widened.rel_l2 or 0.0) / tolerance.rel_l2
        return replace(widened, noise=fed_limit(DTYPES[coarsest].rounding) * room)

    def _is_as_if_fed(self, golden: Record, candidate: Record | None) -> bool:
        """Whether it is an update that was given golden's bits, so that its error is its own."""
        update = golden.rank, golden.step, golden.call, golden.name
        if golden.role in _GIVEN:
            given = self._given.setdefault(update, {})
            given[golden.role] = given.get(golden.role, True) and same_bits(golden, candidate)
        if golden.role is not Role.PARAM_UPDATE:
            return False
        given = self._given.get(update, {})
        return {Role.PARAM_GRAD, Role.PARAM_BEFORE} <= given.keys() and all(given.values())

    def _of_kernels(self, golden: Record, fed: bool) -> float:
        """How far off a kernel may be, in others' limits; free-running, all later values, too."""
        own = kernels_of(golden.type) if golden.role in OF_SUMS else 1.0
        if fed:
            return own
        step = golden.rank, golden.step
        self._kernels[step] = max(own, self._kernels.get(step, 1.0))
        return self._kernels[step]

    def _of_roundings(self, golden: Record, candidate: Record, in_force: LimitsInForce) -> float:
        """A recurrent module's relative L2 error in half types; free-running, later values' too."""
        step = golden.rank, golden.step
        own = 0.0
        if golden.type in in_force.recurrent and is_half(candidate.dtype):
            own = math.sqrt(self._terms.roundings(golden)) * floor(candidate.dtype)
        if in_force.fed:
            return own
        if golden.role not in PARAMETER_GRADIENTS:
            self._composed[step] = max(own, self._composed.get(step, 0.0))
        return max(own, self._composed.get(step, 0.0))


@lru_cache
def _floating(*dtypes: str) -> frozenset[str]:
    """The floating and complex ones of some dtypes."""
    return frozenset(name for name in dtypes if name in DTYPES and DTYPES[name].digits)


@lru_cache
def _coarsest_of(before: str, own: frozenset[str], but: str = "") -> str:
    """The type with the fewest digits; of several, one of the pair's own, the same in every run."""
    names = {before} | own - {but} if before else own - {but}
    return min(names, key=lambda name: (DTYPES[name].digits, name not in own, name), default="")


def _is_mean_of_squares(record: Record) -> bool:
    of_state = record.role in (Role.STATE_BEFORE, Role.STATE_AFTER)
    return of_state and record.path.endswith(_MEANS_OF_SQUARES)
