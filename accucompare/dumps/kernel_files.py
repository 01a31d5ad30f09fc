"""CANN's kernel dumps: a binary file per kernel,
``{op_type}.{op_name}.{task_id}.{stream_id}.{timestamp}``.

A file has a header's length (``<Q``), the header (a protobuf message
``toolkit.dumpdata.DumpData``), and the bytes of its tensors: inputs, outputs, buffers, workspaces.
The numbers of fields, types and formats are from Ascend's ``dump_data.proto``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from accucompare.dumps.dump_files import UnreadableError, read_at, size_of
from accucompare.dumps.items import LoadedItem
from accucompare.dumps.protobuf import fields, integers
from accucompare.numbers import DTYPES, Array

_Shape = tuple[int, ...]

#: Formats whose elements lie in the order of their shape, by their numbers in dump_data.proto.
PLAIN_FORMATS = {
    0: "NCHW",
    1: "NHWC",
    2: "ND",
    14: "CHWN",
    16: "HWCN",
    27: "NDHWC",
    30: "NCDHW",
    31: "DHWCN",
    34: "CN",
    35: "NC",
    36: "DHWNC",
}


def _from_nz(array: Array, original: _Shape) -> Array | None:
    """``[…, N1, M1, M0, N0]`` to ``[…, M, N]``."""
    if array.ndim < 4 or len(original) != array.ndim - 2 or array.shape[:-4] != original[:-2]:
        return None
    *_, n1, m1, m0, n0 = array.shape
    rows = np.moveaxis(array, -4, -2).reshape(*array.shape[:-4], m1 * m0, n1 * n0)
    return rows[..., : original[-2], : original[-1]]


def _from_channel_blocks(array: Array, original: _Shape) -> Array | None:
    """``[N, …, C1, H, W, C0]`` to ``[N, C, …, H, W]``, or ``[N, …, H, W, C]`` if only that fits."""
    if array.ndim < 5 or len(original) != array.ndim - 1:
        return None
    *lead, c1, h, w, c0 = array.shape
    places = (*lead, h, w)
    channels_last = np.moveaxis(array, -4, -2).reshape(*places, c1 * c0)
    if (original[0], *original[2:]) == places:
        return np.moveaxis(channels_last[..., : original[1]], -1, 1)
    return channels_last[..., : original[-1]] if original[:-1] == places else None


#: Formats that can be put into rows if the tensor's own shape is known.
BLOCKED: dict[int, tuple[str, Callable[[Array, _Shape], Array | None]]] = {
    3: ("NC1HWC0", _from_channel_blocks),
    29: ("FRACTAL_NZ", _from_nz),
    32: ("NDC1HWC0", _from_channel_blocks),
}


def in_rows(array: Array, format: int, original: _Shape) -> Array | None:
    """The elements of blocks of 16 or 32 (CANN's NZ, 5HD and 6HD) in the order of the tensor's own
    shape; ``None`` if the shapes do not fit. After CANN's documentation ("Data formats")."""
    _, undo = BLOCKED[format]
    if math.prod(original) > array.size:
        return None
    found = undo(array, original)
    return found if found is not None and found.shape == original else None


_HEADER_LIMIT = 16 << 20  # real ones have some hundred bytes
_MOST_DIMENSIONS = 64
_MOST_TENSORS = 10_000  # per kernel; real ones have about ten
_LONGEST_NAME = 4096

#: A kernel in its file's name. Another number may follow the stream, and the kind of task the time.
NAME = re.compile(
    r"(?P<kernel>(?P<type>[^.]+)\.(?P<name>.+?)\.(?P<task>\d{1,18})(?:\.(?P<stream>\d{1,18}))?"
    r"(?:\.\d{1,18})?\.(?P<time>\d{10,20})(?:\.\d{1,9}){0,4})"
)
#: The file that msaccucmp writes for a kernel's tensor.
NPY_NAME = re.compile(
    NAME.pattern + r"\.(?P<role>input|output)\.(?P<number>\d{1,6})(?P<more>(?:\.[^.]+)*)\.npy"
)

#: Types by their numbers in dump_data.proto. PyTorch lacks the others (HiFloat8, quantized, 4 and 6
#: bits, text).
_TYPES = {
    1: "float32",
    2: "float16",
    3: "int8",
    4: "uint8",
    5: "int16",
    6: "uint16",
    7: "int32",
    8: "int64",
    9: "uint32",
    10: "uint64",
    11: "bool",
    12: "float64",
    16: "complex64",
    17: "complex128",
    27: "bfloat16",
    32: "complex32",
    34: "float8_e5m2",
    35: "float8_e4m3fn",
    36: "float8_e8m0fnu",
}


@dataclass(frozen=True)
class _Fields:
    """The numbers of a message's fields."""

    size: int
    data: int
    original_shape: int = 0


#: By the number of DumpData's field, in the order of the tensors' bytes in the file.
_PARTS = {4: _Fields(5, 4, 6), 3: _Fields(6, 5, 7), 5: _Fields(3, 2), 8: _Fields(3, 2)}
_OP_NAME = 6


@dataclass(frozen=True)
class Tensor:
    """What a header says of one tensor, and where its bytes begin in the file."""

    type: int
    format: int
    shape: tuple[int, ...]
    original: tuple[int, ...]
    size: int
    at: int

    @property
    def dtype(self) -> str | None:
        """PyTorch's name of its type; ``None`` if PyTorch lacks it."""
        return _TYPES.get(self.type)

    @property
    def why_not(self) -> str:
        """Why its values do not fit PyTorch's types in rows; ``""`` if they do."""
        if self.dtype is None:
            return f"its type is number {self.type} of dump_data.proto, which PyTorch does not have"
        if self.format not in PLAIN_FORMATS and self.format not in BLOCKED:
            return (
                f"its format is number {self.format} of dump_data.proto, which is not put back into"
                " rows"
            )
        if self.format in BLOCKED and not self.original:
            return (
                f"it is in {BLOCKED[self.format][0]}, and the dump does not say its original shape"
            )
        return ""


@dataclass(frozen=True)
class Kernel:
    """A header: the kernel's name, or ``""``, and its tensors."""

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]


def load(tensor: Tensor, path: Path) -> LoadedItem:
    """The values of a tensor, in the order of its own shape. Raises UnreadableError if the file
    cannot be read, or does not fit its header."""
    dtype = tensor.dtype
    if dtype is None or tensor.why_not:
        raise UnreadableError(f"{path}: {tensor.why_not}")
    storage = DTYPES[dtype].storage
    count = math.prod(tensor.shape)
    if count * storage.itemsize != tensor.size:
        raise UnreadableError(
            f"{path}: says {tensor.size} bytes for the shape {str(list(tensor.shape))[:80]} of"
            f" {dtype}"
        )
    stored = np.dtype("u1") if dtype == "bool" else storage
    array = read_at(path, tensor.at, count, stored)
    if dtype == "bool":
        if (array > 1).any():
            raise UnreadableError(f"{path}: holds booleans that are neither 0 nor 1")
        array = array.view(storage)
    array = array.reshape(tensor.shape)
    if tensor.format in BLOCKED:
        rows = in_rows(array, tensor.format, tensor.original)
        if rows is None:
            shapes = (
                f"{list(tensor.shape)} of {BLOCKED[tensor.format][0]} and the original shape"
                f" {list(tensor.original)}"
            )
            raise UnreadableError(f"{path}: the shape {shapes} do not belong together")
        array = np.ascontiguousarray(rows)
    return LoadedItem(array, dtype)


def read_header(path: Path) -> Kernel:
    """What a kernel's file says of its tensors, read without their bytes. Raises UnreadableError if
    it is truncated or damaged, or its sizes do not add up to the file's."""
    size = size_of(path)
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(_HEADER_LIMIT, size - 8):
                raise UnreadableError(
                    f"{path}: is truncated, or no kernel dump (its header would have {length}"
                    " bytes)"
                )
            header = memoryview(file.read(length))
        name, parts = _parse(header, 8 + length)
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UnreadableError(f"{path}: its header is damaged ({error})") from None
    end = 8 + length + sum(tensor.size for tensors in parts.values() for tensor in tensors)
    if end != size:
        raise UnreadableError(f"{path}: its header says {end} bytes, but the file has {size}")
    return Kernel(name, parts[4], parts[3])


def _parse(header: memoryview, at: int) -> tuple[str, dict[int, list[Tensor]]]:
    """The kernel's name, and tensors by the field that holds them, the first at ``at``."""
    name, messages = "", {number: list[memoryview]() for number in _PARTS}
    for number, value in fields(header):
        if number in messages and isinstance(value, memoryview):
            messages[number].append(value)
            if len(messages[number]) > _MOST_TENSORS:
                raise ValueError(f"more than {_MOST_TENSORS:,} tensors")
        elif number == _OP_NAME and isinstance(value, memoryview):
            if len(value) > _LONGEST_NAME:
                raise ValueError(f"a name of {len(value):,} bytes")
            name = bytes(value).decode("utf-8", "backslashreplace")
    found: dict[int, list[Tensor]] = {}
    for number, numbers in _PARTS.items():
        found[number] = []
        for message in messages[number]:
            tensor = _tensor(message, numbers, at)
            found[number].append(tensor)
            at += tensor.size
    return name, found


def _tensor(message: memoryview, numbers: _Fields, at: int) -> Tensor:
    scalars = {1: 0, 2: 0, numbers.size: 0}
    shapes: dict[int, tuple[int, ...]] = {3: (), numbers.original_shape: ()}
    for number, value in fields(message):
        if number == numbers.data and isinstance(value, memoryview) and len(value):
            raise ValueError("a tensor's bytes are inside of it")
        # before the shape: a buffer's size has the field number of a tensor's shape
        if number == numbers.size and isinstance(value, int):
            scalars[number] = value
        elif number in shapes and isinstance(value, memoryview):
            lengths = (
                length for inner, each in fields(value) if inner == 1 for length in integers(each)
            )
            shapes[number] = tuple(islice(lengths, _MOST_DIMENSIONS + 1))
            if len(shapes[number]) > _MOST_DIMENSIONS:
                raise ValueError(f"a shape of more than {_MOST_DIMENSIONS} dimensions")
        elif number in scalars and isinstance(value, int):
            scalars[number] = value
    return Tensor(
        scalars[1],
        scalars[2],
        shapes[3],
        shapes.get(numbers.original_shape, ()),
        scalars[numbers.size],
        at,
    )
