"""Where errors of a backward and of an update come from, told from the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accucompare as ac
from accucompare.bundle.format.records import Role
from accucompare.compare.decide import Answer
from accucompare.compare.origins.sites import Stage
from accucompare.compare.remarks import BareRemark
from accucompare.compare.rows.rows import Reason
from accucompare.report.words import verdict_words
from tests.compare.builder import Item, compare, item, write

X = np.linspace(-1, 1, 64, dtype=np.float32)
Pair = tuple[Item, Item]


def pair(name: str, role: str, off: float = 1e-7, **fields: Any) -> Pair:
    """The same record on both sides, relatively ``off``."""
    return item(name, X, role=role, **fields), item(
        name, X * np.float32(1 + off), role=role, **fields
    )


def compared(tmp_path: Path, *pairs: Pair) -> ac.Comparison:
    return compare(tmp_path, [ours for ours, _ in pairs], [theirs for _, theirs in pairs])


def reasons(comparison: ac.Comparison) -> list[str]:
    return [row.reason.value for row in comparison.rows]


def test_free_running_a_gradient_after_a_wrong_forward_is_inherited(tmp_path: Path) -> None:
    comparison = compared(
        tmp_path,
        pair("a", "output", 0.1),
        pair("a", "grad_output", 0.1),
        pair("a", "call_grad", 0.1, path="weight"),
    )
    assert reasons(comparison) == ["introduced", "inherited", "inherited"]


@pytest.mark.parametrize(
    ("role", "parent", "reason"),
    [
        ("grad_output", None, "introduced"),  # by the loss
        ("grad_output", ("", 0), "glue"),  # by the parent's code behind it
        ("grad_input", ("", 0), "introduced"),
        ("call_grad", ("", 0), "introduced"),
    ],
)
def test_the_first_gradient_over_its_limit_is_where_the_error_was_made(
    tmp_path: Path, role: str, parent: Any, reason: str
) -> None:
    comparison = compared(
        tmp_path,
        pair("a", "output"),
        pair("a", role, 0.1, parent=parent, path="0"),
        pair("b", "grad_input", 0.1),
    )
    assert reasons(comparison) == ["ok", reason, "inherited"]
    stage = Stage.LOSS if role == "grad_output" and parent is None else Stage.BACKWARD
    assert [culprit.stage for culprit in comparison.culprits] == [stage]


def test_a_parameters_gradient_is_as_wrong_as_its_parts(tmp_path: Path) -> None:
    parts = [
        pair("b", "call_grad", 0.1, path="/a.weight"),
        pair("a", "param_grad", 0.1, path="weight", parent=None),
    ]
    later = [pair(name, "output", 0.1, step=1) for name in "ac"]  # a: with what it updated
    found = reasons(compared(tmp_path, *parts, *later))
    assert found == ["introduced", "inherited", "inherited", "introduced"]


def test_a_sum_that_is_wrong_though_its_parts_are_right_is_named(tmp_path: Path) -> None:
    parts = [
        pair("a", "call_grad", path="weight"),
        pair("a", "param_grad", 0.1, path="weight", parent=None),
    ]
    comparison = compared(tmp_path, *parts)
    assert reasons(comparison) == ["ok", "introduced"]
    assert comparison.culprits[0].place == "the sum of the gradients of a.weight"


def test_a_bias_whose_gradient_cancels_is_judged_by_what_is_summed(tmp_path: Path) -> None:
    """The gradient of a key's bias is zero, but for rounding; the rounding of it differs
    altogether.
    """
    tiny = np.full(8, 1e-9, np.float32)
    golden = [item("k", X, role="grad_output"), item("k", tiny, role="call_grad", path="bias")]
    candidate = [item("k", X, role="grad_output"), item("k", -tiny, role="call_grad", path="bias")]
    assert compare(tmp_path, golden, candidate).passed
    wrong = [candidate[0], item("k", tiny + np.float32(0.1), role="call_grad", path="bias")]
    assert not compare(tmp_path, golden, wrong).passed


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize(
    ("off", "elsewhere", "code"),
    [
        (1.0, 0.0, 0),  # as much as the golden value itself: rounding of its terms
        (1e6, 0.0, 1),  # a term is missing
        (1.0, 0.1, 1),
    ],
)
def test_an_input_gradient_whose_terms_cancel_tells_nothing_unless_fed(
    tmp_path: Path, fed: bool, off: float, elsewhere: float, code: int
) -> None:
    def side(off: float, elsewhere: float) -> list[Item]:
        norm: dict[str, Any] = {"type": "BatchNorm1d"}
        tiny = X[::-1] * np.float32(1e-6 * (1 + off))
        return [
            item("norm", X, role="input", path="0", **norm),
            item("norm", X, **norm),
            item("last", X * np.float32(1 + elsewhere), role="call_grad", path="weight"),
            item("norm", X, role="grad_output", **norm),
            item("norm", tiny, role="grad_input", path="0", **norm),
            item("first", X if fed else tiny, role="grad_output"),
            item("first", X if fed else tiny, role="call_grad", path="weight"),
        ]

    golden = write(tmp_path / "golden", side(0.0, 0.0))
    with ac.open_bundle(golden) as opened:
        feed = {"golden": "golden", "identity": opened.identity(), "not_fed": [], "backward": True}
    capture = {"backward": True, "feed": feed if fed else None}
    found = ac.diff(golden, write(tmp_path / "npu", side(off, elsewhere), capture=capture))
    assert found.exit_code == (code or (0 if fed else 2)), found.conclusion
    assert ("cancel" in found.conclusion) is (not code and not fed)


NOTHING = np.zeros(8)


@pytest.mark.parametrize("baseline", [False, True], ids=["limits", "baseline"])
@pytest.mark.parametrize("made_of", [
    # too small for the parameter's last place
    [("param_before", "weight", np.ones(8)), ("param_update", "weight", NOTHING)],
    [("grad_output", "", X), ("call_grad", "bias", NOTHING)],  # a sum that cancels
    [("grad_output", "", X), ("call_grad", "bias", NOTHING), ("param_grad", "bias", NOTHING)],
])  # fmt: skip
@pytest.mark.parametrize(("off", "passes"), [(1e-9, True), (1e-2, False)])
def test_what_rounding_takes_whole_may_be_a_little_on_the_other_side(
    tmp_path: Path,
    made_of: list[tuple[str, str, np.ndarray]],
    off: float,
    passes: bool,
    baseline: bool,
) -> None:
    sides, feed = [], {}
    for name, dtype, error in (
        ("golden", "float32", 0.0),
        ("npu", "float64", off),
        ("baseline", "float64", 1e-12),
    ):
        off_by = [
            (role, path, values + error * (values is NOTHING)) for role, path, values in made_of
        ]
        items = [
            item("a", values, dtype, role=role, path=path, parent=None)
            for role, path, values in off_by
        ]
        sides.append(write(tmp_path / name, items, capture={"backward": True, **feed}))
        with ac.open_bundle(sides[0]) as golden:
            feed = {
                "feed": {
                    "golden": "golden",
                    "identity": golden.identity(),
                    "not_fed": [],
                    "backward": True,
                }
            }
    assert ac.diff(*sides[:2], baseline=sides[2] if baseline else None).passed is passes


@pytest.mark.parametrize(
    ("off", "step", "reason"),
    [(0.1, 2, "inherited"), (1e-7, 2, "introduced"), (0.1, 1, "introduced")],
)
def test_state_that_unrecorded_steps_made_after_a_wrong_one_is_no_culprit(
    tmp_path: Path, off: float, step: int, reason: str
) -> None:
    before = pair("a", "param_before", 0.0, path="weight", parent=None)
    state = pair("a", "state_before", 0.1, path="weight.exp_avg", parent=None, step=step)
    assert reasons(compared(tmp_path, pair("a", "grad_input", off), before, state))[-1] == reason


def test_an_update_is_judged_by_the_rounding_of_its_parameter(tmp_path: Path) -> None:
    weight, update = np.full(64, 1.0, np.float32), np.full(64, 1e-5, np.float32)
    golden = [
        item("a", weight, role="param_before", path="w"),
        item("a", update, role="param_update", path="w"),
    ]
    candidate = [golden[0], item("a", update + np.float32(6e-8), role="param_update", path="w")]
    assert compare(tmp_path, golden, candidate).passed


@pytest.mark.parametrize(("dtype", "passed"), [("bfloat16", True), ("float32", False)])
def test_an_update_of_a_parameter_that_agrees_is_judged_by_the_parameters_type(
    tmp_path: Path, dtype: str, passed: bool
) -> None:
    """An update is kept in float32: that of a bfloat16 parameter holds its rounding, as where a
    fused optimizer computes it.
    """
    before = item("a", np.zeros(64, np.float32), dtype, role="param_before", path="w")
    sides = [
        [before, item("a", np.full(64, update, np.float32), role="param_update", path="w")]
        for update in (1e-3, 1.003e-3)
    ]
    assert compare(tmp_path, *sides).passed is passed


@pytest.mark.parametrize("given", ["", "param_grad", "param_before", "state_before"])
def test_free_running_an_update_is_judged_only_if_it_was_given_the_same(
    tmp_path: Path, given: str
) -> None:
    before = [pair("a", given, 1e-7, path="w", parent=None)] if given else []
    comparison = compared(tmp_path, *before, pair("a", "param_update", 0.03, path="w", parent=None))
    assert comparison.rows[-1].reason is (Reason.NOT_COMPARABLE if given else Reason.INTRODUCED)
    assert comparison.passed is bool(given)


@pytest.mark.parametrize(("off", "reason"), [(0.0, "introduced"), (1e-7, "ok")])
def test_free_running_an_update_that_was_given_goldens_bits_is_judged_as_if_fed(
    tmp_path: Path, off: float, reason: str
) -> None:
    update = [
        item("a", X * np.float32(by), role="param_update", path="w") for by in (0.01, 0.01003)
    ]
    given = [pair("a", role, off, path="w") for role in ("param_grad", "param_before")]
    assert reasons(compared(tmp_path, *given, (update[0], update[1])))[-1] == reason


@pytest.mark.parametrize(
    ("role", "dtype", "off"),
    [
        ("param_update", "float32", 0.06),
        ("param_update", "float16", 0.6),
        ("param_update", "bfloat16", 1.2),
        ("param_before", "float32", 0.015),
        ("param_before", "bfloat16", 0.7),
        ("param_changed", "float32", 0.015),
        ("param_changed", "bfloat16", 0.7),
    ],
)
def test_free_running_what_no_other_gradient_explains_is_no_all_clear(
    tmp_path: Path, role: str, dtype: str, off: float
) -> None:
    """Less is explained; and so is a part of it alone, as Adam's update of a key's bias, whose
    gradient is rounding.
    """
    step = 0 if role == "param_update" else 1
    rounding = 1e-7 if dtype == "float32" else 1e-2
    before = [
        pair("a", "param_grad", rounding, dtype=dtype, path="w", parent=None, step=each)
        for each in range(step + 1)
    ]
    large = item("b", 100 * X, dtype, role=role, path="w", parent=None, step=step)

    def found(off: float, *more: Pair) -> ac.Comparison:
        pairs = [
            *before,
            pair("a", role, off, dtype=dtype, path="w", parent=None, step=step),
            *more,
        ]
        number = len(list(tmp_path.iterdir()))
        sides = [
            write(
                tmp_path / f"{number}{side}",
                [each[side] for each in pairs],
                capture={"dtype": dtype},
            )
            for side in (0, 1)
        ]
        return ac.diff(*sides)

    alone = found(off)
    assert alone.answer is Answer.NOT_SURE
    assert verdict_words.remark_words(BareRemark.WANDERED) in alone.conclusion
    assert any(row.verdict.waived for row in alone.rows)
    assert found(off / 2).passed
    assert found(off, (large, large)).passed


@pytest.mark.parametrize("role", ["param_before", "state_before"])
def test_free_running_what_an_update_of_other_gradients_made_is_not_judged_in_the_next_step(
    tmp_path: Path, role: str
) -> None:
    gradient = pair("a", "param_grad", 1e-7, path="w", parent=None)
    comparison = compared(tmp_path, gradient, pair("a", role, 0.5, path="w", parent=None, step=1))
    assert reasons(comparison) == ["ok", "not comparable"]
    alone = compared(tmp_path, pair("a", role, 0.5, path="w", parent=None, step=1))
    assert reasons(alone) == ["introduced"]


def test_gradients_that_golden_was_captured_without_are_listed_and_fail_nothing(
    tmp_path: Path,
) -> None:
    ours, theirs = pair("a", "output")
    comparison = compare(tmp_path, [ours], [theirs, item("a", X, role="grad_output")])
    assert reasons(comparison) == ["ok", "not comparable"]
    assert verdict_words.detail(comparison.rows[1]) == "golden was captured without gradients"
    assert comparison.passed


def test_the_json_says_in_which_stage_a_culprits_error_is_made(tmp_path: Path) -> None:
    comparison = compared(tmp_path, pair("a", "call_grad", 0.1, path="weight"))
    comparison.to_json(tmp_path / "found.json")
    assert '"stage": "backward"' in (tmp_path / "found.json").read_text()


def test_gradients_that_a_candidate_of_an_older_version_lacks_fail_nothing(tmp_path: Path) -> None:
    """It does not say whether it was asked to leave them out."""
    ours, theirs = pair("a", "output")
    gradient = item("a", X, role="grad_output")
    golden = write(tmp_path / "golden", [ours, gradient], capture={"backward": True})
    comparison = ac.diff(golden, write(tmp_path / "older", [theirs]))
    assert (reasons(comparison), comparison.passed) == (["ok", "not comparable"], True)


def test_gradients_that_never_came_though_they_were_asked_for_are_missing(tmp_path: Path) -> None:
    ours, theirs = pair("a", "output")
    golden = write(
        tmp_path / "golden", [ours, item("a", X, role="grad_output")], capture={"backward": True}
    )
    comparison = ac.diff(
        golden, write(tmp_path / "asked", [theirs], capture={"no_backward": False})
    )
    assert (reasons(comparison), comparison.passed) == (["ok", "missing"], False)


def with_optimizer(folder: Path, name: str, optimizer: str, **fields: Any) -> Path:
    """A bundle with one value of its optimizer's state and an update."""
    items = [
        item("a", X, role="param_update", path="w", parent=None),
        item("a", X, role="state_after", path=f"w.{name}", parent=None),
    ]
    return write(
        folder / name,
        items,
        capture={"backward": True, "no_backward": False, "optimizer": f"torch.optim.{optimizer}"},
        **fields,
    )


def test_state_of_an_optimizer_of_another_class_is_told_once(tmp_path: Path) -> None:
    """Its updates are compared, and here are the same."""
    comparison = ac.diff(
        with_optimizer(tmp_path, "exp_avg", "adamw.AdamW"),
        with_optimizer(tmp_path, "momentum", "sgd.SGD"),
    )
    assert reasons(comparison) == ["identical", "not comparable", "not comparable"]
    told = [finding.message for finding in comparison.preflight if finding.topic == "optimizer"]
    assert told == ["optimizer: golden torch.optim.adamw.AdamW, candidate torch.optim.sgd.SGD"]
    assert comparison.passed


def test_state_that_one_side_lacks_of_the_same_optimizer_is_missing(tmp_path: Path) -> None:
    comparison = ac.diff(
        with_optimizer(tmp_path, "exp_avg", "adamw.AdamW"),
        with_optimizer(tmp_path, "momentum", "adamw.AdamW"),
    )
    assert (reasons(comparison), comparison.passed) == (["identical", "extra", "missing"], False)


@pytest.mark.parametrize(
    ("role", "path", "place"),
    [
        ("call_grad", "weight", "the backward of a, gradient of weight"),
        ("param_update", "weight", "the update of a.weight"),
        ("state_after", "weight.exp_avg_sq", "the update of a.weight, exp_avg_sq"),
    ],
)
def test_the_place_of_a_culprit_says_what_of_the_parameter_it_is(
    tmp_path: Path, role: str, path: str, place: str
) -> None:
    comparison = compared(tmp_path, pair("a", "output", 0.0), pair("a", role, 0.1, path=path))
    assert [culprit.place for culprit in comparison.culprits] == [place]


def test_nan_gradients_on_both_sides_agree_and_are_counted(tmp_path: Path) -> None:
    bad = X.copy()
    bad[3] = np.nan
    gradient = item("a", bad, role="param_grad", path="w", parent=None)
    comparison = compare(tmp_path, [item("a", X), gradient], [item("a", X), gradient])
    assert (comparison.passed, comparison.nonfinite_on_both) == (True, 1)


def test_a_number_of_a_parameter_group_is_told_by_its_two_values(tmp_path: Path) -> None:
    sides = [
        [
            item("a", X),
            item("", np.array(value), role="state_before", path="AdamW.0.lr", parent=None),
        ]
        for value in (1e-3, 1e-4)
    ]
    folder = tmp_path / "golden"
    golden = write(folder, sides[0])
    with ac.open_bundle(golden) as opened:
        feed = {"feed": {"identity": opened.identity(), "not_fed": [], "golden": ""}}
    comparison = ac.diff(golden, write(tmp_path / "npu", sides[1], capture=feed))
    assert (
        comparison.conclusion
        == "bug: what the update is given of AdamW.0.lr: 0.001 in golden, 0.0001 in the candidate"
    )


@pytest.mark.parametrize(("step", "reason"), [(0, "introduced"), (1, "inherited")])
def test_a_number_of_a_parameter_group_that_an_earlier_wrong_update_wrote_is_inherited(
    tmp_path: Path, step: int, reason: str
) -> None:
    """It is what the update of step 0 wrote into its group (a sum of weights), unless it is wrong
    when that begins.
    """

    def number(value: float) -> Item:
        return item(
            "",
            np.array(value),
            role="state_before",
            path="Own.0.weight_sum",
            parent=None,
            step=step,
        )

    update = pair("a", "param_update", 0.1, path="w", parent=None)
    rows = (
        [(number(1.0), number(2.0)), update] if step == 0 else [update, (number(1.0), number(2.0))]
    )
    golden = write(tmp_path / "golden", [ours for ours, _ in rows])
    with ac.open_bundle(golden) as opened:
        feed = {"feed": {"identity": opened.identity(), "not_fed": [], "golden": ""}}
    comparison = ac.diff(
        golden, write(tmp_path / "npu", [theirs for _, theirs in rows], capture=feed)
    )
    assert [
        row.reason.value for row in comparison.rows if row.record.role is Role.STATE_BEFORE
    ] == [reason]
    assert comparison.culprits[0].row.record.step == 0


@pytest.mark.parametrize("older", [True, False], ids=["golden", "candidate"])
def test_how_an_update_is_computed_which_older_bundles_hold_is_no_difference(
    tmp_path: Path, older: bool
) -> None:
    both = [item("", np.array(0.1), role="state_before", path="AdamW.0.lr", parent=None)]
    way = item("", np.array(True), role="state_before", path="AdamW.0.foreach", parent=None)
    sides = [[*both, way], both]
    comparison = compare(tmp_path, *(sides if older else sides[::-1]))
    assert comparison.passed
    assert reasons(comparison) == ["identical", "not comparable"]
    assert "newer captures do not record it" in verdict_words.detail(comparison.rows[1])


def test_an_update_of_another_optimizer_is_judged_though_only_one_side_has_its_state(
    tmp_path: Path,
) -> None:
    given = [
        item("a", X, role=role, path="weight", parent=None)
        for role in ("param_grad", "param_before")
    ]
    sides = [
        [
            *given,
            item("", np.array(value), role="state_before", path=path, parent=None),
            item("a", X * np.float32(factor), role="param_update", path="weight", parent=None),
        ]
        for path, value, factor in (("AdamW.0.eps", 1e-8, 1.0), ("SGD.0.momentum", 0.0, 0.1))
    ]
    comparison = compare(tmp_path, *sides)
    assert [culprit.place for culprit in comparison.culprits] == ["the update of a.weight"]
