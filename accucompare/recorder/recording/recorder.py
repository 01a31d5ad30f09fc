"""Recording what every module call takes and gives."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from accucompare import devices
from accucompare.bundle.format import BUFFER_ROLES, ROLES_OF, TRAINING_ROLES, Role, StepSeries
from accucompare.bundle.writing import Lease
from accucompare.errors import AccucompareError, CaptureError
from accucompare.live.around import FunctionsRun, is_of_mesh
from accucompare.live.autograd import NodeLines, Span
from accucompare.live.modules import (
    Call,
    Listener,
    Mark,
    Modules,
    Witness,
    arguments_of,
    in_backward,
    witness,
    witness_no_more,
)
from accucompare.live.operators import choosing
from accucompare.live.values import leaves
from accucompare.numbers import Array
from accucompare.recorder.feeding import FedPlace, FedUpdates, Feeding, OperatorFeed, storages
from accucompare.recorder.recording.arguments import Arguments
from accucompare.recorder.recording.backward import Backward
from accucompare.recorder.recording.buffers import Buffers
from accucompare.recorder.recording.making import PLAINLY, How, RecordMaker
from accucompare.recorder.recording.nodes import Nodes
from accucompare.recorder.recording.operators import Operators
from accucompare.recorder.recording.own_choices import MadeSoFar, OwnChoices
from accucompare.recorder.recording.recorded_call import RecordedCall
from accucompare.recorder.recording.updates import Updates
from accucompare.recorder.state import NOTHING, Training
from accucompare.selection import Mode, RoleGroup, Selection, Steps


class Recorder(Listener[RecordedCall]):
    """Records the inputs and outputs of every module call.

    An input is recorded before the module runs, since an in-place module overwrites it. An output
    is recorded when it is returned, since the next module may overwrite it. An error in a hook is
    noted in ``errors`` and never reaches the model.

    With a ``feed``, the hooks hand on golden's values. A wrongly fed model would be measured
    wrongly, so an error in a hook is raised, and kept as ``failure`` if the model catches it.
    """

    def __init__(
        self,
        modules: Modules,
        selection: Selection,
        maker: RecordMaker,
        started: Callable[[], None],
        feed: Feeding | None = None,
        operators: bool = False,
        groups: Collection[RoleGroup] = (RoleGroup.FORWARD,),
        training: Training = NOTHING,
    ) -> None:
        """
        Args:
            maker: of its records.
            started: called when an outermost call begins.
            operators: also record the operators of the selected modules.
            groups: the groups of roles to record.
            training: what is known of the loop beside the model.
        """
        super().__init__(modules, RecordedCall)
        self.errors: list[str] = []
        self.failure: AccucompareError | None = None
        self.sees_returns = feed is not None or operators
        self._layouts = layouts = maker.layouts
        self.sees_made = layouts is not None and layouts.has_placements
        # a digest can be taken when the model waits for the value
        digests = maker.writer.mode is Mode.DIGEST and feed is None
        self._awaited = layouts.awaited if layouts is not None and digests else None
        self._allows = functools.cache(selection.allows)
        self._writer = maker.writer
        self._started = started
        self._feed = feed
        self._operators = operators
        # storages of parameters and buffers, if operators are fed
        self._state: frozenset[int] = frozenset()
        self._maker = maker
        self.functions = FunctionsRun()  # of the first outermost call of each module
        self._roles = frozenset(role for group in groups for role in ROLES_OF[group])
        golden = FedUpdates(feed, lambda: self.step) if feed is not None and feed.updates else None
        self._updates = Updates(modules, self, golden, training, layouts)
        if feed is not None:
            feed.loss_scale = lambda: self._updates.series.scale
        follows = RoleGroup.BACKWARD in groups or (feed is not None and feed.backward)
        nodes = None
        if operators and follows:
            fed = feed if feed is not None and feed.backward else None
            nodes = Nodes(self, lambda call: self._allows(call.name), self.add_operator, fed)
        self._backward = Backward(modules, self, self._record_gradient, nodes) if follows else None
        self._lines = NodeLines() if nodes is not None else None
        parts = layouts, self._backward, self._updates  # that have hooks of their own
        self._parts = [part for part in parts if part is not None]
        self._buffers: Buffers | None = None
        self._called = False  # an outermost call has begun in this step
        self._missed = False  # the model was called, or a step ended, without being recorded since
        self._computed_recorded = False
        self._outermost: set[str] = set()  # modules whose first outermost call has begun
        # called when a part of the forward begins that will run again
        self._witness = Witness(
            lambda reentrant: functools.partial(
                self._runs_again, self.mark(), reentrant, self._choices.so_far()
            )
        )
        self._choices = OwnChoices(self, self.add_operator, self._allows, self._feed)
        self._known_second_runs = 0  # running second runs that need nothing
        # whether calls were made in a backward, and not by torch.utils.checkpoint
        self._ran_in_backward = False

    def training_notes(self) -> list[str]:
        trained = self._updates if self._roles & {*TRAINING_ROLES} else None
        found = [
            note for part in (self._backward, trained) if part is not None for note in part.notes()
        ]
        if self._ran_in_backward:
            found.append(
                "modules were called in a backward, and not by torch.utils.checkpoint: those calls"
                " are not fed, nor are their gradients recorded if their first run was without"
            )
        return found

    @property
    def backwards(self) -> int:
        """The number of backwards with something to record."""
        if self._backward is not None:
            return self._backward.count
        return self._updates.series.backwards if self._roles & {*TRAINING_ROLES} else 0

    @property
    def without_call_grads(self) -> bool:
        """Whether gradients of single calls cannot be told apart, as under FSDP1."""
        return self._backward is not None and self._backward.flat

    @property
    def records(self) -> int:
        return self._maker.count

    @property
    def holds_records(self) -> bool:
        return bool(self._roles)

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """What runs within is no code of the model, such as a compiler."""
        here = self.functions.running == threading.get_ident()
        return self.functions.paused() if here else contextlib.nullcontext()

    def run(self, act: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Any:
        if self.functions.running != threading.get_ident():
            return super().run(act, name, arguments)
        with self.functions.paused():
            return super().run(act, name, arguments)

    def seeing_choices(self) -> contextlib.AbstractContextManager[None]:
        """What the model's own code chooses within is recorded, as far as values are."""
        whole = self._writer.mode is Mode.TENSORS and self._layouts is None
        if not whole or self._operators:
            return contextlib.nullcontext()
        return choosing(self._choices)

    def install(self, steps: Steps | None = None) -> None:
        """Put the hooks on; they listen in the given steps."""
        super().install()
        self.listening = steps is None or steps.has(self.step)
        witness(self._witness)
        for part in self._parts:
            part.install()
        if self._buffers is None and (
            self._roles & {*BUFFER_ROLES} or (self._feed is not None and self._feed.written)
        ):
            self._buffers = Buffers(
                self._modules, self._record_written, self._feed, lambda: self.step
            )

    def remove(self) -> None:
        super().remove()
        witness_no_more(self._witness)
        for part in self._parts:
            part.remove()
        self.functions.stop()

    def _record_computed(self) -> None:
        """Record the buffers that the model computes itself, once per capture."""
        self._computed_recorded = True
        for name, buffer, tensor in self._modules.computed():
            if self._allows(name) and Role.COMPUTED_BUFFER in self._roles:
                call = RecordedCall(self._modules.named[name], name, 0, None, None)
                self._record_value(call, Role.COMPUTED_BUFFER, buffer, tensor)

    def end_step(self, failed: bool = False, last: bool = False) -> Callable[[], StepSeries] | None:
        """A step is over, or has ``failed``; ``last``: so is the capture. Returns what gives its
        series entry once all records are written, or ``None`` if the step did not train."""
        if last and self._feed is not None and not self._called:
            self._feed.load(self.step, may_lack=True)
        if self._awaited is not None:
            self._awaited.end_step(failed)
        if self._buffers is not None:
            self.run(self._buffers.end_step, "the end of a step", (last,))
        given, place = (self.step, last), "the end of a step"
        entry: Callable[[], StepSeries] | None = self.run(self._updates.end_step, place, given)
        return entry

    @property
    def kept(self) -> dict[str, Any]:
        """For the manifest: the plain attributes in which modules keep tensors, or kept."""
        if self._buffers is None:  # none were looked at
            return {"kept": None, "left": {}}
        kept, beyond = self._buffers.kept, self._buffers.beyond
        dropped = [name for name, holds in kept.items() if not holds]
        left = {"dropped": dropped, "beyond": beyond, "held": self._buffers.held}
        return {"kept": sorted(kept), "left": left}

    @property
    def closing(self) -> int | None:
        """The number of the step that has not begun when the capture ends; ``None`` if the model
        ran on without being recorded, so that nothing tells what the last step left."""
        return None if self._missed or not self.called else self.step + self._called

    def next_step(self) -> None:
        super().next_step()
        self._missed = not self.listening
        self._called = False
        for part in (self._maker, self._backward, self._updates, self._buffers):
            if part is not None:
                part.next_step()
        if self._feed is not None:
            self._feed.end_step()

    def call_began(
        self, call: RecordedCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any] | None:
        call.in_second_run = self.second_run() is not None
        if call.parent is None and not call.in_second_run:
            self._started()
            if not self._computed_recorded:
                self._record_computed()
            if self._buffers is not None:
                self._buffers.model_is_called()
            self._updates.model_begins()
            if call.name not in self._outermost:
                self._outermost.add(call.name)
                self.functions.start()
        given = [*arguments_of(args, kwargs)]
        if self._feed is not None and not self._feed.in_parts:
            call.golden = self._feed.goldens_calls(
                self.step, call.name, call.index, call.parent, given
            )
            if call.golden is None:
                call.index = self._feed.order.number(self.step, call.name, call.index, given)
        if self._layouts is not None and self._backward is not None:
            call.note_gradients(self._layouts, Role.GRAD_INPUT, given)
        if not call.in_second_run:
            if self._buffers is not None and (caller := self.caller(call)) is not None:
                self._buffers.calls(caller, call.name)
            self._record(call, Role.INPUT, given)
        self._called = True
        self.come_last(call)
        fed = not self._operators or call.parent is None or self._is_selected(call)
        if self._feed is not None and fed:
            place = FedPlace(self.step, call.name, call.index, Role.INPUT, call.golden)
            args, kwargs, call.lent = self._feed.inputs(place, args, kwargs)
            given = [*arguments_of(args, kwargs)]
        self._observe(call, given)
        self._note_arguments(call, args, kwargs, given)
        return (args, kwargs) if call.lent is not None else None

    def forward_returned(self, call: RecordedCall, output: Any) -> None:
        call.returned = (output,)

    def forward_made(self, call: RecordedCall, output: Any) -> None:
        call.placed = {path: part for path, part in leaves(output) if is_of_mesh(part)}

    def call_ended(self, call: RecordedCall, output: Any) -> Any:
        if self._layouts is not None:
            call.keep_placements(self._layouts, output)
            if self._backward is not None:
                call.note_gradients(self._layouts, Role.GRAD_OUTPUT, leaves(output))
        given = {} if call.arguments is None else dict(call.arguments.now())
        if not call.in_second_run:
            self._record(call, Role.OUTPUT, leaves(output, types=True))
            if call.arguments is not None:
                self._record_arguments(call, call.arguments, given, output)
            if self._buffers is not None:
                self._buffers.call_ended(call)
        call.arguments = None
        # break the reference cycle now; otherwise only the cyclic GC frees it
        span, call.span = call.span, None
        if span is not None and self._backward is not None:
            self._backward.span_ended(span)
        # golden's selection is the same
        if self._feed is None or (self._operators and not self._is_selected(call)):
            self._gave(call, span, leaves(output))
            return None
        # hooks of a parallel plan make what the ranks' modules return, in the layout's capture, too
        if call.returned and call.returned[0] is not output and not self._feed.in_parts:
            raise CaptureError(
                f"a forward hook on {call.name or '(root)'} replaces what the module returns, as"
                " feeding does; take the hook off"
            )
        place = FedPlace(self.step, call.name, call.index, Role.OUTPUT, call.golden)
        exchange = functools.partial(self._feed.gradient, place) if self._feed.backward else None
        handed_on, own = self._feed.outputs(
            place, output, call.lent, given, functools.partial(self._from_outside, span, exchange)
        )
        call.lent, call.returned = None, ()  # keep nothing of a graph beyond its life
        if span is not None and self._backward is not None and own:
            self._backward.passed_on(
                span, [(part, own[path]) for path, part in leaves(output) if path in own]
            )
        self._gave(
            call, span, ((path, own.get(path, part)) for path, part in leaves(output)), exchange
        )
        return handed_on

    def _gave(
        self,
        call: RecordedCall,
        span: Span[RecordedCall] | None,
        parts: Iterator[tuple[str, Any]],
        exchange: Callable[[str, torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        if span is not None and self._backward is not None and self._is_selected(call):
            self._backward.gave(span, parts, exchange)

    def _from_outside(
        self,
        span: Span[RecordedCall] | None,
        exchange: Callable[[str, torch.Tensor], torch.Tensor] | None,
        path: str,
        grad: torch.Tensor,
    ) -> Any:
        if span is None or self._backward is None or exchange is None:
            return grad
        return self._backward.from_outside(span, path, grad, exchange)

    def call_left(self, call: RecordedCall) -> None:
        """Stop observing a call's operators and functions."""
        if call.operators is not None:
            call.operators.leave()
        if call.span is not None and self._backward is not None:
            self._backward.span_ended(call.span)  # also if the module raised
        if call.notes_lines and self._lines is not None:
            call.notes_lines = False
            self._lines.end()
        if call.parent is None:
            self.functions.stop()

    def idle(self) -> bool:
        """Whether hooks have nothing to do. In a backward, they act in second runs only."""
        if not self.listening:
            self._missed = True
            return True
        if not in_backward() or self.second_run() is not None:
            return False
        if not self._known_second_runs and self.running() is None:
            self._ran_in_backward = True
        return True

    @contextlib.contextmanager
    def _runs_again(self, mark: Mark, reentrant: bool, chosen: MadeSoFar | None) -> Iterator[None]:
        """A second run: fed, not recorded. Gradients are recorded if the first run had no graph."""
        follows = reentrant and self._backward is not None
        if not self.listening or mark.step != self.step or not (follows or self._feed is not None):
            self._known_second_runs += 1
            try:
                yield
            finally:
                self._known_second_runs -= 1
            return
        if follows and self._backward is not None:
            self._backward.run_again()
        with self.in_second_run(mark), self._choices.run_again(chosen):
            yield

    def failed(self, error: Exception, name: str) -> None:
        """Note an error, or raise it if the model is fed."""
        place = f"step {self.step}, {name or '(root)'}"
        if self._feed is not None:
            self.listening = False
            self.failure = (
                error
                if isinstance(error, AccucompareError)
                else CaptureError(f"{place}: could not be fed: {type(error).__name__}: {error}")
            )
            raise self.failure from error
        self.errors.append(f"{place}: {type(error).__name__}: {error}")

    def _observe(self, call: RecordedCall, given: Sequence[tuple[str, Any]]) -> None:
        """From now on observe the operators and nodes of a call, if they are recorded."""
        if (
            self._backward is not None
            and torch.is_grad_enabled()
            and (not call.in_second_run or self._backward.runs_again)
        ):
            outer = self.caller(call)
            call.span = self._backward.call_began(call, outer.span if outer else None, given)
            if self._lines is not None and call.span is not None and self._allows(call.name):
                call.notes_lines = True
                self._lines.begin()
        if self._operators and not call.in_second_run and self._allows(call.name):
            feed = None
            if self._feed is not None:
                tensors = (tensor for *_, tensor in self._modules.tensors())
                self._state = self._state or storages(tensors)
                feed = OperatorFeed(self._feed, self.step, call.name, call.index, self._state)
            call.operators = Operators(self, call, self.add_operator, feed)
            call.operators.enter()

    def _is_selected(self, call: RecordedCall) -> bool:
        """Whether a call is recorded; with operators, a selected module's own calls are, too."""
        caller = call.parent is not None and self._operators and self._allows(call.parent[0])
        return caller or self._allows(call.name)

    def add_operator(
        self, call: RecordedCall, role: Role, path: str, value: Any, operator: str, line: str
    ) -> None:
        """Record what an operator, or its backward's node, took or gave."""
        if self._writer.failure is None and role in self._roles:
            self._record_value(call, role, path, value, operator, line)

    def wants(self, name: str, role: Role) -> bool:
        return role in self._roles and (self._allows(name) or not name)

    def add_update(
        self, name: str, update: int, role: Role, path: str, value: Any, how: How = PLAINLY
    ) -> None:
        if self._writer.failure is None and self.wants(name, role):
            call = RecordedCall(self._modules.named[name], name, update, None, None)
            self._record_value(call, role, path, value, how=how)
        elif how.lease is not None:
            how.lease.release()

    def room(self, nbytes: int) -> Lease:
        return self._writer.take(nbytes, devices.backend("cpu").host_memory)

    def lend(self, nbytes: int) -> Array:
        return self._writer.lend(nbytes, devices.backend("cpu").host_memory)

    def _record_gradient(
        self, call: RecordedCall, role: Role, path: str, grad: torch.Tensor
    ) -> None:
        if self._writer.failure is None and role in self._roles and self._is_selected(call):
            shard = None if call.gradients is None else call.gradients.get((role, path))
            self._record_value(call, role, path, grad, how=How(shard=shard))

    def _record(self, call: RecordedCall, role: Role, parts: Iterable[tuple[str, Any]]) -> None:
        if self._writer.failure is not None:
            return
        if role is Role.INPUT and call.parent is None:
            self._record_given(call, parts)
        elif role in self._roles and self._is_selected(call):
            for path, value in parts:
                self._record_value(call, role, path, value)

    def _note_arguments(
        self,
        call: RecordedCall,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: Sequence[tuple[str, Any]],
    ) -> None:
        if (Role.ARGUMENT_UPDATE in self._roles and self._is_selected(call)) or (
            self._feed is not None and self._feed.written
        ):
            call.arguments = Arguments(args, kwargs, given)

    def _record_arguments(
        self, call: RecordedCall, arguments: Arguments, given: Mapping[str, Any], output: Any
    ) -> None:
        """Record what a call has written into its arguments, and values where golden's wrote."""
        paths = dict.fromkeys(arguments.written(given.items(), output))
        if self._feed is not None:
            place = FedPlace(self.step, call.name, call.index, Role.ARGUMENT_UPDATE)
            paths |= dict.fromkeys(self._feed.paths(place))
        for path in paths:
            if isinstance(given.get(path), torch.Tensor):
                self._record_written(call, Role.ARGUMENT_UPDATE, path, given[path])

    def _record_written(self, call: Call, role: Role, path: str, value: torch.Tensor) -> None:
        if self._writer.failure is None and role in self._roles and self._allows(call.name):
            self._record_value(call, role, path, value)

    def _record_given(self, call: RecordedCall, parts: Iterable[tuple[str, Any]]) -> None:
        """Record what the model is called with, and digest it for the series."""
        recorded = Role.INPUT in self._roles
        self._updates.series.call_begins()
        for path, value in parts:
            is_tensor = isinstance(value, torch.Tensor)
            written = self._updates.series.given(value, recorded) if is_tensor else None
            if recorded:  # a later call of the step may get what an earlier one computed
                how = How(written=written, by_digest=is_tensor, model_input=not self._called)
                self._record_value(call, Role.INPUT, path, value, how=how)

    def _record_value(
        self,
        call: Call,
        role: Role,
        path: str,
        value: Any,
        operator: str = "",
        line: str = "",
        how: How = PLAINLY,
    ) -> None:
        given = self.step, call, role, path, value, operator, line, how
        if self._awaited is not None and not how.by_digest and how.lease is None:
            act = functools.partial(self.run, self._maker.make, call.name, given)
            if self._awaited.puts_off(value, act):
                return
        self._maker.make(*given)
