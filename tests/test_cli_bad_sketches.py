"""Sketches that are damaged, hostile or of another construction, given to the command line in a
real process with bounded memory.
"""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accucompare.bundle.format.manifest import Manifest
from accucompare.bundle.writing.writer import BundleWriter
from accucompare.selection import Mode
from tests.compare.builder import edit_manifest, item, set_fields
from tests.test_cli_bad_bundles import NPZ, RECORD, refused, run

SIDE = "candidate"


def bundle(folder: Path, values: np.ndarray, size: int = 256) -> None:
    capture = {"mode": "sketch", "sketch": {"version": 1, "size": size}}
    writer = BundleWriter(
        folder,
        Manifest(complete=True, capture=capture, model={"sources": {}}),
        mode=Mode.SKETCH,
        sketch_size=size,
    )
    each = item("fc", values, parent=("", 0))
    writer.add(each.record, each.array)
    writer.end_step(0)
    writer.close()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bundles with a sketch each, of tensors that differ by rounding."""
    folder, values = (
        tmp_path_factory.mktemp("sketches"),
        np.random.default_rng(0).standard_normal((40, 100)).astype("f4"),
    )
    bundle(folder / "golden", values)
    bundle(folder / SIDE, values * np.float32(1.0001))
    return folder


@pytest.fixture
def here(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "here"))


def facts(side: str = SIDE, **changed: Any) -> Callable[[Path], None]:
    """Say something else of how a side's sketches were made."""

    def change(here: Path) -> None:
        edit_manifest(here / side, lambda manifest: manifest["capture"]["sketch"].update(changed))

    return change


def both(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(here: Path) -> None:
        for each in changes:
            each(here)

    return change


def member(made: Callable[[np.ndarray], np.ndarray], side: str = SIDE) -> Callable[[Path], None]:
    """Put other numbers in place of a side's sketches, with a checksum that is right."""

    def change(here: Path) -> None:
        path = here / side / "rank0/step0.npz"
        with zipfile.ZipFile(path) as archive:
            sketches = np.load(io.BytesIO(archive.read("sketches.0.npy")))
        with zipfile.ZipFile(path, "w") as archive:
            stream = io.BytesIO()
            np.save(stream, made(sketches))
            archive.writestr("sketches.0.npy", stream.getvalue())

    return change


def claims_to_be_huge(here: Path) -> None:
    """A member of 3.9 GiB, as its header and its directory have it; the file is as long, and holds
    nothing but holes.
    """
    rows = 1_900_000
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (rows, 256)}
    )
    length = header.tell() + rows * 256 * 8
    info = zipfile.ZipInfo("sketches.0.npy")
    with zipfile.ZipFile(here / NPZ, "w") as archive:
        archive.writestr(info, header.getvalue())
        info.file_size = info.compress_size = length
        assert archive.fp is not None
        archive.fp.seek(len(info.FileHeader()) + length)
        archive.start_dir = archive.fp.tell()


def record(**fields: Any) -> Callable[[Path], None]:
    return lambda here: set_fields(here / SIDE, **fields)


def truncated(here: Path) -> None:
    (here / NPZ).write_bytes((here / NPZ).read_bytes()[:1000])


def of_another_size(here: Path) -> None:
    shutil.rmtree(here / SIDE)
    bundle(here / SIDE, np.ones((40, 100), "f4"), 512)


def without_facts(here: Path) -> None:
    edit_manifest(here / SIDE, lambda manifest: manifest["capture"].pop("sketch"))


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "version": (
        facts(version=2),
        (
            "candidate: its sketches are of version 2, and this accucompare reads version 1;"
            " capture it again with this one (accucompare capture … --mode sketch --out candidate"
            " --overwrite)"
        ),
    ),
    "size": (
        of_another_size,
        (
            f"candidate: {RECORD} has a sketch of 512 numbers, and that in golden has 256; capture"
            " one again: candidate with --sketch-size 256, or golden with --sketch-size 512"
        ),
    ),
    "huge size": (
        facts(size=1 << 40),
        (
            "candidate: its manifest says that a sketch has 1099511627776 numbers, and none has"
            " fewer than 16 or more than 65536; "
        ),
    ),
    "size 0": (
        facts(size=0),
        "a sketch has 0 numbers, and none has fewer than 16 or more than 65536; capture it again",
    ),
    "negative size": (facts(size=-256), "candidate/manifest.json: damaged"),
    "size that is no number": (facts(size=float("nan")), "candidate/manifest.json: damaged"),
    "no facts": (
        without_facts,
        f"{RECORD} has a sketch, and the manifest does not say how it was made; capture it again",
    ),
    "another size than the manifest's": (
        both(facts(size=128), facts("golden", size=128)),
        "sketches.0' holds float64 (1, 256), and not float64 (4096, 128); capture it again",
    ),
    "float32": (
        member(lambda each: each.astype("f4")),
        "sketches.0' holds float32 (1, 256), and not float64 (4096, 256)",
    ),
    "one dimension": (
        member(np.ravel),
        "sketches.0' holds float64 (256,), and not float64 (4096, 256)",
    ),
    "huge member": (
        claims_to_be_huge,
        "sketches.0' holds float64 (1900000, 256), and not float64 (4096, 256)",
    ),
    "NaN": (
        member(lambda each: each * np.nan),
        f"the sketch of {RECORD} holds NaN or Inf, which none of ours does; capture it again",
    ),
    "Inf": (
        member(lambda each: each + np.inf),
        f"the sketch of {RECORD} holds NaN or Inf, which none of ours does; capture it again",
    ),
    "no rows": (
        member(lambda each: each[:0]),
        f"{RECORD} names a sketch that is not there; capture it again",
    ),
    "negative index": (record(sketch=-1), "line 1: damaged (a record is malformed ("),
    "index behind the last": (
        record(sketch=1),
        f"{RECORD} names a sketch that is not there; capture it again",
    ),
    "enormous index": (record(sketch=(1 << 63) - 1), "has no member 'sketches.2251799813685247'"),
    "unknown dtype": (record(dtype="float7"), "has the unknown dtype 'float7'"),
    "truncated": (truncated, "not a readable .npz, truncated or damaged"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_sketch_is_refused_by_name(here: Path, kind: str) -> None:
    change, message = BAD[kind]
    change(here)
    assert message in refused(here).replace("\n", " ")


def test_tensors_of_two_shapes_are_not_compared_by_their_sketches(here: Path) -> None:
    shutil.rmtree(here / SIDE)
    bundle(here / SIDE, np.ones((100, 41), "f4"))
    done = run(here, "diff", "golden", SIDE, "--report", "none")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "[40, 100]" in done.stdout


def test_numbers_that_exceed_float64_fail_and_do_not_pass_as_no_number(here: Path) -> None:
    for side, value in (("golden", 1.5e308), (SIDE, -1.5e308)):
        member(lambda each, value=value: np.full_like(each, value), side)(here)
    done = run(here, "diff", "golden", SIDE, "--cosine", "0.5", "--report", "none")
    assert (done.returncode, done.stderr.count("Warning")) == (1, 0)
