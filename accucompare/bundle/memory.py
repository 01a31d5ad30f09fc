"""Host memory for tensors that wait to be written: bounded, and used again when they are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

#: How long to wait for memory before asking whether anybody is left who could give some back, in seconds.
_PATIENCE = 0.5

#: Makes a block of host memory of so many bytes.
Allocate = Callable[[int], Any]


class Lease(NamedTuple):
    """A block of host memory, and what to call when nobody reads it any more; ``None`` for memory of the caller's own."""

    block: Any
    release: Callable[[], None]


class HostMemory:
    """Blocks of host memory, of which those in use and those kept for later together never exceed a bound.

    Fresh memory is slow, for the system has to clear it page by page; so a block that is released waits for the next tensor of its
    size. A tensor larger than the bound waits until it is alone.

    Attributes:
        held: bytes in use.
        idle: bytes kept for later.
        closed: whether nothing is kept, counted or waited for any more.
    """

    def __init__(self, limit: int, alive: Callable[[], bool]) -> None:
        """``alive`` says whether whoever releases the blocks still can; if not, nobody waits for them."""
        self.held = 0
        self.idle = 0
        self.closed = False
        self._limit = limit
        self._alive = alive
        self._kept: dict[tuple[Allocate, int], list[Any]] = {}
        self._changed = threading.Condition()

    def take(self, nbytes: int, allocate: Allocate | None = None) -> Lease:
        """Block until a tensor of this size has room, and give it memory; without ``allocate``, only count memory of the caller's own.

        The block may be up to an eighth longer.
        """
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
            block = None if allocate is None else self._reuse(allocate, size)
            while self._kept and self.held + self.idle > self._limit:
                self._drop_oldest()
        try:
            if block is None and allocate is not None:
                block = allocate(size)
        except BaseException:
            self._give_back(size, None, None)
            raise
        return Lease(block, lambda: self._give_back(size, allocate, block))

    def close(self) -> None:
        """Let everybody through who waits; after a failure nothing is written any more, so nothing will be released."""
        with self._changed:
            self._close()

    def _close(self) -> None:
        self.closed = True
        self.held = self.idle = 0
        self._kept.clear()
        self._changed.notify_all()

    def _give_back(self, size: int, allocate: Allocate | None, block: Any) -> None:
        with self._changed:
            if self.closed:
                return
            self.held -= size
            if allocate is not None and block is not None and self.held + self.idle + size <= self._limit:
                self.idle += size
                self._kept.setdefault((allocate, size), []).append(block)
            self._changed.notify_all()

    def _reuse(self, allocate: Allocate, size: int) -> Any:
        blocks = self._kept.get((allocate, size))
        if blocks is None:
            return None
        block = blocks.pop()  # the last one given back: the processor's cache may still hold it
        if not blocks:
            del self._kept[allocate, size]
        self.idle -= size
        return block

    def _drop_oldest(self) -> None:
        (key, blocks), *_ = self._kept.items()
        blocks.pop()
        if not blocks:
            del self._kept[key]
        self.idle -= key[1]


def _rounded_up(nbytes: int) -> int:
    """The next number with four significant bits, so that tensors that grow step by step find blocks to use again."""
    unit = 1 << max(nbytes.bit_length() - 4, 0)
    return -(-nbytes // unit) * unit


def _nothing() -> None:
    pass
