"""Bundles that are missing, damaged or hostile, given to the command line in a real process with
bounded memory.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compare.builder import edit_manifest, item, set_fields, set_lines, write
from tests.forkserver import CLI, without_torch

#: Address space a process may take, in KiB: less than any of these bundles claims to need.
MEMORY = 1 << 20

MEMBER = "000001.fc.output"
NPZ = "candidate/rank0/step0.npz"
JSONL = "candidate/rank0/step0.jsonl"
RECORD = "fc call 0 output (step 0, rank 0)"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with two equal bundles, golden and candidate, of three records."""
    golden = write(
        tmp_path / "golden",
        [
            item("", np.arange(4.0), role="input", path="x", parent=None),
            item("fc", np.arange(4, 8.0)),
            item("", np.arange(8, 12.0), parent=None, type="Net"),
        ],
    )
    shutil.copytree(golden, tmp_path / "candidate")
    return tmp_path


def run(here: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    bounded = f"import resource\nresource.setrlimit(resource.RLIMIT_AS, ({MEMORY << 10},) * 2)\n"
    return without_torch()(
        bounded + CLI, *arguments, cwd=here, variables={**os.environ, "COLUMNS": "100"}
    )


def refused(here: Path, *options: str) -> str:
    """What ``diff`` says on standard error of bundles that it refuses; nothing else may have
    happened.
    """
    done = run(here, "diff", "golden", "candidate", *options)
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    assert done.stderr.count("\n") <= 2
    assert len(done.stderr) < 600
    assert not (here / "reports").exists()
    return done.stderr.removeprefix("accucompare: ")


def replace_member(
    here: Path, data: bytes, name: str = MEMBER, compression: int = zipfile.ZIP_STORED
) -> None:
    """Write the candidate's archive again with other bytes in place of the member of ``fc``."""
    path = here / NPZ
    with zipfile.ZipFile(path) as archive:
        members = {each.removesuffix(".npy"): archive.read(each) for each in archive.namelist()}
    members = {
        (name if each == MEMBER else each): data if each == MEMBER else content
        for each, content in members.items()
    }
    with zipfile.ZipFile(path, "w", compression) as archive:
        for each, content in members.items():
            archive.writestr(f"{each}.npy", content)


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npy_header(shape: str) -> bytes:
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def set_manifest(here: Path, **fields: Any) -> None:
    edit_manifest(here / "candidate", lambda manifest: manifest.update(fields))


def flip_bit(here: Path) -> None:
    content = bytearray((here / NPZ).read_bytes())
    content[content.index(np.arange(4, 8.0).tobytes()) + 17] ^= 0x04
    (here / NPZ).write_bytes(content)


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


# A control: the same processes do work


def test_sound_bundles_are_compared_within_the_memory_that_bad_ones_get(here: Path) -> None:
    done = run(here, "diff", "golden", "candidate", "--quiet")
    assert done.returncode == 0, done
    assert (here / "reports/golden-vs-candidate.xlsx").is_file()


# No bundle at all


def test_a_bundle_that_is_missing_is_named(here: Path) -> None:
    shutil.rmtree(here / "candidate")
    assert refused(here) == "candidate: not a bundle (there is no such directory)\n"


def test_a_directory_that_is_no_bundle_is_called_so_though_the_report_would_lie_in_it(
    here: Path,
) -> None:
    (here / "reports").mkdir(exist_ok=True)
    done = run(here, "diff", "golden", "reports")
    assert (done.returncode, done.stderr) == (
        2,
        "accucompare: reports: not a bundle (it has no manifest.json)\n",
    )


def test_an_empty_directory_is_no_bundle(here: Path) -> None:
    shutil.rmtree(here / "candidate")
    (here / "candidate").mkdir()
    assert refused(here) == "candidate: not a bundle (it has no manifest.json)\n"


# The manifest


def test_a_manifest_that_is_not_json_is_named(here: Path) -> None:
    (here / "candidate/manifest.json").write_text("<html>")
    assert refused(here).startswith("candidate/manifest.json: damaged; it is not valid JSON (")


def test_a_newer_format_is_refused_with_both_versions(here: Path) -> None:
    set_manifest(here, format_version=7, accucompare="9.9.9")
    message = refused(here)
    assert message.startswith(
        "candidate/manifest.json: bundle format version 7, but this accucompare "
    )
    assert (
        "reads version 5; install the accucompare that wrote it (9.9.9) or a newer one" in message
    )


def test_a_manifest_with_absurd_numbers_is_damage(here: Path) -> None:
    set_manifest(here, steps=[{"step": -1, "records": 10**100, "digest": ""}])
    assert refused(here).startswith("candidate/manifest.json: damaged; a field is malformed (")


# The tensors


def test_a_pickled_member_is_refused_and_nothing_is_executed(here: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
            return open, (str(here / "executed"), "w")

    text = b"{'descr': '|O', 'fortran_order': False, 'shape': (4,), }\n"
    replace_member(
        here, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + pickle.dumps(Payload())
    )
    assert (
        refused(here)
        == f"{NPZ}: member '{MEMBER}' holds pickled Python objects; refused, nothing was executed\n"
    )
    assert not (here / "executed").exists()


def test_a_header_that_claims_two_gigabytes_is_refused(here: Path) -> None:
    replace_member(here, b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + bytes(100))
    assert refused(here) == f"{NPZ}: member '{MEMBER}' has no valid .npy header\n"


def test_a_huge_shape_takes_no_memory(here: Path) -> None:
    replace_member(here, npy_header("(1000000, 1000000)") + bytes(32))
    set_fields(here / "candidate", 1, shape=[1_000_000, 1_000_000])
    shutil.rmtree(here / "golden")
    # or it would be said that the shapes differ, without a look at the data
    shutil.copytree(here / "candidate", here / "golden")
    assert (
        refused(here)
        == f"golden/rank0/step0.npz: member '{MEMBER}' is damaged (its header and its length"
        " disagree)\n"
    )


def test_a_member_that_steps_out_of_the_directory_is_never_a_file_name(here: Path) -> None:
    replace_member(here, npy(np.arange(4, 8.0)), name="../../../executed")
    assert refused(here) == f"{NPZ}: has no member '{MEMBER}'\n"
    assert not list(here.parent.glob("executed*"))


def test_a_zip_bomb_is_not_unpacked(here: Path) -> None:
    replace_member(here, npy(np.zeros(5_000_000)), compression=zipfile.ZIP_DEFLATED)
    assert (here / NPZ).stat().st_size < 100_000
    assert "is compressed or encrypted; accucompare stores members plain" in refused(here)


def test_a_flipped_bit_is_found_and_named(here: Path) -> None:
    flip_bit(here)
    assert (
        refused(here, "--verify")
        == f"{NPZ}: {RECORD} is corrupt (its digest does not match); capture it again\n"
    )


@pytest.mark.parametrize("name", [NPZ, JSONL, "candidate/manifest.json"])
def test_a_fifo_is_refused_and_not_waited_for(here: Path, name: str) -> None:
    (here / name).unlink()
    os.mkfifo(here / name)
    assert refused(here, "--verify") == f"{name}: is not a regular file; refused\n"


def test_a_truncated_archive_is_named(here: Path) -> None:
    cut(here / NPZ, 100)
    assert refused(here).startswith(f"{NPZ}: not a readable .npz, truncated or damaged (")


def test_an_absurd_central_directory_is_refused(here: Path) -> None:
    content = bytearray((here / NPZ).read_bytes())
    end = content.rindex(b"PK\x05\x06")
    content[end + 12 : end + 20] = struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
    (here / NPZ).write_bytes(content)
    assert refused(here).startswith(f"{NPZ}: not a readable .npz, truncated or damaged (")


def test_overlapping_members_are_found_by_their_digests(here: Path) -> None:
    content = bytearray((here / NPZ).read_bytes())
    first, second = (
        content.index(b"PK\x01\x02"),
        content.index(b"PK\x01\x02", content.index(b"PK\x01\x02") + 4),
    )
    content[second + 42 : second + 46] = content[first + 42 : first + 46]
    (here / NPZ).write_bytes(content)
    assert NPZ in refused(here)


# The lists of records


def test_a_truncated_list_of_records_is_named_with_its_line(here: Path) -> None:
    cut(here / JSONL, 50)
    assert refused(here).startswith(f"{JSONL}, line 3: damaged (")


def test_a_list_with_too_few_records_is_named_with_both_counts(here: Path) -> None:
    lines = (here / JSONL).read_bytes().splitlines(keepends=True)
    (here / JSONL).write_bytes(b"".join(lines[:2]))
    assert refused(here) == f"{JSONL}: holds 2 records, but the manifest says 3; one is damaged\n"


def test_a_line_of_100_megabytes_is_not_read(here: Path) -> None:
    with (here / JSONL).open("wb") as file:
        file.truncate(100 << 20)
    assert refused(here) == f"{JSONL}, line 1: damaged (it is too long for a record)\n"


def test_deeply_nested_json_is_damage(here: Path) -> None:
    set_lines(here / "candidate", b'{"name":' * 50_000 + b"\n")
    assert refused(here).startswith(f"{JSONL}, line 1: damaged (")


def test_a_record_that_disagrees_with_its_member_is_named(here: Path) -> None:
    set_fields(here / "candidate", 1, dtype="float32")
    assert (
        refused(here)
        == f"{NPZ}: member '{MEMBER}' is float64 (4,), but its record {RECORD} says float32 (4,);"
        " one of the two is damaged\n"
    )


def test_a_record_that_is_there_twice_is_named(here: Path) -> None:
    lines = (here / JSONL).read_bytes()
    set_lines(here / "candidate", lines + lines.splitlines(keepends=True)[1])
    assert refused(here) == f"{JSONL}, line 4: damaged ({RECORD} is there twice)\n"


@pytest.mark.parametrize("fields", [{"shape": [-4]}, {"order": 10**400}])
def test_absurd_numbers_in_a_record_are_damage(here: Path, fields: dict[str, Any]) -> None:
    set_fields(here / "candidate", 1, **fields)
    assert refused(here).startswith(
        f"{JSONL}, line 2: damaged (a record is malformed (Expected `int`"
    )


# Options


def test_keep_going_compares_the_others_and_still_exits_2(here: Path) -> None:
    flip_bit(here)
    done = run(
        here, "diff", "golden", "candidate", "--verify", "--keep-going", "--json", "out.json"
    )
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    content = json.loads((here / "out.json").read_text())
    assert [row["reason"] for row in content["rows"]] == [
        "identical",
        "not comparable",
        "identical",
    ]
    assert content["damage"] == [
        f"{NPZ}: {RECORD} is corrupt (its digest does not match); capture it again"
    ]
    assert not content["passed"]
    assert (here / "reports/golden-vs-candidate.xlsx").is_file()


def test_a_report_that_cannot_be_written_is_named(here: Path) -> None:
    (here / "file").write_text("x")
    assert refused(here, "--report", "file/report.xlsx").startswith(
        "file/report.xlsx: cannot be written ("
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--report", "x.txt"], "--report x.txt: must end in .xlsx"),
        (["--atol", "nan"], "atol must be a finite number that is not negative, but is nan"),
        (["--cosine", "1e-3"], "it is not 1 - cosine"),
        (["--tolerances", "none.toml"], "none.toml: cannot be read (No such file or directory)"),
        (["--map", "re:(=x"], "map 're:(=x' (--map): not a valid regular expression"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_bad_option_is_told(here: Path, options: list[str], message: str) -> None:
    assert message in refused(here, *options)
