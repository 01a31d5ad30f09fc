"""What users see stays as it is: JSON, terminal text, workbooks, a reproducer's script, every
command's help.

The files beside this one hold it. Where a change is meant, ``ACCUCOMPARE_FREEZE=1 pytest
tests/frozen`` writes them anew; look at the difference before you commit it.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from msgspec.structs import replace

import accucompare as ac
from accucompare.cli import cli
from accucompare.numbers.digests import digest
from accucompare.numbers.dtypes import DTYPES
from accucompare.numbers.statistics import summarize
from tests.compare.builder import Item, item, write
from tests.findings.logs import end, found, frames, passed, start, step, training
from tests.findings.logs import write as write_log

HERE = Path(__file__).parent

DRAW = np.random.default_rng(7)
WEIGHTS = DRAW.normal(size=(40, 32))
NOISE = DRAW.normal(size=(40, 32))


def values(error: float = 0.0, turn: int = 0) -> np.ndarray:
    return (WEIGHTS * (1 + error * np.roll(NOISE, turn))).astype(np.float32)


def layers(
    error: float = 0.0,
    *,
    turn: int = 0,
    at: str = "",
    bug: float = 0.0,
    step: int = 0,
    rank: int = 0,
) -> list[Item]:
    """Two blocks of two layers; the output of one may have a larger error."""
    where: dict[str, Any] = {"step": step, "rank": rank}
    items = [item("", values(), role="input", parent=None, type="Net", **where)]
    for block in ("a", "b"):
        for child in ("fc", "norm"):
            name = f"{block}.{child}"
            items.append(
                item(name, values(error, turn), role="input", path="0", parent=(block, 0), **where)
            )
            items.append(
                item(
                    name, values(bug if name == at else error, turn + 1), parent=(block, 0), **where
                )
            )
        items.append(item(block, values(error, turn + 2), type="Block", **where))
    return [*items, item("", values(error, turn + 3), parent=None, type="Net", **where)]


def of_statistics(items: list[Item]) -> list[Item]:
    """What ``--mode stats`` keeps of them."""
    kept = []
    for record, array, _ in items:
        assert array is not None
        kept.append(
            Item(
                replace(
                    record, digest=digest(array), statistics=summarize(array, DTYPES[record.dtype])
                ),
                None,
            )
        )
    return kept


def mixed(folder: Path) -> ac.Comparison:
    """Every reason that a free-running comparison has, names that look like formulas, and an
    environment that differs.
    """
    nan = values()
    nan[3, 5] = np.nan
    golden = [
        *layers(), item("=1+1", values()), item("shape", values()), item("kind", values()),
        item("nan", values()),
        item("only.golden", values()),        item("opaque", layout="opaque", detail="a list"),
    ]  # fmt: skip
    candidate = [
        *layers(1e-7, at="b.fc", bug=1e-2), item("=1+1", values()), item("shape", values()[:1]),
        item("kind", values().astype(np.int64)),
        item("nan", nan), item("only.candidate", values()), item("opaque", layout="opaque",
        detail="a list"),
    ]  # fmt: skip
    idle = {"modules": {"idle": "Linear"}, "not_called": ["idle"]}
    return ac.diff(
        write(
            folder / "golden",
            golden,
            model={**idle, "training": False},
            environment={"device": "cpu", "torch": "2.13.0"},
        ),
        write(
            folder / "npu",
            candidate,
            model={**idle, "training": True},
            environment={"device": "npu:0", "torch": "2.12.0"},
        ),
    )


def identical(folder: Path) -> ac.Comparison:
    return ac.diff(write(folder / "golden", layers()), write(folder / "npu", layers()))


def within(folder: Path) -> ac.Comparison:
    return ac.diff(
        write(folder / "golden", layers()), write(folder / "npu", layers(1e-7)), atol=1e-3
    )


def fed(folder: Path) -> ac.Comparison:
    """Fed, with a baseline, and a bug in one module."""
    golden = write(folder / "golden", layers())
    with ac.open_bundle(golden) as opened:
        capture = {"feed": {"golden": "golden", "identity": opened.identity(), "not_fed": []}}
    candidate = write(folder / "npu", layers(2e-7, turn=5, at="b.fc", bug=1e-3), capture=capture)
    return ac.diff(golden, candidate, baseline=write(folder / "cpu", layers(2e-7), capture=capture))


def statistics(folder: Path) -> ac.Comparison:
    sides = of_statistics(layers()), of_statistics(layers(1e-7, at="a.norm", bug=0.5))
    return ac.diff(
        *(
            write(folder / name, side, capture={"mode": "stats"})
            for name, side in zip(("golden", "npu"), sides, strict=True)
        )
    )


def several(folder: Path) -> ac.Comparison:
    """Two steps on two ranks, the candidate incomplete."""
    both = [(number, rank) for rank in range(2) for number in range(2)]
    golden = [each for number, rank in both for each in layers(step=number, rank=rank)]
    candidate = [
        each
        for number, rank in both
        for each in layers(1e-7, at="a.fc" if rank else "", bug=1e-2, step=number, rank=rank)
    ]
    return ac.diff(
        write(folder / "golden", golden, ranks=2),
        write(folder / "npu", candidate, ranks=2, complete=False),
    )


COMPARISONS: list[Callable[[Path], ac.Comparison]] = [
    mixed,
    identical,
    within,
    fed,
    statistics,
    several,
]

LOGS = {
    "training": training,
    "sound": lambda: [
        start(),
        *(step(number, grad_norm=1.0, loss=2.0) for number in range(3)),
        end(3),
    ],
    "forward": lambda: [
        start(case="model.py"),
        found(),
        passed(),
        frames("fc1", "fc2"),
        step(0, finite=False),
        end(1, reason="a finding"),
    ],
}


def plain(text: str, folder: Path) -> str:
    """Without what differs from run to run or from machine to machine: the directory, times, last
    digits.
    """
    text = text.replace(str(folder), "DIR")
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?", "TIME", text)
    return re.sub(r"-?\d+\.\d{7,}(e[-+]\d+)?", lambda match: f"{float(match[0]):.6g}", text)


def sheets(workbook: Path, folder: Path) -> str:
    """The XML of a workbook's sheets, strings and charts, one element a line."""
    with zipfile.ZipFile(workbook) as archive:
        parts = sorted(
            name
            for name in archive.namelist()
            if re.match(r"xl/(worksheets/sheet|charts/chart|sharedStrings|workbook\.xml)", name)
        )
        content = {name: archive.read(name).decode() for name in parts}
    return "\n".join(
        f"{name}\n{_of_any_height(plain(text, folder)).replace('><', f'>{chr(10)}<')}"
        for name, text in content.items()
    )


def _of_any_height(sheet: str) -> str:
    """Rows that show the directory are as high as its path is long."""
    return re.sub(
        r'(<row r="\d+") ht="\d+" customHeight="1"(>(?:(?!</row>).)*DIR)',
        r"\1\2",
        sheet,
        flags=re.DOTALL,
    )


def check(name: str, text: str) -> None:
    """Compare with the file of this name."""
    frozen = HERE / name
    if os.environ.get("ACCUCOMPARE_FREEZE"):
        frozen.parent.mkdir(exist_ok=True)
        frozen.write_text(text)
    assert text == frozen.read_text()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a test, as the commands' own; and the command, as a report shows it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["accucompare", "diff", "golden", "npu"])
    return tmp_path


def terminal(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What a command prints in 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    return CliRunner().invoke(cli, arguments, prog_name="accucompare").stdout


@pytest.mark.parametrize("make", COMPARISONS, ids=lambda make: make.__name__)
def test_a_comparison_is_shown_as_before(
    make: Callable[[Path], ac.Comparison], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from accucompare.report.terminal.terminal import print_comparison

    comparison = make(here)
    print_comparison(comparison, [Path("reports/x.xlsx")], quiet=False)
    check(f"{make.__name__}.txt", plain(capsys.readouterr().out, here))
    check(f"{make.__name__}.json", plain(comparison.to_json(here / "x.json").read_text(), here))
    check(f"{make.__name__}.xml", sheets(comparison.to_excel(here / "x.xlsx"), here))


@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_shown_as_before(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(here / "watch" / "rank0.jsonl", *LOGS[name]())
    check(
        f"log_{name}.txt",
        plain(terminal(monkeypatch, "overflow", "watch", "--report", "x.xlsx"), here),
    )
    check(f"log_{name}.xml", sheets(here / "x.xlsx", here))


BAD = """import torch

class Bad(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.width = width

    def forward(self, x):
        return x.log()
"""


def test_a_reproducer_is_written_as_before(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "frozen_bad.py").write_text(BAD)
    monkeypatch.syspath_prepend(here)
    model = torch.nn.Sequential(torch.nn.ReLU(), importlib.import_module("frozen_bad").Bad())
    with ac.watch(model, out=here / "watch", on_finding="snapshot") as watch:
        model(torch.zeros(2, 4))
        watch.step()
    (script,) = (here / "watch").glob("*.py")
    check("reproducer.txt", plain(script.read_text(), here))


@pytest.mark.parametrize("command", ["", *cli.commands])
def test_help_is_as_before(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(
        f"help_{command or 'accucompare'}.txt",
        terminal(monkeypatch, *([command] if command else []), "--help"),
    )
