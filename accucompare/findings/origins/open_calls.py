"""A running module call in a step: the kinds of values that it can have met, and their makers."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from accucompare.findings.log import (
    MINUS,
    NAN,
    PLUS,
    Finding,
    ModuleCall,
    StepObservation,
    TensorRange,
)
from accucompare.numbers import DTYPES

INFINITE = frozenset((PLUS, MINUS))

#: Operators that give -Inf outside of a tensor, and operators that add or cast masks.
_POOLS = re.compile(r"aten\.(adaptive_|fractional_)?max_pool")
_SUMS = re.compile(r"aten\.(add|sub|_to_copy|copy)_?\.")
#: Operators that turn an Inf's sign; any other operator has computed its Inf from something else.
_TURNS = re.compile(r"aten\.(neg|negative|sub|rsub|mul|div|true_divide|foreach_neg)_?\.")


@dataclass
class OpenCall:
    """A module call that is running, or what is outside of all of them.

    Kinds are those of values that are not finite: NaN, +Inf, -Inf, saturated."""

    place: ModuleCall
    inputs: StepObservation | None  # what it was given; ``None`` outside
    caller: OpenCall | None = None
    arrived: frozenset[str] = frozenset()  # the kinds among its inputs
    # the kinds that its own code may have met: ``arrived``, what its children gave, and what it was
    # seen to make
    met: set[str] = field(default_factory=set)
    # the met kinds that a finding tells of already
    explained: set[str] = field(default_factory=set)
    # by kind, the finding held back until the value does harm: made by this call's own code or,
    # outside of all calls, given to the model
    pending: dict[str, Finding] = field(default_factory=dict)
    # the pending kinds that something was filled with, as a running minimum is with +Inf
    filled: set[str] = field(default_factory=set)
    # by kind, the operator that made it, if operators were seen
    makers: dict[str, StepObservation] = field(default_factory=dict)
    # by kind, an operator that gave it without a tensor input that had it, such as a mask of -Inf
    # made of a number
    sources: dict[str, StepObservation] = field(default_factory=dict)
    # by kind, an operator that got it from a tensor that is neither an input of the call nor made
    # in it
    brought: dict[str, StepObservation] = field(default_factory=dict)
    last: ModuleCall | None = None  # the child that was called last

    @property
    def given(self) -> list[TensorRange]:
        return self.inputs.of("input") if self.inputs is not None else []

    def around(self, kind: str) -> list[OpenCall]:
        """This call and those around it, up to the one whose own code made the Inf given to all
        within."""
        around: list[OpenCall] = [self]
        while (
            (caller := around[-1].caller) is not None
            and kind in around[-1].arrived
            and kind not in around[-1].pending
        ):
            around.append(caller)
        return around

    def maker_of(self, kinds: Collection[str]) -> StepObservation | None:
        """The operator that a value of these kinds comes from, NaN first: its maker or first
        holder."""
        makers = {**self.brought, **self.sources, **self.makers}
        return next(
            (makers[kind] for kind in (NAN, *kinds) if kind in kinds and kind in makers), None
        )

    def saw(
        self,
        observation: StepObservation,
        arrival: frozenset[str],
        given: frozenset[str],
        kinds: frozenset[str],
    ) -> None:
        """An operator of its own code, by the kinds that it was given, numbers included or not, and
        those that it gave."""
        new, infinite = kinds - arrival, arrival & INFINITE
        computed = next(
            (
                self.makers[kind]
                for kind in (PLUS, MINUS)
                if kind in infinite and kind in self.makers
            ),
            None,
        )
        if NAN in new and NAN not in self.makers:
            self.makers[NAN] = computed or observation
        for kind in kinds - given:
            self.sources[kind] = observation
        for kind in (kinds & given) - self.met - self.makers.keys() - self.sources.keys():
            self.brought.setdefault(kind, observation)
        if NAN in arrival or (infinite and computed is None and _TURNS.match(observation.operator)):
            return  # of a NaN, or of an Inf that something was filled with
        filled = {MINUS} if _is_mask(observation) else set()
        self.sources.update(dict.fromkeys(new & filled, observation))
        # the last one: an earlier one may have done no harm
        self.makers.update(dict.fromkeys(new - {NAN} - filled, computed or observation))


def explain_kinds(kinds: Iterable[str], *calls: OpenCall) -> None:
    """From now on these calls' values of some kinds are known to come from a finding."""
    for call in calls:
        call.met |= set(kinds)
        call.explained |= set(kinds)


def _is_mask(observation: StepObservation) -> bool:
    """Whether an operator that gives -Inf makes a mask.

    It does without inputs; if the lowest number was added or cast; if something was multiplied by a
    number that its type cannot hold; and for whole numbers and booleans, which nobody looks at."""
    given = observation.of("input")
    if _POOLS.match(observation.operator) or not given:
        return True
    lowest = [
        -DTYPES[each.dtype].largest for each in observation.of("output") if each.dtype in DTYPES
    ]
    if any(
        not each.shape
        and each.dtype == "float64"
        and float(each.low) < min(lowest, default=-math.inf)
        for each in given
    ):
        return True
    return _SUMS.match(observation.operator) is not None and any(
        each.dtype in DTYPES
        and -DTYPES[each.dtype].largest <= float(each.low) <= -0.99 * DTYPES[each.dtype].largest
        for each in given
    )
