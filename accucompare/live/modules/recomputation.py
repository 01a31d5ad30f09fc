"""Activation checkpointing: forwards that a backward runs again, and where they first stood."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils import checkpoint

#: What the two ways of ``torch.utils.checkpoint`` make for a part of a model that will run again.
_FRAME, _FUNCTION = "_CheckpointFrame", "CheckpointFunction"

#: Makes the context of a second run.
AroundSecondRun = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Witness:
    """Who is told what will be run again."""

    # called when the first run of a part begins, with whether its second run has a backward of its
    # own (``use_reentrant=True``). Returns the context for the second run.
    begins: Callable[[bool], AroundSecondRun]


_witnesses: list[Witness] = []
_undo = contextlib.ExitStack()


def witness(each: Witness) -> None:
    """Tell a witness from now on.

    ``torch.utils.checkpoint`` has no hook for it, so what it makes for each part is wrapped while
    there are witnesses. A version of torch that makes something else is left alone.
    """
    if not _witnesses:
        frame, function = (getattr(checkpoint, name, None) for name in (_FRAME, _FUNCTION))
        if frame is not None:
            setattr(checkpoint, _FRAME, functools.partial(_framed, frame))
            _undo.callback(setattr, checkpoint, _FRAME, frame)
        if function is not None:
            forward = function.forward
            function.forward = staticmethod(functools.partial(_forward, forward))
            _undo.callback(setattr, function, "forward", staticmethod(forward))
    _witnesses.append(each)


def witness_no_more(each: Witness) -> None:
    """Undo ``witness``."""
    if each in _witnesses:
        _witnesses.remove(each)
        if not _witnesses:
            _undo.close()


def _framed(
    frame: Callable[..., Any], recompute: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    return frame(_wrapped(recompute, reentrant=False), *args, **kwargs)


def _forward(forward: Callable[..., Any], ctx: Any, run: Callable[..., Any], *args: Any) -> Any:
    second_run = _wrapped(run, reentrant=True)
    output = forward(ctx, run, *args)
    ctx.run_function = second_run
    return output


def _wrapped(run: Callable[..., Any], reentrant: bool) -> Callable[..., Any]:
    entered = [each.begins(reentrant) for each in _witnesses]

    @functools.wraps(run)
    def second_run(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for each in entered:
                stack.enter_context(each())
            return run(*args, **kwargs)

    return second_run
