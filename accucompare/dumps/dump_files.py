"""The files that dumps are made of: JSON, ``.npy``, ``.npz``, ``.safetensors``, ``.pt``. Every size
is checked before reading.

Only a ``.pt`` is unpickled, by ``torch.load(weights_only=True)``, which builds tensors and plain
containers only. A ``.safetensors`` is read here, since its library's NumPy side knows neither
bfloat16 nor float8."""

from __future__ import annotations

import json
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeGuard

import numpy as np

from accucompare.dumps.items import LoadedItem
from accucompare.errors import BundleError
from accucompare.numbers import DTYPES, Array
from accucompare.text import with_article

_JSON_LIMIT = 1 << 30  # msprobe's index of 100,000 calls has about 200 MB
_HEADER_LIMIT = 100_000_000  # of a .safetensors, as in its own library
_NPY_HEADER_LIMIT = 10_000  # as NumPy's
_MOST_DIMENSIONS = 64
_MOST_ELEMENTS = 1 << 59  # of 16 bytes, in memory of 63 bits
#: Bytes that any compressed or expanded tensor may take in memory; beyond that, the allowed
#: multiple of its file.
_SMALL, _RATIO = 256 << 20, 100

_SAFETENSORS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
#: The types that NumPy has under their own names.
_PLAIN = {name: dtype for name, dtype in DTYPES.items() if dtype.storage == dtype.widened}


class UnreadableError(Exception):
    """An item's values cannot be read: which file, and why. The others are imported."""


def inside(folder: Path, name: str) -> Path:
    """The file of that name in a folder. Raises BundleError if the name leads out of the folder: by
    ``..``, an absolute path or a link."""
    path = folder / name
    root = os.path.realpath(folder)
    if (
        os.path.isabs(name)
        or "\0" in name
        or os.path.commonpath([root, os.path.realpath(path)]) != root
    ):
        raise BundleError(
            f"{folder}: names the file {name[:200]!r}, which leads out of the dump; refused"
        )
    return path


def size_of(path: Path) -> int:
    """The size of a regular file. Raises UnreadableError if it is missing, or no regular file."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would wait for its writer
        raise UnreadableError(f"{path}: is not a regular file")
    return status.st_size


def read_json(path: Path) -> Any:
    """The content of a JSON file; ``NaN`` and ``Infinity`` are numbers. Raises BundleError if it is
    missing, too large, or damaged."""
    try:
        if size_of(path) > _JSON_LIMIT:
            raise BundleError(f"{path}: is larger than {_JSON_LIMIT >> 20} MiB; refused")
        with path.open(encoding="utf-8") as file:
            return json.load(file)
    except UnreadableError as error:
        raise BundleError(str(error)) from None
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(
            f"{path}: is truncated or damaged; it is not valid JSON ({error})"
        ) from None


def load_npy(path: Path) -> LoadedItem:
    """The array of a ``.npy``. Raises UnreadableError if it is missing, truncated or damaged, or
    holds objects."""
    size = size_of(path)
    try:
        with path.open("rb") as file:
            return read_npy(file, size, str(path))
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read ({error.strerror})") from None


def names_in_npz(path: Path) -> list[str]:
    """The names of the arrays in a ``.npz``, in order. Errors as ``load_npz``."""
    archive = _opened_zip(path)
    return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def load_npz(path: Path, name: str) -> LoadedItem:
    """One array of a ``.npz``. Raises UnreadableError if it is missing, truncated or damaged, holds
    objects, or decompresses to far too much."""
    archive = _opened_zip(path)
    try:
        info = archive.getinfo(f"{name}.npy")
        if info.file_size > max(_SMALL, _RATIO * info.compress_size):
            raise UnreadableError(
                f"{path}: {name} is {info.file_size >> 20} MiB when decompressed; refused"
            )
        with archive.open(info) as file:
            return read_npy(file, info.file_size, f"{path}: {name}")
    except (
        KeyError,
        OSError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        RuntimeError,
        ValueError,
    ) as error:
        raise UnreadableError(f"{path}: {name} is damaged ({error})") from None


def safetensors_index(path: Path) -> dict[str, dict[str, Any]]:
    """The header of a ``.safetensors``: for each tensor its dtype, shape and data_offsets. Raises
    UnreadableError if it is missing, truncated or damaged."""
    size = size_of(path)
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_HEADER_LIMIT, size - 8):
                raise UnreadableError(f"{path}: is truncated, or no .safetensors")
            header = json.loads(file.read(length))
        if not isinstance(header, dict):
            raise ValueError("its header is no table")
        header.pop("__metadata__", None)
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            nbytes = (
                math.prod(as_shape(entry["shape"]))
                * DTYPES[_SAFETENSORS[entry["dtype"]]].storage.itemsize
            )
            if not 0 <= first <= last <= size - 8 - length or last - first != nbytes:
                raise ValueError(
                    f"{name[:80]!r} lies outside of the file, or has another size than its shape"
                )
            entry["at"] = 8 + length + first
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableError(
            f"{path}: is damaged ({type(error).__name__}: {str(error)[:200]})"
        ) from None
    return header


def load_safetensors(path: Path, entry: dict[str, Any]) -> LoadedItem:
    """One tensor of a ``.safetensors``, by its entry in ``safetensors_index``. Errors as there."""
    dtype, shape = DTYPES[_SAFETENSORS[entry["dtype"]]], as_shape(entry["shape"])
    return LoadedItem(
        read_at(path, entry["at"], math.prod(shape), dtype.storage).reshape(shape), dtype.name
    )


def tensors_in_pt(path: Path) -> list[tuple[str, str]]:
    """The names of the tensors in a ``.pt``; other values' names with what they are. ``""`` names
    the content, if it is no container.

    A tensor inside containers has their keys and indices before its own, joined by ``/``. Errors as
    ``load_pt``."""
    return list(_leaves(load_pt(path), ""))


def _leaves(value: Any, name: str) -> Iterator[tuple[str, str]]:
    import torch

    if isinstance(value, torch.Tensor):
        yield name, ""
    elif isinstance(value, (dict, list, tuple)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            yield from _leaves(part, f"{name}/{key}" if name else str(key))
    elif value is not None:
        yield name, f"{with_article(type(value).__name__)}, and no tensor"


def load_pt(path: Path) -> Any:
    """What ``torch.save`` wrote: tensors on the CPU, or plain containers of them. Raises
    UnreadableError if it is missing, truncated or damaged, holds anything else, grows when it is
    read, or torch is not installed."""
    return _loaded_pt(path, _stamp(path))


@lru_cache(maxsize=1)  # a file with many tensors is opened once
def _loaded_pt(path: Path, stamp: tuple[int, int]) -> Any:
    archive = _opened_zip(path)  # before PyTorch 1.6 it is no ZIP
    if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
        raise UnreadableError(f"{path}: is compressed, as torch.save never does; refused")
    try:
        import torch  # only a .pt needs it
    except ImportError:
        raise UnreadableError(
            f"{path}: needs torch to be read, which is not installed: pip install"
            " accucompare[torch]"
        ) from None
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except MemoryError:
        raise UnreadableError(f"{path}: does not fit into memory") from None
    # the unpickler, archive reader and rebuilding of tensors raise anything
    except Exception as error:
        if "weights_only" in str(error) or "Weights only" in str(error):
            raise UnreadableError(
                f"{path}: holds more than tensors and plain containers; refused, for opening it"
                " could run code"
            ) from None
        raise UnreadableError(
            f"{path}: is damaged"
            f" ({str(error).splitlines()[0][:200] if str(error) else type(error).__name__})"
        ) from None


def of_tensor(tensor: Any, path: Path) -> LoadedItem:
    """The values of a tensor that came from a file. Raises UnreadableError if it is sparse,
    quantized or nested, of a type that a bundle cannot hold, or far larger than its file."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise UnreadableError(f"{path}: holds {with_article(type(tensor).__name__)}, and no tensor")
    name = str(tensor.dtype).removeprefix("torch.")
    if (
        tensor.layout is not torch.strided
        or tensor.is_nested
        or tensor.is_meta
        or name not in DTYPES
    ):
        raise UnreadableError(
            f"{path}: holds a {tensor.layout} tensor of {name}, which cannot be compared"
        )
    if tensor.numel() * tensor.element_size() > max(_SMALL, _RATIO * size_of(path)):
        raise UnreadableError(
            f"{path}: a tensor of shape {list(tensor.shape)}, far larger than its file; refused"
        )
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    storage = DTYPES[name].storage
    bits = (
        plain
        if name in _PLAIN
        else plain.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[storage.itemsize])
    )
    return LoadedItem(bits.numpy().view(storage), name)


def leaves_in_json(
    value: Any, is_leaf: Callable[[dict[str, Any]], bool], path: str = ""
) -> Iterator[tuple[str, Any]]:
    """The leaves of nested lists and tables, with their paths; without ``None``."""
    if isinstance(value, list):
        parts: Iterable[tuple[Any, Any]] = enumerate(value)
    elif isinstance(value, dict) and not is_leaf(value):
        parts = value.items()
    else:
        if value is not None:
            yield path, value
        return
    for part, child in parts:
        yield from leaves_in_json(child, is_leaf, f"{path}.{part}" if path else str(part))


def as_shape(lengths: Any) -> tuple[int, ...]:
    """A shape from an index. Raises ValueError if no tensor has it."""
    if not isinstance(lengths, (list, tuple)) or len(lengths) > _MOST_DIMENSIONS:
        raise ValueError(f"the impossible shape {str(lengths)[:80]}")
    if (
        any(type(length) is not int or not 0 <= length < 1 << 63 for length in lengths)
        or math.prod(filter(None, lengths)) >= _MOST_ELEMENTS
    ):
        raise ValueError(f"the impossible shape {str(lengths)[:80]}")
    return tuple(lengths)


def is_scalar(value: Any) -> TypeGuard[bool | int | float]:
    """Whether a value is a Python number that an array can hold."""
    return type(value) in (bool, float) or (type(value) is int and -(1 << 63) <= value < 1 << 63)


def scalar(number: bool | int | float) -> LoadedItem:
    """A Python number as a capture records it: a 0-d array."""
    name = {bool: "bool", int: "int64", float: "float64"}[type(number)]
    return LoadedItem(np.array(number, DTYPES[name].storage), name)


def _stamp(path: Path) -> tuple[int, int]:
    """What changes when a file is replaced or written to."""
    size = size_of(path)
    return path.stat().st_mtime_ns, size


def _opened_zip(path: Path) -> zipfile.ZipFile:
    return _zip(path, _stamp(path))


@lru_cache(maxsize=1)  # its directory is read once for all members
def _zip(path: Path, stamp: tuple[int, int]) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise UnreadableError(
            f"{path}: is truncated, or no file of its kind"
            f" ({getattr(error, 'strerror', None) or error})"
        ) from None


def read_at(path: Path, offset: int, count: int, dtype: np.dtype[Any]) -> Array:
    """So many elements of a file from an offset. Raises UnreadableError if it cannot be read."""
    try:
        found: Array = np.fromfile(path, dtype, count, offset=offset)
    except (OSError, MemoryError) as error:
        raise UnreadableError(
            f"{path}: cannot be read"
            f" ({getattr(error, 'strerror', None) or 'it does not fit into memory'})"
        ) from None
    if found.size != count:
        raise UnreadableError(f"{path}: ends early")
    return found


def read_npy(file: IO[bytes], size: int, place: str) -> LoadedItem:
    """The array in ``size`` bytes of a file, ZIP member or buffer. Raises UnreadableError if it is
    truncated or damaged, or holds objects; OSError if it cannot be read."""
    try:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran, found = read(file, max_header_size=_NPY_HEADER_LIMIT)
        shape = as_shape(shape)
    except Exception as error:  # NumPy passes on errors of Python's tokenizer, parser and dtypes
        raise UnreadableError(
            f"{place}: is truncated, or no .npy"
            f" ({str(error).splitlines()[0][:200] if str(error) else error!r})"
        ) from None
    if found.hasobject:
        raise UnreadableError(
            f"{place}: holds objects, and not numbers; refused, for reading it could run code"
        )
    name = found.newbyteorder("=").name
    if (
        name not in DTYPES
        or DTYPES[name].storage.itemsize != found.itemsize
        or found.kind not in "fiucb"
    ):
        raise UnreadableError(f"{place}: holds {found}, which is no type of PyTorch's")
    nbytes = math.prod(shape) * found.itemsize
    if nbytes != size - file.tell():
        raise UnreadableError(
            f"{place}: its header says {nbytes} bytes of data, but there are {size - file.tell()}"
        )
    array = np.empty(math.prod(shape), found)
    view, done = memoryview(array.view("u1")), 0
    while done < nbytes:
        part = file.read(min(nbytes - done, 1 << 20))
        if not part:
            raise UnreadableError(f"{place}: ends early")
        view[done : done + len(part)] = part
        done += len(part)
    shaped = np.ascontiguousarray(array.reshape(shape, order="F" if fortran else "C"))
    storage = DTYPES[name].storage
    in_order = shaped.astype(shaped.dtype.newbyteorder("<"), copy=False)
    return LoadedItem(np.ascontiguousarray(in_order).reshape(shape).view(storage), name)
