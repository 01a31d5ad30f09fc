"""A trend as JSON, for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accucompare.compare.trends import LayerError, PlaceTrend, TrendFacts, TrendRun
from accucompare.files import JSON_FILE, written_whole
from accucompare.report.files.ranks_json import finite_or_text
from accucompare.report.words import trend_words


def write_trend_json(facts: TrendFacts, path: Path) -> Path:
    """Write the runs, and each layer in each; infinities as ``"inf"``.

    Raises:
        ReportError: if the path has another ending, or the file cannot be written.
    """
    JSON_FILE.refuse_other(path)
    content = {
        "answer": facts.answer.value,
        "exit_code": facts.exit_code,
        "headline": trend_words.trend_headline(facts),
        "against": facts.against,
        "runs": [_run(run) for run in facts.runs],
        "left_out": [
            {**asdict(each), "told": trend_words.left_out_run_words(each)}
            for each in facts.left_out
        ],
        "notes": trend_words.trend_notes(facts),
        "layers": [_place(facts, place) for place in facts.places],
    }
    text = json.dumps(finite_or_text(content), indent=1, ensure_ascii=False, allow_nan=False)
    encoded = f"{text}\n".encode("utf-8", "backslashreplace")
    return written_whole(path, lambda temporary: temporary.write_bytes(encoded))


def _run(run: TrendRun) -> dict[str, Any]:
    names = ("name", "path", "golden", "captured", "answer", "exit_code", "conclusion", "culprits")
    return {**{name: getattr(run, name) for name in names}, "failing": run.failing}


def _place(facts: TrendFacts, place: PlaceTrend) -> dict[str, Any]:
    def name(run: int | None) -> str | None:
        return None if run is None else facts.runs[run].name

    told = ("error_before", "error_after", "factor", "falls", "error_against", "factor_against")
    return {
        "layer": place.layer,
        "state": place.state,
        "since": name(place.since),
        "before": name(place.before),
        **{name: getattr(place, name) for name in told},
        "errors": [_error(error) for error in place.errors],
    }


def _error(error: LayerError | None) -> dict[str, Any] | None:
    names = ("over_limit", "rel_l2", "excess", "rows", "failing", "value")
    return None if error is None else {name: getattr(error, name) for name in names}
