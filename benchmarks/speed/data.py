"""Bundles to compare, and their files: ``python -m benchmarks.speed.data FOLDER TENSORS ELEMENTS
STEPS``.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.speed.plan import DataSet
from benchmarks.timing import child

if TYPE_CHECKING:
    import numpy as np

SEED = 20261120
# relative, of every element: no two tensors have equal digests, and all are within tolerance
NOISE = 1e-6
_CHUNK = 1 << 20
_PARTS = ("q", "k", "v", "o", "gate", "up", "down", "norm")


def make(folder: Path, data: DataSet) -> tuple[Path, Path]:
    """Write the bundles ``golden`` and ``candidate``, by a process of its own, and give their
    paths.
    """
    child("benchmarks.speed.data", folder, data.tensors, data.elements, data.steps)
    return folder / "golden", folder / "candidate"


def files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())


def bytes_in(*folders: Path) -> int:
    return sum(path.stat().st_size for path in files(*folders))


def distinct_bytes(folder: Path) -> int:
    """Of all tensors in a bundle, each counted once a step."""
    import accucompare as ac
    from accucompare.numbers.dtypes import DTYPES

    with ac.open_bundle(folder) as bundle:
        return sum(
            {
                (record.step, record.digest, record.dtype, record.shape): (
                    math.prod(record.shape) * DTYPES[record.dtype].storage.itemsize
                )
                for record in bundle.records()
                if record.member is not None
            }.values()
        )


def drop(paths: Iterable[Path]) -> None:
    """Let the system forget what it has cached of these files. Needs no rights beyond reading
    them."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())  # only clean pages can be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached(paths: Iterable[Path]) -> float:
    """The share of these files' pages that is in the page cache; NaN where the system does not
    say."""
    libc = ctypes.CDLL(None, use_errno=True)
    pages = there = 0
    for path in paths:
        size = path.stat().st_size
        if not size:
            continue
        count = -(-size // mmap.PAGESIZE)
        seen = (ctypes.c_ubyte * count)()
        # private, for from_buffer wants to write
        with path.open("rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as view:
            start = ctypes.c_char.from_buffer(view)
            failed = libc.mincore(
                ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), seen
            )
            del start
        if failed:
            return float("nan")
        pages += count
        there += sum(page & 1 for page in bytes(seen))
    return there / pages if pages else 0.0


def _write(folder: Path, tensors: int, elements: int, steps: int, noisy: bool) -> None:
    from accucompare.bundle.format.manifest import Manifest
    from accucompare.bundle.format.records import Layout, Record, Role
    from accucompare.bundle.writing.writer import BundleWriter

    writer = BundleWriter(folder, Manifest(complete=True), queue_bytes=256 << 20)
    for step in range(steps):
        for index in range(tensors):
            name = f"model.layers.{index // 8}.{_PARTS[index % 8]}_proj"
            place = 0, step, name, 0, Role.OUTPUT, "", index, "Linear", None
            record = Record(*place, (elements,), "float32", Layout.STRIDED)
            writer.add(record, noisy_tensor(step * tensors + index, elements, noisy))
        writer.end_step(step)
    writer.close()


def noisy_tensor(index: int, elements: int, noisy: bool) -> np.ndarray[Any, Any]:
    """Normally distributed values; the noise moves every one of them by 0.5 to 1.5 times ``NOISE``,
    up or down.
    """
    import numpy as np

    values = np.random.default_rng((SEED, index))
    signs = np.random.default_rng((SEED, index, 1))
    tensor = np.empty(elements, np.float32)
    for start in range(0, elements, _CHUNK):
        chunk = tensor[start : start + _CHUNK]
        values.standard_normal(dtype=np.float32, out=chunk)
        if noisy:
            noise = signs.random(chunk.size, dtype=np.float32) * np.float32(2) - np.float32(1)
            chunk *= 1 + (noise + np.copysign(np.float32(0.5), noise)) * np.float32(NOISE)
    return tensor


if __name__ == "__main__":
    target = Path(sys.argv[1])
    number, length, count = (int(word) for word in sys.argv[2:])
    for side in ("golden", "candidate"):
        _write(target / side, number, length, count, noisy=side == "candidate")
    print(json.dumps({"bytes": bytes_in(target)}))
