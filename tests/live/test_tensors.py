"""Every kind of tensor comes back bit for bit, or is listed with the reason why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from accucompare.bundle.format.records import Layout
from accucompare.live.values.tensors import from_bits
from tests.recorded import Glue, Record, places

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FP8 = [
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e8m0fnu,
]
INTS = [
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


def random_bits(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Any bits at all: NaN payloads, infinities and subnormal numbers among them."""
    if dtype is torch.bool:
        return torch.randint(0, 2, shape).bool()
    octets = torch.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8)
    return octets.view(dtype)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    "dtype",
    [*FLOATS, *FP8, *INTS, torch.complex128, torch.complex64, torch.complex32, torch.bool],
    ids=str,
)
@pytest.mark.filterwarnings(
    "ignore:ComplexHalf", "ignore:invalid value"
)  # NumPy warns of signalling NaN
def test_every_dtype_is_kept_bit_for_bit(dtype: torch.dtype, record: Record) -> None:
    shapes = ((3, 8), (0, 2), ())
    tensors = [
        random_bits(dtype, 3, 8).reshape(-1)[: int(np.prod(shape))].reshape(shape)
        for shape in shapes
    ]
    bundle = record(nn.Identity(), tensors)
    for number, tensor in enumerate(tensors):
        assert tensor.untyped_storage().resizable()  # as FSDP resizes its parameters
        found = bundle.find("", path=str(number))
        back = from_bits(bundle.raw(found), found.dtype)
        assert (back.dtype, back.shape) == (dtype, tensor.shape)
        assert bits(back) == bits(tensor)


@pytest.mark.parametrize("dtype", [torch.bfloat16, *FP8], ids=str)
def test_types_that_numpy_lacks_are_loaded_as_their_exact_float32_values(
    dtype: torch.dtype, record: Record
) -> None:
    tensor = random_bits(dtype, 64)
    loaded = record(nn.Identity(), tensor).load("")
    assert loaded.dtype == np.float32
    np.testing.assert_array_equal(loaded, tensor.float().numpy())


BASE = torch.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "tensor",
    [
        BASE.transpose(0, 2),
        BASE[:, ::2, 1:3],
        BASE.flip(0)[1],
        torch.ones(3, 1).expand(3, 5),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(2, 2, dtype=torch.complex64).conj(),
        torch.randn(2, 2, dtype=torch.complex64).conj().imag,
        torch._neg_view(torch.randn(3)),
        torch.as_strided(torch.arange(6.0), (3, 3), (1, 1)),
        torch.randn(3, requires_grad=True),
    ],
    ids=[
        "transposed",
        "sliced",
        "selected",
        "expanded",
        "channels_last",
        "conj",
        "conj_imag",
        "neg",
        "overlapping",
        "requires_grad",
    ],
)
def test_every_way_of_holding_a_tensor_is_kept_by_value(
    tensor: torch.Tensor, record: Record
) -> None:
    bundle = record(nn.Identity(), tensor)
    np.testing.assert_array_equal(
        bundle.load(""), tensor.detach().resolve_conj().resolve_neg().numpy()
    )


def test_a_non_contiguous_bfloat16_tensor(record: Record) -> None:
    tensor = torch.randn(4, 6, dtype=torch.bfloat16).t()
    np.testing.assert_array_equal(record(nn.Identity(), tensor).load(""), tensor.float().numpy())


def test_an_mkldnn_tensor_is_kept_by_value(record: Record) -> None:
    tensor = torch.randn(2, 3)
    np.testing.assert_array_equal(
        record(nn.Identity(), tensor.to_mkldnn()).load(""), tensor.numpy()
    )


def sparse_csr() -> torch.Tensor:
    return torch.eye(3).to_sparse_csr()


def fake() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(torch.ones(2, 3))


LISTED = {
    "coo": (lambda: torch.eye(3).to_sparse(), Layout.SPARSE, (3, 3), "float32"),
    "csr": (sparse_csr, Layout.SPARSE, (3, 3), "float32"),
    "meta": (lambda: torch.ones(2, 3, device="meta"), Layout.META, (2, 3), "float32"),
    "fake": (fake, Layout.META, (2, 3), "float32"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8),
        Layout.QUANTIZED,
        (2, 3),
        "qint8",
    ),
}


@pytest.mark.parametrize("kind", LISTED)
@pytest.mark.filterwarnings("ignore:.*(prototype|beta state|quantiz)", "ignore::DeprecationWarning")
def test_a_tensor_without_plain_data_is_listed(kind: str, record: Record) -> None:
    make, layout, shape, dtype = LISTED[kind]
    tensor = make()
    results: list[Any] = []
    model = nn.Identity()
    model.register_forward_hook(lambda module, args, output: results.append(output))
    bundle = record(model, tensor)
    assert results[0] is tensor
    assert bundle.complete
    assert [
        (entry.layout, entry.shape, entry.dtype, entry.member) for entry in bundle.records()
    ] == [(layout, shape, dtype, None)] * 2


def test_tensors_inside_vmap_are_listed_and_the_result_is_unharmed(record: Record) -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    outer = Glue(lambda self, x: torch.func.vmap(self.fc)(x), fc=model)
    bundle = record(outer, x)
    assert {entry.layout for entry in bundle.records() if entry.name == "fc"} == {Layout.BATCHED}
    np.testing.assert_allclose(bundle.load(""), model(x).detach().numpy(), atol=1e-6)
    assert bundle.complete


def test_tensors_inside_a_function_transform_are_recorded_or_listed_and_the_gradient_is_unharmed(
    record: Record,
) -> None:
    model, x = nn.Linear(3, 1), torch.randn(3)

    def forward(self: nn.Module, x: torch.Tensor) -> Any:
        return torch.func.grad(lambda x: self.fc(x).sum())(x)

    bundle = record(Glue(forward, fc=model), x)
    np.testing.assert_array_equal(bundle.load(""), model.weight[0].detach().numpy())
    assert places(bundle, "fc") == ["fc#0 input 0", "fc#0 output"]


def test_a_tensor_subclass_that_refuses_to_be_copied_is_listed_with_the_reason(
    record: Record,
) -> None:
    class Stubborn(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is torch.Tensor.detach:
                raise RuntimeError("not mine")
            return super().__torch_function__(function, types, args, kwargs or {})

    bundle = record(nn.Identity(), torch.ones(2).as_subclass(Stubborn))
    assert [(entry.layout, entry.detail) for entry in bundle.records()] == [
        (Layout.UNREADABLE, "RuntimeError: not mine")
    ] * 2


def test_a_dtype_that_bundles_do_not_know_is_listed(record: Record) -> None:
    bundle = record(nn.Identity(), torch.empty(2, dtype=torch.float4_e2m1fn_x2))
    assert {(entry.layout, entry.dtype, entry.shape) for entry in bundle.records()} == {
        (Layout.UNREADABLE, "float4_e2m1fn_x2", (2,))
    }


def test_equal_tensors_share_a_member(record: Record) -> None:
    bundle = record(nn.Sequential(nn.Identity(), nn.Identity()), torch.randn(5))
    assert len({entry.member for entry in bundle.records()}) == 1
