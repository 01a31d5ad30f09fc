"""Steps judged at once have the rows, and say of them, what pairs judged one by one do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accucompare as ac
from accucompare.bundle.reading.reader import Bundle
from accucompare.compare import opened, steps_at_once
from accucompare.compare.judging.row_columns import DiffRows
from accucompare.compare.steps_at_once import judge_steps
from accucompare.selection import Mode
from tests.compare.builder import Item, item, write

DTYPES = ["float32", "float32", "float32", "bfloat16", "float16", "float64", "int64", "bool"]
STEPS = 3


@pytest.fixture(autouse=True, scope="module")
def also_small_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps_at_once, "WORTH_ARRAYS", 1)
        yield


def in_turn(golden: Path, candidate: Path, **options: Any) -> ac.Comparison:
    """A diff of pairs judged one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened, "judge_steps", lambda *_: {})
        comparison = ac.diff(golden, candidate, **options)
    assert isinstance(comparison.rows, list)
    return comparison


@np.errstate(all="ignore")
def model(seed: int, spoilt: float, backward: bool) -> tuple[list[Item], list[Item]]:
    """The records of a small model on both sides; ``spoilt``: how often something is wrong."""
    draw = np.random.default_rng(seed)
    names = ["", "a", "a.0", "a.1", "b", "c"]
    forms = [
        (str(draw.choice(DTYPES)), tuple(map(int, draw.integers(0, 40, draw.integers(3)))))
        for _ in names
    ]
    roles = ["computed_buffer", "input", "output", "argument_update"]
    roles += ["grad_output", "grad_input", "call_grad", "buffer_update"] if backward else []
    sides: tuple[list[Item], list[Item]] = ([], [])
    for step in range(STEPS):
        wrong = draw.random() < spoilt
        for role in roles:
            for name, (dtype, shape) in zip(names, forms, strict=True):
                clean = draw.normal(size=shape) * draw.choice([0, 1, 1, 1, 1, 3e4])
                clean = clean if draw.random() < 0.9 else -70_000 * np.ones(shape)
                error = draw.choice([0, 1e-7, 1e-6, 1e-1 if wrong else 1e-8])
                noisy = clean * (1 + error * draw.normal(size=shape))
                if wrong and noisy.size and draw.random() < 0.2:
                    noisy.flat[0] = np.nan
                parent = None if not name else (name.rpartition(".")[0], 0)
                for side, values in zip(sides, (clean, noisy), strict=True):
                    if wrong and draw.random() < 0.03:
                        continue
                    opaque = draw.random() < 0.02
                    if dtype in ("int64", "bool"):
                        values = np.nan_to_num(values).astype(dtype)
                    elif dtype in ("float32", "float64", "float16"):
                        values = values.astype(dtype)
                    own = {"role": role, "parent": parent, "step": step, "path": "0"}
                    side.append(
                        item(name, layout="opaque", detail="A", digest="1" * 32, **own)
                        if opaque
                        else item(name, values, dtype, **own)
                    )
    return sides


def everything(comparison: ac.Comparison) -> list[Any]:
    """What is said of the rows by walking over them."""
    rows = list(comparison.rows)
    return [
        [repr((row.golden, row.candidate, row.verdict, row.metrics, row.module)) for row in rows],
        [comparison.rows[place] == row for place, row in enumerate(rows)],
        [
            comparison.rows[place : place + 7] == rows[place : place + 7]
            for place in range(len(rows))
        ],
        repr(comparison),
        comparison.conclusion,
        comparison.worst(),
        comparison.first_divergence,
        comparison.identical_until,
        comparison.without_output,
        comparison.may_hide,
        comparison.compared,
        comparison.by_digests,
        comparison.by_sketch,
        comparison.by_statistics,
        comparison.nonfinite_on_both,
        comparison.only_unfinished,
        comparison.unmatched(),
        comparison.culprits,
        comparison.damage,
    ]


@settings(max_examples=settings().max_examples // 3)
@given(
    seed=st.integers(0, 1 << 20),
    spoilt=st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    backward=st.booleans(),
    mode=st.sampled_from([Mode.TENSORS, Mode.TENSORS, Mode.SKETCH, Mode.STATS]),
    options=st.sampled_from(
        [{}, {}, {"atol": 1e-6}, {"limits": ac.Tolerance(rel_l2=1e-3, cosine=0.999)}]
    ),
)
def test_steps_judged_at_once_have_the_rows_of_pairs_judged_in_turn(
    seed: int,
    spoilt: float,
    backward: bool,
    mode: Mode,
    options: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("bundles")
    sides = [
        write(folder / name, items, steps=STEPS, mode=mode)
        for name, items in zip(("golden", "candidate"), model(seed, spoilt, backward), strict=True)
    ]
    at_once, alone = ac.diff(*sides, **options), in_turn(*sides, **options)
    assert everything(at_once) == everything(alone)


@settings(max_examples=settings().max_examples // 4)
@given(seed=st.integers(0, 1 << 20))
def test_columns_give_the_records_that_lines_give(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    items, _ = model(seed, 0.0, backward=True)
    with Bundle(write(tmp_path_factory.mktemp("bundle") / "golden", items)) as bundle:
        for rank, entry in bundle.steps():
            columns = bundle.step_columns(rank, entry)
            assert columns is not None
            lines = bundle._read_lines(rank, f"step{entry.step}", entry)
            assert [*map(repr, columns)] == [*map(repr, lines)]
            assert [repr(columns[place]) for place in range(len(lines))] == [*map(repr, lines)]


def test_equal_steps_are_judged_at_once_and_the_others_in_order(tmp_path: Path) -> None:
    def side(name: str, noise: float) -> Path:
        names = [[name, "x"] if step == 1 else ["x", "y"] for step in range(4)]
        items = [
            item(each, np.full(5, 1.0 + noise, "f4"), step=step)
            for step, own in enumerate(names)
            for each in own
        ]
        return write(tmp_path / name, items)

    judged: list[Any] = []

    def watched(*arguments: Any) -> Any:
        judged.extend(found := judge_steps(*arguments))
        return found

    sides = side("golden", 0.0), side("candidate", 1e-6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened, "judge_steps", watched)
        comparison = ac.diff(*sides)
    assert judged == [(0, 0), (0, 2), (0, 3)]
    assert isinstance(comparison.rows, DiffRows)
    assert comparison.rows == in_turn(*sides).rows
    assert comparison.rows[2:4] == list(comparison.rows)[2:4]
