"""What a module call writes into its arguments: a KV cache, ``out=``, a mapping to fill in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from accucompare.live.modules import arguments_of
from accucompare.live.operators import is_plain
from accucompare.live.values import Scalar, is_plain_class, leaves, writes_into

_FIXED = (torch.Tensor, type(None), *Scalar, str)


class Arguments:
    """A call's arguments, and PyTorch's count of the writes into each when the call began."""

    def __init__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], parts: Sequence[tuple[str, Any]]
    ) -> None:
        """``args`` and ``kwargs`` as the forward gets them, ``parts`` from ``arguments_of``."""
        self._args = args
        self._kwargs = kwargs
        # by path: the tensor and PyTorch's count of writes into it (-1: not counted)
        self._before = {
            path: (part, writes_into(part))
            for path, part in parts
            if isinstance(part, torch.Tensor)
        }
        # kept only if no list or object among the arguments can get other tensors
        fixed = all(isinstance(each, _FIXED) for each in (*args, *kwargs.values()))
        self._parts = parts if fixed else None

    def now(self) -> Iterable[tuple[str, Any]]:
        return self._parts or arguments_of(self._args, self._kwargs)

    def written(self, parts: Iterable[tuple[str, Any]], output: Any) -> Iterator[str]:
        """The paths of tensors that were written into or put there, each once, but not returned."""
        returned: set[Any] | None = None
        for path, part in parts:
            if not isinstance(part, torch.Tensor):
                continue
            tensor, writes = self._before.get(path, (None, -1))
            if part is tensor and (writes < 0 or writes_into(part) == writes):
                continue
            if returned is None:
                returned = {
                    _place(each) for _, each in leaves(output) if isinstance(each, torch.Tensor)
                }
            if (place := _place(part)) not in returned:
                returned.add(place)
                yield path


def _place(tensor: torch.Tensor) -> Any:
    """A key that is equal for two tensors if they share memory."""
    plain = is_plain_class(tensor) and is_plain(tensor)
    if not plain or tensor.is_nested or tensor.device.type == "meta":
        return id(tensor)
    return (
        tensor.untyped_storage()._cdata,
        tensor.storage_offset(),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
    )
