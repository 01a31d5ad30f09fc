"""Which call made a value: found from the digests, for a value that one call takes is the very one that another gave."""

from __future__ import annotations

from collections.abc import Iterable

from accucompare.bundle.records import Layout, Role
from accucompare.compare.rows import Row

#: Roles of values that a call gives to others. Its inputs count too, if it has calls inside, for it hands them down.
_GIVES = (Role.OUTPUT, Role.GRAD_INPUT)
_HANDS_DOWN = (Role.INPUT, Role.GRAD_OUTPUT)


def producers(rows: Iterable[Row]) -> list[int | None]:
    """For each row, the number (from 1) of the latest earlier row of its step with the same tensor in golden, bit for bit.

    ``None`` for what golden does not have, for a tensor that no earlier call gave (as the sum of two branches, which glue makes), and for
    values that are no strided tensors, as numbers: those are equal by chance.
    """
    rows = list(rows)
    callers = {(row.golden.rank, row.golden.step, *row.golden.parent) for row in rows if row.golden and row.golden.parent}
    latest: dict[tuple[object, ...], int] = {}
    found: list[int | None] = []
    for number, row in enumerate(rows, 1):
        golden = row.golden
        if golden is None or golden.digest is None or golden.layout is not Layout.STRIDED or not golden.shape:
            found.append(None)
            continue
        tensor = (golden.rank, golden.step, golden.digest, golden.dtype, golden.shape)
        found.append(latest.get(tensor))
        call = (golden.rank, golden.step, golden.name, golden.call)
        if golden.role in _GIVES or (golden.role in _HANDS_DOWN and call in callers):
            latest[tensor] = number
    return found
