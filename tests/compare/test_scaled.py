"""Gradients that are golden's times one number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accucompare as ac
from accucompare.compare.decide import Answer
from accucompare.compare.origins.scaled import FactorCause
from accucompare.compare.origins.sites import Stage
from accucompare.selection import Mode
from tests.compare.builder import Item, compare, item, write

NAMES = ("a", "b", "c")
RNG = np.random.default_rng(7)
GRADS = {
    name: RNG.normal(size=64).astype(np.float32) * 10.0**-place for place, name in enumerate(NAMES)
}
LOSS = RNG.normal(size=32).astype(np.float32)


def gradients(
    factor: float = 1.0,
    *,
    loss: float | None = None,
    off: float = 0.0,
    dtype: str = "float32",
    **other: float,
) -> list[Item]:
    """What the loss gives, and the gradient of each parameter, times a factor, with noise;
    ``other``: single ones times another.
    """
    noise = np.random.default_rng(8).normal(size=64) * off
    of_loss = (
        []
        if loss is None
        else [item("", LOSS * np.float32(loss), role="grad_output", parent=None, path="logits")]
    )
    return of_loss + [
        item(
            name,
            (GRADS[name].astype(np.float64) * other.get(name, factor) * (1 + noise)).astype(
                np.float32
            ),
            dtype,
            role="param_grad",
            path="weight",
            parent=None,
        )
        for name in NAMES
    ]


@pytest.mark.parametrize(
    ("factor", "cause"),
    [
        (0.5, (FactorCause.MEAN, 2)),
        (1 / 3, (FactorCause.MEAN, 3)),
        (8.0, (FactorCause.SUM, 8)),
        (65536.0, (FactorCause.LOSS_SCALE, 0)),
        (-1.0, (FactorCause.OTHER_SIGN, 0)),
        (0.7315, (FactorCause.CLIPPING, 0)),
    ],
)
def test_gradients_that_are_all_golden_times_one_number_are_one_culprit(
    tmp_path: Path, factor: float, cause: tuple[FactorCause, int]
) -> None:
    comparison = compare(tmp_path, gradients(), gradients(factor))
    (culprit,) = comparison.culprits
    assert culprit.place == "all 3 gradients of parameters"
    assert culprit.scaled.factor == pytest.approx(factor, rel=1e-7)
    assert culprit.scaled.spread < 1e-6
    assert culprit.scaled.cause == cause
    assert (comparison.answer, comparison.passed) == (Answer.BUG, False)
    assert "normalisation, reduction, clipping or loss scale, not rounding" in comparison.conclusion


@pytest.mark.parametrize(
    "candidate",
    [
        gradients(0.5, c=0.6),
        gradients(0.5, b=1.0),
        gradients(0.5, a=0.50001),
        gradients(1.0 + 1e-6),
        gradients(0.5, off=0.1),
    ],
    ids=["one other", "one right", "hardly one number", "as good as 1", "noisy"],
)
def test_gradients_that_are_not_exactly_so_are_told_one_by_one(
    tmp_path: Path, candidate: list[Item]
) -> None:
    assert not any(culprit.scaled for culprit in compare(tmp_path, gradients(), candidate).culprits)


def test_a_gradient_of_nothing_but_rounding_has_no_say(tmp_path: Path) -> None:
    """That of a key's bias: 1e-9 of the others, and altogether different."""
    sides = [
        [*gradients(factor), item("k", tiny, role="param_grad", path="bias", parent=None)]
        for factor, tiny in (
            (1.0, np.full(8, 1e-9, np.float32)),
            (0.5, np.linspace(-1e-9, 2e-9, 8, dtype=np.float32)),
        )
    ]
    assert compare(tmp_path, *sides).culprits[0].scaled.factor == pytest.approx(0.5)


def test_in_bfloat16_factors_are_as_close_as_its_rounding(tmp_path: Path) -> None:
    comparison = compare(tmp_path, gradients(), gradients(0.3, dtype="bfloat16"))
    assert comparison.culprits[0].scaled.factor == pytest.approx(0.3, rel=4e-3)


@pytest.mark.parametrize(
    ("loss", "stage", "of_loss"), [(0.5, Stage.LOSS, True), (1.0, Stage.UPDATE, False)]
)
def test_it_is_said_whether_the_loss_gives_the_factor_already(
    tmp_path: Path, loss: float, stage: Stage, of_loss: bool
) -> None:
    (culprit,) = compare(tmp_path, gradients(loss=1.0), gradients(0.5, loss=loss)).culprits
    assert culprit.stage is stage
    assert culprit.row.record.role.value == ("grad_output" if stage is Stage.LOSS else "param_grad")
    assert culprit.scaled.of_loss is of_loss


def test_by_statistics_alone_the_norms_and_extrema_tell(tmp_path: Path) -> None:
    from tests.frozen.test_frozen import of_statistics

    comparison = compare(tmp_path, of_statistics(gradients()), of_statistics(gradients(0.5)))
    assert comparison.culprits[0].scaled.factor == pytest.approx(0.5)


@pytest.mark.parametrize("factor", [0.5, -1.0, 1 / 3])
def test_by_sketches_the_factor_is_as_exact_as_by_tensors(tmp_path: Path, factor: float) -> None:
    sides = []
    for name, items in (("golden", gradients()), ("candidate", gradients(factor))):
        large = [
            item(
                record.name,
                np.outer(array, np.arange(1, 30, dtype="f4")),
                role="param_grad",
                path="weight",
                parent=None,
            )
            for record, array, _ in items
        ]
        sides.append(write(tmp_path / name, large, mode=Mode.SKETCH))
    comparison = ac.diff(*sides)
    (culprit,) = comparison.culprits
    assert comparison.by_sketch == len(GRADS)
    assert culprit.scaled.factor == pytest.approx(factor, rel=1e-6)
    assert "normalisation, reduction, clipping or loss scale, not rounding" in comparison.conclusion


def test_a_model_with_an_error_in_its_forward_keeps_that_culprit_too(tmp_path: Path) -> None:
    outputs = [item("a", LOSS), item("a", 2 * LOSS)]
    comparison = compare(tmp_path, [outputs[0], *gradients()], [outputs[1], *gradients(0.5)])
    assert [culprit.place for culprit in comparison.culprits] == [
        "all 3 gradients of parameters",
        "a",
    ]


def test_the_json_has_the_factor(tmp_path: Path) -> None:
    comparison = compare(tmp_path, gradients(), gradients(0.5))
    found: Any = json.loads(comparison.to_json(tmp_path / "x.json").read_text())["culprits"][0][
        "scaled"
    ]
    assert (found["factor"], found["count"]) == (0.5, 3)


def test_fed_it_is_the_gradient_of_the_loss_alone_that_shows_it(tmp_path: Path) -> None:
    """Parameters' gradients are golden's then."""
    (culprit,) = compare(tmp_path, gradients(loss=1.0), gradients(loss=0.25)).culprits
    assert (culprit.place, culprit.stage) == (
        "the backward of the loss, gradient of logits",
        Stage.LOSS,
    )
    assert culprit.scaled.factor == pytest.approx(0.25)


def test_a_loss_that_is_off_by_another_factor_is_not_called_right(tmp_path: Path) -> None:
    """Fed, a gradient scaler's scale is seen in what the loss gives, and its inverse in the
    parameters' gradients.
    """
    comparison = compare(tmp_path, gradients(loss=1.0), gradients(1 / 1024, loss=1024.0))
    scaled = comparison.culprits[0].scaled
    assert (scaled.cause, scaled.of_loss) == ((FactorCause.LOSS_SCALE, 0), None)
