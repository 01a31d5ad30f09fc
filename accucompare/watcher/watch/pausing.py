"""Pausing a training whose loss stays NaN or Inf, with the state from before saved."""

from __future__ import annotations

import contextlib
import copy
import math
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from accucompare.bundle.format import Component
from accucompare.bundle.writing import BundleWriter, forget_previous, prepare_directory
from accucompare.live.around import describe_environment, describe_model
from accucompare.live.layouts import Layouts
from accucompare.live.modules import Modules, plain_numbers
from accucompare.live.operators import RandomState
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session import Start
from accucompare.recorder.state import CallArguments, StateSaver, Training
from accucompare.selection import Selection
from accucompare.watcher.again import copies_of

#: Calls per step whose arguments are saved.
_MOST = 64


@dataclass
class _Begun:
    """What a step changes before its update, as it was when the step began."""

    random: RandomState
    # buffers, gradients: copies of those that existed
    buffers: list[tuple[torch.Tensor, torch.Tensor]]
    gradients: list[tuple[torch.Tensor, torch.Tensor | None]]
    # of each module, the numbers and the text that it keeps
    numbers: list[tuple[dict[str, Any], dict[str, Any]]]
    # of each optimizer's parameter group, everything beside parameters
    groups: list[tuple[dict[str, Any], dict[str, Any]]]
    # the states of schedulers and scaler: a loop that skips a bad update steps them anyway
    states: list[tuple[Any, Any]]
    # copies of what the model was given in the step, per call
    batch: list[CallArguments] = field(default_factory=list)


class Pausing:
    """Saves a training's state before the first of several steps whose loss is NaN or Inf.

    It is saved when that step's update is about to begin, since the update would spoil the weights.
    A finite loss removes it."""

    def __init__(
        self,
        modules: Modules,
        training: Training,
        device: torch.device,
        out: Path,
        times: int,
        case: str | None,
    ) -> None:
        """``times``: the number of bad losses in a row that pauses."""
        # where the state is saved; ``None`` if the last loss was finite
        self.state: Path | None = None
        # a case's inputs, one entry per step: saved in place of the batch
        self.inputs: list[CallArguments] | None = None
        self._modules = modules
        self._training = training
        self._device = device
        self._out = out
        self._times = times
        self._case = case
        layouts = Layouts.of_model(modules)
        self._shard_of = None if layouts is None else layouts.of_weight
        self._saver = StateSaver(
            modules, training, device, None, matched=False, shard_of=self._shard_of
        )
        self._running = 0
        self._begun: _Begun | None = None

    def begin_step(self) -> None:
        """A step begins: keep what it changes before its update."""
        tensors = [(kind, tensor) for kind, _, tensor in self._modules.tensors()]
        with torch.no_grad():
            self._begun = _Begun(
                RandomState.now(self._device),
                [
                    (tensor, tensor.detach().clone())
                    for kind, tensor in tensors
                    if kind == "buffers"
                ],
                [
                    (each, None if each.grad is None else each.grad.detach().clone())
                    for kind, each in tensors
                    if kind == "parameters"
                ],
                [(vars(module), plain_numbers(module)) for module in self._modules.named.values()],
                *self._around(),
            )

    def _around(self) -> tuple[list[tuple[dict[str, Any], dict[str, Any]]], list[tuple[Any, Any]]]:
        """The present options of all parameter groups, and the states of schedulers and scaler."""
        parts = self._training.parts
        groups = [
            group
            for part in parts
            if part.component is Component.OPTIMIZER
            for group in getattr(part.live, "param_groups", ())
        ]
        options = [
            (
                group,
                {name: copy.deepcopy(value) for name, value in group.items() if name != "params"},
            )
            for group in groups
        ]
        others = [
            part.live
            for part in parts
            if part.component is not Component.OPTIMIZER and part.has_state
        ]
        return options, [(live, copy.deepcopy(live.state_dict())) for live in others]

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is called, with gradients."""
        if self._begun is not None and len(self._begun.batch) < _MOST:
            self._begun.batch.append(copies_of(args, kwargs))

    def look(self, losses: Iterable[float], step: int) -> None:
        """The update of a step with these losses begins: save the state from before, if it is the
        first bad one. Raises CaptureError if the state cannot be written."""
        if self._begun is not None and self.state is None and not all(map(math.isfinite, losses)):
            self.state = self._out / f"state-before-step{step}"
            self._save(self._begun, step, self.state)

    def end_step(self, losses: Iterable[float], step: int, updated: bool) -> bool:
        """A step with these losses is over; returns whether to pause. Errors as ``look``.

        Args:
            losses: those that were seen, and the one that the loop has told.
            updated: whether parameters were updated in it.
        """
        losses = list(losses)
        if all(map(math.isfinite, losses)):
            if losses and self.state is not None:
                shutil.rmtree(self.state, ignore_errors=True)
                self.state = None
            self._running = 0 if losses else self._running
            return False
        if not updated:
            self.look(losses, step)
        self._running += 1
        return self._running >= self._times

    def _save(self, begun: _Begun, step: int, directory: Path) -> None:
        start = Start(
            None,
            None,
            Selection.of((), ()),
            (),
            [],
            [],
            model=describe_model(self._modules, self._shard_of),
            begun=step,
        )
        manifest = start.manifest(CaptureOptions(save_state=True), 1)
        manifest.environment.update(
            {**describe_environment(self._device, self._case), "autocast": None, "random": None}
        )
        manifest.notes.append(
            f"the state of a training before step {step}, whose loss was NaN or Inf"
        )
        prepare_directory(directory, overwrite=True)
        with (
            BundleWriter(directory, manifest) as writer,
            _put_back(begun, self._device, self._around()),
        ):
            self._saver.write(
                writer, step, None, self.inputs if self.inputs is not None else begun.batch
            )
        forget_previous(directory)


@contextlib.contextmanager
def _put_back(
    begun: _Begun, device: torch.device, around: tuple[list[Any], list[Any]]
) -> Iterator[None]:
    """Meanwhile put a training back to its step's beginning. ``around``: what is around it now."""
    now = _Begun(
        RandomState.now(device),
        [(tensor, tensor.detach().clone()) for tensor, _ in begun.buffers],
        [(tensor, tensor.grad) for tensor, _ in begun.gradients],
        [
            (table, {name: table[name] for name in numbers if name in table})
            for table, numbers in begun.numbers
        ],
        *around,
    )
    _put(begun)
    try:
        yield
    finally:
        _put(now)


def _put(state: _Begun) -> None:
    state.random.restore()
    for tensor, value in state.buffers:
        tensor.data.copy_(value)  # leaving no trace for autograd, which may still need it
    for tensor, grad in state.gradients:
        tensor.grad = grad
    for table, numbers in (*state.numbers, *state.groups):
        table.update(numbers)
    for live, table in state.states:
        live.load_state_dict(copy.deepcopy(table))
