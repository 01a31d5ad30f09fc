"""Functions of PyTorch's that have no hooks of their own: who is called when one of them is.

As long as somebody observes a function, another one that calls it is in its place, one for all who
do."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.jit import _builtins
from torch.nn.utils import clip_grad
from torch.optim import optimizer as optimizer_module

#: Called before a function with the name of its caller, and what it is given; gives what is to be
#: called with what it returns, if anything.
Before = Callable[[str, tuple[Any, ...], dict[str, Any]], Callable[[Any], None] | None]

#: Who observes the function of this name in a module or a class.
_observers: dict[tuple[Any, str], list[Before]] = {}

#: What clips gradients, by what it calls first, with the gradients. From torch 2.6 on
#: ``clip_grad_norm_`` calls ``_get_total_norm``, which others call, too, who clip nothing; before,
#: it grouped them as the others do.
CLIPPING = {
    (clip_grad, "_get_total_norm"): frozenset(("clip_grad_norm_",)),
    (clip_grad, "_group_tensors_by_device_and_dtype"): frozenset(
        ("clip_grad_norm_", "clip_grad_value_", "_clip_grads_with_norm_")
    ),
}


def observe_function(owner: Any, name: str, before: Before) -> bool:
    """Call ``before`` whenever a module's function, or a class's method, is called; False if there
    is no such function.
    """
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

        # What is scripted meanwhile calls the operator itself.
        operator = _builtins._find_builtin(original)  # type: ignore[no-untyped-call]
        if operator is not None:
            _builtins._register_builtin(observed, operator)
        setattr(owner, name, observed)
    observers.append(before)
    return True


def observe_function_no_more(owner: Any, name: str, before: Before) -> None:
    """Take ``observe_function`` back; nothing if that did nothing."""
    observers = _observers.get((owner, name), [])
    if before in observers:
        observers.remove(before)
        if not observers:
            observed = vars(owner)[name]
            setattr(owner, name, observed.__wrapped__)
            # Another function may come to have this id.
            _builtins._get_builtin_table().pop(id(observed), None)  # type: ignore[no-untyped-call]


def running_steps() -> Iterator[Any]:
    """The optimizers whose ``step`` runs on this thread, the innermost first, as PyTorch's wrapper
    of that has them.

    One that wraps another (``ZeroRedundancyOptimizer``) calls that one's.
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
    """The classes that may scale losses: ``GradScaler``, all that are derived of it, and those of a
    scaler that is given.
    """
    found: list[Any] = [torch.amp.GradScaler]
    for kind in found:
        found += (derived for derived in kind.__subclasses__() if derived not in found)
    return found + [
        each for each in type(given).__mro__ if each not in found and each is not object
    ]
