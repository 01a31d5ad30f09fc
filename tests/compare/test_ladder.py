"""Where two runs of training part, told from the numbers of their steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accucompare as ac
from accucompare.bundle.format.manifest import Manifest, StepSeries
from accucompare.compare.decide import Answer
from accucompare.compare.runs import JudgedBy, Rung
from accucompare.compare.runs.step_pairs import Setting
from accucompare.compare.runs.wander import Wander
from accucompare.errors import BundleError
from accucompare.numbers.digests import fingerprint
from accucompare.numbers.dtypes import DTYPES
from accucompare.report.words import training_words
from accucompare.report.words.training_words import details
from tests.compare.builder import edit_manifest, item, write

X = np.linspace(-1, 1, 64, dtype=np.float32)
FLOAT32 = {"parameters": {"w": {"dtype": "float32", "shape": [1], "digests": {}}}}
BFLOAT16 = {"parameters": {"w": {"dtype": "bfloat16", "shape": [1], "digests": {}}}}


def steps(count: int = 20, off: float = 0.0, seed: int = 0, **fields: Any) -> list[StepSeries]:
    """A run whose losses and norms are relatively ``off``, with scatter."""
    noise = np.random.default_rng(seed).normal(size=(count, 2)) * off
    both = [(2.0 / (1 + step) * (1 + own[0]), 3.0 * (1 + own[1])) for step, own in enumerate(noise)]
    known = {"lr": {"AdamW.0": 1e-3}, "updates": 1, "batch": "b"}
    return [
        StepSeries(
            step,
            losses=(float(loss),),
            grad_norm=float(norm),
            **{**known, "weights": f"w{step}", **fields},
        )
        for step, (loss, norm) in enumerate(both)
    ]


def changed(
    run: list[StepSeries], at: int, until: int | None = None, **fields: Any
) -> list[StepSeries]:
    """The same with other numbers from one step on."""
    last = len(run) if until is None else until
    return [
        StepSeries(**{**_fields(each), **(fields if at <= each.step < last else {})})
        for each in run
    ]


def _fields(each: StepSeries) -> dict[str, Any]:
    return {name: getattr(each, name) for name in StepSeries.__struct_fields__}


def run(
    path: Path, series: list[StepSeries], *items: Any, model: Any = None, **manifest: Any
) -> Path:
    return write(path, items, series=series, model=model or FLOAT32, **manifest)


def compared(
    folder: Path, golden: list[StepSeries], candidate: list[StepSeries], **options: Any
) -> ac.Comparison:
    return ac.diff(run(folder / "golden", golden), run(folder / "npu", candidate), **options)


def test_a_series_survives_its_manifest_with_nan_and_infinity(tmp_path: Path) -> None:
    written = [
        StepSeries(3, losses=(math.inf, -math.inf, math.nan), grad_norm=math.nan, skipped=True)
    ]
    run(tmp_path / "golden", written)
    (read,) = Manifest.read(tmp_path / "golden" / "manifest.json").series
    assert (read.step, read.losses[:2], math.isnan(read.losses[2]), read.skipped) == (
        3,
        (math.inf, -math.inf),
        True,
        True,
    )


@pytest.mark.parametrize(
    "damaged", [{"step": -1}, {"step": 0, "losses": "high"}, {"step": 0, "grad_norm": [1.0]}]
)
def test_a_damaged_series_is_refused(tmp_path: Path, damaged: Any) -> None:
    golden = run(tmp_path / "golden", [])
    edit_manifest(golden, lambda manifest: manifest.update(series=[damaged]))
    with pytest.raises(BundleError, match="malformed"):
        ac.open_bundle(golden)


def test_two_runs_that_are_bit_for_bit_the_same_are_identical(tmp_path: Path) -> None:
    comparison = compared(tmp_path, steps(), steps())
    assert (comparison.passed, comparison.answer, comparison.trouble) == (
        True,
        Answer.IDENTICAL,
        "",
    )
    assert "no layer was compared" in comparison.conclusion


def test_runs_within_the_default_limits_pass_and_the_sentence_says_how_far_that_looked(
    tmp_path: Path,
) -> None:
    comparison = compared(tmp_path, steps(), changed(steps(off=1e-7), 1, weights="other"))
    assert comparison.passed
    words = (
        "rounding, as far as fixed limits tell; by the losses and gradient norms of 20 steps alone:"
        " no layer was compared"
    )
    assert comparison.conclusion.startswith(words)


STAGES = [
    ({"batch": "other"}, Rung.DATA),
    ({"losses": (1.0,)}, Rung.LOSS),
    ({"grad_norm": 4.0}, Rung.GRADIENTS),
    ({"clipped_norm": 0.5}, Rung.UPDATE),
    ({"lr": {"AdamW.0": 2e-3}}, Rung.UPDATE),
]


@pytest.mark.parametrize(
    ("fields", "rung"), STAGES, ids=lambda value: value.value if isinstance(value, Rung) else ""
)
def test_the_first_step_and_stage_that_part_are_named(
    tmp_path: Path, fields: dict[str, Any], rung: Rung
) -> None:
    golden = steps(clipped_norm=1.0)
    comparison = compared(
        tmp_path, golden, changed(changed(golden, 12, **fields), 13, losses=(9.0,), grad_norm=9.0)
    )
    parting = comparison.training.parting
    assert (parting.step, parting.rung, comparison.passed) == (12, rung, False)
    assert f"the runs part at step 12 in the {rung.value}: " in comparison.conclusion


def test_of_several_stages_in_one_step_the_earliest_is_named(tmp_path: Path) -> None:
    comparison = compared(
        tmp_path, steps(), changed(steps(), 5, losses=(9.0,), grad_norm=9.0, lr={})
    )
    assert comparison.training.parting.rung is Rung.LOSS


def test_other_weights_at_the_beginning_are_where_runs_part(tmp_path: Path) -> None:
    parting = compared(tmp_path, steps(), steps(weights="other")).training.parting
    assert (parting.step, parting.rung) == (0, Rung.WEIGHTS)


def test_weights_that_differ_before_the_first_step_are_where_runs_part_without_digests_too(
    tmp_path: Path,
) -> None:
    models = [
        {
            "parameters": {
                "w": {
                    "dtype": "float32",
                    "shape": [3],
                    "digests": fingerprint(X[first : first + 3], DTYPES["float32"]),
                }
            }
        }
        for first in (0, 3)
    ]
    golden, npu = steps(weights=None), changed(steps(weights=None), 0, losses=(9.0,))
    comparison = ac.diff(
        run(tmp_path / "golden", golden, model=models[0]),
        run(tmp_path / "npu", npu, model=models[1]),
    )
    assert (
        training_words.parting_words(comparison.training.parting)
        == "the runs part at step 0 in the weights: 1 of 1 parameters differ: w"
    )


def test_weights_that_differ_later_are_what_was_trained_into_them(tmp_path: Path) -> None:
    comparison = compared(tmp_path, steps(), changed(steps(off=1e-7), 1, weights="other"))
    assert comparison.training.parting is None
    assert (comparison.training.other_bits.step, comparison.training.other_bits.rung) == (
        0,
        Rung.LOSS,
    )


def test_digests_of_batches_cast_to_another_type_are_no_other_data(tmp_path: Path) -> None:
    golden, candidate = (
        run(tmp_path / "golden", steps()),
        run(tmp_path / "npu", steps(batch="cast", weights="cast"), model=BFLOAT16),
    )
    comparison = ac.diff(golden, candidate)
    assert (comparison.training.parting, comparison.training.same_batches) == (None, None)
    assert "digests of the" not in " ".join(details(comparison, comparison.training))


def test_batches_that_agree_at_first_and_differ_later_are_other_data_in_any_type(
    tmp_path: Path,
) -> None:
    golden, candidate = (
        run(tmp_path / "golden", steps()),
        run(tmp_path / "npu", changed(steps(), 4, batch="other"), model=BFLOAT16),
    )
    assert ac.diff(golden, candidate).training.parting.rung is Rung.DATA


@pytest.mark.parametrize(
    ("off", "rung"),
    [(1e-6, None), (0.1, Rung.DATA), (0.0, Rung.DATA)],
    ids=["rounded", "other values", "digests alone differ"],
)
def test_batches_that_differ_by_rounding_as_of_a_gans_critic_are_told_by_their_rows(
    tmp_path: Path, off: float, rung: Rung | None
) -> None:
    sides = []
    for name, series, factor in (
        ("golden", steps(2), 1.0),
        ("npu", changed(steps(2), 1, batch="other"), 1.0 + off),
    ):
        given = [
            item(
                "",
                X * np.float32(factor if step else 1),
                role="input",
                path="x",
                parent=None,
                step=step,
            )
            for step in range(2)
        ]
        sides.append(
            run(
                tmp_path / name,
                series,
                *given,
                *(item("", X, parent=None, step=step) for step in range(2)),
            )
        )
    comparison = ac.diff(*sides)
    assert (getattr(comparison.training.parting, "rung", None), comparison.passed) == (
        rung,
        rung is None,
    )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_on_one_side_only_is_where_runs_part(
    tmp_path: Path, value: float
) -> None:
    parting = compared(tmp_path, steps(), changed(steps(), 7, losses=(value,))).training.parting
    assert (parting.step, parting.rung) == (7, Rung.LOSS)


def test_nan_on_both_sides_agrees_and_is_said(tmp_path: Path) -> None:
    bad = changed(steps(), 7, losses=(math.nan,))
    comparison = compared(tmp_path, bad, changed(bad, 0, 1, losses=(2.0 + 1e-7,)))
    assert comparison.passed
    assert "NaN or Inf on both sides from step 7 on" in comparison.conclusion


def test_nothing_but_nan_on_both_sides_is_no_pass(tmp_path: Path) -> None:
    bad = changed(steps(), 0, losses=(math.nan,), grad_norm=math.nan)
    comparison = compared(tmp_path, bad, bad)
    assert (comparison.passed, comparison.trouble) == (False, "nothing could be compared")


# What judges.


def test_a_baseline_says_how_far_losses_may_wander(tmp_path: Path) -> None:
    """The candidate is as far off as the baseline, and ten times as far as the default limit."""
    golden, candidate = (
        run(tmp_path / "golden", steps(50)),
        run(tmp_path / "npu", steps(50, 1e-3, seed=1, weights="n")),
    )
    baseline = run(tmp_path / "cpu", steps(50, 1e-3, seed=2, weights="c"))
    assert not ac.diff(golden, candidate).passed
    comparison = ac.diff(
        golden,
        run(tmp_path / "npu2", changed(steps(50, 1e-3, seed=1), 1, weights="n")),
        baseline=baseline,
    )
    assert (comparison.passed, comparison.training.judged_by) == (True, JudgedBy.BASELINE)
    assert comparison.conclusion.startswith("rounding; ")


def test_beyond_the_baselines_envelope_it_is_a_bug(tmp_path: Path) -> None:
    golden, candidate = (
        run(tmp_path / "golden", steps(50)),
        run(tmp_path / "npu", changed(steps(50, 1e-7, seed=1), 30, grad_norm=3.001)),
    )
    comparison = ac.diff(golden, candidate, baseline=run(tmp_path / "cpu", steps(50, 1e-7, seed=2)))
    assert comparison.answer is Answer.BUG
    assert (comparison.training.parting.step, comparison.training.parting.rung) == (
        30,
        Rung.GRADIENTS,
    )


def test_goldens_second_run_says_how_far_losses_may_wander(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", steps(50))
    run(golden / "repeat1", steps(50, 1e-3, seed=3))
    comparison = ac.diff(
        golden, run(tmp_path / "npu", changed(steps(50, 1e-3, seed=1), 1, weights="n"))
    )
    assert (comparison.passed, comparison.training.judged_by) == (True, JudgedBy.REPEAT)


def test_a_second_golden_run_that_is_bit_for_bit_the_first_allows_nothing_and_forbids_nothing(
    tmp_path: Path,
) -> None:
    golden = run(tmp_path / "golden", steps())
    run(golden / "repeat1", steps())
    comparison = ac.diff(golden, run(tmp_path / "npu", steps(off=1e-6)))
    assert (comparison.passed, comparison.training.judged_by) == (True, JudgedBy.DEFAULT)


def test_a_baseline_that_is_far_off_itself_proves_nothing(tmp_path: Path) -> None:
    golden, candidate = (
        run(tmp_path / "golden", steps(50)),
        run(tmp_path / "npu", steps(50, 0.1, seed=1)),
    )
    comparison = ac.diff(golden, candidate, baseline=run(tmp_path / "cpu", steps(50, 0.1, seed=2)))
    assert comparison.answer is Answer.NOT_SURE
    assert "far beyond rounding, and so is the run that judges" in comparison.trouble


@pytest.mark.parametrize(
    ("limits", "passes"),
    [
        ({"limits": ac.Tolerance(rel_l2=1e-2)}, True),
        ({"atol": 1e-9}, False),
        ({"rtol": 1e-2}, True),
    ],
)
def test_limits_that_the_user_gives_judge_losses_too(
    tmp_path: Path, limits: dict[str, float], passes: bool
) -> None:
    comparison = compared(tmp_path, steps(), changed(steps(off=1e-3), 1, weights="n"), **limits)
    assert (comparison.passed, comparison.training.judged_by) == (passes, JudgedBy.GIVEN)


def test_the_steps_of_a_fed_candidate_start_from_goldens_so_they_do_not_part(
    tmp_path: Path,
) -> None:
    golden = run(tmp_path / "golden", steps(), item("fc", X))
    with ac.open_bundle(golden) as opened:
        feed = {"feed": {"identity": opened.identity(), "not_fed": [], "golden": ""}}
    comparison = ac.diff(
        golden,
        run(tmp_path / "npu", changed(steps(), 3, grad_norm=9.0), item("fc", X), capture=feed),
    )
    assert (comparison.passed, comparison.training.judged_by, comparison.training.parting) == (
        True,
        JudgedBy.NOTHING,
        None,
    )


# Rows.


def test_rows_say_where_in_the_step_it_begins(tmp_path: Path) -> None:
    """The loss parts at step 1, a layer's output before it, and nothing at step 0."""
    sides = []
    for off in (0.0, 0.1):
        outputs = [item("fc", X * np.float32(1 + off * step), step=step) for step in range(2)]
        sides.append((steps(2) if not off else changed(steps(2), 1, losses=(9.0,)), outputs))
    (golden, ours), (candidate, theirs) = sides
    comparison = ac.diff(
        run(tmp_path / "golden", golden, *ours), run(tmp_path / "npu", candidate, *theirs)
    )
    parting = comparison.training.parting
    assert (parting.step, parting.rung, parting.row.place) == (1, Rung.FORWARD, "fc output")


def test_runs_that_part_fail_though_every_row_passes(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", steps(2), item("fc", X))
    comparison = ac.diff(
        golden, run(tmp_path / "npu", changed(steps(2), 1, losses=(9.0,)), item("fc", X))
    )
    assert (comparison.passed, comparison.trouble) == (False, "")
    assert comparison.conclusion.startswith("different: the runs part at step 1 in the loss: ")


# Settings.


@pytest.mark.parametrize(
    ("fields", "setting", "parts"),
    [
        ({"lr": {"AdamW.0": 2e-3}}, Setting.LR, True),
        ({"updates": 2}, Setting.UPDATES, True),
        ({"skipped": True, "updates": 0}, Setting.SKIPPED, False),
        ({"loss_scale": 1024.0}, Setting.LOSS_SCALE, False),
        ({"losses": (1.0, 1.0)}, Setting.BACKWARDS, False),
    ],
    ids=lambda value: value.value if isinstance(value, Setting) else "",
)
def test_what_the_runs_were_told_otherwise_is_said_once_with_its_first_step(
    tmp_path: Path, fields: dict[str, Any], setting: Setting, parts: bool
) -> None:
    golden = changed(steps(4), 0, losses=(2.0,))
    comparison = compared(tmp_path, golden, changed(golden, 2, **fields))
    (other,) = comparison.training.settings
    assert (other.setting, other.step, other.steps) == (setting, 2, 2)
    assert (comparison.training.parting is not None) is parts


def test_a_learning_rate_kept_in_float32_is_no_other_one(tmp_path: Path) -> None:
    comparison = compared(
        tmp_path, steps(lr={"AdamW.0": 0.1}), steps(lr={"AdamW.0": float(np.float32(0.1))})
    )
    assert not comparison.training.settings


def test_one_rate_in_more_parameter_groups_is_no_other_one(tmp_path: Path) -> None:
    groups = {"AdamW.0": 0.1, "AdamW.1": 0.1}
    comparison = compared(tmp_path, steps(lr={"AdamW.0": 0.1}), steps(lr=groups))
    assert not comparison.training.settings


def test_a_candidate_with_fewer_steps_is_no_pass_and_one_with_more_is(tmp_path: Path) -> None:
    few, many = run(tmp_path / "few", steps(5)), run(tmp_path / "many", steps(9))
    assert "lacks 4 of golden's 9 steps" in ac.diff(many, few).trouble
    more = ac.diff(few, many)
    assert more.passed
    assert "5 of 9 steps" in more.conclusion


# Drift and scatter.


def test_a_bias_is_told_from_scatter() -> None:
    noise = np.random.default_rng(0).normal(size=400) * 1e-4
    scatter, drift = Wander.of(list(noise)), Wander.of(list(noise + 5e-5))
    assert (scatter.biased, drift.biased) == (False, True)
    assert drift.drift == pytest.approx(np.mean(noise + 5e-5))
    assert drift.scatter == pytest.approx(np.std(noise, ddof=1))


def test_neighbouring_steps_that_are_alike_count_as_fewer() -> None:
    """A random walk away from zero and back is no bias, though its mean is far from zero for
    independent steps.
    """
    walk = np.cumsum(np.random.default_rng(4).normal(size=400))
    found = Wander.of(list(walk))
    assert abs(np.mean(walk)) > 4 * np.std(walk, ddof=1) / 20
    assert not found.biased


@pytest.mark.parametrize(
    ("first", "named"), [(1, (0, Rung.UPDATE)), (4, (4, Rung.LOSS))], ids=["right after", "later"]
)
def test_a_loss_that_parts_right_after_an_update_of_another_optimizer_is_that_updates(
    first: int, named: tuple[int, Rung], tmp_path: Path
) -> None:
    """Another class alone is no other optimizer: a device has its own."""
    candidate = changed(changed(steps(8), first, losses=(9.0,)), 0, until=first, lr={"SGD.0": 1e-3})
    parting = compared(
        tmp_path, steps(8), changed(candidate, 2, lr={"AdamW.0": 1e-3})
    ).training.parting
    assert (parting.step, parting.rung) == named


def test_an_optimizer_of_another_class_has_the_same_learning_rate_under_its_own_name(
    tmp_path: Path,
) -> None:
    comparison = compared(tmp_path, steps(), steps(lr={"NpuFusedAdamW.0": 1e-3}))
    assert not comparison.training.settings
    other = compared(tmp_path / "2", steps(), steps(lr={"NpuFusedAdamW.0": 1e-2}))
    assert [setting.name for setting in other.training.settings] == ["AdamW.0"]


@pytest.mark.parametrize(
    ("limits", "rung"),
    [
        ({"atol": 1e-3}, None),
        ({"atol": 1e-6}, Rung.DATA),
        ({"limits": ac.Tolerance(cosine=0.5)}, Rung.DATA),
        ({}, Rung.DATA),
    ],
)
def test_limits_that_the_user_gives_judge_batches_too(
    tmp_path: Path, limits: dict[str, float], rung: Rung | None
) -> None:
    golden = run(tmp_path / "golden", steps(1), item("", X, role="input", parent=None))
    candidate = run(
        tmp_path / "npu",
        steps(1, batch="other"),
        item("", X + np.float32(1e-4), role="input", parent=None),
    )
    parting = ac.diff(golden, candidate, **limits).training.parting
    assert (None if parting is None else parting.rung) == rung


def test_batches_of_which_no_values_were_kept_are_judged_by_digests(tmp_path: Path) -> None:
    assert (
        compared(tmp_path, steps(), steps(batch="other"), atol=1.0).training.parting.rung
        is Rung.DATA
    )


@pytest.mark.parametrize(
    "where", [{"name": "", "parent": None}, {"name": "fc"}], ids=["model", "module"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_named_and_not_its_backward(
    tmp_path: Path, value: float, where: dict[str, Any]
) -> None:
    sides = []
    for gradient in (X, np.full_like(X, math.nan)):
        sides.append([item(values=X, **where), item(values=gradient, role="grad_output", **where)])
    golden = run(tmp_path / "golden", steps(2), *sides[0])
    comparison = ac.diff(
        golden, run(tmp_path / "npu", changed(steps(2), 0, losses=(value,)), *sides[1])
    )
    assert comparison.conclusion.startswith(
        f"different: the runs part at step 0 in the loss: loss 2 in golden, {value:g} in the"
        " candidate"
    )
    off = [sides[1][0]._replace(array=X * np.float32(2)), sides[1][1]]
    comparison = ac.diff(
        golden, run(tmp_path / "forward", changed(steps(2), 0, losses=(value,)), *off)
    )
    assert comparison.training.parting.rung is Rung.FORWARD


def test_an_all_clear_by_digests_says_that_losses_were_read(tmp_path: Path) -> None:
    golden, npu = (run(tmp_path / name, steps(2), item("fc", X)) for name in ("golden", "npu"))
    assert (
        ac.diff(golden, npu).conclusion
        == "identical; by digests alone, no values were read but losses and gradient norms of 2"
        " steps"
    )
