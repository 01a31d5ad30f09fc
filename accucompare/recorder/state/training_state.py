"""What a training step starts from beside weights and inputs: saved with ``--save-state``.

Only what earlier steps have changed is state. A learning rate that no step has changed is code:
restoring it would hide that a case which starts from the state has a wrong one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from accucompare.bundle.format import Component, Missing, Record, Role, SavedObject, TrainingState
from accucompare.bundle.writing import BundleWriter
from accucompare.live.around import ShardOf, describe_tensors
from accucompare.live.autograd import parameters_of, stepped_by
from accucompare.live.modules import Modules, generators_of, plain_numbers, state_record, take_apart
from accucompare.live.operators import Draws, RandomState, running_steps
from accucompare.numbers import DTYPES, Array
from accucompare.recorder.state.starting_state import CallArguments, state_records
from accucompare.recorder.state.training_loop import Training, TrainingPart
from accucompare.text import with_article

#: A record of the state, with the function that brings its data to the host.
_Entry = tuple[Record, Callable[[], Array]]

#: The key of optimizer state that belongs to no parameter.
OF_NO_PARAMETER = "*"


@dataclass(frozen=True)
class Frozen:
    """A snapshot of a value, to see whether it changes."""

    text: str
    tensors: list[torch.Tensor]

    @classmethod
    def of(cls, value: Any) -> Frozen:
        tensors: list[torch.Tensor] = []
        structure = take_apart(value, tensors, "", lambda part, place: problem_of(part) is not None)
        return cls(json.dumps(structure), [tensor.detach().clone() for tensor in tensors])

    def same(self, other: Frozen) -> bool:
        pairs = zip(self.tensors, other.tensors, strict=False)
        return self.text == other.text and all(
            ours.dtype == theirs.dtype and torch.equal(ours, theirs) for ours, theirs in pairs
        )


def problem_of(value: Any) -> str | None:
    """Why a value cannot be saved; ``None`` if it can be."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return f"{with_article(type(value).__name__)} cannot be saved"
    name = str(value.dtype).removeprefix("torch.")
    if (
        value.layout is not torch.strided
        or value.is_meta
        or value.is_quantized
        or value.is_nested
        or name not in DTYPES
    ):
        kinds = {"meta": value.is_meta, "nested": value.is_nested}
        kind = next((kind for kind, so in kinds.items() if so), str(value.layout)[6:])
        return f"a tensor that is {kind}, of {name}, cannot be saved"
    return None


def names_of(modules: Modules) -> dict[int, str]:
    """The first name of each parameter, by its id."""
    return {id(each.tensor): each.name for each in parameters_of(modules)}


@dataclass
class _Parts:
    """Takes values apart; keeps the records of their tensors, and what could not be saved."""

    records: list[_Entry] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    def miss(self, component: Component, reason: str) -> None:
        self.missing.append(Missing(component, reason))

    def take(self, component: Component, place: str, value: Any) -> dict[str, Any]:
        tensors: list[torch.Tensor] = []

        def lost(part: Any, where: str) -> bool:
            problem = problem_of(part)
            if problem is not None:
                self.miss(component, f"{where}: {problem}")
            return problem is not None

        structure = take_apart(value, tensors, place, lost)
        self.records += [
            state_record(Role.TRAINING_STATE, f"{place} {number}", tensor)
            for number, tensor in enumerate(tensors)
        ]
        return structure


class StateSaver:
    """Saves the state of a training before a step.

    Make it before a capture restores or runs anything: what changes from then on is state.
    """

    def __init__(
        self,
        modules: Modules,
        training: Training,
        device: torch.device,
        inputs: list[CallArguments] | None,
        matched: bool = True,
        shard_of: ShardOf | None = None,
    ) -> None:
        """
        Args:
            inputs: one entry a step; ``None`` if they come from a user's own loop.
            matched: whether random operations draw from the CPU under a seed.
            shard_of: gives the layout of a weight, if there are several ranks.
        """
        self._matched = matched
        self._shard_of = shard_of
        self._modules = modules
        self._training = training
        self._device = device
        self._inputs = inputs
        self._options = {
            part.place: {name: Frozen.of(value) for name, value in part.options().items()}
            for part in training.parts
        }
        self._numbers = {name: plain_numbers(module) for name, module in modules.named.items()}
        self._computed = {name: Frozen.of(tensor) for name, tensor in self._computed_now()}

    def write(
        self,
        writer: BundleWriter,
        step: int,
        draws: Draws | None,
        batch: list[CallArguments] | None = None,
    ) -> None:
        """Write the state before a step. The manifest then describes the weights of that step.

        Args:
            batch: the model's inputs in that step, if they come from a user's own loop.

        Raises:
            CaptureError: if it cannot be written, or a weight or an input cannot be saved.
        """
        records, writer.manifest.capture["inputs"] = state_records(
            self._modules, self._inputs if batch is None else batch, self._shard_of
        )
        state, more = self._state(step, draws)
        writer.write_state([*records, *more])
        writer.manifest.capture["training_state"] = msgspec.to_builtins(state)
        writer.manifest.notes += [
            f"save_state (--save-state): not all of the {entry.component} could be saved:"
            f" {entry.reason}"
            for entry in state.missing
            if entry.component is not Component.DATA  # data digests are compared
        ]
        if step:
            writer.manifest.model.update(describe_tensors(self._modules, self._shard_of))

    def _state(self, step: int, draws: Draws | None) -> tuple[TrainingState, list[_Entry]]:
        parts = _Parts()
        objects: dict[Component, list[SavedObject]] = {}
        for part in self._training.parts:
            objects.setdefault(part.component, []).append(self._object(part, parts))
        state = TrainingState(
            step=step,
            device=self._device.type,
            optimizers=tuple(objects.get(Component.OPTIMIZER, ())),
            schedulers=tuple(objects.get(Component.SCHEDULER, ())),
            scaler=next(iter(objects.get(Component.SCALER, ())), None),
            random=self._random(parts, step),
            draws=None if draws is None else draws.saved(),
            gradients=parts.take(Component.GRADIENTS, "gradients", self._gradients()),
            attributes=self._attributes(),
            buffers=tuple(
                name
                for name, tensor in self._computed_now()
                if not self._computed[name].same(Frozen.of(tensor))
            ),
            missing=(*parts.missing, *self._not_saved(step, draws)),
            unused=tuple(self._unused(objects)),
        )
        return state, parts.records

    def _object(self, part: TrainingPart, parts: _Parts) -> SavedObject:
        first, options = self._options[part.place], part.options()
        changed = [
            name
            for name, value in options.items()
            if name not in first or not first[name].same(Frozen.of(value))
        ]
        taken = {
            name: parts.take(part.component, f"{part.place} {name}", value)
            for name, value in options.items()
        }
        if part.component is not Component.OPTIMIZER:
            if not part.has_state:
                name = part.kind.rpartition(".")[2]
                parts.miss(
                    part.component, f"{with_article(name)} has no state_dict and load_state_dict"
                )
            return SavedObject(part.kind, taken, tuple(changed))
        names, groups, unknown = names_of(self._modules), [], 0
        for group in part.parameters():
            groups.append(tuple(names.get(id(tensor), "") for tensor in group))
            unknown += groups[-1].count("")
        if unknown:
            reason = f"{part.place} holds {unknown} parameter(s) that the model does not have"
            parts.miss(part.component, reason)
        state = _optimizer_state(part, parts, [name for group in groups for name in group])
        return SavedObject(part.kind, taken, tuple(changed), tuple(groups), state)

    def _random(self, parts: _Parts, step: int) -> dict[str, Any]:
        now = RandomState.now(self._device)
        version, numbers, gauss = now.python
        table: dict[str, Any] = {
            "devices": now.devices,
            "python": [version, torch.tensor(numbers, dtype=torch.int64), gauss],
        }
        if isinstance(now.numpy, tuple):
            kind, keys, *position = now.numpy
            table["numpy"] = [
                str(kind),
                torch.tensor(keys.tolist(), dtype=torch.int64),
                *(number + 0 for number in position),
            ]
        else:
            parts.miss(Component.RANDOM, "numpy.random has another bit generator than MT19937")
        if step:
            for name, module in self._modules.named.items():
                for attribute in generators_of(module):
                    place = f"{name}.{attribute}" if name else attribute
                    reason = f"{place}: a generator of the model's own cannot be saved"
                    parts.miss(Component.RANDOM, reason)
        return parts.take(Component.RANDOM, "random", table)

    def _gradients(self) -> dict[str, torch.Tensor]:
        found = ((each.name, each.tensor.grad) for each in parameters_of(self._modules))
        return {name: grad for name, grad in found if grad is not None}

    def _attributes(self) -> dict[str, dict[str, Any]]:
        now = {name: plain_numbers(module) for name, module in self._modules.named.items()}
        changed = {
            name: {
                key: value
                for key, value in table.items()
                if key not in self._numbers[name] or self._numbers[name][key] != value
            }
            for name, table in now.items()
        }
        return {name: table for name, table in changed.items() if table}

    def _computed_now(self) -> Iterable[tuple[str, torch.Tensor]]:
        return (
            (f"{module}.{buffer}" if module else buffer, tensor)
            for module, buffer, tensor in self._modules.computed()
        )

    def _not_saved(self, step: int, draws: Draws | None) -> Iterable[Missing]:
        if self._inputs is None:
            cure = f"; let it begin with the batch of step {step}" if step else ""
            yield Missing(Component.DATA, f"the batches come from a loop of your own{cure}")
        if step and draws is None and self._matched:
            yield Missing(
                Component.RANDOM, "this version of torch does not let random operations be matched"
            )

    def _unused(self, objects: Mapping[Component, Any]) -> Iterable[Missing]:
        for component in (Component.OPTIMIZER, Component.SCHEDULER, Component.SCALER):
            if component not in objects:
                disabled = component is Component.SCALER and self._training.scaler is not None
                yield Missing(component, "it is not enabled" if disabled else "there is none")


class UnknownOptimizers:
    """Finds optimizers of the model that the capture was not given: their state is not saved."""

    def __init__(self, modules: Modules, training: Training) -> None:
        inner = [getattr(each, "optimizer", None) for each in training.optimizers]  # of a wrapper
        self._known = {id(each) for each in (*training.optimizers, *inner)}
        self._parameters = set(names_of(modules))
        self._kinds: dict[str, bool] = {}  # whether the first had no state, by class
        self._handle = register_optimizer_step_pre_hook(self._steps)

    def _steps(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        # also if a known one steps it
        if any(id(each) in self._known for each in (optimizer, *running_steps())):
            return
        self._known.add(id(optimizer))
        if self._parameters & stepped_by(optimizer).keys():
            self._kinds.setdefault(type(optimizer).__name__, not optimizer.state)

    def remove(self) -> None:
        self._handle.remove()

    def missing(self, step: int) -> list[Missing]:
        """What a state before this step lacks. An optimizer that is new in step 0 has no state."""
        reason = "stepped the model's parameters, but the capture was not given it (loop=…)"
        return [
            Missing(Component.OPTIMIZER, f"{kind} {reason}")
            for kind, new in self._kinds.items()
            if step or not new
        ]


def _optimizer_state(part: TrainingPart, parts: _Parts, names: list[str]) -> dict[str, Any]:
    """An optimizer's state by parameter, taken apart; ``names`` are its parameters', in order."""
    component, place = part.component, part.place
    try:
        table = part.live.state_dict() if part.has_state else None
    except Exception as error:  # ZeroRedundancyOptimizer: each rank has a part
        reason = str(error).strip().partition("\n")[0]
        parts.miss(component, f"{place}: its state_dict fails ({type(error).__name__}: {reason})")
        return {}
    if (
        not isinstance(table, Mapping)
        or not isinstance(table.get("state"), Mapping)
        or "param_groups" not in table
    ):
        parts.miss(component, f"{place}: its state_dict is not that of a torch.optim.Optimizer")
        return {}
    state: dict[str, Any] = {}
    others: dict[Any, Any] = {}
    for key, value in table["state"].items():
        if type(key) is not int:
            others[key] = value
        elif key < len(names) and names[key]:
            state[names[key]] = parts.take(component, f"{place} {names[key]}", value)
    if others:
        state[OF_NO_PARAMETER] = parts.take(component, f"{place} {OF_NO_PARAMETER}", others)
    return state
