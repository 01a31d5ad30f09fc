"""The errors that lower precision of matrix products should make, layer by layer, on the CPU.

While ``emulated`` lasts, the operands of float32 matrix products and convolutions, forward and
backward, are rounded to the format that a device's matrix unit reads, and the product is
accumulated in float32. Everything else stays bit for bit as it is.

The result is the **expected error for a format**, never a device's result. The size of each layer's
error is reliable: a device that rounds the same and sums in another order had errors 0.99 to 1.03
times as large in every layer. Which elements are off, and in which direction, is not: that
agreement is gone after the first block. A device's transcendental functions, fused kernels and
internal formats are not emulated.

Not rounded: dot and outer products of two vectors, which do not run on matrix units; and products
in types other than float32 (bfloat16 and float16 are rounded already). In a model cast to float64,
those in float64 are: all else then shows what float32's own rounding makes, too.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from accucompare.bundle.flags import MANTISSA
from accucompare.live.operators import Inside
from accucompare.selection import Precision, RoundedFeed

_CASTS = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


@dataclass(eq=False)
class Emulation:
    """What was emulated."""

    precision: Precision
    # the types whose products are rounded
    dtypes: frozenset[str] = frozenset({"float32"})
    # how often each operator ran with rounded operands. A fused attention is counted itself and by
    # its products.
    counts: Counter[str] = field(default_factory=Counter)
    # operators that look like products and ran unchanged, and why: ``mm of float64``
    untouched: set[str] = field(default_factory=set)


@contextlib.contextmanager
def emulated(precision: Precision, *, wide: bool = False) -> Iterator[Emulation]:
    """Within the context, round the operands of this thread's float32 products on the CPU.

    ``wide``: of those in float64, too.

    A backward is emulated if it is called inside the context, no matter where its forward ran.
    ``nn.TransformerEncoder`` and ``nn.MultiheadAttention`` take their slow path inside, and
    ``nn.LSTM`` the one without oneDNN: their fast paths hide the products. Code compiled by
    torch.compile must run eagerly (``force_eager``).
    """
    dtypes = frozenset({"float32", "float64"} if wide else {"float32"})
    emulation = Emulation(Precision(precision), dtypes)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with _PlainLSTM(), _Rounding(emulation):
            yield emulation
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class RoundedResults(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Rounds what operators make of floating numbers, as code that computes in a half type does.

    Each operator itself computes in its own type: no kernel of the half type runs.
    """

    def __init__(self, to: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._to = to

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for cls in types):
            return NotImplemented
        result = op(*args, **kwargs or {})
        # positions and masks are made of integers, in a type of their own
        if isinstance(op, torch._ops.OpOverload) and any(
            map(_is_precise, tree_leaves((args, kwargs)))
        ):
            made = (result,) if len(op._schema.returns) == 1 else result or ()
            for each, told in zip(made, op._schema.returns, strict=False):
                if told.alias_info is None or told.alias_info.is_write:
                    for tensor in filter(_is_precise, tree_leaves(each)):
                        tensor.copy_(
                            without_last_bits(tensor)
                            if self._to == RoundedFeed.FLOAT29
                            else tensor.to(getattr(torch, self._to))
                        )
        return result


def _is_precise(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in (torch.float32, torch.float64)
        and value.layout is torch.strided
    )


def rounded_operands(tensor: torch.Tensor, precision: Precision) -> torch.Tensor:
    """A tensor rounded to a format by way of float32, to the nearest, ties to even; in its type.

    Values that are too large become infinite; NaN, infinities and signs are kept. Subnormal numbers
    of formats with 8-bit exponents lose bits as float32's do. FP16 has its own range, up to 65504.
    """
    if tensor.dtype != torch.float32:
        return rounded_operands(tensor.to(torch.float32), precision).to(tensor.dtype)
    if precision in _CASTS:
        return tensor.to(_CASTS[precision]).to(torch.float32)
    return _fewer_bits(tensor, 23 - MANTISSA[precision])


def without_last_bits(tensor: torch.Tensor) -> torch.Tensor:
    """A float32 tensor rounded to ``float29``, still in float32, finite values to finite ones;
    others as they are."""
    if tensor.dtype != torch.float32:
        return tensor
    rounded = _fewer_bits(tensor, 3)
    return torch.where(rounded.isfinite(), rounded, tensor)


def _fewer_bits(tensor: torch.Tensor, dropped: int) -> torch.Tensor:
    """A float32 tensor rounded to so many bits fewer, to nearest, ties to even."""
    # sign and magnitude: a carry out of the mantissa raises the exponent, as it should
    bits = tensor.view(torch.int32)
    nearest = (
        (bits >> dropped)
        .bitwise_and_(1)
        .add_(bits)
        .add_((1 << (dropped - 1)) - 1)
        .bitwise_and_(-1 << dropped)
    )
    return torch.where(tensor.isnan(), tensor, nearest.view(torch.float32))


#: Positions of the operands that a matrix unit reads; what is added (addmm's ``self``, a bias) is
#: none.
_OPERANDS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "_grouped_mm"), (0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "addmv", "_addmm_activation"), (1, 2)),
    **dict.fromkeys(
        ("convolution", "_convolution", "mkldnn_convolution", "conv_tbc", "slow_conv3d_forward"),
        (0, 1),
    ),
    **dict.fromkeys(("_slow_conv2d_forward", "slow_conv_dilated2d", "slow_conv_dilated3d"), (0, 1)),
    **dict.fromkeys(("slow_conv_transpose2d", "slow_conv_transpose3d"), (0, 1)),
    **dict.fromkeys(("convolution_backward", "_slow_conv2d_backward"), (0, 1, 2)),
    "_scaled_dot_product_flash_attention_for_cpu": (0, 1, 2),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (0, 1, 2, 3),
}

#: Composed below autograd. (Those composed above it arrive whole only without autograd.)
_COMPOSED = ("_trilinear", "_euclidean_dist", "_foreach_mm", "linalg_pinv", "linear")

#: The kernels that an operator may have on the CPU; the first one present counts.
_KERNELS = (
    "CPU",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)

#: Names of operators that may hide products and are in no table.
_LOOKS_LIKE_PRODUCT = re.compile(
    r"attention|attn|matmul|lstm|rnn|einsum|encoder_layer|matrix_exp|gemm"
    r"|(?<![a-z])([a-z0-9]*mm|dot|vdot|mv|gru|(b|tri)?linear"
    r"|conv(olution|_?transpose)?(\dd)?)(?![a-z0-9])"
)

_NOT_PLAIN = "a sparse, nested or foreign tensor"

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


class _PlainLSTM(TorchFunctionMode):
    """Runs LSTMs in float32 without oneDNN's kernel, which hides the products."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            func is not torch.lstm
            or args[0].dtype != torch.float32
            or torch.is_autocast_enabled("cpu")
        ):
            return func(*args, **kwargs or {})
        enabled = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            return func(*args, **kwargs or {})
        finally:
            torch._C._set_mkldnn_enabled(enabled)


class _Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees operators below autograd and autocast: dtypes are final, gradients are not rounded."""

    supports_higher_order_operators = True

    def __init__(self, emulation: Emulation) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.emulation = emulation
        self._seen = 0  # products, rounded or not
        self._inside = Inside("CPU")

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for cls in types):
            # such a tensor runs operators of its own, which come here in turn
            return NotImplemented
        known = _operator(op)
        if known is None:
            return op(*args, **kwargs)
        kinds = _kinds([args[position] for position in known.operands] or [*args, *kwargs.values()])
        before = self._seen
        if known.operands and kinds and kinds <= self.emulation.dtypes:
            self.emulation.counts[known.name] += 1
            self._seen += 1
            way: Callable[..., Any] = _WAYS.get(known.name, _product)
            result = way(self, op, *args, **kwargs)
        elif known.inside is not None and _NOT_PLAIN not in kinds:
            with self._inside.of(op, self):
                result = op._op_dk(known.inside, *args, **kwargs)
        else:
            result = op(*args, **kwargs)
        if known.is_product and kinds and self._seen == before:
            self.emulation.untouched.add(f"{known.name} of {', '.join(sorted(kinds))}")
            self._seen += 1
        return result


class _Operator(NamedTuple):
    """A product, or an operator whose kernel ``inside`` runs products or draws under the mode."""

    name: str
    operands: tuple[int, ...]
    inside: torch._C.DispatchKey | None
    is_product: bool


@cache
def _operator(op: Any) -> _Operator | None:
    # an operator on functions, which may hide anything
    if not isinstance(op, torch._ops.OpOverload):
        return _Operator(op.name(), (), None, is_product=True)
    qualified, overload = op._schema.name, op._schema.overload_name
    name = qualified.removeprefix("aten::")
    is_open = name == qualified or name in _COMPOSED or torch.Tag.nondeterministic_seeded in op.tags
    operator = f"{qualified}.{overload}".removesuffix(".")
    key = next((key for key in _KERNELS if _has_kernel(operator, key)), "")
    inside = (
        getattr(torch._C.DispatchKey, key)
        if key == "CompositeImplicitAutograd" or (key and is_open)
        else None
    )
    operands = (
        ()
        if "backward" in name and overload not in ("", "output_mask")
        else _OPERANDS.get(name.removesuffix("_"), ())
    )
    is_product = bool(operands or _LOOKS_LIKE_PRODUCT.search(name))
    return _Operator(name, operands, inside, is_product) if is_product or inside else None


def _kinds(values: list[Any]) -> set[str]:
    """The dtypes of plain CPU tensors; for other tensors, what they are instead."""
    flat = [
        item
        for value in values
        for item in (value if isinstance(value, (list, tuple)) else [value])
    ]
    tensors = [item for item in flat if isinstance(item, torch.Tensor)]
    plain = [
        tensor
        for tensor in tensors
        if tensor.layout is torch.strided and tensor.is_cpu and not tensor.is_nested
    ]
    return {str(tensor.dtype).removeprefix("torch.") for tensor in plain} | {
        _NOT_PLAIN for _ in tensors[len(plain) :]
    }


def _product(mode: _Rounding, op: Any, *args: Any, **kwargs: Any) -> Any:
    operands = _OPERANDS[op._schema.name.removeprefix("aten::").removesuffix("_")]
    return op(
        *(
            rounded_operands(arg, mode.emulation.precision) if position in operands else arg
            for position, arg in enumerate(args)
        ),
        **kwargs,
    )


def _convolution_backward(mode: _Rounding, op: Any, *args: Any) -> tuple[Any, ...]:
    """Convolutions of rounded operands. The bias' gradient is a sum of unrounded gradients."""
    *others, (of_input, of_weight, of_bias) = args
    grads = _product(mode, op, *others, [of_input, of_weight, False])
    return (*grads[:2], op(*others, [False, False, True])[2]) if of_bias else tuple(grads)


def _attention(
    mode: _Rounding, op: Any, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mathematical form's output in the fused one's layout; the fused one's second output."""
    output, logsumexp = op(*args, **kwargs)
    with mode:
        output.copy_(_attention_math(*args, **kwargs)[0])
    return output, logsumexp


def _attention_backward(
    mode: _Rounding, op: Any, grad: torch.Tensor, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, ...]:
    """The mathematical form's gradients: query and key are each multiplied by the scale's root."""
    query, key, value, _, _, *options = args
    heads = (key.shape[1], query.shape[1] // key.shape[1])
    key, value = (tensor.repeat_interleave(heads[1], 1) for tensor in (key, value))
    scale = query.shape[-1] ** -0.5 if kwargs.get("scale") is None else kwargs["scale"]
    root = abs(scale) ** 0.5
    with mode:
        weights = _attention_math(query, key, value, *options, **kwargs)[1]
        of_weights = grad @ value.mT
        of_scores = (
            weights
            * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
            * math.copysign(1, scale)
        )
        of_heads = of_scores.mT @ (query * root) * root, weights.mT @ grad
        return of_scores @ (key * root) * root, *(
            product.unflatten(1, heads).sum(2) for product in of_heads
        )


def _attention_math(
    query: Any,
    key: Any,
    value: Any,
    *options: Any,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    """Output and weights, (batch, heads, length, size). Several query heads may share a key's."""
    key, value = (
        tensor.repeat_interleave(query.shape[1] // tensor.shape[1], 1) for tensor in (key, value)
    )
    return torch.ops.aten._scaled_dot_product_attention_math.default(
        query, key, value, attn_mask, *options, scale=scale
    )


#: Operators that hide products, or that do more than one product: rounding operands is not enough.
_WAYS: dict[str, Callable[..., Any]] = {
    "convolution_backward": _convolution_backward,
    "_slow_conv2d_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
