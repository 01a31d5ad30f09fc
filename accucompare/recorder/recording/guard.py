"""What hooks of a backward and of updates ask of the recorder: whether it listens, and that an
error of ours never reaches the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Guard(Protocol):
    """The recorder, as far as such a hook needs it."""

    listening: bool
    step: int

    def run(self, act: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Any:
        """Do what a hook does, one thread at a time."""


def guarded(guard: Guard, act: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """Do what a hook does if the recorder listens; ``name`` says in messages where that is."""
    return guard.run(act, name, arguments) if guard.listening else None
