"""A module call, and what a recorder keeps while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from accucompare.live.autograd import Span
from accucompare.live.modules import Call
from accucompare.recorder.feeding import Lent
from accucompare.recorder.recording.arguments import Arguments
from accucompare.recorder.recording.operators import Operators


@dataclass(eq=False)
class RecordedCall(Call):
    """What is not given when a call is made is a default of the class: one is made in every hook.

    Attributes:
        lent: of a fed capture.
        arguments: what it is given, where writes into that are recorded.
        returned: what the forward returned, if it has, before any other hook saw it.
        operators: of a capture of operators, where they are recorded.
        span: of a capture of the backward: the nodes of autograd's graph that it makes.
        notes_lines: whether the lines are noted of the nodes that it makes.
        again: whether it was recorded in its first run, and is run again by activation
            checkpointing.
    """

    lent: Lent | None = field(default=None, init=False)
    arguments: Arguments | None = field(default=None, init=False)
    returned: tuple[Any, ...] = field(default=(), init=False)
    operators: Operators | None = field(default=None, init=False)
    span: Span[RecordedCall] | None = field(default=None, init=False)
    notes_lines: bool = field(default=False, init=False)
    again: bool = field(default=False, init=False)
