"""Names that no encoding holds, and terminals that hold few characters or none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import openpyxl
import pytest
from torch import nn

import accucompare as ac
from tests.attacks.conftest import Command
from tests.compare.builder import item, write

CASE = """
import torch
from torch import nn
from accucompare import Case

def case():
    return Case(nn.Sequential(nn.Linear(3, 3)), torch.ones(2, 3), loss=lambda y: y.sum())
"""

NAMES = {
    "lone surrogate": "a\ud800",
    "undecodable byte": "a\udcff",
    "a pair torn apart": "\udc00\ud800",
    "unassigned": "a\uffff",
}
names = pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
STREAMS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "the C locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    """golden, twin and other, with names that ASCII lacks."""
    for name, value in (("golden", 1.0), ("twin", 1.0), ("other", 2.0)):
        given, returned = (
            item("", [1.0], role="input", path="x", parent=None),
            item("", [value], parent=None),
        )
        write(tmp_path / name, [given, item("层1 – ≥", [value]), returned], notes=["…→"])
    return tmp_path


def run(folder: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command line of the shell, in which ``accucompare`` is this one."""
    shell = f'accucompare() {{ "{sys.executable}" -m accucompare "$@"; }}; {command}'
    return subprocess.run(
        ["sh", "-c", shell],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        errors="replace",
    )


@pytest.mark.parametrize(
    ("stream", "command", "code", "begins"),
    [
        ("ascii", "diff golden other", 1, "FAIL  other against golden"),
        ("the C locale", "diff golden other", 1, "FAIL  other against golden"),
        ("latin-1", "show golden", 0, "#  layer"),
        ("the C locale", "--help", 0, "Usage: accucompare"),
    ],
)
def test_a_stream_of_few_characters_gets_others_in_their_place(
    bundles: Path, stream: str, command: str, code: int, begins: str
) -> None:
    done = run(bundles, f"accucompare {command}", **STREAMS[stream])
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith(begins)


@pytest.mark.parametrize(
    ("closed", "command", "code"),
    [
        ("<&- >&-", "diff golden other", 1),
        ("<&- >&- 2>&-", "diff golden twin", 0),
        (">&-", "show none", 2),
        (">&- 2>&-", "show none", 2),
    ],
)
def test_closed_streams_change_no_exit_code(
    bundles: Path, closed: str, command: str, code: int
) -> None:
    done = run(bundles, f"accucompare {command} {closed}")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == (
        ""
        if code < 2 or "2>" in closed
        else "accucompare: none: not a bundle (there is no such directory)\n"
    )
    # a file that got the descriptor of standard output would hold what is printed
    for report in (bundles / "reports").glob("*.xlsx"):
        openpyxl.load_workbook(report)


@names
def test_a_module_of_any_name_is_captured_and_found_again(tmp_path: Path, name: str) -> None:
    import torch

    model = nn.Sequential()
    model.add_module(name, nn.Linear(3, 3))
    for out in ("golden", "twin"):
        with ac.capture(model, tmp_path / out, overwrite=True):
            model(torch.ones(2, 3))
    with ac.open_bundle(tmp_path / "golden") as bundle:
        assert bundle.complete
        assert bundle.load(name.encode("utf-8", "backslashreplace").decode()).shape == (2, 3)
    assert ac.diff(tmp_path / "golden", tmp_path / "twin").passed
    with ac.capture(model, tmp_path / "fed", feed=tmp_path / "golden"):
        model(torch.ones(2, 3))
    assert ac.diff(tmp_path / "golden", tmp_path / "fed").passed


@names
def test_types_paths_and_notes_of_any_text_are_stored(tmp_path: Path, name: str) -> None:
    write(
        tmp_path / "golden",
        [item("fc", [1.0], type=name, path=name), item("x", None, layout="opaque", detail=name)],
        notes=[name],
    )
    with ac.open_bundle(tmp_path / "golden") as bundle:
        escaped = name.encode("utf-8", "backslashreplace").decode()
        assert [(record.type, record.path, record.detail) for record in bundle.records()] == [
            (escaped, escaped, ""),
            ("Linear", "", escaped),
        ]
        assert bundle.manifest.notes == [name]


@pytest.mark.parametrize("name", ["a\udcff", "\udcfe\udcff", "a\uffff", "a\nb"])
def test_files_of_any_name(command: Command, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "case.py").write_text(CASE)
    target, out, watched = folder / "case.py", folder / "golden", folder / "watch"
    assert command("capture", target, "--out", out).code == 0
    done = command("diff", out, out, "--report", folder / "x.xlsx", "--json", folder / "x.json")
    assert done.code == 0
    assert done.out.endswith("x.xlsx\n")
    assert json.loads((folder / "x.json").read_text())["golden"] == str(out)
    assert command("watch", target, "--out", watched).code == 0
    assert command("overflow", watched, "--report", folder / "w.xlsx").code == 0
