"""Losses and clipped gradients of a fed candidate, which are rows like any other."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accucompare as ac
from accucompare.api import Comparison
from accucompare.bundle.format.manifest import StepSeries
from accucompare.bundle.format.records import Role
from accucompare.compare.decide import Answer
from accucompare.compare.origins.sites import Stage
from accucompare.compare.rows.rows import Reason
from tests.compare.builder import Item, item, write

OUTPUT = np.linspace(-4, 4, 64, dtype=np.float32)
GRADIENT = np.full(64, 0.25, dtype=np.float32)  # of norm 2
Losses = list[tuple[float, ...]]


def records(dtype: str = "float32", step: int = 0, rank: int = 0) -> list[Item]:
    """What a model returns, the gradient that its loss sends back, and an update."""
    place = {"step": step, "rank": rank, "parent": None}
    return [
        item("", OUTPUT, dtype, **place),
        item("", GRADIENT, dtype, role="grad_output", **place),
        item("fc", OUTPUT, dtype, role="param_update", path="weight", **place),
    ]


def run(
    path: Path,
    losses: Losses,
    dtype: str = "float32",
    feed: Path | None = None,
    items: Any = None,
    **fields: Any,
) -> Path:
    """A bundle of a step for each entry of losses; fed where it says with what."""
    series = [
        StepSeries(step, losses=each, **{"updates": 1, "grad_norm": 2.0, **fields})
        for step, each in enumerate(losses)
    ]
    items = (
        [each for step in range(len(losses)) for each in records(dtype, step)]
        if items is None
        else items
    )
    model = {"parameters": {"w": {"dtype": dtype, "shape": [1], "digests": {}}}}
    capture: dict[str, Any] = {}
    if feed is not None:
        with ac.open_bundle(feed) as opened:
            capture = {"feed": {"identity": opened.identity(), "not_fed": [], "golden": ""}}
    return write(path, items, series=series, model=model, capture=capture, steps=len(losses))


def compared(
    folder: Path, golden: Losses, candidate: Losses, dtype: str = "float32", **options: Any
) -> Comparison:
    first = run(folder / "golden", golden)
    return ac.diff(first, run(folder / "fed", candidate, dtype, first), **options)


def rows_of(comparison: Comparison, role: Role = Role.LOSS) -> list[Any]:
    return [row for row in comparison.rows if row.record.role is role]


def reasons(comparison: Comparison, role: Role = Role.LOSS) -> list[Reason]:
    return [row.reason for row in rows_of(comparison, role)]


@pytest.mark.parametrize("wrong", [2.5, 2.005, 4.0, -2.0, 0.0, math.nan, math.inf])
def test_a_loss_of_another_value_is_the_culprit_in_its_step(tmp_path: Path, wrong: float) -> None:
    comparison = compared(tmp_path, [(2.0,), (2.0,), (2.0,)], [(2.0,), (wrong,), (2.0,)])
    assert (comparison.answer, comparison.passed) == (Answer.BUG, False)
    assert [
        (culprit.place, culprit.stage, culprit.row.record.step) for culprit in comparison.culprits
    ] == [("the loss", Stage.LOSS, 1)]
    assert (
        comparison.conclusion == f"bug: the loss in step 1: {wrong:g} in the candidate, 2 in golden"
    )


def test_a_loss_over_its_limit_that_is_not_clearly_beyond_rounding_is_different(
    tmp_path: Path,
) -> None:
    comparison = compared(tmp_path, [(2.0,)], [(2.002,)])
    assert comparison.answer is Answer.DIFFERENT
    assert (
        comparison.conclusion
        == "different: the loss: 2.002 in the candidate, 2 in golden; by fixed limits; a baseline"
        " tells rounding from a bug"
    )


def test_a_loss_of_another_value_and_another_backward_is_named_for_both(tmp_path: Path) -> None:
    wrong = records()
    wrong[1] = wrong[1]._replace(
        array=np.flip(GRADIENT * np.linspace(0, 2, 64, dtype=np.float32)).copy()
    )
    golden = run(tmp_path / "golden", [(2.0,)])
    comparison = ac.diff(golden, run(tmp_path / "fed", [(2.5,)], feed=golden, items=wrong))
    assert {culprit.place for culprit in comparison.culprits} == {
        "the loss",
        "the backward of the loss, gradient of the output",
    }


def test_a_loss_that_is_golden_s_is_identical_whether_or_not_values_are_read(
    tmp_path: Path,
) -> None:
    comparison = compared(tmp_path, [(2.0,)], [(2.0,)], work=ac.Work(verify=True))
    assert (comparison.answer, comparison.by_digests, reasons(comparison)) == (
        Answer.IDENTICAL,
        0,
        [Reason.IDENTICAL],
    )


def test_nan_on_both_sides_is_the_same_and_told(tmp_path: Path) -> None:
    comparison = compared(tmp_path, [(math.nan,)], [(math.nan,)])
    assert (
        comparison.passed,
        "NaN or Inf on both sides from step 0 on" in comparison.conclusion,
    ) == (True, True)


def test_an_infinite_loss_of_the_other_sign_is_no_golden_s(tmp_path: Path) -> None:
    assert not compared(tmp_path, [(math.inf,)], [(-math.inf,)]).passed


def test_each_of_several_losses_of_a_step_is_compared(tmp_path: Path) -> None:
    comparison = compared(tmp_path, [(1.0, 2.0, 3.0)], [(1.0, 2.5, 3.0)])
    assert reasons(comparison) == [Reason.IDENTICAL, Reason.INTRODUCED, Reason.IDENTICAL]
    assert [culprit.place for culprit in comparison.culprits] == ["the loss of backward 1"]


def test_backwards_of_micro_batches_in_another_order_are_no_difference(tmp_path: Path) -> None:
    comparison = compared(tmp_path, [(1.0, 2.0, 3.0)], [(3.0, 1.0, 2.0)])
    assert (comparison.passed, len(rows_of(comparison))) == (True, 3)


@pytest.mark.parametrize(("candidate", "passes"), [((3.0,), True), ((2.5,), False)])
def test_of_another_number_of_losses_the_sums_are_compared(
    tmp_path: Path, candidate: tuple[float, ...], passes: bool
) -> None:
    """One backward of the sum of two losses is no other training."""
    comparison = compared(tmp_path, [(1.0, 2.0)], [candidate])
    assert (len(rows_of(comparison)), comparison.passed) == (1, passes)


@pytest.mark.parametrize(
    ("dtype", "off", "passes"),
    [
        ("float32", 8e-5, True),  # 1e6 terms that are added one by one in float32 are 8.7e-5 off
        ("float32", 2e-4, False),
        ("bfloat16", 2e-2, True),
        ("bfloat16", 0.2, False),
        ("float16", 5e-3, True),
        ("float16", 5e-2, False),
    ],
)
def test_a_loss_may_be_off_by_the_rounding_of_its_sums(
    tmp_path: Path, dtype: str, off: float, passes: bool
) -> None:
    assert compared(tmp_path, [(2.0,)], [(2.0 * (1 + off),)], dtype).passed is passes


@pytest.mark.parametrize(
    ("off", "scale", "passes"), [(1e-5, None, True), (1e-4, None, False), (1e-5, 65536.0, False)]
)
def test_a_loss_whose_terms_cancel_may_be_off_by_their_rounding(
    tmp_path: Path, off: float, scale: float | None, passes: bool
) -> None:
    """Outputs of 4 and a gradient of norm 2, that of a scaled loss or not, are rounded to 1.5e-5 in
    float32, however near to 0 that is.
    """
    golden = run(tmp_path / "golden", [(1e-9,)], loss_scale=scale)
    comparison = ac.diff(golden, run(tmp_path / "fed", [(off,)], feed=golden, loss_scale=scale))
    assert comparison.passed is passes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_output_that_the_loss_does_not_use_widens_no_limit(tmp_path: Path, dtype: str) -> None:
    """A model that returns a sum of 1400 beside its logits: a constant of 0.5 that is added to the
    loss hid behind it.
    """
    items = [
        *records()[:1],
        item("", np.float32([1400.0]), path="total", parent=None),
        *records()[1:],
    ]
    golden = run(tmp_path / "golden", [(1.5,)], items=items)
    wrong = ac.diff(golden, run(tmp_path / "wrong", [(2.0,)], dtype, golden, items=items))
    assert (wrong.passed, reasons(wrong)) == (False, [Reason.INTRODUCED])
    assert ac.diff(
        golden, run(tmp_path / "right", [(1.5 * (1 + 1e-5),)], dtype, golden, items=items)
    ).passed


@pytest.mark.parametrize(
    ("path", "answer"), [("hidden", Answer.ROUNDING), ("", Answer.BUG)], ids=["used", "not used"]
)
def test_a_loss_is_a_sum_of_the_outputs_that_it_sends_a_gradient_to(
    tmp_path: Path, path: str, answer: Answer
) -> None:
    """The largest output may be hidden states beside the loss's own: their number widens no
    limit."""
    hidden = item("", np.ones(1_000_000, np.float32), path="hidden", parent=None)
    large = [hidden, records()[0], item("", GRADIENT, role="grad_output", path=path, parent=None)]
    golden, sides = run(tmp_path / "golden", [(2.0,) * 40], items=large), {}
    for name, off in (("cpu", 1e-7), ("fed", 5e-5)):
        items = [each._replace(array=each.array * np.float32(1 + 1e-7)) for each in large]
        sides[name] = run(tmp_path / name, [(2.0 * (1 + off),) * 40], feed=golden, items=items)
    assert ac.diff(golden, sides["fed"], baseline=sides["cpu"]).answer is answer


def test_a_loss_near_its_minimum_may_be_off_by_half_types_in_terms_of_size_one(
    tmp_path: Path,
) -> None:
    """A divergence of two distributions that are nearly the same, from logarithms that bfloat16
    rounds.
    """
    flat = [item("", OUTPUT, parent=None), item("", GRADIENT * 0, role="grad_output", parent=None)]
    golden = run(tmp_path / "golden", [(2.6e-6,)], items=flat)
    assert ac.diff(
        golden, run(tmp_path / "fed", [(7.9e-4,)], "bfloat16", golden, items=flat)
    ).passed
    assert not ac.diff(
        golden, run(tmp_path / "wrong", [(7.9e-4,)], "float32", golden, items=flat)
    ).passed


@pytest.mark.parametrize(
    ("limits", "passes"),
    [
        ({"atol": 0.6}, True),
        ({"rtol": 0.1}, False),
        ({"limits": ac.Tolerance(rel_l2=0.3)}, True),
        ({"limits": ac.Tolerance(cosine=0.9)}, False),
    ],
)
def test_limits_that_the_user_gives_judge_losses(
    tmp_path: Path, limits: dict[str, float], passes: bool
) -> None:
    assert compared(tmp_path, [(2.0,)], [(2.5,)], **limits).passed is passes


def test_a_rule_of_a_file_judges_losses(tmp_path: Path) -> None:
    rules = tmp_path / "limits.toml"
    rules.write_text('[[rule]]\nrole = "loss"\natol = 1.0\n')
    comparison = compared(tmp_path, [(2.0,)], [(2.5,)], limits=ac.Tolerance(tolerances=rules))
    assert (
        comparison.passed,
        [finding for finding in comparison.preflight if finding.topic == "tolerances"],
    ) == (True, [])


@pytest.mark.parametrize(
    ("baseline", "candidate", "answer"),
    [
        (1e-6, 5e-5, Answer.BUG),  # narrower than by default
        (1e-6, 2e-6, Answer.ROUNDING),
        (3e-4, 4e-4, Answer.ROUNDING),  # wider
        (0.5, 0.5, Answer.NOT_SURE),  # the baseline may have the fault, too
    ],
)
def test_a_baseline_says_how_far_off_losses_are(
    tmp_path: Path, baseline: float, candidate: float, answer: Answer
) -> None:
    golden, losses = run(tmp_path / "golden", [(2.0,)] * 10), {}
    for name, off in (("cpu", baseline), ("fed", candidate)):
        items = [
            each._replace(array=each.array * np.float32(1 + 1e-7))
            for step in range(10)
            for each in records(step=step)
        ]
        losses[name] = run(tmp_path / name, [(2.0 * (1 + off),)] * 10, feed=golden, items=items)
    assert ac.diff(golden, losses["fed"], baseline=losses["cpu"]).answer is answer


@pytest.mark.parametrize(
    ("again", "answer"), [(0.0, Answer.ROUNDING), (3e-4, Answer.BUG)], ids=["proved", "not proved"]
)
def test_a_baseline_that_does_not_give_goldens_losses_in_goldens_precision_does_not_judge_them(
    tmp_path: Path, again: float, answer: Answer
) -> None:
    """The candidate's environment computes another loss, and so does the baseline that was made
    there.
    """
    golden = run(tmp_path / "golden", [(2.0,)] * 10)
    fed, cpu = (
        run(tmp_path / name, [(2.0 * (1 + 3e-4),)] * 10, feed=golden) for name in ("fed", "cpu")
    )
    run(cpu / "proof", [(2.0 * (1 + again),)] * 10, feed=golden)
    assert ac.diff(golden, fed, baseline=cpu).answer is answer


def test_a_loss_of_outputs_that_were_not_fed_inherits_their_error(tmp_path: Path) -> None:
    wrong = [item("fc", OUTPUT, parent=None), item("fc", OUTPUT * 2, parent=None)]
    golden = run(tmp_path / "golden", [(2.0,)], items=wrong[:1])
    comparison = ac.diff(golden, run(tmp_path / "fed", [(2.5,)], feed=golden, items=wrong[1:]))
    assert (reasons(comparison), comparison.culprits[0].name) == ([Reason.INHERITED], "fc")


def test_a_loss_stands_between_its_forward_and_its_backward(tmp_path: Path) -> None:
    comparison = compared(tmp_path, [(2.0,), (3.0,)], [(2.0,), (3.0,)])
    assert [row.record.role.value for row in comparison.rows] == [
        "output",
        "loss",
        "grad_output",
        "param_update",
    ] * 2


def test_without_losses_there_are_no_rows_of_them(tmp_path: Path) -> None:
    """Golden of an older version, or a case without a loss."""
    assert rows_of(compared(tmp_path, [()], [(2.0,)])) == []


# Clipping.


def clipping(
    folder: Path, golden: float | None, candidate: float | None, *, fed: bool = True
) -> Comparison:
    """Gradients of norm 2 that each side clips to a norm, or not; the update is off by as much."""
    off = (2.0 if candidate is None else candidate) / (2.0 if golden is None else golden)
    first = run(folder / "golden", [(1.0,)], clipped_norm=golden)
    update = records()[2]
    items = [*records()[:2], update._replace(array=update.array * np.float32(off))]
    return ac.diff(
        first,
        run(
            folder / "fed",
            [(1.0,)],
            feed=first if fed else None,
            items=items,
            clipped_norm=candidate,
        ),
    )


@pytest.mark.parametrize("fed", [True, False], ids=["fed", "free"])
@pytest.mark.parametrize(
    ("golden", "candidate", "words"),
    [
        (0.25, None, "the gradients are clipped to 0.25 in golden, not in the candidate"),
        (None, 0.25, "the gradients are clipped to 0.25 in the candidate, not in golden"),
        (
            0.25,
            0.325,
            (
                "the gradients are clipped to 0.25 in golden, to 0.325 in the candidate: all"
                " updates are given 1.3 x golden's, the clip factor"
            ),
        ),
    ],
)
def test_gradients_that_are_clipped_otherwise_are_named_and_not_a_parameter(
    tmp_path: Path, golden: float | None, candidate: float | None, words: str, fed: bool
) -> None:
    comparison = clipping(tmp_path, golden, candidate, fed=fed)
    assert (
        comparison.conclusion
        == ("bug: " if fed else "bug: the runs part at step 0 in the update: ") + words
    )
    assert [culprit.place for culprit in comparison.culprits] == ["the clipping of the gradients"]
    assert reasons(comparison, Role.PARAM_UPDATE) == [Reason.INHERITED]


@pytest.mark.parametrize("fed", [True, False], ids=["fed", "free"])
@pytest.mark.parametrize(("golden", "candidate"), [(2.0, None), (None, 2.0), (0.25, 0.250001)])
def test_clipping_to_what_the_norm_is_anyway_is_no_difference(
    tmp_path: Path, golden: float | None, candidate: float | None, fed: bool
) -> None:
    off = run(tmp_path / "golden", [(1.0,)], clipped_norm=golden)
    comparison = ac.diff(
        off, run(tmp_path / "fed", [(1.0,)], feed=off if fed else None, clipped_norm=candidate)
    )
    assert comparison.passed
