"""Rows of free-running trainings in steps whose weights an update has made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accucompare as ac
from accucompare.bundle.format.manifest import StepSeries
from accucompare.report.words import limit_words
from tests.compare.builder import item, write

X = np.linspace(-1, 1, 64)


def side(
    path: Path,
    errors: tuple[float, ...],
    *,
    dtype: str = "float32",
    updates: int = 1,
    first: int = 0,
) -> Path:
    """A run whose layer is relatively off by these in its steps, and whose weights are its own from
    the second step on.
    """
    steps = range(first, first + len(errors))
    items = [
        item("fc", X * (1 + error), dtype, step=step)
        for step, error in zip(steps, errors, strict=True)
    ]
    weights = [f"of {path.name}" if step else "w" for step in steps]
    series = [
        StepSeries(step, (1.0,), updates=updates, weights=own)
        for step, own in zip(steps, weights, strict=True)
    ]
    return write(
        path,
        items,
        series=series,
        model={"parameters": {"w": {"dtype": dtype, "shape": [1], "digests": {}}}},
    )


def compared(folder: Path, *errors: float, **options: Any) -> ac.Comparison:
    """The baseline is off by 1e-6 in each step, so that 5e-6 is the limit of a row alone."""
    few = (0.0,) * len(errors)
    golden, candidate = (
        side(folder / "golden", few, **options),
        side(folder / "npu", errors, **options),
    )
    baseline = side(folder / "baseline", (1e-6,) * len(errors), **{**options, "dtype": "float64"})
    return ac.diff(golden, candidate, baseline=baseline)


def test_what_weights_of_a_free_update_make_is_judged_by_the_envelope_of_the_steps(
    tmp_path: Path,
) -> None:
    comparison = compared(tmp_path, 1e-6, 2e-5)
    assert [limit_words.rule(row.verdict.limit) for row in comparison.rows] == [
        "baseline",
        "envelope",
    ]
    assert comparison.passed


@pytest.mark.parametrize(("errors", "options"), [
    ((2e-5, 1e-6), {}),  # before the first update the weights are the same
    ((1e-6, 1e-3), {}),  # beyond the envelope of two steps, too
    ((1e-6, 2e-5), {"updates": 0}),  # no training
    ((*[1e-6] * 11, 2e-5), {}),  # twelve steps tell more than two
])  # fmt: skip
def test_an_error_that_no_envelope_explains_fails(
    tmp_path: Path, errors: tuple[float, ...], options: dict[str, Any]
) -> None:
    comparison = compared(tmp_path, *errors, **options)
    assert not comparison.passed
    assert comparison.first_divergence.record.step == max(
        range(len(errors)), key=errors.__getitem__
    )


def test_without_a_step_before_the_first_update_the_envelope_proves_nothing(tmp_path: Path) -> None:
    comparison = compared(tmp_path, 2e-5, 2e-5, first=300)
    assert (comparison.passed, comparison.failed) == (False, False)
    assert "no step before the first update was captured" in comparison.trouble
