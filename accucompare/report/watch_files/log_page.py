"""The page of a watch's log: answer, findings, frames, steps, heat maps, warnings, checklist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accucompare.findings.analysis import Analysis, Ranks
from accucompare.findings.checklist import CheckStatus, Health, judge_vitals
from accucompare.report.headline import Headline
from accucompare.report.page import PageData, StepChart, write_page
from accucompare.report.table import SCIENTIFIC, Column
from accucompare.report.watch_files.log_tables import (
    checks_table,
    findings_table,
    frames_table,
    steps_table,
    warnings_table,
)
from accucompare.report.watch_words import said
from accucompare.report.watched import headline, rank_entries, verdict_line
from accucompare.report.watched import watch_columns as log
from accucompare.text import printable

_CHARTS = (
    StepChart("loss", (("loss", "golden"),)),
    StepChart("gradient norm", (("grad_norm", "golden"),), True),
    StepChart("loss scale", (("loss scale", "scale"),), True),
    StepChart("learning rate", (("learning rate", "golden"),)),
)


def write_log_page(ranks: Ranks, path: Path) -> Path:
    """Write the page of every rank's last run, and return its path. Errors as ``write_page``."""
    health = judge_vitals(ranks)
    verdict, _, sentence = verdict_line(ranks, health).plain.partition("  ")
    words = {
        "title": f"what a watch found: {ranks.path.name}",
        "verdict": verdict,
        "sentence": sentence,
        "passed": verdict == Headline.FINITE,
    }
    words["checklist_first"] = False
    words["answer"] = log.main_answer(ranks).splitlines()[1:]  # the first line is in the sentence
    return _write(ranks, health, words, path)


def write_health_page(ranks: Ranks, health: Health, path: Path) -> Path:
    """The same page with the checklist's result as its first sentence. Errors as ``write_page``."""
    words = {
        "title": f"the checklist of {ranks.path.name}",
        "verdict": headline(health),
        "sentence": str(ranks.path),
        "passed": health.status is CheckStatus.PASS,
        "answer": log.main_answer(ranks).splitlines(),
        "checklist_first": True,
    }
    return _write(ranks, health, words, path)


def _write(ranks: Ranks, health: Health | None, words: dict[str, Any], path: Path) -> Path:
    shown, listed = rank_entries(ranks)
    run = log.main_run(ranks)
    counts = (
        []
        if health is None
        else [(status.value, count) for status, count in health.counts().items()]
    )
    content = words | {
        "notes": [said(note) for note in ranks.notes],
        "ending": said(run.ending),
        "of_rank": f", rank {run.start.rank}" if ranks.several else "",
        "checklist": counts,
        "environment": listed,
        "sides": [f"rank {each.start.rank}" for each in shown],
        "ranks_left_out": len(ranks.ranks) - len(shown),
        "findings": len(ranks.findings),
    }
    return write_page(path, "log.html", content, lambda data: _head(ranks, run, health, data))


def _head(ranks: Ranks, run: Analysis, health: Health | None, data: PageData) -> dict[str, Any]:
    """Write the tables and heat maps, and return what the page's script needs."""
    contents = {
        "findings": findings_table(ranks),
        "frames": frames_table(ranks),
        "steps": steps_table(ranks, _step_columns(ranks)),
        "warnings": warnings_table(ranks),
    }
    if health is not None:
        order = list(CheckStatus)
        listed = checks_table(ranks, health)
        listed.rows.sort(key=lambda result: order.index(result.status))
        contents["checklist"] = listed
    layers, heats = _heats(run, data)
    return {
        "kind": "log",
        "tables": [data.table(name, *content) for name, content in contents.items()],
        "charts": [chart._asdict() for chart in _CHARTS],
        "rank": run.start.rank,
        "found": sorted({finding.step for finding in run.origins})[:20],
        "layers": layers,
        "heats": heats,
    }


def _step_columns(ranks: Ranks) -> list[Column]:
    """The columns of steps, with the loss and learning rate seen in backward and update."""
    seen = {(run.start.rank, vitals.step): vitals for run in ranks.ranks for vitals in run.vitals}

    def loss(row: log.StepRow) -> float | None:
        vitals = seen.get((row.run.start.rank, row.step.step))
        known = row.step.loss if row.step.loss is not None or vitals is None else vitals.loss
        return None if known is None else float(known)

    def rate(row: log.StepRow) -> float | None:
        vitals = seen.get((row.run.start.rank, row.step.step))
        return None if vitals is None else next((float(each) for each in vitals.lr.values()), None)

    columns = [
        column._replace(get=loss) if column.title == "loss" else column for column in log.STEPS
    ]
    place = [column.title for column in columns].index("loss scale")
    return [
        *columns[:place],
        Column("learning rate", rate, SCIENTIFIC, 13, "baseline"),
        *columns[place:],
    ]


def _heats(run: Analysis, data: PageData) -> tuple[list[str], list[dict[str, Any]]]:
    """Write the heat maps that have numbers; return the names of their rows, and their heads."""
    names: list[str] = []
    heats = []
    for measure in log.MEASURES:
        names, looks = log.layer_steps(run, measure)
        if looks and names:
            numbers = [look.numbers.get(name) for name in names for look in looks]
            heats.append(
                {
                    "title": measure.title,
                    "steps": [look.step for look in looks],
                    "at": data.matrix(numbers),
                }
            )
    return [printable(name) for name in names], heats
