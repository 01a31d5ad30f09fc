"""What ``--save-state`` keeps of a training beside weights and inputs, for ``--like``."""

from __future__ import annotations

from typing import Any

import msgspec

from accucompare.numbers import Count
from accucompare.selection import Word


class Component(Word):
    """A part of the state that a training step starts from, beside parameters and buffers."""

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
    """An optimizer, a scheduler or a gradient scaler."""

    kind: str
    # its ``state_dict``'s named values, flattened (see ``live.modules.state``); for an optimizer
    # the options of its parameter groups, such as ``0.lr``
    options: dict[str, Any]
    # the options that earlier steps changed. The code sets the others.
    changed: tuple[str, ...] = ()
    # of an optimizer: the names of the parameters of each group
    groups: tuple[tuple[str, ...], ...] = ()
    # of an optimizer: its state by the parameter's name, flattened; ``*`` for what belongs to no
    # parameter
    state: dict[str, Any] = {}


class SavedDraws(msgspec.Struct, frozen=True):
    """Which random numbers a capture draws next: see ``live.operators.randomness.Draws``."""

    count: Count
    numbers: dict[str, Count] = {}
    repeated: bool = False


class TrainingState(msgspec.Struct, frozen=True):
    """The state that a bundle saved, with its tensors as records of the role ``training_state``."""

    step: Count  # the step that begins with it
    device: str = "cpu"  # the type of the device that it was saved on
    # optimizers, schedulers, scaler: those of the loop; ``None`` without an enabled scaler
    optimizers: tuple[SavedObject, ...] = ()
    schedulers: tuple[SavedObject, ...] = ()
    scaler: SavedObject | None = None
    # the states of the random generators, flattened; and the capture's draws
    random: dict[str, Any] = {}
    draws: SavedDraws | None = None
    gradients: dict[str, Any] = {}  # those that were there before the step, by parameter, flattened
    # numbers and strings of modules that earlier steps changed, by module and name
    attributes: dict[str, dict[str, bool | int | float | str]] = {}
    # the buffers that the model computes itself and that earlier steps changed
    buffers: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    unused: tuple[Missing, ...] = ()  # what the training does not have, each with the reason


class Started(msgspec.Struct, frozen=True):
    """How a capture started from another's saved state: at which step, and without what of it."""

    step: Count
    missing: tuple[Missing, ...] = ()


class SavedAndStarted(msgspec.Struct, frozen=True):
    """Training fields of a manifest's ``capture`` table; ``None`` in older bundles. ``begun``: the
    step before which the capture began, of a script that had run until then."""

    training_state: TrainingState | None = None
    started: Started | None = None
    begun: int = 0
