"""A diff of two bundles in object storage beside the rate of the server itself, measured in turns
in one run.

    python -m benchmarks.scale_storage

The server is moto's, in a process of its own on this machine, which is far slower than storage is:
what is measured is how little of its rate a diff leaves unused.
"""

from __future__ import annotations

import http.client
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import s3fs

import accucompare as ac
from accucompare.bundle.format.byte_sources import WINDOW
from accucompare.bundle.format.manifest import Manifest
from accucompare.bundle.format.records import Layout, Record, Role
from accucompare.bundle.writing.writer import BundleWriter
from accucompare.places import place_of

#: Bytes of each bundle, and of each of its tensors.
BUNDLE, TENSOR = 200 << 20, 12 << 20
ROUNDS = 3
#: Of the server's own rate: the target.
TARGET = 0.85
#: Plain GETs at once: whichever the server likes best. A diff has up to six on their way, three of
#: each side.
AT_ONCE = (2, 4, 6)
_SERVE = """
import contextlib, logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0)
with contextlib.redirect_stdout(None):
    server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def served() -> Iterator[int]:
    """A server of S3, whose address and credentials are in the environment; its port."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
    os.environ.update(
        dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "testing"),
        AWS_DEFAULT_REGION="us-east-1",
    )
    try:
        yield port
    finally:
        process.kill()
        process.communicate()


def write(out: str, error: float) -> None:
    """A bundle of random tensors, and errors of a relative size."""
    writer = BundleWriter(place_of(out), Manifest(complete=True))
    for number in range(BUNDLE // TENSOR):
        values = np.random.default_rng(number).standard_normal(TENSOR // 4, np.float32)
        array = values + np.float32(error) * np.random.default_rng(1000 + number).standard_normal(
            TENSOR // 4, np.float32
        )
        name, shape = f"layers.{number}", array.shape
        writer.add(
            Record(
                0,
                0,
                name,
                0,
                Role.OUTPUT,
                "",
                number,
                "Linear",
                None,
                shape,
                "float32",
                Layout.STRIDED,
            ),
            array,
        )
    writer.end_step(0)
    writer.close()


def plain(port: int, at_once: int, sizes: dict[str, int]) -> float:
    """Seconds to get both files by ranges of a window's length, so many at once, and nothing
    else."""
    ranges = [
        (path, start, min(start + WINDOW, size) - 1)
        for path, size in sizes.items()
        for start in range(0, size, WINDOW)
    ]

    def get(asked: tuple[str, int, int]) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request(
            "GET",
            asked[0],
            headers={"Range": f"bytes={asked[1]}-{asked[2]}", "Authorization": "Basic eDp4"},
        )
        length = len(connection.getresponse().read())
        connection.close()
        return length

    start = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        got = sum(pool.map(get, ranges))
    assert got == sum(sizes.values())
    return time.perf_counter() - start


def main() -> int:
    """Print the rates; 0 if the target is met."""
    with served() as port:
        s3fs.S3FileSystem().mkdir("bench")
        write("s3://bench/golden", 0.0)
        write("s3://bench/npu", 1e-3)
        paths = ("/bench/golden/rank0/step0.npz", "/bench/npu/rank0/step0.npz")
        sizes = {path: s3fs.S3FileSystem().size(path[1:]) for path in paths}
        nbytes, rates, shares = sum(sizes.values()), [], []
        for _ in range(ROUNDS):
            own = min(plain(port, at_once, sizes) for at_once in AT_ONCE)
            start = time.perf_counter()
            comparison = ac.diff(
                "s3://bench/golden", "s3://bench/npu", limits=ac.Tolerance(rel_l2=1e-2)
            )
            spent = time.perf_counter() - start
            assert comparison.passed
            assert len(comparison.rows) == BUNDLE // TENSOR
            rates.append(nbytes / spent / 1e6)
            shares.append(own / spent)
            print(
                f"plain GETs {nbytes / own / 1e6:.0f} MB/s, diff {rates[-1]:.0f} MB/s:"
                f" {shares[-1]:.2f}",
                flush=True,
            )
    share = statistics.median(shares)
    print(
        f"diff of 2 x {BUNDLE >> 20} MB from S3: {statistics.median(rates):.0f} MB/s, {share:.2f}"
        f" ({min(shares):.2f} to {max(shares):.2f}) of what the server gives to plain GETs of"
        f" {WINDOW >> 20} MiB, the best of {', '.join(map(str, AT_ONCE))} at once; target >="
        f" {TARGET}"
    )
    return 0 if share >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
