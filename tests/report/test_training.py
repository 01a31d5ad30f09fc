"""What the reports say of the steps of two runs of training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openpyxl
import pytest

import accucompare as ac
from accucompare.report.contents.training_tables import training
from accucompare.report.terminal.terminal import print_comparison
from tests.compare.builder import item
from tests.compare.test_ladder import X, changed, run, steps

SENTENCE = (
    "The runs part at step 12 in the gradients: gradient norm 3 in golden, 4 in the candidate, 33.3"
    " % apart (limit 0.04 %)"
)


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> ac.Comparison:
    """Another learning rate from step 15 on, and a gradient norm that is off from step 12 on."""
    folder = tmp_path_factory.mktemp("parted")
    candidate = changed(changed(steps(), 12, grad_norm=4.0), 15, lr={"AdamW.0": 2e-3})
    return ac.diff(
        run(folder / "golden", steps()), run(folder / "npu", candidate), accept="mindformers"
    )


@pytest.fixture(scope="module")
def workbook(parted: ac.Comparison, tmp_path_factory: pytest.TempPathFactory) -> openpyxl.Workbook:
    return openpyxl.load_workbook(parted.to_excel(tmp_path_factory.mktemp("report") / "x.xlsx"))


def texts(sheet: Any) -> list[str]:
    return [
        str(cell.value) for line in sheet.iter_rows() for cell in line if cell.value is not None
    ]


def test_the_terminal_says_what_was_told_otherwise_and_then_where_the_runs_part(
    parted: ac.Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    print_comparison(parted, [Path("x.xlsx")], quiet=False)
    out = capsys.readouterr().out
    other = (
        "learning rate of AdamW.0 from step 15 on: 0.001 in golden, 0.002 in the candidate, in 5"
        " steps"
    )
    assert 0 < out.index(other) < out.index(SENTENCE)
    assert "mean gradient norm 13.3 % <= 10 % FAIL" in " ".join(out.split())
    assert (
        "capture golden with --backward --steps 12-12 --save-state, and give that bundle to locate"
        " --golden" in out
    )


@pytest.mark.parametrize("title", ["Summary", "Training"])
def test_the_workbook_says_where_the_runs_part(workbook: openpyxl.Workbook, title: str) -> None:
    assert any(text.startswith(SENTENCE) for text in texts(workbook[title]))


def test_the_sheet_training_has_a_line_a_step_and_marks_where_they_part(
    workbook: openpyxl.Workbook,
) -> None:
    sheet = workbook["Training"]
    header = next(cell.row for cell in sheet["A"] if cell.value == "step")
    titles = [cell.value for cell in sheet[header]]
    lines = {sheet.cell(line, 1).value: line for line in range(header + 1, header + 21)}
    assert list(lines) == list(range(20))
    assert sheet.cell(lines[12], titles.index("candidate norm") + 1).value == 4.0
    assert sheet.cell(lines[12], titles.index("norm difference") + 1).value == pytest.approx(1 / 3)
    marked = {
        step for step, line in lines.items() if sheet.cell(line, 1).fill.fgColor.rgb == "FFFFC7CE"
    }
    assert marked == {12}


def test_the_charts_are_of_loss_norm_and_learning_rate_of_both_sides_with_the_parting_marked(
    parted: ac.Comparison,
) -> None:
    table, data = training(parted)
    drawn = {chart.titles[0]: [series.column for series in chart.series] for chart in table.charts}
    # losses do not differ at all, so their difference has no chart
    assert drawn == {
        "loss": ["golden loss", "candidate loss", "parts here, loss"],
        "gradient norm (logarithmic)": [
            "golden gradient norm",
            "candidate gradient norm",
            "parts here, gradient norm",
        ],
        "learning rate of the first parameter group": [
            "golden learning rate",
            "candidate learning rate",
        ],
    }
    assert data.hidden
    marks = next(column for column in data.columns if column.title == "parts here, gradient norm")
    assert [step for step, pair in enumerate(data.rows) if marks.get(pair) is not None] == [12]


def test_a_long_run_is_drawn_in_few_points_with_the_step_where_it_parts(tmp_path: Path) -> None:
    golden, candidate = (
        run(tmp_path / "golden", steps(2500)),
        run(tmp_path / "npu", changed(steps(2500), 1234, 1235, grad_norm=4.0)),
    )
    table, data = training(ac.diff(golden, candidate))
    assert len(table.rows) == 2500
    assert len(data.rows) <= 1000
    assert any(pair.step == 1234 for pair in data.rows)


def test_the_json_holds_the_parting_and_every_step(parted: ac.Comparison, tmp_path: Path) -> None:
    found = json.loads(parted.to_json(tmp_path / "x.json").read_text())["training"]
    assert (found["parting"]["step"], found["parting"]["rung"], found["parting"]["candidate"]) == (
        12,
        "gradients",
        4.0,
    )
    assert found["settings"][0]["setting"] == "learning rate"
    assert [step["step"] for step in found["steps"]] == list(range(20))


def test_a_comparison_without_training_has_no_such_sheet(tmp_path: Path) -> None:
    assert (
        training(
            ac.diff(
                run(tmp_path / "golden", [], item("fc", X)),
                run(tmp_path / "npu", [], item("fc", X)),
            )
        )
        == []
    )
