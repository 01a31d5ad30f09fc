"""What a training consists of, for the checklist."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
import xxhash
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from accucompare.findings.log import ParameterFacts, TrainingSetup
from accucompare.live.autograd import Parameter, stepped_by
from accucompare.live.modules import Modules
from accucompare.live.values import dtype_name
from accucompare.watcher.vitals.losses import Padding
from accucompare.watcher.vitals.update_vitals import groups_of, stepped, steps_taken

#: The seed that torch's generator begins with.
_DEFAULT_SEED = 67280421310721
#: The generators beside torch's, in the order of their states.
GENERATORS = ("python", "numpy")
#: Schedulers' names for the number of steps that they are made for.
_LENGTHS = ("T_max", "total_steps", "total_iters")


class SetupFacts:
    """Says what a training consists of.

    Attributes:
        schedulers: those that the watch was given, by name.
        pad: the id of padding, if the model says it.
        tokens: ids of other special tokens, likewise.
        padding: the id of padding and the number of ids.
        renewed: how many optimizers began without state in place of one that had some.
    """

    def __init__(
        self,
        modules: Modules,
        parameters: Sequence[Parameter],
        optimizers: list[Any],
        schedulers: list[Any],
        every: int,
    ) -> None:
        self.schedulers = [
            (_numbered(schedulers, at), scheduler) for at, scheduler in enumerate(schedulers)
        ]
        self._model = modules.named[""]
        self.pad = self._special("pad")
        self.tokens = {
            name: found
            for name, kind in (("begin", "bos"), ("end", "eos"))
            if (found := self._special(kind)) is not None
        }
        self.padding = self._padding(modules)
        self.renewed = 0
        states = zip(GENERATORS, states_of_generators(), strict=True)
        self._generators = {
            name: xxhash.xxh3_64_hexdigest(repr(state).encode()) for name, state in states
        }
        self._parameters = parameters
        self._owners = {name: type(module).__name__ for name, module in modules.named.items()}
        self._optimizers = list(optimizers)
        self._every = every
        self._switched = sum(map(is_switched, modules.named.values()))
        self._twins = list(_twins(modules))
        self._dropouts = {
            name: each.p
            for name, each in modules.named.items()
            if isinstance(each, _DropoutNd) and each.p > 0
        }
        taken = [(type(each).__name__, steps_taken(each)) for each in optimizers]
        self._taken = {name: count for name, count in taken if count is not None}
        self._stepped = {name: stepped(scheduler) for name, scheduler in self.schedulers}
        self._seeds = {"torch": torch.initial_seed()}

    def add(self, optimizer: Any) -> None:
        """An optimizer is about to make its first update in the watch, or another one."""
        if not self.knows(optimizer):
            held = stepped_by(optimizer).keys()
            replaced = [each for each in self._optimizers if stepped_by(each).keys() == held]
            self.renewed += any(map(_has_state, replaced)) and not _has_state(optimizer)
            self._optimizers = [
                each for each in self._optimizers if not any(each is other for other in replaced)
            ]
            self._optimizers.append(optimizer)
            count = steps_taken(optimizer)
            if count is not None:
                self._taken[type(optimizer).__name__] = count

    def knows(self, optimizer: Any) -> bool:
        return any(each is optimizer for each in self._optimizers)

    def setup(self, step: int, cycle: int) -> TrainingSetup:
        """The present setup; ``cycle``: after so many steps the same inputs are used again."""
        groups = {
            id(tensor): (name, group)
            for each in self._optimizers
            for name, group in groups_of(each)
            for tensor in group["params"]
        }
        return TrainingSetup(
            step,
            parameters=[
                self._facts_of(each, *groups.get(id(each.tensor), ("", {})))
                for each in self._parameters
            ],
            optimizers=[type(each).__name__ for each in self._optimizers],
            taken=dict(self._taken),
            schedulers=self._stepped,
            scheduler_lengths=dict(self._lengths()),
            twins=self._twins,
            switched=self._switched,
            seeds=self._seeds,
            default_seed=self._seeds["torch"] == _DEFAULT_SEED,
            cycle=cycle,
            pad=self.pad,
            vocabulary=self._vocabulary(),
            tokens=self.tokens,
            generators=self._generators,
            dropouts=self._dropouts,
            every=self._every,
        )

    @staticmethod
    def differ(one: TrainingSetup, other: TrainingSetup) -> bool:
        """Whether they differ in more than the step."""
        return msgspec.structs.replace(one, step=other.step) != other

    def _facts_of(
        self, parameter: Parameter, group: str, options: dict[str, Any]
    ) -> ParameterFacts:
        tensor = parameter.tensor
        decay = options.get("weight_decay", 0.0)
        return ParameterFacts(
            parameter.name,
            () if is_lazy(tensor) else tuple(parameters_of_this_rank(tensor).shape),
            dtype_name(tensor.dtype),
            self._owners[parameter.owner],
            tensor.requires_grad,
            group,
            float(decay) if isinstance(decay, (int, float)) else 0.0,
            hasattr(tensor, "to_local"),
            float(eps) if isinstance(eps := options.get("eps"), (int, float)) else 0.0,
        )

    def _lengths(self) -> Iterator[tuple[str, int]]:
        for name, scheduler in self.schedulers:
            length = next(
                (
                    found
                    for each in _LENGTHS
                    if isinstance(found := getattr(scheduler, each, None), int)
                ),
                None,
            )
            if length is not None and type(scheduler).__name__.startswith(
                ("Cosine", "OneCycle", "Polynomial")
            ):
                yield name, length

    def _special(self, kind: str) -> int | None:
        found = getattr(getattr(self._model, "config", None), f"{kind}_token_id", None)
        return found if isinstance(found, int) and found >= 0 else None

    def _padding(self, modules: Modules) -> Padding | None:
        """From the model's configuration, or else from its only embedding with padding."""
        if self.pad is not None:
            rows = self._vocabulary()
            return None if rows is None else Padding(self.pad, rows)
        tables = [
            each
            for each in modules.named.values()
            if isinstance(each, nn.Embedding) and each.padding_idx is not None
        ]
        if len(tables) != 1 or tables[0].padding_idx is None:
            return None
        return Padding(tables[0].padding_idx, tables[0].num_embeddings)

    def _vocabulary(self) -> int | None:
        if not callable(find := getattr(self._model, "get_input_embeddings", None)):
            return None
        try:
            rows = getattr(find(), "num_embeddings", None)
        except Exception:  # a user's class may raise anything
            return None
        return rows if isinstance(rows, int) else None


def _has_state(optimizer: Any) -> bool:
    """Whether an optimizer has state from earlier updates."""
    states = getattr(optimizer, "state", {}).values()
    return any(
        isinstance(each, torch.Tensor)
        for state in states
        if isinstance(state, dict)
        for each in state.values()
    )


def parameters_of_this_rank(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor, found without communication."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def states_of_generators() -> tuple[Any, Any]:
    name, keys, *rest = np.random.get_state()
    return random.getstate(), (
        name,
        keys.tobytes() if isinstance(keys, np.ndarray) else keys,
        *rest,
    )


def is_switched(module: nn.Module) -> bool:
    """Whether training changes a module's behaviour: dropout, norms with running statistics."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    return isinstance(module, _NormBase) and module.running_mean is not None


def _twins(modules: Modules) -> Iterator[tuple[str, str]]:
    """Names in one list that are the same module."""
    for alias, first in modules.aliases.items():
        (one, own), (other, others) = (
            (name.rpartition(".")[0], name.rpartition(".")[2]) for name in (first, alias)
        )
        if (
            one == other
            and own.isdigit()
            and others.isdigit()
            and next(iter(modules.named[first].parameters()), None) is not None
        ):
            yield first, alias


def _numbered(schedulers: list[Any], at: int) -> str:
    name = type(schedulers[at]).__name__
    earlier = sum(type(each).__name__ == name for each in schedulers[:at])
    return f"{name}#{earlier + 1}" if earlier else name
