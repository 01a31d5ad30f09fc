"""Checks a case's custom autograd Functions by finite differences: ``accucompare gradcheck``."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from accucompare.bundle.format import display_name
from accucompare.devices import DeviceName, explain, open_device
from accucompare.errors import CaptureError, UsageError
from accucompare.findings.checklist import CheckOutcome, not_looked_at
from accucompare.findings.differences import FunctionGradients, GradientCheck
from accucompare.findings.log import remark
from accucompare.live.autograd import reachable
from accucompare.live.modules import (
    Modules,
    function_name,
    is_torchs,
    name_modules,
    observed_functions,
)
from accucompare.live.numerics import eager_stance
from accucompare.live.values import leaves, replaced
from accucompare.recorder.session import Casting, build, moved
from accucompare.selection import Selection
from accucompare.watcher.custom.derivatives import SECONDS, AppliedFunction, check_function

_CPU = torch.device("cpu")
#: Seconds for all forms of all Functions.
_SECONDS_IN_ALL = 300.0


def check_gradients(
    target: str | None,
    *,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> GradientCheck:
    """Build a case on the CPU, run its first forward and loss, and check each custom autograd
    Function.

    Args:
        target: the case, see ``accucompare.case.load_case``.
        only, skip: globs of qualified names of the modules that apply a Function.
        progress: called with the forms of Functions done and to do.

    Raises:
        CaseError: if the case cannot be found or built, or lacks inputs.
        CaptureError: if the model raised.
        UsageError: if no called module matches.
    """
    open_device(DeviceName.parse("cpu"))
    built = build(target, _CPU, Casting(None, None), seed)
    modules = name_modules(built.model)
    args, kwargs = moved(built.inputs[0], _CPU, Casting(None, None))
    seen = _Seen()
    try:
        with eager_stance(), _watching(modules, seen), torch.enable_grad():
            output = built.model(*args, **kwargs)
            values = [output] if built.case.loss is None else [output, built.case.loss(output)]
    except Exception as error:
        raise CaptureError(f"{built.name}: the model raised: {explain('cpu', error)}") from error
    selection = Selection.of(tuple(only), tuple(skip))
    if not any(selection.allows(name) for name in seen.called):
        called = ", ".join(
            [display_name(name) for name in seen.called[:5]] + ["…"] * (len(seen.called) > 5)
        )
        raise UsageError(
            f"{built.name}: no module that is called matches --only and --skip; called are {called}"
        )
    chosen = [
        each
        for each in seen.applied.values()
        if any(selection.allows(name) for name in each.modules)
    ]
    found, begun = [], time.monotonic()
    for number, each in enumerate(chosen, 1):
        left = _SECONDS_IN_ALL - (time.monotonic() - begun)
        late = not_looked_at(remark("seconds-over", seconds=_SECONDS_IN_ALL))
        found.append(
            _told(each, check_function(each, seed, min(left, SECONDS)) if left > 0 else late)
        )
        if progress is not None:
            progress(number, len(chosen))
    return GradientCheck([*found, *_unseen(values, seen)])


def _told(applied: AppliedFunction, outcome: CheckOutcome) -> FunctionGradients:
    tensors = (
        value
        for _, value in leaves((applied.args, applied.kwargs))
        if isinstance(value, torch.Tensor)
    )
    given = ", ".join(
        f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)}" for each in tensors
    )
    return FunctionGradients(
        function_name(applied.function), tuple(applied.modules), applied.calls, given, outcome
    )


@dataclass
class _Seen:
    """What a run showed: called modules, running modules, and forms of applied Functions."""

    called: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    applied: dict[Any, AppliedFunction] = field(default_factory=dict)

    def add(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parts = dict(leaves((args, kwargs)))
        # the class may be made anew in each call
        code = getattr(inspect.unwrap(function.forward), "__code__", None)
        form = (
            function_name(function),
            code,
            *map(_form_of, (*args, *kwargs.values())),
            *((path, _form_of(value)) for path, value in parts.items()),
        )
        if form not in self.applied:
            copies = {
                path: _copied(value)
                for path, value in parts.items()
                if isinstance(value, torch.Tensor)
            }
            self.applied[form] = AppliedFunction(function, *replaced((args, kwargs), copies))
        found = self.applied[form]
        found.calls += 1
        name = self.running[-1] if self.running else ""
        if name not in found.modules:
            found.modules.append(name)


def _form_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, value.requires_grad
    value = getattr(value, "__code__", value)  # a lambda is made anew in each call
    return value if isinstance(value, Hashable) and not isinstance(value, tuple) else type(value)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def _watching(modules: Modules, seen: _Seen) -> Iterator[None]:
    """See each custom Function that is applied, and the module that applies it."""

    def begins(name: str) -> None:
        seen.running.append(name)
        if name not in seen.called:
            seen.called.append(name)

    def ends() -> None:
        seen.running.pop()

    handles = []
    for name, module in modules.named.items():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: begins(name)))
        handles.append(module.register_forward_hook(lambda *_: ends(), always_call=True))
    try:
        with observed_functions(seen.add):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _unseen(values: Any, seen: _Seen) -> Iterator[FunctionGradients]:
    """The C++ Functions in the graph, which are not seen when applied."""
    named = {function_name(each.function) for each in seen.applied.values()}
    calls: Counter[str] = Counter()
    for node in reachable(value for _, value in leaves(values) if isinstance(value, torch.Tensor)):
        function = getattr(type(node), "_forward_cls", None)
        if "CppNode" in node.name():
            calls[node.name()] += 1
        elif (
            function is not None
            and function_name(function) not in named
            and not is_torchs(function)
        ):
            calls[function_name(function)] += 1
    because = remark("not-from-python")
    yield from (
        FunctionGradients(name, (), count, "", not_looked_at(because))
        for name, count in calls.items()
    )
