"""What is done with the model of a script, once it is found: a capture of some steps, or a watch."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Protocol

from torch import nn

from accucompare.asked import Loop
from accucompare.errors import CaptureError
from accucompare.recorder.state import Training
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

    def scaled_by(self, scaler: Any) -> None:
        """This one scales the losses; ``None`` if none does. May be called by a hook of an
        optimizer's."""

    def close(self, error: BaseException | None) -> None:
        """It is over; with the error that ended the script, if one did. Not to be called by a hook."""


def observe(
    plan: Plan,
    model: nn.Module,
    optimizers: list[Any],
    scaler: Any,
    steps: Steps | None,
    first: int,
) -> Observation:
    """Begin to observe a model, from step ``first`` on. Errors as of ``accucompare.capture`` and
    ``accucompare.watch``.

    Args:
        plan: what to do.
        model: of the script.
        optimizers: that train it.
        scaler: that likely scales its losses; ``None`` if none does.
        steps: those to observe; ``None`` for all.
        first: the number of the step that begins.
    """
    _log_nothing()
    training = Training.of(Loop(optimizers, scaler=scaler))
    if plan.action is Action.WATCH:
        return _Watching(plan, model, training)
    return _Capturing(plan, model, training, steps, first)


def _log_nothing() -> None:
    """The command tells what is to be told; the script's own logging is not for it."""
    logger = logging.getLogger("accucompare")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())


class _Capturing:
    def __init__(
        self, plan: Plan, model: nn.Module, training: Training, steps: Steps | None, first: int
    ) -> None:
        from accucompare.recorder.capture_options import CaptureOptions
        from accucompare.recorder.session import Within, recording

        options = CaptureOptions(
            **plan.options, steps=steps, seed=plan.seed, deterministic=plan.deterministic
        )
        made = {
            "script": True,
            **({"optimizer": _class_of(training.optimizers[0])} if training.optimizers else {}),
        }
        within = Within(made=made, first=first, matched=plan.seed is not None, prepared=True)
        self._stack = contextlib.ExitStack()
        self._session = self._stack.enter_context(
            recording(model, plan.out, options, training, within=within)
        )

    def step(self) -> None:
        self._session.step()

    def rest(self) -> None:
        self._session.rest()

    def wake(self) -> None:
        self._session.wake()

    def aside(self) -> contextlib.AbstractContextManager[None]:
        return self._session.aside()

    def scaled_by(self, scaler: Any) -> None:
        """What scales a loss is seen when it does."""

    def close(self, error: BaseException | None) -> None:
        _close(self._stack, error)


class _Watching:
    def __init__(self, plan: Plan, model: nn.Module, training: Training) -> None:
        from accucompare.watcher.watch import watching
        from accucompare.watcher.watch_options import WatchOptions

        options = WatchOptions(
            **plan.options, loop=Loop(training.optimizers, scaler=training.scaler), quiet=True
        )
        self._stack = contextlib.ExitStack()
        self._watch = self._stack.enter_context(watching(model, plan.out, options))
        self._fused = any(
            isinstance(module, nn.TransformerEncoderLayer) for module in model.modules()
        )

    def step(self) -> None:
        self._watch.step()

    def rest(self) -> None:
        """It takes its own hooks off in steps that it does not watch."""

    def wake(self) -> None:
        pass

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """What an evaluation computes must be finite, too; but a layer that hooks would keep from
        its fused path computes other bits."""
        return self._watch.aside() if self._fused else contextlib.nullcontext()

    def scaled_by(self, scaler: Any) -> None:
        self._watch.scaled_by(scaler)

    def close(self, error: BaseException | None) -> None:
        _close(self._stack, error)
        if self._watch.log_failure is not None:
            raise CaptureError(self._watch.log_failure)


def _close(stack: contextlib.ExitStack, error: BaseException | None) -> None:
    """Leave contexts as if the error, if there is one, had been raised in them; it has been raised
    elsewhere already."""
    if error is None:
        stack.close()
        return
    try:
        stack.__exit__(type(error), error, error.__traceback__)
    except BaseException as raised:
        if raised is not error:
            raise


def _class_of(optimizer: Any) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
