"""The checklist as JSON, for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accucompare.findings.analysis import Ranks
from accucompare.findings.checklist import Checklist, Health
from accucompare.report.files import write_document
from accucompare.report.watch_words import CHECK_WORDS, said
from accucompare.report.watched import headline


def write_health_json(ranks: Ranks, health: Health, path: Path) -> Path:
    """Write every check with its result. Errors as ``write_document``."""
    content = {
        "log": str(ranks.path),
        "status": health.status.value,
        "headline": headline(health),
        "counts": {status.value: count for status, count in health.counts().items()},
        "steps": ranks.watched,
        "checks": [_check(result) for result in health.results],
        "notes": [said(note) for note in ranks.notes],
    }
    return write_document(content, path)


def _check(result: Checklist) -> dict[str, Any]:
    check, outcome = result.check, result.outcome
    words = CHECK_WORDS[check.id]
    return {
        "id": check.id,
        "layer": check.layer.value,
        "looks_at": words.looks_at,
        "status": result.status.value,
        "measured": said(outcome.measured),
        "value": outcome.value,
        "step": outcome.step,
        "place": outcome.place,
        "rank": result.rank,
        "thresholds": dict(result.limits),
        "cure": words.cure,
    }
