"""Operators that choose among scores, seen as they are called: experts, codes, neighbours, masks.

Where two scores are nearly equal, rounding decides, and all that follows is other work: no error
but another choice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from accucompare.live.operators.dispatch import (
    intercepting,
    register,
    registered_name,
    without_dispatch,
)
from accucompare.live.operators.schemas import is_plain, known_of

_aten = torch.ops.aten

#: What gives the chosen values, and their places along a dimension.
_PICKING = (_aten.topk.default, _aten.sort.default, _aten.sort.stable, _aten.max.dim, _aten.min.dim)
#: What gives the places alone.
_PLACING = (_aten.argmax.default, _aten.argmin.default)
#: What gives a mask.
_COMPARING = tuple(
    getattr(getattr(_aten, name), overload)
    for name in ("lt", "le", "gt", "ge")
    for overload in ("Tensor", "Scalar")
)

#: Larger tensors are no scores to choose by.
_MOST = 1 << 22


class OperatorChoice(NamedTuple):
    """What an operator chose."""

    name: str  # of the operator
    scores: dict[str, Any]  # what it chose by, by argument; of one dimension, that is the last
    chosen: torch.Tensor  # places along that dimension, or a mask of the scores


#: Is given a choice; returns what is chosen in its place, or ``None``.
Chooser = Callable[[OperatorChoice], torch.Tensor | None]

_active: list[Chooser] = []
_registered: list[bool] = []


@contextlib.contextmanager
def choosing(chooser: Chooser) -> Iterator[None]:
    """Show each choice among floating scores to ``chooser``, on this thread."""
    try:
        if not _registered:
            register(
                (registered_name(op), _kernel(op)) for op in (*_PICKING, *_PLACING, *_COMPARING)
            )
            _registered.append(True)
        switch = contextlib.ExitStack()
        switch.enter_context(intercepting())
    except (AttributeError, RuntimeError, TypeError):  # this torch lets none be caught
        yield
        return
    _active.append(chooser)
    try:
        with switch:
            yield
    finally:
        _active.remove(chooser)


def _kernel(op: Any) -> Callable[..., Any]:
    arguments, known = known_of(op).arguments, op._schema.arguments
    defaults = {each.name: each.default_value for each in known if each.has_default_value()}

    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = without_dispatch(op, *args, **kwargs)
        if not _active:
            return result
        given = {**defaults, **dict(zip(arguments, args, strict=False)), **kwargs}
        tensors = [each for each in given.values() if isinstance(each, torch.Tensor)]
        if not all(map(_can_be_seen, tensors)) or not any(map(torch.is_floating_point, tensors)):
            return result
        if op in _COMPARING:
            scores = {name: given[name] for name in arguments}
            found = _active[-1](OperatorChoice(str(op), scores, result))
            return result if found is None else found
        return _picked(op, given, result)

    return kernel


def _picked(op: Any, given: dict[str, Any], result: Any) -> Any:
    scores, dim = given["self"], given["dim"]
    places = result if op in _PLACING else result[1]
    if not scores.dim():
        return result
    keeps = places.dim() == scores.dim() and dim is not None
    rows = scores.reshape(-1) if dim is None else scores.movedim(dim, -1)
    chosen = places.movedim(dim, -1) if keeps else places.unsqueeze(-1)
    if dim is None:
        chosen = places.reshape(1)
    found = _active[-1](OperatorChoice(str(op), {"self": rows}, chosen))
    if found is None:
        return result

    def back(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.movedim(-1, dim) if keeps else tensor.reshape(places.shape)

    if op in _PLACING:
        return back(found)
    values = torch.where(back(found) == places, result[0], back(rows.gather(-1, found)))
    return values, back(found)


def _can_be_seen(tensor: torch.Tensor) -> bool:
    return (
        type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and 0 < tensor.numel() <= _MOST
        and not (tensor.is_meta or tensor.is_nested)
        and is_plain(tensor)
        and torch._C._functorch.peek_interpreter_stack() is None
    )
