"""A global tensor is read from the ranks' parts as if one file held it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import accucompare as ac
from accucompare.bundle.format import Box, GlobalRecord, Record
from accucompare.bundle.reading.global_tensor import Placed
from accucompare.errors import RecordError
from accucompare.numbers import BLOCK
from tests.compare.builder import item, write


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], Box, tuple[int, int]]:
    """A tensor's shape, a box of it that is some of a rank's part, and a range of its elements."""
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))
    start = tuple(draw(st.integers(0, length - 1)) for length in shape)
    size = tuple(draw(st.integers(0, n - at)) for n, at in zip(shape, start, strict=True))
    before = tuple(draw(st.integers(0, 2)) for _ in shape)
    after = tuple(draw(st.integers(0, 2)) for _ in shape)
    part = tuple(map(sum, zip(before, size, after, strict=True)))
    where = tuple((at, at + n) for at, n in zip(before, size, strict=True))
    first, last = sorted(draw(st.integers(0, math.prod(shape))) for _ in range(2))
    record = replace(item(values=np.zeros(part, "f4")).record, shape=part)
    return shape, Box(start, (record,), where=where), (first, last)


@given(boxes())
def test_spans_are_where_the_elements_of_a_box_lie(
    drawn: tuple[tuple[int, ...], Box, tuple[int, int]],
) -> None:
    shape, box, (first, last) = drawn
    whole = np.arange(math.prod(shape)).reshape(shape)
    own = tuple(slice(at, at + n) for at, n in zip(box.start, box.shape, strict=True))
    part = np.full(box.part, -2)
    part[tuple(slice(*edges) for edges in box.where)] = whole[own]
    found = np.full(math.prod(shape), -1)
    for span in Placed.of(shape, box).stretches(first, last):
        for run in range(span.number):
            at, place = span.at + run * span.stride, span.own + run * span.apart
            assert first <= at <= at + span.length <= last
            found[at : at + span.length] = part.reshape(-1)[place : place + span.length]
    expected = np.full(shape, -1)
    expected[own] = whole[own]
    expected.reshape(-1)[:first] = expected.reshape(-1)[last:] = -1
    assert found.tolist() == expected.reshape(-1).tolist()


def parts(tmp_path: Path, arrays: list[np.ndarray], dtype: str | None = None) -> list[Record]:
    """The records of a bundle with one rank for each array."""
    items = [item("fc", each, dtype, rank=rank) for rank, each in enumerate(arrays)]
    with ac.open_bundle(write(tmp_path / "bundle", items, ranks=len(arrays))) as bundle:
        return list(bundle.records())


def whole(shape: tuple[int, ...], cut: list[Box]) -> GlobalRecord:
    first = cut[0].terms[0]
    fields = {name: getattr(first, name) for name in Record.__struct_fields__}
    return GlobalRecord(**{**fields, "shape": shape, "boxes": tuple(cut)})


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_any_block_of_parts_side_by_side_is_the_wholes(tmp_path: Path, axis: int) -> None:
    values = np.random.default_rng(0).integers(0, 256, (37, 300, 200), np.uint8)  # two segments
    arrays = np.array_split(values, [5], axis)
    records, cut, at = parts(tmp_path, arrays), [], 0
    for record in records:
        start = [0, 0, 0]
        start[axis] = at
        at += record.shape[axis]
        cut.append(Box(tuple(start), (record,)))
    with ac.open_bundle(tmp_path / "bundle") as bundle:
        stored = bundle.stored(whole(values.shape, cut))
        for elements in (20_011, BLOCK):
            blocks = [block.copy() for block in stored.blocks(0, values.size, elements)]
            assert {len(block) for block in blocks[:-1]} == {elements}
            assert np.array_equal(np.concatenate(blocks), values.reshape(-1))
        stored.read()
        stored.verify()
        assert np.array_equal(stored.part((6,), (slice(1, 3),)), values[6][1:3])
        assert stored.shape_of((6,), (slice(1, 3),)) == (2, 200)


def test_a_sum_of_bfloat16_terms_is_rounded_once(tmp_path: Path) -> None:
    terms = [np.array([1.0, 2.0**-9, -1.0]), np.array([2.0**-9, 2.0**-9, 1.0])] * 2
    records = parts(tmp_path, [each.astype("f4") for each in terms], "bfloat16")
    with ac.open_bundle(tmp_path / "bundle") as bundle:
        found = bundle.values(whole((3,), [Box((0,), tuple(records), 0.5)]))
    assert found.tolist() == [1.0, 2.0**-8, 0.0]


def test_a_part_in_another_type_is_converted(tmp_path: Path) -> None:
    items = [item("fc", [1.5, 2.0], "float32"), item("fc", [-3.0], "bfloat16", rank=1)]
    with ac.open_bundle(write(tmp_path / "bundle", items, ranks=2)) as bundle:
        records = list(bundle.records())
        cut = [Box((0,), (records[0],)), Box((2,), (records[1],))]
        assert bundle.values(whole((3,), cut)).tolist() == [1.5, 2.0, -3.0]


@pytest.mark.parametrize("corrupt", [False, True])
def test_rows_of_a_part_may_lie_anywhere_in_the_whole(tmp_path: Path, corrupt: bool) -> None:
    values = np.random.default_rng(0).integers(0, 256, (12, 70_000), np.uint8)
    order = np.random.default_rng(1).permutation(12)
    (record,) = parts(tmp_path, [values[order]])
    cut = [
        Box((int(row), 0), (record,), where=((at, at + 1), (0, 70_000)))
        for at, row in enumerate(order)
    ]
    path = tmp_path / "bundle" / "rank0" / "step0.npz"
    if corrupt:
        path.write_bytes(path.read_bytes().replace(values[3].tobytes(), values[4].tobytes()))
    with ac.open_bundle(tmp_path / "bundle") as bundle:
        stored = bundle.stored(whole(values.shape, cut))
        read = np.concatenate([block.copy() for block in stored.blocks(0, values.size)])
        if corrupt:
            with pytest.raises(RecordError, match="corrupt"):
                stored.verify()
        else:
            stored.verify()
            assert np.array_equal(read.reshape(values.shape), values)


def test_a_corrupt_part_is_found(tmp_path: Path) -> None:
    values = np.arange(12, dtype="f4").reshape(4, 3)
    records = parts(tmp_path, [values[:2], values[2:]])
    path = tmp_path / "bundle" / "rank1" / "step0.npz"
    content = path.read_bytes()
    path.write_bytes(content.replace(values[2:].tobytes(), values[:2].tobytes()))
    cut = [Box((2 * rank, 0), (record,)) for rank, record in enumerate(records)]
    with ac.open_bundle(tmp_path / "bundle") as bundle:
        stored = bundle.stored(whole((4, 3), cut))
        with pytest.raises(RecordError, match=r"rank 1.*corrupt"):
            stored.read()
        stored = bundle.stored(whole((4, 3), cut))
        assert sum(len(block) for block in stored.blocks(0, 12)) == 12
        with pytest.raises(RecordError, match=r"rank 1.*corrupt"):  # as a diff reads it
            stored.verify()
