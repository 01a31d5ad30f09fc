"""Errors of tensors that are too large to be looked at whole, in words."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import accucompare as ac
from accucompare.compare.measuring.sample import Sample
from accucompare.compare.origins.describing import MOST_ELEMENTS, SAMPLED
from tests.compare.builder import item, write

SHAPE = (8, 4096, 640)  # tokens of channels, over the limit
VALUES = np.resize(np.random.default_rng(0).normal(size=1_000_003).astype(np.float16), SHAPE)


def words(tmp_path: Path, candidate: np.ndarray) -> tuple[str, ...]:
    sides = [
        write(tmp_path / name, [item("fc", values)])
        for name, values in (("golden", VALUES), ("candidate", candidate))
    ]
    (culprit,) = ac.diff(*sides).culprits
    return culprit.words


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
    assert culprit.words == ("in a sample of 1 in 8 elements: the candidate is about 1.5 × golden",)
    assert peak < 14 * 8 * SAMPLED, "a few arrays of the sample, none of the whole"


def test_a_channel_of_a_tensor_over_the_limit_is_named(tmp_path: Path) -> None:
    candidate = VALUES.copy()
    candidate[..., 17] = 0
    where, what = words(tmp_path, candidate)
    assert (
        where == "in a sample of 1 in 8 elements: all of the squared error is in channel 17 of 640"
        " (dimension 2)"
    )
    assert what == "the candidate is exactly zero there"


def test_of_a_token_it_is_said_that_its_neighbours_were_not_looked_at(tmp_path: Path) -> None:
    candidate = VALUES.copy()
    candidate[3, 1234] += 50
    assert (
        "token 1234 of 4096 (dimension 1, of which 1 in 8 was looked at)"
        in words(tmp_path, candidate)[0]
    )


def test_an_element_keeps_its_index_in_the_whole(tmp_path: Path) -> None:
    candidate = VALUES.copy()
    candidate[7, 4001, 639] = 500
    assert words(tmp_path, candidate)[0].endswith("in one element, at (7, 4001, 639)")


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
