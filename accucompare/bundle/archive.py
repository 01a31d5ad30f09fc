"""The ``.npz`` of one step: a ZIP of ``.npy`` members, stored plain, each one's data aligned to 64 bytes.

``numpy.load`` opens it; nothing in it is ever unpickled, compressed, or used as a file name.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
import weakref
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accucompare.bundle.dtypes import DTYPES, Array
from accucompare.errors import BundleError, RecordError

ALIGNMENT = 64
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_PADDING_FIELD = 0xD935  # the extra field that Android's zipalign pads with
_HEADER_LIMIT = 4096  # a .npy header of ours takes 128 bytes; a longer one than this is no honest header
_NPY = re.compile(rb"\x93NUMPY\x01\x00(..)(\{[^}]*\} *\n)", re.DOTALL)  # magic, version, length, header
_NPY_HEADER = re.compile(r"\{'descr': (.*), 'fortran_order': (True|False), 'shape': \(([0-9, ]*)\), \} *\n")
_STORAGE = {f"'{dtype.storage.str}'": dtype.storage for dtype in DTYPES.values()}
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_NAME_LIMIT = 120
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Member:
    """Where one array's data lies in a ``.npz``.

    Attributes:
        offset: of the first data byte, from the file's start.
        nbytes: length of the data.
        dtype: NumPy type of the elements.
        shape: of the array; always in C order.
    """

    offset: int
    nbytes: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def member_name(number: int, name: str, role: str, path: str) -> str:
    """A safe and readable name for a member; the true name is in the record."""
    readable = _UNSAFE.sub("_", ".".join(part for part in (name, role, path) if part))
    return f"{number:06d}.{readable[:_NAME_LIMIT]}"


def write_member(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    """Append one C-contiguous array as ``<name>.npy``, its data at a multiple of 64 bytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    info = zipfile.ZipInfo(f"{name}.npy", _ZIP_EPOCH)
    info.file_size = len(header.getvalue()) + array.nbytes
    zip64 = info.file_size * 1.05 > zipfile.ZIP64_LIMIT
    assert archive.fp is not None
    start = archive.fp.tell() + _LOCAL_HEADER.size + len(info.filename) + (20 if zip64 else 0) + 4
    padding = -(start + len(header.getvalue())) % ALIGNMENT
    info.extra = struct.pack("<HH", _PADDING_FIELD, padding) + bytes(padding)
    with archive.open(info, "w", force_zip64=zip64) as member:
        member.write(header.getvalue())
        data = memoryview(array.reshape(-1).view("u1"))
        for begin in range(0, len(data), 1 << 24):
            member.write(data[begin : begin + (1 << 24)])


class Archive:
    """A ``.npz`` opened for reading: an index of its members, and positional reads of their data."""

    def __init__(self, path: Path) -> None:
        """Open the file and read its central directory; members are looked at when they are asked for.

        Raises:
            BundleError: if it is missing, truncated, or no ZIP file.
        """
        self.path = path
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise BundleError(f"{path}: cannot be read ({error.strerror})") from None
        weakref.finalize(self, self._file.close)  # without a ResourceWarning when nobody closes the bundle
        try:
            with zipfile.ZipFile(self._file) as directory:
                self._entries = {entry.filename: entry for entry in directory.infolist()}
                doubled = len(directory.infolist()) - len(self._entries)
            self._size = os.fstat(self._file.fileno()).st_size
        except (zipfile.BadZipFile, OSError, ValueError, OverflowError, MemoryError, struct.error, NotImplementedError) as error:
            self._file.close()
            raise BundleError(f"{path}: not a readable .npz, truncated or damaged ({error})") from None
        if doubled:
            self._file.close()
            raise BundleError(f"{path}: damaged; {doubled} of its members have the name of another")

    def close(self) -> None:
        self._file.close()

    def member(self, name: str) -> Member:
        """Find one member and read its header.

        Raises:
            RecordError: if it is not there, compressed, pickled, out of bounds, or its header is damaged.
        """
        entry = self._entries.get(f"{name}.npy")
        if entry is None:
            raise RecordError(f"{self.path}: has no member {name!r}")
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 0x1:
            raise RecordError(f"{self.path}: member {name!r} is compressed or encrypted; accucompare stores members plain")
        head = b""
        if 0 <= entry.header_offset < self._size:
            head = self._read(2 * _HEADER_LIMIT, entry.header_offset)
        if len(head) < _LOCAL_HEADER.size or head[:4] != b"PK\x03\x04":
            raise RecordError(f"{self.path}: member {name!r} is damaged (no local header)")
        *_, name_length, extra_length = _LOCAL_HEADER.unpack_from(head)
        start = _LOCAL_HEADER.size + name_length + extra_length
        length, shape, dtype = self._npy_header(head[start : start + _HEADER_LIMIT], name)
        nbytes = math.prod(shape) * dtype.itemsize
        offset = entry.header_offset + start + length
        if length + nbytes != entry.file_size or offset + nbytes > self._size:
            raise RecordError(f"{self.path}: member {name!r} is damaged (its header and its length disagree)")
        return Member(offset, nbytes, dtype, shape)

    def _npy_header(self, head: bytes, name: str) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
        """Length of a ``.npy`` header, and the shape and type it tells; matched against what we write, never evaluated."""
        outer = _NPY.match(head)
        inner = _NPY_HEADER.fullmatch(outer[2].decode("latin-1")) if outer else None
        if outer is None or inner is None or len(outer[2]) != int.from_bytes(outer[1], "little"):
            raise RecordError(f"{self.path}: member {name!r} has no valid .npy header")
        described, fortran, lengths = inner.groups()
        if "O" in described:
            raise RecordError(f"{self.path}: member {name!r} holds pickled Python objects; refused, nothing was executed")
        if described not in _STORAGE:
            raise RecordError(f"{self.path}: member {name!r} has the unknown type {described[:80]}")
        if fortran == "True":
            raise RecordError(f"{self.path}: member {name!r} is not a plain C-ordered array")
        shape = tuple(int(length) for length in lengths.split(",") if length.strip().isdigit())
        return outer.end(), shape, _STORAGE[described]

    def _read(self, count: int, offset: int) -> bytes:
        try:
            return os.pread(self._file.fileno(), count, offset)
        except OSError as error:
            raise BundleError(f"{self.path}: cannot be read ({error.strerror})") from None

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer with the file's bytes from an offset.

        Raises:
            BundleError: if the file ends before the buffer is full, or cannot be read.
        """
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self._file.fileno(), [buffer[done:]], offset + done)
            except OSError as error:
                raise BundleError(f"{self.path}: cannot be read ({error.strerror})") from None
            if count == 0:
                raise BundleError(f"{self.path}: ends early; it was truncated while being read")
            done += count
