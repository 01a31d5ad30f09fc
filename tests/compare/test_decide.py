"""One answer: the exit code, the verdict, ``passed`` and every report follow from it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accucompare as ac
from accucompare.api import Comparison
from accucompare.bundle.format.manifest import Manifest
from accucompare.bundle.format.records import Layout, Record, Role
from accucompare.compare.decide import Answer, Decision, decide
from accucompare.compare.limits import LimitsInForce, Tolerance
from accucompare.compare.limits.golden_baselines import Suggestion
from accucompare.compare.limits.provenance import OtherCode
from accucompare.compare.origins.culprits import find_culprits
from accucompare.compare.preflight_facts import (
    About,
    OtherModel,
    PreflightFinding,
    RefusedBaseline,
    WeightsNotRounded,
)
from accucompare.compare.result import Side
from accucompare.compare.rows.rows import UNMATCHED, Reason, Row, Status, Verdict
from accucompare.places import local
from accucompare.report.files.json import head
from accucompare.report.words import verdict_words
from accucompare.report.words.decision_words import verdict, words
from tests.compare.builder import Item, compare, item, write
from tests.conftest import Run

RANDOM = np.random.default_rng(0)


def record(number: int, role: Role, name: str) -> Record:
    parent = None if not name else ("", 0)
    return Record(
        0, 0, name, 0, role, "", number, "Linear", parent, (3,), "float32", Layout.STRIDED
    )


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    found = []
    reasons = [reason for reason in Reason if reason is not Reason.OVER]
    for number, reason in enumerate(draw(st.lists(st.sampled_from(reasons), max_size=6))):
        own = record(
            number,
            draw(st.sampled_from((Role.INPUT, Role.OUTPUT, Role.GRAD_INPUT))),
            draw(st.sampled_from(("", "a", "b"))),
        )
        both = (
            own if reason is not Reason.EXTRA else None,
            own if reason is not Reason.MISSING else None,
        )
        found.append(
            Row(
                *both,
                Verdict(
                    reason,
                    over_limit=2.0,
                    excess=draw(st.sampled_from((None, 9.0))),
                    beyond=draw(st.booleans()),
                ),
                module=own.name,
            )
        )
    return found


@st.composite
def comparisons(draw: st.DrawFn) -> Comparison:
    found, fed = draw(rows()), draw(st.booleans())
    sides = [
        Side(
            local(name),
            Manifest(complete=True, capture={"feed": {}} if fed and name == "b" else {}),
            draw(st.booleans()),
        )
        for name in "ab"
    ]
    baseline = Side(local("c"), Manifest(complete=True)) if draw(st.booleans()) else None
    about = draw(
        st.lists(
            st.builds(
                PreflightFinding,
                st.just(WeightsNotRounded("bfloat16")),
                st.booleans(),
                st.booleans(),
                st.sampled_from(About),
            ),
            max_size=2,
        )
    )
    return Comparison(
        *sides,
        found,
        preflight=about,
        in_force=LimitsInForce(otherwise=Tolerance(atol=draw(st.sampled_from((None, 1.0))))),
        damage=draw(st.sampled_from(([], ["x"]))),
        baseline=baseline,
        culprits=find_culprits(found, False, baseline is not None),
        without_baseline=draw(st.integers(0, 4)),
        refused=RefusedBaseline(None, OtherCode(), Suggestion("", ""))
        if draw(st.booleans())
        else None,
        other_model=OtherModel(1, 9) if draw(st.booleans()) else None,
    )


#: All that follows from an answer: the exit code that scripts rely on, and the verdict in one word.
FOLLOWS = {
    Answer.IDENTICAL: (0, "IDENTICAL"),
    Answer.IDENTICAL_SO_FAR: (0, "PASS"),
    Answer.ROUNDING: (0, "PASS"),
    Answer.WITHIN: (0, "PASS"),
    Answer.BUG: (1, "FAIL"),
    Answer.DIFFERENT: (1, "FAIL"),
    Answer.NOT_SURE: (2, "TROUBLE"),
}


def test_every_answer_has_its_exit_code_and_its_verdict() -> None:
    assert {
        answer: (Decision(answer, ()).exit_code, verdict(answer)) for answer in Answer
    } == FOLLOWS


@settings(max_examples=2 * settings().max_examples)
@given(comparisons())
def test_the_exit_code_is_a_function_of_the_answer_and_every_report_follows_from_it(
    found: Comparison,
) -> None:
    assert (found.exit_code, verdict(found.answer)) == FOLLOWS[found.answer]
    assert found.passed is (found.exit_code == 0)
    assert bool(found.trouble) is (found.exit_code == 2)
    assert found.conclusion.startswith(found.answer.value)
    written = head(found)
    shown = (
        written["answer"],
        written["exit_code"],
        written["passed"],
        written["verdict"],
        written["conclusion"],
    )
    assert shown == (
        found.answer.value,
        found.exit_code,
        found.passed,
        verdict(found.answer),
        found.conclusion,
    )


@settings(max_examples=2 * settings().max_examples)
@given(comparisons())
def test_every_fact_of_a_decision_is_said(found: Comparison) -> None:
    decided = decide(found)
    assert decided.facts
    assert all(words(Decision(decided.answer, (fact,)), found) for fact in decided.facts)
    assert found.conclusion.endswith(words(decided, found))


@settings(max_examples=2 * settings().max_examples)
@given(comparisons())
def test_an_all_clear_has_no_failing_row_and_compared_something(found: Comparison) -> None:
    if not found.exit_code:
        assert not found.counts_by_status()[Status.FAIL]
        assert any(row.status is Status.PASS and row.reason not in UNMATCHED for row in found.rows)
        assert not found.damage
        assert found.golden.complete
        assert found.candidate.complete
    if found.answer is Answer.IDENTICAL:
        assert not found.counts()[Reason.OK]
        assert not found.counts()[Reason.NOT_COMPARABLE]


def rounded(factor: float, dtype: str = "bfloat16") -> tuple[list[Item], list[Item]]:
    """A model in float32 and in another dtype: its input, passed on to its layer, and the layer's
    output, times ``factor``.
    """
    x, y = (RANDOM.standard_normal(500).astype(np.float32) * 3 for _ in range(2))
    return tuple(
        [
            item("", x, own, role="input", path="0", parent=None),
            item("fc", x, own, role="input", path="0"),
            item("fc", y * f, own),
            item("", y * f, own, parent=None),
        ]
        for own, f in (("float32", 1.0), (dtype, factor))
    )  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_inputs_that_are_goldens_in_a_coarser_dtype_do_not_fail_by_a_tolerance(
    tmp_path: Path, dtype: str
) -> None:
    golden, candidate = rounded(1.0, dtype)
    candidate[2:] = golden[2:]
    found = compare(tmp_path, golden, candidate, atol=1e-6)
    assert (found.answer, found.exit_code) == (Answer.WITHIN, 0)
    assert (
        verdict_words.detail(found.rows[0])
        == f"given to both: the candidate's is golden's, rounded to {dtype}"
    )


def test_an_output_over_the_tolerance_fails_however_well_it_is_rounded(tmp_path: Path) -> None:
    found = compare(tmp_path, *rounded(1.0), atol=1e-3)
    assert (found.answer, found.exit_code) == (Answer.DIFFERENT, 1)
    assert found.conclusion.startswith("different: fc, x limit ")
    assert compare(tmp_path, *rounded(1.0), atol=0.1).exit_code == 0
    assert compare(tmp_path, *rounded(1.1), atol=0.1).exit_code == 1


@pytest.mark.parametrize("atol", [1e-3, 1e-6])
def test_inputs_of_other_values_fail_by_a_tolerance(tmp_path: Path, atol: float) -> None:
    golden, candidate = rounded(1.0)
    other = np.array(golden[0].array)
    other[7] += 0.3
    candidate[:2] = [
        item("", other, "bfloat16", role="input", path="0", parent=None),
        item("fc", other, "bfloat16", role="input", path="0"),
    ]
    found = compare(tmp_path, golden, candidate, atol=atol)
    assert (found.answer, found.exit_code) == (Answer.DIFFERENT, 1)
    assert found.rows[0].reason is Reason.INPUTS_DIFFER


@pytest.mark.parametrize("limit", [None, 1e-6])
def test_a_plain_diff_over_its_limits_is_a_difference_that_fails(
    tmp_path: Path, limit: float | None
) -> None:
    found = compare(
        tmp_path,
        [item("a", [1.0, 2.0])],
        [item("a", [1.0, 3.0])],
        limits=ac.Tolerance(rel_l2=limit),
    )
    assert (found.answer, found.exit_code) == (Answer.DIFFERENT, 1)
    assert "without a baseline" in found.conclusion


def test_a_tolerance_that_was_given_needs_no_baseline(tmp_path: Path) -> None:
    sides = rounded(1.0)
    found = compare(tmp_path, *sides, atol=0.1)
    poor = [PreflightFinding(WeightsNotRounded("bfloat16"), of_baseline=True)]
    changed = Comparison(
        **{**vars(found), "preflight": poor, "baseline": found.golden, "without_baseline": 4}
    )
    assert (changed.answer, changed.exit_code) == (Answer.WITHIN, 0)


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.5, 1)])
def test_the_command_exits_with_the_answers_code(
    tmp_path: Path, cli: Run, factor: float, code: int
) -> None:
    compare(tmp_path, *rounded(factor), atol=0.1)
    done = cli(
        "diff",
        tmp_path / "golden0",
        tmp_path / "candidate0",
        "--atol",
        "0.1",
        "--report",
        "none",
        "--json",
        tmp_path / "x.json",
    )
    written = json.loads((tmp_path / "x.json").read_text())
    assert (done.returncode, written["exit_code"], written["passed"]) == (code, code, not code)


def test_what_could_not_be_compared_qualifies_identical(tmp_path: Path) -> None:
    same = [
        item("a", [1.0]),
        item("", [2.0], path="0", parent=None),
        item("", layout="opaque", path="1", parent=None, detail="a packed weight"),
    ]
    found = compare(tmp_path, same, same)
    assert (found.answer, verdict(found.answer)) == (Answer.IDENTICAL_SO_FAR, "PASS")
    assert (
        "identical in what was compared; 1 of 3 rows could not be compared, the first (root)"
        " output.1, a packed weight" in found.conclusion
    )


#: A layer's values, relatively off by so much, and what else is given: the answer, and the exit
# code that scripts rely on.
ANSWERS = {
    "the same": (0.0, {}, Answer.IDENTICAL, 0),
    "rounding": (1e-6, {}, Answer.ROUNDING, 0),
    "within the user's limits": (1e-6, {"limits": ac.Tolerance(rel_l2=1e-3)}, Answer.WITHIN, 0),
    "over a limit": (0.5, {}, Answer.DIFFERENT, 1),
    "over a limit, fed": (0.5, {"fed": True}, Answer.BUG, 1),
    "an incomplete candidate": (0.0, {"complete": False}, Answer.NOT_SURE, 2),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_the_exit_code_follows_from_the_answer(tmp_path: Path, case: str) -> None:
    off, given, answer, code = ANSWERS[case]
    values, options = np.linspace(-1, 1, 64), dict(given)
    golden = write(tmp_path / "golden", [item("fc", values.astype("f4"))])
    with ac.open_bundle(golden) as opened:
        feed = (
            {"feed": {"golden": "", "identity": opened.identity(), "not_fed": []}}
            if options.pop("fed", False)
            else {}
        )
    items = [item("fc", (values * (1 + off)).astype("f4"))]
    candidate = write(
        tmp_path / "candidate", items, complete=options.pop("complete", True), capture=feed
    )
    found = ac.diff(golden, candidate, **options)
    assert (found.answer, found.exit_code) == (answer, code)


def fed_pair(
    folder: Path, dtype: str, off: float, baseline: float | None = None, **given: Any
) -> Comparison:
    """A fed layer whose values are off by so much, and a baseline's that are, if there is one."""
    values, noise = RANDOM.standard_normal((2, 4096)) * 3
    golden = write(folder / "golden", [item("fc", values, "float32")])
    with ac.open_bundle(golden) as opened:
        feed = {"feed": {"golden": "", "identity": opened.identity(), "not_fed": []}}

    def side(name: str, error: float) -> Path:
        wrong = values + noise * error * np.linalg.norm(values) / np.linalg.norm(noise)
        return write(folder / name, [item("fc", wrong, dtype)], capture=feed)

    return ac.diff(
        golden,
        side("npu", off),
        baseline=None if baseline is None else side("cpu", baseline),
        **given,
    )


#: Of each type: an error over the fixed limits of a fed candidate that rounding may make, and one
# that it never makes.
ROUNDING_OR_NOT = {"float32": (1e-4, 4e-3), "float16": (2e-2, 0.12), "bfloat16": (0.1, 0.5)}


@pytest.mark.parametrize("dtype", ROUNDING_OR_NOT)
def test_fixed_limits_alone_call_a_bug_only_what_no_rounding_makes(
    tmp_path: Path, dtype: str
) -> None:
    small, large = ROUNDING_OR_NOT[dtype]
    found = fed_pair(tmp_path / "a", dtype, small)
    assert (found.answer, found.exit_code) == (Answer.DIFFERENT, 1)
    assert found.conclusion.endswith("; by fixed limits; a baseline tells rounding from a bug")
    found = fed_pair(tmp_path / "b", dtype, large)
    assert (found.answer, found.exit_code) == (Answer.BUG, 1)


@pytest.mark.parametrize("dtype", ROUNDING_OR_NOT)
def test_a_baseline_calls_a_bug_what_fixed_limits_cannot(tmp_path: Path, dtype: str) -> None:
    small, _ = ROUNDING_OR_NOT[dtype]
    assert fed_pair(tmp_path, dtype, small, baseline=small / 100).answer is Answer.BUG


@pytest.mark.parametrize(
    ("off", "baseline", "answer"),
    [
        (1e-2, None, Answer.DIFFERENT),
        (0.5, None, Answer.BUG),
        (1e-2, 1e-2, Answer.DIFFERENT),
        (0.1, 1e-3, Answer.BUG),
    ],
)
def test_what_is_over_the_users_tolerance_is_a_bug_only_where_it_is_no_rounding(
    tmp_path: Path, off: float, baseline: float | None, answer: Answer
) -> None:
    found = fed_pair(tmp_path, "bfloat16", off, baseline, atol=0.0)
    assert (found.answer, found.exit_code) == (answer, 1)
    assert found.conclusion.endswith("; over the tolerance asked for") is (
        answer is Answer.DIFFERENT
    )


def test_a_gradient_that_cancels_to_nothing_is_no_bug_by_fixed_limits(tmp_path: Path) -> None:
    """Of golden's zeros a relative error tells nothing."""
    golden = write(tmp_path / "golden", [item("fc", np.zeros(64, "f4"))])
    with ac.open_bundle(golden) as opened:
        feed = {"feed": {"golden": "", "identity": opened.identity(), "not_fed": []}}
    found = ac.diff(
        golden, write(tmp_path / "npu", [item("fc", np.full(64, 1e-9, "f4"))], capture=feed)
    )
    assert (found.answer, found.exit_code) == (Answer.DIFFERENT, 1)


@pytest.mark.parametrize("shape", [(2, 6, 8), (2, 3, 6, 4)])
@pytest.mark.parametrize("wrong", [1.0, math.nan])
@pytest.mark.parametrize("also", [False, True])
def test_what_is_off_at_padding_alone_is_no_bug(
    tmp_path: Path, shape: tuple[int, ...], wrong: float, also: bool
) -> None:
    mask = np.ones((2, 6), np.int64)
    mask[1, :2] = 0
    given = item("", mask, role="input", path="attention_mask", parent=None)
    values = RANDOM.standard_normal(shape).astype("f4")
    golden = write(tmp_path / "golden", [given, item("fc", values)])
    with ac.open_bundle(golden) as opened:
        feed = {"feed": {"golden": "", "identity": opened.identity(), "not_fed": []}}
    off = values.copy()
    off[1, ..., : 3 if also else 2, :] += wrong
    found = ac.diff(golden, write(tmp_path / "npu", [given, item("fc", off)], capture=feed))
    assert (found.answer, found.exit_code) == (Answer.BUG if also else Answer.DIFFERENT, 1)
    assert found.conclusion.endswith("real tokens are within tolerance") is not also
    other = ac.diff(tmp_path / "npu", golden).conclusion
    assert ("non-finite in golden alone" in other) is math.isnan(wrong)
