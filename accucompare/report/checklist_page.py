"""The tables of ``docs/checklist.md``, made of the checks: one for each layer."""

from __future__ import annotations

from accucompare.findings.checklist import CHECKS, Check, Layer

#: Between these lines of the page stand the tables.
BEGIN, END = "<!-- begin: tables made of the checks -->", "<!-- end: tables made of the checks -->"
_HEADING = "|check|measures|threshold|cure|\n|---|---|---|---|"


def with_tables(page: str) -> str:
    """A page whose tables are those of the checks; the rest stays."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = "\n\n".join(_table(layer) for layer in Layer)
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def _table(layer: Layer) -> str:
    rows = [_row(check) for check in CHECKS if check.layer is layer]
    return "\n".join([f"### {layer.value.capitalize()}", "", _HEADING, *rows])


def _row(check: Check) -> str:
    thresholds = "; ".join(
        f"`{each.name}={each.default:g}`: {each.meaning}" for each in check.thresholds
    )
    cure = check.cure if check.judge is not None else f"*not looked at*: {check.because}"
    cells = [f"`{check.id}`", check.looks_at, thresholds, cure]
    return f"|{'|'.join(each.replace('|', chr(92) + '|') for each in cells)}|"
