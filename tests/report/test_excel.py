"""The Excel report, read back with openpyxl and with LibreOffice."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from msgspec.structs import replace
from openpyxl import Workbook, load_workbook
from openpyxl.utils.indexed_list import IndexedList

from accucompare.api import Comparison
from accucompare.bundle.format.manifest import Manifest, StepEntry
from accucompare.bundle.format.records import Layout, Record, Role
from accucompare.compare.limit_facts import DefaultOfDtype
from accucompare.compare.limits.tolerance import SmallestLimit, Tolerance
from accucompare.compare.measuring.measure import Metrics
from accucompare.compare.origins.sites import Culprit
from accucompare.compare.preflight_facts import (
    BesideGolden,
    CaptureSetting,
    PreflightFinding,
    SettingDiffers,
    VersionDiffers,
)
from accucompare.compare.result import Side
from accucompare.compare.rows.rows import Reason, Row, Verdict
from accucompare.compare.shape_facts import ErrorShape, Pattern, PatternKind
from accucompare.errors import ReportError
from accucompare.files import written_whole
from accucompare.numbers.statistics import Statistics
from accucompare.report.excel.styles import styled
from accucompare.report.excel.workbook import write_excel
from accucompare.report.table import sheets
from accucompare.report.table.columns import COLUMNS
from accucompare.report.table.looks import HEADER
from accucompare.report.words import verdict_words

LIMIT = 1e-4
NASTY = {
    "formula": "=1+1",
    "command": "=cmd|' /C calc'!A1",
    "at": "@SUM(A1)",
    "minus": "-x",
    "plus": "+1",
    "error": "#N/A",
    "Chinese": "层1",
    "slash": "a/b",
    "quotes": 'it\'s "<&>"',
    "spaces": "  two  spaces  ",
    "emoji": "🔥.fc1",
    "number": "0",
}


def record(name: str, role: Role = Role.OUTPUT, dtype: str = "float32") -> Record:
    statistics = Statistics(min=-1.0, max=2.0, mean=0.5, l2=3.0, nan=0, inf=0)
    return Record(
        0,
        0,
        name,
        0,
        role,
        "",
        1,
        "Linear",
        None,
        (2, 3),
        dtype,
        Layout.STRIDED,
        "m",
        "d",
        statistics,
    )


def pair(
    name: str,
    error: float = 1e-6,
    reason: Reason | None = None,
    role: Role = Role.OUTPUT,
    **measured: Any,
) -> Row:
    """A row with this relative L2 error, judged by the limit above unless a reason is given."""
    reason = reason or (Reason.OK if error <= LIMIT else Reason.INTRODUCED)
    verdict = Verdict(
        reason,
        Tolerance(rel_l2=LIMIT, source=DefaultOfDtype("float32"), by_default=True).judged,
        (SmallestLimit("rel_l2", error),),
        error / LIMIT,
        rel_l2_limit=LIMIT,
    )
    return Row(
        record(name, role),
        record(name, role),
        verdict,
        Metrics(6, 6, error, max_abs=error, **measured),
        module=name,
    )


def missing(name: str, nearest: str = "") -> Row:
    return Row(record(name), None, Verdict(Reason.MISSING), nearest=nearest, module=name)


def comparison(
    *rows: Row, golden: Manifest | None = None, candidate: Manifest | None = None, **more: Any
) -> Comparison:
    return Comparison(
        Side(Path("golden"), golden or Manifest()),
        Side(Path("npu"), candidate or Manifest()),
        list(rows),
        **more,
    )


def every_reason() -> list[Row]:
    """A row of every reason, and one near its limit."""
    return [
        pair("identical", 0.0, Reason.IDENTICAL),
        pair("ok"),
        pair("near", 0.6e-4),
        pair("introduced", 1e-2),
        pair("inherited", 1e-2, Reason.INHERITED),
        pair("glue", 1e-2, Reason.GLUE),
        pair("inputs differ", 1e-2, Reason.INPUTS_DIFFER),
        replace(
            pair("non-finite", math.nan, Reason.NON_FINITE),
            verdict=Verdict(Reason.NON_FINITE, over_limit=math.inf),
        ),
        replace(pair("shape"), verdict=Verdict(Reason.SHAPE), metrics=None),
        replace(pair("dtype"), verdict=Verdict(Reason.DTYPE), metrics=None),
        missing("missing", "extra"),
        Row(None, record("extra"), Verdict(Reason.EXTRA), nearest="missing", module="extra"),
        Row(record("one-sided"), None, Verdict(Reason.ONE_SIDED), module="one-sided"),
        Row(None, None, Verdict(Reason.NOT_CALLED), module="not called"),
        replace(pair("not comparable"), verdict=Verdict(Reason.NOT_COMPARABLE), metrics=None),
        pair("over-precise", reason=Reason.OVER_PRECISE),
        pair("not deterministic", 1e-2, Reason.NOT_DETERMINISTIC),
        pair("ranks disagree", 1e-2, Reason.RANKS_DISAGREE),
        pair("unreduced", 1e-2, Reason.UNREDUCED),
        replace(pair("incomplete"), verdict=Verdict(Reason.INCOMPLETE), metrics=None),
    ]


def opened(directory: Path, compared: Comparison) -> Any:
    return load_workbook(write_excel(compared, directory / "report.xlsx"))


def column(sheet: Any, title: str) -> list[Any]:
    """The cells under a title, top to bottom."""
    number = next(cell.column for cell in sheet[1] if cell.value == title)
    return [sheet.cell(line, number) for line in range(2, sheet.max_row + 1)]


def values(sheet: Any, title: str) -> list[Any]:
    return [cell.value for cell in column(sheet, title)]


def summary_lines(workbook: Any) -> list[list[Any]]:
    return [
        [value for value in line if value is not None]
        for line in workbook["Summary"].iter_rows(values_only=True)
    ]


def target(workbook: Any, link: Any) -> Any:
    """The cell that a hyperlink leads to."""
    sheet, cell = re.fullmatch(r"'(.+)'!([A-Z]+\d+)", link.location).groups()  # type: ignore[union-attr]
    return workbook[sheet][cell]


def test_sheets_are_in_the_order_a_reader_needs_them(tmp_path: Path) -> None:
    assert opened(tmp_path, comparison(pair("a"))).sheetnames == [
        "Summary",
        "Layers",
        "Divergence",
        "Unmatched",
        "Environment",
    ]


def test_returns_the_path_and_creates_its_directories(tmp_path: Path) -> None:
    path = tmp_path / "new" / "reports" / "r.XLSX"
    assert write_excel(comparison(pair("a")), path) == path
    assert os.listdir(path.parent) == ["r.XLSX"]


# Layers


def test_layers_has_every_row_in_order_under_every_title(tmp_path: Path) -> None:
    sheet = opened(tmp_path, comparison(*every_reason()))["Layers"]
    assert [cell.value for cell in sheet[1]] == [column.title for column in COLUMNS]
    assert values(sheet, "layer") == [row.module for row in every_reason()]
    assert values(sheet, "reason") == [row.reason.value for row in every_reason()]


def test_numbers_are_numbers_in_scientific_format(tmp_path: Path) -> None:
    sheet = opened(tmp_path, comparison(pair("a", 1.2345678901234e-7)))["Layers"]
    cell = column(sheet, "relative L2")[0]
    assert (cell.value, cell.data_type) == (1.2345678901234e-7, "n")
    assert "E+00" in cell.number_format


def test_numbers_are_to_the_right_and_text_keeps_clear_of_them(tmp_path: Path) -> None:
    workbook = opened(tmp_path, comparison(pair("a", math.nan, Reason.NON_FINITE), missing("b")))
    for sheet in (workbook["Layers"], workbook["Unmatched"]):
        number, text = column(sheet, "#")[0], column(sheet, "layer")[0]
        assert (number.alignment.horizontal, number.number_format) == ("right", "#,##0")
        assert (text.alignment.horizontal, text.alignment.indent, text.number_format) == (
            "left",
            1,
            "@",
        )
        assert number.font.name == text.font.name == "Calibri"
    assert column(workbook["Layers"], "relative L2")[0].alignment.horizontal == "right"


def test_sign_of_a_negative_number_is_in_its_format(tmp_path: Path) -> None:
    sheet = opened(tmp_path, comparison(pair("a", golden_at_max=-2.5)))["Layers"]
    cell = column(sheet, "golden there")[0]
    assert cell.value == -2.5
    assert cell.number_format.split(";")[1].startswith("-")


def test_nan_and_infinities_are_written_as_text(tmp_path: Path) -> None:
    rows = [pair("a", error, Reason.NON_FINITE, bias=-math.inf) for error in (math.nan, math.inf)]
    sheet = opened(tmp_path, comparison(*rows))["Layers"]
    assert values(sheet, "relative L2") == ["NaN", "inf"]
    assert values(sheet, "bias") == ["-inf", "-inf"]


def test_booleans_are_written_as_numbers(tmp_path: Path) -> None:
    row = pair("mask")
    assert row.golden is not None
    golden = msgspec.structs.replace(row.golden, statistics=Statistics(False, True, 0.5, 1.0, 0, 0))
    sheet = opened(tmp_path, comparison(replace(row, golden=golden)))["Layers"]
    assert (values(sheet, "golden min"), values(sheet, "golden max")) == ([0], [1])


def test_header_and_names_are_frozen_and_filtered(tmp_path: Path) -> None:
    sheet = opened(tmp_path, comparison(pair("a"), pair("b")))["Layers"]
    assert sheet.freeze_panes == "E2"
    assert sheet["D1"].value == "layer"
    assert sheet.auto_filter.ref == f"A1:{sheet.cell(1, len(COLUMNS)).column_letter}3"


def test_the_twelve_columns_that_matter_come_first_and_the_others_are_folded(
    tmp_path: Path,
) -> None:
    sheet = opened(tmp_path, comparison(pair("a"), pair("b", 1e-2)))["Layers"]
    levels = {cell.value: sheet.column_dimensions[cell.column_letter] for cell in sheet[1]}
    assert [title for title, dimension in levels.items() if not dimension.outlineLevel] == [
        *(
            "#",
            "layer",
            "type",
            "call",
            "role",
            "path",
            "reason",
            "relative L2",
            "excess",
            "x limit",
            "max abs diff",
            "detail",
        )
    ]
    assert all(dimension.hidden for dimension in levels.values() if dimension.outlineLevel)
    assert {dimension.outlineLevel for dimension in levels.values()} == {0, 1, 2}
    # so that the button to unfold is above what is seen
    assert sheet.sheet_properties.outlinePr.summaryRight is False
    assert [title for title, dimension in levels.items() if dimension.collapsed][:3] == [
        "#",
        "detail",
        "golden shape",
    ]


def test_excel_is_told_that_columns_are_folded(tmp_path: Path) -> None:
    path = write_excel(comparison(pair("a")), tmp_path / "r.xlsx")
    with zipfile.ZipFile(path) as archive:
        # or it draws no buttons
        assert b'outlineLevelCol="2"' in archive.read("xl/worksheets/sheet2.xml")


def test_steps_and_ranks_are_seen_where_there_are_several(tmp_path: Path) -> None:
    def seen(*steps: int) -> list[str]:
        rows = [
            replace(pair("a"), golden=msgspec.structs.replace(record("a"), step=step))
            for step in steps
        ]
        sheet = opened(tmp_path, comparison(*rows))["Layers"]
        return [
            cell.value
            for cell in sheet[1]
            if not sheet.column_dimensions[cell.column_letter].hidden
        ][:2]

    assert seen(0, 0) == ["#", "layer"]
    assert seen(0, 1) == ["#", "step"]


def test_a_folded_column_holds_its_values(tmp_path: Path) -> None:
    sheet = opened(tmp_path, comparison(pair("a", rmse=0.25)))["Layers"]
    assert (values(sheet, "RMSE"), values(sheet, "step"), values(sheet, "candidate shape")) == (
        [0.25],
        [0],
        ["same"],
    )


def test_rows_are_grouped_by_depth_with_the_summary_above(tmp_path: Path) -> None:
    names = ["", "a", "a.b", "a.b.c", ".".join("abcdefghijkl")]
    sheet = opened(tmp_path, comparison(*map(pair, names)))["Layers"]
    assert [sheet.row_dimensions[line].outlineLevel for line in range(2, 7)] == [0, 0, 1, 2, 7]
    assert sheet.sheet_properties.outlinePr.summaryBelow is False
    assert sheet.sheet_format.outlineLevelRow == 7


class ExcelValue:
    """A cell's value as a formula compares it: text is greater than any number, nothing is 0 or
    empty.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other)

    def __gt__(self, other: float) -> bool:
        return isinstance(self.value, str) or (self.value or 0) > other


FUNCTIONS = {
    "AND": lambda *conditions: all(conditions),
    "OR": lambda *conditions: any(conditions),
    "ISNUMBER": lambda cell: isinstance(cell.value, (int, float)),
}


def fills(sheet: Any) -> list[str]:
    """The fill that the first rule that holds gives each row; ``""`` where none does."""
    rules = sorted(
        (rule for area in sheet.conditional_formatting for rule in area.rules),
        key=lambda rule: rule.priority,
    )
    colors = []
    for line in range(2, sheet.max_row + 1):
        hit = ""
        for rule in rules:
            if rule.type == "expression" and not hit:
                formula = re.sub(r"\$([A-Z]+)2", r"cell('\1')", rule.formula[0].replace("=", "=="))
                if eval(
                    formula,
                    {
                        **FUNCTIONS,
                        "cell": lambda letter, line=line: ExcelValue(
                            sheet[f"{letter}{line}"].value
                        ),
                    },
                ):
                    hit = rule.dxf.fill.bgColor.rgb
        colors.append(hit)
    return colors


def test_rows_are_coloured_by_what_they_mean(tmp_path: Path) -> None:
    sheet = opened(tmp_path, comparison(*every_reason()))["Layers"]
    white, amber, red, dark, grey, grey_amber = (
        "",
        "FFFFEB9C",
        "FFFFC7CE",
        "FF3A3A3A",
        "FFE2E2E2",
        "FFE9E1C8",
    )
    assert dict(zip(values(sheet, "layer"), fills(sheet), strict=True)) == {
        "identical": white, "ok": white, "near": amber,
        "introduced": red, "inherited": red, "glue": red, "inputs differ": red, "shape": red,
        "dtype": red,
        "non-finite": dark,
        "missing": grey, "extra": grey, "one-sided": grey, "not called": grey,
        "not comparable": grey, "incomplete": grey,
        "ranks disagree": red, "unreduced": red,
        "over-precise": amber, "not deterministic": grey_amber,
    }  # fmt: skip


def test_rules_cover_every_row_and_stop_at_the_first_that_holds(tmp_path: Path) -> None:
    sheet = opened(tmp_path, comparison(*every_reason()))["Layers"]
    last = sheet.cell(1, len(COLUMNS)).column_letter
    for area in sheet.conditional_formatting:
        for rule in area.rules:
            if rule.type == "expression":
                assert str(area.sqref) == f"A2:{last}{len(every_reason()) + 1}"
                assert rule.stopIfTrue


def test_text_in_a_number_column_is_not_near_the_limit(tmp_path: Path) -> None:
    row = replace(pair("a"), verdict=Verdict(Reason.OK, over_limit=math.nan))
    assert fills(opened(tmp_path, comparison(row))["Layers"]) == [""]


def test_relative_l2_has_a_colour_scale_and_multiples_of_the_limit_a_bar(tmp_path: Path) -> None:
    sheet = opened(tmp_path, comparison(pair("a")))["Layers"]
    kinds = {
        str(area.sqref): rule.type for area in sheet.conditional_formatting for rule in area.rules
    }
    assert kinds[column(sheet, "relative L2")[0].coordinate] == "colorScale"
    assert kinds[column(sheet, "x limit")[0].coordinate] == "dataBar"


# Names


@pytest.mark.parametrize("name", NASTY.values(), ids=NASTY.keys())
def test_layer_name_is_text_and_exact_on_every_sheet(tmp_path: Path, name: str) -> None:
    workbook = opened(tmp_path, comparison(pair(name, 1e-2), missing(name, nearest=name)))
    for sheet in workbook:
        for line in sheet.iter_rows():
            assert not [cell.coordinate for cell in line if cell.data_type == "f"]
    assert values(workbook["Layers"], "layer") == [name, name]
    assert values(workbook["Unmatched"], "nearest name") == [name]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("bell\x07", r"bell\x07"),
        ("two\nlines", r"two\nlines"),
        ("tab\t", r"tab\t"),
        ("lone\ud800", r"lone\ud800"),
        ("none\uffff", r"none\uffff"),
        ("a_x0041_", "a_x005F_x0041_"),  # which Excel shows as a_x0041_
    ],
)
def test_characters_that_a_cell_cannot_hold_are_escaped(
    tmp_path: Path, name: str, shown: str
) -> None:
    workbook = opened(tmp_path, comparison(pair(name, 1e-2)))
    assert values(workbook["Layers"], "layer") == [shown]
    assert any(shown in line for line in summary_lines(workbook))


def test_long_name_is_kept_whole(tmp_path: Path) -> None:
    name = "layer." * 50
    assert values(opened(tmp_path, comparison(pair(name)))["Layers"], "layer") == [name]


@pytest.mark.parametrize("letter", ["x", "🔥"])
def test_name_too_long_for_a_cell_is_cut_visibly(tmp_path: Path, letter: str) -> None:
    shown = values(opened(tmp_path, comparison(pair(letter * 40_000)))["Layers"], "layer")[0]
    assert shown.endswith("… (cut; 40,000 characters)")
    assert 32_700 < len(shown.encode("utf-16-le")) / 2 <= 32_767


def test_tolerances_notes_and_findings_are_never_formulas(tmp_path: Path) -> None:
    manifest = Manifest(environment={"=key": "=1+1"}, notes=["=note"])
    finding = PreflightFinding(VersionDiffers("=topic", "1", "2", BesideGolden.CANDIDATE))
    compared = comparison(pair("a"), golden=manifest, preflight=[finding], damage=["=damage"])
    cells = [
        cell for sheet in opened(tmp_path, compared) for line in sheet.iter_rows() for cell in line
    ]
    assert {"=topic", "=topic: golden 1, candidate 2", "=damage", "=note", "=1+1"} <= {
        cell.value for cell in cells
    }
    assert not [cell.coordinate for cell in cells if cell.data_type == "f"]


def test_paths_of_bundles_may_hold_anything(tmp_path: Path) -> None:
    compared = dataclasses.replace(
        comparison(pair("a")),
        golden=Side(Path("gol\x07den\udc80"), Manifest()),
        candidate=Side(Path("=npu"), Manifest()),
    )
    lines = summary_lines(opened(tmp_path, compared))
    assert ["golden", r"gol\x07den\udc80"] in lines
    assert ["candidate", "=npu"] in lines


# Summary


def test_passed_comparison_says_pass_in_green(tmp_path: Path) -> None:
    cell = opened(tmp_path, comparison(pair("a")))["Summary"]["B2"]
    assert (cell.value, cell.fill.fgColor.rgb) == ("PASS", "FF2E7D32")
    assert cell.font.size >= 24


def test_failed_comparison_says_fail_in_red_and_where_first(tmp_path: Path) -> None:
    sheet = opened(tmp_path, comparison(pair("a"), pair("b.c", 1e-2)))["Summary"]
    assert (sheet["B2"].value, sheet["B2"].fill.fgColor.rgb) == ("FAIL", "FFC62828")
    assert sheet["B4"].value == "1 of 2 rows fails, the first at b.c output."


def test_nothing_compared_is_no_pass(tmp_path: Path) -> None:
    workbook = opened(tmp_path, comparison())
    assert workbook["Summary"]["B2"].value == "TROUBLE"
    assert workbook["Summary"]["B4"].value == "Nothing could be compared, which is no pass."


def test_counts_by_reason_add_up_to_the_rows(tmp_path: Path) -> None:
    rows = [*every_reason(), pair("more")]
    lines = summary_lines(opened(tmp_path, comparison(*rows, left_out=3)))
    words = {reason.value for reason in verdict_words.MEANING}
    counts = {line[0]: line[1] for line in lines if len(line) == 3 and line[0] in words}
    assert {line[2] for line in lines if len(line) == 3 and line[0] in words} == set(
        verdict_words.MEANING.values()
    )
    assert counts["ok"] == 3
    assert sum(counts.values()) == len(rows)
    assert ["total", len(rows), "every record of either bundle, in one row"] in lines
    assert next(line[1] for line in lines if line and line[0] == "left out") == 3


def test_links_lead_to_their_rows(tmp_path: Path) -> None:
    rows = [pair(f"block.{number}", 10.0 ** (number - 12)) for number in range(12)]
    workbook = opened(tmp_path, comparison(*rows))
    links = [cell for line in workbook["Summary"].iter_rows() for cell in line if cell.hyperlink]
    assert len(links) == 11  # the first divergence and the ten worst
    assert links[0].value == "block.9"
    assert [cell.value for cell in links[1:]] == [f"block.{number}" for number in range(11, 1, -1)]
    assert [target(workbook, cell.hyperlink).value for cell in links] == [
        cell.value for cell in links
    ]


def test_furthest_from_golden_is_what_fails_and_then_the_others_by_the_error_that_they_show(
    tmp_path: Path,
) -> None:
    far = pair("far", 1e-2)
    # by a limit of its own
    far = replace(
        far, verdict=msgspec.structs.replace(far.verdict, reason=Reason.OK, over_limit=0.1)
    )
    lines = summary_lines(
        opened(
            tmp_path,
            comparison(
                pair("near", 1e-12),
                pair("off", 1e-3),
                far,
                pair("nan", math.nan, Reason.NON_FINITE),
            ),
        )
    )
    start = lines.index(
        ["Furthest from golden, by relative L2 error: what fails, and then the others"]
    )
    assert [line[0] for line in lines[start + 2 : start + 6]] == ["nan", "off", "far", "near"]


def test_summary_says_when_and_by_which_command_and_versions_each_side_was_made(
    tmp_path: Path,
) -> None:
    environment = {
        "created": "2026-01-02T03:04:05+00:00",
        "command": "accucompare capture x.py",
        "versions": {"torch": "2.5.1"},
    }
    lines = summary_lines(
        opened(tmp_path, comparison(pair("a"), golden=Manifest(environment=environment)))
    )
    start = lines.index(["entry", "golden", "candidate"])
    assert lines[start + 1 : start + 4] == [
        ["date", "2026-01-02T03:04:05+00:00", "—"],
        ["command", "accucompare capture x.py", "—"],
        ["versions.torch", "2.5.1", "—", "differs"],
    ]
    (made,) = [line[1] for line in lines if line and line[0] == "report made"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC, by accucompare \S+: .+", made)


def test_no_entry_of_the_summary_is_there_twice(tmp_path: Path) -> None:
    manifest = Manifest(
        steps=[StepEntry(0, 5, "")],
        capture={"steps": None, "dtype": "bfloat16"},
        model={"dtypes": ["bfloat16"]},
    )
    lines = summary_lines(
        opened(tmp_path, comparison(pair("a"), golden=manifest, candidate=manifest))
    )
    entries = [line[0] for line in lines[lines.index(["entry", "golden", "candidate"]) + 1 : -1]]
    assert entries == [
        "dtypes of parameters",
        "cast to (--dtype)",
        "complete",
        "ranks",
        "steps",
        "records",
    ]


def test_findings_and_damage_are_listed(tmp_path: Path) -> None:
    compared = comparison(
        pair("a"),
        preflight=[
            PreflightFinding(SettingDiffers(CaptureSetting.SEED, 0, 1, BesideGolden.CANDIDATE))
        ],
        damage=["step0: bit flip"],
    )
    lines = summary_lines(opened(tmp_path, compared))
    assert ["seed", "seed: golden 0, candidate 1"] in lines
    assert ["step0: bit flip"] in lines


def test_captures_stand_side_by_side_and_differences_are_marked(tmp_path: Path) -> None:
    golden = Manifest(
        environment={"device": {"type": "cpu"}, "versions": {"torch": "2.5.1"}}, capture={"seed": 0}
    )
    candidate = Manifest(
        environment={"device": {"type": "npu"}, "versions": {"torch": "2.5.1"}}, capture={"seed": 0}
    )
    lines = summary_lines(
        opened(tmp_path, comparison(pair("a"), golden=golden, candidate=candidate))
    )
    assert ["device.type", "cpu", "npu", "differs"] in lines
    assert ["versions.torch", "2.5.1", "2.5.1"] in lines
    assert ["seed", "0", "0"] in lines


# Environment


def environment_lines(
    directory: Path, golden: Manifest, candidate: Manifest
) -> dict[str, tuple[Any, ...]]:
    sheet = opened(directory, comparison(pair("a"), golden=golden, candidate=candidate))[
        "Environment"
    ]
    return {line[0]: line[1:] for line in sheet.iter_rows(min_row=4, values_only=True)}


def test_environment_lists_nested_entries_of_both_sides(tmp_path: Path) -> None:
    golden = Manifest(
        steps=[StepEntry(0, 5, ""), StepEntry(1, 6, "")], environment={"flags": {"tf32": False}}
    )
    candidate = Manifest(
        steps=[StepEntry(0, 5, "")], environment={"flags": {"tf32": True, "hf32": True}}
    )
    lines = environment_lines(tmp_path, golden, candidate)
    assert lines["environment.flags.tf32"] == ("no", "yes", "differs")
    assert lines["environment.flags.hf32"] == ("—", "yes", "differs")
    assert lines["records"] == ("11", "5", "differs")


def test_entries_of_one_side_stand_beside_their_like(tmp_path: Path) -> None:
    golden = Manifest(environment={"device": {"type": "cpu"}, "threads": 2})
    candidate = Manifest(environment={"device": {"type": "npu", "cann": "8.0"}, "threads": 2})
    keys = list(environment_lines(tmp_path, golden, candidate))
    assert keys.index("environment.device.cann") == keys.index("environment.device.type") + 1


def test_tables_of_parameters_are_shown_as_numbers(tmp_path: Path) -> None:
    entries = [
        {f"p{number}": {"dtype": "float32", "shape": [side * number]} for number in range(1, 5001)}
        for side in (1, 2)
    ]
    golden = Manifest(model={"parameters": entries[0], "not_called": ["a", "b"]})
    candidate = Manifest(model={"parameters": entries[1], "not_called": []})
    lines = environment_lines(tmp_path, golden, candidate)
    assert lines["model.parameters"] == (
        "5,000 entries",
        "5,000 entries (contents differ)",
        "differs",
    )
    assert lines["model.not_called"] == ("a, b", "none", "differs")
    assert len(lines) < 20


def test_time_and_command_are_never_marked(tmp_path: Path) -> None:
    golden, candidate = (
        Manifest(environment={"created": str(day), "command": str(day)}) for day in (1, 2)
    )
    lines = environment_lines(tmp_path, golden, candidate)
    assert lines["environment.created"] == ("1", "2", None)


# Unmatched


def test_unmatched_lists_the_one_sided_rows_with_their_nearest_names(tmp_path: Path) -> None:
    sheet = opened(tmp_path, comparison(*every_reason()))["Unmatched"]
    assert values(sheet, "layer") == ["missing", "extra", "one-sided", "not called"]
    assert values(sheet, "nearest name") == ["extra", "missing", None, None]
    assert values(sheet, "#") == [11, 12, 13, 14]


def test_unmatched_says_so_when_there_is_nothing(tmp_path: Path) -> None:
    assert "every record" in opened(tmp_path, comparison(pair("a")))["Unmatched"]["A2"].value


# Divergence


def chart_data(workbook: Any) -> dict[str, list[Any]]:
    sheet = workbook["Divergence"]
    header = next(number for number in range(1, 60) if sheet.cell(number, 2).value == "layer")
    lines = list(sheet.iter_rows(min_row=header, max_col=6, values_only=True))
    return {str(title): list(cells) for title, *cells in zip(*lines, strict=True)}


def test_chart_is_logarithmic_with_error_and_tolerance(tmp_path: Path) -> None:
    chart = opened(tmp_path, comparison(pair("a"), pair("b", 1e-2)))["Divergence"]._charts[0]
    assert chart.y_axis.scaling.logBase == 10
    assert not chart.x_axis.delete
    assert not chart.y_axis.delete
    assert len(chart.series) == 3  # error, tolerance, and a mark on what is over it
    assert [series.tx.strRef.f for series in chart.series] == [
        "'Divergence'!C34",
        "'Divergence'!D34",
        "'Divergence'!E34",
    ]
    assert chart.series[0].val.numRef.f == "'Divergence'!$C$35:$C$36"


def test_chart_shows_the_measured_outputs_in_order(tmp_path: Path) -> None:
    rows = [pair("a", role=Role.INPUT), pair("b", 1e-5), missing("c"), pair("d", 1e-2)]
    data = chart_data(opened(tmp_path, comparison(*rows)))
    assert (data["#"], data["layer"]) == ([2, 4], ["b", "d"])
    assert data["relative L2"] == [1e-5, 1e-2]
    assert data["tolerance"] == [LIMIT, LIMIT]
    assert data["over tolerance"] == [None, 1e-2]


def test_limit_on_something_else_is_converted_by_how_much_of_it_was_used(tmp_path: Path) -> None:
    row = pair("a", 1e-5)
    implied = replace(
        row, verdict=Verdict(Reason.OK, Tolerance(atol=0.001).judged, over_limit=0.25)
    )
    unknown = replace(
        row, verdict=Verdict(Reason.OK, Tolerance(atol=0.001).judged, over_limit=None)
    )
    assert chart_data(opened(tmp_path, comparison(implied, unknown)))["tolerance"] == [4e-5, None]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("encoder.layer.2.output", "encoder.layer.2.output"),
        ("encoder.layer.2.attention.output.LayerNorm", "…layer.2…output.LayerNorm"),
        ("model.layers.17.self_attn.q_proj", "model.layers.17…q_proj"),
        ("a_very_long_part_without_a_dot", "a_very_long_…without_a_dot"),
    ],
)
def test_labels_keep_the_blocks_number_and_the_last_part_of_a_name(
    tmp_path: Path, name: str, shown: str
) -> None:
    assert chart_data(opened(tmp_path, comparison(pair(name))))["under the axis"] == [shown]


def test_zero_and_infinite_errors_are_drawn_at_the_ends_and_it_says_so(tmp_path: Path) -> None:
    rows = [pair("a", 0.0), pair("b", 1e-5), pair("c", math.inf), pair("d", math.nan)]
    workbook = opened(tmp_path, comparison(*rows))
    low, middle, *high = chart_data(workbook)["relative L2"]
    axis = workbook["Divergence"]._charts[0].y_axis.scaling
    assert (low, middle, high) == (axis.min, 1e-5, [axis.max, axis.max])
    caption = workbook["Divergence"]["A2"].value
    assert f"drawn at {low:.0e}" in caption
    assert f"drawn at {high[0]:.0e}" in caption


def test_long_chart_is_thinned_but_keeps_its_peaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sheets, "MAX_POINTS", 10)
    rows = [pair(f"l{number}", 1e-2 if number == 57 else 1e-6) for number in range(100)]
    workbook = opened(tmp_path, comparison(*rows))
    data = chart_data(workbook)
    assert len(data["layer"]) == 10
    assert "l57" in data["layer"]
    assert "100 outputs are too many" in workbook["Divergence"]["A2"].value


def test_without_outputs_there_is_no_chart(tmp_path: Path) -> None:
    sheet = opened(tmp_path, comparison(missing("a")))["Divergence"]
    assert not sheet._charts
    assert "nothing to draw" in sheet["A2"].value


# Many rows


def test_rows_beyond_a_sheet_go_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sheets, "LINES_PER_SHEET", 20)
    rows = [pair(f"l{number}", 1e-2 if number >= 38 else 1e-6) for number in range(40)]
    workbook = opened(tmp_path, comparison(*rows, *map(missing, "abcdefghijklmnopqrst")))
    assert workbook.sheetnames == [
        "Summary",
        "Layers",
        "Layers 2",
        "Layers 3",
        "Layers 4",
        "Divergence",
        "Unmatched",
        "Unmatched 2",
        "Environment",
    ]
    assert [
        name
        for page in ("Layers", "Layers 2", "Layers 3")
        for name in values(workbook[page], "layer")
    ] == [*(f"l{number}" for number in range(40)), *"abcdefghijklmnopq"]
    links = [
        cell
        for sheet in ("Summary", "Divergence")
        for line in workbook[sheet].iter_rows()
        for cell in line
        if cell.hyperlink
    ]
    assert [target(workbook, cell.hyperlink).value for cell in links] == [
        cell.value for cell in links
    ]
    assert "'Layers 3'!D2" in [cell.hyperlink.location for cell in links]


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    code = (
        "import resource, sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from"
        " test_excel import *;rows = [pair(f'block.{n}.fc') for n in range(5_000)]; compared ="
        " comparison(*rows);write_excel(comparison(*rows[:1500]), Path(sys.argv[2]));before ="
        " resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; write_excel(compared,"
        " Path(sys.argv[2]));print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) //"
        " 1024)"
    )
    arguments = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path / "r.xlsx")]
    grown = int(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
    assert grown < 6  # MB; the sheet's XML alone is 9


# The file


#: The order that the format prescribes for what a sheet holds.
ORDER = [
    *(
        "sheetPr",
        "dimension",
        "sheetViews",
        "sheetFormatPr",
        "cols",
        "sheetData",
        "sheetProtection",
        "autoFilter",
        "mergeCells",
    ),
    *(
        "conditionalFormatting",
        "dataValidations",
        "hyperlinks",
        "printOptions",
        "pageMargins",
        "pageSetup",
        "headerFooter",
    ),
    *("rowBreaks", "colBreaks", "ignoredErrors", "drawing"),
]


def test_every_part_is_well_formed_and_in_the_prescribed_order(tmp_path: Path) -> None:
    path = write_excel(comparison(*every_reason(), *map(pair, NASTY.values())), tmp_path / "r.xlsx")
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) == len(set(archive.namelist()))
        parts = {name: ElementTree.fromstring(archive.read(name)) for name in archive.namelist()}
    sheets = [root for name, root in parts.items() if name.startswith("xl/worksheets/sheet")]
    assert len(sheets) == 5
    for root in sheets:
        places = [ORDER.index(child.tag.rpartition("}")[2]) for child in root]
        assert places == sorted(places)


def test_every_conditional_format_has_a_style_and_its_own_priority(tmp_path: Path) -> None:
    path = write_excel(comparison(pair("a")), tmp_path / "r.xlsx")
    with zipfile.ZipFile(path) as archive:
        styles = len(re.findall(rb"<dxf>", archive.read("xl/styles.xml")))
        rules = re.findall(rb"<cfRule [^>]*>", archive.read("xl/worksheets/sheet2.xml"))
    used = [int(number) for number in re.findall(rb'dxfId="(\d+)"', b"".join(rules))]
    priorities = [int(number) for number in re.findall(rb'priority="(\d+)"', b"".join(rules))]
    assert sorted(used) == list(range(styles))
    assert len(set(priorities)) == len(rules)


def test_names_defined_for_filters_and_titles_are_unique_on_each_sheet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sheets, "LINES_PER_SHEET", 20)
    path = write_excel(comparison(*map(pair, "abcdefghijklmnopqrstuvwxyz")), tmp_path / "r.xlsx")
    with zipfile.ZipFile(path) as archive:
        root = ElementTree.fromstring(archive.read("xl/workbook.xml"))
    names = [
        (each.get("name"), each.get("localSheetId"))
        for each in root.iter()
        if each.tag.endswith("}definedName")
    ]
    assert names
    assert len(set(names)) == len(names)


def test_sheets_without_many_rows_need_no_zip64(tmp_path: Path) -> None:
    path = write_excel(comparison(pair("a")), tmp_path / "r.xlsx")
    with zipfile.ZipFile(path) as archive:
        assert {info.extract_version for info in archive.infolist()} <= {20}


def test_it_is_the_same_without_lxml(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from test_excel"
        " import *;write_excel(comparison(*every_reason()), Path(sys.argv[2]))"
    )
    path = tmp_path / "r.xlsx"
    environment = {**os.environ, "OPENPYXL_LXML": "False"}
    subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), str(path)],
        check=True,
        env=environment,
    )
    for ours, theirs in zip(
        opened(tmp_path, comparison(*every_reason())), load_workbook(path), strict=True
    ):
        assert [line for line in ours.values if "report made" not in line] == [
            line for line in theirs.values if "report made" not in line
        ]


def test_no_temporary_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    write_excel(comparison(*every_reason()), tmp_path / "r.xlsx")
    assert not os.listdir(tmp_path / "temporary")


def libreoffice(suffix: str, *paths: Path) -> list[Path]:
    """What LibreOffice makes of some workbooks of one folder."""
    folder = paths[0].parent
    profile = f"-env:UserInstallation={(folder / 'profile').as_uri()}"
    command = [
        "soffice",
        profile,
        "--headless",
        "--convert-to",
        suffix,
        "--outdir",
        folder / "converted",
        *paths,
    ]
    subprocess.run(command, check=True, capture_output=True)
    return [folder / "converted" / f"{path.stem}.{suffix}" for path in paths]


@pytest.mark.skipif(shutil.which("soffice") is None, reason="LibreOffice is not installed")
@pytest.mark.filterwarnings("ignore:.*extension is not supported")  # LibreOffice's own data bars
def test_libreoffice_opens_it_and_finds_no_formula(tmp_path: Path) -> None:
    rows = [*every_reason(), *(pair(name, 1e-2) for name in NASTY.values())]
    path = write_excel(comparison(*rows), tmp_path / "r.xlsx")
    culprit = Culprit(
        "fc",
        0,
        "module",
        "",
        pair("fc", 31.0),
        31.0,
        Reason.INTRODUCED,
        shape=ErrorShape(patterns=(Pattern(PatternKind.SIGN),)),
    )
    with_culprits = write_excel(
        comparison(culprit.row, culprits=[culprit]), tmp_path / "culprits.xlsx"
    )
    workbook: Any = load_workbook(*libreoffice("xlsx", path))
    assert workbook.sheetnames == ["Summary", "Layers", "Divergence", "Unmatched", "Environment"]
    assert [str(name) for name in values(workbook["Layers"], "layer")] == [
        row.module for row in rows
    ]
    assert not [
        cell
        for sheet in workbook
        for line in sheet.iter_rows()
        for cell in line
        if cell.data_type == "f"
    ]
    assert workbook["Divergence"]._charts
    assert all(
        page.read_bytes().startswith(b"%PDF") for page in libreoffice("pdf", path, with_culprits)
    )


# Trouble


def refused(path: Path, compared: Comparison | None = None) -> str:
    """The message that writing there is refused with."""
    with pytest.raises(ReportError) as refusal:
        write_excel(compared or comparison(pair("a")), path)
    assert str(refusal.value).startswith(f"{path}: ")
    return str(refusal.value)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write anywhere; so be nobody for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    assert (
        refused(tmp_path / "reports")
        == f"{tmp_path / 'reports'}: is a directory; name a file in it"
    )


@pytest.mark.parametrize("name", ["report.csv", "report", "report.xls"])
def test_other_suffix_is_refused_with_a_name_to_use(tmp_path: Path, name: str) -> None:
    assert "such as report.xlsx" in refused(tmp_path / name)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_a_terminal_is_refused_and_nothing_is_written_to_it(name: str) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from test_excel"
        " import *\ntry: write_excel(comparison(pair('a')), Path(sys.argv[2]))\nexcept ReportError"
        " as error: print(error)"
    )
    ours, theirs = os.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", code, str(Path(__file__).parent), name],
            check=True,
            stdout=theirs,
        )
        written = os.read(ours, 10_000)
    finally:
        os.close(ours)
        os.close(theirs)
    assert written.decode().startswith(f"{name}: a terminal cannot show a workbook; name a file")
    assert b"PK" not in written


def test_read_only_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with without_privileges():
        assert "may write to" in refused(tmp_path / "r.xlsx")
    assert not os.listdir(tmp_path)


def test_file_in_place_of_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is a file" in refused(tmp_path / "file" / "r.xlsx")


def test_name_too_long_for_the_disk_is_refused(tmp_path: Path) -> None:
    assert "shorter" in refused(tmp_path / f"{'x' * 300}.xlsx")
    assert not os.listdir(tmp_path)


def test_report_open_elsewhere_is_kept_and_nothing_is_left_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(source: object, destination: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "r.xlsx"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "replace", locked)
    assert "open in Excel" in refused(path)
    assert os.listdir(tmp_path) == ["r.xlsx"]
    assert path.read_bytes() == b"old"


def test_what_is_no_workbook_is_not_said_to_be_open_in_excel(tmp_path: Path) -> None:
    def forbidden(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with pytest.raises(ReportError, match=r"; choose a place that you may write to$"):
        written_whole(tmp_path / "r.json", forbidden)


def test_full_disk_leaves_the_old_report_and_no_half_of_the_new_one(tmp_path: Path) -> None:
    path = write_excel(comparison(pair("old")), tmp_path / "r.xlsx")
    old = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        refused(path, comparison(*(pair(os.urandom(2000).hex()) for _ in range(100))))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == ["r.xlsx"]
    assert path.read_bytes() == old


@pytest.mark.parametrize("value", [1.7976931348623157e308, 5e-324, 0.1 + 0.2, -1 / 3])
def test_a_number_is_read_back_as_it_was(tmp_path: Path, value: float) -> None:
    sheet = opened(tmp_path, comparison(pair("a", bias=value)))["Layers"]
    place = [cell.value for cell in sheet[1]].index("bias")
    assert sheet[2][place].value == value


def test_a_look_is_put_into_a_workbook_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """openpyxl hashes and compares every part of a style for each cell, which took longer than all
    the rest of a report.
    """
    workbook = Workbook(write_only=True)
    sheet = workbook.create_sheet()
    first = styled(sheet, "a", HEADER)
    put: list[object] = []
    monkeypatch.setattr(IndexedList, "add", lambda self, value: put.append(value))
    others = [styled(sheet, value, HEADER) for value in range(100)]
    assert put == []
    assert {cell.style_id for cell in others} == {first.style_id}
    assert others[0].font.bold
