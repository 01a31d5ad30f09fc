"""Sketches that a device makes, on the CPU in its place: beside those of the host."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import accucompare as ac
from accucompare.bundle.format.manifest import Manifest
from accucompare.bundle.writing.record_file import Sketched
from accucompare.bundle.writing.writer import BundleWriter
from accucompare.devices.cpu import Cpu
from accucompare.live.values import device_sketch
from accucompare.live.values.device_sketch import _ROUNDING, begin_sketch, can_sketch
from accucompare.live.values.tensors import to_host
from accucompare.numbers.dtypes import DTYPES
from accucompare.numbers.sketch import SKETCH_BLOCK, TABLES, sketch_of
from accucompare.numbers.statistics import summarize
from accucompare.numbers.sums import Float64
from accucompare.selection import Mode
from tests.compare.builder import item

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
KINDS = [
    ("float64", "float64"),
    ("float32", "float64"),
    ("bfloat16", "float64"),
    ("float16", "float64"),
    ("bfloat16", "float32"),
    ("float16", "float32"),
]
DRAW = np.random.default_rng(0)


def drawn(count: int, dtype: str) -> torch.Tensor:
    return torch.from_numpy(DRAW.standard_normal(count) * 3 + 1).to(getattr(torch, dtype))


def made(tensor: torch.Tensor, summed_in: str, run: int = 4 * TABLES * SKETCH_BLOCK) -> Sketched:
    packed, unpack = begin_sketch(tensor, 256, summed_in, run)
    assert packed.nbytes < 2200  # all that leaves the device
    return unpack(packed.numpy())


def sketch_on_host(tensor: torch.Tensor) -> Float64:
    dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
    raw = tensor.contiguous().view(BITS[tensor.element_size()]).numpy().view(dtype.storage)
    found = sketch_of(raw, dtype, summarize(raw, dtype), 256)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "count",
    [300, SKETCH_BLOCK - 1, SKETCH_BLOCK, SKETCH_BLOCK + 1, (TABLES + 1) * SKETCH_BLOCK + 7],
)
@pytest.mark.parametrize(("dtype", "summed_in"), KINDS)
def test_it_is_that_of_the_host(dtype: str, summed_in: str, count: int) -> None:
    tensor = drawn(count, dtype)
    found, values = made(tensor, summed_in), tensor.double().tolist()
    l2 = math.sqrt(math.fsum(value * value for value in values))
    off = _ROUNDING if summed_in == "float32" else 1e-14
    assert found.sketch is not None
    assert np.linalg.norm(found.sketch - sketch_on_host(tensor)) <= off * l2
    statistics = found.statistics
    assert (statistics.min, statistics.max, statistics.nan, statistics.inf) == (
        min(values),
        max(values),
        0,
        0,
    )
    assert statistics.l2 == pytest.approx(l2, rel=off)
    assert statistics.mean == pytest.approx(
        math.fsum(values) / count, abs=off * math.fsum(map(abs, values)) / count
    )
    assert statistics.rounding == (_ROUNDING if summed_in == "float32" else 0.0)


@pytest.mark.parametrize("summed_in", ["float64", "float32"])
def test_nan_and_inf_are_counted_and_left_out(summed_in: str) -> None:
    tensor = drawn(3000, "bfloat16")
    tensor[5], tensor[7], tensor[2999] = math.nan, math.inf, -math.inf
    finite = tensor.nan_to_num(0.0, 0.0, 0.0)
    found, statistics = made(tensor, summed_in), made(tensor, summed_in).statistics
    assert (statistics.nan, statistics.inf) == (1, 2)
    assert statistics.mean == pytest.approx(math.fsum(finite.double().tolist()) / 2997, rel=1e-5)
    np.testing.assert_array_equal(found.sketch, made(finite, summed_in).sketch)
    nothing = made(torch.full((3000,), math.nan, dtype=torch.bfloat16), summed_in).statistics
    assert (nothing.min, nothing.mean, nothing.l2, nothing.nan) == (None, None, 0.0, 3000)


@pytest.mark.parametrize(
    ("dtype", "summed_in", "factor"),
    [
        ("float64", "float64", 1e300),
        ("float64", "float64", 1e-300),
        ("bfloat16", "float32", 1e37),
        ("bfloat16", "float32", 1e-37),
    ],
)
def test_magnitudes_whose_squares_are_beyond_the_type_are_scaled(
    dtype: str, summed_in: str, factor: float
) -> None:
    tensor = (torch.from_numpy(DRAW.standard_normal(5000)) * factor).to(getattr(torch, dtype))
    found = made(tensor, summed_in)
    assert found.sketch is not None
    assert found.statistics.l2 == pytest.approx(math.hypot(*tensor.double().tolist()), rel=1e-5)
    assert np.linalg.norm((found.sketch - sketch_on_host(tensor)) / factor) <= 1e-3


def test_zeros_have_a_sketch_of_zeros() -> None:
    found = made(torch.zeros(5000, dtype=torch.bfloat16), "float32")
    assert (found.statistics.min, found.statistics.l2) == (0.0, 0.0)
    assert not np.any(found.sketch)


@given(
    blocks=st.integers(1, 5),
    rest=st.integers(0, SKETCH_BLOCK - 1),
    run=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_digest_and_sketch_are_those_of_the_content_however_it_lies_and_is_cut(
    blocks: int, rest: int, run: int, seed: int
) -> None:
    count = blocks * SKETCH_BLOCK + rest
    tensor = torch.randn(2, count, generator=torch.Generator().manual_seed(seed)).t()[:, 1]
    whole, cut = made(tensor, "float64"), made(tensor.clone(), "float64", run * SKETCH_BLOCK)
    assert (whole.digest, whole.statistics.max) == (cut.digest, cut.statistics.max)
    assert whole.sketch is not None
    np.testing.assert_allclose(cut.sketch, whole.sketch, rtol=0, atol=1e-10)
    other = tensor.clone()
    other.view(torch.int32)[seed * 37 % count] ^= 1 << seed % 32
    assert made(other, "float64").digest != whole.digest


def test_only_half_types_are_added_up_in_float32_and_nothing_where_the_host_does_it() -> None:
    assert [
        name
        for name in ("float64", "float32", "bfloat16", "float16", "int32")
        if can_sketch(drawn(1, name), "float32")
    ] == ["bfloat16", "float16"]
    assert not can_sketch(drawn(1, "int32"), "float64")
    assert not can_sketch(drawn(1, "float32"), None)


def test_for_sketches_no_values_of_large_tensors_are_copied_unless_their_bytes_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what does not lie in the host's memory as it is, a device would be asked for
    monkeypatch.setattr(Cpu, "SKETCHES_IN", "float64")
    writer = BundleWriter(tmp_path / "b", Manifest(complete=True), mode=Mode.SKETCH)
    tensor, small = torch.randn(600, 500).t(), torch.randn(500, 500).t()
    there = to_host(tensor, writer)
    assert (there.array, there.shape, there.dtype) == (None, (500, 600), "float32")
    assert there.sketched is not None
    assert there.lease is not None
    assert len(there.lease.block) < 2400
    assert there.sketched().digest == made(tensor, "float64").digest
    for kept in (
        to_host(tensor, writer, needed=True),
        to_host(small, writer),
        to_host(tensor.int(), writer),
    ):
        assert kept.array is not None
        assert kept.sketched is None
    there.lease.release()
    writer.close()


def test_a_tensor_is_copied_where_the_device_cannot_make_a_sketch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(Cpu, "SKETCHES_IN", "float64")
    monkeypatch.setattr(device_sketch, "begin_sketch", out_of_memory)
    writer = BundleWriter(tmp_path / "b", Manifest(complete=True), mode=Mode.SKETCH)
    tensor = torch.randn(600, 500).t()
    host = to_host(tensor, writer)
    assert host.lease is not None
    np.testing.assert_array_equal(host.array, tensor.numpy())
    host.lease.release()
    writer.close()


@pytest.fixture
def both(tmp_path: Path) -> ac.Comparison:
    """One bfloat16 tensor, sketched by the host and by a device that adds up in float32."""
    tensor = drawn(5 * SKETCH_BLOCK, "bfloat16")
    raw = tensor.view(torch.int16).numpy().view(DTYPES["bfloat16"].storage)
    for name in ("golden", "candidate"):
        facts = {"mode": "sketch", "sketch": {"version": 1, "size": 256}}
        writer = BundleWriter(
            tmp_path / name,
            Manifest(complete=True, capture=facts, model={"sources": {}}),
            mode=Mode.SKETCH,
        )
        record = item(
            "fc", layout="strided", dtype="bfloat16", shape=tuple(tensor.shape), parent=None
        ).record
        if name == "golden":
            writer.add(record, raw)
        else:
            writer.add(record, None, sketched=lambda: made(tensor, "float32"))
        writer.end_step(0)
        writer.close()
    return ac.diff(tmp_path / "golden", tmp_path / "candidate", limits=ac.Tolerance(rel_l2=1e-12))


def test_what_a_device_rounds_is_no_difference(both: ac.Comparison) -> None:
    (row,) = both.rows
    assert row.metrics is not None
    assert row.by_sketch
    assert both.passed
    assert row.metrics.rel_l2 == 0.0


def test_a_digest_of_a_device_says_nothing_beside_one_of_bytes(both: ac.Comparison) -> None:
    assert both.rows[0].same_bits is None
    assert both.identical_until is None


def test_weights_and_data_of_a_training_are_digested_by_their_bytes_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests, norms = [], []
    for summed_in in (None, "float64"):
        monkeypatch.setattr(Cpu, "SKETCHES_IN", summed_in)
        torch.manual_seed(0)
        model, x = nn.Linear(600, 500, bias=False), torch.randn(500, 600)
        model.weight = nn.Parameter(torch.randn(600, 500).t())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ac.capture(
            model, tmp_path / "b", overwrite=True, record="sketch", loop=optimizer
        ) as session:
            model(x.t().contiguous().t()).sum().backward()
            optimizer.step()
            session.step()
        with ac.open_bundle(tmp_path / "b") as bundle:
            (step,) = bundle.manifest.series
            digests.append((step.batch, step.weights))
            norms.append(step.grad_norm)
            made_there = {
                record.role.value
                for record in bundle.records()
                if str(record.digest).startswith("device:")
            }
    assert "param_grad" in made_there
    assert digests[0] == digests[1]
    assert norms[0] == pytest.approx(norms[1], rel=1e-14)


@pytest.mark.parametrize(("dtype", "summed_in"), [("bfloat16", "float32"), ("float64", "float64")])
def test_a_device_that_takes_subnormal_numbers_for_zero_sketches_the_largest_values(
    dtype: str, summed_in: str
) -> None:
    """A mask's smallest bfloat16 was multiplied by a scale that such a device rounds to zero, and
    then divided by it.
    """
    tensor = drawn(SKETCH_BLOCK, dtype)
    tensor[7] = torch.finfo(tensor.dtype).min
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        found = made(tensor, summed_in)
    finally:
        torch.set_flush_denormal(False)
    assert found.statistics.min == torch.finfo(tensor.dtype).min
    assert found.statistics.l2 == pytest.approx(-torch.finfo(tensor.dtype).min, rel=_ROUNDING)
