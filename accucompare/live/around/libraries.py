"""Digests of the loaded shared libraries: another build computes other values from equal code."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sysconfig
from functools import lru_cache
from pathlib import Path
from typing import Any

import xxhash

#: The process's memory by file, where the system lists it (Linux).
_MAPS = Path("/proc/self/maps")

#: Folders of the system's and Python's libraries.
_SYSTEM = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
#: Packages whose versions identify their builds (hundreds of MB), and those that only we need.
_KNOWN = re.compile(
    r"/(site|dist)-packages/(torch|torch_npu|numpy|numpy\.libs|nvidia|triton|"
    r"accucompare|isal|lxml|markupsafe|ml_dtypes|msgspec|pandas|rapidfuzz|regex|xxhash)/"
)
_PACKAGES = re.compile(r"/(?:site|dist)-packages/")

#: Bytes. A larger library is identified by its size.
MOST_READ = 2 << 20


def loaded_libraries() -> dict[str, str]:
    """Digests of the loaded shared libraries, by path below the packages' folder, else by name.

    The system's, Python's own, ours, and those of packages with known versions are left out.
    """
    changes = _loads_and_unloads()
    found = {}
    for file, inode in (_files() if changes is None else _files_after(changes)).items():
        with contextlib.suppress(OSError):  # it is gone
            status = os.stat(file)
            if status.st_ino == inode:  # else another one has its place
                name = _PACKAGES.split(file)[-1] if _PACKAGES.search(file) else Path(file).name
                found[name] = _digest(file, status.st_mtime_ns, status.st_size)
    return found


def _files() -> dict[str, int]:
    """The files of those libraries, and their inodes; to list a process's memory takes the system a
    millisecond."""
    try:
        lines = _MAPS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return {}
    files = {line.split(maxsplit=5)[5] for line in lines if line.count("/") and ".so" in line}
    found = {}
    for file in sorted(files):
        if (
            file.startswith(_SYSTEM)
            or _KNOWN.search(file)
            or (file.startswith(_STANDARD) and not _PACKAGES.search(file))
        ):
            continue
        with contextlib.suppress(OSError):
            found[file] = os.stat(file).st_ino
    return found


@lru_cache(maxsize=1)
def _files_after(changes: tuple[int, int]) -> dict[str, int]:
    """After as many loads and unloads, the same libraries are there."""
    return _files()


class _Loaded(ctypes.Structure):
    """C's ``struct dl_phdr_info``, as glibc and musl have it."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("count", ctypes.c_uint16),
        ("loads", ctypes.c_ulonglong),
        ("unloads", ctypes.c_ulonglong),
    )


def _loads_and_unloads() -> tuple[int, int] | None:
    """How many libraries this process has loaded and unloaded, where the system counts them."""
    counts: list[tuple[int, int]] = []

    def first(info: Any, size: int, _: object) -> int:
        if size >= ctypes.sizeof(_Loaded):
            counts.append((info.contents.loads, info.contents.unloads))
        return 1  # ends the walk

    try:
        walk = ctypes.CDLL(None).dl_iterate_phdr
        walk(_CALLED(first), None)
    # not this system (Windows: TypeError); no memory that may run
    except (AttributeError, OSError, MemoryError, TypeError):
        return None
    return counts[0] if counts else None


_CALLED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Loaded), ctypes.c_size_t, ctypes.c_void_p)


@lru_cache(maxsize=4096)
def _digest(file: str, changed: int, size: int) -> str:
    """``changed`` is part of the cache's key."""
    return (
        f"{size} bytes" if size > MOST_READ else xxhash.xxh3_64_hexdigest(Path(file).read_bytes())
    )
