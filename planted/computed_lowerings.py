"""Wrong lowerings to be found: a compiler's backend that computes one operator wrongly.

A fault rewrites the graph of aten operators that AOTAutograd hands to a backend; what is left runs
as it is, or is compiled by inductor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

aten = torch.ops.aten

#: Makes an operator's result anew of its arguments: ``(target, args, kwargs) -> result``.
Lowering = Callable[..., Any]


@dataclass(frozen=True)
class WrongLowering:
    """An operator that a backend computes wrongly.

    Attributes:
        name: what is wrong.
        model: the planted model in which it shows.
        targets: the aten operators that are lowered wrongly.
        lowering: called in their place with the operator and its arguments.
        module: of the modules that it may be named in, a regular expression.
        operator: of the operators of the user's code, a regular expression.
        backward: whether it is in the backward's graph.
        trains: whether the model trains, though the forward is wrong.
        beside: operators that a graph must have, too: it is wrong in large regions alone.
        dtype: what the model computes in.
    """

    name: str
    model: str
    targets: tuple[Any, ...]
    lowering: Lowering
    module: str
    operator: str
    backward: bool = False
    dtype: str = "float32"
    trains: bool = False
    beside: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}: {self.model}, {self.dtype}"

    def backend(self) -> Callable[..., Any]:
        """The backend, to be registered."""

        def wrong(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            held = {node.target for node in graph.graph.nodes}
            if not held.issuperset(self.beside):
                return right(graph, inputs)
            return make_boxed_func(_Lowered(graph, self.targets, self.lowering).run)

        def right(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            return make_boxed_func(graph.forward)

        forward, backward = (right, wrong) if self.backward else (wrong, right)
        backend: Callable[..., Any] = aot_autograd(
            fw_compiler=forward, bw_compiler=backward, inference_compiler=forward
        )
        return backend


class _Lowered(torch.fx.Interpreter):
    """Runs a graph with some operators lowered wrongly."""

    def __init__(
        self, graph: torch.fx.GraphModule, targets: tuple[Any, ...], lowering: Lowering
    ) -> None:
        super().__init__(graph)
        self._targets, self._lowering = targets, lowering

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in self._targets:
            return self._lowering(target, *args, **kwargs)
        return super().call_function(target, args, kwargs)


def without_tail(target: Any, *args: Any, **kwargs: Any) -> Any:
    """A vectorised loop that leaves out what is behind the last whole vector of 8."""
    result = target(*args, **kwargs)
    flat = result.flatten().clone()
    flat[flat.numel() // 8 * 8 :] = 0.0
    return flat.view(result.shape)


def _gelu_by_tanh(target: Any, value: Any, **kwargs: Any) -> Any:
    return target(value, approximate="tanh")


def _gelu_by_sigmoid(target: Any, value: Any, **kwargs: Any) -> Any:
    return value * torch.sigmoid(1.702 * value)


def _softmax_without_max(target: Any, value: Any, dim: int, *rest: Any) -> Any:
    powers = value.exp()
    return powers / powers.sum(dim, keepdim=True)


def _softmax_of_floor(target: Any, value: Any, dim: int, *rest: Any) -> Any:
    """A mask of -inf that was folded to -4."""
    return target(value.clamp(min=-4.0), dim, *rest)


def _norm_eps(target: Any, value: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    return target(value, shape, weight, bias, eps * 1000)


def _add_eps(target: Any, value: Any, other: Any, *rest: Any, **kwargs: Any) -> Any:
    if isinstance(other, float) and other < 1e-3:
        other *= 1000
    return target(value, other, *rest, **kwargs)


def _half_sum(target: Any, value: Any, *rest: Any, **kwargs: Any) -> Any:
    """A reduction that is accumulated in bfloat16."""
    kwargs.pop("dtype", None)
    return target(value.bfloat16(), *rest, **kwargs).to(value.dtype)


def _half_product(target: Any, *args: Any, **kwargs: Any) -> Any:
    """A matrix product with operands in bfloat16."""
    dtype = args[0].dtype
    return target(*[each.bfloat16() for each in args], **kwargs).to(dtype)


def _product_without_tail(target: Any, *args: Any, **kwargs: Any) -> Any:
    """A product whose loop over K leaves out what is behind the last block of 4."""
    *before, left, right = args
    end = max(left.shape[-1] // 4 * 4 - 4, 4)
    return target(*before, left[..., :end], right[..., :end, :], **kwargs)


def _transposed(target: Any, *args: Any, **kwargs: Any) -> Any:
    """The strides of a square matrix, the wrong way round."""
    *before, left, right = args
    square = right.shape[-1] == right.shape[-2]
    return target(*before, left, right.transpose(-1, -2) if square else right, **kwargs)


def _scaled_by_half(target: Any, value: Any, other: Any, *rest: Any, **kwargs: Any) -> Any:
    """A constant that was folded in bfloat16."""
    if isinstance(other, float):
        other = float(torch.tensor(other, dtype=torch.bfloat16)) * 1.004
    return target(value, other, *rest, **kwargs)


def _not_cast(target: Any, value: Any, **kwargs: Any) -> Any:
    """A cast to float32 that is dropped: what follows computes in bfloat16's precision."""
    made = target(value, **kwargs)
    if made.dtype is torch.float32 and value.dtype is torch.float32:
        return made
    if made.dtype is torch.float32:
        return (made * 1.0).to(torch.bfloat16).float() * (1 + 2**-7)
    return made


def _rsqrt_rough(target: Any, value: Any) -> Any:
    """One step of Newton's short."""
    return target(value).half().float().to(value.dtype)


def _exp_rough(target: Any, value: Any) -> Any:
    return (1 + value / 256) ** 256


def _negated_half(target: Any, values: Any, dim: int = 0) -> Any:
    """Parts that are concatenated in the wrong order."""
    return target([*reversed(list(values))], dim)


def _into_its_input(target: Any, value: Any, *rest: Any, **kwargs: Any) -> Any:
    """The memory of an input is used again for the result, though it is read later."""
    result = target(value, *rest, **kwargs)
    if result.shape == value.shape and result.dtype == value.dtype and not value.is_leaf:
        value.copy_(result)
    elif result.shape == value.shape:
        value.data.copy_(result)
    return result


def _silu_sharp(target: Any, value: Any) -> Any:
    return value * torch.sigmoid(1.02 * value)


def _window_of_mean(target: Any, value: Any, *rest: Any, **kwargs: Any) -> Any:
    """A mean divided by one element fewer."""
    made = target(value, *rest, **kwargs)
    count = value.numel() / made.numel()
    return made * (count / (count - 1))


def _dilated(target: Any, value: Any, weight: Any, *rest: Any) -> Any:
    """A convolution whose kernel is read the other way round."""
    return target(value, weight.flip(-1), *rest)


def _pool_first(target: Any, *args: Any, **kwargs: Any) -> Any:
    made = target(*args, **kwargs)
    values = made[0] if isinstance(made, tuple) else made
    return (values * 0.999, *made[1:]) if isinstance(made, tuple) else values * 0.999


def _next_row(target: Any, weight: Any, index: Any, *rest: Any) -> Any:
    """The row behind the one that is asked, for the last token."""
    index = index.clone()
    index[..., -1] = (index[..., -1] + 1) % weight.shape[0]
    return target(weight, index, *rest)


def _running_off(target: Any, *args: Any, **kwargs: Any) -> Any:
    """Running statistics that take too much of the batch's; the outputs are right."""
    output, mean, deviation, running_mean, running_variance = target(*args, **kwargs)
    return output, mean, deviation, running_mean, running_variance * 1.003


def _attention_scaled(target: Any, query: Any, *rest: Any, **kwargs: Any) -> Any:
    return target(query * 1.02, *rest, **kwargs)


def _times(factor: float) -> Lowering:
    def lowered(target: Any, *args: Any, **kwargs: Any) -> Any:
        made = target(*args, **kwargs)
        if isinstance(made, tuple):
            return (made[0] * factor, *made[1:])
        return made * factor if made.is_floating_point() else made

    return lowered


def _gelu_backward_by_tanh(target: Any, grad: Any, value: Any, **kwargs: Any) -> Any:
    return target(grad, value, approximate="tanh")


def _silu_backward_short(target: Any, grad: Any, value: Any) -> Any:
    return grad * torch.sigmoid(value)


def _tanh_backward_linear(target: Any, grad: Any, value: Any) -> Any:
    return grad * (1 - value.abs())


def _softmax_backward_short(target: Any, grad: Any, value: Any, dim: int, dtype: Any) -> Any:
    return grad * value


def _norm_backward_short(target: Any, grad: Any, *rest: Any, **kwargs: Any) -> Any:
    made = target(grad, *rest, **kwargs)
    return (made[0] * 0.99, *made[1:])


def _embedding_backward_once(
    target: Any, grad: Any, index: Any, count: int, padding: int, scaled: bool
) -> Any:
    """Of a row that is used twice, the last gradient alone."""
    made = torch.zeros(count, grad.shape[-1], dtype=grad.dtype, device=grad.device)
    made[index.flatten()] = grad.reshape(-1, grad.shape[-1])
    return made


WRONG_LOWERINGS = (
    WrongLowering(
        "gelu by tanh",
        "blocks",
        (aten.gelu.default,),
        _gelu_by_tanh,
        r"blocks\.\d+\.mlp\.act",
        "gelu",
    ),
    WrongLowering(
        "gelu by sigmoid",
        "blocks",
        (aten.gelu.default,),
        _gelu_by_sigmoid,
        r"blocks\.\d+\.mlp\.act",
        "gelu",
    ),
    WrongLowering(
        "tail of a vectorised gelu",
        "blocks",
        (aten.gelu.default,),
        without_tail,
        r"blocks\.\d+\.mlp\.act",
        "gelu",
    ),
    WrongLowering(
        "softmax without max",
        "hot",
        (aten._softmax.default,),
        _softmax_without_max,
        r"blocks\.\d+\.attention",
        "softmax",
    ),
    WrongLowering(
        "mask folded to -4",
        "blocks",
        (aten._softmax.default,),
        _softmax_of_floor,
        r"blocks\.\d+\.attention",
        "softmax",
    ),
    WrongLowering(
        "eps of LayerNorm",
        "blocks",
        (aten.native_layer_norm.default,),
        _norm_eps,
        r"blocks\.\d+\.norm\d|norm",
        "layer_norm",
    ),
    WrongLowering(
        "mean divided by n - 1",
        "llama",
        (aten.mean.dim,),
        _window_of_mean,
        r"(layers\.\d+\.(input|post_attention)_layer)?norm",
        "mean",
    ),
    WrongLowering(
        "eps of RMSNorm",
        "llama",
        (aten.add.Tensor, aten.add.Scalar),
        _add_eps,
        r"(layers\.\d+\.(input|post_attention)_layer)?norm",
        "add",
    ),
    WrongLowering(
        "mean accumulated in bfloat16",
        "llama",
        (aten.mean.dim,),
        _half_sum,
        r"(layers\.\d+\.(input|post_attention)_layer)?norm",
        "mean",
    ),
    WrongLowering(
        "rsqrt too rough",
        "llama",
        (aten.rsqrt.default,),
        _rsqrt_rough,
        r"(layers\.\d+\.(input|post_attention)_layer)?norm",
        "rsqrt",
    ),
    WrongLowering(
        "cast dropped",
        "llama",
        (aten._to_copy.default,),
        _not_cast,
        r"(layers\.\d+\.(input|post_attention)_layer)?norm|rotary_emb",
        "to|float",
        dtype="bfloat16",
    ),
    WrongLowering(
        "silu too sharp",
        "llama",
        (aten.silu.default,),
        _silu_sharp,
        r"layers\.\d+\.mlp\.act_fn",
        "silu",
    ),
    WrongLowering(
        "rotary parts swapped",
        "llama",
        (aten.cat.default,),
        _negated_half,
        r"layers\.\d+\.self_attn|rotary_emb",
        "cat",
    ),
    WrongLowering(
        "scale folded in bfloat16",
        "blocks",
        (aten.mul.Scalar, aten.mul.Tensor),
        _scaled_by_half,
        r"blocks\.\d+\.attention",
        "mul",
    ),
    WrongLowering(
        "product with operands in bfloat16",
        "blocks",
        (aten.mm.default, aten.bmm.default),
        _half_product,
        r"blocks\.\d+\.(attention|mlp)(\.\w+)?|head",
        "matmul|linear|bmm",
    ),
    WrongLowering(
        "product without the tail of K",
        "blocks",
        (aten.bmm.default,),
        _product_without_tail,
        r"blocks\.\d+\.attention",
        "matmul|bmm",
    ),
    WrongLowering(
        "strides of a square product",
        "blocks",
        (aten.mm.default, aten.addmm.default),
        _transposed,
        r"blocks\.\d+\.attention(\.\w+)?|blocks\.\d+\.mlp\.\w+",
        "linear",
    ),
    WrongLowering(
        "exp too rough", "odd", (aten.exp.default,), _exp_rough, r"layers\.\d+\.gate|gate", "exp"
    ),
    WrongLowering(
        "memory of an input used again",
        "odd",
        (aten.tanh.default,),
        _into_its_input,
        r"layers\.\d+\.residual|residual",
        "tanh|add|mul",
    ),
    WrongLowering(
        "cumsum off by 1 %",
        "odd",
        (aten.cumsum.default,),
        _times(1.01),
        r"layers\.\d+\.scan|scan",
        "cumsum",
    ),
    WrongLowering(
        "kernel of a convolution flipped",
        "conv",
        (aten.convolution.default,),
        _dilated,
        r"(blocks\.\d+\.)?conv\d?",
        "conv",
    ),
    WrongLowering(
        "running variance of BatchNorm",
        "conv",
        (aten._native_batch_norm_legit_functional.default,),
        _running_off,
        r"blocks\.\d+\.norm1",
        "batch_norm",
        trains=True,
    ),
    WrongLowering(
        "pooling off by 0.1 %",
        "conv",
        (aten.max_pool2d_with_indices.default,),
        _pool_first,
        r"pool",
        "max_pool",
    ),
    WrongLowering(
        "embedding reads the next row",
        "blocks",
        (aten.embedding.default,),
        _next_row,
        r"tokens|places",
        "embedding",
    ),
    WrongLowering(
        "sdpa scaled by 2 %",
        "gpt2",
        (aten._scaled_dot_product_flash_attention_for_cpu.default,),
        _attention_scaled,
        r"h\.\d+\.attn",
        "scaled_dot_product",
    ),
    WrongLowering(
        "backward of gelu by tanh",
        "blocks",
        (aten.gelu_backward.default,),
        _gelu_backward_by_tanh,
        r"blocks\.\d+\.mlp\.act",
        "gelu",
        True,
    ),
    WrongLowering(
        "backward of silu without a term",
        "llama",
        (aten.silu_backward.default,),
        _silu_backward_short,
        r"layers\.\d+\.mlp\.act_fn",
        "silu",
        True,
    ),
    WrongLowering(
        "backward of tanh",
        "odd",
        (aten.tanh_backward.default,),
        _tanh_backward_linear,
        r"layers\.\d+\.residual|residual",
        "tanh",
        True,
    ),
    WrongLowering(
        "backward of softmax without its sum",
        "blocks",
        (aten._softmax_backward_data.default,),
        _softmax_backward_short,
        r"blocks\.\d+\.attention",
        "softmax",
        True,
    ),
    WrongLowering(
        "backward of LayerNorm off by 1 %",
        "blocks",
        (aten.native_layer_norm_backward.default,),
        _norm_backward_short,
        r"blocks\.\d+\.norm\d|norm",
        "layer_norm",
        True,
    ),
    WrongLowering(
        "backward of embedding keeps the last",
        "blocks",
        (aten.embedding_dense_backward.default,),
        _embedding_backward_once,
        r"tokens|places",
        "embedding",
        True,
    ),
    WrongLowering(
        "tail of a vectorised backward",
        "blocks",
        (aten.gelu_backward.default,),
        without_tail,
        r"blocks\.\d+\.mlp\.act",
        "gelu",
        True,
    ),
    WrongLowering(
        "residual of a whole block",
        "blocks",
        (aten.add.Tensor,),
        _times(1.003),
        r"blocks\.\d+",
        "add",
        beside=(aten.gelu.default, aten.native_layer_norm.default),
    ),
    WrongLowering(
        "LayerNorm of the whole model",
        "blocks",
        (aten.native_layer_norm.default,),
        _norm_eps,
        r"",
        "layer_norm",
        beside=(aten.embedding.default, aten.gelu.default),
    ),
)


def lowering_named(name: str) -> WrongLowering:
    return next(each for each in WRONG_LOWERINGS if each.name == name)
