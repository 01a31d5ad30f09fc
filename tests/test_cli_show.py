"""What `show` finds by name, and `verify`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from accucompare.bundle.manifest import Manifest
from accucompare.bundle.writer import BundleWriter
from accucompare.selection import Mode
from tests.attacks.conftest import Command, command
from tests.compare.builder import item, write

__all__ = ["command"]  # the fixture
NAMES = ["encoder.layers.0.fc1", "encoder.layers.1.fc1", "encoder.layers.0.fc2", "encoder.norm", "a[0]"]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    values = [item("", np.arange(4.0), role="input", path="x", parent=None), *(item(name, np.arange(4.0)) for name in NAMES)]
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
def test_a_glob_lists_the_layers_that_match(command: Command, bundle: Path, glob: str, layers: list[str]) -> None:
    done = command("show", bundle, glob)
    assert done.code == 0
    assert [line.split()[1] for line in done.out.splitlines()[1:]] == layers


@pytest.mark.parametrize("mode", [Mode.SKETCH, Mode.STATS, Mode.DIGEST])
def test_values_that_were_not_recorded_are_told_with_the_mode_of_the_capture(command: Command, tmp_path: Path, mode: Mode) -> None:
    capture = {"mode": mode.value, "sketch": {"version": 1, "size": 256}}
    writer = BundleWriter(tmp_path / "kept", Manifest(complete=True, capture=capture, model={"sources": {}}), mode=mode)
    each = item("fc", np.arange(1000.0))
    writer.add(each.record, each.array)
    writer.end_step(0)
    writer.close()
    shown, sliced = command("show", tmp_path / "kept", "fc"), command("show", tmp_path / "kept", "fc", "--slice", "0")
    assert (shown.code, shown.out.splitlines()[-1]) == (0, f"its values were not recorded (--mode {mode.value})")
    assert sliced.code == 2
    assert f"has no data (its values were not recorded; captured with --mode {mode.value})" in sliced.err
    assert "strided" not in command("show", tmp_path / "kept").out
    assert command("verify", tmp_path / "kept").out.endswith("every record is as it was written; 1 record, which keep no tensors\n")


def test_a_name_that_is_there_is_no_glob(command: Command, bundle: Path) -> None:
    assert command("show", bundle, "a[0]").out.startswith("a[0] call 0 output")


def test_a_glob_that_matches_nothing_is_an_error(command: Command, bundle: Path) -> None:
    done = command("show", bundle, "decoder.*")
    assert (done.code, done.out) == (2, "")
    assert "no layer matches 'decoder.*'" in done.err


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["--step", "5"], "holds no record of step 5"),
        (["--step", "0", "--rank", "3"], "holds no record of step 0, rank 3"),
        (["encoder.*", "--step", "5"], "holds no record of step 5 of a layer that matches 'encoder.*'"),
    ],
)
def test_a_step_or_rank_that_is_not_there_is_an_error(command: Command, bundle: Path, arguments: list[str], asked: str) -> None:
    done = command("show", bundle, *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"accucompare: {bundle}: {asked}; `accucompare show {bundle}` lists them\n"


@pytest.mark.parametrize(
    ("name", "meant"),
    [("encoder.layer.0.fc1", "encoder.layers.0.fc1"), ("encoder.norms", "encoder.norm"), ("layers.1.fc1", "encoder.layers.1.fc1")],
)
def test_a_name_that_is_not_there_gets_the_nearest(command: Command, bundle: Path, name: str, meant: str) -> None:
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
    assert done.out == f"OK  {bundle}: every record is as it was written; 6 records, 32 bytes read\n"


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_verify_names_what_is_damaged(command: Command, bundle: Path, quiet: list[str]) -> None:
    path = bundle / "rank0" / "step0.npz"
    path.write_bytes(path.read_bytes().replace(np.float64(3).tobytes(), np.float64(2).tobytes()))
    done = command("verify", bundle, *quiet)
    assert done.code == 2
    assert done.out.startswith(f"TROUBLE  {bundle}: 1 damaged; 6 records, 32 bytes read\n")
    assert ("is corrupt" in done.out) == (not quiet)


def test_verify_does_not_pass_an_incomplete_bundle(command: Command, tmp_path: Path) -> None:
    done = command("verify", write(tmp_path / "b", [item("fc", [1.0])], complete=False))
    assert done.code == 2
    assert "incomplete; what there is is sound: 1 record, 8 bytes read" in done.out


def test_verify_of_no_bundle_is_trouble(command: Command, tmp_path: Path) -> None:
    assert command("verify", tmp_path).code == 2
