"""What `show` finds by name, and `verify`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from accucompare.bundle.format.manifest import Manifest
from accucompare.bundle.reading.reader import open_bundle
from accucompare.bundle.writing import archive_writer
from accucompare.bundle.writing.archive_writer import ArchiveWriter
from accucompare.bundle.writing.writer import BundleWriter
from accucompare.numbers.dtypes import DTYPES, widen
from accucompare.selection import Mode
from tests.attacks.conftest import Command, command
from tests.compare.builder import item, random_bits, set_fields, write

__all__ = ["command"]  # the fixture
NAMES = [
    "encoder.layers.0.fc1",
    "encoder.layers.1.fc1",
    "encoder.layers.0.fc2",
    "encoder.norm",
    "a[0]",
]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    values = [
        item("", np.arange(4.0), role="input", path="x", parent=None),
        *(item(name, np.arange(4.0)) for name in NAMES),
    ]
    return write(tmp_path / "golden", values)


@pytest.mark.parametrize(
    ("glob", "layers"),
    [
        ("encoder.*.fc1", ["encoder.layers.0.fc1", "encoder.layers.1.fc1"]),
        ("*.0.fc?", ["encoder.layers.0.fc1", "encoder.layers.0.fc2"]),
        ("encoder.layers.[!0].*", ["encoder.layers.1.fc1"]),
        ("(ro*", ["(root)"]),
    ],
)
def test_a_glob_lists_the_layers_that_match(
    command: Command, bundle: Path, glob: str, layers: list[str]
) -> None:
    done = command("show", bundle, glob)
    assert done.code == 0
    assert [line.split()[1] for line in done.out.splitlines()[1:]] == layers


@pytest.mark.parametrize("mode", [Mode.SKETCH, Mode.STATS, Mode.DIGEST])
def test_values_that_were_not_recorded_are_told_with_the_mode_of_the_capture(
    command: Command, tmp_path: Path, mode: Mode
) -> None:
    capture = {"mode": mode.value, "sketch": {"version": 1, "size": 256}}
    writer = BundleWriter(
        tmp_path / "kept",
        Manifest(complete=True, capture=capture, model={"sources": {}}),
        mode=mode,
    )
    each = item("fc", np.arange(1000.0))
    writer.add(each.record, each.array)
    writer.end_step(0)
    writer.close()
    shown, sliced = (
        command("show", tmp_path / "kept", "fc"),
        command("show", tmp_path / "kept", "fc", "--slice", "0"),
    )
    assert (shown.code, shown.out.splitlines()[-1]) == (
        0,
        f"its values were not recorded (--mode {mode.value})",
    )
    assert sliced.code == 2
    assert (
        f"has no data (its values were not recorded; captured with --mode {mode.value})"
        in sliced.err
    )
    assert "strided" not in command("show", tmp_path / "kept").out
    assert command("verify", tmp_path / "kept").out.endswith(
        "every record is as it was written; 1 record, which keep no tensors\n"
    )


def test_a_name_that_is_there_is_no_glob(command: Command, bundle: Path) -> None:
    assert command("show", bundle, "a[0]").out.startswith("a[0] call 0 output")


def test_a_glob_that_matches_nothing_is_an_error(command: Command, bundle: Path) -> None:
    done = command("show", bundle, "decoder.*")
    assert (done.code, done.out) == (2, "")
    assert "no layer matches 'decoder.*'" in done.err


@pytest.mark.parametrize(
    ("arguments", "layers"),
    [
        (["--role", "input"], ["(root)"]),
        (["--path", "x"], ["(root)"]),
        (["--path", "", "--call", "0"], NAMES),
        (["encoder.layers.*", "--role", "output"], NAMES[:3]),
    ],
)
def test_a_list_is_of_what_was_asked_for(
    command: Command, bundle: Path, arguments: list[str], layers: list[str]
) -> None:
    done = command("show", bundle, *arguments)
    assert done.code == 0
    assert [line.split()[1] for line in done.out.splitlines()[1:]] == layers


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["--step", "5"], "holds no record of step 5"),
        (["--step", "0", "--rank", "3"], "holds no record of step 0, rank 3"),
        (["--call", "1"], "holds no record of call 1"),
        (
            ["--role", "param_grad"],
            "holds no record of role param_grad; the roles are input, output",
        ),
        (
            ["--role", "output", "--path", "x"],
            "holds no record of role output, path x; the paths are ''",
        ),
        (
            ["encoder.*", "--step", "5"],
            "holds no record of step 5 of a layer that matches 'encoder.*'",
        ),
    ],
)
def test_a_step_or_rank_that_is_not_there_is_an_error(
    command: Command, bundle: Path, arguments: list[str], asked: str
) -> None:
    done = command("show", bundle, *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"accucompare: {bundle}: {asked}; `accucompare show {bundle}` lists them\n"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("encoder.layer.0.fc1", "encoder.layers.0.fc1"),
        ("encoder.norms", "encoder.norm"),
        ("layers.1.fc1", "encoder.layers.1.fc1"),
    ],
)
def test_a_name_that_is_not_there_gets_the_nearest(
    command: Command, bundle: Path, name: str, meant: str
) -> None:
    done = command("show", bundle, name)
    assert done.code == 2
    assert f"no such record; did you mean {meant!r}? " in done.err


def test_a_name_like_no_other_gets_none(command: Command, bundle: Path) -> None:
    assert "did you mean" not in command("show", bundle, "QQQQ").err


def test_a_role_that_is_not_there_gets_no_other_name(command: Command, bundle: Path) -> None:
    assert "did you mean" not in command("show", bundle, "encoder.norm", "--role", "input").err


def test_verify_says_that_a_bundle_is_sound(command: Command, bundle: Path) -> None:
    done = command("verify", bundle)
    assert (done.code, done.err) == (0, "")
    assert (
        done.out == f"OK  {bundle}: every record is as it was written; 6 records, 32 bytes read\n"
    )


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_verify_names_what_is_damaged(command: Command, bundle: Path, quiet: list[str]) -> None:
    path = bundle / "rank0" / "step0.npz"
    path.write_bytes(path.read_bytes().replace(np.float64(3).tobytes(), np.float64(2).tobytes()))
    done = command("verify", bundle, *quiet)
    assert done.code == 2
    assert done.out.startswith(f"TROUBLE  {bundle}: 1 damaged; 6 records\n")
    assert ("is corrupt" in done.out) == (not quiet)


def test_verify_does_not_pass_an_incomplete_bundle(command: Command, tmp_path: Path) -> None:
    done = command("verify", write(tmp_path / "b", [item("fc", [1.0])], complete=False))
    assert done.code == 2
    assert "incomplete; what there is is sound: 1 record, 8 bytes read" in done.out


def test_verify_of_no_bundle_is_trouble(command: Command, tmp_path: Path) -> None:
    assert command("verify", tmp_path).code == 2


class _SparseArchive(ArchiveWriter):
    """Its members' data are holes in the file."""

    def _write(self, data: bytes | memoryview) -> None:
        hole = len(data) if len(data) > 1000 else 0  # less is the end of the directory
        super()._write(b"" if hole else data)
        self._file.seek(hole, os.SEEK_CUR)


def huge(folder: Path, name: str) -> tuple[Path, np.ndarray]:
    """A bundle with one tensor of 64 GiB, nearly all of which is a hole in the file; and its stored
    bits, mapped.
    """
    dtype = DTYPES[name]
    bundle = write(folder / "huge", [item("fc", random_bits(dtype, 40, 0), name)])
    (record,) = open_bundle(bundle).records()
    shape = 4096, (1 << 24) // dtype.storage.itemsize
    set_fields(bundle, shape=list(shape))
    with (folder / "hole").open("wb") as file:
        file.truncate(1 << 36)
    archive = _SparseArchive(bundle / "rank0" / "step0.npz")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(archive_writer, "crc32", lambda data, crc=0: 0)  # which would take a minute
        archive.add(str(record.member), np.memmap(folder / "hole", dtype.storage, "r", shape=shape))
    archive.finish()
    with open_bundle(bundle) as opened:
        (record,) = opened.records()
        mapped = np.memmap(
            archive.path, dtype.storage, "r+", offset=opened.locate(record)[1], shape=shape
        )
    for place, bits in zip(
        ((0, slice(20)), (-1, slice(-20, None))),
        np.split(random_bits(dtype, 40, 1), 2),
        strict=True,
    ):
        mapped[place] = bits
    return bundle, mapped


def bytes_read() -> int:
    """By this process, from files of any kind."""
    (line,) = (
        line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar")
    )
    return int(line.split()[1])


@pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="only Linux counts what a process reads"
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex32", "bool"])
def test_a_part_of_a_huge_tensor_is_read_alone(
    command: Command, tmp_path: Path, dtype: str
) -> None:
    bundle, stored = huge(tmp_path, dtype)
    slices = {
        "0": (0,),
        "-1": (-1,),
        "0, :20": (0, slice(20)),
        "-1, -1:-21:-2": (-1, slice(-1, -21, -2)),
        "::4095, 3": (slice(None, None, 4095), 3),
        "..., 0": (..., 0),
        "2:2": (slice(2, 2),),
        "-4096, 7": (-4096, 7),
    }
    for text, index in slices.items():
        before = bytes_read()
        done = command("show", bundle, "fc", "--slice", text, "--save", "part.npy")
        assert done.code == 0, done.err
        assert bytes_read() - before < 100e6
        assert f"unverified; accucompare verify {bundle}" in done.out
        saved = np.load(tmp_path / "part.npy")
        np.testing.assert_array_equal(saved, widen(np.array(stored[index]), DTYPES[dtype]))


def test_a_part_of_a_tensor_of_usual_size_is_verified(command: Command, bundle: Path) -> None:
    assert "unverified" not in command("show", bundle, "encoder.norm", "--slice", "0").out
    path = bundle / "rank0" / "step0.npz"
    path.write_bytes(path.read_bytes().replace(np.float64(3).tobytes(), np.float64(2).tobytes()))
    done = command("show", bundle, "encoder.norm", "--slice", "0")
    assert (done.code, "is corrupt" in done.err) == (2, True)
