"""Recording updates: what an optimizer's step takes, and what it makes of that."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from accucompare.bundle.format import AT_THE_END, Record, Role, StepSeries
from accucompare.bundle.writing import LENT
from accucompare.live.autograd import (
    Observer,
    Parameter,
    gradient_state,
    observe_backward,
    observe_backward_no_more,
    parameters_of,
    stepped_by,
)
from accucompare.live.layouts import Layouts
from accucompare.live.modules import Modules, in_backward
from accucompare.live.operators import entrances
from accucompare.live.values import Bits, copy_of, difference, leaves, local_part, writes_into
from accucompare.recorder.recording.between_updates import Between
from accucompare.recorder.recording.clipping import Clipping
from accucompare.recorder.recording.guard import GoldenUpdates, UpdateSink, guarded
from accucompare.recorder.recording.main_grad import MAIN_GRAD, gradient_of
from accucompare.recorder.recording.making import PLAINLY, How
from accucompare.recorder.recording.series import SeriesRecorder
from accucompare.recorder.recording.stepped_copies import numbers_of_groups, stepped_instead
from accucompare.recorder.state import Training

#: Recorded in place of a trainable parameter's missing gradient, the second where nothing steps it.
NO_GRADIENT, IN_NO_OPTIMIZER = "no gradient", "in no optimizer that stepped"


@dataclass
class _Before:
    """A parameter's copy from before its update; ``spare``: nobody else reads it any more."""

    tensor: torch.Tensor
    spare: bool = False

    def written(self, then: Callable[[Record], None] | None, record: Record) -> None:
        if then is not None:
            then(record)
        self.spare = True


class Updates:
    """The optimizers' part of a recorder: any ``torch.optim.Optimizer`` of the model's parameters.

    An update takes ``param_before``, ``param_grad`` (before PyTorch's functions clip it),
    ``state_before`` and the numbers of its parameter groups. It makes ``param_update`` (after minus
    before) and ``state_after``. With golden, it takes golden's.
    """

    def __init__(
        self,
        modules: Modules,
        sink: UpdateSink,
        golden: GoldenUpdates | None,
        training: Training,
        layouts: Layouts | None = None,
    ) -> None:
        self._sink = sink
        self._layouts = layouts
        self._golden = golden
        self.series = SeriesRecorder()
        self.parameters = {id(each.tensor): each for each in parameters_of(modules)}
        self._steps_copies = False
        self._model_has = [each.tensor for each in self.parameters.values()]
        self._count = 0  # of updates in this step
        # ids of what the last update stepped, until something else happens
        self._just_stepped: set[int] = set()
        self._more = False  # whether the running optimizer goes on with the last update
        self._started = -1  # the update count at the model's last call
        self._between = Between()
        # parameters whose gradient was recorded for the next update, by id, with its state then
        self._recorded: dict[int, tuple[int, int]] = {}
        # how often each was recorded for the next update
        self._times: Counter[int] = Counter()
        self._told: set[int] = set()  # ids of parameters whose gradient was recorded in this step
        self._before: dict[int, _Before] = {}
        self._held = {
            id(each.tensor) for optimizer in training.optimizers for each in self.held_by(optimizer)
        }
        self._updated: set[int] = set()
        # whether any optimizer stepped in this step, even of other parameters
        self._any_update = False
        # each parameter's count of writes when the step began
        self._versions: list[int] = []
        self._backwards = 0  # when the step began
        # whether parameters changed in a step that trained without an optimizer's step
        self._changed_otherwise = False
        # classes of optimizers that hold no parameter of the model
        self._others: dict[str, None] = {}
        self._handles: list[Any] = []
        self._observer = Observer(self._backward_begins, self._backward_ends)
        self._clipping = Clipping(self, sink, self.series, training.scaler)

    def notes(self) -> list[str]:
        notes = []
        if self._others:
            notes.append(
                "an optimizer stepped that holds no parameter of the model"
                f" ({', '.join(self._others)}); its updates are not recorded"
            )
        if self._changed_otherwise:
            notes.append(
                "parameters changed in a step with a backward, but without a step of a torch.optim"
                " optimizer: what became of them is recorded, and the whole gradients of parameters"
                " are not"
            )
        idle = [
            each.name
            for key, each in self.parameters.items()
            if key not in self._updated and each.tensor.requires_grad
        ]
        if idle and self._updated:
            notes.append(
                f"{len(idle)} trainable parameter(s) are in no optimizer that stepped, such as"
                f" {idle[0]}"
            )
        return notes

    def install(self) -> None:
        self._between = Between()
        self._versions = self._written()
        self._handles = [
            register_optimizer_step_pre_hook(functools.partial(self._guarded, self._begins)),
            register_optimizer_step_post_hook(functools.partial(self._guarded, self._ends)),
        ]
        observe_backward(self._observer)
        self._clipping.install()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._clipping.remove()
        observe_backward_no_more(self._observer)
        self._before.clear()

    def end_step(self, step: int, last: bool) -> Callable[[], StepSeries] | None:
        """A step ends, ``last`` with the capture: record gradients that no update took. As
        ``SeriesRecorder.end_step``.
        """
        if self._started == self._count and (self._trained or last):
            self._note_changed(AT_THE_END, last)
        elif (self._count or last) and self._started != self._count:
            self._note_changed(last=last)
        if not self._any_update and self.series.backwards > self._backwards:
            versions = zip(self._versions, self._written(), strict=True)
            self._changed_otherwise = self._changed_otherwise or any(
                before not in (-1, now) for before, now in versions
            )
        for key, each in self.parameters.items() if self._trained else ():
            grad, where = gradient_of(each.tensor)
            if self._any_update:
                if each.tensor.requires_grad and key not in self._held and key not in self._told:
                    value = IN_NO_OPTIMIZER if grad is None else grad
                    self._give(each, Role.PARAM_GRAD, each.own, value, How(IN_NO_OPTIMIZER), 0)
            elif (
                self._layouts is None  # of several ranks they may be unreduced
                and not self.series.skipped
                and grad is not None
                and self._recorded.get(key) != gradient_state(each.tensor)
            ):
                self._take(each, Role.PARAM_GRAD, self._gradient_path(each), grad, How(where))
        return self.series.end_step(step)

    def next_step(self) -> None:
        self._count = 0
        self._just_stepped.clear()
        self._started = -1
        self._between.next_step()
        self._any_update = False
        self._versions, self._backwards = self._written(), self.series.backwards
        self._clipping.next_step()
        for each in (self._recorded, self._times, self._told, self._before):
            each.clear()

    @property
    def _trained(self) -> bool:
        """Whether there was a backward or an update in this step."""
        return self._any_update or self.series.backwards > self._backwards

    def _written(self) -> list[int]:
        """Each parameter's count of writes; -1 if there is no count, or no value yet."""
        return [writes_into(each.tensor) for each in self.parameters.values()]

    def model_begins(self) -> None:
        """The model is called, first in a step or after an update: give it golden's weights."""
        self._just_stepped.clear()
        if self._started == self._count:
            return
        self._started = self._count
        self._note_changed()
        if self._golden is not None:
            for each in self.parameters.values():
                self._golden.start(each.owner, self._count, each.own, each.tensor)
            self._between.changed()  # these are no changes
        # parameters that change without an optimizer: averages, updates by hand, in the forward
        known = self._between.known
        new = [
            each
            for key, each in self.parameters.items()
            if key not in known and self._sink.wants(each.owner, Role.PARAM_CHANGED)
        ]
        trains = torch.is_grad_enabled()
        for whole in (True, False):
            some = [each for each in new if whole is (trains and id(each.tensor) not in self._held)]
            self._between.leave(some, sampled=not whole, once=not trains)

    def _note_changed(self, when: str = "", last: bool = False) -> None:
        """Record what anything but an update changed since the last one, here or in golden.
        ``when``: appended to the paths; ``AT_THE_END`` if no update followed the model's last call
        in this step."""
        changed, known = self._between.changed(last), self._between.known
        self.series.rewritten(changed)
        for key, each in self.parameters.items():
            if key in changed or (
                self._golden is not None
                and key in known
                and self._golden.has_changed(each.owner, self._count, each.own + when)
            ):
                self._give(each, Role.PARAM_CHANGED, each.own + when, each.tensor)

    def _guarded(self, act: Callable[..., None], *arguments: Any) -> None:
        guarded(self._sink, act, "an update", *arguments)

    def _find_copies(self, optimizer: Any) -> None:
        """An optimizer steps copies or parts of parameters, as Megatron's do: take these instead.

        Parameters that a distributed one steps on other ranks only are none of this rank's."""
        found = stepped_instead(optimizer, self.parameters)
        if not found:
            return
        kept: dict[int, Parameter] = {}
        for key, each in self.parameters.items():
            tensor = found.get(key, each.tensor)
            stepped = None if self._layouts is None else self._layouts.stepped(each.tensor)
            if key in found and self._layouts is not None:
                self._layouts.steps_instead(tensor, each.tensor)
            if key in found or stepped != 0:
                kept[id(tensor)] = each._replace(tensor=tensor)
        self.parameters = kept
        self._versions = self._written()
        self._steps_copies = True

    def held_by(self, optimizer: Any) -> list[Parameter]:
        """The model's parameters that an optimizer steps."""
        return [self.parameters[key] for key in stepped_by(optimizer) if key in self.parameters]

    def _backward_begins(self, roots: Any, seeds: Any, makes_graph: bool) -> None:
        """Record gradients again: this backward adds to clipped ones, or an update was skipped."""
        if self._sink.listening and self._sink.running() is None and not in_backward():
            self._recorded.clear()
            self._just_stepped.clear()
            self._guarded(self.series.backward_begins, roots)

    def _backward_ends(self, given: Sequence[Any]) -> None:
        if any(each is not None for each in given) and not in_backward():
            self._guarded(self.series.gradients_asked)

    def _begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._find_copies(optimizer)
        parameters = self.held_by(optimizer)
        self._clipping.update_begins(optimizer)
        self._any_update = True
        if not parameters:
            self._others[type(optimizer).__name__] = None
            for key, each in self.parameters.items():
                # it steps copies of the parameters
                if key not in self._held and gradient_of(each.tensor)[1]:
                    self.record_gradient(each, None)
            return
        if self._is_inner(optimizer, parameters):
            self._states(optimizer, parameters, Role.STATE_BEFORE)
            return
        self._more = self._goes_on(parameters)
        if self._more:
            self._count -= 1
        else:
            self._just_stepped.clear()
            self.series.rates(optimizer)
            for path, value in numbers_of_groups(optimizer):
                self._sink.add_update("", self._count, Role.STATE_BEFORE, path, value)
        # the first argument is the optimizer
        closure = any(each is not None for each in (*args[1:2], kwargs.get("closure")))
        # golden's digest of the weights is of other numbers than copies or parts have
        first = self.series.wants_weights and not self._steps_copies
        if self._steps_copies and self._sink.wants("", Role.PARAM_BEFORE):
            self.series.hold(self._model_has)
        scale = getattr(optimizer, "grad_scale", None)
        for each in parameters:
            self._updated.add(id(each.tensor))
            if not closure:  # a closure computes gradients later
                self.record_gradient(each, scale)
            self._parameter(each, self._weight(each) if first else None)
            self._states(optimizer, [each], Role.STATE_BEFORE)
        self._held |= {id(each.tensor) for each in parameters}
        if first:
            held = {id(each.tensor) for each in parameters}
            for key, each in self.parameters.items():
                if key not in held:
                    self._weight(each, recorded=False)
        self._clipping.gradients_taken(optimizer, parameters, scale)

    def _ends(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parameters = self.held_by(optimizer)
        self._clipping.leave_hooks()
        if not parameters:
            return
        if self._is_inner(optimizer, parameters):
            self._states(optimizer, parameters, Role.STATE_AFTER)
            return
        for each in parameters:
            if id(each.tensor) not in self._recorded:
                self.record_gradient(each, None, late=True)
            before = self._before.pop(id(each.tensor), None)
            if before is not None:
                update, lease = difference(
                    each.tensor, before.tensor, self._sink.room, before.spare
                )
                self._give(
                    each, Role.PARAM_UPDATE, each.own, update, How(bits=Bits.OURS, lease=lease)
                )
                del before
            self._states(optimizer, [each], Role.STATE_AFTER)
        self._between.leave(
            each for each in parameters if self._sink.wants(each.owner, Role.PARAM_CHANGED)
        )
        if not self._more:
            self.series.updated(getattr(optimizer, "found_inf", None))
        self._just_stepped |= {id(each.tensor) for each in parameters}
        later = {
            key
            for key, each in self.parameters.items()
            if key not in self._just_stepped and self._is_of_megatron(each.tensor)
        }
        self._clipping.updated(later)
        self._recorded = {key: self._recorded[key] for key in later if key in self._recorded}
        self._times = Counter({key: self._times[key] for key in later if key in self._times})
        self._count += 1

    def _goes_on(self, parameters: Iterable[Parameter]) -> bool:
        """Whether an optimizer goes on with the last update: Megatron has one for the experts that
        ranks share out, and one for all else."""
        return bool(self._just_stepped) and all(
            id(each.tensor) not in self._just_stepped and self._is_of_megatron(each.tensor)
            for each in parameters
        )

    def _is_of_megatron(self, tensor: torch.Tensor) -> bool:
        return self._steps_copies or isinstance(getattr(tensor, MAIN_GRAD, None), torch.Tensor)

    def _weight(
        self, parameter: Parameter, recorded: bool | None = None
    ) -> Callable[[Record], None] | None:
        """What to call with a parameter's record before the first update, to digest the weights."""
        if not self._sink.wants("", Role.PARAM_BEFORE):
            return None
        if recorded is None:
            recorded = self._sink.wants(parameter.owner, Role.PARAM_BEFORE)
        return self.series.weight(parameter.tensor, recorded)

    def record_gradient(
        self, parameter: Parameter, scale: torch.Tensor | None, late: bool = False
    ) -> None:
        """Record a parameter's gradient, once for each update; again after a further backward.

        Args:
            scale: what the gradient is still multiplied by; a fused optimizer undoes that itself.
            late: the update is over, so golden's gradient comes too late.
        """
        key = id(parameter.tensor)
        if key in self._recorded:
            return
        self._recorded[key] = gradient_state(parameter.tensor)
        self._told.add(key)
        path = self._gradient_path(parameter)
        grad, where = gradient_of(parameter.tensor)
        if (
            grad is None
            and self._layouts is not None
            and self._layouts.has_none_of(parameter.tensor)
        ):
            grad = parameter.tensor.detach()
        if grad is None:
            if parameter.tensor.requires_grad:
                self._give(parameter, Role.PARAM_GRAD, path, NO_GRADIENT)
            return
        value = grad if scale is None else grad / scale
        written = self._norm(parameter, value)
        if late:
            self._give(parameter, Role.PARAM_GRAD, path, value, How(where, written))
            if self._golden is not None:
                self._golden.leave(
                    parameter.owner,
                    self._count,
                    Role.PARAM_GRAD,
                    path,
                    "the update computed it itself, in its closure",
                )
            return
        self._take(parameter, Role.PARAM_GRAD, path, value, How(where, written))
        if scale is not None and self._golden is not None:
            grad.copy_(value * scale)

    def _gradient_path(self, parameter: Parameter) -> str:
        """The path of a gradient: with the count of those recorded since the last update."""
        key = id(parameter.tensor)
        self._times[key] += 1
        return parameter.own if self._times[key] == 1 else f"{parameter.own}#{self._times[key]}"

    def _parameter(self, parameter: Parameter, written: Callable[[Record], None] | None) -> None:
        """Record a parameter before its update, keep it until the end, and give golden's value."""
        tensor = parameter.tensor.detach()
        wanted = self._sink.wants(parameter.owner, Role.PARAM_BEFORE)
        if self._golden is None and wanted:  # one copy is both recorded and kept
            kept = _Before(copy_of(tensor, self._sink.lend))
            self._before[id(parameter.tensor)] = kept
            self._give(
                parameter,
                Role.PARAM_BEFORE,
                parameter.own,
                kept.tensor,
                How(
                    written=functools.partial(kept.written, written),
                    bits=Bits.OURS,
                    lease=LENT,
                    by_digest=written is not None,
                ),
            )
        elif self._golden is not None:
            self._take(
                parameter,
                Role.PARAM_BEFORE,
                parameter.own,
                parameter.tensor,
                How(written=written, by_digest=written is not None),
            )
            if wanted:
                self._before[id(parameter.tensor)] = _Before(
                    copy_of(tensor, self._sink.lend), spare=True
                )

    def _norm(self, parameter: Parameter, grad: torch.Tensor) -> Callable[[Record], None] | None:
        """What to call with a gradient's record for its norm. Without a record, read it now."""
        if self._layouts is not None:
            shard = self._layouts.of_parameter(parameter.tensor, grad)
            if shard is not None and not shard.is_whole(tuple(local_part(grad).shape)):
                self.series.has_part()
        if self._sink.wants(parameter.owner, Role.PARAM_GRAD) and grad.layout is torch.strided:
            return self.series.norm_of(parameter.tensor)
        self.series.measure(parameter.tensor, grad)
        return None

    def _is_inner(self, optimizer: Any, parameters: Collection[Parameter]) -> bool:
        """Whether an optimizer steps inside another's update of these parameters."""
        own = {id(each.tensor) for each in parameters}
        others = (each for each in entrances.running_steps() if each is not optimizer)
        return any(id(each.tensor) in own for other in others for each in self.held_by(other))

    def _states(self, optimizer: Any, parameters: Iterable[Parameter], role: Role) -> None:
        """Record an optimizer's state of parameters, before or after an update."""
        for each in parameters:
            for path, value in leaves(dict(optimizer.state.get(each.tensor, {}))):
                (self._take if role is Role.STATE_BEFORE else self._give)(
                    each, role, f"{each.own}.{path}", value, How(bits=Bits.NEW)
                )

    def _take(
        self, parameter: Parameter, role: Role, path: str, value: Any, how: How = PLAINLY
    ) -> None:
        """Record what an update takes, then put golden's value there."""
        self._give(parameter, role, path, value, how)
        if self._golden is not None and isinstance(value, torch.Tensor):
            self._golden.put(parameter.owner, self._count, role, path, value)

    def _give(
        self,
        parameter: Parameter,
        role: Role,
        path: str,
        value: Any,
        how: How = PLAINLY,
        update: int | None = None,
    ) -> None:
        """Record a value of a parameter's update, which is the running one if none is named."""
        if self._layouts is not None and isinstance(value, torch.Tensor):
            how = replace(how, shard=self._layouts.of_parameter(parameter.tensor, value))
        number = self._count if update is None else update
        self._sink.add_update(parameter.owner, number, role, path, value, how)
