"""Captures some steps of a script's model, or watches it."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Protocol

from torch import nn

from accucompare.asked import Loop
from accucompare.errors import CaptureError
from accucompare.recorder.state import Training
from accucompare.scripts.models import held_by
from accucompare.scripts.plan import Action, Plan
from accucompare.selection import Steps


class Observation(Protocol):
    def step(self) -> None:
        """A step is over; an optimizer's hook may call this."""

    def rest(self) -> None:
        """The next steps are not observed. Do not call it in a hook."""

    def wake(self) -> None:
        """The next step is observed again. Do not call it in a hook."""

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Observe nothing in this context."""

    def scaled_by(self, scaler: Any) -> None:
        """Set the scaler of the losses; ``None`` for none. An optimizer's hook may call this."""

    def close(self, error: BaseException | None) -> None:
        """End; ``error`` has ended the script, if given. Do not call it in a hook."""


def observe(
    plan: Plan,
    model: nn.Module,
    optimizers: list[Any],
    scaler: Any,
    steps: Steps | None,
    first: int,
    others: list[str],
) -> Observation:
    """Begin to observe a model. Errors as of ``accucompare.capture`` and ``accucompare.watch``.

    Args:
        optimizers: those that train it.
        scaler: probably scales its losses; ``None`` for none.
        steps: those to observe; ``None`` for all.
        first: the number of the step that begins.
        others: models that might have been chosen, too.
    """
    _log_nothing()
    own = {id(parameter) for parameter in model.parameters()}
    # those that step copies or parts of parameters, as Megatron's do, are found when they step
    holding = [each for each in optimizers if own & held_by((each,))]
    training = Training.of(Loop(holding, scaler=scaler))
    if plan.action is Action.WATCH:
        return _Watching(plan, model, training)
    return _Capturing(plan, model, training, steps, first, others)


def _log_nothing() -> None:
    """The command tells everything; the script's logging must stay its own."""
    logger = logging.getLogger("accucompare")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())


class _Capturing:
    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        training: Training,
        steps: Steps | None,
        first: int,
        others: list[str],
    ) -> None:
        from accucompare.recorder.capture_options import CaptureOptions
        from accucompare.recorder.session import Within, recording

        options = CaptureOptions(
            **plan.options, steps=steps, seed=plan.seed, deterministic=plan.deterministic
        )
        made = {
            "script": True,
            "other_models": others,
            **({"optimizer": _class_of(training.optimizers[0])} if training.optimizers else {}),
        }
        within = Within(made=made, begun=first, matched=plan.seed is not None, prepared=True)
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
        """A watch sees a scaler when it scales."""

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
        """A watch takes its hooks off in steps that it skips."""

    def wake(self) -> None:
        pass

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Evaluations are watched, unless hooks would disable a fused path, changing bits."""
        return self._watch.aside() if self._fused else contextlib.nullcontext()

    def scaled_by(self, scaler: Any) -> None:
        self._watch.scaled_by(scaler)

    def close(self, error: BaseException | None) -> None:
        _close(self._stack, error)
        if self._watch.log_failure is not None:
            raise CaptureError(self._watch.log_failure)


def _close(stack: contextlib.ExitStack, error: BaseException | None) -> None:
    """Leave the contexts as if the error, if any, had been raised in them."""
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
