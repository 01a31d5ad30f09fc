"""The page of a fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accucompare.bundle.format import display_name
from accucompare.compare.fits import Fit, FitAnswer
from accucompare.report.contents import fit_tables
from accucompare.report.page.page_data import PageData
from accucompare.report.page.page_file import write_page
from accucompare.report.words import fit_code, fit_words


def write_fit_page(found: Fit, path: Path) -> Path:
    """Write the answer, the curve, runs, blocks and the code to paste. Errors as ``write_page``."""
    reached = found.answer is not FitAnswer.UNREACHABLE
    content = {
        "title": f"what to keep in float32: {found.case}",
        "verdict": found.answer.value.upper(),
        "sentence": fit_words.fit_headline(found),
        "passed": reached,
        "facts": fit_words.fit_facts_in_words(found),
        "hint": fit_words.fit_hint(found),
        "whole": found.kept.whole if reached else (),
        "own": [display_name(name) for name in found.kept.own],
        "code": fit_code.fit_code(found).splitlines() if found.changes_anything else (),
        "blocks": len(fit_tables.shown_places(found)),
    }
    return write_page(path, "fit.html", content, lambda data: _head(found, data))


def _head(found: Fit, data: PageData) -> dict[str, Any]:
    of = "operations" if found.goal.by == "flops" else "weights"
    return {
        "kind": "fit",
        "tables": [
            data.table("curve", fit_tables.CURVE_COLUMNS, fit_tables.curve_rows(found)),
            data.table("runs", fit_tables.fit_run_columns(found), list(found.runs)),
            data.table("blocks", fit_tables.PLACE_COLUMNS, fit_tables.shown_places(found)),
        ],
        "of": of,
        "proof": found.runs.index(found.proof),
    }
