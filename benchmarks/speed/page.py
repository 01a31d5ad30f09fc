"""Writing the page of a made-up comparison, and opening it in a browser: ``python -m
benchmarks.speed.page ROWS PATH``.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.speed.plan import Plan
from benchmarks.speed.report import made_up
from benchmarks.timing import MB, BenchError, child, column, peak_mb

#: Types a filter, and gives the milliseconds until the rows are there that it leaves.
_FILTER = """const field = document.querySelector("#rows input[type=search]"); const began = performance.now();
field.value = "layers.3"; field.dispatchEvent(new Event("input")); document.body.offsetHeight; return performance.now() - began;"""
_SORT = """const began = performance.now();
[...document.querySelectorAll("#rows .header button")].find((each) => each.textContent === "relative L2").click();
document.body.offsetHeight; return performance.now() - began;"""


def measure(plan: Plan) -> Iterator[Figure]:
    rows = max(plan.sizes.rows)
    plan.say(f"page: {rows:,} rows")
    page = plan.folder / "page.html"
    samples = [child("benchmarks.speed.page", rows, page) for _ in range(plan.rounds)]
    yield Figure("page", f"{rows:,} rows: time to write", "s", column(samples, "seconds"), 2.0)
    yield Figure(
        "page", f"{rows:,} rows: size of the file", "MB", column(samples, "megabytes"), 8.0
    )
    yield Figure(
        "page", f"{rows:,} rows: memory added by writing", "MB", column(samples, "added_mb")
    )
    opened = [_opened(page) for _ in range(plan.rounds)]
    yield Figure("page", f"{rows:,} rows: opened in Chromium", "s", column(opened, "open"), 1.0)
    yield Figure("page", f"{rows:,} rows: filtered", "s", column(opened, "filter"), 1.0)
    yield Figure("page", f"{rows:,} rows: sorted", "s", column(opened, "sort"), 1.0)


def _opened(page: Path) -> dict[str, Any]:
    """The seconds that a browser takes from the beginning of loading until the page is there; to
    filter; and to sort.
    """
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise BenchError("Chromium and its driver are not installed (make chromium)")
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    with tempfile.TemporaryDirectory(prefix="accucompare.") as folder:
        options = ChromeOptions()
        for flag in (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-sync",
        ):
            options.add_argument(flag)
        options.add_argument(f"--user-data-dir={folder}")
        options.binary_location = chromium
        browser = Chrome(options=options, service=ChromeService(driver))
        try:
            browser.get(page.as_uri())
            while not (
                ready := browser.execute_script("return document.documentElement.dataset.ready")
            ):
                time.sleep(0.02)
            milliseconds = {
                "open": float(ready),
                "filter": browser.execute_script(_FILTER),
                "sort": browser.execute_script(_SORT),
            }
        finally:
            browser.quit()
    return {name: value / 1000 for name, value in milliseconds.items()}


def _child(rows: int, path: Path) -> None:
    comparison = made_up(rows)
    before = peak_mb()
    began = time.perf_counter()
    comparison.to_html(path)
    seconds = time.perf_counter() - began
    print(
        json.dumps(
            {
                "seconds": seconds,
                "megabytes": path.stat().st_size / MB,
                "added_mb": peak_mb() - before,
            }
        )
    )


if __name__ == "__main__":
    _child(int(sys.argv[1]), Path(sys.argv[2]))
