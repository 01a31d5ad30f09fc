"""The operator level of a backward: what the autograd nodes of chosen module calls take and give.

A node stands for the operator that made it in the forward. Its key is its module call, its name and
its number among the call's nodes of that name, in the order in which the backward runs them. All
three are in a record's ``name``, ``call`` and ``path`` (``AddmmBackward0#1.mat2``). The operator's
source line is the record's ``source_line``.

**Fed**, a node gets golden's gradients, and its results are exchanged for golden's, so its error is
its own. Nodes are matched to golden's by the order of their names and lines.

Not recorded are nodes that only pass on, reorder or reshape what they get: a fault in them shows at
the next node. Nor are autograd's own sums of several uses, and nodes of a second backward
(``create_graph=True``).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from accucompare.bundle.format import NODE_ROLES, Record, Role
from accucompare.compare.pairing import numbered_nodes
from accucompare.live.autograd import PASSING_ON, line_of
from accucompare.live.modules import Call
from accucompare.live.operators import differentiated
from accucompare.recorder.feeding import IN_PLACE_OF, FedPlace, Feeding
from accucompare.recorder.recording.guard import Guard, guarded

_C = TypeVar("_C", bound=Call)

_Grads = tuple[torch.Tensor | None, ...]


@dataclass(eq=False)
class _Met:
    """The nodes of one module call that backwards have reached, by their numbers in autograd."""

    # name and source line of the nodes that have no identity yet
    waiting: dict[int, tuple[str, str]] = field(default_factory=dict)
    # identity (``AddmmBackward0#1``) and source line of the others
    known: dict[int, tuple[str, str]] = field(default_factory=dict)
    # the nodes whose gradients are replaced by golden's
    golden: set[int] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)


class Nodes(Generic[_C]):
    """The nodes' part of a recorder."""

    def __init__(
        self,
        guard: Guard,
        wanted: Callable[[_C], bool],
        add: Callable[[_C, Role, str, torch.Tensor, str, str], None],
        feed: Feeding | None,
    ) -> None:
        self._guard = guard
        self._wanted = wanted  # whether the nodes of a call are recorded
        # records a gradient: call, role, path, value, the node's name and its source line
        self._add = add
        self._feed = feed  # where golden's gradients come from; ``None`` if the backward is not fed
        self._met: dict[_C, _Met] = {}  # keeps each call until the step ends

    def next_step(self) -> None:
        self._met.clear()

    def follow(self, node: Any, number: int, call: _C) -> Iterable[Any]:
        """A backward will reach this call's node ``number``. Returns the handles of new hooks."""
        name = node.name()
        if name in PASSING_ON or name == IN_PLACE_OF or not self._wanted(call):
            return []
        met = self._met.setdefault(call, _Met())
        if number not in met.known:
            met.waiting[number] = name, line_of(node, folders=1)
        arguments = differentiated(name, len(node.next_functions))
        return (
            node.register_prehook(
                functools.partial(
                    guarded, self._guard, self._arrives, call.name, call, number, name
                )
            ),
            node.register_hook(
                functools.partial(
                    guarded, self._guard, self._gives, call.name, call, number, name, arguments
                )
            ),
        )

    def _arrives(self, call: _C, number: int, name: str, grads: _Grads) -> _Grads | None:
        parts = [""] if len(grads) == 1 else [str(part) for part in range(len(grads))]
        return self._exchanged(call, Role.OP_GRAD_OUTPUT, number, name, parts, grads)

    def _gives(
        self,
        call: _C,
        number: int,
        name: str,
        arguments: Iterable[str],
        given: _Grads,
        arrived: _Grads,
    ) -> _Grads | None:
        return self._exchanged(call, Role.OP_GRAD_INPUT, number, name, arguments, given)

    def _exchanged(
        self, call: _C, role: Role, number: int, name: str, parts: Iterable[str], grads: _Grads
    ) -> _Grads | None:
        """Record gradients; returns golden's if they replace them."""
        met = self._met.get(call)
        if met is None:
            return None  # its step has ended
        if met.waiting:
            self._number(call, met)
        identity, line = met.known[number]
        paths = [f"{identity}.{part}" if part else identity for part in parts]
        for path, grad in zip(paths, grads, strict=True):
            if grad is not None:
                self._add(call, role, path, grad, name, line)
        if self._feed is None or number not in met.golden:
            return None
        place = FedPlace(self._guard.step, call.name, call.index, role)
        return tuple(
            None if grad is None else self._feed.gradient(place, path, grad)
            for path, grad in zip(paths, grads, strict=True)
        )

    def _number(self, call: _C, met: _Met) -> None:
        """Give each new node its identity before any runs. The last one made runs first."""
        counts: Counter[str] = Counter()
        own: dict[int, tuple[str, int, str]] = {}
        for number, (name, line) in sorted(met.waiting.items(), reverse=True):
            own[number] = name, counts[name], line
            counts[name] += 1
        records = (
            []
            if self._feed is None
            else self._feed.operators_of(self._guard.step, call.name, call.index, NODE_ROLES)
        )
        matched = self._matched(met, records, own)
        for number, (name, _, line) in own.items():
            met.known[number] = f"{name}#{matched.get(number, met.counts[name])}", line
            if number in matched:
                met.golden.add(number)
                continue
            met.counts[name] += 1
            if records and self._feed is not None:  # else golden was captured without nodes
                place = FedPlace(self._guard.step, call.name, call.index, Role.OP_GRAD_OUTPUT)
                self._feed.pass_on(
                    place, met.known[number][0], "golden's backward runs no such node here"
                )
        met.waiting.clear()

    def _matched(
        self, met: _Met, records: Sequence[Record], own: Mapping[int, tuple[str, int, str]]
    ) -> dict[int, int]:
        """The new nodes that golden has, with golden's numbers. The others get none of these."""
        taken = {met.known[number][0] for number in met.golden}
        golden = [
            record
            for record in records
            if f"{record.operator[0]}#{record.operator[1]}" not in taken
        ]
        theirs = {record.operator for record in golden}
        numbers = numbered_nodes(golden, own.values()) if golden else {}
        for name, number in (record.operator for record in records):
            met.counts[name] = max(met.counts[name], number + 1)
        found = {
            number: (name, numbers.get((name, place), -1))
            for number, (name, place, _) in own.items()
        }
        return {number: operator[1] for number, operator in found.items() if operator in theirs}
