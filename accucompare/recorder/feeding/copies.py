"""Golden's values in tensors like those they replace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from accucompare.live.numerics import without_last_bits
from accucompare.live.values import (
    dressed_as,
    dtype_name,
    local_part,
    nested,
    plainly,
    with_local_part,
)
from accucompare.numbers import DTYPES, Kind
from accucompare.recorder.feeding.lending import Exchange
from accucompare.selection import RoundedFeed

#: The name of the nodes that golden's values have in autograd's graph.
IN_PLACE_OF = "_InPlaceOfBackward"


class _InPlaceOf(torch.autograd.Function):
    """Forward: returns golden's values. Backward: passes the gradient to the tensor they replaced,
    after ``exchange`` has changed it.
    """

    @staticmethod
    def forward(
        ctx: Any, arrived: torch.Tensor, golden: list[torch.Tensor], exchange: Exchange | None
    ) -> torch.Tensor:
        ctx.exchange = exchange
        ctx.set_materialize_grads(False)
        return golden[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad = grads[0]
        return ctx.exchange(grad) if ctx.exchange and grad is not None else grad, None, None


def in_place_of(
    arrived: torch.Tensor, values: torch.Tensor, exchange: Exchange | None
) -> torch.Tensor:
    """A tensor that shares these values' memory and passes its gradient to ``arrived``."""
    if not (arrived.requires_grad and torch.is_grad_enabled()):
        return values
    new: torch.Tensor = _InPlaceOf.apply(arrived, [values], exchange)  # type: ignore[no-untyped-call]
    return new


def is_in_place(value: Any) -> bool:
    """Whether a value is golden's in place of the candidate's, and autograd follows it."""
    node = value.grad_fn if isinstance(value, torch.Tensor) else None
    return node is not None and node.name() == IN_PLACE_OF


def copy_like(
    tensor: torch.Tensor, golden: torch.Tensor, exchange: Exchange | None = None
) -> torch.Tensor:
    """Golden's values in a tensor of another's class, nested or plain. Gradients go to that."""
    with torch.inference_mode(False), torch.no_grad():
        local = local_part(tensor)
        if local is not tensor:
            new = with_local_part(tensor, _copy_like(local, golden))
        elif tensor.is_nested:
            new = nested.like(tensor, _cast(golden, tensor.dtype))
        else:
            with plainly():
                new = _copy_like(tensor, golden)
    if tensor.requires_grad:
        # a forward may turn it on later, and ask for gradients of its input
        with torch.enable_grad():
            new = _InPlaceOf.apply(tensor, [new], exchange)  # type: ignore[no-untyped-call]
    with plainly():
        return dressed_as(tensor, new)


def _copy_like(tensor: torch.Tensor, golden: torch.Tensor) -> torch.Tensor:
    """Golden's values with another tensor's dtype, device and strides, by which kernels are chosen.

    Args:
        tensor: the one that is replaced.
        golden: of the same shape, on the CPU.
    """
    # outside of inference mode tensors count the writes into them; a transform of torch.func would
    # wrap the copy, though what it replaces is plain
    with torch._C._DisableFuncTorch(), torch.inference_mode(False), torch.no_grad():
        values = _cast(golden, tensor.dtype)
        place, single = tensor.detach(), values
        for dim in range(tensor.dim()):
            if tensor.stride(dim) == 0 and tensor.size(dim) > 1:  # expanded
                place, single = place.narrow(dim, 0, 1), single.narrow(dim, 0, 1)
        if single is not values and not torch.equal(single.expand_as(values), values):
            place, single = tensor.detach(), values
        shape, strides = place.shape, place.stride()
        if not _apart(shape, strides):
            strides = torch.empty_like(place, device="meta").stride()
        copy = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
        copy.copy_(single)
        return copy if copy.shape == tensor.shape else copy.expand(tensor.shape)


def _apart(shape: Iterable[int], strides: Iterable[int]) -> bool:
    """Whether no two elements share memory; ``False`` where that is costly to tell."""
    reach = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1
    ):
        if stride < reach:
            return False
        reach += stride * (size - 1)
    return True


def round_copy(golden: torch.Tensor, to: str) -> torch.Tensor:
    """Golden's values rounded to a ``RoundedFeed``, in their type. Finite values stay finite."""
    if to == RoundedFeed.FLOAT29:
        return without_last_bits(golden)
    return _cast(golden, getattr(torch, str(to))).to(golden.dtype)


def _cast(golden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Golden's values in another type of the kind. Finite values stay finite (masks need it)."""
    ours, theirs = DTYPES[dtype_name(dtype)], DTYPES[dtype_name(golden.dtype)]
    if ours.kind is Kind.FLOAT and ours.largest < theirs.largest:
        wide = golden if golden.itemsize > 1 else golden.float()
        golden = torch.where(wide.isinf(), wide, wide.clamp(-ours.largest, ours.largest))
    return golden.to(dtype)
