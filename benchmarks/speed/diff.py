"""Comparing against reading: ``accucompare.diff`` beside ``cat`` of the same files, from page cache
and from disk.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.speed.data import cached, drop, files, make
from benchmarks.speed.plan import DataSet, Plan
from benchmarks.timing import BenchError, Sample, alternate, child, column, peak_mb, process, ratios

_SECTION = "diff"
_FALLBACK = {"ACCUCOMPARE_KERNEL": "numpy"}


def measure(plan: Plan) -> Iterator[Figure]:
    plan.need(max(2 * data.nbytes for data in (plan.sizes.small, plan.sizes.huge, plan.sizes.many)))
    if plan.features.kernel != "compiled":
        plan.note(
            f"diff: no compiled kernel: {plan.features.kernel or 'this accucompare has none'}"
        )
    bare = [child("benchmarks.speed.diff", "--bare")["peak_mb"] for _ in range(plan.rounds)]
    for data in (plan.sizes.small, plan.sizes.huge, plan.sizes.many):
        plan.say(f"diff: {data.name}: making")
        folder = plan.folder / "diff"
        try:
            golden, candidate = make(folder, data)
            yield from _warm(plan, data, golden, candidate, bare)
            if hasattr(os, "posix_fadvise"):
                yield from _cold(plan, data, golden, candidate)
            else:
                plan.note("cold files: this system cannot drop files from its cache")
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _warm(
    plan: Plan, data: DataSet, golden: Path, candidate: Path, bare: list[float]
) -> list[Figure]:
    plan.say(f"diff: {data.name}: warm")
    paths = files(golden, candidate)
    _cat(paths)
    arms = _arms(plan, paths, golden, candidate)
    samples = alternate(arms, plan.rounds)
    share = cached(paths)
    if share < 0.999:
        plan.note(
            f"diff, {data.name}: only {share:.1%} of the files were in the page cache, so warm is"
            " not quite warm"
        )
    cat = column(samples.pop("cat"), "seconds")
    figures = []
    for arm, taken in samples.items():
        seconds = column(taken, "seconds")
        fallback = arm == "NumPy"
        label = f"{data.name}, warm" + ("" if arm == "default" else f", {arm}")
        target = None if arm == "workers=1" else 4.0 if fallback else 1.1
        small = data is plan.sizes.small  # a cat of it lasts as long as starting cat
        figures.append(
            _figure(f"{label}: time / cat", "x", ratios(seconds, cat), None if small else target)
        )
        if small:
            target = None if arm == "workers=1" else 50.0 if fallback else 15.0
            figures.append(
                _figure(
                    f"{label}: a pair",
                    "µs",
                    [value / data.tensors * 1e6 for value in seconds],
                    target,
                )
            )
        else:
            figures.append(
                _figure(
                    f"{label}: throughput",
                    "GB/s",
                    [2 * data.nbytes / value / 1e9 for value in seconds],
                )
            )
        figures.append(
            _figure(
                f"{label}: peak memory",
                "MB",
                [a - b for a, b in zip(column(taken, "peak_mb"), bare, strict=True)],
                150.0,
            )
        )
    return figures


def _cold(plan: Plan, data: DataSet, golden: Path, candidate: Path) -> list[Figure]:
    plan.say(f"diff: {data.name}: cold")
    paths = files(golden, candidate)
    left: list[float] = []

    def after_dropping(run: Callable[[], Sample]) -> Sample:
        drop(paths)
        left.append(cached(paths))
        return run()

    arms = {
        name: partial(after_dropping, run)
        for name, run in _arms(plan, paths, golden, candidate).items()
        if name in ("cat", "default")
    }
    samples = alternate(arms, plan.rounds)
    if max(left) > 0.01:
        plan.note(
            f"diff, {data.name}: {max(left):.1%} of the files stayed in the page cache, so cold is"
            " not quite cold"
        )
    cat, seconds = column(samples["cat"], "seconds"), column(samples["default"], "seconds")
    target = None if data is plan.sizes.small else 1.0
    return [
        _figure(f"{data.name}, cold: time / cat", "x", ratios(seconds, cat), target),
        _figure(
            f"{data.name}, cold: throughput",
            "GB/s",
            [2 * data.nbytes / value / 1e9 for value in seconds],
        ),
    ]


def _arms(
    plan: Plan, paths: list[Path], golden: Path, candidate: Path
) -> dict[str, Callable[[], Sample]]:
    arms: dict[str, Callable[[], Sample]] = {
        "cat": partial(_cat, paths),
        "default": partial(_diff, golden, candidate),
    }
    if plan.features.workers:
        arms["workers=1"] = partial(_diff, golden, candidate, workers=1)
    if plan.features.kernel == "compiled":
        arms["NumPy"] = partial(_diff, golden, candidate, environment=_FALLBACK)
    return arms


def _cat(paths: list[Path]) -> Sample:
    return {"seconds": process(["sh", "-c", 'exec cat "$@" >/dev/null', "sh", *paths]).seconds}


def _diff(
    golden: Path,
    candidate: Path,
    workers: int | None = None,
    environment: dict[str, str] | None = None,
) -> Sample:
    sample = child(
        "benchmarks.speed.diff",
        golden,
        candidate,
        *([workers] if workers else []),
        environment=environment,
    )
    if not sample["compared"] or sample["compared"] != sample["different"]:
        raise BenchError(
            f"{golden}: {sample['compared']} pairs were compared and {sample['different']}"
            " differed; both should be all"
        )
    return sample


def _figure(what: str, unit: str, values: list[float], target: float | None = None) -> Figure:
    return Figure(_SECTION, what, unit, values, target)


def _child(golden: str, candidate: str, *workers: str) -> None:
    import accucompare as ac

    diff = ac.diff  # here it is imported
    options = {"work": ac.Work(workers=int(workers[0]))} if workers else {}
    began = time.perf_counter()
    comparison = diff(golden, candidate, **options)  # type: ignore[arg-type]
    seconds = time.perf_counter() - began
    different = sum(row.metrics is not None and row.metrics.max_abs > 0 for row in comparison.rows)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "peak_mb": peak_mb(),
                "compared": comparison.compared,
                "different": different,
            }
        )
    )


def _bare() -> None:
    import numpy as np

    print(json.dumps({"peak_mb": peak_mb(), "numpy": np.__version__}))


if __name__ == "__main__":
    if sys.argv[1] == "--bare":
        _bare()
    else:
        _child(*sys.argv[1:])
