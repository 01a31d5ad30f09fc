"""Operators seen while a module call runs, and the source lines that called them."""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Any

import torch
from torch.utils import _python_dispatch as dispatching

from accucompare.live.operators import randomness

# our files that call models: frames beyond them are not a model's code
_callers: set[str] = set()
_PACKAGES = ("torch", "torch_npu", "accucompare")


def calls_models(file: str) -> None:
    """Register a file of ours that calls models: source lines are not looked for beyond it."""
    _callers.add(file)


def is_caller(file: str) -> bool:
    return file in _callers


class CallMode(dispatching.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees operators, below autograd and autocast, while a module call runs, if ``entered``.

    It can be left before modes that were entered later.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entered = False

    def see(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator and return its result."""
        raise NotImplementedError

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for cls in types):
            # such a tensor runs operators of its own, which come here in turn
            return NotImplemented
        if not isinstance(op, torch._ops.OpOverload):
            return op(*args, **(kwargs or {}))
        return self.see(op, args, kwargs or {})

    def enter(self) -> None:
        """See the operators that this thread calls from now on."""
        self.__enter__()  # type: ignore[no-untyped-call]
        self.entered = True

    def leave(self) -> None:
        """Stop seeing. Modes that were entered later and not left stay."""
        if not self.entered:
            return
        self.entered = False
        above = []
        while (top := dispatching._get_current_dispatch_mode()) is not self and top is not None:
            above.append(dispatching._pop_mode())
        if dispatching._get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for mode in reversed(above):
            dispatching._push_mode(mode)


def source_line(folders: int = 0) -> str | None:
    """The line that called the operator, if it is outside torch and accucompare.

    It is the file's name after ``folders`` of its folders, and the line: ``lora/layer.py:1065``.
    ``None`` if accucompare called the model and the model is made of torch's modules alone. Also
    for matched draws: they agree on every device already, and overwriting is not the module's work.
    """
    frame = sys._getframe(2)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if (
            frame.f_globals is randomness.__dict__
            and frame.f_code not in randomness.RUN_FOR_THE_MODEL
        ):
            return None
        if frame.f_code.co_filename in _callers:
            break
        if package not in _PACKAGES:
            parts = PurePath(frame.f_code.co_filename).parts[-1 - folders :]
            return f"{PurePath(*parts).as_posix()}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""
