"""A step's two files: a ``.npz`` with the tensors, a ``.jsonl`` with one line per record."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
import numpy as np
import xxhash
from msgspec.structs import replace

from accucompare.bundle.format import Record, Shard, sketch_of_part
from accucompare.bundle.writing.archive_writer import ArchiveWriter, member_name
from accucompare.numbers import DTYPES, Array, Float64, Statistics, digest, summarize
from accucompare.selection import SKETCH_SIZE, Mode

#: What makes two records share data and statistics: dtype, shape, digest; for sketches, also the
#: place in the whole.
Content = tuple[str, tuple[int, ...], str | None]
_Placed = tuple[str, tuple[int, ...], str | None, Shard | None]
#: Sketches per member: 8 MiB at the usual size, which a reader takes at once.
SKETCHES_A_MEMBER = 4096


class _Kept(msgspec.Struct, gc=False):
    """What was kept of a tensor: its member or its sketch, if any, and its statistics."""

    statistics: Statistics | None
    member: str | None = None
    sketch: int | None = None


class Sketched(NamedTuple):
    """What a device made of a tensor that stayed there; ``sketch`` is ``None`` beyond float64."""

    digest: str
    statistics: Statistics
    sketch: Float64 | None


def sketches_name(number: int) -> str:
    """The member that holds a sketch: sketch ``n`` is row ``n % SKETCHES_A_MEMBER`` of member ``n
    // SKETCHES_A_MEMBER``."""
    return f"sketches.{number}"


class RecordFile:
    """A ``.npz`` and its ``.jsonl``, written under temporary names and renamed whole.

    Records with equal bytes, shape and storage type share a member. The ``Mode`` says what else is
    kept of a tensor. A tensor not larger than its sketch is kept itself."""

    def __init__(
        self, stem: Path, mode: Mode = Mode.TENSORS, sketch_size: int = SKETCH_SIZE
    ) -> None:
        self._npz = stem.with_name(stem.name + ".npz")
        self._jsonl = stem.with_name(stem.name + ".jsonl")
        self._parts = [path.with_name(path.name + ".part") for path in (self._npz, self._jsonl)]
        stem.parent.mkdir(parents=True, exist_ok=True)
        self._lines: IO[bytes] = self._parts[1].open("wb")
        try:
            self._archive = ArchiveWriter(self._parts[0])
        except OSError:
            self._lines.close()
            self._parts[1].unlink()
            raise
        self._hasher = xxhash.xxh3_128()
        self._mode = mode
        self._sketch_size = sketch_size
        self._sketches: list[Float64] = []  # those not written yet
        self._sketch_count = 0
        # by storage type, shape and digest
        self._members: dict[tuple[str, tuple[int, ...], str | None], str] = {}
        self._known: dict[_Placed, _Kept] = {}
        self.records = 0

    def add(
        self,
        record: Record,
        array: Array | None,
        sketched: Sketched | None = None,
        helped: bool = False,
    ) -> Record:
        """Write one record. Returns the record as it was written, with its member, digest and
        statistics.

        Args:
            record: with the array's digest and statistics, if they are known already.
            array: C-contiguous, of the dtype's storage type; ``None`` for a record without data,
                for the digest of an earlier record of the same dtype, shape and shard, and where
                only statistics are kept.
            sketched: in place of an array, what a device has made of it.
            helped: other threads do a part of a large array's digest and statistics: a device
                computes meanwhile.
        """
        if sketched is not None:
            record = replace(record, digest=sketched.digest, statistics=sketched.statistics)
        elif array is not None and record.digest is None:
            record = replace(record, digest=digest(array, helped))
        # only sketches depend on the place in the whole
        placed = record.shard if self._mode is Mode.SKETCH else None
        content = (record.dtype, record.shape, record.digest, placed)
        if sketched is not None and content not in self._known:
            self._known[content] = _Kept(sketched.statistics, sketch=self._sketch(sketched.sketch))
        # statistics from another tool have no digest
        if record.statistics is not None and record.digest is not None:
            self._known.setdefault(content, _Kept(record.statistics))
        if array is not None and content not in self._known:
            self._known[content] = self._store(record, array, helped)
        if content in self._known:
            kept = self._known[content]
            record = replace(
                record, member=kept.member, sketch=kept.sketch, statistics=kept.statistics
            )
        line = record.to_line()
        self._hasher.update(line)
        try:
            self._lines.write(line)
        except OSError as error:
            raise self._of_lines(error) from None
        self.records += 1
        return record

    def _store(self, record: Record, array: Array, helped: bool) -> _Kept:
        """Write an array, unless another dtype's has the same bits. Statistics are its own."""
        if self._mode is Mode.DIGEST:
            return _Kept(None)
        statistics = summarize(array, DTYPES[record.dtype], helped)
        if self._mode is Mode.STATS:
            return _Kept(statistics)
        if (
            self._mode is Mode.SKETCH
            and array.nbytes > self._sketch_size * np.dtype(np.float64).itemsize
        ):
            sketch = sketch_of_part(
                array, record.dtype, statistics, self._sketch_size, record.shard
            )
            return _Kept(statistics, sketch=self._sketch(sketch))
        bits = (array.dtype.str, array.shape, record.digest)
        if bits not in self._members:
            self._members[bits] = member_name(
                len(self._members), record.name, record.role.value, record.path
            )
            self._archive.add(self._members[bits], array)
        return _Kept(statistics, self._members[bits])

    def _sketch(self, sketch: Float64 | None) -> int | None:
        """The number of a sketch, which is written with its neighbours; ``None`` for none."""
        if sketch is None:
            return None
        self._sketches.append(sketch)
        self._sketch_count += 1
        if len(self._sketches) == SKETCHES_A_MEMBER:
            self._write_sketches()
        return self._sketch_count - 1

    def _write_sketches(self) -> None:
        if self._sketches:
            self._archive.add(
                sketches_name((self._sketch_count - 1) // SKETCHES_A_MEMBER),
                np.stack(self._sketches),
            )
            self._sketches.clear()

    def finish(self) -> str:
        """Close both files, give them their names, and return the digest of the ``.jsonl``."""
        self._write_sketches()
        self._archive.finish()
        try:
            self._lines.close()
        except OSError as error:
            raise self._of_lines(error) from None
        for part, final in zip(self._parts, (self._npz, self._jsonl), strict=True):
            os.replace(part, final)
        return self._hasher.hexdigest()

    def _of_lines(self, error: OSError) -> OSError:
        """The same error with the file's name, which a write does not know."""
        error.filename = str(self._parts[1])
        return error

    def discard(self) -> None:
        """Remove what was written; never raises."""
        self._archive.discard()
        with contextlib.suppress(OSError):
            self._lines.close()
        with contextlib.suppress(OSError):
            self._parts[1].unlink()
