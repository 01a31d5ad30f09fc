"""``os._exit``, which skips Python's end."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from typing import NoReturn

#: Seconds that ``os._exit`` waits for us at most.
_PATIENCE = 60.0


def before_os_exit(act: Callable[[], None], needed: Callable[[], bool]) -> None:
    """From now on, run ``act`` before ``os._exit`` if it is ``needed`` then; for a limited time."""
    leave = os._exit

    def end() -> None:
        with contextlib.suppress(BaseException):  # nobody is left to tell
            act()

    @functools.wraps(leave)
    def leave_after_us(status: int) -> NoReturn:
        if needed():
            ending = threading.Thread(target=end, daemon=True)
            ending.start()
            ending.join(_PATIENCE)
        leave(status)

    os._exit = leave_after_us
