"""The checklist's page is made of the checks."""

from __future__ import annotations

import os
from pathlib import Path

from tests.report.checklist_page import with_tables

PAGE = Path(__file__).parents[2] / "docs" / "checklist.md"


def test_the_page_holds_the_checks_as_they_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    if os.environ.get("ACCUCOMPARE_FREEZE"):
        PAGE.write_text(with_tables(page), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == with_tables(page)
