"""Where errors come from in buffers, and in what calls write into buffers and arguments.

What a call writes into a buffer goes only into later calls of its module; it is no part of the data
that flows on. So its error is the call's own, unless the call computed with wrong values, and the
module's later calls inherit it. What a call writes into an argument goes on as its outputs do, and
is traced with them."""

from __future__ import annotations

from collections.abc import Iterable

from accucompare.bundle.format import BUFFER_ROLES, WRITTEN_ROLES, Record, Role
from accucompare.compare.rows.rows import UNMATCHED, Row, Status, Verdict


def owner_of(record: Record) -> str:
    """The module that has the buffer in a record of one of ``BUFFER_ROLES``."""
    by_another = record.path.startswith("/")
    return buffer_of(record).rpartition(".")[0] if by_another else record.name


def buffer_of(record: Record) -> str:
    """The qualified name of the buffer in a record of one of ``BUFFER_ROLES``."""
    own = record.path.partition("#")[0]
    return own[1:] if own.startswith("/") else ".".join(part for part in (record.name, own) if part)


def is_wrong(verdict: Verdict) -> bool:
    """Whether a row shows another value."""
    return verdict.status is Status.FAIL and verdict.reason not in UNMATCHED


def one_sided_writes(rows: Iterable[Row]) -> list[Row]:
    """The rows of one-sided writes by calls or modules that both sides have otherwise."""
    both: set[tuple[object, ...]] = set()  # calls, and modules
    alone = []
    for row in rows:
        record = row.record
        if record is None:
            continue
        if row.golden is not None and row.candidate is not None:
            both |= {record.key[:4], (record.rank, record.name)}
        elif record.role in WRITTEN_ROLES and row.reason in UNMATCHED and row.status is Status.FAIL:
            alone.append((row, record))
    by_call = (Role.BUFFER_UPDATE, Role.ARGUMENT_UPDATE)
    return [
        row
        for row, record in alone
        if (record.key[:4] if record.role in by_call else (record.rank, record.name)) in both
    ]


def is_buffer(record: Record | None) -> bool:
    """Whether a record is of something written into a buffer."""
    return record is not None and record.role in BUFFER_ROLES
