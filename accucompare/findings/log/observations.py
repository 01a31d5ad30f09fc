"""What a watch sees of a step, in order; the table of its last calls. Without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from accucompare.bundle.format import display_name
from accucompare.findings.log.events import Direction, Frame, TensorRange
from accucompare.findings.log.watch_remark import WatchRemark
from accucompare.numbers import DTYPES


class What(Enum):
    """What can be seen."""

    BEGAN = "began"  # a module call: its inputs
    ENDED = "ended"  # a module call: its outputs
    OPERATOR = "operator"  # an operator called in a module's own code: its inputs and outputs
    POINT = "point"  # a point of the user's own: one tensor
    FLAG = "flag"  # the device's overflow flag went up since the last look
    ARRIVED = "arrived"  # the gradient of an outermost call's output
    # what arrives at an operator's backward; the call is where the operator's output was used
    SUM = "sum"
    GRADIENT = "gradient"  # what an operator's backward gives
    SECOND = "second"  # likewise, in a backward through another backward's gradients
    LOSS = "loss"  # likewise, of an operator called outside of the model, after it
    HOOKED = "hooked"  # what the user's hooks on a parameter have made of its gradient
    # a parameter's gradient: with several ranks this rank's own before the sum, else after the
    # backward
    PARAMETER = "parameter"


class ModuleCall(NamedTuple):
    """A module call; the one without a module stands for what is outside of the model."""

    name: str
    call: int
    type: str
    parent: tuple[str, int] | None

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.call


OUTSIDE = ModuleCall("", 0, "", None)


@dataclass(eq=False)
class StepObservation:
    """One thing that was seen."""

    # what, place: what, and of which module call
    what: What
    place: ModuleCall
    tensors: list[TensorRange] = field(default_factory=list)
    operator: str = ""  # of an operator or its gradient, its name
    line: str = ""  # of an operator, the source line that called it
    # of an operator's gradient, the last child that its call's own code had called; of a point, its
    # label; of a flag, ``before`` and the child, if it went up before one
    near: str = ""
    # of a parameter's gradient, the parameter's name in its module, which is the place
    parameter: str = ""
    order: int = 0
    # paths of tensors that could not be looked at
    unseen: list[WatchRemark | str] = field(default_factory=list)
    # of a call's beginning or end, whether this rank has talked to others since the last of that
    # kind
    talked: bool = False

    @property
    def parameter_name(self) -> str:
        """The qualified name of the parameter; empty without one."""
        if self.place.name and self.parameter:
            return f"{self.place.name}.{self.parameter}"
        return self.parameter

    def of(self, role: str) -> list[TensorRange]:
        return [tensor for tensor in self.tensors if tensor.role == role]


def within(child: ModuleCall, parent: ModuleCall) -> str:
    """A child's name as its parent's code knows it."""
    prefix = f"{parent.name}." if parent.name else ""
    name = child.name.removeprefix(prefix) if child.name.startswith(prefix) else child.name
    return display_name(name) + (f" call {child.call}" if child.call else "")


NAN, PLUS, MINUS, SATURATED, FLAG = "NaN", "+Inf", "-Inf", "saturated", "overflow flag"


@dataclass(frozen=True)
class WatchLimits:
    """What counts as a finding."""

    # whether the output of the module of this name may be infinite or NaN
    allow: Callable[[str], bool] = lambda name: False
    saturates: bool = False  # whether the device gives the largest number in place of Inf
    near: float = 4.0  # an input is near its type's limit from a ``near``-th of it on
    # whether the module of this name fills its output with this Inf: logits of excluded choices
    # with -Inf, or a running minimum with +Inf
    fills: Callable[[str, str], bool] = lambda name, kind: False


def kinds_of(tensors: Iterable[TensorRange], saturates: bool = False) -> frozenset[str]:
    """The kinds of values that are not finite.

    ``saturates``: whether the device gives the largest number in place of Inf. The lowest number
    does not count: masks are made of it."""
    kinds: set[str] = set()
    for each in tensors:
        low, high = float(each.low), float(each.high)
        largest = DTYPES[each.dtype].largest if saturates and each.dtype in DTYPES else 0.0
        shown = (
            (NAN, low != low or high != high),
            (PLUS, high == math.inf),
            (MINUS, low == -math.inf),
            (SATURATED, 0 < largest == high),
        )
        kinds.update(kind for kind, there in shown if there)
    return frozenset(kinds)


def near_the_limit(dtype: str, low: float, high: float, near: float) -> bool:
    """Whether finite values come within a factor of their type's largest number.

    Negative values within 1 % of the limit do not count: masks are made of the lowest number."""
    largest = DTYPES[dtype].largest if dtype in DTYPES else 0.0
    return largest > 0 and (
        largest / near <= high < float("inf") or -0.99 * largest < low <= -largest / near
    )


def frames_of(observations: Iterable[StepObservation], until: int | None = None) -> list[Frame]:
    """A frame for each ended module call and each operator's gradient, in the order in which they
    ended. ``until``: the last place in the step; a call still running there is shown as far as it
    has come."""
    running: dict[tuple[str, int], StepObservation] = {}
    frames = []
    for each in observations:
        if until is not None and each.order > until:
            break
        if each.what is What.BEGAN:
            running[each.place.key] = each
        elif each.what is What.ENDED:
            began = running.pop(each.place.key, None)
            frames.append(_frame(each, began))
        elif (each.what is What.GRADIENT and each.tensors) or each.order == until:
            frames.append(_frame(each, None))
    if until is not None and (not frames or frames[-1].order != until):
        frames += [_frame(began, began) for began in running.values() if began.order == until]
    return frames


def _frame(each: StepObservation, began: StepObservation | None) -> Frame:
    given = [] if began is None else began.tensors
    return Frame(
        each.order,
        each.place.name,
        each.place.call,
        each.place.type,
        Direction.BACKWARD
        if each.what in (What.GRADIENT, What.ARRIVED, What.PARAMETER)
        else Direction.FORWARD,
        each.operator or each.parameter_name or each.near,
        [*given, *(each.tensors if each is not began else [])],
    )
