"""Host memory for tensors that wait to be written: bounded, and reused by later captures, too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

#: How many bytes of blocks a process keeps from one capture to the next.
KEPT_BYTES = 512 << 20

#: Seconds to wait for memory before checking that somebody is left to release some.
_PATIENCE = 0.5

#: Makes a block of host memory of so many bytes.
Allocate = Callable[[int], Any]


class Lease(NamedTuple):
    """Host memory, and what releases it. No block: the caller's own memory, which only counts."""

    block: Any
    release: Callable[[], None]


class IdleBlocks:
    """Blocks that wait for the next tensor of their size; ``nbytes`` is their total."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._blocks: dict[tuple[Allocate, int], list[Any]] = {}

    def add(self, allocate: Allocate, size: int, block: Any) -> None:
        self._blocks.setdefault((allocate, size), []).append(block)
        self.nbytes += size

    def pop(self, allocate: Allocate, size: int) -> Any:
        """The newest block of a size, which may still be in the processor's cache."""
        return self._pop((allocate, size)) if (allocate, size) in self._blocks else None

    def shrink(self, nbytes: int) -> None:
        """Free idle blocks, the first-added size first, until at most ``nbytes`` are left."""
        while self._blocks and self.nbytes > nbytes:
            self._pop(next(iter(self._blocks)))

    def _pop(self, key: tuple[Allocate, int]) -> Any:
        block = self._blocks[key].pop()
        if not self._blocks[key]:
            del self._blocks[key]
        self.nbytes -= key[1]
        return block


#: The blocks of the last capture that ended, until the next one begins.
_between: list[IdleBlocks] = []


class HostMemory:
    """Blocks of host memory in use and kept for later, together never more than a bound.

    Fresh memory is slow, since the system clears it page by page. So a released block waits for the
    next tensor of its size, and for this process's next capture. A tensor larger than the bound
    waits until it is alone.

    Attributes:
        held: bytes in use.
        closed: whether nothing is kept, counted or waited for any more.
    """

    def __init__(self, limit: int, alive: Callable[[], bool]) -> None:
        """``alive`` tells whether somebody can still release blocks; if not, nobody waits."""
        self.held = 0
        self.closed = False
        self._limit = limit
        self._alive = alive
        self._idle = _left_behind()
        self._idle.shrink(limit)
        self._changed = threading.Condition()

    @property
    def idle(self) -> int:
        """Bytes kept for later."""
        return self._idle.nbytes

    def take(self, nbytes: int, allocate: Allocate | None = None) -> Lease:
        """Block until a tensor of this size has room, and give it memory that may be an eighth
        longer. Without ``allocate``, only count the caller's own memory."""
        size = nbytes if allocate is None else _rounded_up(nbytes)
        with self._changed:
            while not (self.closed or self.held == 0 or self.held + size <= self._limit):
                if not self._alive():
                    self._close()
                else:
                    self._changed.wait(_PATIENCE)
            if self.closed:
                return Lease(allocate and allocate(size), _nothing)
            self.held += size
            block = None if allocate is None else self._idle.pop(allocate, size)
            self._idle.shrink(self._limit - self.held)
        try:
            if block is None and allocate is not None:
                block = allocate(size)
        except BaseException:
            self._give_back(size, None, None)
            raise
        return Lease(block, lambda: self._give_back(size, allocate, block))

    def close(self) -> None:
        """Let everybody through who waits: after a failure nothing is written, nor released."""
        with self._changed:
            self._close()

    def leave(self) -> None:
        """Close, and leave the kept blocks to the next capture."""
        with self._changed:
            idle = self._idle
            self._close()
        idle.shrink(KEPT_BYTES)
        _between[:] = [idle]

    def _close(self) -> None:
        self.closed = True
        self.held = 0
        self._idle = IdleBlocks()
        self._changed.notify_all()

    def _give_back(self, size: int, allocate: Allocate | None, block: Any) -> None:
        with self._changed:
            if self.closed:
                return
            self.held -= size
            if (
                allocate is not None
                and block is not None
                and self.held + self.idle + size <= self._limit
            ):
                self._idle.add(allocate, size, block)
            self._changed.notify_all()


def _left_behind() -> IdleBlocks:
    """The blocks of an earlier capture, unless another capture has taken them."""
    try:
        return _between.pop()
    except IndexError:
        return IdleBlocks()


def _rounded_up(nbytes: int) -> int:
    """The next number with four significant bits, so that growing tensors reuse blocks."""
    unit = 1 << max(nbytes.bit_length() - 4, 0)
    return -(-nbytes // unit) * unit


def _nothing() -> None:
    pass
