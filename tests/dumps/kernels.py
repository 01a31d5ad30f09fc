"""Writes CANN's kernel dumps by their published schema (dump_data.proto), for there is no NPU that
writes them here.
"""

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
    content = (
        number(1, kind)
        + number(2, value.format)
        + block(3, shape(value.shape or value.array.shape, packed))
    )
    content += number(size, value.array.nbytes if value.says is None else value.says)
    if output:
        # what the reader does not need
        content += block(4, block(1, b"an original op") + number(3, 1))
    return content + (block(original, shape(value.original, packed)) if value.original else b"")


def kernel(
    name: str, inputs: list[Value], outputs: list[Value], buffer: bytes = b"", packed: bool = True
) -> bytes:
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
    """``[…, M, N]`` as an NPU's cube unit has it, element by element: block column, block row, row,
    column.
    """
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


#: Of each unit where its facts and its status are in what the device noted, as msaccucmp reads
# them.
_UNITS = {"DHA Atomic Add": (0, 512), "L2 Atomic Add": (128, 768), "AI Core": (256, 1040)}
_FACTS = ("model_id", "stream_id", "task_id", "task_type", "pc_start", "para_base")
_NEWER = (*_FACTS[:4], "context_id", "thread_id", "pc_start", "para_base", "core_id", "block_id")


def noted(unit: str, status: int, task: int, stream: int = 3) -> bytes:
    """What the device noted of an overflow, in the older layout."""
    content = bytearray(2048)
    facts, place = _UNITS[unit]
    struct.pack_into("<6Q", content, facts, 7, stream, task, 1, 0x1000, 0x2000)
    struct.pack_into("<Q", content, place, status)
    return bytes(content)


def noted_newer(
    unit: int,
    statuses: list[int],
    task: int,
    stream: int = 3,
    valid: int = 1,
    length: int | None = None,
) -> bytes:
    """The same in the newer layout, of a core."""
    facts = [7, stream, task, *range(len(_NEWER) - 3), *statuses]
    head = struct.pack(
        "<6I", 0x5A5A5A5A, 1, valid, unit, 0, 8 * len(facts) if length is None else length
    )
    return (head + struct.pack(f"<{len(facts)}Q", *facts)).ljust(2048, b"\0")


def noted_json(
    unit: str, status: int, task: int, stream: int = 3
) -> dict[str, dict[str, int | str]]:
    """What msaccucmp makes of it."""
    known = {
        "model_id": 7,
        "stream_id": stream,
        "task_id": task,
        "task_type": 0,
        "pc_start": "0x1000",
        "para_base": "0x2000",
    }
    return {each: {**known, "status": status if each == unit else 0} for each in _UNITS}


def write_note(folder: Path, time: int, content: bytes, name: str = "Opdebug.Node_OpDebug") -> Path:
    """The file with what the device noted: a kernel dump whose output is bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.99.5.{1_700_000_000_000_000 + time}"
    path.write_bytes(kernel("Node_OpDebug", [], [Value(np.frombuffer(content, "uint8"), 4)]))
    return path
