"""What a watch says is one answer: the headline and the exit code are functions of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from accucompare.findings.analysis.analysis import Ranks, analyse
from accucompare.findings.checklist import STATUS_EXIT_CODES, CheckStatus, judge_finite, judge_log
from accucompare.findings.log import remark
from accucompare.report.watched import verdict_line
from tests.findings.logs import end, found, passed, start, step

#: By the first word of the verdict, what it is a word for.
WORDS = {
    "FINITE": CheckStatus.PASS,
    "NOT FINITE": CheckStatus.FAIL,
    "TROUBLE": CheckStatus.NOT_LOOKED_AT,
}
EVENTS = [
    lambda: found(),
    lambda: passed(),
    lambda: step(0),
    lambda: step(1, finite=False),
    lambda: step(2, finite=False, skipped=True),
    lambda: step(3, overflowed=True),
    lambda: step(4, unseen={"fc": remark("hook-error")}),
]
ENDS = [list, lambda: [end()], lambda: [end(3, 0)], lambda: [end(3, 3, "interrupted")]]


@st.composite
def runs(draw: st.DrawFn) -> Ranks:
    ranks = [
        analyse([start(rank=rank, ranks=2), *events, *last])
        for rank in range(draw(st.integers(1, 2)))
        for events in [[make() for make in draw(st.lists(st.sampled_from(EVENTS), max_size=4))]]
        for last in [draw(st.sampled_from(ENDS))()]
    ]
    return Ranks(Path("watch"), ranks, [], draw(st.booleans()))


@given(runs())
def test_the_headline_and_the_exit_code_are_functions_of_the_answer(ranks: Ranks) -> None:
    outcome = judge_finite(ranks)
    assert WORDS[verdict_line(ranks, None).plain.partition("  ")[0]] is outcome.status
    bad: list[Any] = [*ranks.findings, *ranks.unexplained]
    assert (outcome.status is CheckStatus.FAIL) == bool(bad)
    assert STATUS_EXIT_CODES[outcome.status] == (1 if bad else 2 if ranks.trouble else 0)


@given(runs())
def test_the_exit_code_of_the_checklist_is_that_of_its_worst_check(ranks: Ranks) -> None:
    health = judge_log(ranks)
    wrong = health.of(CheckStatus.FAIL, CheckStatus.WARN)
    looked = [*wrong, *health.of(CheckStatus.PASS)]
    assert STATUS_EXIT_CODES[health.status] == (1 if wrong else 0 if looked else 2)
    finite = next(each for each in health.results if each.check.id == "finite")
    assert not (
        finite.status is CheckStatus.PASS and judge_finite(ranks).status is CheckStatus.FAIL
    )
