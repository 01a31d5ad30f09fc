"""The strongest peer beside us in one run: msprobe dumps and compares the GPT-2 that we capture and
compare.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure
from benchmarks.speed import gpt2
from benchmarks.speed.capture import in_child
from benchmarks.speed.data import bytes_in
from benchmarks.speed.plan import Plan
from benchmarks.speed.startup import SCRIPT, run
from benchmarks.timing import (
    ROOT,
    Argument,
    BenchError,
    Sample,
    alternate,
    child,
    column,
    process,
    ratios,
)

PEER = "mindstudio-probe==26.2.0"
_HOME = ROOT / "benchmarks" / ".peers"
_PYTHON = _HOME / "bin" / "python"
_SECTION = "msprobe"


def install() -> None:
    """Install the peer in a virtual environment of its own that sees this one's packages, so that
    torch need not be loaded again.

    Raises:
        BenchError: if that fails.
    """
    done = _HOME / PEER
    if done.exists():
        return
    shutil.rmtree(_HOME, ignore_errors=True)
    process([sys.executable, "-m", "venv", _HOME])
    where = Path(
        process(
            [_PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        ).output.strip()
    )
    (where / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    process([_PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PEER])
    done.touch()


def measure(plan: Plan) -> Iterator[Figure]:
    plan.say(f"peers: {PEER} in {_HOME}")
    try:
        install()
    except BenchError as error:
        plan.note(f"peers: {PEER} cannot be installed ({str(error).splitlines()[-1]})")
        return
    plan.need(12 * 10**9)
    folder = plan.folder / "peers"
    try:
        folder.mkdir()
        yield from _captures(plan, folder)
        yield from _starts(plan)
        yield from _compares(plan, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _dump(plan: Plan, folder: Path, name: str, rounds: int, disturbed: bool = False) -> Sample:
    options: list[Argument] = ["--threads", 1, *gpt2.options(plan, rounds), "--keep", folder / name]
    return child(
        "benchmarks.speed.peer_dump",
        folder / "dumping",
        *options,
        *(["--disturbed"] if disturbed else []),
        python=_PYTHON,
    )


def _captures(plan: Plan, folder: Path) -> list[Figure]:
    plan.say("peers: capture")
    theirs = _dump(plan, folder, "their-golden", plan.rounds)["samples"]
    _dump(plan, folder, "their-candidate", 1, disturbed=True)
    ours = in_child(plan, 1, plan.rounds, "tensors", keep=folder / "golden")["samples"]
    in_child(plan, 1, 1, "tensors", keep=folder / "candidate", disturbed=True)
    our_extra, our_whole = _overheads(ours["plain"], ours["tensors"])
    their_extra, their_whole = _overheads(theirs["plain"], theirs["dump"])
    return [
        Figure(
            _SECTION, "capture: plain forward, 1 thread", "s", column(theirs["plain"], "forward")
        ),
        Figure(_SECTION, "capture: extra time of start to step / plain, msprobe", "%", their_whole),
        Figure(_SECTION, "capture: extra time of the whole capture / plain, ours", "%", our_whole),
        Figure(_SECTION, "capture: extra time in the forward / plain, msprobe", "%", their_extra),
        Figure(_SECTION, "capture: extra time in the forward / plain, ours", "%", our_extra),
        Figure(
            _SECTION,
            "capture: msprobe's extra time in the forward / ours",
            "x",
            _times(their_extra, our_extra),
            10.0,
            at_least=True,
        ),
        Figure(
            _SECTION,
            "capture: msprobe's extra time in all / ours",
            "x",
            _times(their_whole, our_whole),
        ),
        Figure(
            _SECTION,
            "capture: on disk, msprobe (parameters included, always)",
            "MB",
            [bytes_in(folder / "their-golden") / 1e6],
        ),
        Figure(_SECTION, "capture: on disk, ours", "MB", [bytes_in(folder / "golden") / 1e6]),
    ]


def _overheads(plain: list[Sample], captured: list[Sample]) -> tuple[list[float], list[float]]:
    """Extra time in the forward, and of the whole, in percent of the plain forward."""
    alone = column(plain, "forward")
    forwards, wholes = (ratios(column(captured, key), alone) for key in ("forward", "whole"))
    return [100 * (value - 1) for value in forwards], [100 * (value - 1) for value in wholes]


def _times(theirs: list[float], ours: list[float]) -> list[float]:
    """How many times our median overhead each of theirs is; ours counts as 0.5 % at least, for less
    is lost in the noise.
    """
    return [value / max(median(ours), 0.5) for value in theirs]


def _compares(plan: Plan, folder: Path) -> list[Figure]:
    plan.say("peers: compare")
    golden, candidate = (
        next((folder / name).rglob("dump.json")) for name in ("their-golden", "their-candidate")
    )
    results = folder / "results"
    theirs: list[str | Path] = [
        _HOME / "bin" / "msprobe",
        "compare",
        "-tp",
        candidate,
        "-gp",
        golden,
        "-o",
        results,
    ]
    ours: list[str | Path] = [
        sys.executable,
        "-m",
        "accucompare",
        "diff",
        folder / "golden",
        folder / "candidate",
        "--report",
        folder / "report.xlsx",
    ]

    def their_compare() -> Sample:
        shutil.rmtree(results, ignore_errors=True)
        sample = run(*theirs)
        if not any(path.stat().st_size > 10_000 for path in results.rglob("compare_result*.csv")):
            raise BenchError("msprobe compare wrote no table of results")
        return sample

    samples = alternate({"msprobe": their_compare, "ours": lambda: _sample(ours)}, plan.rounds)
    their_time, our_time = (column(samples[name], "seconds") for name in ("msprobe", "ours"))
    their_bytes, our_bytes = (
        bytes_in(folder / f"{whose}golden", folder / f"{whose}candidate")
        for whose in ("their-", "")
    )
    return [
        Figure(_SECTION, "compare: msprobe, CSV", "s", their_time),
        Figure(_SECTION, "compare: ours, Excel report", "s", our_time),
        Figure(
            _SECTION,
            "compare: msprobe / ours",
            "x",
            ratios(their_time, our_time),
            30.0,
            at_least=True,
        ),
        Figure(
            _SECTION,
            "compare: msprobe, throughput",
            "GB/s",
            [their_bytes / seconds / 1e9 for seconds in their_time],
        ),
        Figure(
            _SECTION,
            "compare: ours, throughput",
            "GB/s",
            [our_bytes / seconds / 1e9 for seconds in our_time],
        ),
        Figure(
            _SECTION, "compare: peak memory, msprobe", "MB", column(samples["msprobe"], "peak_mb")
        ),
        Figure(_SECTION, "compare: peak memory, ours", "MB", column(samples["ours"], "peak_mb")),
    ]


def _sample(command: list[str | Path]) -> Sample:
    finished = process(command, codes=(0, 1))  # 1: differences, which is what was planted
    return {"seconds": finished.seconds, "peak_mb": finished.peak_mb}


def _starts(plan: Plan) -> list[Figure]:
    plan.say("peers: start-up")
    arms = {
        "msprobe compare -h": partial(run, _HOME / "bin" / "msprobe", "compare", "-h"),
        "accucompare diff -h": partial(
            run,
            *([SCRIPT] if SCRIPT.exists() else [sys.executable, "-m", "accucompare"]),
            "diff",
            "-h",
        ),
    }
    for start in arms.values():
        start()
    theirs, ours = (column(taken, "seconds") for taken in alternate(arms, plan.rounds).values())
    return [
        Figure(_SECTION, "start-up: msprobe compare -h", "ms", [value * 1e3 for value in theirs]),
        Figure(_SECTION, "start-up: accucompare diff -h", "ms", [value * 1e3 for value in ours]),
        Figure(
            _SECTION, "start-up: msprobe / ours", "x", ratios(theirs, ours), 10.0, at_least=True
        ),
    ]
