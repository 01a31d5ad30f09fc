"""Reading a whole bundle to see whether every byte is as it was written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from accucompare.bundle.format import STATE_ROLES, Record
from accucompare.bundle.reading.reader import Bundle
from accucompare.errors import BundleError
from accucompare.numbers import DTYPES


@dataclass
class Verified:
    """What ``verify`` found."""

    records: int = 0  # how many were read, the saved state's included
    # bytes of sound tensors, shared ones once. Sketches are read too, but not counted.
    nbytes: int = 0
    # what cannot be read or is corrupt, one sentence each
    damage: list[str] = field(default_factory=list)


def verify(bundle: Bundle, progress: Callable[[int, int], None] | None = None) -> Verified:
    """Read every record of every step and rank, and of the saved state, one block at a time. Never
    raises for damage. ``progress``: called with the bytes read and the bytes to read."""
    found = Verified()
    known: dict[tuple[int, int, str, str | None], Record] = {}  # one record per tensor
    for record in _records(bundle, found):
        found.records += 1
        if record.sketch is not None:
            try:
                bundle.sketch(record)
            except BundleError as error:
                found.damage.append(str(error))
        if record.member is not None:
            step = -1 if record.role in STATE_ROLES else record.step
            known.setdefault((record.rank, step, record.member, record.digest), record)
    total = sum(map(_nbytes, known.values()))
    for record in known.values():
        try:
            bundle.stored(record).read()
            found.nbytes += _nbytes(record)
        except BundleError as error:
            found.damage.append(str(error))
        if progress is not None:
            progress(found.nbytes, total)
    found.damage = list(dict.fromkeys(found.damage))  # report a step that cannot be opened once
    return found


def _records(bundle: Bundle, found: Verified) -> Iterator[Record]:
    lists: list[Callable[[], Iterable[Record]]] = (
        [lambda: list(bundle.state())] if bundle.manifest.state is not None else []
    )
    lists += [partial(bundle.step_records, rank, entry) for rank, entry in bundle.steps()]
    for read in lists:
        try:
            yield from read()
        except BundleError as error:
            found.damage.append(str(error))


def _nbytes(record: Record) -> int:
    return math.prod(record.shape) * DTYPES[record.dtype].storage.itemsize
