"""A module call, and what a recorder keeps while it runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from accucompare.bundle.format import Role, Shard
from accucompare.live.autograd import Span
from accucompare.live.layouts import Layouts
from accucompare.live.modules import Call
from accucompare.live.values import leaves
from accucompare.recorder.feeding import CallsOfGolden, Lent
from accucompare.recorder.recording.arguments import Arguments
from accucompare.recorder.recording.operators import Operators
from accucompare.recorder.recording.own_choices import ChoicesOfCall


@dataclass(eq=False)
class RecordedCall(Call):
    """A module call with defaults in the class, not in ``__init__``: every hook makes one."""

    # of a fed capture: golden's calls in its place, if one side makes it in parts
    golden: CallsOfGolden | None = field(default=None, init=False)
    lent: Lent | None = field(default=None, init=False)  # of a fed capture
    # set if writes into arguments are recorded
    arguments: Arguments | None = field(default=None, init=False)
    # what the forward returned, before any other hook saw it
    returned: tuple[Any, ...] = field(default=(), init=False)
    operators: Operators | None = field(default=None, init=False)  # set if operators are recorded
    choices: ChoicesOfCall | None = field(default=None, init=False)  # what its own code chose
    # the nodes that the call makes in autograd's graph, if the backward is recorded
    span: Span[RecordedCall] | None = field(default=None, init=False)
    # whether the source lines of these nodes are noted
    notes_lines: bool = field(default=False, init=False)
    # whether activation checkpointing runs it again, after a recorded first run
    in_second_run: bool = field(default=False, init=False)
    # the forward's own distributed tensors, by path, from before other hooks saw them
    placed: dict[str, Any] | None = field(default=None, init=False)
    # how the gradients of its plain inputs and outputs lie on the ranks, by role and path, where
    # that is known
    gradients: dict[tuple[Role, str], Shard] | None = field(default=None, init=False)

    def keep_placements(self, layouts: Layouts, output: Any) -> None:
        """Note which distributed tensors the plain parts of the output are local parts of."""
        placed, self.placed = self.placed, None
        if placed:
            for path, part in leaves(output):
                if path in placed:
                    layouts.keep(part, placed[path])

    def note_gradients(
        self, layouts: Layouts, role: Role, parts: Iterable[tuple[str, Any]]
    ) -> None:
        """Note how the gradients of plain inputs or outputs lie on the ranks."""
        for path, part in parts:
            if isinstance(part, torch.Tensor) and part.requires_grad:
                shard = layouts.of_gradient(part)
                if shard is not None:
                    self.gradients = {**(self.gradients or {}), (role, path): shard}
