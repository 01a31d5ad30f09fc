"""Bundles and logs whose names, types, paths and notes try to steer the terminal that they are
shown on.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import termios
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from accucompare.text import cut, printable, printable_lines
from tests.attacks.conftest import Command
from tests.compare.builder import item, write
from tests.findings.logs import end, found, frames, seen, start, step
from tests.findings.logs import write as write_log
from tests.forkserver import CLI, without_torch

ATTACKS = {
    "paint": "\x1b[1;32mPASS\x1b[0m",
    "clear the screen": "\x1b[2J\x1b[H",
    "set the title": "\x1b]0;pwned\x07",
    "8-bit control": "\x9b31mred",
    "line": "\nPASS  candidate against golden: all records within tolerance",
    "return": "\rPASS  candidate",
    "backspace": "FAIL\b\b\b\bPASS",
    "next line": "\x85PASS",
    "line separator": "\u2028PASS",
    "right to left": "\u202eSSAP",
    "isolate": "\u2067SSAP\u2069",
    "no width": "f\u200bc\u2060\ufeff",
    "bell": "\a",
    "delete": "\x7f",
}
attack = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)


def poisoned(folder: Path, attack: str) -> tuple[Path, Path]:
    """Two bundles that differ, with the attack wherever a bundle holds text."""
    sides = []
    for name, value in (("golden", 1.0), (f"npu{attack.replace('/', '')}", 2.0)):
        path = write(
            folder / name,
            [
                item("", [1.0], role="input", path=f"x{attack}", parent=None, type=f"Net{attack}"),
                item(f"fc{attack}", [value], type=f"Linear{attack}"),
                item(f"only{attack}{name}", [value]),
                item(
                    f"opaque{attack}",
                    None,
                    path=f"y{attack}",
                    layout="opaque",
                    detail=f"an object{attack}",
                ),
            ],
            complete=value == 1.0,
            stopped=(
                None
                if value == 1.0
                else {"step": 0, "module": f"fc{attack}", "error": f"Error: {attack}"}
            ),
            notes=[f"a note{attack}"],
            model={
                "class": f"Net{value}{attack}",
                "not_called": [f"idle{attack}"],
                "modules": {f"idle{attack}": f"Linear{attack}"},
            },
            environment={
                "device": {"type": "cpu", "name": f"a device{value}{attack}"},
                "versions": {"torch": f"2.0{attack}{value}"},
            },
            capture={"seed": value, "only": [attack]},
        )
        sides.append(path)
    return sides[0], sides[1]


def harmless(text: str) -> None:
    """Fails if the text holds anything but lines of what can be seen, or a line that looks like the
    verdict.
    """
    assert all(character.isprintable() for character in text.replace("\n", ""))
    assert not any(line.strip().startswith(("PASS", "IDENTICAL")) for line in text.splitlines())


@attack
def test_diff_and_its_reports(command: Command, tmp_path: Path, attack: str) -> None:
    """Nothing steers terminal or workbook; names are kept exactly where programs read them."""
    done = command("diff", *poisoned(tmp_path, attack), "--report", "x.xlsx", "--json", "x.json")
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith("FAIL")
    harmless(done.out)
    for sheet in openpyxl.load_workbook(tmp_path / "x.xlsx"):
        for row in sheet.iter_rows(values_only=True):
            harmless(
                "\n".join(
                    value.strip() for value in row if isinstance(value, str) and value != "PASS"
                )
            )
    assert f"fc{attack}" in [
        row["name"] for row in json.loads((tmp_path / "x.json").read_text())["rows"]
    ]


@attack
def test_quiet(command: Command, tmp_path: Path, attack: str) -> None:
    done = command("diff", *poisoned(tmp_path, attack), "--quiet", "--report", "none")
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith("FAIL")
    harmless(done.out)


@attack
def test_show(command: Command, tmp_path: Path, attack: str) -> None:
    golden, _ = poisoned(tmp_path, attack)
    listed, one = command("show", golden), command("show", golden, f"fc{attack}")
    assert (listed.code, one.code) == (0, 0)
    harmless(listed.out + one.out)


@attack
def test_errors(command: Command, tmp_path: Path, attack: str) -> None:
    """Messages that name a record, a layer that is not there, a bundle."""
    golden, candidate = poisoned(tmp_path, attack)
    archive = golden / "rank0" / "step0.npz"
    # the 1.0 of its records
    archive.write_bytes(archive.read_bytes().replace(b"\x00\x00\xf0\x3f", b"\x00\x00\xf1\x3f"))
    for done in (
        command("diff", golden, candidate),
        command("show", golden, f"fc{attack}", "--role", "input"),
        command("show", golden, f"fc{attack}"),
        command("show", f"{candidate}{attack}"),
    ):
        assert done.code == 2
        harmless(done.out + done.err)
        assert done.err.count("\n") == 1


@attack
def test_overflow(command: Command, tmp_path: Path, attack: str) -> None:
    about: dict[str, Any] = {
        "type": f"Linear{attack}",
        "operator": f"mul{attack}",
        "line": f"x.py{attack}:1",
        "notes": [f"note{attack}"],
    }
    tensors = [
        seen(path=attack, dtype=f"float32{attack}"),
        seen(f"output{attack}", "", "nan", "nan", nan=3, inf=0),
    ]
    events = [
        start(model=attack, device=attack),
        frames(f"a{attack}"),
        found(f"fc{attack}", tensors=tensors, **about),
        step(0),
        end(),
    ]
    write_log(tmp_path / "watch" / "rank0.jsonl", *events)
    done = command("overflow", "watch")
    assert done.code == 1
    harmless(done.out + done.err)


@pytest.mark.parametrize("text", ["encoder.layers.0.fc1", "层1 – müller", "e\u0301", "🙂", " ", ""])
def test_what_can_be_seen_is_left_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_lines_of_a_message_are_kept() -> None:
    assert printable_lines("one\n\ttwo\x1b[0m") == "one\n        two\\x1b[0m"


# Its width

LONG = "encoder.layers.{}.attention.self_attention.query_projection.dense_output"


def on_terminal(folder: Path, width: int, *arguments: str) -> list[str]:
    """The lines that a terminal of this width gets."""
    outer, inner = os.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {
        "TERM": "xterm"
    }
    printing = (
        f"import os, sys\nos.dup2(os.open({os.ttyname(inner)!r}, os.O_RDWR | os.O_NOCTTY), 1)\n"
        "sys.stdout = sys.__stdout__ = open(1, 'w', closefd=False)\n"
    )
    content = bytearray()

    def read() -> None:
        with suppress(OSError):  # nobody has the terminal any more
            while chunk := os.read(outer, 1 << 16):
                content.extend(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        without_torch()(printing + CLI, *arguments, cwd=folder, variables=variables)
    finally:
        os.close(inner)
        reader.join()
        os.close(outer)
    return re.sub(r"\x1b\[[0-9;]*m", "", content.decode()).splitlines()  # without colours


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_the_terminals_width_is_used_and_a_long_name_is_cut_in_its_middle(
    tmp_path: Path, width: int
) -> None:
    for name, value in (("golden", 1.0), ("npu", 2.0)):
        write(tmp_path / name, [item(LONG.format(number), [value]) for number in range(3)])
    lines = on_terminal(tmp_path, width, "diff", "golden", "npu")
    table = lines[
        next(number for number, line in enumerate(lines) if line.startswith("Worst rows")) :
    ]
    assert max(map(len, table[:8])) <= width
    rows = [line.split("  ")[0] for line in table if line.startswith("encoder")]
    assert len(rows) == 3  # one line each
    for number, row in enumerate(rows):
        whole = LONG.format(number) + " output"
        begin, cut, end = row.partition("…")
        assert bool(cut) is (width < 160)
        assert (whole.startswith(begin) and whole.endswith(end)) if cut else row == whole


NUMBER = r"\d\.\d\de[+-]\d\d"


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(60, "would pass at, max abs, 1-cosine"), (80, "max abs, 1-cosine"), (120, "")],
)
def test_a_narrow_terminal_breaks_no_number_and_says_which_columns_it_leaves_out(
    tmp_path: Path, width: int, left_out: str
) -> None:
    name = "encoder.layer.{}.intermediate.intermediate_act_fn"
    for folder, value in (("golden", 1.0), ("npu", 2.0)):
        write(tmp_path / folder, [item(name.format(number), [value]) for number in range(3)])
    lines = on_terminal(tmp_path, width, "diff", "golden", "npu")
    start = lines.index("Worst rows")
    table = lines[start : lines.index("", start)]
    assert max(map(len, table)) <= width
    assert [line for line in table if line.startswith("not shown")] == (
        [f"not shown in {width} columns: {left_out}"] if left_out else []
    )
    first = [line for line in table if line.startswith("encoder")]
    assert len(first) == 3
    assert all(len(re.findall(NUMBER, line)) == {60: 1, 80: 1, 120: 3}[width] for line in first)


@pytest.mark.parametrize("width", [60, 80])
def test_show_fits_a_narrow_terminal(tmp_path: Path, width: int) -> None:
    write(tmp_path / "golden", [item(LONG.format(number), [[1.0, 2.0]]) for number in range(3)])
    lines = on_terminal(tmp_path, width, "show", "golden")
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines if line.strip()[:1].isdigit()] == ["0", "1", "2"]
    assert all("1x2" in line for line in lines if line.strip()[:1].isdigit())


def test_a_pipe_gets_every_column(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "golden", [item(LONG.format(0), [1.0], type="AVeryLongNameOfAClassOfModules")])
    listed = command("show", "golden")
    assert listed.out.splitlines()[0].split() == [
        "#",
        "layer",
        "type",
        "role",
        "shape",
        "dtype",
        "min",
        "max",
        "mean",
        "L2",
        "NaN/Inf",
    ]


def test_a_part_longer_than_its_column_is_cut_in_the_middle() -> None:
    assert cut("intermediate_activation_fn", 11) == "inter…on_fn"
    assert cut("short", 5) == "short"


@pytest.mark.parametrize("width", [40, 300])
def test_a_command_to_be_copied_is_on_one_line(tmp_path: Path, width: int) -> None:
    for name, seed in (("golden", 1), ("npu", 2)):
        write(tmp_path / name, [item("fc", [1.0])], capture={"seed": seed})
    lines = on_terminal(tmp_path, width, "diff", "golden", "npu")
    (line,) = [line for line in lines if line.startswith(("  ! ", "  · "))]
    assert "seed" in line
