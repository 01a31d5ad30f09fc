"""Observations of a running step, in order; their numbers are read when the step ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch

from accucompare.findings.log import OUTSIDE, ModuleCall, StepObservation, WatchRemark, What, remark
from accucompare.live.around import collectives
from accucompare.live.modules import Call, Listener, Modules
from accucompare.watcher.looking.extrema import Extrema, Meter, is_hidden
from accucompare.watcher.looking.own_operators import OwnOperators, OwnPart

#: Observations whose tensors frames show.
_WITH_FRAMES = (What.BEGAN, What.ENDED, What.GRADIENT, What.OPERATOR)


@dataclass(eq=False)
class WatchedCall(Call):
    """A running call."""

    place: ModuleCall = OUTSIDE  # which one it is
    first: int = 0  # the number of its first autograd node
    # its calls so far, by name, each with the number of the first autograd node after it
    children: list[tuple[int, str]] = field(default_factory=list)
    operators: OwnOperators | None = None  # sees the operators of an outermost call


@dataclass(eq=False)
class Note(StepObservation):
    """An observation whose numbers are not read yet; ``parts`` are (role, path, extrema)."""

    parts: list[tuple[str, str, Extrema]] = field(default_factory=list)

    def observation(self) -> StepObservation:
        """The observation with its numbers."""
        self.tensors = [extrema.range_of(role, path) for role, path, extrema in self.parts]
        return self


@dataclass
class Scope:
    """What is looked at in a step."""

    frames: bool = False  # smallest magnitudes, NaN and Inf counts of inputs, outputs and weights
    underflow: bool = False  # shares of small values among the outputs
    operators: bool = False  # those called in the modules' own code
    # the source lines of operators, for the backward; needs torch's anomaly mode
    lines: bool = False


class NoteListener(Listener[WatchedCall]):
    """Keeps what hooks see, in order."""

    def __init__(
        self,
        modules: Modules,
        meter: Meter,
        overflowed: Callable[[], bool | None] | None = None,
        distributed: bool = False,
    ) -> None:
        super().__init__(modules, WatchedCall)
        self.notes: list[Note] = []  # what was seen in this step, in order
        self.scope = Scope()  # what is looked at
        self.errors: list[str] = []  # what went wrong in a hook; it never reaches the model
        # by module name, what could not be looked at in this step
        self.unseen: dict[str, WatchRemark | str] = {}
        self.meter = meter
        self._distributed = distributed
        self._collectives: int | None = 0  # how often this rank has talked to others
        self._overflowed = overflowed

    def idle(self) -> bool:
        return not self.listening or torch._C._get_tracing_state() is not None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """See nothing meanwhile."""
        before, self.listening = self.listening, False
        try:
            yield
        finally:
            self.listening = before

    def failed(self, error: Exception, name: str) -> None:
        self.unseen.setdefault(name, remark("hook-error"))
        self.errors.append(f"step {self.step}, {name or '(root)'}: {type(error).__name__}: {error}")

    def note(
        self,
        what: What,
        place: ModuleCall,
        parts: Iterable[OwnPart],
        operator: str = "",
        line: str = "",
        near: str = "",
        parameter: str = "",
    ) -> Note:
        """Note one thing, and begin to look at its tensors. Arguments as in ``StepObservation``."""
        frames = self.scope.frames and what in _WITH_FRAMES
        underflow = self.scope.underflow and what in (What.ENDED, What.GRADIENT)
        extrema: list[tuple[str, str, Extrema]] = []
        hidden: list[WatchRemark | str] = []
        look = self.meter.look
        for role, path, value in parts:
            if (each := look(value, frames, underflow)) is not None:
                extrema.append((role, path, each))
            elif is_hidden(value):
                hidden.append(f"{role} {path}".rstrip())
        note = Note(
            what, place, [], operator, line, near, parameter, len(self.notes), parts=extrema
        )
        if self._distributed and what in (What.BEGAN, What.ENDED):
            before, self._collectives = self._collectives, collectives()
            note.talked = self._collectives != before
        if hidden:
            note.unseen = hidden
            if place.type:
                self.unseen.setdefault(place.name, hidden[0])
        self.notes.append(note)
        return note

    def look_at_flag_backward(self, place: ModuleCall, operator: str) -> None:
        if self._overflowed is not None and self._overflowed():
            self.note(What.FLAG, place, (), near=f"in the backward of {operator}")
