"""The module calls and parameters that records belong to."""

from __future__ import annotations

from accucompare.bundle.format import Record, Role

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
