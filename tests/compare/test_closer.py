"""A closer look at fed gradients and updates: few values, a factor on all elements, and the last
place of a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import accucompare as ac
from accucompare.compare.limits.golden_baselines import keep_errors
from accucompare.compare.rows.rows import Reason, Row
from accucompare.report.words import limit_words, verdict_words
from accucompare.selection import Mode
from tests.compare.builder import Item, item, write

RANDOM = np.random.default_rng(0)
GRADIENT = RANDOM.normal(size=4096)
#: Both runs compute the same steps in bfloat16, so most of their errors are the same; the rest is
# each one's own.
SHARED, OWN = (RANDOM.normal(size=4096) * off for off in (0.02, 0.003))


def fed(
    folder: Path,
    golden: list[Item],
    candidate: list[Item],
    baseline: list[Item],
    kept: bool = False,
    modes: Sequence[Mode] = (Mode.TENSORS,) * 3,
) -> list[Row]:
    """The rows of a fed candidate beside a fed baseline, or beside the errors that golden has kept
    of it.
    """
    first = write(folder / "golden", golden, mode=modes[0])
    with ac.open_bundle(first) as opened:
        feed = {"feed": {"identity": opened.identity(), "not_fed": [], "golden": ""}}
    given = ("npu", candidate, modes[1]), ("baseline", baseline, modes[2])
    sides = [write(folder / name, items, capture=feed, mode=mode) for name, items, mode in given]
    return ac.diff(
        first,
        sides[0],
        baseline=keep_errors(first, sides[1], folder / "kept") if kept else sides[1],
    ).rows


def gradient(values: np.ndarray, dtype: str = "bfloat16") -> list[Item]:
    return [item("fc", values, dtype, role="call_grad", path="weight")]


def last(rows: list[Row]) -> tuple[Reason, str]:
    return rows[-1].reason, limit_words.rule(rows[-1].verdict.limit)


@pytest.mark.parametrize(("largest", "reason"), [(100.0, Reason.OK), (1.0, Reason.INTRODUCED)])
def test_the_limit_counts_the_elements_that_carry_goldens_norm(
    tmp_path: Path, largest: float, reason: Reason
) -> None:
    """Two errors of a tensor that is one large value are two single draws; of 384 values of one
    size, they are alike.
    """
    values = np.where(np.arange(384) == 7, largest, 0.02 if largest > 1 else 1.0)
    rows = fed(tmp_path, gradient(values, "float32"), gradient(values * 1.007), gradient(values))
    assert rows[0].reason is reason


def test_golden_tensors_tell_which_elements_carry_the_norm_where_the_others_keep_sketches(
    tmp_path: Path,
) -> None:
    values = np.where(np.arange(3000) == 7, 100.0, 0.002)
    sides = gradient(values, "float32"), gradient(values * 1.012), gradient(values)
    rows = fed(tmp_path, *sides, modes=(Mode.TENSORS, Mode.SKETCH, Mode.SKETCH))
    assert (rows[0].reason, rows[0].by_sketch) == (Reason.OK, True)
    assert "elements carry golden's norm" in verdict_words.detail(rows[0])


def test_a_tensor_of_one_large_value_fails_if_that_is_far_off(tmp_path: Path) -> None:
    values = np.where(np.arange(384) == 7, 100.0, 0.02)
    assert (
        fed(tmp_path, gradient(values, "float32"), gradient(values * 1.2), gradient(values))[
            0
        ].reason
        is Reason.INTRODUCED
    )


def noisy(factor: float = 1.0) -> np.ndarray:
    return (GRADIENT + SHARED * np.abs(GRADIENT)) * factor + OWN * np.abs(GRADIENT)


def cut_off(values: np.ndarray) -> np.ndarray:
    """To bfloat16, towards zero."""
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


@pytest.mark.parametrize(("candidate", "expected"), [
    (noisy(1.01), (Reason.INTRODUCED, "common factor")),
    (noisy(), (Reason.OK, "baseline")),
    # truncation makes all values smaller by two thirds of a rounding
    (cut_off(noisy()), (Reason.OK, "baseline")),
    # a scalar that all are multiplied by was rounded
    (noisy(1 + 2.0**-8), (Reason.OK, "baseline")),
])  # fmt: skip
@pytest.mark.parametrize(
    "modes", [(Mode.TENSORS,) * 3, (Mode.TENSORS, Mode.SKETCH, Mode.SKETCH), (Mode.SKETCH,) * 3]
)
def test_a_factor_on_all_elements_shows_beside_larger_noise(
    tmp_path: Path, candidate: np.ndarray, expected: tuple[Reason, str], modes: tuple[Mode, ...]
) -> None:
    baseline = GRADIENT + SHARED * np.abs(GRADIENT)
    rows = fed(
        tmp_path,
        gradient(GRADIENT, "float32"),
        gradient(candidate),
        gradient(baseline),
        modes=modes,
    )
    assert last(rows) == expected
    # by the relative L2 error alone, all would pass
    assert rows[-1].verdict.excess is None or rows[-1].verdict.excess < 2


@pytest.mark.parametrize(("candidate", "expected"), [
    (noisy(1.03), (Reason.INTRODUCED, "common factor")),
    (noisy(), (Reason.OK, "baseline")),
    (noisy(1 + 2.0**-8), (Reason.OK, "baseline")),
])  # fmt: skip
def test_a_baseline_that_keeps_its_errors_only_shows_a_factor_too(
    tmp_path: Path, candidate: np.ndarray, expected: tuple[Reason, str]
) -> None:
    baseline = GRADIENT + SHARED * np.abs(GRADIENT)
    rows = fed(
        tmp_path, gradient(GRADIENT, "float32"), gradient(candidate), gradient(baseline), kept=True
    )
    assert last(rows) == expected


def updated(
    parameter: np.ndarray, update: np.ndarray, dtype: str, stored: np.ndarray | None = None
) -> list[Item]:
    """A parameter and its update as a type stores them; the update is recorded in float32."""
    if stored is None:
        stored = (parameter + update).astype(ml_dtypes.bfloat16).astype(np.float64) - parameter
    given = update if dtype == "float32" else stored
    before = item("fc", parameter, dtype, role="param_before", path="w", parent=None)
    return [before, item("fc", given, "float32", role="param_update", path="w", parent=None)]


@pytest.mark.parametrize("kept", [False, True], ids=["tensors", "errors only"])
def test_elements_of_an_update_that_rounding_cannot_have_made_fail_beside_those_it_takes_whole(
    tmp_path: Path, kept: bool
) -> None:
    """Next to 0.3, values of bfloat16 are 0.002 apart, so that an update of 0.0012 becomes 0.002;
    biases of 0 take it as it is.
    """
    parameter = np.where(np.arange(400) < 380, 0.30078125, 0.0)
    update = np.full(400, 1.2e-3)
    right = updated(parameter, update, "bfloat16")
    lost = updated(parameter, np.where(parameter, update, 0.0), "bfloat16")
    golden = updated(parameter, update, "float32")
    assert last(fed(tmp_path / "1", golden, lost, right, kept)) == (Reason.INTRODUCED, "last place")
    assert last(fed(tmp_path / "2", golden, right, right, kept)) == (Reason.OK, "baseline")
    nearly = updated(parameter, update * (1 + 2.0**-7), "bfloat16")  # by other kernels
    assert last(fed(tmp_path / "3", golden, nearly, right, kept)) == (Reason.OK, "baseline")
