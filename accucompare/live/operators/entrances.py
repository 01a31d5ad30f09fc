"""Observing functions of PyTorch that have no hooks.

While a function has observers, one wrapper for all of them stands in its place.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.jit import _builtins
from torch.nn.utils import clip_grad
from torch.optim import optimizer as optimizer_module

#: Called before a function with its caller's name and its arguments. May return what gets the
#: result.
Before = Callable[[str, tuple[Any, ...], dict[str, Any]], Callable[[Any], None] | None]

#: The observers by (module or class, name of the function).
_observers: dict[tuple[Any, str], list[Before]] = {}

#: The function that each clipper of gradients calls first, and those clippers. From torch 2.6 on
#: ``clip_grad_norm_`` calls ``_get_total_norm``, which others call without clipping; before, it
#: grouped the gradients, as the others do.
_CLIPPING = {
    (clip_grad, "_get_total_norm"): frozenset(("clip_grad_norm_",)),
    (clip_grad, "_group_tensors_by_device_and_dtype"): frozenset(
        ("clip_grad_norm_", "clip_grad_value_", "_clip_grads_with_norm_")
    ),
}

#: The same where a module may not be loaded, by its name: of Megatron's optimizers, and of FSDP1.
_IF_LOADED = {
    ("megatron.core.optimizer.optimizer", "clip_grad_by_total_norm_fp32"): frozenset(
        ("step", "clip_grad_norm")
    ),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "_get_grad_norm"): frozenset(
        ("clip_grad_norm_",)
    ),
}


def clipping() -> dict[tuple[Any, str], frozenset[str]]:
    """The functions that clippers of gradients call first, by module and name; their callers."""
    loaded = {
        (sys.modules[module], name): callers
        for (module, name), callers in _IF_LOADED.items()
        if module in sys.modules
    }
    return _CLIPPING | loaded


def observe_function(owner: Any, name: str, before: Before) -> bool:
    """Call ``before`` before each call of a function or method; False if there is no such one."""
    if not callable(vars(owner).get(name)):
        return False
    observers = _observers.setdefault((owner, name), [])
    if not observers:
        original = vars(owner)[name]

        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_code.co_name
            afters = [each(caller, args, kwargs) for each in list(observers)]
            result = original(*args, **kwargs)
            for after in afters:
                if after is not None:
                    after(result)
            return result

        # code that is scripted meanwhile calls the operator itself
        operator = _builtins._find_builtin(original)  # type: ignore[no-untyped-call]
        if operator is not None:
            _builtins._register_builtin(observed, operator)
        setattr(owner, name, observed)
    observers.append(before)
    return True


def observe_function_no_more(owner: Any, name: str, before: Before) -> None:
    """Undo ``observe_function``; does nothing if that did nothing."""
    observers = _observers.get((owner, name), [])
    if before in observers:
        observers.remove(before)
        if not observers:
            observed = vars(owner)[name]
            setattr(owner, name, observed.__wrapped__)
            # another function may get this id
            _builtins._get_builtin_table().pop(id(observed), None)  # type: ignore[no-untyped-call]


def running_steps() -> Iterator[Any]:
    """The optimizers whose ``step`` runs on this thread, innermost first (from PyTorch's wrapper).

    An optimizer that wraps another (``ZeroRedundancyOptimizer``) calls that one's ``step``.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "wrapper" and frame.f_globals is vars(optimizer_module):
            found = frame.f_locals.get("self")
            if found is not None:
                yield found
        if frame.f_back is None:
            return
        frame = frame.f_back


def scalers(given: Any = None) -> list[type]:
    """The classes that may scale losses: ``GradScaler``, subclasses, a given scaler's classes."""
    found: list[Any] = [torch.amp.GradScaler]
    for kind in found:
        found += (derived for derived in kind.__subclasses__() if derived not in found)
    return found + [
        each for each in type(given).__mro__ if each not in found and each is not object
    ]
