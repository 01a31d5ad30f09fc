"""Work on a large tensor that other threads share, while the thread that needs it waits."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_T = TypeVar("_T")

_helper: list[ThreadPoolExecutor] = []  # at most one, of so many threads
_HELPERS = max(1, min(3, (os.cpu_count() or 1) // 4))


def shared(act: Callable[[int], _T], count: int) -> list[_T]:
    """``[act(0), act(1), …]``, some of them by helping threads, if processors are free for them.

    ``act`` should take at least 50 µs, most of it without the GIL."""
    waiting = deque(range(count))
    found: dict[int, _T] = {}

    def work() -> None:
        while waiting:
            try:
                place = waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            found[place] = act(place)

    helping = [_begun(work) for _ in range(min(_HELPERS, count - 1))]
    try:
        work()
    finally:
        waiting.clear()
        for each in helping:
            if each is not None and not each.cancel():
                each.result()
    return [found[place] for place in range(count)]


def _begun(work: Callable[[], None]) -> Future[None] | None:
    if not _helper:
        from concurrent.futures import ThreadPoolExecutor  # most commands start without it

        _helper.append(ThreadPoolExecutor(_HELPERS, "accucompare-helper"))
    try:
        return _helper[0].submit(work)
    except RuntimeError:  # Python is ending
        return None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helper.clear)  # a fork has no threads
