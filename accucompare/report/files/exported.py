"""The words and numbers that all exports share."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from accucompare.files import written_whole
from accucompare.report.files.written_comparison import WrittenMetrics, WrittenRow
from accucompare.text import printable

#: log10 of the error of equal tensors, and of an error without bound.
LOG_OF_EQUAL, LOG_OF_UNBOUNDED = -20.0, 20.0


def facts(row: WrittenRow) -> dict[str, str]:
    """A row's facts in the columns' words; missing ones are left out."""
    side = row.golden or row.candidate
    metrics = row.metrics or WrittenMetrics()
    told: dict[str, float | str | None] = {
        "reason": row.reason.value,
        "relative L2": metrics.rel_l2,
        "x limit": row.used,
        "excess": row.excess,
        "max abs diff": metrics.max_abs,
        "1 − cosine": metrics.one_minus_cosine,
        "non-finite mismatch": metrics.nonfinite_mismatch or None,
        "tolerance": row.tolerance,
        "detail": row.detail,
        "shape": "" if side is None else str(list(side.shape)),
        "golden dtype": "" if row.golden is None else row.golden.dtype,
        "candidate dtype": "" if row.candidate is None else row.candidate.dtype,
    }
    return {
        name: printable(value) if isinstance(value, str) else f"{value:.6g}"
        for name, value in told.items()
        if value not in (None, "")
    }


def log_of(value: float | None) -> float | None:
    """The log10 of an error within the bounds above; ``None`` if there is none, or no number."""
    if value is None or math.isnan(value):
        return None
    if value <= 0:
        return LOG_OF_EQUAL
    return (
        round(max(LOG_OF_EQUAL, math.log10(value)), 4) if math.isfinite(value) else LOG_OF_UNBOUNDED
    )


def write_text(content: Any, path: Path) -> Path:
    """Write JSON that every viewer reads: ASCII, no NaN. Raises ReportError if the file cannot be
    written."""
    encoded = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    return written_whole(path, lambda temporary: temporary.write_bytes(encoded))
