"""Writes CANN's kernel dumps by their published schema (dump_data.proto), for there is no NPU that writes them here."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

TYPES = {"float32": 1, "float16": 2, "int32": 7, "bool": 11, "bfloat16": 27}


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def shape(lengths: tuple[int, ...], packed: bool = True) -> bytes:
    if packed:
        return block(1, b"".join(map(varint, lengths)))
    return b"".join(number(1, length) for length in lengths)


class Value(NamedTuple):
    """A tensor of a kernel; ``says`` is what the header calls its size."""

    array: np.ndarray
    type: int | None = None
    format: int = 2
    original: tuple[int, ...] = ()
    says: int | None = None
    shape: tuple[int, ...] | None = None


def tensor(value: Value, output: bool, packed: bool) -> bytes:
    size, original = (6, 7) if output else (5, 6)
    kind = TYPES[value.array.dtype.name] if value.type is None else value.type
    content = number(1, kind) + number(2, value.format) + block(3, shape(value.shape or value.array.shape, packed))
    content += number(size, value.array.nbytes if value.says is None else value.says)
    if output:
        content += block(4, block(1, b"an original op") + number(3, 1))  # what the reader does not need
    return content + (block(original, shape(value.original, packed)) if value.original else b"")


def kernel(name: str, inputs: list[Value], outputs: list[Value], buffer: bytes = b"", packed: bool = True) -> bytes:
    """The content of a file."""
    header = block(1, b"2.0") + number(2, 1_700_000_000_000_000)
    header += b"".join(block(3, tensor(value, True, packed)) for value in outputs)
    header += b"".join(block(4, tensor(value, False, packed)) for value in inputs)
    header += block(5, number(1, 0) + number(3, len(buffer))) if buffer else b""
    header += block(6, name.encode()) + block(7, block(1, b"attr") + block(2, b"value"))
    data = b"".join(np.ascontiguousarray(value.array).tobytes() for value in (*inputs, *outputs))
    return struct.pack("<Q", len(header)) + header + data + buffer


def write(folder: Path, operator: str, name: str, time: int, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{operator}.{name.replace('/', '_')}.{time}.3.{1_700_000_000_000_000 + time}"
    path.write_bytes(content)
    return path


def to_nz(array: np.ndarray, rows: int = 16, columns: int = 16) -> np.ndarray:
    """``[…, M, N]`` as an NPU's cube unit has it, element by element: block column, block row, row, column."""
    *lead, m, n = array.shape
    m1, n1 = math.ceil(m / rows), math.ceil(n / columns)
    out = np.zeros((*lead, n1, m1, rows, columns), array.dtype)
    for i in range(m):
        for j in range(n):
            out[..., j // columns, i // rows, i % rows, j % columns] = array[..., i, j]
    return out


def to_5hd(array: np.ndarray, block: int = 16) -> np.ndarray:
    """``[N, C, H, W]`` as ``[N, C1, H, W, C0]``, channel by channel."""
    n, c, h, w = array.shape
    out = np.zeros((n, math.ceil(c / block), h, w, block), array.dtype)
    for channel in range(c):
        out[:, channel // block, :, :, channel % block] = array[:, channel]
    return out
