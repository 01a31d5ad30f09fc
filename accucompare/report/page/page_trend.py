"""The page of a trend: the answer, heat maps of layers by runs, layers, runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accucompare.compare.trends import TrendFacts
from accucompare.report.contents import listed_places, place_columns, run_columns
from accucompare.report.page.page_data import PageData
from accucompare.report.page.page_file import write_page
from accucompare.report.table import NONE, HeatMap, heat_note, trend_heats
from accucompare.report.words import trend_words
from accucompare.text import printable


def write_trend_page(facts: TrendFacts, path: Path) -> Path:
    """Write the page of a trend, and return its path. Errors as ``write_page``."""
    maps = trend_heats(facts)
    content = {
        "title": f"trend of {len(facts.runs)} runs",
        "verdict": trend_words.TREND_VERDICTS[facts.answer],
        "passed": facts.passed,
        "sentence": trend_words.trend_headline(facts),
        "falls": [
            {
                "said": trend_words.fall_words(facts, run),
                "culprit": trend_words.culprit_of(facts.runs[run]),
            }
            for run in facts.falls
        ],
        "worse": trend_words.worse_words(facts),
        "left_out": [
            (trend_words.left_out_run_words(each), each in facts.troubles)
            for each in facts.left_out
        ],
        "notes": trend_words.trend_notes(facts),
        "heat_note": heat_note(maps[0]),
        "runs": len(facts.runs),
    }
    return write_page(path, "trend.html", content, lambda data: _head(facts, maps, data))


def _head(facts: TrendFacts, maps: tuple[HeatMap, HeatMap], data: PageData) -> dict[str, Any]:
    """Write the tables and heat maps, and return what the page's script needs."""
    limits, errors = maps
    titles = ("x limit, layer by run: blue within, red over", "relative L2 error, layer by run")
    return {
        "kind": "trend",
        "tables": [
            data.table("layers", place_columns(facts), listed_places(facts)),
            data.table("runs", run_columns(facts), range(len(facts.runs))),
        ],
        "layers": [printable(name) for name in limits.layers],
        "heats": [
            {
                "title": title,
                "steps": heat.columns,
                "across": "run",
                "limit": limit,
                "at": data.matrix(
                    [None if size == NONE else size for size in heat.sizes.ravel().tolist()]
                ),
            }
            for title, heat, limit in zip(titles, (limits, errors), (1, None), strict=True)
        ],
    }
