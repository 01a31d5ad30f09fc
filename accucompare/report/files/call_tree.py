"""A comparison's rows as nested calls in execution order: what the exports draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from accucompare.bundle.format import GROUP_OF, OPERATOR_ROLES, Role, display_name
from accucompare.compare.rows import Status
from accucompare.report.files.written_comparison import WrittenRow
from accucompare.selection import RoleGroup, Word


class CallStage(Word):
    """A part of a step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


_STAGE = {
    RoleGroup.FORWARD: CallStage.FORWARD,
    RoleGroup.BACKWARD: CallStage.BACKWARD,
    RoleGroup.GRADS: CallStage.UPDATE,
    RoleGroup.UPDATE: CallStage.UPDATE,
}
_MOST_DEPTH = 200  # nested calls; real models have some ten
_Key = tuple[Any, ...]  # rank, step, stage, name, call; and the operator
#: Roles of values that go into a call.
ENTERS = (
    Role.INPUT,
    Role.GRAD_OUTPUT,
    Role.COMPUTED_BUFFER,
    Role.BUFFER_BEFORE,
    Role.OP_INPUT,
    Role.OP_GRAD_OUTPUT,
)


@dataclass
class CallNode:
    """A call of a module, or of an operator in its own code; or the update of its parameters."""

    # name, call: the module's, as in a record
    name: str
    call: int
    operator: str = ""  # with its number, ``aten.bmm.default#0``; ``""`` for the module's call
    type: str = ""  # the class of the module
    rows: dict[int, WrittenRow] = field(default_factory=dict)  # its rows, by their numbers (from 1)
    inside: list[CallNode] = field(default_factory=list)  # the calls that it made

    def title(self, around: CallNode | None) -> str:
        """Its name within its caller, ``attn.c_proj``, and its call index unless 0."""
        if self.operator:
            return self.operator
        name = (
            self.name
            if around is None or not around.name
            else self.name.removeprefix(f"{around.name}.")
        )
        return f"{display_name(name)} call {self.call}" if self.call else display_name(name)


@dataclass
class Pass:
    """The calls of one stage of a step, on one rank."""

    rank: int
    step: int
    stage: CallStage
    calls: list[CallNode] = field(default_factory=list)


def passes(rows: Sequence[WrittenRow]) -> list[Pass]:
    """All calls by rank, step and stage, in execution order. Modules never called are left out."""
    found: dict[tuple[int, int, CallStage], Pass] = {}
    calls: dict[_Key, CallNode] = {}
    callers: dict[_Key, _Key] = {}
    for number, row in enumerate(rows, 1):
        if row.role is None:
            continue
        place = (row.rank, row.step, _STAGE[GROUP_OF.get(row.role, RoleGroup.FORWARD)])
        found.setdefault(place, Pass(*place))
        module = (*place, row.name, row.call)
        key: _Key = module
        if row.role in OPERATOR_ROLES:
            operator = row.type + row.path.removeprefix(row.type).partition(".")[0]
            key = (*module, operator)
            call = calls.setdefault(key, CallNode(row.name, row.call, operator))
            callers[key] = module
        else:
            call = calls.setdefault(key, CallNode(row.name, row.call))
            call.type = row.type
            if row.parent is not None:
                callers[key] = (*place, *row.parent)
        call.rows[number] = row
    for key, call in calls.items():
        rank, step, stage, *_ = key
        caller = calls.get(callers.get(key, ()))
        if caller is None or _too_deep(callers, key):
            found[rank, step, stage].calls.append(call)
        else:
            caller.inside.append(call)
    return [
        found[place]
        for place in sorted(found, key=lambda place: (*place[:2], list(CallStage).index(place[2])))
    ]


def _too_deep(callers: dict[_Key, _Key], key: _Key) -> bool:
    """Whether a call is nested too deeply to draw, or in itself: only in damaged files."""
    for _ in range(_MOST_DEPTH):
        if key not in callers:
            return False
        key = callers[key]
    return True


def worst(rows: Iterable[WrittenRow]) -> WrittenRow | None:
    """The most telling row: a failing one, then furthest over its limit, then from golden."""

    def rank(row: WrittenRow) -> tuple[float, ...]:
        status = (Status.FAIL, Status.NOT_COMPARED, Status.PASS).index(row.status)
        return -status, *(
            -1.0 if number is None or math.isnan(number) else number
            for number in (row.used, row.rel_l2)
        )

    return max(rows, key=rank, default=None)
