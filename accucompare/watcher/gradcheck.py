"""Checks each module's gradients against finite differences, with the inputs that a case gives it: ``accucompare gradcheck``."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.gradcheck import GradcheckError

from accucompare.bundle.records import display_name
from accucompare.devices import DeviceName, explain, open_device
from accucompare.errors import CaptureError, UsageError
from accucompare.findings.checks import Outcome, failed, not_looked_at, passed, warned
from accucompare.findings.checks import Status as Status
from accucompare.findings.differences import GradientCheck, ModuleGradients
from accucompare.live.names import Modules, name_modules
from accucompare.live.values import leaves, replaced
from accucompare.recorder.capture_case import Casting, build, moved
from accucompare.selection import Selection

_CPU = torch.device("cpu")
#: How far inputs are moved for the second look, where gradients differ: beside a kink, a function has a gradient.
_BESIDE = 1e-3
#: A module's graph is searched for custom Functions in at most so many nodes.
_NODES = 10_000


@dataclass(frozen=True)
class RecordedCall:
    """The first call of a module: its arguments, as they were, and the custom autograd Functions that its own code called."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def check_gradients(
    target: str | None,
    *,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> GradientCheck:
    """Build a case on the CPU, run its first forward, and check every module that was called.

    ``torch.autograd.gradcheck`` compares the gradients of all floating outputs, to all floating inputs and trainable parameters, with
    finite differences along random directions (its fast mode), in float64.

    Args:
        target: the case, see ``accucompare.case.load_case``.
        only, skip: globs of qualified names.
        seed: of weights and random operations.
        progress: called with the modules done and the modules to do.

    Raises:
        CaseError: if the case cannot be found or built, or lacks inputs.
        CaptureError: if the model raised.
        UsageError: if no called module matches.
    """
    open_device(DeviceName.parse("cpu"))
    built = build(target, _CPU, Casting(None, None), seed)
    modules = name_modules(built.model)
    args, kwargs = moved(built.inputs[0], _CPU, Casting(None, None))
    calls: dict[str, RecordedCall] = {}
    try:
        with _recording(modules, calls):
            built.model(*args, **kwargs)
    except Exception as error:
        raise CaptureError(f"{built.name}: the model raised: {explain('cpu', error)}") from error
    selection = Selection.of(tuple(only), tuple(skip))
    chosen = [name for name in calls if selection.allows(name) or selection.allows(display_name(name))]
    if not chosen:
        raise UsageError(f"{built.name}: no module that is called matches --only and --skip; called are {', '.join(list(calls)[:5])}, …")
    found: list[ModuleGradients] = []
    for number, name in enumerate(chosen, 1):
        module = modules.named[name]
        outcome, functions = check_module(module, calls[name].args, calls[name].kwargs, seed)
        inside = [each.name for each in found if each.outcome.status is Status.FAIL and _is_inside(each.name, name)]
        found.append(ModuleGradients(name, type(module).__name__, outcome, functions, tuple(inside)))
        if progress is not None:
            progress(number, len(chosen))
    return GradientCheck(found)


def check_module(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int = 0) -> tuple[Outcome, tuple[str, ...]]:
    """Check one module, a copy of which computes in float64.

    Returns:
        What came of it, and the names of the custom autograd Functions in its graph.
    """
    try:
        twin = copy.deepcopy(module).double()
    except Exception as error:  # a module of the user's may refuse in any way
        return not_looked_at(f"it cannot be copied: {type(error).__name__}: {error}"), ()
    values = {
        path: value.double() for path, value in leaves((args, kwargs)) if isinstance(value, torch.Tensor) and value.is_floating_point()
    }
    weights = {name: each.detach() for name, each in twin.named_parameters() if each.requires_grad and each.numel()}
    if not values and not weights:
        return not_looked_at("it has no floating input, and no trainable parameter"), ()
    function = _Function(twin, (args, kwargs), list(values), list(weights), seed)
    points = [*values.values(), *weights.values()]
    try:
        outputs = function(*_leaves(points))
        functions = tuple(dict.fromkeys(_custom(outputs)))
        if any(output.dtype is not torch.float64 for output in outputs):
            return not_looked_at(
                f"it computes in {outputs[0].dtype} whatever it is given, which is too coarse for finite differences"
            ), functions
        if not any(output.requires_grad for output in outputs):
            return not_looked_at("no output of it has a gradient"), functions
        wrong = _differs(function, points)
        if not wrong:
            return passed(f"gradients agree with finite differences ({len(values)} inputs, {len(weights)} parameters)"), functions
        generator = torch.Generator().manual_seed(seed)
        beside = [each + _BESIDE * torch.randn(each.shape, generator=generator, dtype=each.dtype) for each in points]
        if not _differs(function, beside):
            return warned(f"gradients differ at the recorded inputs and agree beside them, as at a kink: {wrong}"), functions
        return failed(f"gradients differ from finite differences: {wrong}"), functions
    except Exception as error:
        return not_looked_at(f"it does not run in float64: {type(error).__name__}: {str(error).strip()[:200]}"), ()


class _Function:
    """A module as a function of tensors: its floating inputs, then its parameters. Random numbers are the same in each call."""

    def __init__(self, module: nn.Module, arguments: Any, paths: list[str], names: list[str], seed: int) -> None:
        self._module, self._arguments, self._paths, self._names, self._seed = module, arguments, paths, names, seed

    def __call__(self, *points: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = [each.clone() for each in points[: len(self._paths)]]  # which the module may write into
        args, kwargs = replaced(self._arguments, dict(zip(self._paths, inputs, strict=True)))
        weights = dict(zip(self._names, points[len(self._paths) :], strict=True))
        buffers = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(self._seed)
            output = torch.func.functional_call(self._module, {**weights, **buffers}, args, kwargs)
        return tuple(value for _, value in leaves(output) if isinstance(value, torch.Tensor) and value.is_floating_point())


def _leaves(points: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [each.detach().clone().requires_grad_() for each in points]


def _differs(function: _Function, points: Iterable[torch.Tensor]) -> str:
    """What gradcheck complains of; empty if nothing."""
    try:
        torch.autograd.gradcheck(function, _leaves(points), fast_mode=True, check_undefined_grad=False, nondet_tol=1e-9)
    except GradcheckError as error:
        return " ".join(str(error).partition("\n\n")[0].split())[:300]  # behind it, torch explains its fast mode
    return ""


def _custom(outputs: Iterable[torch.Tensor]) -> Iterator[str]:
    """The names of the custom autograd Functions in a graph: those whose nodes are classes of Python."""
    waiting: list[Any] = [output.grad_fn for output in outputs]
    known: set[Any] = set()
    while waiting and len(known) < _NODES:
        node = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            yield type(node).__name__.removesuffix("Backward")
        waiting += [following for following, _ in node.next_functions]


@contextlib.contextmanager
def _recording(modules: Modules, calls: dict[str, RecordedCall]) -> Iterator[None]:
    """Keep the arguments of each module's first call, in the order in which the calls end."""
    begun: dict[str, RecordedCall] = {}
    handles = []

    def copied(value: torch.Tensor) -> torch.Tensor:
        return value.detach().clone()

    def before(name: str, args: Any, kwargs: Any) -> None:
        if name not in begun:
            found = {path: copied(value) for path, value in leaves((args, kwargs)) if isinstance(value, torch.Tensor)}
            given = replaced((args, kwargs), found)
            begun[name] = RecordedCall(*given)

    def after(name: str) -> None:
        calls.setdefault(name, begun[name])

    for name, module in modules.named.items():
        handles.append(module.register_forward_pre_hook(lambda _, args, kwargs, name=name: before(name, args, kwargs), with_kwargs=True))
        handles.append(module.register_forward_hook(lambda *_, name=name: after(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_inside(name: str, outer: str) -> bool:
    return not outer or name.startswith(f"{outer}.")
