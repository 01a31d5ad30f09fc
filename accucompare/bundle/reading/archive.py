"""Reads the ``.npz`` of one step: a ZIP of ``.npy`` members, stored plain, as ``archive_writer`` or
``numpy.savez`` writes it.

Nothing in it is ever unpickled, decompressed, or used as a file name."""

from __future__ import annotations

import math
import re
import struct
import sys
import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from isal.isal_zlib import crc32
from numpy.typing import NDArray

from accucompare.bundle.format import Windows, open_source
from accucompare.bundle.format import zip_records as zips
from accucompare.errors import BundleError, RecordError
from accucompare.numbers import DTYPES, Array
from accucompare.places import Place

# of an entry: signature, lengths of name, extra and comment
_ENTRY_LENGTHS = struct.Struct("<4s24x3H")
# of an entry: flags, method, 2 sizes, lengths of name and extra, offset
_ENTRY_PLACE = struct.Struct("<8x2H8x2L2H10xL")
#: The same of many entries at once.
_ENTRY = np.dtype(
    {
        "names": ["flags", "method", "stored", "size", "offset"],
        "formats": ["<u2", "<u2", "<u4", "<u4", "<u4"],
        "offsets": [8, 10, 20, 24, 42],
        "itemsize": zips.ENTRY.size,
    }
)
_LOCAL_HEADER = np.dtype(
    {
        "names": ["signature", "name", "extra"],
        "formats": ["S4", "<u2", "<u2"],
        "offsets": [0, 26, 28],
        "itemsize": zips.LOCAL_HEADER.size,
    }
)
_NPY_START = np.dtype({"names": ["length"], "formats": ["<u2"], "offsets": [8], "itemsize": 10})
_CRC = struct.Struct("<16xL")  # of an entry
_WHOLE_LIMIT = 1 << 32  # 4,096 sketches of the largest size take half of it
_ENCRYPTED = 1  # the flag
_TAIL = (
    zips.ZIP64_LOCATOR.size + zips.END.size + 0xFFFF
)  # the end record is in here, with its comment
# a million members need half of it; a longer one is no honest directory
_DIRECTORY_LIMIT = 1 << 28

_NPY_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': ([ -~]*), 'fortran_order': (True|False), 'shape': \(([0-9,"
    rb" ]*)\), \} *\n",
    re.DOTALL,
)
_NPY_PREFIX = 10  # bytes of magic, version and length
_NPY_HEADER_LIMIT = 4096  # ours takes 128 bytes; a longer one is no honest header
_HEAD = 512  # bytes read of a small member to find its data: both headers of any of ours
_LARGE_HEAD = _HEAD + (1 << 12)  # of a large member, whose data begins at a page
_GAP = 1 << 14  # bytes between two members that are cheaper to read than to skip
_SMALL = 1 << 14  # the data of a member up to this size is read with its headers
_MAX_DIMENSIONS = 64  # NumPy's
_Integers = NDArray[np.int64]
_STORAGE = {f"'{dtype.storage.str}'": dtype.storage for dtype in DTYPES.values()}


class Member(msgspec.Struct, frozen=True, gc=False):
    """Where one array's data lies in a ``.npz``."""

    offset: int  # of the first data byte in the file
    nbytes: int
    dtype: np.dtype[Any]  # NumPy type of the elements
    shape: tuple[int, ...]  # of the array; always in C order


class _LastRead(threading.local):
    """What this thread read last to find a member; includes the data of a small one."""

    offset = 0
    content = b""


class Archive:
    """A ``.npz`` opened for reading: an index of its members, and positional reads of their data.

    Any number of threads may use it at once."""

    def __init__(self, path: Place, windows: Windows | None = None) -> None:
        """Open the file and read its directory; members are read on demand. Raises BundleError if
        it is missing, truncated, or no ZIP file. ``windows``: the bundle's windows, for an object
        in storage."""
        self.path = path
        try:
            self._source = open_source(path, windows)
        except OSError as error:
            raise BundleError(f"{path}: cannot be read ({error.strerror})") from None
        self._last = _LastRead()
        self._size = self._source.size
        try:
            self._directory, count = self._read_directory()
            self._positions = _index(self._directory, count)
            if doubled := count - len(self._positions):
                raise BundleError(
                    f"{path}: damaged; {doubled} of its members have the name of another"
                )
        except _DamageError as damage:
            self._source.close()
            raise BundleError(
                f"{path}: not a readable .npz, truncated or damaged ({damage})"
            ) from None
        except BundleError:
            self._source.close()
            raise

    def close(self) -> None:
        self._source.close()

    def changed(self) -> bool:
        """Whether the file was written to or replaced since it was opened."""
        return self._source.changed()

    def member(self, name: str) -> Member:
        """Find one member and read its header. Raises RecordError if it is not there, compressed,
        pickled, out of bounds, or its header is damaged."""
        encoded = f"{name}.npy".encode(errors="surrogatepass")
        position = self._positions.get(encoded)
        if position is None:
            raise RecordError(f"{self.path}: has no member {name!r}")
        try:
            offset, size = _place(self._directory, position)
            start, header = self._read_headers(offset, encoded, size)
            dtype, shape, nbytes = _parse_npy_header(header)
            if len(header) + nbytes != size or start + size > self._size:
                raise _DamageError("is damaged (its header and its length disagree)")
        except _DamageError as damage:
            raise RecordError(f"{self.path}: member {name!r} {damage}") from None
        return Member(start + len(header), nbytes, dtype, shape)

    def small_members(self, names: Iterable[str], most: int) -> tuple[bytes, dict[str, Member]]:
        """Read the small ones of some members, in a few pieces. Returns the joined pieces, and the
        members with their offsets in them. Large, missing and damaged members are left out:
        ``member`` says what is wrong with one.

        Args:
            most: largest size of a small one in bytes, with its header.
        """
        encoded = {name: f"{name}.npy".encode(errors="surrogatepass") for name in names}
        known = {
            name: self._positions[each] for name, each in encoded.items() if each in self._positions
        }
        if not known or len(self._directory) < _ENTRY.itemsize:
            return b"", {}
        entries = _rows(self._directory, np.array(list(known.values())), _ENTRY)
        small = (
            (entries["method"] == 0)
            & (entries["flags"] & _ENCRYPTED == 0)
            & (entries["size"] == entries["stored"])
            & (entries["size"] <= most)
            & (entries["offset"].astype(np.int64) + entries["size"] < self._size)
        )
        wanted = np.flatnonzero(small)
        wanted = wanted[np.argsort(entries["offset"][wanted], kind="stable")]
        offsets = entries["offset"][wanted].astype(np.int64)
        sizes = entries["size"][wanted].astype(np.int64)
        content, places = self._read_pieces(offsets, sizes)
        heads = _rows(content, places, _LOCAL_HEADER)
        starts = places + zips.LOCAL_HEADER.size + heads["name"] + heads["extra"]
        ends = starts + _NPY_PREFIX + _rows(content, starts, _NPY_START)["length"]
        names_of = list(known)
        members = {}
        for number, signature, place, start, end, size in zip(
            wanted.tolist(),
            heads["signature"].tolist(),
            places.tolist(),
            starts.tolist(),
            ends.tolist(),
            sizes.tolist(),
            strict=True,
        ):
            name = names_of[number]
            try:
                dtype, shape, nbytes = _parse_npy_header(content[start:end])
            except _DamageError:
                continue
            if (
                signature == b"PK\x03\x04"
                and end - start + nbytes == size
                and start + size <= len(content)
                and content.startswith(encoded[name], place + zips.LOCAL_HEADER.size)
            ):
                members[name] = Member(end, nbytes, dtype, shape)
        return content, members

    def _read_pieces(self, offsets: _Integers, sizes: _Integers) -> tuple[bytes, _Integers]:
        """Read what lies at ascending offsets: joined pieces, and each offset's place in them."""
        ends = np.maximum.accumulate(offsets + sizes)
        cuts = np.flatnonzero(offsets[1:] > ends[:-1] + _GAP) + 1
        pieces, places, length = list[bytes](), list[_Integers](), 0
        for own in np.split(np.arange(len(offsets)), cuts):
            if len(own):
                first, last = int(offsets[own[0]]), int(ends[own[-1]])
                pieces.append(self._read(last - first + _HEAD, first))
                places.append(offsets[own] - first + length)
                length += len(pieces[-1])
        if not pieces:
            return b"", np.empty(0, np.int64)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), np.concatenate(places)

    def read_whole(self, name: str) -> Array:
        """One member's array, verified against the archive's own checksum. Raises RecordError as
        ``member``, or if its bytes are not as they were written; BundleError if the file cannot be
        read."""
        member = self.member(name)
        if member.nbytes > _WHOLE_LIMIT:
            raise RecordError(
                f"{self.path}: member {name!r} is too large to be read whole; accucompare"
                " writes none so large"
            )
        found = np.empty(member.shape, member.dtype)
        self.read_into(memoryview(found.reshape(-1).view("u1")), member.offset)
        position = self._positions[f"{name}.npy".encode(errors="surrogatepass")]
        offset, size = _place(self._directory, position)
        _, header = self._read_headers(offset, f"{name}.npy".encode(errors="surrogatepass"), size)
        if (
            crc32(memoryview(found.reshape(-1).view("u1")), crc32(header))
            != _CRC.unpack_from(self._directory, position)[0]
        ):
            raise RecordError(
                f"{self.path}: member {name!r} is corrupt (its checksum does not match); capture it"
                " again"
            )
        return found

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer with the file's bytes from an offset. Raises BundleError if the file ends
        before the buffer is full, or cannot be read."""
        last, done = self._last, 0
        start = offset - last.offset
        if 0 <= start <= len(last.content) - len(buffer):
            buffer[:] = last.content[start : start + len(buffer)]
            return
        while done < len(buffer):
            try:
                count = self._source.read_into(buffer[done:] if done else buffer, offset + done)
            except OSError as error:
                raise BundleError(f"{self.path}: cannot be read ({error.strerror})") from None
            if count == 0:
                raise BundleError(f"{self.path}: ends early; it was truncated while being read")
            done += count

    def _read(self, count: int, offset: int) -> bytes:
        """Up to ``count`` bytes from an offset; fewer only at the end."""
        if offset >= self._size:  # the offset may exceed what the system takes
            return b""
        try:
            return self._source.read(count, offset)
        except OSError as error:
            raise BundleError(f"{self.path}: cannot be read ({error.strerror})") from None

    def _read_directory(self) -> tuple[bytes, int]:
        """The central directory, and the number of entries that it should have."""
        tail_offset = max(0, self._size - _TAIL)
        tail = self._read(_TAIL, tail_offset)
        end = _find_end(tail)
        *_, count, size, offset, _ = zips.END.unpack_from(tail, end)
        locator = end - zips.ZIP64_LOCATOR.size
        if (
            (count == zips.COUNT_IN_ZIP64 or zips.IN_ZIP64 in (size, offset))
            and locator >= 0
            and tail.startswith(b"PK\x06\x07", locator)
        ):
            record = self._read(
                zips.ZIP64_END.size, zips.ZIP64_LOCATOR.unpack_from(tail, locator)[2]
            )
            if len(record) < zips.ZIP64_END.size or record[:4] != b"PK\x06\x06":
                raise _DamageError("no ZIP64 end record")
            *_, count, size, offset = zips.ZIP64_END.unpack(record)
        if offset + size > tail_offset + end or size > _DIRECTORY_LIMIT:
            raise _DamageError("its directory is out of bounds")
        return self._read(size, offset), count

    def _read_headers(self, offset: int, encoded: bytes, size: int) -> tuple[int, bytes]:
        """A member's ``.npy`` header and its offset; ``offset`` is the local header's."""
        head = self._read(_HEAD + size if size <= _SMALL else _LARGE_HEAD, offset)
        self._last.offset, self._last.content = offset, head
        start, end = _npy_header_place(head)
        if end > len(head):
            head = self._read(start + _NPY_PREFIX + _NPY_HEADER_LIMIT, offset)
            start, end = _npy_header_place(head)
        if not head.startswith(encoded, zips.LOCAL_HEADER.size):
            raise _DamageError("is damaged (its local header has another name)")
        if end > len(head) or end - start > _NPY_HEADER_LIMIT:
            raise _DamageError("has no valid .npy header")
        return offset + start, head[start:end]


class _DamageError(Exception):
    """What is wrong with a file or a member; ``Archive`` says which."""


def _find_end(tail: bytes) -> int:
    """Where a file's end record lies: the last one whose comment reaches the file's end."""
    end = len(tail)
    while (end := tail.rfind(b"PK\x05\x06", 0, end)) >= 0:
        if len(tail) - end - zips.END.size == int.from_bytes(
            tail[end + zips.END.size - 2 :][:2], "little"
        ):
            return end
    raise _DamageError("no end record")


def _index(directory: bytes, count: int) -> dict[bytes, int]:
    """Where each name's entry lies in the directory; the last one of entries that share a name."""
    positions = {}
    position = 0
    try:
        for _ in range(count):
            signature, name, extra, comment = _ENTRY_LENGTHS.unpack_from(directory, position)
            if signature != b"PK\x01\x02":
                raise _DamageError("an entry of its directory is damaged")
            start = position + zips.ENTRY.size
            positions[directory[start : start + name]] = position
            position = start + name + extra + comment
    except struct.error:
        raise _DamageError("its directory ends early") from None
    if position != len(directory):
        raise _DamageError(f"its directory is not that of {count} members")
    return positions


def _place(directory: bytes, position: int) -> tuple[int, int]:
    """The offset of a member's local header and the length of its content, from its entry."""
    flags, method, stored, size, name, extra, offset = _ENTRY_PLACE.unpack_from(directory, position)
    if method or flags & _ENCRYPTED:
        raise _DamageError("is compressed or encrypted; accucompare stores members plain")
    if zips.IN_ZIP64 in (size, stored, offset):
        start = position + zips.ENTRY.size + name
        values = iter(_zip64_values(directory[start : start + extra]))
        size, stored, offset = (
            next(values, -1) if value == zips.IN_ZIP64 else value
            for value in (size, stored, offset)
        )
    if size != stored or offset < 0:
        raise _DamageError("is damaged (its entry in the directory contradicts itself)")
    return offset, size


def _zip64_values(extra: bytes) -> tuple[int, ...]:
    """The values in an entry's extra field that 32 bits cannot hold; empty without any."""
    position = 0
    while position + zips.FIELD.size <= len(extra):
        number, length = zips.FIELD.unpack_from(extra, position)
        position += zips.FIELD.size
        if number == zips.ZIP64_FIELD:
            return struct.unpack_from(
                f"<{min(length, len(extra) - position) // 8}Q", extra, position
            )
        position += length
    return ()


def _rows(content: bytes, places: _Integers, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The bytes at some places as rows of a structured type; zeros beyond the end."""
    own = np.frombuffer(content, np.uint8)
    indices = places[:, None] + np.arange(dtype.itemsize)
    found = np.take(own, indices, mode="clip") if len(own) else np.zeros_like(indices, np.uint8)
    return found.view(dtype).reshape(-1)


def _npy_header_place(head: bytes) -> tuple[int, int]:
    """Where the ``.npy`` header begins and ends; the end may lie beyond a short ``head``."""
    if len(head) < zips.LOCAL_HEADER.size or not head.startswith(b"PK\x03\x04"):
        raise _DamageError("is damaged (no local header)")
    name, extra = zips.FIELD.unpack_from(head, zips.LOCAL_HEADER.size - zips.FIELD.size)
    start = zips.LOCAL_HEADER.size + name + extra
    return start, start + _NPY_PREFIX + int.from_bytes(head[start + 8 : start + 10], "little")


@lru_cache(maxsize=1024)
def _parse_npy_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Type, shape and bytes of the array that a ``.npy`` header describes; the header is matched
    against what NumPy writes, never evaluated."""
    match = _NPY_HEADER.fullmatch(header)
    if match is None:
        raise _DamageError("has no valid .npy header")
    described, fortran, lengths = (group.decode() for group in match.groups())
    if "O" in described:
        raise _DamageError("holds pickled Python objects; refused, nothing was executed")
    if described not in _STORAGE:
        raise _DamageError(f"has the unknown type {described[:80]}")
    if fortran == "True":
        raise _DamageError("is not a plain C-ordered array")
    dtype = _STORAGE[described]
    shape = tuple(int(length) for length in re.findall("[0-9]+", lengths))
    if (
        str(shape) != f"({lengths})"
        or len(shape) > _MAX_DIMENSIONS
        or dtype.itemsize * math.prod(filter(None, shape)) > sys.maxsize
    ):
        raise _DamageError("has no valid .npy header")
    return dtype, shape, math.prod(shape) * dtype.itemsize
