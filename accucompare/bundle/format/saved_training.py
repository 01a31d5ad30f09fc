"""What ``--save-state`` keeps of a training run beside weights and inputs, so that ``--like`` can
go on from there."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from accucompare.numbers import Count


class Component(str, Enum):
    """A part of the state that a training step starts from, beside parameters and buffers."""

    __str__ = str.__str__

    OPTIMIZER = "optimizer"
    SCALER = "gradient scaler"
    SCHEDULER = "scheduler"
    RANDOM = "random generators"
    GRADIENTS = "gradients"
    ATTRIBUTES = "attributes of modules"
    DATA = "data loader"


class Missing(msgspec.Struct, frozen=True):
    """A component, or a part of one, that was not saved or not restored, and why."""

    component: Component
    reason: str


class SavedObject(msgspec.Struct, frozen=True):
    """An optimizer, a scheduler or a gradient scaler.

    Attributes:
        kind: its class.
        options: what its ``state_dict`` holds by name, taken apart (see ``live.modules.state``); of
            an optimizer the options of its parameter groups, such as ``0.lr``.
        changed: the names of those that the steps before have changed. The others are as the code
            has made them.
        groups: of an optimizer: the names of the parameters of each group.
        state: of an optimizer: its state by the name of the parameter, taken apart; ``*`` is what
            belongs to none.
    """

    kind: str
    options: dict[str, Any]
    changed: tuple[str, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    state: dict[str, Any] = {}


class SavedDraws(msgspec.Struct, frozen=True):
    """Which random numbers a capture draws next: see ``live.operators.randomness.Draws``."""

    count: Count
    numbers: dict[str, Count] = {}
    repeated: bool = False


class TrainingState(msgspec.Struct, frozen=True):
    """The state that a bundle saved, with its tensors as records of the role ``training_state``.

    Attributes:
        step: the step that begins with it.
        device: the type of the device that it was saved on.
        optimizers, schedulers, scaler: what the loop has of those; ``None`` where there is no
            scaler, or it is not enabled.
        random: the states of the random generators, taken apart; and the draws of the capture.
        gradients: those that were there before the step, by parameter, taken apart.
        attributes: numbers and strings of modules that the steps before have changed, by module and
            name.
        buffers: the buffers that the model computes itself which the steps before have changed.
        missing: what could not be saved.
        unused: what there was none of, each with the reason.
    """

    step: Count
    device: str = "cpu"
    optimizers: tuple[SavedObject, ...] = ()
    schedulers: tuple[SavedObject, ...] = ()
    scaler: SavedObject | None = None
    random: dict[str, Any] = {}
    draws: SavedDraws | None = None
    gradients: dict[str, Any] = {}
    attributes: dict[str, dict[str, bool | int | float | str]] = {}
    buffers: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    unused: tuple[Missing, ...] = ()


class Started(msgspec.Struct, frozen=True):
    """How a capture started from the saved state of another: at which step, and without what of it."""

    step: Count
    missing: tuple[Missing, ...] = ()


class SavedAndStarted(msgspec.Struct, frozen=True):
    """Of the table ``capture`` of a manifest; ``None`` in older bundles.

    Attributes:
        training_state, started: the state that was saved, and the one that it started from.
        begun: the step before which the capture began, of a script that had run until then.
    """

    training_state: TrainingState | None = None
    started: Started | None = None
    begun: int = 0
