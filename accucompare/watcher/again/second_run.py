"""Running a step again, to see which operator made a value that is not finite, and from what.

A watched step keeps only what a second run needs: copies of the outermost calls' arguments, random
generator states, and buffers. When something is found, those calls run again, with hooks on
operators. Afterwards random generators, buffers, plain attributes and gradients are put back;
parameters never change."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace

from accucompare import devices
from accucompare.findings.log import (
    FLAG,
    MINUS,
    NAN,
    PLUS,
    Direction,
    Finding,
    Site,
    WatchLimits,
    WatchRemark,
    What,
    kinds_of,
    remark,
)
from accucompare.findings.origins import find_origins
from accucompare.live.around import TalksError, silence
from accucompare.live.autograd import lines_noted, reachable, register_first_hook
from accucompare.live.modules import (
    Modules,
    in_backward,
    listens,
    plain_numbers,
    points,
    set_attributes,
)
from accucompare.live.numerics import autocast_now, autocast_then
from accucompare.live.operators import RandomState, calls_models, random_state_kept
from accucompare.live.values import leaves
from accucompare.recorder.recording import MAIN_GRAD, Recorder
from accucompare.reproduce import Snapshot, always, is_bad
from accucompare.watcher.again.contexts import Context, copies_of
from accucompare.watcher.looking import Meter, Note, Scope, WatchedCall, Watcher

calls_models(__file__)

_NOT_FINITE = {NAN, PLUS, MINUS}
#: Relative difference up to which gradients of two runs are alike; rounding stays below it.
_ALIKE = 0.01


@dataclass
class SecondRun:
    """What a second run has shown."""

    # the same finding, with the operator that made it; ``None`` if it did not reappear
    finding: Finding | None = None
    snapshot: Snapshot | None = None  # what the module call was given
    # why there is no second run, or how it differs; ``None`` if all is well
    note: WatchRemark | None = None
    # why there can be no reproducer; ``None`` if there can
    reproducer_note: WatchRemark | None = None
    showed: bool = True  # whether the finding reappeared, if the step was run again


def second_run(
    context: Context,
    finding: Finding,
    notes: Sequence[Note],
    modules: Modules,
    versions: list[int],
    limits: WatchLimits,
) -> SecondRun:
    """Run an outermost call again, with its backward if the finding is in the backward.

    Args:
        notes: of the step itself, which is believed where the second run differs.
        versions: of the parameters now; a parameter written into since would make it another call.
    """
    backward = finding.direction is Direction.BACKWARD
    obstacle = _obstacle(context, modules, versions)
    if obstacle is not None:
        return SecondRun(note=remark("not-run-again", why=obstacle))
    if context.talks is not None:
        return part_of_this_rank(context, context.talks)
    if backward and not context.grads:
        return SecondRun(note=remark("no-gradient-arrived"))
    try:
        with _nothing_changed(context, modules):
            overflowed = devices.backend(context.device.type).overflowed
            flagged = (
                functools.partial(overflowed, context.device) if FLAG in finding.kinds else None
            )
            again, differs = None, None
            # it may show only in the backward
            for with_backward in (
                (True,) if backward else (False, True) if context.grads else (False,)
            ):
                watcher = _SecondWatcher(
                    modules,
                    context,
                    Scope(frames=True, operators=True, lines=with_backward),
                    overflowed=flagged,
                )
                watcher.run_again(with_backward)
                findings = find_origins(
                    [each.observation() for each in watcher.notes], finding.step, limits, True
                )
                again = again or _same(
                    [each for each in findings if not _was_finite(each, notes)], finding
                )
                if backward:
                    differs = _difference(
                        notes[: finding.order],
                        watcher.notes if again is None else watcher.notes[: again.order],
                    )
                if again is not None:
                    break
            if again is None and finding.site is Site.SUM:
                return SecondRun(reproducer_note=remark("sum-over-calls"))
            if differs is not None and (
                again is None
                or (again.name, again.call, again.near)
                != (finding.name, finding.call, finding.near)
            ):
                return SecondRun(note=differs)
            if again is None:
                note = remark("did-not-show-backward" if backward else "did-not-show")
                return SecondRun(note=note, showed=False)
            if differs is not None:
                again = replace(again.noting(differs), tensors=finding.tensors, kinds=finding.kinds)
            watcher = _SecondWatcher(modules, context, Scope(), (again.name, again.call))
            watcher.sees_returns = True
            watcher.run_again(backward)
            if (
                again.direction is Direction.FORWARD
                and again.site is Site.MODULE
                and FLAG not in again.kinds
                and not watcher.returned_it
            ):
                return SecondRun(again, reproducer_note=remark("hook-made-it"))
            return SecondRun(again, watcher.snapshot)
    except TalksError as error:
        return part_of_this_rank(context, remark("talks", error=str(error)))
    except Exception as error:  # a model may raise anything when it is called once more
        why = f"{type(error).__name__}: {_first_line(error)}"
        return SecondRun(note=remark("could-not-run", error=why))


def part_of_this_rank(context: Context, talks: WatchRemark) -> SecondRun:
    """What this rank has of a call that needs other ranks."""
    why = remark("module-talks", module=context.name, talks=talks)
    return SecondRun(
        snapshot=context,
        note=remark("not-run-again", why=why),
        reproducer_note=remark("part-of-rank", module=context.name, talks=talks),
    )


def _obstacle(context: Context, modules: Modules, versions: list[int]) -> WatchRemark | None:
    """Why a call cannot be run again now; ``None`` if it can."""
    if context.obstacle is None and versions != context.versions:
        return remark("written-since")
    if context.obstacle is None and any(
        listens(module, Recorder) for module in modules.named.values()
    ):
        return remark("being-captured")
    return context.obstacle


def origins_again(
    context: Context, finding: Finding, modules: Modules, versions: list[int], limits: WatchLimits
) -> list[Finding] | None:
    """Run a forward again and find the origins in a finding's module, by its operators. Returns
    Nothing for an Inf that something was only filled with; ``None`` if the call cannot be run
    again, or its output is now finite."""
    if context.talks is not None or _obstacle(context, modules, versions) is not None:
        return None
    try:
        with _nothing_changed(context, modules, backward=False):
            watcher = _SecondWatcher(modules, context, Scope(frames=True, operators=True))
            watcher.run_again(backward=False)
    except Exception:  # as above; it stays a finding
        return None
    observations = [each.observation() for each in watcher.notes]
    before_a_child = finding.near.startswith("before")  # then the call's output may be finite
    ends = [
        each
        for each in observations
        if each.what is What.ENDED and each.place.key == (finding.name, finding.call)
    ]
    if not before_a_child and not any(kinds_of(each.tensors) for each in ends):
        return None
    return [
        each
        for each in find_origins(observations, finding.step, limits, True)
        if each.origin and each.name == finding.name
    ]


class _SecondWatcher(Watcher):
    """Watches one outermost call that is run again; ``returned_it``: whether its forward, before
    the user's hooks, returned a value that is not finite or is saturated."""

    def __init__(
        self,
        modules: Modules,
        context: Context,
        scope: Scope,
        target: tuple[str, int] | None = None,
        overflowed: Callable[[], bool | None] | None = None,
    ) -> None:
        super().__init__(modules, Meter(), overflowed=overflowed)
        self.scope = scope
        self.snapshot: Snapshot | None = None
        self.returned_it = False
        self._context = context
        self._target = target
        self._indices = context.indices.copy()

    def run_again(self, backward: bool) -> None:
        context = self._context
        context.random.restore()
        for qualified, copy in context.buffers.items():
            prefix, _, name = qualified.rpartition(".")
            self._modules.named[prefix]._buffers[name] = copy.clone()
        set_attributes(context.attributes, self._modules)
        args, kwargs = copies_of(context.args, context.kwargs)
        try:
            self.install()
            points.active.append(self)
            with torch.set_grad_enabled(context.grad_enabled), autocast_then(context.autocast):
                output = context.module(*args, **kwargs)
            if backward:
                self._backward(output, (args, kwargs))
            self.meter.fetch()
        finally:
            self.remove()
            points.active.remove(self)
        if self.errors:
            raise RuntimeError(self.errors[0])

    def call_began(self, call: WatchedCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        is_target = (call.name, call.index) == self._target
        again_by_checkpoint = (
            self.snapshot is not None and not self.snapshot.grad_enabled and in_backward()
        )
        if is_target and (self.snapshot is None or again_by_checkpoint):
            copied = copies_of(args, kwargs)
            self.snapshot = Snapshot(
                module=call.module,
                name=call.name,
                call=call.index,
                args=copied[0],
                kwargs=copied[1],
                random=RandomState.now(self._context.device),
                autocast=autocast_now(),
                buffers={
                    name: buffer.detach().clone() for name, buffer in call.module.named_buffers()
                },
                grads={},
                grad_enabled=torch.is_grad_enabled(),
                numbers={module: plain_numbers(module) for module in call.module.modules()},
            )
        super().call_began(call, args, kwargs)

    def forward_returned(self, call: WatchedCall, output: Any) -> None:
        if (call.name, call.index) == self._target:
            self.returned_it = self.returned_it or any(
                is_bad(part, saturated=True) for _, part in leaves(output)
            )

    def call_ended(self, call: WatchedCall, output: Any) -> None:
        if call.parent is None and not in_backward():
            self._give_real_gradients(output)
        super().call_ended(call, output)
        snapshot = self.snapshot
        if (
            snapshot is not None
            and (call.name, call.index) == self._target
            and torch.is_grad_enabled()
        ):
            for path, part in leaves(output):
                if (
                    isinstance(part, torch.Tensor)
                    and part.requires_grad
                    and part.grad_fn is not None
                ):
                    keep = functools.partial(_keep, snapshot.grads, path)
                    part.register_hook(keep)  # type: ignore[no-untyped-call]

    def _give_real_gradients(self, output: Any) -> None:
        """Pin each output's gradient to the recorded one: an output may feed another one."""
        for path, part in leaves(output):
            if (
                path in self._context.grads
                and isinstance(part, torch.Tensor)
                and part.requires_grad
            ):
                real = always(self._context.grads[path])
                register_first_hook(part, real)  # before the hooks of the calls in it
                # and after the user's hooks, which the recorded gradient has been through
                part.register_hook(real)  # type: ignore[no-untyped-call]

    def _backward(self, output: Any, given: Any) -> None:
        grads = self._context.grads
        outputs = [(part, grads[path]) for path, part in leaves(output) if path in grads]
        inputs = [
            part
            for _, part in leaves(given)
            if isinstance(part, torch.Tensor) and part.requires_grad
        ]
        inputs += [
            parameter
            for parameter in self._modules.named[""].parameters()
            if parameter.requires_grad
        ]
        tensors, arrived = [part for part, _ in outputs], [grad.clone() for _, grad in outputs]
        if self.snapshot is not None and self._target == (self._context.name, self._context.call):
            self.snapshot.grads.update({path: grad.clone() for path, grad in grads.items()})
        if _checkpoints_reentrantly(tensors):
            if any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in inputs):
                raise RuntimeError("hooks wait for its gradients")
            torch.autograd.backward(tensors, arrived)
        else:  # nothing is accumulated, so no hook that waits for that is called
            torch.autograd.grad(tensors, inputs, arrived, allow_unused=True)


@contextlib.contextmanager
def _nothing_changed(context: Context, modules: Modules, backward: bool = True) -> Iterator[None]:
    """Put back, at the end, all that running a model again (``backward``, too) may change."""
    buffers = {
        (prefix, name): value
        for prefix, module in modules.named.items()
        for name, value in module._buffers.items()
    }
    attributes = {module: dict(vars(module)) for module in modules.named.values()}
    parameters = list(modules.named[""].parameters())
    grads = [parameter.grad for parameter in parameters]
    mains = [
        (main, main.clone())
        for each in parameters
        if backward and isinstance(main := getattr(each, MAIN_GRAD, None), torch.Tensor)
    ]
    for parameter in parameters:
        parameter.grad = None
    try:
        with random_state_kept(context.device), silence(), lines_noted(context.grad_enabled):
            yield
    finally:
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        for main, copy in mains:  # some layers add to it in their backward
            main.copy_(copy)
        for module, before in attributes.items():
            vars(module).clear()
            vars(module).update(before)
        for (prefix, name), buffer in buffers.items():
            modules.named[prefix]._buffers[name] = buffer


def _same(findings: list[Finding], finding: Finding) -> Finding | None:
    """The second run's origin for a finding: it may know better where in the same pass it began."""
    origins = [
        each
        for each in findings
        if each.origin and each.direction is finding.direction and each.site is not Site.LOSS
    ]
    exact = (
        each
        for each in origins
        if (each.name, each.call, each.near) == (finding.name, finding.call, finding.near)
    )
    return next(exact, origins[0] if origins else None)


def _was_finite(finding: Finding, notes: Sequence[Note]) -> bool:
    """Whether the step itself saw the object of a second run's finding, and it was finite."""
    backward = finding.direction is Direction.BACKWARD
    if (
        not _NOT_FINITE & set(finding.kinds)
        or finding.site not in (Site.MODULE, Site.GLUE)
        or (not backward and finding.near)
    ):
        return False
    what, operator = (What.GRADIENT, finding.operator) if backward else (What.ENDED, "")
    observations = [
        each
        for each in notes
        if each.what is what
        and each.place.key == (finding.name, finding.call)
        and each.operator == operator
    ]
    return bool(observations) and all(
        extrema.finite for each in observations for *_, extrema in each.parts
    )


def _difference(notes: Sequence[Note], noted_again: Sequence[Note]) -> WatchRemark | None:
    """How the step's gradients differ from the second run's; ``None`` if they do not.

    The user's hooks on the step's tensors are missing in the second run."""

    def gradients(notes: Sequence[Note]) -> dict[tuple[Any, ...], list[tuple[Note, float]]]:
        table: dict[tuple[Any, ...], list[tuple[Note, float]]] = {}
        for each in notes:
            if each.what is What.GRADIENT:
                largest = max(
                    (max(abs(extrema.low), abs(extrema.high)) for *_, extrema in each.parts),
                    default=0.0,
                )
                table.setdefault((each.place.key, each.operator, each.near), []).append(
                    (each, largest)
                )
        return table

    others = gradients(noted_again)
    for key, own in gradients(notes).items():
        for (each, largest), (_, other) in zip(own, others.get(key, ()), strict=False):
            if len(own) == len(others[key]) and not math.isclose(largest, other, rel_tol=_ALIKE):
                return remark(
                    "second-run-differs",
                    module=each.place.name,
                    operator=each.operator,
                    largest=largest,
                    other=other,
                )
    return None


def _checkpoints_reentrantly(outputs: list[torch.Tensor]) -> bool:
    """Whether there is reentrant checkpointing, which cannot give gradients of chosen tensors."""
    return any(node.name() == "CheckpointFunctionBackward" for node in reachable(outputs))


def _keep(grads: dict[str, torch.Tensor], path: str, grad: torch.Tensor) -> None:
    grads[path] = grad.detach().clone()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else ""
