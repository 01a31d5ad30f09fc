"""Parts of tensors, each with its place in the whole: what a bundle keeps of them, and what a diff
says.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import accucompare as ac
from accucompare.bundle.format.manifest import Manifest
from accucompare.bundle.format.records import Shard
from accucompare.bundle.reading import Sketch
from accucompare.bundle.writing.writer import BundleWriter
from accucompare.compare.rows.rows import Reason
from accucompare.errors import BundleError
from accucompare.numbers.sketch import deviation
from accucompare.report.words import verdict_words
from accucompare.selection import Mode
from tests.compare.builder import item, set_fields

WHOLE = np.random.default_rng(0).standard_normal((60, 200)).astype("f4")
NOISE = (1 + 1e-3 * np.random.default_rng(1).standard_normal(WHOLE.shape)).astype("f4")
ROWS = [(0, 0, 30, 200), (30, 0, 60, 200)]
COLUMNS = [(0, 0, 60, 100), (0, 100, 60, 200)]


def bundle(
    folder: Path,
    whole: np.ndarray,
    parts: list[tuple[int, int, int, int]],
    mode: Mode = Mode.SKETCH,
    placed: bool = True,
) -> Path:
    """A bundle with a record for each part: first row and column, and those behind the last
    ones."""
    capture = {"mode": mode.value, "sketch": {"version": 1, "size": 256}}
    writer = BundleWriter(
        folder, Manifest(complete=True, capture=capture, model={"sources": {}}), mode=mode
    )
    for number, (top, left, bottom, right) in enumerate(parts):
        each = item(f"part{number}", whole[top:bottom, left:right], parent=("", 0), order=number)
        record = (
            replace(each.record, shard=Shard(whole.shape, (top, left))) if placed else each.record
        )
        writer.add(record, each.array)
    writer.end_step(0)
    writer.close()
    return folder


@pytest.mark.parametrize("parts", [ROWS, COLUMNS], ids=["rows", "columns"])
def test_the_sketches_of_two_layouts_add_up_to_the_same_sum(
    tmp_path: Path, parts: list[tuple[int, int, int, int]]
) -> None:
    sums = []
    for name, layout in (("whole", [(0, 0, 60, 200)]), ("parts", parts)):
        with ac.open_bundle(bundle(tmp_path / name, WHOLE, layout)) as opened:
            sums.append(np.sum([opened.sketch(record) for record in opened.records()], axis=0))
    assert np.linalg.norm(sums[1] - sums[0]) <= 1e-15 * np.linalg.norm(WHOLE)


@pytest.mark.parametrize("mode", [Mode.SKETCH, Mode.TENSORS])
@pytest.mark.parametrize(
    "shards",
    [
        [
            (Shard(WHOLE.shape, (at,), flat=True), WHOLE.reshape(-1)[at:end])
            for at, end in ((0, 4500), (4500, 12000))
        ],
        [
            (
                Shard(WHOLE.shape, (0, 0), runs=(((0, 20), (40, 20)), ((0, 200),))),
                np.concatenate([WHOLE[:20], WHOLE[40:]]),
            ),
            (Shard(WHOLE.shape, (20, 0)), WHOLE[20:40]),
        ],
    ],
    ids=["flat", "runs"],
)
def test_parts_of_any_form_add_up_to_the_sketch_of_the_whole(
    tmp_path: Path, shards: list[tuple[Shard, np.ndarray]], mode: Mode
) -> None:
    capture = {"mode": mode.value, "sketch": {"version": 1, "size": 256}}
    with BundleWriter(
        tmp_path / "parts", Manifest(capture=capture, model={"sources": {}}), mode=mode
    ) as writer:
        for number, (shard, values) in enumerate(shards):
            each = item(f"part{number}", np.ascontiguousarray(values), parent=("", 0), order=number)
            writer.add(replace(each.record, shard=shard), each.array)
        writer.end_step(0)
    whole = bundle(tmp_path / "whole", WHOLE, [(0, 0, 60, 200)])
    with ac.open_bundle(tmp_path / "parts") as parts, ac.open_bundle(whole) as golden:
        total = sum(Sketch.of(parts, record) for record in parts.records())
        wanted = Sketch.of(golden, next(golden.records()))
        assert isinstance(total, Sketch)
        assert total.error(wanted).value <= 1e-15


@pytest.mark.parametrize("parts", [ROWS, COLUMNS], ids=["rows", "columns"])
def test_equal_parts_are_compared_whichever_side_holds_tensors(
    tmp_path: Path, parts: list[tuple[int, int, int, int]]
) -> None:
    golden = bundle(tmp_path / "golden", WHOLE, parts, Mode.TENSORS)
    found = ac.diff(golden, bundle(tmp_path / "candidate", WHOLE * NOISE, parts))
    for row in found.rows:
        assert row.metrics is not None
        assert row.metrics.rel_l2 == pytest.approx(1e-3, rel=5 * deviation(256))


@pytest.mark.parametrize("mode", [Mode.SKETCH, Mode.TENSORS, Mode.DIGEST])
def test_the_same_values_of_another_part_are_no_pass(tmp_path: Path, mode: Mode) -> None:
    twice = np.concatenate([WHOLE[:30], WHOLE[:30]])
    found = ac.diff(
        bundle(tmp_path / "golden", twice, ROWS[:1], mode),
        bundle(tmp_path / "candidate", twice, ROWS[1:], mode),
    )
    assert not found.passed
    assert found.rows[0].reason is Reason.SHAPE
    assert (
        verdict_words.detail(found.rows[0])
        == "golden is [0:30, 0:200] of [60, 200], the candidate [30:60, 0:200] of [60, 200]"
    )


def test_a_part_is_not_compared_with_a_whole(tmp_path: Path) -> None:
    found = ac.diff(
        bundle(tmp_path / "golden", WHOLE, ROWS),
        bundle(tmp_path / "candidate", WHOLE, ROWS, placed=False),
    )
    assert not found.passed
    assert (
        verdict_words.detail(found.rows[0])
        == "golden is [0:30, 0:200] of [60, 200], the candidate the whole of [30, 200]"
    )


def test_equal_parts_at_two_places_have_a_sketch_each(tmp_path: Path) -> None:
    with ac.open_bundle(
        bundle(tmp_path / "b", np.concatenate([WHOLE[:30], WHOLE[:30]]), ROWS)
    ) as opened:
        one, other = (opened.sketch(record) for record in opened.records())
    assert np.linalg.norm(one - other) > 0.5 * np.linalg.norm(WHOLE[:30])


@pytest.mark.parametrize(
    "shard",
    [
        {"shape": [60, 200], "start": [31, 0]},
        {"shape": [60], "start": [0]},
        {"shape": [60, 200], "start": [-1, 0]},
        {"shape": [60, 200], "start": [6001], "flat": True},
        {"shape": [60, 200], "start": [0, 0], "runs": [[[0, 30]], [[1, 200]]]},
        {"shape": [60, 200], "start": [0, 0], "runs": [[[0, 30]], [[0, 199]]]},
        {"shape": [60, 200], "start": [0, 0], "runs": [[[0, 30], [7, 0]], [[0, 200]]]},
    ],
)
def test_a_part_that_does_not_lie_in_its_whole_is_damage(
    tmp_path: Path, shard: dict[str, list[int]]
) -> None:
    folder = bundle(tmp_path / "b", WHOLE, ROWS)
    set_fields(folder, shard=shard)
    with ac.open_bundle(folder) as opened, pytest.raises(BundleError, match="line 1: damaged"):
        list(opened.records())
