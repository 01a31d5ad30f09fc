"""Points of the user's own inside a forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from accucompare.live.modules.hooks import in_backward

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class PointListener(Protocol):
    """Who looks at points: a watch, or a module that runs alone."""

    def running(self) -> object | None:
        """The call that runs, if the model does."""

    def idle(self) -> bool: ...

    def point(self, tensor: torch.Tensor, label: str) -> None: ...


class PointReader:
    """Looks at points while one module runs alone."""

    def __init__(self, look: Callable[[torch.Tensor, str], None]) -> None:
        self._look = look

    def point(self, tensor: torch.Tensor, label: str) -> None:
        self._look(tensor, label)

    def running(self) -> None:
        return None

    def idle(self) -> bool:
        return False


#: Those that listen now.
active: list[PointListener] = []


def check_finite(tensor: torch.Tensor, label: str) -> None:
    """Let the active watch look at a tensor, and name this point if a non-finite value begins here.

    Does nothing without a watch, waits for no device, and never changes the tensor.

    Args:
        tensor: of any shape and floating type.
        label: what to call this point, such as ``"after layer_norm"``.

    Example:
        >>> class Attention(nn.Module):
        ...     def forward(self, x):
        ...         weights = (x @ x.mT).softmax(-1)
        ...         accucompare.check_finite(weights, "attention weights")
        ...         return weights @ x
        >>> Attention()(torch.ones(2, 3))
        tensor([[1., 1., 1.],
                [1., 1., 1.]])
    """
    if active and not in_backward():  # in a backward, activation checkpointing passes here again
        for watcher in [watcher for watcher in active if watcher.running() is not None] or active:
            if not watcher.idle():
                watcher.point(tensor, str(label))
