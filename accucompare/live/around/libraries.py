"""Digests of the loaded shared libraries: another build computes other values from equal code."""

from __future__ import annotations

import contextlib
import os
import re
import sysconfig
from functools import lru_cache
from pathlib import Path

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
        with contextlib.suppress(OSError):  # it is gone
            status = os.stat(file)
            name = _PACKAGES.split(file)[-1] if _PACKAGES.search(file) else Path(file).name
            found[name] = _digest(file, status.st_mtime_ns, status.st_size)
    return found


@lru_cache(maxsize=4096)
def _digest(file: str, changed: int, size: int) -> str:
    """``changed`` is part of the cache's key."""
    return (
        f"{size} bytes" if size > MOST_READ else xxhash.xxh3_64_hexdigest(Path(file).read_bytes())
    )
