"""What a diff costs: beside reading and hashing the same files, beside a naive loop over small
tensors, with very many records, and of many steps.

``python -m benchmarks.speed.diff ACT …`` is the process that does one of these.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure, clocked
from benchmarks.speed.data import cached, drop, files, make
from benchmarks.speed.models import Size
from benchmarks.speed.plan import Plan
from benchmarks.timing import (
    MB,
    BenchError,
    Sample,
    alternate,
    child,
    clocks,
    peak_mb,
    process,
    since,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PIECE = 1 << 20
#: Steps of the small bundle and of the large one: what a row costs in memory is their difference.
_FEW, _MANY = 2, 20


def measure(plan: Plan) -> Iterator[Figure]:
    for part in (_large, _small, _steps, _million):
        with tempfile.TemporaryDirectory(dir=plan.folder) as folder:
            yield from part(plan, Path(folder))


def _large(plan: Plan, folder: Path) -> Iterator[Figure]:
    data = plan.sizes.large
    plan.need(2 * data.nbytes)
    plan.say(f"diff: {data.name}: making")
    golden, candidate = make(folder, data)
    paths = files(golden, candidate)
    arms: dict[str, Callable[[], Sample]] = {
        "hash": partial(act, "hash", *paths),
        "cat": partial(cat, paths),
        "diff": partial(act, "diff", golden, candidate),
        "NumPy": partial(
            act, "diff", golden, candidate, environment={"ACCUCOMPARE_KERNEL": "numpy"}
        ),
    }
    plan.say(f"diff: {data.name}: warm")
    cat(paths)
    samples = alternate(arms, 1 + plan.rounds)
    if (share := cached(paths)) < 0.999:
        plan.note(f"diff: only {share:.1%} of the files were in the page cache")
    hashing = {"wall": 1.8}
    what = f"diff of {data.name}, cached"
    yield from clocked(
        "diff",
        f"{what} / reading and hashing on one core",
        samples["diff"],
        samples["hash"],
        hashing,
    )
    yield from clocked("diff", f"{what} / cat", samples["diff"], samples["cat"], {})
    yield from clocked(
        "diff", f"{what}, NumPy in place of C / cat", samples["NumPy"], samples["cat"], {}
    )
    speeds = [2 * data.nbytes / each["wall"] / 1e9 for each in samples["diff"]]
    yield Figure("diff", f"{what}: read", "GB/s", speeds[1:], first=speeds[0])
    peaks = [each["peak_mb"] - each["bare_mb"] for each in samples["diff"]]
    yield Figure("diff", f"{what}: memory over Python with NumPy", "MB", peaks[1:], 150.0)
    if not hasattr(os, "posix_fadvise"):
        plan.note("diff: this system cannot drop files from its cache")
        return
    plan.say(f"diff: {data.name}: cold")

    def after_dropping(run: Callable[[], Sample]) -> Sample:
        drop(paths)
        return run()

    cold = alternate(
        {name: partial(after_dropping, arms[name]) for name in ("cat", "diff")}, 1 + plan.rounds
    )
    yield from clocked(
        "diff", f"diff of {data.name}, from disk / cat", cold["diff"], cold["cat"], {}
    )


def _small(plan: Plan, folder: Path) -> Iterator[Figure]:
    number = plan.sizes.linears
    plan.say(f"diff: calls of {number} small Linears, {_MANY} steps")
    child("benchmarks.speed.diff", "linears", folder, number)
    many, few = ((folder / f"golden{n}", folder / f"candidate{n}") for n in (_MANY, _FEW))
    arms = {
        "naive": partial(act, "naive", *many),
        "diff": partial(act, "diff", *many),
        "few": partial(act, "diff", *few),
    }
    samples = alternate(arms, 1 + plan.rounds)
    rows = samples["diff"][0]["compared"]
    what = f"diff of {rows:,} small pairs"
    for clock in ("process", "wall"):
        each = [sample[clock] / rows * 1e6 for sample in samples["diff"]]
        target = 15.0 if clock == "wall" else None
        yield Figure("diff", f"{what}, a pair", "µs", each[1:], target, each[0], clock)
    yield from clocked(
        "diff",
        f"{what} / np.load and NumPy in a loop",
        samples["diff"],
        samples["naive"],
        {"wall": 0.12},
    )
    more = rows - samples["few"][0]["compared"]
    sizes = [
        (a["peak_mb"] - b["peak_mb"]) * MB / more
        for a, b in zip(samples["diff"], samples["few"], strict=True)
    ]
    yield Figure("diff", f"{what}: memory of a row", "B", sizes[1:], 700.0)


def _steps(plan: Plan, folder: Path) -> Iterator[Figure]:
    data = plan.sizes.steps
    plan.say(f"diff: {data.name}")
    golden, candidate = make(folder, data)
    found = [
        act("diff", golden, candidate, "--descriptors")["descriptors"] for _ in range(plan.rounds)
    ]
    yield Figure("diff", f"diff of {data.name}: file descriptors", "", found, 64.0)


def _million(plan: Plan, folder: Path) -> Iterator[Figure]:
    """Once: it takes minutes."""
    from benchmarks.scale_bundles import write_bundles
    from benchmarks.scale_rows import diff_command

    ranks, records = plan.sizes.ranks, plan.sizes.records
    plan.need(ranks * records * 2 * 2500)
    plan.say(f"diff: {ranks * records:,} records a side")
    golden, candidate, written = write_bundles(folder, ranks, records)
    run, _ = diff_command(golden, candidate, "none")
    what = f"diff of {written:,} pairs of sketches"
    full = written > 1_000_000
    yield Figure("diff", what, "s", [run.seconds], 40.0 if full else None, clock="wall")
    yield Figure("diff", what, "s", [run.processor], clock="process")
    peak = run.resident / MB
    yield Figure("diff", f"{what}: memory", "MB", [peak], 800.0 if full else None)


def cat(paths: list[Path]) -> Sample:
    done = process(["sh", "-c", 'exec cat "$@" >/dev/null', "sh", *paths])
    return {"wall": done.seconds, "process": done.processor}


def act(act: str, *words: str | Path, environment: dict[str, str] | None = None) -> Sample:
    sample = child("benchmarks.speed.diff", act, *words, environment=environment)
    sample.pop("thread", None)  # it waits for those that compute
    return sample


def _diff(golden: str, candidate: str, *options: str) -> Sample:
    """A diff, without start-up and report."""
    import numpy as np  # noqa: F401  # the interpreter's memory is with it

    bare = peak_mb()
    import accucompare as ac

    diff = ac.diff  # here it is imported
    most = _watch_descriptors() if "--descriptors" in options else []
    began = clocks()
    comparison = diff(golden, candidate)
    taken = since(began, 1)
    rows = comparison.rows
    different = sum(row.metrics is not None and row.metrics.max_abs > 0 for row in rows)
    compared = comparison.compared
    if different < 0.95 * compared or not compared:  # what the models are given is the same
        raise BenchError(f"{golden}: {different} of {compared} pairs differ, not nearly all")
    sample = {**taken, "peak_mb": peak_mb(), "bare_mb": bare, "compared": compared}
    return {**sample, "descriptors": max(most)} if most else sample


def _watch_descriptors() -> list[int]:
    """How many files are open, looked at every millisecond from now on."""
    counts = [0]

    def look() -> None:
        while True:
            counts.append(len(os.listdir("/proc/self/fd")))
            time.sleep(0.001)

    threading.Thread(target=look, daemon=True).start()
    return counts


def _hash(*paths: str) -> Sample:
    """Read files piece by piece into one buffer, and digest them, on one core."""
    from xxhash import xxh3_128

    buffer = bytearray(_PIECE)
    view = memoryview(buffer)
    began = clocks()
    for path in paths:
        digest = xxh3_128()
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(view[:count])
        digest.digest()
    return since(began, 1)


def _naive(golden: str, candidate: str) -> Sample:
    """What one would write: each tensor by np.load, each metric by NumPy, one after the other."""
    import numpy as np

    began = clocks()
    count = 0
    for listed in sorted(Path(golden, "rank0").glob("step*.jsonl")):
        other = Path(candidate, "rank0", listed.name)
        with (
            np.load(listed.with_suffix(".npz")) as ours,
            np.load(other.with_suffix(".npz")) as theirs,
            listed.open() as records,
            other.open() as others,
        ):
            for left, right in zip(records, others, strict=True):
                _metrics(ours[json.loads(left)["member"]], theirs[json.loads(right)["member"]])
                count += 1
    return {**since(began, 1), "compared": count}


def _metrics(golden: NDArray[Any], candidate: NDArray[Any]) -> tuple[Any, ...]:
    import numpy as np

    a, b = golden.astype(np.float64).ravel(), candidate.astype(np.float64).ravel()
    d = b - a
    size, norms = np.abs(d), (np.linalg.norm(a), np.linalg.norm(b))
    place = int(size.argmax())
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = float(np.max(size / np.abs(a)))
    return (
        *(np.linalg.norm(d) / norms[0], 1 - a @ b / norms[0] / norms[1], size[place], relative),
        *(np.unravel_index(place, golden.shape), golden.flat[place], candidate.flat[place]),
        *(size.mean(), np.sqrt((d * d).mean()), d.mean()),
        *((size > 1e-3 * np.abs(a)).mean(), (size > 5e-3 * np.abs(a)).mean()),
        *(each for x in (a, b) for each in (x.min(), x.max(), x.mean(), np.isfinite(x).all())),
    )


def _linears(folder: str, number: str) -> Sample:
    """Captures of small Linears, of few steps and of many, and of a disturbed twin."""
    import torch

    import accucompare as ac
    from benchmarks.speed.models import disturb, linears

    model = linears(Size(0, 0, 0, int(number)))
    for side in ("golden", "candidate"):
        for steps in (_FEW, _MANY):
            with ac.capture(model, Path(folder, f"{side}{steps}")) as session, torch.no_grad():
                for step in range(steps):
                    model(torch.full((8, 64), 1 + step / 10))
                    session.step()
        disturb(model)
    return {}


_ACTS: dict[str, Callable[..., Sample]] = {
    "diff": _diff,
    "hash": _hash,
    "naive": _naive,
    "linears": _linears,
}

if __name__ == "__main__":
    print(json.dumps(_ACTS[sys.argv[1]](*sys.argv[2:])))
