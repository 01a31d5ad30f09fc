"""Patterns that take for ever, and tensors larger than memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from accucompare.compare.pairing import renames
from tests.attacks.conftest import Command
from tests.compare.builder import item, write

SLOW = {
    "nested repetition": "re:(a+)+$=x",
    "alternatives": "re:(a|a)*$=x",
    "empty repetition": "re:(a*)*b=x",
    "back reference": r"re:(a*)*\1b=x",
    "many stars": "*a" * 40 + "b=x",
    "dots": "re:" + "(.*)" * 30 + "b=x",
}


@pytest.mark.parametrize("pattern", SLOW.values(), ids=SLOW)
def test_a_pattern_that_goes_back_for_ever_is_given_up(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.setattr(renames, "PATTERN_PATIENCE", 0.05)
    name = "a" * 300 + "!"
    for bundle in ("golden", "npu"):
        write(tmp_path / bundle, [item(name, [1.0])])
    done = command("diff", "golden", "npu", "--map", pattern)
    if done.code == 2:
        assert "takes more than 0.05 s for" in done.err
    else:  # a clever engine sees at once that it cannot match
        assert "matches none of golden's layers" in done.out


def test_patterns_are_as_they_were() -> None:
    for text, name, new in (
        (r"re:h\.(\d+)\.(.*)=layers.\1.\2", "h.3.mlp", "layers.3.mlp"),
        ("encoder.layers.*=blocks.*", "encoder.layers.1.fc", "blocks.1.fc"),
        (r"re:(?P<a>x)|y=\g<a>z", "y", "z"),
        ("a[0]=b", "a[0]", "b"),
    ):
        assert renames.Renaming.parse(text).apply(name) == new


# Parts of a tensor


SLICES = [
    "0",
    "-1",
    "...",
    "0, 1, 2",
    ":, 1",
    "1:, ::2, :3",
    "::-1",
    "..., 0",
    "1, ..., 2:4",
    ":0",
    "5:",
    ":, -2:, ::-2",
    "1:2, 0:1, 3",
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64"])
@pytest.mark.parametrize("slices", SLICES)
def test_a_part_is_what_numpy_takes(
    command: Command, tmp_path: Path, slices: str, dtype: str
) -> None:
    values = np.arange(3 * 4 * 5).reshape(3, 4, 5) % 7
    write(
        tmp_path / "b",
        [item("fc", values.astype("float32" if dtype == "bfloat16" else dtype), dtype)],
    )
    assert command("show", "b", "fc", "--slice", slices, "--save", "x.npy").code == 0
    expected = eval(f"values[{slices}]", {"values": values})
    np.testing.assert_array_equal(
        np.load(tmp_path / "x.npy"), expected.astype("float32" if dtype == "bfloat16" else dtype)
    )


@pytest.mark.parametrize(
    "shape",
    [
        (),
        (0,),
        (3, 0, 2),
        (200,),
        (201,),
        (6, 40),
        (7, 40),
        (8, 40),
        (2, 3, 4, 50),
        (1000, 1),
        (1, 1, 999),
    ],
)
def test_what_is_printed_is_what_numpy_prints(
    command: Command, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    values = np.random.default_rng(0).normal(size=shape).astype("float32")
    write(tmp_path / "b", [item("fc", values)])
    printed = command("show", "b", "fc").out.split("\n", 2)[2]
    assert printed == np.array2string(values, max_line_width=100, threshold=200) + "\n"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose only tensor takes 256 MiB; it ends with 7."""
    values = np.zeros((128, 1 << 19), "float32")
    values[-1, -1] = 7
    return write(tmp_path_factory.mktemp("large") / "b", [item("fc", values)])


def show(large: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Show it in a process that may not take more than 320 MiB, a part of which is gone before it
    begins.
    """
    command = [sys.executable, "-m", "accucompare", "show", str(large), "fc", *arguments]
    limited = ["sh", "-c", 'ulimit -v 327680 && exec "$@"', "sh", *command]
    return subprocess.run(
        limited,
        cwd=folder,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


WHOLE = {
    "all": [],
    "a row": ["--slice", "0"],
    "the end": ["--slice", "-1, -2:", "--save", "x.npy"],
    "every other row": ["--slice", "::2"],
}


@pytest.mark.parametrize("arguments", WHOLE.values(), ids=WHOLE)
def test_a_part_of_a_tensor_that_is_larger_than_memory_is_shown(
    large: Path, tmp_path: Path, arguments: list[str]
) -> None:
    done = show(large, tmp_path, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "[128, 524288]" in done.stdout
    assert ("7." in done.stdout.split("\n", 2)[2]) == (
        arguments in (WHOLE["all"], WHOLE["the end"])
    )


def test_a_tensor_that_does_not_fit_is_one_message(large: Path, tmp_path: Path) -> None:
    done = show(large, tmp_path, "--save", "x.npy")
    assert done.returncode == 2
    assert done.stderr.endswith("does not fit into memory; give a part of it (--slice)\n")
    assert not list(tmp_path.iterdir())


def test_a_part_of_a_damaged_tensor_is_refused_too(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "b", [item("fc", np.arange(9.0))])
    archive = tmp_path / "b" / "rank0" / "step0.npz"
    archive.write_bytes(
        archive.read_bytes().replace(np.float64(8).tobytes(), np.float64(9).tobytes())
    )
    done = command("show", "b", "fc", "--slice", "0")
    assert done.code == 2
    assert "is corrupt" in done.err
