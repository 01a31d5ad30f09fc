"""A step's list of records, read line by line, where each line is checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import xxhash

from accucompare.bundle.format import STATE_ROLES, Record, Role, StepEntry, Windows, open_lines
from accucompare.errors import BundleError
from accucompare.places import Place

# a record takes a few hundred bytes; a longer line is no honest record
_LINE_LIMIT = 1 << 20


def records_of_lines(path: Place, windows: Windows, rank: int, entry: StepEntry) -> list[Record]:
    """The records of a ``.jsonl``, as they stand there. Raises BundleError if it is damaged."""
    hasher = xxhash.xxh3_128()
    records: list[Record] = []
    places: set[tuple[str, int, Role, str]] = set()
    add, add_place, of_state = records.append, places.add, path.name == "state.jsonl"
    try:
        with open_lines(path, windows) as file:
            for line in _lines(file, hasher):
                if len(records) == entry.records:
                    raise BundleError(
                        f"{path}: holds more records than the {entry.records} of the manifest;"
                        " one is damaged"
                    )
                try:
                    if len(line) > _LINE_LIMIT:
                        raise BundleError("it is too long for a record")
                    record = Record.from_line(line, rank, entry.step)
                except BundleError as error:
                    raise BundleError(
                        f"{path}, line {len(records) + 1}: damaged ({error})"
                    ) from None
                add(record)
                add_place((record.name, record.call, record.role, record.path))
                if (record.role in STATE_ROLES) != of_state:
                    raise BundleError(
                        f"{path}, line {len(records)}: damaged ({record.key} does not belong there)"
                    )
                if len(places) < len(records):
                    raise BundleError(
                        f"{path}, line {len(records)}: damaged ({record.key} is there twice)"
                    )
    except OSError as error:
        raise BundleError(
            f"{path}: cannot be read ({error.strerror}), but the manifest lists it"
        ) from None
    if len(records) != entry.records:
        raise BundleError(
            f"{path}: holds {len(records)} records, but the manifest says {entry.records}; one"
            " is damaged"
        )
    if hasher.hexdigest() != entry.digest:
        raise BundleError(
            f"{path}: is corrupt (its digest does not match the manifest's); capture it again"
        )
    return records


def _lines(file: IO[bytes], hasher: xxhash.xxh3_128) -> Iterator[bytes]:
    """A file's lines, all of them hashed. A line that is too long is cut off."""
    rest = b""
    while piece := file.read(_LINE_LIMIT):
        hasher.update(piece)
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        if len(rest) > _LINE_LIMIT:
            break
    if rest:
        yield rest
