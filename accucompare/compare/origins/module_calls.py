"""The module calls and parameters that records belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accucompare.bundle.format import Layout, Record, Role
from accucompare.compare.rows import Row

#: (rank, step, name, call index).
CallKey = tuple[int, int, str, int]


#: What a call takes, made by the code around it or the backward behind it.
_ARRIVES = (Role.INPUT, Role.GRAD_OUTPUT)


def call_of(record: Record) -> CallKey:
    """The module call that a record belongs to."""
    return record.rank, record.step, record.name, record.call


def caller_of(record: Record) -> CallKey | None:
    """The call that made a record's call; ``None`` for the root's."""
    return None if record.parent is None else (record.rank, record.step, *record.parent)


def source_of(record: Record) -> CallKey | None:
    """The call whose own code, or backward, made a value; ``None`` for the code around a model."""
    return (caller_of if record.role in _ARRIVES else call_of)(record)


def receiver_of(record: Record) -> CallKey | None:
    """The call whose own code, or backward, goes on with a value."""
    return (call_of if record.role in _ARRIVES else caller_of)(record)


def parameter_of(record: Record) -> str:
    """The qualified name of a parameter, from a record of its gradient, value or update."""
    # under its first name; the module that used it has another, or none
    if record.path.startswith("/"):
        return record.path[1:].partition("#")[0]
    own = record.path.partition("#")[0]  # without the number of a gradient that was recorded again
    return f"{record.name}.{own}" if record.name else own


#: Roles of values that a call gives to later ones, and that it hands down to calls inside it.
_GIVES = (Role.OUTPUT, Role.GRAD_INPUT, Role.OP_OUTPUT, Role.OP_GRAD_INPUT)
_HANDS_DOWN = (Role.INPUT, Role.GRAD_OUTPUT)

#: What identifies the tensor of a record within a step.
_Tensor = tuple[int, int, str, str, tuple[int, ...]]


def with_producers(rows: Iterable[Row]) -> Iterator[tuple[Row, int | None]]:
    """Each row, with the number (from 1) of its step's last row that gave golden this tensor.

    Rows come rank by rank and step by step; what a step's rows gave is forgotten after it. ``None``
    for rows without golden, for tensors that no earlier call gave (glue sums two branches), and for
    values that are no strided tensors, such as numbers, which are equal by chance."""
    given: dict[_Tensor, int] = {}
    handed_down: dict[tuple[CallKey, _Tensor], int] = {}
    step: tuple[int, int] | None = None
    for number, row in enumerate(rows, 1):
        record, tensor = row.golden, _tensor(row.golden)
        if record is None or tensor is None:
            yield row, None
            continue
        if step != (record.rank, record.step):
            step = record.rank, record.step
            given.clear()
            handed_down.clear()
        inside = [caller_of(record), *([call_of(record)] if record.role in _GIVES else [])]
        numbers = [
            given.get(tensor),
            *(handed_down.get((call, tensor)) for call in inside if call is not None),
        ]
        yield row, max((each for each in numbers if each is not None), default=None)
        if record.role in _GIVES:
            given[tensor] = number
        elif record.role in _HANDS_DOWN:
            handed_down[(call_of(record), tensor)] = number


def _tensor(record: Record | None) -> _Tensor | None:
    if (
        record is None
        or record.digest is None
        or record.layout is not Layout.STRIDED
        or not record.shape
    ):
        return None
    return record.rank, record.step, record.digest, record.dtype, record.shape
