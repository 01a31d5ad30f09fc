"""A fit as JSON, for programs."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from accucompare.compare.fits import Fit
from accucompare.files import written_whole
from accucompare.report.files.ranks_json import finite_or_text
from accucompare.report.words import fit_words


def write_fit_json(found: Fit, path: Path) -> Path:
    """Write the answer, the places, all runs and the curve; NaN and infinities as ``"nan"``,
    ``"inf"``. ReportError if the file cannot be written."""
    plain = msgspec.to_builtins(found)
    content = {
        **plain,
        "exit_code": found.exit_code,
        "headline": fit_words.fit_headline(found),
        "hint": fit_words.fit_hint(found),
    }
    text = json.dumps(finite_or_text(content), indent=1, ensure_ascii=False, allow_nan=False)
    encoded = (text + "\n").encode("utf-8", "backslashreplace")
    return written_whole(path, lambda temporary: temporary.write_bytes(encoded))
