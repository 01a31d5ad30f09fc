"""The operators that a module's own code calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from accucompare.live.operators import (
    LEFT_OUT,
    NO_VALUES,
    Blank,
    CallMode,
    Known,
    known_of,
    source_line,
)
from accucompare.live.values import leaves

#: They move values, but may move them into a type that cannot hold them.
_CASTS = ("_to_copy", "copy_")

#: (role, path, tensor or number)
OwnPart = tuple[str, str, Any]


class OwnOperators(CallMode):  # type: ignore[no-untyped-call]
    """Sees each operator, before and after it runs."""

    def __init__(
        self,
        listening: Callable[[], bool],
        before: Callable[[list[OwnPart]], Any],
        after: Callable[..., None],
    ) -> None:
        """Set what sees the operators."""
        super().__init__()
        self._listening = listening  # whether the running code is a module's own
        self._before = before  # called with the inputs, before the operator may overwrite them
        # called with what ``before`` returned, the operator's name, the calling source line, and
        # the outputs
        self._after = after
        self._blank = Blank()

    def see(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = known_of(op)
        if LEFT_OUT.get(known.name) == NO_VALUES:
            result = op(*args, **kwargs)
            self._blank.add(result)
            return result
        if (
            not self.entered
            or (known.left_out and known.name not in _CASTS)
            or not self._listening()
        ):
            return op(*args, **kwargs)
        before = self._before(list(self._inputs(known, args, kwargs)))
        result = op(*args, **kwargs)
        # the rest is for the backward
        returned = result[: known.outputs] if known.outputs else result
        self._after(
            before,
            str(op),
            source_line() or "",
            [("output", path, part) for path, part in leaves(returned)],
        )
        return result

    def _inputs(
        self, known: Known, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[OwnPart]:
        """The inputs that are read, without unwritten memory."""
        for name, value in {**dict(zip(known.arguments, args, strict=False)), **kwargs}.items():
            blank = (
                name in known.written
                and isinstance(value, torch.Tensor)
                and self._blank.take(value)
            )
            if blank or name in known.unread or (known.name == "copy_" and name == "self"):
                continue
            for path, part in leaves(value, name):
                yield "input", path, part
