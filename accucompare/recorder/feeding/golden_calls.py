"""Which of golden's calls a call is a part of, or makes up alone, if one side makes it in parts.

The shapes of what arrives tell, in the order of the calls: see ``compare.fusions``. The calls that
such a call makes inside are parts, too."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace

from accucompare.bundle.format import GRADIENT_ROLES, Box, GlobalRecord, Layout, Record, Role
from accucompare.compare.constants import TELLS_LAYOUT
from accucompare.compare.fusions import (
    Part,
    box_of_part,
    made_of_calls,
    next_part,
    side_by_side,
    starts_of,
)
from accucompare.recorder.feeding.misfits import is_all_here

_Shape = tuple[int, ...]
#: (name, call index).
_Call = tuple[str, int]

#: The role of the value that a gradient belongs to.
_FORWARD = {Role.GRAD_OUTPUT: Role.OUTPUT, Role.GRAD_INPUT: Role.INPUT}


class CallsOfGolden(NamedTuple):
    """The calls of golden's that are in place of a call."""

    calls: tuple[int, ...]
    is_part: bool  # whether the call is one of several that make up these
    cut: _Call  # the call that is in parts: this one, or one around it


@dataclass
class _Cursor:
    """How far the calls in one call have come: the next of golden's, and what of it is taken."""

    at: int = 0
    taken: list[Part] = field(default_factory=list)

    def go_on(self, many: int = 1) -> None:
        self.at, self.taken = self.at + many, []


class GoldenCalls:
    """The calls of a step that are in parts on one side."""

    def __init__(
        self,
        input_of: Callable[[str, int, str], Record | None],
        read: Callable[[Record], torch.Tensor],
    ) -> None:
        self._input_of = input_of  # golden's input by module, call and path
        self._read = read  # a record's values
        # calls that gave a part as well, or the last of them; and those that gave all
        self._certain: set[_Call] = set()
        self._refuted: set[_Call] = set()
        self._inside: dict[_Call | None, dict[str, list[int]]] = {}
        self._made: dict[_Call, CallsOfGolden | None] = {}
        self._cursors: dict[tuple[_Call | None, str], _Cursor] = defaultdict(_Cursor)
        self._seen: Counter[tuple[_Call | None, str]] = Counter()
        # by golden's call, role and path: where each call's part lies
        self._parts: dict[tuple[_Call, Role, str], dict[int, Part]] = {}
        self._any = False

    def load(self, records: Iterable[tuple[str, Record]], name_of: Callable[[str], Any]) -> None:
        """Take golden's records of a step, each with its module's name."""
        self.end_step()
        found: dict[_Call | None, dict[str, dict[int, None]]] = {}
        for name, record in records:
            if record.role is Role.INPUT or record.role is Role.OUTPUT:
                parent = record.parent and (name_of(record.parent[0]), record.parent[1])
                found.setdefault(parent, {}).setdefault(name, {})[record.call] = None
        self._inside = {
            parent: {name: [*calls] for name, calls in held.items()}
            for parent, held in found.items()
        }

    def end_step(self) -> None:
        for kept in (self._inside, self._made, self._cursors, self._seen, self._parts):
            kept.clear()
        self._certain.clear()
        self._refuted.clear()
        self._any = False

    def begins(
        self, name: str, call: int, parent: _Call | None, given: Sequence[tuple[str, Any]]
    ) -> CallsOfGolden | None:
        """What a call is in golden; ``None`` where it is not in parts."""
        own = name, call
        if own not in self._made:
            self._made[own] = found = self._found(own, parent, given)
            self._any = self._any or found is not None
        return self._made[own]

    def _found(
        self, own: _Call, parent: _Call | None, given: Sequence[tuple[str, Any]]
    ) -> CallsOfGolden | None:
        (name, call), around = own, self._made.get(parent) if parent else None
        parents = (
            [parent]
            if around is None or parent is None
            else [(parent[0], each) for each in around.calls]
        )
        lists = [self._inside.get(each, {}).get(name, []) for each in parents]
        if around is not None and (around.is_part or len(around.calls) > 1):
            at = self._seen[parent, name]
            self._seen[parent, name] += 1
            if all(len(each) > at for each in lists):
                return around._replace(calls=tuple(each[at] for each in lists))
            return None
        tensors = {path: part for path, part in given if is_all_here(part)}
        found = self._next(own, lists[0], self._cursors[parent, name], tensors)
        if found is None or found.is_part or len(found.calls) > 1:
            return found
        return found if self._any and found.calls != (call,) else None

    def _next(
        self,
        own: _Call,
        goldens: Sequence[int],
        cursor: _Cursor,
        tensors: Mapping[str, torch.Tensor],
    ) -> CallsOfGolden | None:
        """The next of golden's calls, and how far that is taken."""
        while cursor.at < len(goldens):
            name, cut = own[0], (own[0], goldens[cursor.at])
            held = {path: self._input_of(*cut, path) for path in tensors}
            shapes = {path: tuple(tensor.shape) for path, tensor in tensors.items()}
            others = (
                (path, record)
                for path, record in held.items()
                if record is not None
                and record.layout is Layout.STRIDED
                and record.shape != shapes[path]
            )
            odd, began = next(others, None), bool(cursor.taken)
            if odd is None:
                cursor.go_on()
                if began:  # and is not filled
                    continue
                return CallsOfGolden(cut[1:], False, own)
            (path, whole), shape = odd, shapes[odd[0]]
            found = next_part(whole.shape, cursor.taken, shape)
            if found is not None and math.prod(shape) < math.prod(whole.shape):
                part = box_of_part(whole, found[0], replace(whole, shape=shape), False)
                if part is not None and self._is_part(held, tensors, path, part):
                    cursor.taken.append(found)
                    taken = sum(math.prod(own) for _, own in cursor.taken)
                    if taken == math.prod(whole.shape):
                        cursor.go_on()
                        self._certain.add(own)
                    return CallsOfGolden(cut[1:], True, own)
            if began:
                cursor.go_on()
                continue
            records = (self._input_of(name, each, path) for each in goldens[cursor.at :])
            starts = starts_of(shape, (None if each is None else each.shape for each in records))
            many = 1 if starts is None else len(starts)
            self._certain.add(own)
            cursor.go_on(many)
            return CallsOfGolden(tuple(goldens[cursor.at - many : cursor.at]), False, own)
        return None

    def _is_part(
        self,
        held: Mapping[str, Record | None],
        tensors: Mapping[str, torch.Tensor],
        cut: str,
        box: Box,
    ) -> bool:
        """Whether a call is given a part of golden's: fewer rows may be others, or all there are.

        Args:
            held, tensors: golden's inputs, and what is given, by path.
            cut, box: the path of which it has a part, and that part.
        """
        for path, record in held.items():
            tensor = tensors[path].detach()
            if record is None or record.member is None:
                continue
            if path == cut:
                of_part = made_of_calls(record, [box], shape=tuple(tensor.shape))
                golden, own = self._read(of_part), tensor.cpu()
                if tensor.is_floating_point() or tensor.is_complex():
                    off = (own.double() - golden.double()).norm()
                    if not off <= TELLS_LAYOUT * golden.double().norm():
                        return False
                elif 2 * int((own == golden).sum()) < own.numel():
                    return False
            elif (
                record.shape == tuple(tensor.shape)
                and not tensor.is_floating_point()
                and not torch.equal(tensor.cpu(), self._read(record).to(tensor.dtype))
            ):
                return False  # such as the counts of the rows
        return True

    def part(
        self, name: str, call: int, of: CallsOfGolden, records: Sequence[Record], shape: _Shape
    ) -> Record | None:
        """Golden's value of a call in parts; ``None`` if nothing tells which part that is.

        Args:
            records: what golden's calls have of it.
            shape: of the call's own.
        """
        first = records[0]
        role = _FORWARD.get(first.role, first.role)
        in_parts = of.is_part or len(of.calls) > 1
        certain = of.cut in self._certain and of.cut not in self._refuted
        if {each.shape for each in records} == {shape}:
            if not in_parts:
                return first
            if first.role is Role.OUTPUT and shape:
                self._refuted.add((name, call))
            # numbers, such as the loss of some tokens, are the part's own
            summed = first.role is Role.GRAD_INPUT and (certain or not of.is_part)
            return None if summed or not shape else first
        if len(records) > 1:
            return _named(side_by_side(records, shape))
        path = first.path.partition("#")[0] if first.role in GRADIENT_ROLES else first.path
        held = self._parts.setdefault(((name, of.calls[0]), role, path), {})
        if call not in held and role is first.role:
            found = next_part(first.shape, [*held.values()], shape)
            if found is not None:
                held[call] = found
        if role is not first.role and not certain:
            return None  # it may have had fewer rows than golden's, and given as many
        if first.role is Role.OUTPUT and call in held:
            self._certain |= {(name, call), of.cut}
        if call not in held or math.prod(held[call][1]) != math.prod(shape):
            return None
        box = box_of_part(first, held[call][0], replace(first, shape=shape), False)
        return None if box is None else _named(made_of_calls(first, [box], shape=shape))


def _named(record: GlobalRecord | None) -> GlobalRecord | None:
    """The record with a digest of its own: equal ones are one copy."""
    if record is None:
        return None
    parts = [(box.terms[0].digest, box.start, box.where) for box in record.boxes]
    return replace(record, digest=str(parts))
