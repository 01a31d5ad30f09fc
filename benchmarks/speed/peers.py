"""The strongest peer beside us in one run: msprobe dumps and compares the GPT-2 that we capture and
compare.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure
from benchmarks.speed.cost import PLAIN, in_child
from benchmarks.speed.data import bytes_in
from benchmarks.speed.plan import Plan
from benchmarks.speed.startup import COMMAND, run
from benchmarks.timing import (
    MB,
    ROOT,
    Argument,
    BenchError,
    Sample,
    alternate,
    child,
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


def _captures(plan: Plan, folder: Path) -> Iterator[Figure]:
    plan.say("peers: capture")
    theirs = _dump(plan, folder, "their-golden", plan.rounds)
    _dump(plan, folder, "their-candidate", 0, disturbed=True)
    ours = in_child(plan, "forward", PLAIN, "tensors", keep=folder / "golden")
    in_child(plan, "forward", "tensors", rounds=0, keep=folder / "candidate", disturbed=True)
    extra = {"msprobe": _extra(theirs["plain"], theirs["dump"])}
    extra["ours"] = _extra(ours[PLAIN], ours["tensors"])
    for whose, (forward, whole) in extra.items():
        what = f"extra time / a plain forward, {whose}"
        yield Figure(_SECTION, f"capture: {what}: in the forward", "%", forward)
        yield Figure(_SECTION, f"capture: {what}: whole", "%", whole)
    for place, what in enumerate(("in the forward", "in all")):
        least = max(median(extra["ours"][place]), 0.5)  # less is lost in the noise
        times = [each / least for each in extra["msprobe"][place]]
        target = None if place else 10.0
        name = f"capture: msprobe's extra time {what} / ours"
        yield Figure(_SECTION, name, "x", times, target, at_least=True)
    for whose, name in (("msprobe, with parameters", "their-golden"), ("ours", "golden")):
        size = bytes_in(folder / name) / MB
        yield Figure(_SECTION, f"capture: on disk, {whose}", "MB", [size])


def _dump(plan: Plan, folder: Path, name: str, rounds: int, disturbed: bool = False) -> Sample:
    sizes = plan.sizes
    options: list[Argument] = ["forward", rounds, "--keep", folder / name]
    for each in ("batch", "length", "layers", "linears"):
        options += [f"--{each}", getattr(sizes, each)]
    options += ["--disturbed"] if disturbed else []
    return child("benchmarks.speed.peer_dump", folder / "dumping", *options, python=_PYTHON)


def _extra(plain: list[Sample], captured: list[Sample]) -> tuple[list[float], list[float]]:
    """Extra time in the forward, and of the whole, in percent of the plain forward."""
    pairs = list(zip(plain[1:], captured[1:], strict=True))
    inside = [100 * (b["wall"] / a["wall"] - 1) for a, b in pairs]
    whole = [100 * ((b["wall"] + b["after"]) / a["wall"] - 1) for a, b in pairs]
    return inside, whole


def _starts(plan: Plan) -> Iterator[Figure]:
    plan.say("peers: start-up")
    arms = {
        "msprobe": partial(run, _HOME / "bin" / "msprobe", "compare", "-h"),
        "ours": partial(run, *COMMAND, "diff", "-h"),
    }
    samples = alternate(arms, 1 + plan.rounds)
    yield from _beside(samples, "start-up", 10.0)


def _compares(plan: Plan, folder: Path) -> Iterator[Figure]:
    plan.say("peers: compare")
    dumps = ("their-golden", "their-candidate")
    golden, candidate = (next((folder / name).rglob("dump.json")) for name in dumps)
    results = folder / "results"

    def their_compare() -> Sample:
        shutil.rmtree(results, ignore_errors=True)
        program = _HOME / "bin" / "msprobe"
        sample = run(program, "compare", "-tp", candidate, "-gp", golden, "-o", results)
        if not any(path.stat().st_size > 10_000 for path in results.rglob("compare_result*.csv")):
            raise BenchError("msprobe compare wrote no table of results")
        return sample

    paths: list[str | Path] = [
        folder / "golden",
        folder / "candidate",
        "--report",
        folder / "report.xlsx",
    ]
    ours = partial(run, *COMMAND, "diff", *paths)
    arms: dict[str, Callable[[], Sample]] = {"msprobe": their_compare, "ours": ours}
    samples = alternate(arms, 1 + plan.rounds)
    yield from _beside(samples, "compare", 30.0)
    for name, taken in samples.items():
        peaks = [each["peak_mb"] for each in taken[1:]]
        yield Figure(_SECTION, f"compare: peak memory, {name}", "MB", peaks)


def _beside(samples: dict[str, list[Sample]], what: str, target: float) -> Iterator[Figure]:
    seconds = {name: [each["wall"] for each in taken[1:]] for name, taken in samples.items()}
    for name, each in seconds.items():
        yield Figure(_SECTION, f"{what}: {name}", "s", each)
    times = ratios(seconds["msprobe"], seconds["ours"])
    yield Figure(_SECTION, f"{what}: msprobe / ours", "x", times, target, at_least=True)
