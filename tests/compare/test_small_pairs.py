"""Small pairs that are measured together have the metrics, the verdicts and the errors that they
have alone.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accucompare as ac
from accucompare.compare.judging import judging
from accucompare.compare.measuring.measure import Metrics, measure_pair
from accucompare.compare.measuring.small import measure_small, small_form
from accucompare.errors import BundleError
from accucompare.numbers.dtypes import DTYPES, DType
from accucompare.numbers.kernel import PairForm
from tests.compare.builder import in_blocks, item, random_bits, write
from tests.compare.test_measure import near

PAIRS = [
    (ours, theirs)
    for ours, theirs in itertools.product(DTYPES.values(), repeat=2)
    if ours.kind is theirs.kind and small_form(ours.name, theirs.name, (1,), None, None)
]


@np.errstate(all="ignore")
def values(draw: st.DrawFn, ours: DType, theirs: DType, count: int) -> list[np.ndarray]:
    """Stored bits of a pair: noise, any bits, the same, one a multiple of the other, or zeros."""
    seed = draw(st.integers(0, 1 << 20))
    how = draw(st.sampled_from(["noise", "bits", "same", "zero golden", "zeros"]))
    golden, other = near(ours, count, seed)[0], near(theirs, count, seed)[1]
    if how == "bits":
        golden, other = random_bits(ours, count, seed), random_bits(theirs, count, seed + 1)
    if how == "same" and ours is theirs:
        other = golden.copy()
    if how.startswith("zero"):
        golden = np.zeros_like(golden)
    if how == "zeros":
        other = np.zeros_like(other)
    if draw(st.booleans()) and ours.name in ("float64", "float32"):
        golden = golden * ours.storage.type(draw(st.sampled_from([0.999, 2.0, 1e-30, 1e30, 1e-6])))
    return [np.ascontiguousarray(golden), np.ascontiguousarray(other)]


@given(st.data())
def test_a_pair_measured_among_others_has_the_metrics_that_it_has_alone(
    data: st.DataObject,
) -> None:
    pairs, alone, contents = [], [], [b"", b""]
    for _ in range(3):
        dtypes = data.draw(st.sampled_from(PAIRS))
        shape = data.draw(st.sampled_from([(), (1,), (7,), (3, 5), (2, 300), (700,)]))
        sides = values(data.draw, *dtypes, int(np.prod(shape)))
        atol, rtol = data.draw(st.sampled_from([(None, None), (1e-3, None), (0.0, 1e-2)]))
        form = PairForm(*dtypes, shape, atol, rtol)
        pairs.append((*map(len, contents), form))
        contents = [each + raw.tobytes() for each, raw in zip(contents, sides, strict=True)]
        blocks = [in_blocks(raw, 1 << 16) for raw in sides]
        alone.append(measure_pair(*blocks, dtypes, shape, atol=atol, rtol=rtol))
    for metrics, expected in zip(measure_small(*contents, pairs), alone, strict=True):
        assert metrics is None or repr(metrics) == repr(expected)


def test_nearly_every_pair_is_measured_with_others() -> None:
    golden, candidate = near(DTYPES["float32"], 64, seed=1)
    pairs = [(0, 0, PairForm(DTYPES["float32"], DTYPES["float32"], (64,), None, None))] * 2
    found = measure_small(golden.tobytes(), candidate.tobytes(), pairs)
    assert all(isinstance(metrics, Metrics) for metrics in found)


@settings(max_examples=settings().max_examples // 4)
@given(seed=st.integers(0, 1 << 20), verify=st.booleans(), atol=st.sampled_from([None, 1e-6]))
def test_small_pairs_have_the_rows_that_they_have_alone(
    seed: int, verify: bool, atol: float | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bundles")
    draw = np.random.default_rng(seed)
    dtypes = draw.choice(["float32", "bfloat16", "float64", "int32", "bool", "float8_e5m2"], 12)
    shapes = [(int(draw.integers(0, 9)), int(draw.integers(1, 2000))) for _ in dtypes]
    base = [draw.normal(size=shape) for shape in shapes]

    def side(name: str, error: float) -> Path:
        items = []
        for number, (dtype, clean) in enumerate(zip(dtypes, base, strict=True)):
            noisy = clean * (1 + error * draw.normal(size=clean.shape) * draw.choice([0, 1, 50]))
            noisy[draw.random(noisy.shape) < draw.choice([0, 0, 1e-3])] = np.nan
            raw = noisy if dtype.startswith(("float", "bf")) else np.nan_to_num(noisy).astype(dtype)
            if dtype in ("float32", "float64"):
                raw = raw.astype(dtype)
            items.append(item(f"fc{number}", raw, str(dtype), step=number // 6))
        return write(folder / name, items, steps=2)

    golden, candidate = side("golden", 0.0), side("candidate", 1e-5)
    side("candidate/repeat1", 1e-6)

    def rows() -> list[str]:
        comparison = ac.diff(golden, candidate, atol=atol, work=ac.Work(verify=verify))
        return [repr((row.place, row.verdict, row.metrics, row.noise)) for row in comparison.rows]

    together = rows()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "with_small_pairs", lambda sides, tasks: sides)
        assert rows() == together


def test_a_damaged_small_tensor_is_named_as_it_is_alone(tmp_path: Path) -> None:
    sides = [
        write(tmp_path / name, [item(f"fc{number}", np.full(9, value)) for number in range(3)])
        for name, value in (("golden", 1.0), ("candidate", 2.0))
    ]
    archive = sides[1] / "rank0/step0.npz"
    content = bytearray(archive.read_bytes())
    content[content.rindex(np.float64(2.0).tobytes())] ^= 1
    archive.write_bytes(content)
    with pytest.raises(BundleError, match="corrupt"):
        ac.diff(*sides)


def test_a_pair_that_lies_outside_of_its_buffers_is_refused() -> None:
    form = PairForm(DTYPES["float32"], DTYPES["float32"], (3,), None, None)
    with pytest.raises(ValueError, match="outside of its buffers"):
        measure_small(bytes(12), bytes(12), [(0, 4, form)])
