"""The extrema of tensors, against NumPy in float64."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accucompare.watcher.looking.extrema import Extrema, Meter, look_now, norm_now
from tests.watcher.watched import Counting

NAN, INF = float("nan"), float("inf")
FLOATS = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
]  # fmt: skip
COMPLEX = [torch.complex128, torch.complex64]

#: How a tensor lies in memory, with the same values, or some of them.
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda x: x,
    "transposed": lambda x: x.transpose(0, -1),
    "every other": lambda x: x[::2],
    "expanded": lambda x: x.unsqueeze(0).expand(3, *x.shape),
    "expanded in the middle": lambda x: x.unsqueeze(1).expand(x.shape[0], 2, *x.shape[1:]),
    "one row": lambda x: x[0],
    "none": lambda x: x[:0],
}
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    NAN,
    INF,
    -INF,
    65504.0,
    65520.0,
    6e-8,
    -6e-8,
    1e-40,
    1e-310,
    448.0,
    57344.0,
    3.4e38,
    -1e38,
]


def _values(x: torch.Tensor) -> Any:
    """As NumPy's float64; every type's values are among those."""
    real = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return real.to(torch.float64).numpy()


def _same(one: float, other: float) -> bool:
    return (math.isnan(one) and math.isnan(other)) or one == other


@given(
    dtype=st.sampled_from(FLOATS + COMPLEX),
    shape=st.sampled_from([(1,), (5,), (2, 3), (3, 1, 4), (1, 1)]),
    view=st.sampled_from(list(VIEWS)),
    data=st.data(),
)
def test_extrema_and_counts_are_those_of_numpy(
    dtype: torch.dtype, shape: tuple[int, ...], view: str, data: st.DataObject
) -> None:
    size = math.prod(shape)
    drawn = data.draw(
        st.lists(st.sampled_from(SPECIAL) | st.floats(-1e4, 1e4), min_size=size, max_size=size)
    )
    x = VIEWS[view](torch.tensor(drawn, dtype=torch.float64).reshape(shape).to(dtype))
    extrema = look_now(x)
    right = _values(x)
    if right.size == 0:
        assert extrema is None
        return
    assert extrema is not None
    assert (extrema.dtype, extrema.shape) == (str(dtype).removeprefix("torch."), tuple(x.shape))
    assert _same(extrema.low, float(right.min()))
    assert _same(extrema.high, float(right.max()))
    assert extrema.abs_min is not None
    assert _same(extrema.abs_min, float(np.abs(right).min()))
    seen = extrema.range_of("output", "")
    assert (seen.nan, seen.inf) == (np.isnan(right).sum(), np.isinf(right).sum())
    assert extrema.finite == bool(np.isfinite(right).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_shares_of_zeros_and_subnormals_are_those_of_all_elements(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    x = torch.tensor([0.0, -0.0, tiny / 2, -tiny / 4, tiny, -tiny, 1.0, 0.5], dtype=dtype)
    extrema = _looked(x)
    assert (extrema.zero, extrema.subnormal) == (0.25, 0.25)


def _looked(x: torch.Tensor, **what: bool) -> Extrema:
    meter = Meter()
    extrema = meter.look(x, **(what or {"underflow": True}))
    meter.fetch()
    assert extrema is not None
    return extrema


@pytest.mark.parametrize(
    "shape", [(4096, 64), (64, 64, 64), (4096, 4096), (8, 100_003), (3, 4096, 128)], ids=str
)
@pytest.mark.parametrize("column", [0, 1, -1])
def test_the_sample_is_spread_over_rows_and_columns(shape: tuple[int, ...], column: int) -> None:
    x = torch.ones(shape, dtype=torch.bfloat16)
    x[..., column] = 1e-40
    assert _looked(x).subnormal == pytest.approx(1 / shape[-1], abs=0.02)


def test_an_expanded_tensor_is_not_written_out() -> None:
    huge = torch.tensor([[1.0], [-2.0]]).expand(2, 1 << 40)  # 8 TiB, if it were
    extrema = _looked(huge, frames=True, underflow=True)
    assert (extrema.low, extrema.high, extrema.abs_min, extrema.zero) == (-2.0, 1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(3),
        torch.tensor([True]),
        torch.empty(0),
        torch.ones(2, device="meta"),
        "text",
        3,
        None,
        2j,
    ],
    ids=lambda x: str(x).replace("\n", ""),
)
def test_what_cannot_be_other_than_finite_is_not_looked_at(x: Any) -> None:
    assert Meter().look(x) is None


@pytest.mark.parametrize(("value", "nan", "inf"), [(1.5, 0, 0), (NAN, 1, 0), (-INF, 0, 1)])
def test_a_python_number_is_looked_at(value: float, nan: int, inf: int) -> None:
    extrema = look_now(value)
    assert extrema is not None
    assert _same(extrema.low, value)
    assert (extrema.nan, extrema.inf, extrema.dtype) == (nan, inf, "float64")


@pytest.mark.filterwarnings("ignore::UserWarning")  # these layouts are said to be new
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.to_sparse(), lambda x: x.to_sparse_csr(), lambda x: x.to_mkldnn(),
        lambda x: torch.nested.nested_tensor([x, x * 2]),
        lambda x: torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.5, 1.5]),
        (2, 2)),
    ],
    ids=["sparse", "csr", "oneDNN", "nested", "sparse, not coalesced"],
)  # fmt: skip
def test_other_layouts_are_looked_at(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    extrema = look_now(make(torch.tensor([[1.0, 2.0], [3.0, 1.0]])))
    assert extrema is not None
    assert extrema.high in (3.0, 6.0)


def test_a_type_with_two_numbers_in_a_byte_is_passed_over() -> None:
    if hasattr(torch, "float4_e2m1fn_x2"):
        assert look_now(torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)) is None


def test_nothing_is_read_through_the_dispatcher_until_it_is_asked_for() -> None:
    """Which would wait for a device; what lies in the host's memory is read past it."""
    meter, x = Meter(), torch.randn(3, 4)
    with Counting() as counting:
        extrema = meter.look(x, underflow=True)
        norms = meter.norm([x, x.half(), x * 1j])
    assert counting.reads == []
    assert extrema is not None
    meter.fetch()
    assert extrema.low == x.min()
    assert norms[0].low == pytest.approx(float(x.norm()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_numbers_of_every_floating_type_are_read_as_they_are(dtype: torch.dtype) -> None:
    x = torch.tensor([1.5, -3.0, 0.1], dtype=dtype)
    extrema = look_now(x)
    assert extrema is not None
    assert (extrema.low, extrema.high, extrema.abs_min) == (-3.0, 1.5, float(x[2].double()))


def test_a_tensor_is_looked_at_once_until_it_is_written_into() -> None:
    meter, x = Meter(), torch.ones(2)
    first = meter.look(x)
    assert meter.look(x) is first
    x.mul_(3)
    second = meter.look(x)
    meter.fetch()
    assert first is not None
    assert second is not None
    assert (first.high, second.high) == (1.0, 3.0)


def test_a_view_that_is_written_into_is_a_change_of_what_it_is_of() -> None:
    meter, x = Meter(), torch.ones(4)
    first = meter.look(x)
    x[1:2].fill_(NAN)
    assert meter.look(x) is not first


@pytest.mark.parametrize("first", [{"frames": True}, {"underflow": True}])
def test_what_was_not_asked_for_before_is_looked_for_again(first: dict[str, bool]) -> None:
    meter, x = Meter(), torch.tensor([0.0, 2.0])
    meter.look(x, **first)
    extrema = meter.look(x, frames=True, underflow=True)
    meter.fetch()
    assert extrema is not None
    assert (extrema.abs_min, extrema.zero) == (0.0, 0.5)


def test_a_tensor_of_inference_mode_is_looked_at_each_time() -> None:
    meter = Meter()
    with torch.inference_mode():
        x = torch.ones(2)
        first = meter.look(x)
        x.fill_(5.0)
        second = meter.look(x)
    meter.fetch()
    assert first is not None
    assert second is not None
    assert (first.high, second.high) == (1.0, 5.0)


def test_what_is_looked_at_in_inference_mode_and_outside_of_it_is_read_together() -> None:
    meter = Meter()
    with torch.inference_mode():
        first = meter.look(torch.full((2,), 1.0))
    second = meter.look(torch.full((2,), 2.0))
    meter.fetch()
    assert [each.low for each in (first, second) if each is not None] == [1.0, 2.0]


def test_more_is_read_than_one_row_of_numbers_holds() -> None:
    meter = Meter()
    tensors = [torch.full((2,), float(number)) for number in range(5000)]
    looked = [meter.look(tensor) for tensor in tensors]
    meter.fetch()
    assert [each.low for each in looked if each is not None] == [
        float(number) for number in range(5000)
    ]


def test_until_it_is_read_no_tensor_is_kept_for_each_that_was_looked_at() -> None:
    meter, tensors = Meter(), [torch.ones(2) for _ in range(100)]
    gc.collect()
    before = sum(type(each) is torch.Tensor for each in gc.get_objects())
    for tensor in tensors:
        meter.look(tensor, frames=True, underflow=True)
    assert sum(type(each) is torch.Tensor for each in gc.get_objects()) < before + 10


def test_looking_changes_nothing() -> None:
    x = torch.tensor([1.0, NAN, -0.0], requires_grad=True)
    version, bits = x._version, x.detach().view(torch.int32).tolist()
    state = torch.get_rng_state()
    look_now(x)
    assert (x._version, x.detach().view(torch.int32).tolist(), x.grad_fn, x.grad) == (
        version,
        bits,
        None,
        None,
    )
    assert torch.equal(torch.get_rng_state(), state)


def test_a_conjugated_view_is_looked_at() -> None:
    extrema = look_now(torch.tensor([1 + 2j, -3 + 4j]).conj())
    assert extrema is not None
    assert (extrema.low, extrema.high) == (-4.0, 1.0)


def test_a_negated_view_is_looked_at() -> None:
    extrema = look_now(torch.tensor([1 + 2j, -3 + 4j]).conj().imag)
    assert extrema is not None
    assert (extrema.low, extrema.high) == (-4.0, -2.0)


@given(
    dtype=st.sampled_from(FLOATS + COMPLEX),
    values=st.lists(st.floats(-400, 400, width=16), min_size=1, max_size=20),
)
def test_norms_are_those_of_float64(dtype: torch.dtype, values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64).to(dtype)
    right = _values(x)
    got = norm_now(x)
    if np.isfinite(right).all():
        assert got == pytest.approx(float(np.linalg.norm(right.ravel())), rel=1e-5, abs=1e-6)
    else:
        assert not math.isfinite(got)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_norm_of_what_is_not_finite_is_not(dtype: torch.dtype, bad: float) -> None:
    assert not math.isfinite(norm_now(torch.tensor([1.0, bad, 2.0], dtype=dtype)))


def test_the_norm_of_half_types_does_not_overflow() -> None:
    assert norm_now(torch.full((10_000,), 60000.0, dtype=torch.float16)) == pytest.approx(
        6e6, rel=1e-5
    )


def test_the_norm_of_nothing_is_0() -> None:
    assert norm_now(torch.empty(0)) == 0.0


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_the_norm_of_a_sparse_gradient_sums_what_is_in_one_place() -> None:
    x = torch.sparse_coo_tensor(torch.tensor([[1, 1, 2]]), torch.tensor([1.0, 2.0, 4.0]), (4,))
    assert norm_now(x) == pytest.approx(5.0)


@pytest.mark.parametrize("size", [9, 99_999])
@pytest.mark.parametrize("part", [slice(None), slice(2, None), slice(1, None, 2)])
def test_memory_that_was_given_back_is_not_looked_at(size: int, part: slice) -> None:
    tensor = torch.randn(size)[part]
    tensor.untyped_storage().resize_(0)
    assert look_now(tensor) is None
