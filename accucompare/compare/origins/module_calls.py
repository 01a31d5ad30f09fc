"""The module calls and parameters that records belong to."""

from __future__ import annotations

from accucompare.bundle.format import Record

#: (rank, step, name, call index).
CallKey = tuple[int, int, str, int]


def call_of(record: Record) -> CallKey:
    """The module call that a record belongs to."""
    return record.rank, record.step, record.name, record.call


def caller_of(record: Record) -> CallKey | None:
    """The call that made a record's call; ``None`` for the root's."""
    return None if record.parent is None else (record.rank, record.step, *record.parent)


def parameter_of(record: Record) -> str:
    """The qualified name of a parameter, from a record of its gradient, value or update."""
    # under its first name; the module that used it has another, or none
    if record.path.startswith("/"):
        return record.path[1:].partition("#")[0]
    own = record.path.partition("#")[0]  # without the number of a gradient that was recorded again
    return f"{record.name}.{own}" if record.name else own
