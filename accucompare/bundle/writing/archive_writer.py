"""Writes a step's ``.npz``: a ZIP of ``.npy`` members, stored plain, data aligned to 64 bytes, of
large members to pages: these go past the system's page cache, from their memory to the disk."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import re
import struct
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from accucompare.bundle.format import zip_records as zips
from accucompare.numbers import Array

with contextlib.suppress(ImportError):  # Windows has no O_DIRECT either
    import fcntl

#: Bytes. Such a write begins at a multiple of it in the file and in memory: of any disk's block.
PAGE = 4096
#: Bytes of a member from which the write is worth the wait.
WORTH_IT = 1 << 20
#: Bytes a second of a disk that keeps up with a model.
_FAST = 500e6
_LAST = 64 << 20  # bytes; one write alone may have waited for anything
_PIECE = 1 << 30  # bytes; some systems write no 2 GiB at once
_DIRECT: int = getattr(os, "O_DIRECT", 0)


class Rates:
    """Seconds that a disk takes for a byte past the cache and through it, over the last writes."""

    def __init__(self) -> None:
        self._past = 0.5 / _FAST if _DIRECT else math.inf
        self._through = 0.0  # not measured

    def prefer_past(self) -> bool:
        return self._past <= max(1 / _FAST, self._through) and self._past < math.inf

    def note_past(self, nbytes: int, seconds: float) -> None:
        self._past += (seconds / nbytes - self._past) * min(1, nbytes / _LAST)

    def note_through(self, nbytes: int, seconds: float) -> None:
        share = min(1, nbytes / _LAST) if self._through else 1
        self._through += (seconds / nbytes - self._through) * share

    def never_past(self) -> None:
        """The file system cannot."""
        self._past = math.inf


_rates: dict[int, Rates] = {}  # by the number of the disk


def write_past(file: int, data: memoryview, rates: Rates) -> int:
    """Write the whole pages of ``data`` at the file's position, if all lies at multiples of PAGE.

    A copy into fresh pages of the cache takes a virtual machine's processor about a second a
    gigabyte, and those pages crowd out the model's. Past the cache the writer waits for the disk
    instead, so a slow disk is written through the cache while that is faster.

    Returns how many bytes were written; the rest is to be written through the cache. Raises OSError
    as ``os.write`` does."""
    at = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    if at % PAGE or os.lseek(file, 0, os.SEEK_CUR) % PAGE:
        return 0
    whole, done, began = len(data) // PAGE * PAGE, 0, time.perf_counter()
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | _DIRECT)
        while done < whole and done % PAGE == 0:  # a full disk may end inside a page
            done += os.write(file, data[done : min(whole, done + _PIECE)])
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        rates.never_past()
    else:
        rates.note_past(done, time.perf_counter() - began)
    finally:
        fcntl.fcntl(file, fcntl.F_SETFL, flags)
    return done


ALIGNMENT = 64
# From here on sizes, offsets and counts do not fit into a ZIP's own fields.
_ZIP64_LIMIT = zips.IN_ZIP64
_COUNT_LIMIT = zips.COUNT_IN_ZIP64
_WRITE_LIMIT = 1 << 30  # macOS refuses to write 2 GiB at once, Linux writes a part of it
# bytes; smaller members are written together, since each write makes this thread and the model's
# compete for the GIL
_WORTH_A_WRITE = 64 << 10
_PADDING_FIELD = 0xD935  # the extra field that Android's zipalign pads with
_VERSION = 45  # of the format: the one that has ZIP64
_MADE_ON_UNIX = 3 << 8 | _VERSION
_OWNER_ONLY = 0o600 << 16  # the mode of an unpacked file
_UTF8 = 0x800  # the flag that says how names are encoded
_DOS_EPOCH = 0x21  # 1 January 1980: equal arrays make equal files
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_NAME_LIMIT = 120


def member_name(number: int, name: str, role: str, path: str) -> str:
    """A safe and readable member name; the record has the true name."""
    readable = _UNSAFE.sub("_", ".".join(part for part in (name, role, path) if part))
    return f"{number:06d}.{readable[:_NAME_LIMIT]}"


class ArchiveWriter:
    """A ``.npz`` that is written in a single pass, one member after the other."""

    def __init__(self, path: Path) -> None:
        """Create or empty the file. Raises OSError if that fails. ``add`` and ``finish`` raise it
        too, if the disk is full; then call ``discard``."""
        self.path = path
        self._file = path.open("wb", buffering=0)
        self._rates = _rates.setdefault(os.fstat(self._file.fileno()).st_dev, Rates())
        self._end = 0
        self._waiting = bytearray()  # small members, written together
        self._directory = bytearray()
        self._count = 0

    def add(self, name: str, array: Array) -> None:
        """Append a C-contiguous array as ``<name>.npy``, aligned; names must differ."""
        encoded = f"{name}.npy".encode()
        header = _npy_header(array.dtype, array.shape)
        small = array.nbytes < _WORTH_A_WRITE
        data = array.tobytes() if small else memoryview(array.reshape(-1).view(np.uint8))
        crc = crc32(data, crc32(header))
        offset, size = self._end, len(header) + len(data)
        sizes = [size, size] if size >= _ZIP64_LIMIT else []
        offsets = [offset] if offset >= _ZIP64_LIMIT else []
        short_size, short_offset = (
            (zips.IN_ZIP64 if sizes else size),
            (zips.IN_ZIP64 if offsets else offset),
        )

        extra = _zip64_field(sizes)
        unpadded = (
            offset
            + zips.LOCAL_HEADER.size
            + len(encoded)
            + len(extra)
            + zips.FIELD.size
            + len(header)
        )
        padding = -unpadded % (PAGE if len(data) >= WORTH_IT else ALIGNMENT)
        extra += zips.FIELD.pack(_PADDING_FIELD, padding) + bytes(padding)
        common = (_UTF8, 0, 0, _DOS_EPOCH, crc, short_size, short_size, len(encoded))
        local = zips.LOCAL_HEADER.pack(b"PK\x03\x04", _VERSION, *common, len(extra))
        head = b"".join((local, encoded, extra, header))
        self._end += len(head) + len(data)
        self._waiting += head
        if small:
            self._waiting += data
        if not small or len(self._waiting) >= _WORTH_A_WRITE:
            self._write(b"" if small else data)

        extra = _zip64_field(sizes + offsets)
        tail = (len(extra), 0, 0, 0, _OWNER_ONLY, short_offset)
        entry = zips.ENTRY.pack(b"PK\x01\x02", _MADE_ON_UNIX, _VERSION, *common, *tail)
        self._directory += b"".join((entry, encoded, extra))
        self._count += 1

    def finish(self) -> None:
        """Write the directory and close the file."""
        count, size, offset = self._count, len(self._directory), self._end
        end = b""
        if count >= _COUNT_LIMIT or size >= _ZIP64_LIMIT or offset >= _ZIP64_LIMIT:
            end = zips.ZIP64_END.pack(
                b"PK\x06\x06",
                zips.ZIP64_END.size - 12,
                _VERSION,
                _VERSION,
                0,
                0,
                count,
                count,
                size,
                offset,
            )
            end += zips.ZIP64_LOCATOR.pack(b"PK\x06\x07", 0, offset + size, 1)
            count, size, offset = zips.COUNT_IN_ZIP64, zips.IN_ZIP64, zips.IN_ZIP64
        self._waiting += self._directory
        self._write(end + zips.END.pack(b"PK\x05\x06", 0, 0, count, count, size, offset, 0))
        try:
            self._file.close()  # network file systems report a full disk here
        except OSError as error:
            error.filename = str(self.path)
            raise

    def discard(self) -> None:
        """Close the file and remove it; never raises."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _write(self, data: bytes | memoryview) -> None:
        """Write the waiting bytes, then ``data``: past the page cache, or both in a single system
        call if it takes all."""
        data = memoryview(data)
        try:
            if len(data) >= WORTH_IT and self._rates.prefer_past():
                self._write_through(memoryview(b""))
                data = data[write_past(self._file.fileno(), data, self._rates) :]
            began, nbytes = time.perf_counter(), len(data)
            self._write_through(data)
        except OSError as error:
            error.filename = str(self.path)
            raise
        if nbytes >= WORTH_IT:
            self._rates.note_through(nbytes, time.perf_counter() - began)

    def _write_through(self, data: memoryview) -> None:
        rest = memoryview(self._waiting)
        self._waiting = bytearray()
        while rest or data:
            written = os.writev(self._file.fileno(), [rest, data[:_WRITE_LIMIT]])
            data = data[max(0, written - len(rest)) :]
            rest = rest[written:]


@lru_cache(maxsize=1024)
def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()


def _zip64_field(values: list[int]) -> bytes:
    """The extra field for values that 32 bits cannot hold; empty without any."""
    if values:
        return struct.pack(f"<2H{len(values)}Q", zips.ZIP64_FIELD, 8 * len(values), *values)
    return b""
