"""Captures some steps of a script's model, or watches it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from accucompare.asked import Loop
from accucompare.errors import CaptureError
from accucompare.recorder.state import Training
from accucompare.scripts.models import held_by
from accucompare.scripts.plan import Action, Plan
from accucompare.selection import Steps


def _nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Observation:
    """What can be done to a capture or a watch of a running script."""

    step: Callable[[], None]  # a step is over; an optimizer's hook may call this
    # end; the error, if any, has ended the script. Do not call it in a hook.
    close: Callable[[BaseException | None], None]
    aside: Callable[[], contextlib.AbstractContextManager[None]]  # observe nothing in this context
    # the next steps are not observed. Do not call it in a hook.
    rest: Callable[[], None] = _nothing
    # the next step is observed again. Do not call it in a hook.
    wake: Callable[[], None] = _nothing
    # set the scaler of the losses; ``None`` for none. An optimizer's hook may call this.
    scaled_by: Callable[[Any], None] = _nothing


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
        return _watching(plan, model, training)
    return _capturing(plan, model, training, steps, first, others)


def _log_nothing() -> None:
    """The command tells everything; the script's logging must stay its own."""
    logger = logging.getLogger("accucompare")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())


def _capturing(
    plan: Plan,
    model: nn.Module,
    training: Training,
    steps: Steps | None,
    first: int,
    others: list[str],
) -> Observation:
    from accucompare.recorder.capture_options import CaptureOptions
    from accucompare.recorder.session import Within, recording

    options = CaptureOptions(
        **plan.options, steps=steps, seed=plan.seed, deterministic=plan.deterministic
    )
    made: dict[str, Any] = {"script": True, "other_models": others}
    if training.optimizers:
        made["optimizer"] = _class_of(training.optimizers[0])
    within = Within(made=made, begun=first, matched=plan.seed is not None, prepared=True)
    stack = contextlib.ExitStack()
    session = stack.enter_context(recording(model, plan.out, options, training, within=within))
    return Observation(
        session.step, partial(_close, stack), session.aside, session.rest, session.wake
    )


def _watching(plan: Plan, model: nn.Module, training: Training) -> Observation:
    """A watch takes its hooks off itself in steps that it skips."""
    from accucompare.watcher.watch import watching
    from accucompare.watcher.watch_options import WatchOptions

    options = WatchOptions(
        **plan.options, loop=Loop(training.optimizers, scaler=training.scaler), quiet=True
    )
    stack = contextlib.ExitStack()
    watch = stack.enter_context(watching(model, plan.out, options))
    # evaluations are watched, unless hooks would disable a fused path, changing bits
    fused = any(isinstance(module, nn.TransformerEncoderLayer) for module in model.modules())

    def close(error: BaseException | None) -> None:
        _close(stack, error)
        if watch.log_failure is not None:
            raise CaptureError(watch.log_failure)

    aside = watch.aside if fused else contextlib.nullcontext
    return Observation(watch.step, close, aside, scaled_by=watch.scaled_by)


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
