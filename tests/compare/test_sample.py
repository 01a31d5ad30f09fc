"""Errors of tensors that are too large to be looked at whole."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import accucompare as ac
from accucompare.compare.measuring.blocks import Sample
from accucompare.compare.origins.describing import MOST_ELEMENTS, SAMPLED
from accucompare.compare.shape_facts import (
    Axis,
    ErrorPlace,
    ErrorShape,
    NamedSlices,
    Pattern,
    PatternKind,
)
from tests.compare.builder import item, write

SHAPE = (8, 4096, 640)  # tokens of channels, over the limit
VALUES = np.resize(np.random.default_rng(0).normal(size=1_000_003).astype(np.float16), SHAPE)


def shape(tmp_path: Path, candidate: np.ndarray) -> ErrorShape:
    sides = [
        write(tmp_path / name, [item("fc", values)])
        for name, values in (("golden", VALUES), ("candidate", candidate))
    ]
    (culprit,) = ac.diff(*sides).culprits
    assert isinstance(culprit.shape, ErrorShape)
    return culprit.shape


@pytest.fixture(scope="module", autouse=True)
def _too_large() -> None:
    assert VALUES.size > MOST_ELEMENTS, "no test otherwise"


def test_a_scale_of_a_tensor_over_the_limit_is_named_from_a_sample_in_bounded_memory(
    tmp_path: Path,
) -> None:
    candidate = (VALUES * np.float16(1.5)).astype(np.float16)
    sides = [
        write(tmp_path / name, [item("fc", values)])
        for name, values in (("golden", VALUES), ("candidate", candidate))
    ]
    tracemalloc.start()
    (culprit,) = ac.diff(*sides).culprits
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    factor = Pattern(PatternKind.SCALE, low=pytest.approx(1.5))
    assert culprit.shape == ErrorShape(patterns=(factor,), dtype="float16", one_in=8)
    assert peak < 14 * 8 * SAMPLED, "a few arrays of the sample, none of the whole"


def test_a_channel_of_a_tensor_over_the_limit_is_named(tmp_path: Path) -> None:
    candidate = VALUES.copy()
    candidate[..., 17] = 0
    found = shape(tmp_path, candidate)
    assert found.place == ErrorPlace(1.0, (NamedSlices(Axis(2, 3), 640, 1, (17,), 17),))
    assert found.patterns == (Pattern(PatternKind.ZERO),)


def test_of_a_token_it_is_known_that_its_neighbours_were_not_looked_at(tmp_path: Path) -> None:
    candidate = VALUES.copy()
    candidate[3, 1234] += 50
    place = shape(tmp_path, candidate).place
    assert place is not None
    assert NamedSlices(Axis(1, 3), 4096, 1, (1234,), 1234, step=8) in place.slices


def test_an_element_keeps_its_index_in_the_whole(tmp_path: Path) -> None:
    candidate = VALUES.copy()
    candidate[7, 4001, 639] = 500
    place = shape(tmp_path, candidate).place
    assert place is not None
    assert place.index == (7, 4001, 639)


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=4).map(tuple),
    st.integers(1, 10_000),
    st.data(),
)
def test_a_sample_holds_what_it_is_taken_around_and_no_more_than_it_may(
    shape: tuple[int, ...], most: int, data: st.DataObject
) -> None:
    around = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    sample = Sample.of(shape, most, around)
    assert all(at in chosen for at, chosen in zip(around, sample.indices(), strict=True))
    assert np.prod([len(chosen) for chosen in sample.indices()]) <= most
    assert [len(range(size)[each]) for size, each in zip(shape, sample.slices, strict=True)] == [
        len(each) for each in sample.indices()
    ]
