"""Writing large members past the system's page cache, straight from their memory to the disk.

A copy into fresh pages of the cache takes a virtual machine's processor about a second a gigabyte,
and those pages crowd out the model's. Past the cache the processor has nothing to do, but the
writer waits for the disk. So a slow disk is written through the cache while that is faster.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time

import numpy as np

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


def rates_of(file: int) -> Rates:
    """Of the disk that holds an open file."""
    return _rates.setdefault(os.fstat(file).st_dev, Rates())


def write_past(file: int, data: memoryview, rates: Rates) -> int:
    """Write the whole pages of ``data`` at the file's position, if all lies at multiples of PAGE.

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
