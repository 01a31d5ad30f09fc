"""Devices that compute the same thing in another order: what tells a fault-free candidate from its
baseline.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: Multiplies matrices (…, m, k) and (…, k, n) of one float dtype; the product may be of a wider
#: one.
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """In the type that a device accumulates in."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _split(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Split-K: blocks of 24 summed apart, then added from the last to the first."""
    blocks = zip(torch.split(_wide(left), 24, -1), torch.split(_wide(right), 24, -2), strict=True)
    partial = [torch.matmul(*block) for block in blocks]
    total = partial.pop()
    while partial:
        total = total + partial.pop()
    return total


def _reversed(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.matmul(_wide(left).flip(-1), _wide(right).flip(-2))


def _truncated(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Blocks of 16, as matrix units take them; for 16-bit operands, sums are cut to 16 bits of
    mantissa instead of rounded to 24.
    """
    total = torch.zeros(())
    for block in zip(
        torch.split(_wide(left), 16, -1), torch.split(_wide(right), 16, -2), strict=True
    ):
        total = total + torch.matmul(*block)
        if left.dtype != torch.float32:
            total = (total.contiguous().view(torch.int32) & ~0x7F).view(torch.float32)
    return total


def _exact(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.matmul(left.double(), right.double())


def _halves(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Split-K over two blocks, each rounded to the operands' type before they are added."""
    middle = left.shape[-1] // 2
    return torch.matmul(left[..., :middle], right[..., :middle, :]) + torch.matmul(
        left[..., middle:], right[..., middle:, :]
    )


def _unfused(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Rounded to the operands' type before a bias is added."""
    return torch.matmul(left.flip(-1), right.flip(-2))


class _Order(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes matrix products, convolutions, norms, softmax, means and sums in another order, and
    rounds as often as the CPU does.
    """

    def __init__(self, product: Product) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.product = product
        self.accumulator = torch.float64 if product is _exact else torch.float32

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        way = _WAYS.get(op._schema.name.removeprefix("aten::"))
        floating = (
            args
            and isinstance(args[0], torch.Tensor)
            and args[0].is_floating_point()
            and args[0].dtype != torch.float64
        )
        if way is None or not floating:
            return op(*args, **kwargs)
        return way(self, op, *args, **kwargs)

    def widen(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.accumulator)


def _mm(order: _Order, op: Any, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return order.product(left, right).to(left.dtype)


def _addmm(
    order: _Order,
    op: Any,
    bias: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> Any:
    product = order.product(left, right)
    return (product * alpha + (bias.to(product.dtype) * beta if beta else 0)).to(left.dtype)


def _convolution(
    order: _Order, op: Any, data: torch.Tensor, weight: torch.Tensor, bias: Any, *options: Any
) -> torch.Tensor:
    """Input channels in reversed order; in the accumulator's type where that is float64, or each
    group has one channel only.
    """
    groups = options[-1]
    if order.product is _exact or groups > 1:
        wide = [None if part is None else part.double() for part in (data, weight, bias)]
        result: torch.Tensor = op(*wide, *options)
    else:
        result = op(data.flip(1), weight.flip(1), bias, *options)
    return result.to(data.dtype)


def _convolution_backward(
    order: _Order,
    op: Any,
    grad: torch.Tensor,
    data: torch.Tensor,
    weight: torch.Tensor,
    *options: Any,
) -> Any:
    """Samples and input channels in reversed order; in the accumulator's type where that is
    float64, or each group has one channel only.
    """
    if order.product is _exact or options[-2] > 1:
        results = op(grad.double(), data.double(), weight.double(), *options)
    else:
        of_data, of_weight, of_bias = op(grad.flip(0), data.flip(0, 1), weight.flip(1), *options)
        results = (
            of_data if of_data is None else of_data.flip(0, 1),
            of_weight if of_weight is None else of_weight.flip(1),
            of_bias,
        )
    return tuple(None if each is None else each.to(data.dtype) for each in results)


def _layer_norm_backward(
    order: _Order,
    op: Any,
    grad: torch.Tensor,
    data: torch.Tensor,
    shape: list[int],
    mean: Any,
    rstd: Any,
    *parameters: Any,
) -> Any:
    """Rows in reversed order, which are summed up to the gradients of weight and bias."""
    if data.dim() < 2:
        return op(grad, data, shape, mean, rstd, *parameters)
    of_data, *of_parameters = op(
        *(each.flip(0) for each in (grad, data)),
        shape,
        *(each.flip(0) for each in (mean, rstd)),
        *parameters,
    )
    return (of_data if of_data is None else of_data.flip(0), *of_parameters)


def _layer_norm(
    order: _Order, op: Any, data: torch.Tensor, shape: list[int], weight: Any, bias: Any, eps: float
) -> Any:
    axes = list(range(-len(shape), 0))
    wide = order.widen(data).flip(axes)
    mean = wide.mean(axes, keepdim=True)
    rstd = ((wide - mean).square().mean(axes, keepdim=True) + eps).rsqrt()
    normal = ((wide - mean) * rstd).flip(axes)
    if weight is not None:
        normal = normal * order.widen(weight)
    if bias is not None:
        normal = normal + order.widen(bias)
    return normal.to(data.dtype), mean.to(data.dtype), rstd.to(data.dtype)


def _softmax(
    order: _Order, op: Any, data: torch.Tensor, axis: int, half_to_float: bool
) -> torch.Tensor:
    result: torch.Tensor = op(order.widen(data).flip(axis), axis, False)
    return result.flip(axis).to(data.dtype)


def _reduction(
    order: _Order,
    op: Any,
    data: torch.Tensor,
    axes: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> torch.Tensor:
    every = list(range(data.ndim)) if not axes else list(axes)
    given = [every, keepdim] if any(each.name == "dim" for each in op._schema.arguments) else []
    result: torch.Tensor = op(order.widen(data).flip(every), *given)
    return result.to(dtype or data.dtype)


def _elementwise(
    order: _Order, op: Any, data: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Another library of transcendental functions: the right answer, rounded once."""
    result: torch.Tensor = op(data.double() if order.product is _exact else data, *args, **kwargs)
    return result.to(data.dtype)


def _attention(
    order: _Order,
    op: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *options: Any,  # dropout, is_causal
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """As a fused kernel: scores and weights stay in the accumulator's type."""
    output, logsumexp = op(query, key, value, *options, attn_mask=attn_mask, scale=scale)
    causal = len(options) > 1 and options[1]
    heads = query.shape[1] // key.shape[1]
    wide = [
        order.widen(part)
        for part in (query, key.repeat_interleave(heads, 1), value.repeat_interleave(heads, 1))
    ]
    scores = order.product(wide[0], wide[1].mT) * (
        query.shape[-1] ** -0.5 if scale is None else scale
    )
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    if attn_mask is not None:
        scores = (
            scores.masked_fill(~attn_mask, float("-inf"))
            if attn_mask.dtype == torch.bool
            else scores + attn_mask
        )
    output.copy_(order.product(scores.flip(-1).softmax(-1).flip(-1), wide[2]))
    return output, logsumexp


_WAYS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("mm", "bmm", "mv"), _mm),
    **dict.fromkeys(("addmm", "baddbmm"), _addmm),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "_softmax": _softmax,
    **dict.fromkeys(("mean", "sum"), _reduction),
    **dict.fromkeys(
        ("exp", "tanh", "gelu", "silu", "sigmoid", "erf", "rsqrt", "softplus", "pow"), _elementwise
    ),
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
}


@contextlib.contextmanager
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2 if before == 1 else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags would warn of TF32
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


#: By name. None rounds more often than the CPU's own kernels do, so that each is as good as the
#: baseline. Every row of every model may differ from the baseline's in the first four; the fifth
#: changes about two models in three, the last none.
ORDERS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "split-K": lambda: _Order(_split),
    "reversed": lambda: _Order(_reversed),
    "blocks, truncated": lambda: _Order(_truncated),
    "float64 accumulation": lambda: _Order(_exact),
    "without oneDNN": _without_onednn,
    "other number of threads": _threads,
}

#: Rounds more often than the baseline does: what it takes to call that no fault is shown, and
#: counted apart.
COARSER: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "split-K, parts rounded": lambda: _Order(_halves),
    "bias added apart": lambda: _Order(_unfused),
}
