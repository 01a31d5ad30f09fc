"""Tables in a terminal of 80 columns: they fit, each row is one line, and long names are cut in the
middle. In a pipe, names are whole.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from tests.compare.builder import item, write
from tests.conftest import Run
from tests.findings.logs import end, found, frames, passed, start, step
from tests.findings.logs import write as write_log

LONG = "model.decoder.layers.17." + "very_long_part_of_a_name." * 6 + "attention.q_proj"
WIDE = "模型." + "编码器层" * 20 + ".输出"
# a terminal, as rich sees it, that no escape codes are sent to
TERMINAL = {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "80"}
#: Beginnings of sentences, which the terminal wraps itself so that they can be copied whole.
SENTENCES = (
    "FAIL  ",
    "NOT FINITE  ",
    "NaN in ",
    "  made ",
    "  in: ",
    "  try: ",
    "  reproducer: ",
    "  !",
    "  ·",
    "report: ",
    "bit for bit ",
)


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    """Two bundles with names of all lengths, of which some differ and some have no partner."""
    draw = np.random.default_rng(3).normal(size=(16, 8)).astype(np.float32)
    names = [LONG, WIDE, "fc"]
    golden = [
        item(name, draw, type="AnAttentionModuleWithAVeryLongClassName")
        for name in (*names, LONG + ".gone", WIDE + ".gone")
    ]
    npu = [
        item(name, draw * np.float32(1.5), type="AnAttentionModuleWithAVeryLongClassName")
        for name in (*names, LONG + ".new")
    ]
    write(tmp_path / "golden", golden)
    write(tmp_path / "npu", npu)
    return tmp_path


def log(folder: Path) -> None:
    events = [
        start(),
        found(LONG),
        *(passed(name, order=7 + at) for at, name in enumerate((WIDE, LONG))),
        frames(LONG, WIDE, "fc1"),
    ]
    write_log(
        folder / "watch" / "rank0.jsonl", *events, step(0, finite=False), end(1, reason="a finding")
    )


@pytest.mark.parametrize(
    "command",
    [
        ("diff", "golden", "npu"),
        ("show", "golden"),
        ("show", "golden", "*gone"),
        ("overflow", "watch"),
    ],
    ids=" ".join,
)
def test_tables_fit_a_terminal_and_long_names_are_cut_in_the_middle(
    command: tuple[str, ...], bundles: Path, cli: Run
) -> None:
    log(bundles)
    lines = cli(*command, **TERMINAL).stdout.splitlines()
    assert [line for line in lines if cell_len(line) > 80 and not line.startswith(SENTENCES)] == []
    cut = [line for line in lines if "…" in line and not line.startswith(SENTENCES)]
    assert any(
        "model." in line.partition("…")[0]
        and line.partition("…")[2].split()[0].endswith(("proj", "gone"))
        for line in cut
    )


@pytest.mark.parametrize("columns", ["40", "60", "80", "200"])
def test_every_row_is_one_line_whatever_the_width(columns: str, bundles: Path, cli: Run) -> None:
    lines = cli("show", "golden", **{**TERMINAL, "COLUMNS": columns}).stdout.splitlines()
    table = [line for line in lines if not line.startswith("not shown in ")]
    assert len(table) == 6
    assert [line.split()[0] for line in table[1:]] == ["0", "1", "2", "3", "4"]


def test_in_a_pipe_names_are_whole_and_each_row_is_one_line(bundles: Path, cli: Run) -> None:
    listed = cli("show", "golden").stdout.splitlines()
    assert len(listed) == 6
    assert [line.split()[1] for line in listed[1:]] == [
        LONG,
        WIDE,
        "fc",
        LONG + ".gone",
        WIDE + ".gone",
    ]
    assert f"{LONG}.gone output" in cli("diff", "golden", "npu").stdout


def test_the_sentence_comes_first(bundles: Path, cli: Run) -> None:
    log(bundles)
    begins: dict[tuple[str, ...], str] = {
        ("diff", "golden", "npu"): "FAIL  ",
        ("overflow", "watch"): "NOT FINITE  ",
        ("verify", "npu"): "OK  ",
    }
    for command, first in begins.items():
        assert cli(*command, **TERMINAL).stdout.startswith(first)


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_no_color_is_honoured(no_color: str, coloured: bool, bundles: Path, cli: Run) -> None:
    out = cli(
        "diff", "golden", "npu", FORCE_COLOR="1", TERM="xterm-256color", NO_COLOR=no_color
    ).stdout
    assert ("\x1b[1;31m" in out) == coloured  # bold red
    assert "\x1b[1m" in out  # bold is no colour
