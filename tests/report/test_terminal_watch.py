"""What a watch prints and writes as an Excel report."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from openpyxl import load_workbook

from accucompare.errors import ReportError
from accucompare.findings.analysis.analysis import read_logs
from accucompare.findings.checklist.checks import CheckOutcome, CheckStatus
from accucompare.findings.checklist.health_checklist import CHECKS, Checklist, Health, judge_log
from accucompare.findings.log import remark
from accucompare.findings.log.events import (
    Alert,
    AlertKind,
    Cause,
    End,
    Ending,
    Event,
    Frame,
    Frames,
)
from accucompare.findings.log.log import log_path
from accucompare.findings.log.vital_events import ParameterFacts, TrainingSetup, Vitals
from accucompare.report.console import ReportConsole
from accucompare.report.table import sheets
from accucompare.report.watch_files.log_page import write_log_page
from accucompare.report.watch_files.watch_workbook import write_watch
from accucompare.report.watched.health_columns import headline
from accucompare.report.watched.terminal_watch import (
    print_analysis,
    print_finding,
    print_frames,
    print_watched,
    verdict_line,
)
from tests.findings.logs import (
    NASTY,
    end,
    found,
    frames,
    passed,
    seen,
    start,
    step,
    training,
    write,
)
from tests.findings.test_health import no_weight_moved, sound


def printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *events: Event, quiet: bool = False
) -> str:
    print_analysis(read_logs(write(tmp_path / "log", *events)), None, [Path("x.xlsx")], quiet)
    return capsys.readouterr().out


def reported(tmp_path: Path, *events: Event) -> Path:
    return write_watch(read_logs(write(tmp_path / "log", *events)), tmp_path / "out" / "x.xlsx")


def cells(path: Path, sheet: str) -> list[list[object]]:
    workbook = load_workbook(path)
    return [[cell.value for cell in row] for row in workbook[sheet].iter_rows()]


# Terminal


@pytest.mark.parametrize(
    "show",
    [print_watched, lambda ranks, health, quiet: print_analysis(ranks, health, [], quiet)],
    ids=["watch", "overflow"],
)
def test_why_a_run_has_failed_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], show: Any
) -> None:
    failed = End(1, 1, "ValueError: no such file", Ending.FAILED)
    show(read_logs(write(tmp_path / "log", start(), step(0), failed)), None, False)
    assert capsys.readouterr().out.count("no such file") == 1


def test_a_finding_goes_to_stderr_with_its_frames_and_the_guilty_one_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_finding(found("fc1", order=1), start(), frames("fc0", "fc1", "fc2"))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("accucompare: NaN in fc1 (Linear), forward, step 0\n")
    assert [line.split()[1] for line in err.splitlines() if "◀ here" in line] == ["fc1"]


def test_of_several_calls_of_a_module_the_one_found_is_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = [Frame(order, "fc", call, "Linear") for order, call in enumerate((0, 1, 2))]
    print_finding(found("fc", call=1, order=1), start(), Frames(0, calls))
    assert [
        line.split()[0] for line in capsys.readouterr().err.splitlines() if "◀ here" in line
    ] == ["1"]


def test_every_number_of_a_tensor_is_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    one = seen(
        "output",
        "past_key_values.3.1",
        dtype="bfloat16",
        shape=(2, 12, 1024, 64),
        low="-inf",
        high=3e38,
        abs_min=1e-40,
        nan=7,
        inf=9,
    )
    print_frames(Frames(2, [Frame(3, "h.0", 1, "Block", tensors=[one])], traced=True))
    title, _, call, tensor = capsys.readouterr().err.splitlines()
    assert title == "step 2: all 1 calls, as they ended"
    assert call.split() == ["3", "h.0", "Block,", "call", "1"]
    assert tensor.split() == [
        "output",
        "past_key_values.3.1",
        "bfloat16",
        "[2,",
        "12,",
        "1024,",
        "64]",
        "1e-40",
        "inf",
        "7",
        "9",
    ]


def test_nothing_but_long_sentences_is_wider_than_100_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(tmp_path, capsys, *training()).splitlines()
    sentences = ("NOT FINITE", "+Inf in ", "  made ", "  in: ", "  try: ", "  reproducer: ")
    assert [line for line in lines if len(line) > 100 and not line.startswith(sentences)] == []


@pytest.mark.parametrize("name", NASTY[:9])
def test_names_are_printed_as_they_are_and_move_no_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    out = printed(
        tmp_path,
        capsys,
        start(),
        found(name),
        frames(name),
        Alert(AlertKind.NOTE, name, 0),
        step(0, largest=[(name, 1.0)]),
        end(),
    )
    assert "\x1b" not in out
    assert name.encode("unicode_escape").decode() in out if "\n" in name else name in out


def test_names_that_look_like_markup_are_safe_in_a_terminal_too() -> None:
    file = io.StringIO()
    for name in NASTY:
        print_finding(
            found(name),
            start(),
            frames(name),
            console=ReportConsole(
                file=file, width=100, force_terminal=True, markup=False, emoji=False
            ),
        )
    assert "[bold red]x[/]" in file.getvalue()


def test_an_origin_is_shown_with_the_first_of_what_it_passed_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(
        tmp_path,
        capsys,
        start(),
        found("a", order=0),
        *(passed(f"p{i}", order=1 + i) for i in range(5)),
        step(0),
        end(),
    )
    table = out.split("Findings, in execution order\n")[1].splitlines()
    assert [line.split()[2] for line in table[1:5]] == ["a", "p0", "p1", "p2"]
    assert table[5].strip() == "… and passed through 2 more"


@pytest.mark.parametrize(
    ("events", "line"),
    [
        ([step(0), end()], "FINITE  LOG: everything was finite in 1 watched step\n"),
        (
            [step(0)],
            (
                "TROUBLE  LOG: nothing was found, but the log has no end: the process was killed,"
                " its disk was full, or it is still running\n"
            ),
        ),
        (
            [found(), passed(), step(0)],
            "NOT FINITE  LOG: NaN in fc1 (Linear), forward, step 0; 1 origin, 1 passed on\n",
        ),
        (
            [step(0, overflowed=True), end()],
            "NOT FINITE  LOG: the device's overflow flag was up in 1 step, and no call was found\n",
        ),
    ],
)
def test_quiet_prints_the_verdict_line_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], events: list[Event], line: str
) -> None:
    out = printed(tmp_path, capsys, start(), *events, quiet=True)
    assert out.replace(str(tmp_path / "log"), "LOG") == line


@pytest.mark.parametrize("status", list(CheckStatus))
@pytest.mark.parametrize(
    "events",
    [[step(0), end()], [found(), step(0), end()], [step(0)]],
    ids=["finite", "not finite", "no end"],
)
def test_the_verdict_is_a_bare_finite_only_where_no_check_fails(
    tmp_path: Path, events: list[Event], status: CheckStatus
) -> None:
    ranks = read_logs(write(tmp_path / "log", start(), *events))
    health = Health([Checklist(CHECKS[0], CheckOutcome(status, remark("one-rank")), {})])
    line, without = verdict_line(ranks, health), verdict_line(ranks, None)
    if without.plain.startswith("FINITE") and status is CheckStatus.FAIL:
        assert line.plain.startswith("FINITE, CHECKS FAIL  ")
        assert line.plain.endswith(headline(health))
        assert "green" not in str(line.spans)
    else:
        assert line == without


def test_every_report_of_a_log_shows_that_a_check_fails(tmp_path: Path) -> None:
    """All is finite, and nothing is learnt: updates that move no weight."""
    log = sound()
    no_weight_moved(log)
    ranks = log.ranks()
    said = f"but the checklist: {headline(judge_log(ranks))}"
    assert str(cells(write_watch(ranks, tmp_path / "x.xlsx"), "Findings")[0][0]).endswith(said)
    page = write_log_page(ranks, tmp_path / "x.html").read_text()
    assert said in page
    assert re.search(r'class="verdict bad">FINITE, CHECKS FAIL<', page)


def test_ten_thousand_findings_are_printed_in_a_screen_or_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = [found(f"l{i}", step=i // 4, order=i % 4, origin=i % 4 == 0) for i in range(10_000)]
    out = printed(tmp_path, capsys, start(), *many, step(2500), end())
    assert "2,500 origins, 7,500 passed on" in out
    assert "… and 2,490 more in the report" in out
    assert len(out.splitlines()) < 80


# Excel


def test_the_report_has_its_sheets_with_a_row_for_each_finding_and_tensor(tmp_path: Path) -> None:
    path = reported(tmp_path, *training())
    workbook = load_workbook(path)
    assert [sheet.title for sheet in workbook if sheet.sheet_state == "visible"] == [
        "Findings",
        "Frames",
        "Steps",
        "Warnings",
        "Environment",
    ]
    rows = cells(path, "Findings")
    header = next(number for number, row in enumerate(rows) if row[0] == "#")
    assert [row[3] for row in rows[header + 1 : header + 3]] == [
        "transformer.h.3.attn (glue, before c_proj)",
        "transformer.h.3.mlp",
    ]
    assert len(rows) - header - 1 == 10
    assert len(cells(path, "Frames")) - 2 == 6 * 3
    assert len(cells(path, "Steps")) - 2 == 4
    assert ["environment.flags.hf32", "no"] in cells(path, "Environment")


def test_rows_of_origins_are_marked(tmp_path: Path) -> None:
    path = reported(
        tmp_path,
        start(),
        found("a", order=0),
        passed("b", order=1),
        found("c", order=2, cause=Cause.NEAR),
        step(0),
        end(),
    )
    sheet = load_workbook(path)["Findings"]
    fills = {
        row[2].value: row[2].fill.fgColor.rgb
        for row in sheet.iter_rows()
        if row[2].value in ("a", "b", "c")
    }
    assert fills == {"a": "FFFFC7CE", "b": "00000000", "c": "FFFFEB9C"}


def test_names_and_numbers_that_excel_cannot_hold_become_text(tmp_path: Path) -> None:
    many = [
        found(name, type=name, operator=name, parameters=[name], notes=[name], order=order)
        for order, name in enumerate(NASTY)
    ]
    events = [
        start(case="=1+1", options={"=a": "=b"}),
        *many,
        frames(*NASTY),
        Alert(AlertKind.NOTE, "=cmd", 0, value="nan"),
        step(0, grad_norm="inf"),
        end(),
    ]
    workbook = load_workbook(reported(tmp_path, *events))
    kinds = {
        cell.data_type
        for sheet in workbook
        for row in sheet.iter_rows()
        for cell in row
        if cell.value is not None
    }
    assert kinds <= {"s", "n"}
    assert "inf" in [cell.value for row in workbook["Steps"].iter_rows() for cell in row]


def test_grad_norm_and_loss_scale_are_drawn(tmp_path: Path) -> None:
    assert len(load_workbook(reported(tmp_path, *training()))["Steps"]._charts) == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("norms", [[], ["nan", "inf"], [0.0]])
def test_what_a_logarithmic_axis_lacks_is_no_trouble(tmp_path: Path, norms: list[float]) -> None:
    assert reported(
        tmp_path,
        start(),
        *(step(number, grad_norm=norm, scale=0.0) for number, norm in enumerate(norms)),
        end(),
    ).is_file()


def test_more_rows_than_a_sheet_holds_go_on_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sheets, "LINES_PER_SHEET", 12)
    path = reported(
        tmp_path, start(), *(step(number, grad_norm=1.0) for number in range(25)), end()
    )
    assert [len(cells(path, title)) for title in ("Steps", "Steps 2", "Steps 3")] == [12, 12, 7]


def test_both_ranks_are_in_the_report(tmp_path: Path) -> None:
    for rank in range(2):
        write(log_path(tmp_path, rank), *training(rank))
    rows = cells(write_watch(read_logs(tmp_path), tmp_path / "x.xlsx"), "Findings")
    assert {row[2] for row in rows if isinstance(row[0], int)} == {0, 1}


def test_a_report_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ranks = read_logs(write(tmp_path / "log", start(), step(0), end()))
    with pytest.raises(ReportError, match="cannot be written"):
        write_watch(ranks, tmp_path / "file" / "x.xlsx")
    with pytest.raises(ReportError, match="is a directory"):
        write_watch(ranks, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "log"]


def test_a_workbook_has_a_sheet_of_each_number_of_each_parameter(tmp_path: Path) -> None:
    setup = TrainingSetup(
        0,
        parameters=[
            ParameterFacts(name, (4,), "float32", "Linear", True) for name in ("up", "down", "=1+1")
        ],
    )
    numbers = {"grad": [0.1, None, 3.0], "weight": [1.0, 2.0, 3.0]}
    vitals = [Vitals(step, layers=numbers if step % 2 == 0 else {}) for step in range(5)]
    path = reported(tmp_path, start(), setup, *vitals, end(5))
    grads = cells(path, "Gradient norms")
    header = next(place for place, line in enumerate(grads) if line[0] == "step")
    assert [line[:4] for line in grads[header:]] == [
        ["step", "up", "down", "=1+1"],
        *([step, 0.1, None, 3.0] for step in (0, 2, 4)),
    ]
    workbook = load_workbook(path)
    assert "Update sizes" not in workbook.sheetnames
    (chart,) = workbook["Weight norms"]._charts
    assert len(chart.series) == 3


def test_curves_of_parameters_are_the_largest_and_the_smallest_that_an_axis_can_show(
    tmp_path: Path,
) -> None:
    names = [f"layer{number}" for number in range(12)]
    setup = TrainingSetup(
        0, parameters=[ParameterFacts(name, (4,), "float32", "Linear", True) for name in names]
    )
    sizes = [float(number) for number in range(10)] + ["nan", "inf"]
    path = reported(
        tmp_path,
        start(),
        setup,
        *(Vitals(step, layers={"grad": sizes}) for step in range(3)),
        end(3),
    )
    (chart,) = load_workbook(path)["Gradient norms"]._charts
    columns = [series.val.numRef.f.split("$")[1] for series in chart.series]
    # of layer9 to layer6, and of layer4 to layer1
    assert columns == ["K", "J", "I", "H", "F", "E", "D", "C"]
