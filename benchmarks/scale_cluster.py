"""What a cluster costs beside threads at home: ``python -m benchmarks.scale_cluster FOLDER``.

Two bundles of 4 GB each are compared by two threads of one process, and by two workers of one
thread each on the same machine, in turns. The cluster runs already, as one that is worth having
does; what it takes to start Dask is a figure of its own."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.speed.data import cached, files, make
from benchmarks.speed.plan import DataSet
from benchmarks.timing import Sample, alternate, child, column, process, ratios

#: The most that a cluster may take, as a multiple of the time at home.
TARGET = 1.15
WORKERS = 2
_ELEMENTS = 3 << 20  # of a tensor: 12.6 MB in float32, as a layer of a large model has


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument(
        "folder", type=Path, help="for the bundles, which stay there: 8 GB by default"
    )
    arguments.add_argument("--gigabytes", type=float, default=4.0, help="of a bundle")
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    given.folder = given.folder.resolve()
    import dask
    from distributed import LocalCluster

    from accucompare.compare.cluster.cluster import UNPROFILED

    tensors = max(1, round(given.gigabytes * 1e9 / (4 * _ELEMENTS)))
    sides = given.folder / "golden", given.folder / "candidate"
    if not all((side / "manifest.json").exists() for side in sides):
        make(given.folder, DataSet("cluster", tensors, _ELEMENTS))
    small = {"memory_limit": 0, "dashboard_address": ":0", "silence_logs": 60}
    with (
        dask.config.set(UNPROFILED),
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, **small) as cluster,
    ):
        address = cluster.scheduler_address
        for where in ("", address):  # the first of each reads from disk
            child("benchmarks.scale_cluster", "--one", *sides, where)
        arms = {
            "home": lambda: child("benchmarks.scale_cluster", "--one", *sides, ""),
            "cluster": lambda: child("benchmarks.scale_cluster", "--one", *sides, address),
        }
        samples = alternate(arms, given.rounds)
        command = [sys.executable, "-m", "accucompare", "diff", *sides, "--report", "none"]
        walls = {
            "home": process([*command, "--workers", str(WORKERS)]),
            "cluster": process([*command, "--cluster", address]),
        }
    return _print(
        samples,
        {name: each.seconds for name, each in walls.items()},
        cached(files(*sides)),
        tensors,
    )


def _print(
    samples: dict[str, list[Sample]], walls: dict[str, float], in_memory: float, tensors: int
) -> int:
    apart = ratios(column(samples["cluster"], "seconds"), column(samples["home"], "seconds"))
    same = len({sample["result"] for each in samples.values() for sample in each}) == 1
    volume = 2 * tensors * _ELEMENTS * 4 / 1e9
    print(
        f"2 bundles, {volume:.1f} GB in all, {tensors} pairs; {in_memory:.0%} in the page cache;"
        f" {len(apart)} rounds in turns"
    )
    for name, each in samples.items():
        seconds = column(each, "seconds")
        middle = median(seconds)
        print(
            f"{name:8} {middle:6.2f} s (from {min(seconds):.2f} to {max(seconds):.2f}),"
            f" {volume / middle:.1f} GB/s"
        )
    print(
        f"the command, with its start: home {walls['home']:.2f} s, cluster {walls['cluster']:.2f} s"
    )
    met = median(apart) <= TARGET
    print(
        f"cluster / home {median(apart):.3f} (from {min(apart):.3f} to {max(apart):.3f}); target"
        f" {TARGET}: {'met' if met else 'MISSED'}"
    )
    print(f"every result the same, bit for bit: {'yes' if same else 'NO'}")
    return 0 if met and same else 1


def _one(golden: str, candidate: str, cluster: str) -> None:
    """Times one diff in this process, without imports. Prints JSON with a digest of the result."""
    import json

    import accucompare as ac
    from accucompare.compare.cluster.cluster import open_cluster

    work = ac.Work(cluster=cluster) if cluster else ac.Work(workers=WORKERS)
    # the first connection imports a good part of Dask
    with open_cluster(cluster) if cluster else contextlib.nullcontext():
        pass
    began = time.perf_counter()
    comparison = ac.diff(golden, candidate, work=work)
    seconds = time.perf_counter() - began
    rows = "\n".join(repr((row.place, row.verdict, row.metrics)) for row in comparison.rows)
    print(json.dumps({"seconds": seconds, "result": hashlib.sha256(rows.encode()).hexdigest()}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _one(*sys.argv[2:])
    else:
        sys.exit(main())
