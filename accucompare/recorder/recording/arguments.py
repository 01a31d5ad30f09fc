"""What a module call writes into what it is given: a cache of keys and values, ``out=``, a mapping
that is filled in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from accucompare.live.modules import arguments_of
from accucompare.live.values import is_plain_class, leaves


@dataclass(frozen=True)
class Arguments:
    """What a call was given, and how often that had been written into when it began.

    Attributes:
        args, kwargs: as the forward gets them.
        before: by path the tensor, and PyTorch's count of the writes into it; -1 of a tensor
            without one.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    before: dict[str, tuple[torch.Tensor, int]]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Of a call that begins."""
        parts = arguments_of(args, kwargs)
        return cls(
            args,
            kwargs,
            {path: (part, _writes(part)) for path, part in parts if isinstance(part, torch.Tensor)},
        )

    def now(self) -> Iterator[tuple[str, Any]]:
        """Every part of it as it is now, with its path."""
        return arguments_of(self.args, self.kwargs)

    def written(self, parts: Iterable[tuple[str, Any]], output: Any) -> Iterator[str]:
        """The paths of tensors that were written into, or put there, each tensor once; what the
        call returns, too, is left out.

        Args:
            parts: as ``now`` gives them.
            output: of the call.
        """
        returned: set[Any] | None = None
        for path, part in parts:
            if not isinstance(part, torch.Tensor):
                continue
            tensor, writes = self.before.get(path, (None, -1))
            if part is tensor and (writes < 0 or _writes(part) == writes):
                continue
            if returned is None:
                returned = {
                    _place(each) for _, each in leaves(output) if isinstance(each, torch.Tensor)
                }
            if (place := _place(part)) not in returned:
                returned.add(place)
                yield path


def _writes(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _place(tensor: torch.Tensor) -> Any:
    """What tells that two tensors are one part of memory."""
    plain = (
        is_plain_class(tensor)
        and tensor.layout is torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )
    if not plain or tensor.is_nested or tensor.device.type == "meta":
        return id(tensor)
    return (
        tensor.untyped_storage()._cdata,
        tensor.storage_offset(),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
    )
