"""What every report of the checklist says first: the result, and how much was not looked at."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from accucompare.findings.analysis.analysis import Ranks, read_logs
from accucompare.findings.checklist.checks import CheckOutcome, CheckStatus
from accucompare.findings.checklist.health_checklist import CHECKS, Checklist, Health, judge_log
from accucompare.findings.log import remark
from accucompare.report.watch_files.health_files import write_health, write_health_json
from accucompare.report.watch_files.log_page import write_health_page
from accucompare.report.watched.health_columns import headline
from tests.findings.logs import training, write


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return read_logs(write(tmp_path / "watch" / "rank0.jsonl", *training(0, 1)).parent)


def _sheet(path: Path) -> str:
    with zipfile.ZipFile(path) as book:
        return "".join(
            book.read(name).decode() for name in book.namelist() if name.endswith(".xml")
        )


@pytest.mark.parametrize(
    ("write_it", "ending", "text_of"),
    [
        (write_health, "xlsx", _sheet),
        (write_health_page, "html", Path.read_text),
        (write_health_json, "json", Path.read_text),
    ],
    ids=["sheet", "page", "json"],
)
def test_a_report_of_the_checklist_says_beside_its_result_what_was_not_looked_at(
    write_it: Callable[[Ranks, Health, Path], Path],
    ending: str,
    text_of: Callable[[Path], str],
    ranks: Ranks,
    tmp_path: Path,
) -> None:
    health = judge_log(ranks)
    assert headline(health) in text_of(write_it(ranks, health, tmp_path / f"health.{ending}"))


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        (
            [CheckStatus.PASS, CheckStatus.PASS, CheckStatus.NOT_LOOKED_AT],
            "PASS of 2 checks, 1 not looked at",
        ),
        (
            [CheckStatus.PASS, CheckStatus.WARN, CheckStatus.FAIL, CheckStatus.FAIL],
            "FAIL in 2, WARN in 1 of 4 checks, 0 not looked at",
        ),
        ([CheckStatus.NOT_LOOKED_AT] * 3, "NOT LOOKED AT: none of 3 checks"),
    ],
)
def test_the_headline_counts_what_was_judged_and_what_was_not(
    statuses: list[CheckStatus], said: str
) -> None:
    assert (
        headline(
            Health(
                [
                    Checklist(CHECKS[0], CheckOutcome(status, remark("one-rank")), {})
                    for status in statuses
                ]
            )
        )
        == said
    )
