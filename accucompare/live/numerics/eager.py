"""Compiled code that runs eagerly, so that the hooks on its modules are called."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def eager_stance() -> Iterator[None]:
    """Run compiled code eagerly until the last of these contexts has ended, in any order."""
    if not _eager:
        set_stance = getattr(torch.compiler, "set_stance", None)  # from torch 2.6 on
        _stance.enter_context(
            torch._dynamo.config.patch(disable=True)
            if set_stance is None
            else set_stance("force_eager")
        )
    token = object()
    _eager.append(token)
    try:
        yield
    finally:
        _eager.remove(token)
        if not _eager:
            _stance.close()


#: One entry for each open context.
_eager: list[object] = []
_stance = contextlib.ExitStack()
