"""What hooks ask of the recorder. Errors of ours never reach the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from accucompare.bundle.format import Role
from accucompare.bundle.writing import Lease
from accucompare.numbers import Array
from accucompare.recorder.recording.making import PLAINLY, How


class Guard(Protocol):
    listening: bool
    step: int

    def run(self, act: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Any:
        """Run a hook's work, one thread at a time."""

    def lend(self, nbytes: int) -> Array:
        """Host memory for what is kept until nobody refers to it any more."""


def guarded(guard: Guard, act: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """Run a hook's work if the recorder listens; messages name ``name`` as the place."""
    return guard.run(act, name, arguments) if guard.listening else None


class UpdateSink(Guard, Protocol):
    """What the recording of updates asks of the recorder."""

    def running(self) -> Any:
        """The module call that runs on this thread, or ``None``."""

    def wants(self, name: str, role: Role) -> bool:
        """Whether a module's values of this role are recorded."""

    def room(self, nbytes: int) -> Lease:
        """Host memory for a value to be recorded; waits until there is some."""

    def add_update(
        self, name: str, update: int, role: Role, path: str, value: Any, how: How = PLAINLY
    ) -> None:
        """Record a value of a module's update, the ``update``-th of the step from 0, if wanted."""


class GoldenUpdates(Protocol):
    """Where golden's parameters, gradients and state come from."""

    def start(self, name: str, update: int, path: str, tensor: torch.Tensor) -> None:
        """Write golden's parameter after ``update`` updates of the step, unless it is there."""

    def has_changed(self, name: str, update: int, path: str) -> bool:
        """Whether anything but an update changed golden's parameter after ``update`` updates."""

    def put(self, name: str, update: int, role: Role, path: str, tensor: torch.Tensor) -> None:
        """Write golden's value into a tensor; note it if that cannot be done."""

    def leave(self, name: str, update: int, role: Role, path: str, why: str) -> None:
        """Note that an update did not get golden's value."""
