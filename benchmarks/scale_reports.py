"""Reports of made-up comparisons of 10^4 to 10^6 rows, each made when it is asked for: ``python -m
benchmarks.scale_reports``.

One line for each: the processor's seconds for all that a report does with a row besides making it,
the peak of memory and what of it the report added, and the size of the file. ``python -m
benchmarks.scale_reports FORMAT RANKS STEPS LAYERS`` measures one, in its own process."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.timing import MB, child, peak_mb

FORMATS = ("xlsx", "html", "jsonl", "parquet", "json")
SIZES = ((10, 1, 1_000), (10, 1, 10_000), (64, 1, 20_000))


def main() -> None:
    print(
        f"{'report':8} {'rows':>10} {'seconds':>8} {'a row':>8} {'peak':>8} {'added':>8}"
        f" {'file':>9} {'rows made':>10}"
    )
    for ranks, steps, layers in SIZES:
        for kind in FORMATS:
            found = child("benchmarks.scale_reports", kind, ranks, steps, layers)
            print(
                f"{kind:8} {found['rows']:10,} {found['seconds']:8.2f}"
                f" {found['seconds'] / found['rows'] * 1e6:5.1f} us {found['peak_mb']:5.0f} MB"
                f" {found['added_mb']:5.0f} MB {found['file_mb']:6.1f} MB {found['made']:8.1f} x",
                flush=True,
            )


def _child(kind: str, ranks: int, steps: int, layers: int) -> None:
    from benchmarks.made_rows import ManyRows, many

    with tempfile.TemporaryDirectory(prefix="accucompare.") as folder:
        path = Path(folder) / f"x.{kind}"
        small = many(1, 1, 50)
        write = {"xlsx": "to_excel", "html": "to_html", "parquet": "to_parquet"}.get(
            kind, "to_json"
        )
        getattr(small, write)(path)  # imports and templates
        comparison = many(ranks, steps, layers)
        # the verdict is known before any report is written
        _ = (comparison.passed, comparison.trouble)
        rows = comparison.rows
        assert isinstance(rows, ManyRows)
        began = time.process_time()
        for _row in rows:
            pass
        one_pass, rows.made, before = time.process_time() - began, 0, peak_mb()
        began = time.process_time()
        getattr(comparison, write)(path)
        seconds = time.process_time() - began
        made = rows.made / len(rows)
        sizes = {
            "peak_mb": peak_mb(),
            "added_mb": peak_mb() - before,
            "file_mb": path.stat().st_size / MB,
        }
        print(
            json.dumps(
                {"rows": len(rows), "seconds": seconds - made * one_pass, "made": made, **sizes}
            )
        )


if __name__ == "__main__":
    _child(sys.argv[1], *map(int, sys.argv[2:5])) if sys.argv[1:] else main()
