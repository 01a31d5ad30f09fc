"""What hooks of a backward and of updates ask of the recorder: whether it listens, and that an
error of ours never reaches the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from accucompare.bundle.format import Role
from accucompare.bundle.writing import Lease
from accucompare.recorder.recording.making import PLAINLY, How


class Guard(Protocol):
    """The recorder, as far as such a hook needs it."""

    listening: bool
    step: int

    def run(self, act: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Any:
        """Do what a hook does, one thread at a time."""


def guarded(guard: Guard, act: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """Do what a hook does if the recorder listens; ``name`` says in messages where that is."""
    return guard.run(act, name, arguments) if guard.listening else None


class UpdateSink(Guard, Protocol):
    """What is asked of the recorder."""

    def running(self) -> Any:
        """The module call that is running on this thread; ``None`` if none is."""

    def wants(self, name: str, role: Role) -> bool:
        """Whether what updates take or give is recorded of a module."""

    def room(self, nbytes: int) -> Lease:
        """Memory of the host for a value that will be recorded; waits until there is some."""

    def add_update(
        self, name: str, update: int, role: Role, path: str, value: Any, how: How = PLAINLY
    ) -> None:
        """Record what an update of this step, counted from 0, takes or gives of the module of this
        name, if that is wanted.
        """
