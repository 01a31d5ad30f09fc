"""What is done with the model of a script, once it is found: a capture of some steps, or a watch."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import nn

from accucompare.errors import CaptureError
from accucompare.scripts.plan import Action, Plan
from accucompare.selection import Steps


class Observation(Protocol):
    """A capture or a watch that is running."""

    def step(self) -> None:
        """A step is over; may be called by a hook of an optimizer's."""

    def rest(self) -> None:
        """Steps follow that are not observed. Not to be called by a hook."""

    def wake(self) -> None:
        """The next step is observed again. Not to be called by a hook."""

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """What runs meanwhile is not observed."""

    def close(self, error: BaseException | None) -> None:
        """It is over; with the error that ended the script, if one did. Not to be called by a hook."""


def observe(plan: Plan, model: nn.Module, optimizers: list[Any], steps: Steps | None, first: int) -> Observation:
    """Begin to observe a model, from step ``first`` on. Errors as of ``accucompare.capture`` and ``accucompare.watch``.

    Args:
        plan: what to do.
        model: of the script.
        optimizers: that train it.
        steps: those to observe; ``None`` for all.
        first: the number of the step that begins.
    """
    _log_nothing()
    if plan.action is Action.WATCH:
        return _Watching(plan, model, optimizers)
    return _Capturing(plan, model, optimizers, steps, first)


def _log_nothing() -> None:
    """The command tells what is to be told; the script's own logging is not for it."""
    logger = logging.getLogger("accucompare")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())


class _Capturing:
    def __init__(self, plan: Plan, model: nn.Module, optimizers: list[Any], steps: Steps | None, first: int) -> None:
        from accucompare.recorder.options import CaptureOptions
        from accucompare.recorder.session import Within, recording
        from accucompare.recorder.state import Training

        options = CaptureOptions(**{**plan.options, "steps": steps, "seed": plan.seed, "deterministic": plan.deterministic})
        within = Within(first, matched=plan.seed is not None, prepared=True)
        training = Training.of(optimizers, None, next(_scalers(), None))
        made = {"optimizer": _class_of(optimizers[0])} if optimizers else {}
        self._stack = contextlib.ExitStack()
        self._session = self._stack.enter_context(recording(model, plan.out, options, made=made, training=training, within=within))

    def step(self) -> None:
        self._session.step()

    def rest(self) -> None:
        self._session.rest()

    def wake(self) -> None:
        self._session.wake()

    def aside(self) -> contextlib.AbstractContextManager[None]:
        return self._session.aside()

    def close(self, error: BaseException | None) -> None:
        _close(self._stack, error)


class _Watching:
    def __init__(self, plan: Plan, model: nn.Module, optimizers: list[Any]) -> None:
        from accucompare.watcher.options import WatchOptions
        from accucompare.watcher.watch import watching

        scaler = next(_scalers(), None)
        options = WatchOptions(**{**plan.options, "optimizer": optimizers, "scaler": scaler, "quiet": True})
        self._stack = contextlib.ExitStack()
        self._watch = self._stack.enter_context(watching(model, plan.out, options))
        self._fused = any(isinstance(module, nn.TransformerEncoderLayer) for module in model.modules())

    def step(self) -> None:
        self._watch.step()

    def rest(self) -> None:
        """It takes its own hooks off in steps that it does not watch."""

    def wake(self) -> None:
        pass

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """What an evaluation computes must be finite, too; but a layer that hooks would keep from its fused path computes other bits."""
        return self._watch.aside() if self._fused else contextlib.nullcontext()

    def close(self, error: BaseException | None) -> None:
        _close(self._stack, error)
        if self._watch.log_failure is not None:
            raise CaptureError(self._watch.log_failure)


def _close(stack: contextlib.ExitStack, error: BaseException | None) -> None:
    """Leave contexts as if the error, if there is one, had been raised in them; it has been raised elsewhere already."""
    if error is None:
        stack.close()
        return
    try:
        stack.__exit__(type(error), error, error.__traceback__)
    except BaseException as raised:
        if raised is not error:
            raise


def _scalers() -> Iterator[Any]:
    """The gradient scalers that the script has made, and that do something."""
    for each in gc.get_objects():
        if issubclass(type(each), torch.amp.GradScaler) and each.is_enabled():
            yield each


def _class_of(optimizer: Any) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
