"""The tables of ``docs/checklist.md``, made of the checks: one for each layer."""

from __future__ import annotations

from accucompare.findings.checklist import CHECKS, Check, Layer
from accucompare.findings.log import remark
from accucompare.report.watch_words import CHECK_WORDS, THRESHOLD_WORDS, said

#: The lines of the page around the tables.
BEGIN, END = "<!-- begin: tables made of the checks -->", "<!-- end: tables made of the checks -->"
_HEADING = "|check|measures|threshold|\n|---|---|---|"


def with_tables(page: str) -> str:
    """The page with tables made of the checks; the rest is unchanged."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = "\n\n".join(_table(layer) for layer in Layer)
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def _table(layer: Layer) -> str:
    rows = [_row(check) for check in CHECKS if check.layer is layer]
    return "\n".join([f"### {layer.value.capitalize()}", "", _HEADING, *rows])


def _row(check: Check) -> str:
    thresholds = "; ".join(
        f"`{name}={default:g}`: {THRESHOLD_WORDS[name]}"
        for name, default in check.thresholds.items()
    )
    words = CHECK_WORDS[check.id]
    unseen = "" if words.cure else f"; *not looked at*: {said(remark(check.id))}"
    cells = [f"`{check.id}`", words.looks_at + unseen, thresholds]
    return f"|{'|'.join(each.replace('|', chr(92) + '|') for each in cells)}|"
