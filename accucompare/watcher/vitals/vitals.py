"""Collects what the checklist judges by. Changes nothing, and never waits for a device itself."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from accucompare.findings.log import (
    LoadedBatch,
    LossInput,
    Number,
    Targets,
    TrainingSetup,
    Vitals,
    number,
)
from accucompare.live.autograd import (
    Observer,
    observe_backward,
    observe_backward_no_more,
    stepped_by,
)
from accucompare.live.modules import Modules, arguments_of, in_backward
from accucompare.live.operators import entrances
from accucompare.live.values import dtype_name, leaves
from accucompare.watcher.looking import Extrema, Meter, Watcher, has_memory
from accucompare.watcher.vitals.batches import GivenTensor, look_at_batch
from accucompare.watcher.vitals.call_vitals import CallVitals
from accucompare.watcher.vitals.from_notes import (
    first_entered,
    first_outputs,
    has_matrix,
    narrowed_inputs,
)
from accucompare.watcher.vitals.gradient_use import GradientUse, has_limit
from accucompare.watcher.vitals.loaders import Loaders
from accucompare.watcher.vitals.loss_inputs import LabelsOf, look_at_labels, loss_inputs
from accucompare.watcher.vitals.losses import cross_entropy_of, loss_of, nodes_near
from accucompare.watcher.vitals.setup import (
    GENERATORS,
    SetupFacts,
    is_switched,
    states_of_generators,
)
from accucompare.watcher.vitals.stale_gradients import StaleGradients
from accucompare.watcher.vitals.update_vitals import UpdateVitals, applied_by

_RUNNING = ("running_mean", "running_var")
#: How many frozen parameters with a gradient are named.
_FEW = 8


class VitalSigns:
    """The numbers of the running step; ``cycle``: after so many steps the loop uses the same inputs
    again, as it was asked to (0 if unknown)."""

    def __init__(
        self,
        modules: Modules,
        watcher: Watcher,
        optimizers: Iterable[Any],
        schedulers: Iterable[Any],
        every: int,
    ) -> None:
        """``watcher`` reads the numbers and sees the calls; ``every``: look closely at every n-th
        step, or at none (0)."""
        self.cycle = 0
        self._watcher = watcher
        self._meter: Meter = watcher.meter
        self._every = every
        self._facts = SetupFacts(
            modules, watcher.gradients.parameters, list(optimizers), list(schedulers), every
        )
        self._written: TrainingSetup | None = None
        # each with its containing module
        self._switched = [
            (module, modules.named[name.rpartition(".")[0]] if name else module)
            for name, module in modules.named.items()
            if is_switched(module)
        ]
        self._named = modules.named
        self._owners = {
            name
            for name, module in modules.named.items()
            if any(each is not None for each in module._parameters.values())
        }
        self._own = {id(each.tensor): each.name for each in watcher.gradients.parameters}
        self._matrices = {name for name, module in modules.named.items() if has_matrix(module)}
        self._use = GradientUse(watcher.gradients.parameters, watcher.meter)
        self._clippings = [
            (*place, functools.partial(self._clipping, callers))
            for place, callers in entrances.clipping().items()
        ]
        self._running = [
            (name, tensor)
            for kind, name, tensor in modules.tensors()
            if kind == "buffers" and name.endswith(_RUNNING)
        ]
        self._calls = CallVitals(modules, watcher.meter)
        self._stale = StaleGradients(watcher.gradients.parameters, watcher.meter)
        self._loaders = Loaders()
        self._observer = Observer(self._begins, self._ends)
        self._handle: Any = None
        # Python's and NumPy's generators when the model was called
        self._drawing: tuple[Any, Any] | None = None
        self._after: tuple[Any, Any] | None = None  # and when its last call was over
        self._next()

    def _next(self) -> None:
        self._updates = UpdateVitals()
        self._given: list[GivenTensor] = []
        self._losses: list[Extrema] = []
        self._entropy: Callable[[], Targets] | None = None
        self._stale.next_step()
        self._evaluated: int | None = None
        self._trained_without = 0
        self._loaded: LoadedBatch | None = None
        self._frozen: dict[str, None] = {}
        self._drawn: dict[str, None] = {}
        self._drawn_between: dict[str, None] = {}
        self._buffers: dict[str, Extrema] = {}
        # of the running backward
        self._root: tuple[int, Extrema, Callable[[], Targets] | None] | None = None
        self._elsewhere = 0
        self._loss_inputs: dict[LossInput, None] = {}
        self._labels: dict[str, LabelsOf] = {}
        # the last cross entropy: classes, type, labels, which are ignored
        self._asked: tuple[int, str, torch.Tensor, int] | None = None
        self._use.next_step()
        self._calls.next_step()

    def install(self) -> None:
        """Begin to look."""
        if self._every and self._handle is None:
            observe_backward(self._observer)
            self._loaders.install()
            self._handle = register_optimizer_step_post_hook(self._updated)
            for owner, name, act in self._entrances():
                entrances.observe_function(owner, name, act)

    def remove(self) -> None:
        """Look no more."""
        observe_backward_no_more(self._observer)
        self._loaders.remove()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
            for owner, name, act in self._entrances():
                entrances.observe_function_no_more(owner, name, act)

    def _entrances(self) -> list[tuple[Any, str, entrances.Before]]:
        """Functions to see before they run: a label out of range raises before there is a graph."""
        return [
            *((torch._C._nn, name, self._asking) for name in ("cross_entropy_loss", "nll_loss_nd")),
            *self._clippings,
        ]

    @property
    def _closely(self) -> bool:
        return self._watcher.step % self._every == 0

    def _looking(self) -> bool:
        return bool(self._every) and self._watcher.listening

    def _guarded(self, act: Any, *arguments: Any) -> None:
        """Do something whose error must not reach the loop."""
        if self._looking():
            self._watcher.run(act, "the checklist", arguments)

    def outermost_began(
        self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """An outermost call of a module begins."""
        if not self._looking():
            return
        trains = torch.is_grad_enabled()
        if trains:
            evaluated = (
                0
                if root.training
                else sum(
                    not module.training and _is_trained(whole) for module, whole in self._switched
                )
            )
            # an adversarial attack may run in evaluation
            self._evaluated = (
                evaluated if self._evaluated is None else min(self._evaluated, evaluated)
            )
            self._loaded = self._loaded or self._loaders.last
            if len(self._given) < 64:
                ends = self._facts.pad in self._facts.tokens.values()
                self._given += look_at_batch(
                    arguments_of(args, kwargs), self._meter, self._closely, self._facts.pad, ends
                )
        else:
            self._trained_without = max(
                self._trained_without, sum(module.training for module, _ in self._switched)
            )
        if trains:
            self._use.called(value for _, value in arguments_of(args, kwargs))
        self._drawing = states_of_generators()
        if self._after is not None:
            self._drawn_between |= _differing(self._after, self._drawing)

    def outermost_ended(self) -> None:
        """An outermost call is over."""
        if self._looking() and self._drawing is not None:
            self._after = states_of_generators()
            self._drawn |= _differing(self._drawing, self._after)
            self._drawing = None

    def call_given(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name in self._calls.tables and self._looking() and not in_backward():
            self._calls.given(name, args, kwargs)

    def _asking(self, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A cross entropy begins: keep its labels, in case it ends the step."""
        if (
            self._looking()
            and len(args) > 4
            and all(type(each) is torch.Tensor for each in args[:2])
        ):
            scores = args[0]
            self._asked = (
                scores.shape[1 if scores.dim() > 1 else 0] if scores.dim() else 0,
                dtype_name(scores.dtype),
                args[1],
                args[4],
            )

    def call_gave(self, name: str, output: Any) -> None:
        if (
            name in self._calls.cutting
            and self._looking()
            and self._closely
            and torch.is_grad_enabled()
            and not in_backward()
        ):
            self._calls.gave(name, output)

    def _begins(self, roots: Any, seeds: Any, makes_graph: bool) -> None:
        # otherwise it is part of a forward
        if not in_backward() and torch._C._functorch.peek_interpreter_stack() is None:
            self._guarded(self._backward_begins, roots)

    def _backward_begins(self, roots: Any) -> None:
        gradients = self._watcher.gradients
        self._use.backward_begins()
        self._stale.backward_begins()
        root = loss_of(roots)
        if root is not None:
            loss = self._meter.later(root.detach().clone().reshape(()))
            found = (
                None
                if self._entropy
                else cross_entropy_of(root, self._meter, self._closely, self._facts.padding)
            )
            self._root = gradients.backwards, loss, found
            look_at_labels(nodes_near(root.grad_fn), self._meter, self._own, self._labels)
            if self._closely:
                self._loss_inputs |= dict.fromkeys(loss_inputs(nodes_near(root.grad_fn)))

    def _ends(self, given: Any) -> None:
        if not in_backward():
            self._guarded(self._backward_ends)

    def _backward_ends(self) -> None:
        root, self._root = self._root, None
        gradients = self._watcher.gradients
        if root is not None and gradients.backwards > root[0]:  # it went through this model
            self._losses.append(root[1])
            self._entropy = self._entropy or root[2]
            self._use.backward_ended()
        elif root is not None:
            self._elsewhere += 1
        self._stale.backward_ends()

    def _clipping(
        self, callers: Collection[str], caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if caller in callers and has_limit(caller):
            self._guarded(self._use.clips, {id(grad) for _, grad in leaves(args)})

    def before_update(self, optimizer: Any) -> None:
        """An optimizer is about to update parameters of the model."""
        self._guarded(self._before_update, optimizer)

    def _before_update(self, optimizer: Any) -> None:
        self._facts.add(optimizer)
        self._use.update_begins(optimizer)
        applied = applied_by(self._facts.schedulers, optimizer)
        self._updates.applied |= {
            name: each
            for name, each in applied.items()
            if each.here or name not in self._updates.applied
        }
        held = stepped_by(optimizer)
        ours = [
            each
            for each in self._watcher.gradients.parameters
            if id(each.tensor) in held and each.tensor.grad is not None
        ]
        self._frozen |= {each.name: None for each in ours if not each.tensor.requires_grad}
        self._stale.update_begins(ours)
        self._updates.begin(
            optimizer, self._watcher.gradients.parameters, self._meter, self._closely
        )

    def _updated(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._use.updated()
        if self._facts.knows(optimizer):
            self._guarded(self._after_update, optimizer)

    def _after_update(self, optimizer: Any) -> None:
        parameters = self._watcher.gradients.parameters
        self._updates.end(optimizer, parameters, self._meter)
        held = stepped_by(optimizer)
        ours = [
            each for each in parameters if id(each.tensor) in held and each.tensor.grad is not None
        ]
        self._stale.update_ended(held, ours)

    @property
    def losses(self) -> list[float]:
        """The step's losses that were seen and read so far."""
        return [extrema.low for extrema in self._losses]

    def end_step(self) -> None:
        """The step is over: begin to look at its last facts."""
        self._guarded(self._end_step)

    def _end_step(self) -> None:
        if not self._closely:
            return
        with torch.no_grad():
            for name, tensor in self._running:
                if (extrema := self._meter.look(tensor)) is not None:
                    self._buffers[name] = extrema
        self._calls.end_step()

    def events(self, scale: float | None, died: bool = False) -> list[TrainingSetup | Vitals]:
        """The step's events, with their numbers read.

        ``scale``: the loss scale when it began; ``died``: whether an error of the loop ends it."""
        found: list[TrainingSetup | Vitals] = []
        self._guarded(self._collect, scale, found, died)
        self._next()
        return found

    def _collect(
        self, scale: float | None, found: list[TrainingSetup | Vitals], died: bool
    ) -> None:
        setup = (
            self._facts.setup(self._watcher.step, self.cycle)
            if self._closely or self._written is None
            else self._written
        )
        if self._written is None or self._facts.differ(setup, self._written):
            found.append(setup)
            self._written = setup
        found.append(self._vitals(scale, died))

    def _vitals(self, scale: float | None, died: bool) -> Vitals:
        updates, divisor, notes = self._updates, scale or 1.0, self._watcher.notes
        norm, at_update, grown = self._norms(divisor)
        losses = [extrema.low / divisor for extrema in self._losses]
        return Vitals(
            self._watcher.step,
            backwards=self._watcher.gradients.backwards,
            updates=updates.count,
            lr=updates.lr(),
            loss=number(math.fsum(losses) / len(losses))
            if losses and all(map(math.isfinite, losses))
            else _first_bad(losses),
            norm=norm,
            norm_at_update=at_update,
            scale=scale,
            kept=self._stale.kept if updates.count else 0,
            schedulers=updates.applied,
            given=[given.settled() for given in self._given],
            targets=self._targets(died),
            evaluated=self._evaluated or 0,
            trained_without=self._trained_without,
            loaded=self._loaded,
            grown=grown,
            drawn=list(self._drawn),
            drawn_between=list(self._drawn_between),
            narrowed=narrowed_inputs(notes, self._named) if self._closely else [],
            frozen=list(self._frozen)[:_FEW],
            layers=self._layers(divisor) if self._closely else {},
            idle=self._calls.idle,
            buffers={
                name: (number(each.low), number(each.high)) for name, each in self._buffers.items()
            },
            outputs=first_outputs(notes, self._owners) if self._closely else {},
            died=died,
            elsewhere=self._elsewhere,
            losses=list(self._loss_inputs),
            labels=[
                settled
                for name, each in self._labels.items()
                if (settled := each.settled(name)) is not None
            ],
            lookups=self._calls.lookups,
            entered=first_entered(notes, self._matrices) if self._closely else None,
            thrown=self._use.thrown(),
            clipped=self._use.clipped,
            clipped_behind=self._use.clipped_behind,
            renewed=self._facts.renewed,
            strangers=self._use.strangers,
        )

    def _targets(self, died: bool) -> Targets | None:
        """Of the cross entropy in the backward; if the step ended earlier, of the last one
        called."""
        if self._entropy is not None:
            return self._entropy()
        if not died or self._asked is None:
            return None
        classes, dtype, labels, ignored = self._asked
        if (
            labels.is_floating_point()
            or labels.device.type != "cpu"
            or not bool((labels != ignored).any())
        ):
            return None
        low, high = torch.aminmax(labels[labels != ignored])
        return Targets(classes, dtype, number(float(low)), number(float(high)))

    def _norms(
        self, divisor: float
    ) -> tuple[Number | None, Number | None, tuple[Number, Number] | None]:
        """The updated parameters' gradient norms after the backward and at the update; extrema of
        their ratios."""
        gradients, updated = self._watcher.gradients, self._updates.updated
        before = {
            name: norm.low / divisor for name, norm in gradients.norms.items() if name in updated
        }
        if not before:
            return None, None, None
        after = {
            **before,
            **{name: norm.low for name, norm in gradients.late.items() if name in updated},
        }
        ratios = [after[name] / norm for name, norm in before.items() if 0 < norm < math.inf]
        grown = (
            (number(min(ratios)), number(max(ratios)))
            if len(ratios) > 1 and gradients.late
            else None
        )
        return number(math.hypot(*before.values())), number(math.hypot(*after.values())), grown

    def _layers(self, divisor: float) -> dict[str, list[Number | None]]:
        names = [each.name for each in self._watcher.gradients.parameters]
        # gradients may be made by hand, without a backward
        norms = self._watcher.gradients.norms or self._watcher.gradients.late
        grads = [number(norms[name].low / divisor) if name in norms else None for name in names]
        return {**({"grad": grads} if norms else {}), **self._updates.layers(names)}

    def final_weights(self) -> list[Number | None]:
        """The norms of all weights at the end, if anything was looked at. Waits for the device
        once."""
        if not self._every or self._written is None:
            return []
        parameters = [
            each for each in self._watcher.gradients.parameters if has_memory(each.tensor)
        ]
        norms = dict(
            zip(
                (each.name for each in parameters),
                self._meter.norm([each.tensor for each in parameters]),
                strict=True,
            )
        )
        self._meter.fetch()
        return [
            number(norms[each.name].low) if each.name in norms else None
            for each in self._watcher.gradients.parameters
        ]


def _is_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _differing(before: tuple[Any, Any], after: tuple[Any, Any]) -> dict[str, None]:
    """The names of generators whose states differ."""
    return {
        name: None
        for name, one, other in zip(GENERATORS, before, after, strict=True)
        if one != other
    }


def _first_bad(losses: list[float]) -> Number | None:
    return next((number(loss) for loss in losses if not math.isfinite(loss)), None)
