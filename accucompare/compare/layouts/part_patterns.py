"""Where a rank's part of a value lies, told by the parts that it has of the value's other calls."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from accucompare.bundle.format import Box, GlobalRecord, Layout, Record, Role
from accucompare.numbers import DTYPES


class _Pattern(NamedTuple):
    """A rank's part: of a value of this shape, these boxes, as ``GlobalRecord`` has them; all of it
    if there are none. ``own``: the record under the rank's name."""

    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    own: Record


class PartPatterns:
    """The parts that a rank has of golden's values, by module, role and path.

    Another call may have other rows: in the layout's run, rounding or a fault has sent a router's
    tokens elsewhere. A part that has all of an axis in one call has all of it in another.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, Role, str], _Pattern] = {}

    def note(self, golden: Record, parts: Iterable[Record]) -> None:
        """Args: ``parts``: the rank's records of golden's, cut for it."""
        found = [*parts]
        place = golden.name, golden.role, golden.path
        if len(found) != 1 or place in self._known:
            return
        boxes = found[0].boxes if isinstance(found[0], GlobalRecord) else ()
        if not any(box.flat or box.taken or len(box.terms) > 1 for box in boxes):
            self._known[place] = _Pattern(golden.shape, boxes, found[0])

    def part(self, golden: Record, own: Record | None) -> tuple[Record, list[Box]] | None:
        """The rank's record and the boxes of golden's value in it; ``None`` if nothing tells.
        ``own``: the rank's record of the call, whose shape may be another; ``None`` without one."""
        known = self._known.get((golden.name, golden.role, golden.path))
        if known is None or DTYPES.get(golden.dtype) is None or golden.layout is not Layout.STRIDED:
            return None
        if isinstance(golden, GlobalRecord) or len(known.shape) != len(golden.shape):
            return None
        whole = tuple((0, length) for length in golden.shape)
        boxes = [Box((0,) * len(whole), (golden,), 1.0, (), whole)]
        if known.boxes:
            boxes = []
            for box in known.boxes:
                start, there = [*box.start], [*box.where]
                for axis, (before, length) in enumerate(
                    zip(known.shape, golden.shape, strict=True)
                ):
                    if there[axis] == (0, before):
                        start[axis], there[axis] = 0, (0, length)
                    elif before != length:
                        return None
                boxes.append(Box(tuple(start), (golden,), box.factor, (), tuple(there)))
        if any(not math.prod(box.shape) for box in boxes):
            return None
        shape = tuple(
            max(box.start[axis] + box.shape[axis] for box in boxes) for axis in range(len(whole))
        )
        record = replace(known.own, call=golden.call, parent=golden.parent) if own is None else own
        return replace(record, shape=shape, shard=None), boxes
