"""Host memory for tensors that wait to be written: bounded, and reused by later captures, too."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from accucompare.numbers import Array

#: How many bytes of slabs a process keeps from one capture to the next.
KEPT_BYTES = 512 << 20

#: Bytes of a slab, unless a tensor needs more or the bound leaves less.
SLAB = 64 << 20

#: Bytes. Blocks begin at a multiple of it in their slab, so that a disk can take them as they are.
GRAIN = 4096

#: Seconds to wait for memory before checking that somebody is left to release some.
_PATIENCE = 0.5

#: Makes host memory of so many bytes: an array or a tensor of bytes.
Allocate = Callable[[int], Any]


class Lease(NamedTuple):
    """Host memory, and what releases it. No block: the caller's own memory, which only counts."""

    block: Array | None
    release: Callable[[], None]


def _nothing() -> None:
    pass


#: Of a tensor in memory that was lent, which is not counted.
LENT = Lease(None, _nothing)


class _Slab:
    """Memory that blocks are cut from, always where it is lowest: what was used last is used again,
    and the system has to clear little."""

    def __init__(self, allocate: Allocate, size: int) -> None:
        self.allocate = allocate
        self.size = size
        self.memory = np.asarray(allocate(size)).view(np.uint8)
        self._free = [(0, size)]  # from where to where, ascending, never adjacent

    @property
    def is_free(self) -> bool:
        return self._free == [(0, self.size)]

    def cut(self, size: int) -> int | None:
        """Where a block of this size begins; ``None`` if there is no room for it."""
        for place, (start, end) in enumerate(self._free):
            if end - start >= size:
                self._free[place : place + 1] = [(start + size, end)] if end - start > size else []
                return start
        return None

    def give_back(self, start: int, size: int) -> None:
        end, place = start + size, bisect_left(self._free, (start, 0))
        if place < len(self._free) and self._free[place][0] == end:
            _, end = self._free.pop(place)
        if place and self._free[place - 1][1] == start:
            place -= 1
            start, _ = self._free.pop(place)
        self._free.insert(place, (start, end))


#: The free slabs of the last capture that ended, until the next one begins.
_between: list[list[_Slab]] = []


class HostMemory:
    """Host memory in use and kept for later, together not more than a bound.

    Fresh memory is slow, since the system clears it page by page. So a released block is used for
    the next tensor, and by this process's next capture. A tensor larger than the bound waits until
    it is alone. What is lent comes on top of the bound."""

    def __init__(self, limit: int, alive: Callable[[], bool]) -> None:
        """``alive`` tells whether somebody can still release blocks; if not, nobody waits."""
        self.held = 0  # bytes in use, without those lent
        self.closed = False  # whether nothing is kept, counted or waited for any more
        self._own = 0  # of held, the callers' own memory
        self._lent = 0  # bytes
        # blocks that were lent and that nobody refers to any more
        self._returned: deque[tuple[_Slab, int, int]] = deque()
        self._limit = limit
        self._alive = alive
        try:
            self._slabs = _between.pop()
        except IndexError:  # none was left, or another capture has taken them
            self._slabs = []
        self._shrink(limit)
        self._changed = threading.Condition()

    @property
    def kept(self) -> int:
        """Bytes of all slabs, in use or not."""
        return sum(slab.size for slab in self._slabs)

    def take(self, nbytes: int, allocate: Allocate | None = None) -> Lease:
        """Block until a tensor of this size has room, and give it memory. Without ``allocate``,
        only count the caller's own."""
        with self._changed:
            while not self.closed:
                self._take_back()
                if self.held == 0 or self.held + nbytes <= self._limit:
                    lease = (
                        self._of_the_caller(nbytes)
                        if allocate is None
                        else self._block(nbytes, allocate)
                    )
                    if lease is not None:
                        self.held += nbytes
                        return lease
                if not self._alive():
                    self._close()
                else:
                    self._changed.wait(_PATIENCE)
        block = None if allocate is None else np.asarray(allocate(nbytes)).view(np.uint8)
        return Lease(block, _nothing)

    def lend(self, nbytes: int, allocate: Allocate) -> Array:
        """Memory for what somebody keeps for a while, without waiting. It comes back by itself when
        the last reference to the returned array is gone."""
        with self._changed:
            self._take_back()
            if self.closed:
                return np.asarray(allocate(nbytes)).view(np.uint8)
            size = _rounded_up(nbytes)
            self._lent += size
            slab, start = self._place(nbytes, allocate) or self._new_slab(allocate, size)
        block = slab.memory[start : start + nbytes]
        weakref.finalize(block, self._returned.append, (slab, start, size)).atexit = False
        return block

    def take_back(self) -> None:
        """Keep no more than the bound of what was lent and has come back."""
        with self._changed:
            self._take_back()

    def _take_back(self) -> None:
        if self._returned:
            while self._returned:
                slab, start, size = self._returned.popleft()
                self._lent -= size
                slab.give_back(start, size)
            self._shrink(self._limit + self._lent - self._own)

    def _of_the_caller(self, nbytes: int) -> Lease:
        self._own += nbytes
        self._shrink(self._limit + self._lent - self._own)
        return Lease(None, lambda: self._give_back(nbytes, None, 0))

    def _block(self, nbytes: int, allocate: Allocate) -> Lease | None:
        """A block; ``None`` if what is free lies in too small pieces."""
        if (place := self._place(nbytes, allocate)) is None:
            return None
        slab, start = place
        block = slab.memory[start : start + nbytes]
        return Lease(block, lambda: self._give_back(nbytes, slab, start))

    def _place(self, nbytes: int, allocate: Allocate) -> tuple[_Slab, int] | None:
        size = _rounded_up(nbytes)
        for slab in self._slabs:
            if slab.allocate == allocate and (start := slab.cut(size)) is not None:
                return slab, start
        bound = self._limit + self._lent - self._own
        if bound - self.kept < size:
            self._shrink(bound - size)
        room = bound - self.kept
        if room < size and self.held > self._own:
            return None
        return self._new_slab(allocate, size, room)

    def _new_slab(self, allocate: Allocate, size: int, room: int = 0) -> tuple[_Slab, int]:
        """A slab with a first block of this size, and where that begins."""
        slab = _Slab(allocate, max(size, min(SLAB, room)))
        self._slabs.append(slab)
        slab.cut(size)
        return slab, 0

    def close(self) -> None:
        """Let everybody through who waits: after a failure nothing is written, nor released."""
        with self._changed:
            self._close()

    def leave(self) -> None:
        """Close, and leave free slabs to the next capture."""
        with self._changed:
            self._take_back()
            self._slabs = [slab for slab in self._slabs if slab.is_free]
            self._shrink(KEPT_BYTES)
            _between[:] = [self._slabs]
            self._close()

    def _shrink(self, nbytes: int) -> None:
        """Free slabs that are not in use, the last first, until at most ``nbytes`` are left."""
        excess = self.kept - nbytes
        for slab in reversed(self._slabs) if excess > 0 else ():
            if excess > 0 and slab.is_free:
                self._slabs.remove(slab)
                excess -= slab.size

    def _close(self) -> None:
        self.closed = True
        self.held = self._own = 0
        self._slabs = []
        self._changed.notify_all()

    def _give_back(self, nbytes: int, slab: _Slab | None, start: int) -> None:
        with self._changed:
            if self.closed:
                return
            self.held -= nbytes
            if slab is None:
                self._own -= nbytes
            else:
                slab.give_back(start, _rounded_up(nbytes))
            self._changed.notify_all()


def _rounded_up(nbytes: int) -> int:
    return max(1, -(-nbytes // GRAIN)) * GRAIN
