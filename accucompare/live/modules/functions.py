"""Custom autograd Functions: finding them, and observing their arguments."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch.autograd import Function

#: Called with a custom Function's class and arguments when its forward begins.
Applies = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]


@contextlib.contextmanager
def observed_functions(applies: Applies) -> Iterator[None]:
    """Observe every custom Function's forward: existing ones at once, since ``F.apply`` may be
    stored, others when applied.
    """
    apply = vars(Function)["apply"]
    known: dict[Any, Any] = {}
    running: list[Any] = []

    def observe(function: Any) -> None:
        if function in known or is_torchs(function):
            return
        known[function] = vars(function).get("forward")
        forward, has_context = function.forward, not has_setup(function)

        @functools.wraps(forward)
        def observed(*args: Any, **kwargs: Any) -> Any:
            # not a call by super().forward
            if not any(
                issubclass(each, function) and each is not function for each in running[-1:]
            ):
                applies(function, args[1:] if has_context else args, kwargs)
            running.append(function)
            try:
                return forward(*args, **kwargs)
            finally:
                running.pop()

        function.forward = staticmethod(observed)

    @functools.wraps(apply.__func__)
    def observed_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        observe(cls)
        return apply.__func__(cls, *args, **kwargs)

    for function in list(_derived(Function)):
        observe(function)
    Function.apply = classmethod(observed_apply)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Function.apply = apply  # type: ignore[method-assign]
        for function, forward in known.items():
            if forward is None:  # it was inherited
                del function.forward
            else:
                function.forward = forward


def _derived(function: Any) -> Iterator[Any]:
    for each in function.__subclasses__():
        yield each
        yield from _derived(each)


def has_setup(function: Any) -> bool:
    """Whether its forward gets no context, because it has ``setup_context``."""
    return function.setup_context is not Function.setup_context


#: The Functions that ``torch.library`` makes of custom operators with a backward.
_OF_OPERATORS = "GeneratedBackwardFor_"


def is_torchs(function: Any) -> bool:
    """Whether it is PyTorch's own, not a custom operator's."""
    return function.__module__.partition(".")[0] == "torch" and not function.__name__.startswith(
        _OF_OPERATORS
    )


def function_name(function: Any) -> str:
    """Its class's name; for a custom operator ``namespace_name``."""
    if function.__name__.startswith(_OF_OPERATORS):
        return str(function.__name__).removeprefix(_OF_OPERATORS).removesuffix("_default")
    return str(function.__qualname__).rpartition("<locals>.")[2]
