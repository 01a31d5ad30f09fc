"""The checklist as JSON, for programs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from accucompare.files import written_whole
from accucompare.findings.analysis import Ranks
from accucompare.findings.checklist import Checklist, Health
from accucompare.findings.log import number
from accucompare.report.watch_words import CHECK_WORDS, said
from accucompare.report.watched import headline


def write_health_json(ranks: Ranks, health: Health, path: Path) -> Path:
    """Write every check with its result; NaN and infinities as ``"nan"``, ``"inf"``, ``"-inf"``.
    ReportError if the file cannot be written."""
    content = {
        "log": str(ranks.path),
        "status": health.status.value,
        "headline": headline(health),
        "counts": {status.value: count for status, count in health.counts().items()},
        "steps": ranks.watched,
        "checks": [_check(result) for result in health.results],
        "notes": [said(note) for note in ranks.notes],
    }
    encoded = (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode(
        "utf-8", "backslashreplace"
    )
    return written_whole(path, lambda temporary: temporary.write_bytes(encoded))


def _check(result: Checklist) -> dict[str, Any]:
    check, outcome = result.check, result.outcome
    value, words = outcome.value, CHECK_WORDS[check.id]
    return {
        "id": check.id,
        "layer": check.layer.value,
        "looks_at": words.looks_at,
        "status": result.status.value,
        "measured": said(outcome.measured),
        "value": value if value is None or math.isfinite(value) else number(value),
        "step": outcome.step,
        "place": outcome.place,
        "rank": result.rank,
        "thresholds": {name: number(limit) for name, limit in result.limits.items()},
        "cure": words.cure,
    }
