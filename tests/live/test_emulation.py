"""Emulated precision: rounding is exact, every product is found, and nothing else changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everyone calls it
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from accucompare.live.numerics.emulation import (
    Emulation,
    RoundedResults,
    emulated,
    rounded_operands,
)
from accucompare.live.operators.randomness import matched_randomness
from accucompare.selection import Precision
from fixtures import gpt2

BF16, FP16, HF32, TF32 = Precision.BF16, Precision.FP16, Precision.HF32, Precision.TF32
MANTISSA = {HF32: 11, TF32: 10, BF16: 7, FP16: 10}
Function = Callable[..., torch.Tensor]


# Rounding


def exactly_rounded(value: float, precision: Precision) -> float:
    """By the definition, in rational numbers."""
    if math.isnan(value) or math.isinf(value) or value == 0:
        return value
    smallest, largest = (-14, 15) if precision is FP16 else (-126, 127)
    exponent = max(math.frexp(value)[1] - 1, smallest)
    unit = Fraction(2) ** (exponent - MANTISSA[precision])
    nearest = round(Fraction(value) / unit) * unit  # Python rounds ties to even
    if abs(nearest) >= Fraction(2) ** (largest + 1):
        return math.copysign(math.inf, value)
    return math.copysign(float(nearest), value)


def round_one(value: float, precision: Precision) -> float:
    return rounded_operands(torch.tensor([value], dtype=torch.float32), precision).item()


any_float32 = st.one_of(
    st.floats(width=32),
    st.integers(0, 2**32 - 1).map(lambda bits: float(np.uint32(bits).view(np.float32))),
    st.integers(-(2**13), 2**13).map(lambda n: 1.0 + n * 2.0**-13),  # ties
    st.floats(-70000, 70000, width=32),
)


@given(any_float32, st.sampled_from(Precision))
def test_rounds_to_nearest_even(value: float, precision: Precision) -> None:
    result, golden = round_one(value, precision), exactly_rounded(value, precision)
    assert result == golden or (math.isnan(result) and math.isnan(golden))
    assert math.isnan(value) or math.copysign(1, result) == math.copysign(1, value)
    again = round_one(result, precision)
    assert again == result or math.isnan(result)
    assert math.isnan(value) or round_one(-value, precision) == -result
    if 2.0**-14 <= abs(value) <= 65504:
        assert abs(result - value) <= 2.0 ** -(MANTISSA[precision] + 1) * abs(value)


@pytest.mark.parametrize("precision", Precision)
def test_keeps_special_values_layout_and_operand(precision: Precision) -> None:
    bits = torch.tensor(
        [0x7FFFFFFF, -1, 0x7F800001, 0x7F800000, -0x800000, 0, -(2**31), 1, 0x7F7FFFFF],
        dtype=torch.int32,
    )
    special = bits.view(torch.float32)
    kept = special.clone()
    result = rounded_operands(special, precision)
    assert result[:3].isnan().all()
    assert result[3:].tolist() == [math.inf, -math.inf, 0, 0, 0, math.inf]
    assert result.signbit()[3:].tolist() == [False, True, False, True, False, False]
    assert torch.equal(special.view(torch.int32), kept.view(torch.int32))
    assert rounded_operands(torch.randn(3, 4).T, precision).stride() == (1, 4)
    assert rounded_operands(torch.empty(0, 3), precision).shape == (0, 3)
    assert rounded_operands(torch.tensor(1.0).expand(2, 3), precision).tolist() == [[1] * 3] * 2


def test_the_greatest_error_is_half_a_unit() -> None:
    values = 1 + torch.arange(2**23) * 2.0**-23
    for precision, bits in MANTISSA.items():
        assert (
            (rounded_operands(values, precision) - values) / values
        ).abs().max().item() == pytest.approx(2.0 ** -(bits + 1), rel=1e-2)


# Products: operands rounded, forward and backward

#: Functions that are linear in each of two operands, and the shapes of these.
PRODUCTS: dict[str, tuple[Function, tuple[int, ...], tuple[int, ...]]] = {
    "mm": (torch.mm, (5, 7), (7, 3)),
    "mm of views": (lambda a, b: torch.mm(a.T, b[::2]), (7, 5), (14, 3)),
    "matmul": (torch.matmul, (2, 5, 7), (7, 3)),
    "bmm": (torch.bmm, (2, 5, 7), (2, 7, 3)),
    "addmm": (
        lambda a, b: torch.addmm(torch.zeros(3, dtype=a.dtype), a, b, alpha=0.5),
        (5, 7),
        (7, 3),
    ),
    "addmm_": (lambda a, b: torch.zeros(5, 3, dtype=a.dtype).addmm_(a, b), (5, 7), (7, 3)),
    "baddbmm_": (
        lambda a, b: torch.zeros(2, 5, 3, dtype=a.dtype).baddbmm_(a, b),
        (2, 5, 7),
        (2, 7, 3),
    ),
    "addbmm": (
        lambda a, b: torch.addbmm(torch.zeros(5, 3, dtype=a.dtype), a, b),
        (2, 5, 7),
        (2, 7, 3),
    ),
    "linear": (F.linear, (2, 5, 7), (3, 7)),
    "einsum": (lambda a, b: torch.einsum("bhik,bhjk->bhij", a, b), (2, 2, 5, 7), (2, 2, 3, 7)),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 2), (5, 7, 2), (7, 2, 3)),
    "inner": (torch.inner, (5, 7), (3, 7)),
    "chain_matmul": (lambda a, b: torch.linalg.multi_dot([a, b]), (5, 7), (7, 3)),
    "_grouped_mm": (
        lambda a, b: torch._grouped_mm(a, b) if a.dtype == torch.float32 else a @ b,
        (2, 16, 16),
        (2, 16, 16),
    ),
    "conv1d": (F.conv1d, (2, 4, 9), (6, 4, 3)),
    "conv2d": (lambda a, b: F.conv2d(a, b, stride=2, padding=1), (2, 4, 9, 9), (6, 4, 3, 3)),
    "conv2d channels last": (
        lambda a, b: F.conv2d(a.to(memory_format=torch.channels_last), b),
        (2, 4, 9, 9),
        (6, 4, 3, 3),
    ),
    "conv2d grouped": (
        lambda a, b: F.conv2d(a, b, groups=2, dilation=2),
        (2, 4, 9, 9),
        (6, 2, 3, 3),
    ),
    "conv2d depthwise": (
        lambda a, b: F.conv2d(a, b, groups=4, padding="same"),
        (2, 4, 9, 9),
        (4, 1, 3, 3),
    ),
    "conv3d": (F.conv3d, (1, 2, 5, 5, 5), (3, 2, 3, 3, 3)),
    "conv_transpose1d": (F.conv_transpose1d, (2, 4, 9), (4, 6, 3)),
    "conv_transpose2d": (
        lambda a, b: F.conv_transpose2d(a, b, stride=2, output_padding=1),
        (2, 4, 5, 5),
        (4, 6, 3, 3),
    ),
    "conv_transpose3d": (F.conv_transpose3d, (1, 2, 4, 4, 4), (2, 3, 3, 3, 3)),
    "conv_tbc": (
        lambda a, b: torch.conv_tbc(a, b, torch.zeros(6, dtype=a.dtype)),
        (9, 2, 4),
        (3, 4, 6),
    ),
    "_convolution": (
        lambda a, b: torch._convolution(
            a, b, None, [1], [0], [1], False, [0], 1, False, False, True, True
        ),
        (2, 4, 9),
        (6, 4, 3),
    ),
    "slow_conv2d": (
        lambda a, b: torch._C._nn.thnn_conv2d(a, b, (3, 3)),
        (2, 4, 9, 9),
        (6, 4, 3, 3),
    ),
    "slow_conv3d": (
        lambda a, b: torch._C._nn.slow_conv3d(a, b, (3, 3, 3)),
        (1, 2, 5, 5, 5),
        (3, 2, 3, 3, 3),
    ),
    "slow_conv_transpose2d": (
        lambda a, b: torch._C._nn.slow_conv_transpose2d(a, b, (3, 3)),
        (2, 4, 5, 5),
        (4, 6, 3, 3),
    ),
    "slow_conv_dilated2d": (
        lambda a, b: torch._C._nn.slow_conv_dilated2d(a, b, (3, 3), dilation=2),
        (2, 4, 9, 9),
        (6, 4, 3, 3),
    ),
}


def two(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def relative(candidate: torch.Tensor, golden: torch.Tensor) -> float:
    golden = golden.detach().double()
    return float((candidate.detach().double() - golden).norm() / golden.norm())


def by_hand(
    function: Function, operands: list[torch.Tensor], grad: torch.Tensor, precision: Precision
) -> list[torch.Tensor]:
    exact = [
        rounded_operands(operand.detach(), precision).double().requires_grad_()
        for operand in operands
    ]
    output = function(*exact)
    return [output, *torch.autograd.grad(output, exact, rounded_operands(grad, precision).double())]


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("precision", [BF16, HF32])
def test_products(name: str, precision: Precision) -> None:
    function, *shapes = PRODUCTS[name]
    operands = two((shapes[0], shapes[1]))
    grad = torch.randn_like(function(*operands))
    plain = function(*operands)
    plain_results = [plain, *torch.autograd.grad(plain, operands, grad)]
    with emulated(precision) as emulation:
        output = function(*operands)
        results = [output, *torch.autograd.grad(output, operands, grad)]
        with torch.inference_mode():
            inferred = function(*operands)
    for result, golden, other in zip(
        results, by_hand(function, operands, grad, precision), plain_results, strict=True
    ):
        assert relative(result, golden) < 1e-6
        assert relative(other, golden) > 2.0 ** -(MANTISSA[precision] + 4)
        assert result.stride() == other.stride()
    assert relative(inferred, output) < 3e-7
    assert emulation.counts.total() >= 3
    assert not emulation.untouched
    after = function(*operands)
    assert torch.equal(after, plain)


@pytest.mark.parametrize(
    "function", [torch.mv, torch.matmul, lambda a, b: torch.addmv(torch.zeros(5), a, b)]
)
def test_products_with_a_vector(function: Function) -> None:
    matrix, vector = two(((5, 7), (7,)))
    with emulated(BF16) as emulation:
        output = function(matrix, vector)
        grads = torch.autograd.grad(output, (matrix, vector), torch.ones(5) * 1.001)
    assert (
        relative(
            output,
            rounded_operands(matrix.detach(), BF16).double()
            @ rounded_operands(vector.detach(), BF16).double(),
        )
        < 1e-6
    )
    # which is no product of a matrix
    assert torch.equal(grads[0], torch.outer(torch.ones(5) * 1.001, vector))
    assert relative(grads[1], rounded_operands(matrix.detach(), BF16).sum(0)) < 1e-6
    assert not emulation.untouched


def test_out_variants() -> None:
    a, b = (operand.detach() for operand in two(((5, 7), (7, 3))))
    golden = rounded_operands(a, BF16) @ rounded_operands(b, BF16)
    out = torch.empty(5, 3)
    with emulated(BF16) as emulation:
        for function in (torch.mm, torch.matmul):
            assert function(a, b, out=out.zero_()) is out
            assert torch.equal(out, golden)
        torch.addmm(torch.zeros(3), a, b, out=out.zero_())
        assert torch.equal(out, golden)
        torch.bmm(a[None], b[None], out=out.zero_()[None])
        with torch.inference_mode():
            assert torch.equal(torch.ops.aten.linear.out(a, b.T, out=torch.empty(5, 3)), golden)
        torch._addmm_activation(torch.zeros(3), a, b, out=out.zero_())
        assert torch.equal(out, golden.relu())
        many = (
            torch.ops.aten._foreach_mm([a, a], [b, b])
            if hasattr(torch.ops.aten, "_foreach_mm")
            else [golden]
        )
    assert all(torch.equal(one, golden) for one in many)
    assert not emulation.untouched


def test_what_is_added_is_not_rounded() -> None:
    added = torch.full((2, 2), 1 + 2.0**-20)
    zero = torch.zeros(2, 2)
    bias = torch.full((2,), 1 + 2.0**-20)
    with emulated(BF16):
        assert torch.equal(torch.addmm(added, zero, zero, beta=2), added * 2)
        assert torch.equal(torch.baddbmm(added[None], zero[None], zero[None]), added[None])
        assert torch.equal(F.linear(zero, zero, bias), added)
        assert torch.equal(
            F.conv1d(torch.zeros(1, 1, 3), torch.zeros(2, 1, 3), bias)[0, :, 0], bias
        )


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(6, 3),
        nn.Conv1d(4, 3, 3),
        nn.ConvTranspose1d(4, 3, 3),
        nn.Conv1d(4, 3, 3).requires_grad_(False),
    ],
)
def test_gradients_of_a_bias_are_not_rounded(layer: nn.Module) -> None:
    layer.bias.requires_grad_()  # type: ignore[union-attr,operator]
    operand = torch.randn(2, 4, 6)
    output = layer(operand)
    grad = torch.randn_like(output)
    (golden,) = torch.autograd.grad(output, layer.bias, grad)
    with emulated(BF16):
        (result,) = torch.autograd.grad(layer(operand), layer.bias, grad)
    assert torch.allclose(result, golden, rtol=1e-6, atol=1e-6)


def test_fp16_overflows_as_a_cast_does() -> None:
    with emulated(FP16):
        assert (torch.full((1, 1), 65520.0) @ torch.ones(1, 1)).item() == math.inf
        assert (torch.full((1, 1), 65519.0) @ torch.full((1, 1), 2.0**-26)).item() == 0
        assert (torch.full((1, 1), 2.0**-24) @ torch.ones(1, 1)).item() == 2.0**-24


# What hides its products


def hand_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    precision: Precision,
    mask: Any,
    causal: bool,
) -> torch.Tensor:
    """In float64, with the operands of both products rounded, and gradients passing that
    unchanged."""

    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
            return rounded_operands(tensor.float(), precision).double()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return grad

    class RoundGrad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return rounded_operands(grad.float(), precision).double()

    repeats = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(repeats, 1) for tensor in (key, value))
    root = query.shape[-1] ** -0.25
    scores = RoundGrad.apply(Round.apply(query * root) @ Round.apply(key * root).mT)
    if causal:
        scores = scores.masked_fill(
            ~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf
        )
    if mask is not None:
        scores = scores + mask
    return RoundGrad.apply(Round.apply(scores.softmax(-1)) @ Round.apply(value))  # type: ignore[no-any-return]


@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("masking", ["none", "causal", "mask"])
@pytest.mark.parametrize("backend", [None, SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_attention(heads: int, masking: str, backend: SDPBackend | None) -> None:
    torch.manual_seed(0)
    operands = [torch.randn(2, count, 24, 16, requires_grad=True) for count in (4, heads, heads)]
    mask = torch.randn(24, 24) if masking == "mask" else None
    options: dict[str, Any] = {
        "attn_mask": mask,
        "is_causal": masking == "causal",
        "enable_gqa": heads == 2,
    }
    wide = [operand.detach().double().requires_grad_() for operand in operands]
    golden = hand_attention(*wide, BF16, mask, masking == "causal")  # type: ignore[call-arg,arg-type]
    grad = torch.randn(golden.shape)
    plain = F.scaled_dot_product_attention(*operands, **options)
    with emulated(BF16) as emulation:
        if backend is None:
            output = F.scaled_dot_product_attention(*operands, **options)
        else:
            with sdpa_kernel(backend):
                output = F.scaled_dot_product_attention(*operands, **options)
        grads = torch.autograd.grad(output, operands, grad)
    assert relative(output, golden) < 1e-3 < relative(plain, golden)
    if backend is not SDPBackend.MATH:
        assert output.stride() == plain.stride()
    for result, other in zip(grads, torch.autograd.grad(golden, wide, grad.double()), strict=True):
        assert relative(result, other) < 1e-3
    assert not emulation.untouched


def test_attention_with_no_key_to_look_at_and_a_backward_after_the_context() -> None:
    torch.manual_seed(0)
    query = torch.randn(1, 2, 5, 8, requires_grad=True)
    mask = torch.zeros(5, 5)
    mask[2] = -math.inf
    plain = F.scaled_dot_product_attention(query, query, query, mask)
    (golden,) = torch.autograd.grad(plain.sum(), query)
    with emulated(TF32):
        output = F.scaled_dot_product_attention(query, query, query, mask)
        (inside,) = torch.autograd.grad(output.sum(), query, retain_graph=True)
    (outside,) = torch.autograd.grad(output.sum(), query)
    assert output[0, :, 2].eq(plain[0, :, 2]).all()
    assert relative(inside, golden) < 1e-2
    assert relative(outside, golden) < 1e-2


def test_attention_with_a_negative_scale() -> None:
    torch.manual_seed(0)
    query = torch.randn(1, 2, 5, 8, requires_grad=True)
    (golden,) = torch.autograd.grad(
        F.scaled_dot_product_attention(query, query, query, scale=-0.3).square().sum(), query
    )
    with emulated(TF32):
        (result,) = torch.autograd.grad(
            F.scaled_dot_product_attention(query, query, query, scale=-0.3).square().sum(), query
        )
    assert 1e-6 < relative(result, golden) < 2e-3


def test_attention_with_dropout() -> None:
    operands = torch.randn(3, 2, 2, 9, 8)
    with emulated(HF32) as emulation:
        torch.manual_seed(1)
        output = F.scaled_dot_product_attention(*operands, dropout_p=0.5)
    torch.manual_seed(1)
    assert relative(output, F.scaled_dot_product_attention(*operands, dropout_p=0.5)) < 1e-3
    assert emulation.counts["bmm"] == 2


#: Modules, what they are given, and how many products their forward has.
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...], int]] = {
    "LSTM": (lambda: nn.LSTM(8, 8), ((5, 2, 8),), 6),
    "LSTM both ways": (
        lambda: nn.LSTM(8, 8, 2, bidirectional=True, batch_first=True, proj_size=4),
        ((2, 5, 8),),
        44,
    ),
    "GRU": (lambda: nn.GRU(8, 8), ((5, 2, 8),), 6),
    "RNN": (lambda: nn.RNN(8, 8), ((5, 2, 8),), 6),
    "LSTMCell": (lambda: nn.LSTMCell(8, 8), ((2, 8),), 2),
    "GRUCell": (lambda: nn.GRUCell(8, 8), ((2, 8),), 2),
    "Bilinear": (lambda: nn.Bilinear(8, 8, 3), ((2, 8), (2, 8)), 2),
    "MultiheadAttention": (
        lambda: nn.MultiheadAttention(8, 2),
        ((5, 2, 8), (5, 2, 8), (5, 2, 8)),
        4,
    ),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        ((2, 5, 8),),
        6,
    ),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
        ((2, 5, 8),),
        12,
    ),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16),
        ((5, 2, 8), (4, 2, 8)),
        10,
    ),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("inference", [False, True])
def test_modules(name: str, inference: bool) -> None:
    make, shapes, products = MODULES[name]
    torch.manual_seed(0)
    module = make().eval()
    operands = [torch.randn(shape) for shape in shapes]

    def first(wide: bool = False) -> torch.Tensor:
        output = (module.double() if wide else module)(
            *(operand.double() if wide else operand for operand in operands)
        )
        return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]

    with emulated(BF16) as emulation, torch.inference_mode(inference):
        output = first()
    assert sum(emulation.counts[each] for each in ("mm", "bmm", "addmm", "baddbmm")) >= products
    assert not emulation.untouched
    if not inference:
        golden = torch.autograd.grad(first().sum(), list(module.parameters()))
        with emulated(BF16) as emulation:
            results = torch.autograd.grad(first().sum(), list(module.parameters()))
        assert (
            sum(emulation.counts[each] for each in ("mm", "bmm", "addmm", "baddbmm"))
            >= 2 * products
        )
        assert all(
            torch.allclose(result, other, rtol=0.1, atol=0.1)
            for result, other in zip(results, golden, strict=True)
        )
    assert 1e-4 < relative(output, first(wide=True)) < 2e-2


def test_lstm_of_a_packed_sequence() -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(4, 4)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 4), torch.tensor([5, 3]))
    with emulated(BF16) as emulation:
        output = lstm(packed)[0].data
    assert 1e-4 < relative(output, lstm(packed)[0].data) < 2e-2
    assert emulation.counts["addmm"] >= 6
    assert torch.backends.mkldnn.enabled == torch._C._get_mkldnn_enabled()


def test_cdist() -> None:
    a, b = (operand.detach() for operand in two(((30, 8), (30, 8))))
    with emulated(BF16) as emulation:
        assert (
            relative(
                torch.cdist(a, b), torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
            )
            > 1e-4
        )
        assert emulation.counts == {"mm": 1}
    assert not emulation.untouched


def test_pinv_is_a_product_at_its_end() -> None:
    with emulated(BF16) as emulation:
        torch.linalg.pinv(torch.eye(3) * 1.001)
    assert emulation.counts == {"mm": 1}


# What is left alone


def test_everything_else_is_bit_for_bit_the_same() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 8)
    functions: list[Callable[[], torch.Tensor]] = [
        lambda: F.layer_norm(x, (8,)).softmax(-1),
        lambda: F.gelu(x) * x.exp() + x.cumsum(0),
        lambda: F.group_norm(x, 2),
        lambda: F.batch_norm(x, None, None, training=True),
        lambda: F.embedding(torch.arange(4), x[0]),
        lambda: F.interpolate(x, scale_factor=2, mode="linear"),
        lambda: F.max_pool1d(x, 2) + F.avg_pool1d(x, 2),
        lambda: torch.outer(x[0, 0], x[0, 1]).addr(x[0, 0], x[0, 1]),
        lambda: torch.fft.rfft(x).abs(),
        lambda: torch.cdist(x, x),
        lambda: torch.linalg.vecdot(x, x + 1),
        lambda: F.mse_loss(x, x.flip(0)),
        lambda: x.sort(-1).values.sum(1),
        lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)).weight,
    ]
    for function in functions:
        for inference in (False, True):
            torch.manual_seed(1)
            golden = function()
            with emulated(BF16) as emulation, torch.inference_mode(inference):
                torch.manual_seed(1)
                assert torch.equal(function(), golden)
            assert not emulation.counts
            assert not emulation.untouched


def test_products_that_are_left_alone_are_named() -> None:
    x = torch.randn(4, 4)
    plain: dict[str, Callable[[], torch.Tensor]] = {
        "mm of float64": lambda: x.double() @ x.double(),
        "mm of bfloat16": lambda: x.bfloat16() @ x.bfloat16(),
        "mm of complex64": lambda: x.cfloat() @ x.cfloat(),
        "dot of float32": lambda: x[0].dot(x[1]),
        "linalg_matrix_exp of float32": lambda: torch.linalg.matrix_exp(x),
        "convolution of float16": lambda: F.conv1d(x.half()[None], x.half()[:, :, None]),
        "_scaled_dot_product_flash_attention_for_cpu of float64": lambda: (
            F.scaled_dot_product_attention(*x.double().expand(3, 1, 1, 4, 4))
        ),
        "_sparse_mm of a sparse, nested or foreign tensor": lambda: torch.sparse.mm(
            x.to_sparse(), x
        ),
    }
    for name, function in plain.items():
        golden = function()
        with emulated(BF16) as emulation:
            assert torch.equal(function(), golden), name
        assert not emulation.counts
        assert name.startswith("_sparse") or emulation.untouched == {name}
        assert len(emulation.untouched) == 1
    with emulated(BF16) as emulation, torch.inference_mode():
        F.linear(x.double(), x.double())
    assert emulation.untouched == {"mm of float64"}


def test_own_operators_are_looked_into() -> None:
    @torch.library.custom_op("accucompare_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    @torch.library.custom_op("accucompare_test::flash_attn", mutates_args=())
    def flash_attn(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x = torch.randn(4, 4)
    golden = rounded_operands(x, BF16) @ rounded_operands(x, BF16)
    with emulated(BF16) as emulation:
        assert torch.equal(twice(x), golden)
        assert torch.equal(flash_attn(x), x * 2)
    assert emulation.counts == {"mm": 1}
    assert emulation.untouched == {"accucompare_test::flash_attn of float32"}


# In company


@pytest.mark.parametrize("inference", [False, True])
def test_autocast_decides_first(inference: bool) -> None:
    x = torch.randn(2, 3, 4)
    layer = nn.Linear(4, 4)
    functions: list[Function] = [
        layer,
        lambda x: torch.einsum("bij,bkj->bik", x, x),
        lambda x: x @ x.mT,
        lambda x: torch.linalg.norm(x, dim=-1),
    ]
    for function in functions:
        with torch.autocast("cpu"), torch.inference_mode(inference):
            golden = function(x)
            with emulated(TF32) as emulation:
                output = function(x)
        assert output.dtype == golden.dtype
        assert torch.equal(output, golden)
        assert not emulation.counts


def test_checkpointing_recomputes_the_same() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    x = torch.randn(4, 8, requires_grad=True)
    with emulated(BF16) as emulation:
        (golden,) = torch.autograd.grad(block(x).square().sum(), x)
        before = emulation.counts.total()
        for reentrant in (False, True):
            output = checkpoint(block, x, use_reentrant=reentrant)
            (result,) = (
                torch.autograd.grad(output.square().sum(), x)
                if not reentrant
                else (backward(output, x),)
            )
            assert torch.equal(result, golden)
        assert emulation.counts.total() > 2 * before + 2


def backward(output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    output.square().sum().backward()
    assert x.grad is not None
    return x.grad


def test_a_backward_after_the_context_is_plain() -> None:
    a, b = two(((5, 7), (7, 3)))
    with emulated(BF16):
        output = a @ b
    (grad,) = torch.autograd.grad(output.sum(), a)
    assert torch.equal(grad, torch.ones(5, 3) @ b.T)


def test_inside_torch_func() -> None:
    a, b = (operand.detach() for operand in two(((6, 5, 7), (6, 7, 3))))
    with emulated(BF16):
        assert (
            relative(
                torch.vmap(torch.mm)(a, b), rounded_operands(a, BF16) @ rounded_operands(b, BF16)
            )
            < 1e-6
        )
        grad = torch.func.grad(lambda a: (a @ b).sum())(a)
    assert relative(grad, torch.ones(6, 5, 3) @ rounded_operands(b, BF16).mT) < 1e-6


def test_inside_a_tensor_subclass() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    a, b = (operand.detach() for operand in two(((5, 7), (7, 3))))
    with emulated(BF16) as emulation:
        product = TwoTensor(a, a) @ TwoTensor(b, b)
    assert torch.equal(product.a, rounded_operands(a, BF16) @ rounded_operands(b, BF16))
    assert emulation.counts == {"mm": 2}


@pytest.mark.parametrize("outer", ["emulated", "matched_randomness"])
@pytest.mark.parametrize("inference", [False, True])
def test_random_numbers_are_matched_in_either_order(outer: str, inference: bool) -> None:
    x = torch.randn(3, 2, 2, 9, 8)

    def run() -> list[torch.Tensor]:
        with torch.inference_mode(inference):
            dropped = F.dropout(torch.ones(100), 0.5)
            return [
                torch.randn(3),
                torch.randint(9, (4,)),
                torch.randperm(9),
                dropped,
                F.scaled_dot_product_attention(*x, dropout_p=0.5),
                torch.rand(5),
                F.dropout(x, 0.2) @ x.mT,
            ]

    torch.manual_seed(0)
    with matched_randomness(7) as alone:
        golden = run()
    state = torch.get_rng_state()
    torch.manual_seed(0)
    if outer == "emulated":
        with emulated(HF32), matched_randomness(7) as draws:
            results = run()
    else:
        with matched_randomness(7) as draws, emulated(HF32):
            results = run()
    assert alone is not None
    assert draws is not None
    assert draws.count == alone.count == 7
    assert torch.equal(torch.get_rng_state(), state)
    assert all(
        relative(result, other) < 1e-3 for result, other in zip(results, golden, strict=True)
    )
    assert not torch.equal(results[-1], golden[-1])


def test_settings_are_restored_when_the_model_raises() -> None:
    def fail() -> Emulation:
        with emulated(HF32) as emulation:
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        return emulation

    with pytest.raises(RuntimeError, match="shapes"):
        fail()
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


# What it is for


def test_the_expected_error_of_each_layer_of_gpt2() -> None:
    torch.manual_seed(0)
    case = gpt2.case()
    model = case.model

    def outputs() -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        hooks = [
            module.register_forward_hook(
                lambda _module, _args, output, name=name: found.__setitem__(name, output)
            )
            for name, module in model.named_modules()
            if name.endswith(("c_attn", "c_proj", "c_fc", "lm_head"))
        ]
        with torch.no_grad():
            model(**case.inputs)
        for hook in hooks:
            hook.remove()
        return found

    captured = {}
    for precision in Precision:
        with emulated(precision) as emulation:
            captured[precision] = outputs()
        assert emulation.counts["addmm"] == 12
        assert not emulation.untouched
    model.double()
    golden = outputs()
    for name in golden:
        errors = {
            precision: relative(captured[precision][name], golden[name]) for precision in Precision
        }
        assert 2.0**-13.5 < errors[HF32] < 2.0**-10
        assert 1.7 < errors[TF32] / errors[HF32] < 2.3
        assert 6.5 < errors[BF16] / errors[TF32] < 9.5
        assert errors[FP16] == pytest.approx(errors[TF32], rel=0.15)


# All results


def test_results_are_rounded_where_they_are_made_and_views_and_positions_are_not() -> None:
    weight = torch.tensor([1.001, 299.0], requires_grad=True)
    with RoundedResults("bfloat16"):
        positions = torch.arange(300).float()
        view = weight.view(2)
        product = weight * 1.001
        product.sum().backward()
        summed = torch.tensor([1.001, 299.0]).add_(torch.zeros(2))
    assert positions[299] == 299
    assert torch.equal(view, weight)
    for made in (product, summed, weight.grad):
        assert torch.equal(made, made.bfloat16().float())
    assert product[1] == 300
