"""Rows of experts are paired by token, and a router's other choices are judged by its margin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import accucompare as ac
from accucompare.compare.judging import where_fed_alike
from accucompare.compare.limits import Tolerance
from accucompare.compare.pairing import Pair
from accucompare.compare.remarks import AfterRouting, RoutedOtherwise, TokensElsewhere
from accucompare.compare.rows import Reason, Row, Task
from accucompare.compare.tokens import HeldRows, RowLabels, paired_rows, row_digests
from tests.compare.builder import Item, item, write

TOKENS = np.random.default_rng(0).standard_normal((6, 4)).astype("f4")
SCORES = np.array([[3, 2, 1], [3, 2, 1], [1, 3, 2], [1, 2, 3], [3, 1, 2], [2, 3, 1]], "f4")


def close(values: np.ndarray) -> np.ndarray:
    """Apart by rounding."""
    return (values * (1 + 1e-7)).astype("f4")


def moe(
    scores: np.ndarray = SCORES,
    orders: Sequence[Sequence[int]] = ((), (), ()),
    change: Any = lambda values: values,
    tokens: np.ndarray = TOKENS,
) -> list[Item]:
    """The records of a mixture of three experts, each token with its best one.

    Args:
        orders: the tokens of each expert in the order that it has them; if empty, in their own.
    """
    chosen = scores.argmax(1)[:, None]
    made = [
        item("moe", tokens, role="input", path="0", parent=("", 0)),
        item("moe.router", tokens, role="input", path="0", parent=("moe", 0)),
        item("moe.router", scores, path="0", parent=("moe", 0)),
        item("moe.router", chosen, path="1", parent=("moe", 0)),
    ]
    found = np.zeros_like(tokens)
    for number, order in enumerate(orders):
        held = np.array(order or np.flatnonzero(chosen[:, 0] == number), int)
        output = change(tokens[held] * (number + 2))
        found[held] = output
        name, parent = f"moe.experts.{number}", ("moe", 0)
        made += [
            item(name, tokens[held], role="input", path="0", parent=parent),
            item(name, output, parent=parent),
        ]
    return [*made, item("moe", found), item("after", found.sum(0), role="output")]


def compared(tmp_path: Path, golden: Iterable[Item], candidate: Iterable[Item]) -> ac.Comparison:
    return ac.diff(write(tmp_path / "golden", golden), write(tmp_path / "candidate", candidate))


def rows_of(comparison: ac.Comparison, name: str) -> list[Row]:
    return [row for row in comparison.rows if row.record is not None and row.record.name == name]


@given(
    kinds=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    order=st.randoms(use_true_random=False),
    padding=st.integers(0, 3),
)
def test_every_row_finds_its_token(kinds: list[int], order: Any, padding: int) -> None:
    """Equal rows are interchangeable, in any order, and padding has no partner."""
    tokens = np.array(kinds, "f4")[:, None] + np.arange(1, 4, dtype="f4")
    theirs = tokens * np.float32(1 + 1e-6)  # other bits on the other side
    moved = [*range(len(tokens))]
    order.shuffle(moved)
    given_rows = np.concatenate([theirs[moved], np.zeros((padding, 3), "f4")])
    every = np.arange(len(tokens))
    labels = RowLabels(
        len(tokens), [HeldRows(row_digests(tokens), every)], [HeldRows(row_digests(theirs), every)]
    )
    ours, own = paired_rows(
        labels.golden(row_digests(tokens)), labels.candidate(row_digests(given_rows))
    )
    assert sorted(ours) == [*every]
    assert np.array_equal(own, every)
    assert np.allclose(tokens[ours], given_rows[own], rtol=1e-5)


def test_an_experts_rows_may_be_in_any_order(tmp_path: Path) -> None:
    moved = moe(orders=((4, 0, 1), (5, 2), (3,)), change=close)
    comparison = compared(tmp_path, moe(), moved)
    assert comparison.passed
    assert not any(row.status.value == "not compared" for row in comparison.rows)


def test_a_wrong_row_is_seen_whatever_the_order(tmp_path: Path) -> None:
    def wrong(values: np.ndarray) -> np.ndarray:
        return values * np.linspace(1, 1.1, len(values), dtype="f4")[:, None]

    comparison = compared(tmp_path, moe(), moe(orders=((4, 0, 1), (5, 2), (3,)), change=wrong))
    assert comparison.culprits[0].name == "moe.experts.0"


def test_weighted_rows_of_every_expert_are_no_tokens_rows(tmp_path: Path) -> None:
    """Llama 4 gives each expert all tokens times their scores, most of which are 0, and few 1."""

    def weighted(tokens: np.ndarray) -> list[Item]:
        scores = np.array([[0.9, 0.8, 0.7, 0.6, 0.5, 1.0], [0] * 6, [0] * 6], "f4")
        rows = (scores[:, :, None] * tokens).reshape(-1, tokens.shape[-1])
        name, parent = "moe.experts", ("moe", 0)
        return [
            item("moe", tokens, role="input", path="0", parent=("", 0)),
            item(name, rows, role="input", path="0", parent=parent),
            item(name, 2 * rows, parent=parent),
        ]

    assert compared(tmp_path / "same", weighted(TOKENS), weighted(TOKENS)).exit_code == 0
    comparison = compared(tmp_path / "near", weighted(TOKENS), weighted(close(TOKENS)))
    assert comparison.exit_code == 0
    elements = {row.metrics.elements for row in rows_of(comparison, "moe.experts") if row.metrics}
    assert elements == {72}


def test_the_order_of_tokens_counts_where_golden_kept_it(tmp_path: Path) -> None:
    """A shared expert has all tokens as the model has them."""

    def shared(given_to_it: np.ndarray) -> list[Item]:
        gate = "moe.shared_expert_gate"
        return [
            *moe(),
            item(gate, given_to_it, role="input", path="0", parent=("moe", 0)),
            item(gate, TOKENS[:, :1], parent=("moe", 0)),
        ]

    comparison = compared(tmp_path, shared(TOKENS), shared(TOKENS[[1, 0, 2, 3, 4, 5]]))
    first = rows_of(comparison, "moe.shared_expert_gate")[0]
    assert first.status.value == "fail"
    assert comparison.culprits[0].site == "glue"


def near_a_tie(apart: float, margin: float) -> tuple[np.ndarray, np.ndarray]:
    """Scores of which the last token's best two are a margin apart, and such with errors."""
    golden = SCORES.copy()
    golden[5] = [2, 2 + margin, 1]
    candidate = golden + np.float32(apart) * np.where(np.arange(18) % 2, 1, -1).reshape(6, 3)
    candidate[5] = [golden[5, 0] + 1.5 * margin, golden[5, 1] - apart, 1]
    return golden, candidate.astype("f4")


def test_a_token_that_rounding_sends_elsewhere_is_told_and_not_blamed(tmp_path: Path) -> None:
    golden, candidate = near_a_tie(1e-5, 1e-5)
    comparison = compared(tmp_path, moe(golden), moe(candidate))
    choice = rows_of(comparison, "moe.router")[-1]
    assert choice.reason is Reason.OK
    (remark,) = choice.verdict.remarks
    assert isinstance(remark, RoutedOtherwise)
    assert (remark.tokens, remark.of) == (1, 6)
    assert remark.margin == pytest.approx(1e-5, rel=0.1)
    for name in ("moe.experts.0", "moe.experts.1", "moe"):
        last = rows_of(comparison, name)[-1]
        assert last.reason is Reason.NOT_COMPARABLE, name
        assert isinstance(last.verdict.remarks[0], TokensElsewhere)
    (after,) = rows_of(comparison, "after")
    assert isinstance(after.verdict.remarks[0], AfterRouting)
    assert comparison.exit_code == 2  # what came after may hide an error


def test_what_the_other_tokens_experts_do_wrong_is_blamed_all_the_same(tmp_path: Path) -> None:
    golden, candidate = near_a_tie(1e-5, 1e-5)
    wrong = moe(candidate, change=lambda values: values * np.float32(1.01))
    comparison = compared(tmp_path, moe(golden), wrong)
    assert comparison.culprits[0].name == "moe.experts.0"


def test_a_choice_that_is_not_of_the_highest_scores_is_a_fault(tmp_path: Path) -> None:
    candidate = moe()
    choices = SCORES.argmax(1)[:, None].copy()
    choices[0] = 2
    candidate[3] = item("moe.router", choices, path="1", parent=("moe", 0))
    comparison = compared(tmp_path, moe(), candidate)
    assert comparison.culprits[0].name == "moe.router"


def test_tokens_that_no_router_sent_elsewhere_are_a_fault(tmp_path: Path) -> None:
    comparison = compared(tmp_path, moe(), moe(orders=((0, 1), (2, 5), (3, 4))))
    culprit = comparison.culprits[0]
    assert (culprit.name, culprit.site) == ("moe", "glue")
    assert isinstance(culprit.row.verdict.remarks[0], TokensElsewhere)


def chosen_inside(
    scores: np.ndarray, wrong: bool = False, change: Any = lambda values: values, after: float = 1
) -> list[Item]:
    """A mixture that chooses in its own code, its experts' outputs in a row, and what follows."""
    best = scores.argmin(1) if wrong else scores.argmax(1)
    found = change(TOKENS * (2 + best[:, None]))
    name, of = "aten.topk.default", {"type": "aten.topk.default", "parent": ("moe", 0)}
    return [
        item("moe", TOKENS, role="input", path="0"),
        item("moe", scores, role="op_input", path=f"{name}#0.self", **of),
        item("moe", best[:, None], role="op_output", path=f"{name}#0", **of),
        item("moe", found),
        item("after", np.tile(found, (9, 1)) * np.float32(after), parent=("", 0)),
    ]


def test_what_a_modules_own_code_chooses_is_judged_by_its_scores(tmp_path: Path) -> None:
    golden, candidate = near_a_tie(1e-5, 1e-5)
    near = compared(tmp_path / "near", chosen_inside(golden), chosen_inside(candidate))
    choice = rows_of(near, "moe")[2]
    assert choice.reason is Reason.OK
    (remark,) = choice.verdict.remarks
    assert isinstance(remark, RoutedOtherwise)
    assert (remark.tokens, remark.of, remark.of_operator) == (1, 6, "aten.topk.default")
    assert remark.margin == pytest.approx(1e-5, rel=0.1)
    (last,) = rows_of(near, "after")
    assert isinstance(last.verdict.remarks[0], AfterRouting)
    assert near.exit_code == 2
    # one of six tokens does not explain that all are off
    for folder, items in (
        ("values", chosen_inside(candidate, change=lambda values: values[::-1])),
        ("choice", chosen_inside(candidate, wrong=True)),
        ("scores", chosen_inside(candidate + np.float32([0, 0, 3]))),
    ):
        wrong = compared(tmp_path / folder, chosen_inside(golden), items)
        assert (wrong.exit_code, wrong.culprits[0].name) == (1, "moe"), folder


def test_scores_that_no_module_gives_are_made_of_the_routers_weight(tmp_path: Path) -> None:
    weight = np.random.default_rng(3).standard_normal((3, 4)).astype("f4")
    golden = TOKENS @ weight.T
    tie = weight[golden[0].argmax()] - weight[golden[0].argsort()[-2]]
    tokens = TOKENS.copy()
    tokens[0] -= tie * (golden[0].max() - np.sort(golden[0])[-2] - 1e-6) / (tie @ tie)
    moved = tokens.copy()
    moved[0] -= tie * np.float32(3e-6) / (tie @ tie)
    moved[1:] *= np.float32(1 + 2e-6)
    sides = []
    for own in (tokens, moved):
        made = moe(own @ weight.T, tokens=own)
        chosen = np.zeros((6, 3), bool)
        np.put_along_axis(chosen, made[3].array, True, 1)  # type: ignore[arg-type]
        made[2] = item(
            "moe.router", np.where(chosen, 0.5, 0).astype("f4"), path="0", parent=("moe", 0)
        )
        made[3] = item("moe.router", chosen, path="1", parent=("moe", 0))
        before = item("moe.router", weight, role="param_before", path="weight", parent=None)
        sides.append([*made, before])
    comparison = compared(tmp_path, *sides)
    choice = rows_of(comparison, "moe.router")[2]
    assert choice.reason is Reason.OK
    assert isinstance(choice.verdict.remarks[0], RoutedOtherwise)


def test_a_baseline_judges_no_output_that_the_candidate_was_not_fed_and_it_was() -> None:
    names = ("moe", "moe.experts.1", "moe.router")
    tasks = []
    for name in names:
        record = item(name, TOKENS, parent=None).record
        tasks.append(Task(Pair(record, record), Tolerance(), baseline=record))
    # of experts, numbers are a rank's own; a list of them is no caller
    judged = where_fed_alike(tasks, {(0, "moe.experts.3")})
    kept = [name for name, task in zip(names, judged, strict=True) if task.baseline is not None]
    assert kept == ["moe.experts.1", "moe.router"]
    assert where_fed_alike(tasks, {(1, "moe.experts.3")}) == tasks
