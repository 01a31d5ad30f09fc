"""What the reports say where a baseline judged, the candidate was fed, or it was run twice."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import accucompare as ac
from accucompare.api import Comparison
from accucompare.bundle.format.manifest import Manifest
from accucompare.bundle.format.records import Role
from accucompare.compare.limit_facts import LimitKind, LimitOfKind
from accucompare.compare.limits.baseline import excess_limit
from accucompare.compare.limits.tolerance import SmallestLimit
from accucompare.compare.origins.scaled import ScaledGradients
from accucompare.compare.origins.sites import Culprit
from accucompare.compare.result import Side
from accucompare.compare.rows.rows import Reason, Row, Verdict
from accucompare.compare.shape_facts import (
    ErrorCause,
    ErrorShape,
    OtherChoices,
    Pattern,
    PatternKind,
)
from accucompare.report.table.columns import COLUMNS, to_dataframe
from accucompare.report.terminal.terminal import print_comparison
from accucompare.report.words.culprit_place import culprit_hints, error_words
from tests.compare.builder import item, write
from tests.report.test_excel import (
    chart_data,
    column,
    comparison,
    fills,
    missing,
    opened,
    pair,
    summary_lines,
    target,
    values,
)

MOST = excess_limit(6, "float32")  # of the six elements that `pair` says were measured
SPARSE = ["excess", "excess limit", "baseline relative L2", "noise"]
FED = Manifest(capture={"feed": {"golden": "golden", "identity": "0123", "not_fed": []}})
BASELINE = Side(
    Path("cpu-bf16"),
    Manifest(environment={"device": {"type": "cpu"}}, capture={"dtype": "bfloat16"}),
)
HINT = "often: a wrong eps in a normalisation"
SHAPE = ErrorShape(patterns=(Pattern(PatternKind.SIGN),), causes=(ErrorCause.EPS,))


def judged(
    name: str,
    excess: float = 1.0,
    baseline: float = 1e-3,
    reason: Reason | None = None,
    role: Role = Role.OUTPUT,
) -> Row:
    """A row with this excess, judged by a baseline with this error."""
    reason = reason or (Reason.OK if excess <= MOST else Reason.INTRODUCED)
    verdict = Verdict(
        reason,
        LimitOfKind(LimitKind.EXCESS, MOST),
        (SmallestLimit("excess", excess),),
        excess / MOST,
        (),
        MOST * baseline,
        excess,
        MOST,
        evident=excess > MOST,
    )
    return replace(
        pair(name, excess * baseline, reason, role), verdict=verdict, baseline_error=baseline
    )


def culprit(row: Row, **more: Any) -> Culprit:
    excess = row.verdict.excess if row.verdict.excess is not None else row.verdict.over_limit
    return Culprit(row.module, 0, "module", "", row, excess or 0.0, row.reason, **more)


def fed(*rows: Row, **more: Any) -> Comparison:
    """A fed candidate beside a baseline, with a culprit for every row that introduces an error."""
    found = [culprit(row, shape=SHAPE) for row in rows if row.reason is Reason.INTRODUCED]
    return comparison(*rows, candidate=FED, **{"baseline": BASELINE, "culprits": found, **more})


def printed(capsys: pytest.CaptureFixture[str], compared: Comparison, quiet: bool = False) -> str:
    print_comparison(compared, [Path("x.xlsx")], quiet)
    return capsys.readouterr().out


# Columns


def test_data_frame_has_excess_limit_baseline_and_noise() -> None:
    frame = to_dataframe(fed(replace(judged("a", 2.0), noise=1e-5)))
    assert frame[SPARSE].iloc[0].tolist() == [2.0, MOST, 1e-3, 1e-5]


def test_data_frame_has_the_same_columns_where_they_say_nothing() -> None:
    frame = to_dataframe(comparison(pair("a")))
    assert list(frame.columns) == [column.title for column in COLUMNS]
    assert frame[SPARSE].isna().all(axis=None)
    assert set(frame[SPARSE].dtypes.astype(str)) == {"float64"}


def test_a_limit_that_the_user_gave_is_none_on_the_excess() -> None:
    row = pair("a", 1e-5)
    frame = to_dataframe(
        fed(
            replace(
                row, verdict=msgspec.structs.replace(row.verdict, excess=3.0), baseline_error=1e-6
            )
        )
    )
    assert frame["excess"].tolist() == [3.0]
    assert frame["excess limit"].isna().all()


def test_the_limit_shown_is_the_one_that_judged(tmp_path: Path) -> None:
    rounded = 1.0 + 2.0**-9  # in bfloat16 it is 1
    sides = {"golden": "float32", "npu": "bfloat16", "cpu": "bfloat16"}
    for name, dtype in sides.items():
        write(
            tmp_path / name,
            [
                item("fc", [rounded] * 100, dtype),
                item("second", [rounded + (name == "npu")] * 100, dtype),
            ],
        )
    frame = ac.diff(tmp_path / "golden", tmp_path / "npu", baseline=tmp_path / "cpu").to_dataframe()
    assert list(frame["tolerance"]) == [f"excess {most:.3g}" for most in frame["excess limit"]]
    assert (frame["excess"] / frame["excess limit"]).tolist() == pytest.approx(
        frame["x limit"].tolist()
    )


def test_excel_hides_the_columns_that_no_row_has_a_value_in(tmp_path: Path) -> None:
    def hidden(compared: Comparison) -> list[str]:
        sheet = opened(tmp_path, compared)["Layers"]
        assert [cell.value for cell in sheet[1]] == [column.title for column in COLUMNS]
        seen = [column.title for column in COLUMNS if not column.folded]
        return [
            cell.value
            for cell in sheet[1]
            if cell.value in seen and sheet.column_dimensions[cell.column_letter].hidden
        ]

    assert hidden(comparison(pair("a"), missing("b"))) == ["excess"]
    assert hidden(fed(judged("a"), missing("b"))) == []


def test_excel_shows_excess_beside_its_limit_as_numbers(tmp_path: Path) -> None:
    sheet = opened(tmp_path, fed(judged("a", 31.0), judged("b", 0.0), judged("c", math.inf)))[
        "Layers"
    ]
    assert values(sheet, "excess") == [31.0, 0.0, "inf"]
    assert values(sheet, "excess limit") == [MOST] * 3
    assert values(sheet, "baseline relative L2") == [1e-3] * 3
    assert column(sheet, "excess")[0].number_format == "[=0]0;[<1000]0.00;0.0E+00"


def test_over_precise_is_amber_and_not_deterministic_greyer_whatever_they_used(
    tmp_path: Path,
) -> None:
    rows = [
        judged("a", 0.01, reason=Reason.OVER_PRECISE),
        judged("b", 1e6, reason=Reason.NOT_DETERMINISTIC),
    ]
    assert fills(opened(tmp_path, fed(*rows))["Layers"]) == ["FFFFEB9C", "FFE9E1C8"]


# Summary


def test_conclusion_stands_below_the_verdict(tmp_path: Path) -> None:
    sheet = opened(tmp_path, fed(judged("a"), judged("b", 31.0)))["Summary"]
    assert (sheet["B2"].value, sheet["B3"].value) == ("FAIL", "bug: b, excess 31")
    assert sheet["B4"].value == "1 of 2 rows fails, the first at b output."
    assert opened(tmp_path, fed(judged("a")))["Summary"]["B3"].value == "rounding"


def test_without_baseline_or_feeding_nothing_is_said_of_rounding(tmp_path: Path) -> None:
    workbook = opened(tmp_path, comparison(pair("a", 1e-2)))
    assert workbook["Summary"]["B4"].value == "1 of 1 rows fails, the first at a output."
    assert not [
        line for line in summary_lines(workbook) if {"baseline", "fed", "Culprits"} & set(line)
    ]


def test_culprits_come_first_with_words_and_hints(tmp_path: Path) -> None:
    lines = summary_lines(opened(tmp_path, fed(judged("a"), judged("b", 31.0))))
    start = lines.index(["Culprits"])
    assert start < lines.index(["First divergence, in execution order"])
    assert lines[start + 2] == [
        "#",
        "place",
        "site, reason",
        "what shows it",
        "excess",
        "x limit",
        "relative L2",
    ]
    assert lines[start + 3] == [
        1,
        "b",
        "module, introduced",
        "Linear, output",
        31.0,
        pytest.approx(31.0 / MOST),
        31e-3,
    ]
    assert lines[start + 4 : start + 6] == [["its error", "the sign is flipped"], ["hint", HINT]]


def test_culprits_lead_to_their_rows(tmp_path: Path) -> None:
    rows = [judged("a"), judged("b.c", 31.0), judged("d", 5.0 * MOST)]
    workbook = opened(tmp_path, fed(*rows))
    cells = [
        cell
        for line in workbook["Summary"].iter_rows(max_row=20)
        for cell in line
        if cell.hyperlink
    ]
    assert [cell.value for cell in cells[:2]] == ["b.c", "d"]
    assert [target(workbook, cell.hyperlink).value for cell in cells[:2]] == ["b.c", "d"]


def test_a_name_that_looks_like_a_formula_stays_text_in_every_line_of_a_culprit(
    tmp_path: Path,
) -> None:
    row = judged("=1+1", 31.0)
    compared = fed(row, culprits=[culprit(row, shape=SHAPE)])
    cells = [cell for line in opened(tmp_path, compared)["Summary"].iter_rows() for cell in line]
    assert "=1+1" in {cell.value for cell in cells}
    assert not [cell for cell in cells if cell.data_type == "f"]


def test_glue_jump_and_calls_are_said(tmp_path: Path) -> None:
    row = judged("a.fc", 31.0, reason=Reason.GLUE, role=Role.INPUT)
    glue = Culprit("a", 1, "glue", "a.fc", row, 31.0, Reason.GLUE, jump=14.0, seen=3)
    lines = summary_lines(opened(tmp_path, comparison(row, baseline=BASELINE, culprits=[glue])))
    assert lines[lines.index(["Culprits"]) + 3][1:3] == [
        "a call 1 (glue, before fc)",
        "glue, 14 times what went in, in 3 calls",
    ]


def test_a_culprit_by_its_shape_has_no_excess(tmp_path: Path) -> None:
    row = replace(pair("a"), verdict=Verdict(Reason.SHAPE), metrics=None)
    lines = summary_lines(opened(tmp_path, fed(row, culprits=[culprit(row)])))
    assert lines[lines.index(["Culprits"]) + 3] == [1, "a", "module, shape", "Linear, output"]


def test_many_culprits_are_counted(tmp_path: Path) -> None:
    assert ["… and 5 more"] in summary_lines(
        opened(tmp_path, fed(*(judged(f"l{number}", 31.0) for number in range(25))))
    )


def test_culprits_of_a_free_candidate_are_marked_as_less_certain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = pair("a", 3 * 1e-4)
    compared = comparison(row, culprits=[culprit(row)])
    lines = summary_lines(opened(tmp_path, compared))
    start = lines.index(["Culprits"])
    assert "not certain: " in lines[start + 1][0]
    # a multiple of its limit, and no excess
    assert lines[start + 3][-3:] == ["Linear, output", pytest.approx(3.0), pytest.approx(3e-4)]
    assert "not certain: without a baseline" in " ".join(printed(capsys, compared).split())
    surer = fed(judged("a", 31.0))
    assert not any("not certain" in str(line) for line in summary_lines(opened(tmp_path, surer)))
    assert "not certain" not in printed(capsys, surer)


def test_baseline_is_described_beside_what_was_compared(tmp_path: Path) -> None:
    lines = summary_lines(opened(tmp_path, fed(judged("a"))))
    assert ["baseline", "cpu-bf16 (cpu, bfloat16)"] in lines
    assert ["entry", "golden", "candidate", "baseline"] in lines
    assert ["device.type", "—", "—", "cpu"] in lines


def test_fed_candidate_is_said_with_what_could_not_be_fed(tmp_path: Path) -> None:
    kept = Manifest(
        capture={
            "feed": {
                "golden": "golden",
                "identity": "0123",
                "not_fed": [
                    {"step": 0, "name": name, "call": 0, "role": "output"} for name in "ab"
                ],
            }
        }
    )
    lines = summary_lines(opened(tmp_path, comparison(pair("a"), candidate=kept)))
    said = next(line[1] for line in lines if line and line[0] == "fed")
    assert (
        said
        == "every call was given golden's values, but for 2 values (see Environment), so each error"
        " is its own"
    )
    assert ["feed", "—", "golden", "differs"] in lines


# Environment


def test_environment_has_the_baseline_as_a_third_column_and_marks_where_it_stands_alone(
    tmp_path: Path,
) -> None:
    sides = [
        Manifest(environment={"torch": torch, "device": device})
        for torch, device in (("2.5", "cpu"), ("2.5", "npu"), ("2.6", "cpu"))
    ]
    compared = comparison(
        judged("a"), golden=sides[0], candidate=sides[1], baseline=Side(Path("cpu-bf16"), sides[2])
    )
    lines = {
        line[0].value: line
        for line in opened(tmp_path, compared)["Environment"].iter_rows(min_row=3)
    }
    assert [cell.value for cell in lines["entry"]] == [
        "entry",
        "golden",
        "candidate",
        "baseline",
        None,
    ]
    assert [cell.value for cell in lines["path"]][3] == "cpu-bf16"
    assert [cell.value for cell in lines["environment.device"]] == [
        "environment.device",
        "cpu",
        "npu",
        "cpu",
        "differs",
    ]
    marked = {
        key: [cell.fill.fgColor.rgb == "FFFFEB9C" for cell in lines[f"environment.{key}"]]
        for key in ("torch", "device")
    }
    assert marked == {
        "torch": [False, False, False, True, False],
        "device": [False, True, True, False, True],
    }


# Divergence


def test_baseline_is_a_line_of_the_chart(tmp_path: Path) -> None:
    workbook = opened(tmp_path, fed(judged("a"), judged("b", 31.0, 1e-7)))
    sheet = workbook["Divergence"]
    chart = sheet._charts[0]
    titles = [sheet[series.tx.strRef.f.rpartition("!")[2]].value for series in chart.series]
    assert titles == ["baseline", "relative L2", "tolerance", "over tolerance"]
    assert [sheet.cell(line, 8).value for line in (34, 35, 36)] == ["baseline", 1e-3, 1e-7]
    assert chart.y_axis.scaling.min <= 1e-7
    assert "rounding alone" in sheet["A2"].value


def test_baseline_without_any_error_is_drawn_at_the_foot(tmp_path: Path) -> None:
    workbook = opened(tmp_path, fed(judged("a", 31.0), judged("b", 1.0, 0.0)))
    assert (
        workbook["Divergence"].cell(36, 8).value
        == workbook["Divergence"]._charts[0].y_axis.scaling.min
    )


def test_glue_is_drawn_where_the_candidate_was_fed(tmp_path: Path) -> None:
    rows = [
        judged("a"),
        judged("b", 31.0, reason=Reason.GLUE, role=Role.INPUT),
        judged("b", role=Role.INPUT),
    ]
    assert chart_data(opened(tmp_path, fed(*rows)))["layer"] == ["a", "b"]
    assert chart_data(opened(tmp_path, comparison(*rows, baseline=BASELINE)))["layer"] == ["a"]


# Two measures


def table(out: str, title: str) -> list[str]:
    """The lines of a table in what was printed, its header first."""
    return out[out.index(f"\n{title}\n") + 1 :].partition("\n\n")[0].splitlines()[1:]


def test_excess_is_the_baselines_multiple_and_x_limit_the_limits_each_in_its_own_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_baseline, by_limit = judged("a", 31.0), pair("b", 3e-4)
    compared = fed(by_baseline, by_limit)
    header, *lines = [
        line for line in table(printed(capsys, compared), "Culprits") if not line.startswith(" ")
    ][-3:]
    assert header.split() == ["#", "place", "excess", "x", "limit", "rel", "L2"]
    assert [line.split()[2:] for line in lines] == [
        ["31", f"{31 / MOST:.3g}", "3.10e-02"],
        ["3", "3.00e-04"],
    ]
    found = json.loads(compared.to_json(tmp_path / "x.json").read_text())["culprits"]
    assert [(each["excess"], each["over_limit"]) for each in found] == [
        (31.0, 31.0 / MOST),
        (None, pytest.approx(3.0)),
    ]
    assert [(each.excess, each.over_limit) for each in compared.culprits] == [
        (31.0, 31.0 / MOST),
        (None, pytest.approx(3.0)),
    ]


def test_without_a_baseline_no_column_is_called_excess(capsys: pytest.CaptureFixture[str]) -> None:
    row = pair("a", 3e-4)
    listed = table(printed(capsys, comparison(row, culprits=[culprit(row)])), "Culprits")
    assert not any("excess" in line for line in listed)
    assert any("x limit: the error as a multiple of its limit" in line for line in listed)


# Terminal


def test_after_a_pass_no_table_of_worst_rows_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    near = pair("near", 0.9 * 1e-4)
    out = printed(capsys, comparison(pair("far", 1e-6), near, pair("half", 0.6 * 1e-4)))
    assert "Worst" not in out
    listed = table(out, "Closest to the limit, and within it")
    assert [line.split()[0] for line in listed] == ["row", "near", "half"]
    assert "limit" not in printed(capsys, comparison(pair("far", 1e-6))).replace(
        "tolerance: default relative L2 limit", ""
    ).replace("fixed limits tell", "")


def test_after_a_failure_only_rows_that_fail_are_called_worst(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = printed(capsys, comparison(pair("ok", 1e-5), pair("b", 2e-4), pair("c", 1e-2)))
    assert [line.split()[0] for line in table(out, "Worst rows")] == ["row", "c", "b"]


def test_bit_for_bit_identical_is_a_verdict_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = comparison(
        pair("a", 0.0, Reason.IDENTICAL), pair("b", 0.0, Reason.IDENTICAL), verified=True
    )
    assert (
        printed(capsys, same, quiet=True)
        == "IDENTICAL  npu against golden: identical; all 2 compared rows bit for bit identical\n"
    )
    summary = opened(tmp_path, same)["Summary"]
    assert (summary["B2"].value, summary["B4"].value) == (
        "IDENTICAL",
        "All 2 rows that could be compared are bit for bit identical.",
    )
    assert json.loads(same.to_json(tmp_path / "x.json").read_text())["verdict"] == "IDENTICAL"
    unread = dataclasses.replace(same, verified=False)
    assert printed(capsys, unread, quiet=True).endswith(
        "rows bit for bit identical by their digests (--verify reads the values)\n"
    )
    near = comparison(pair("a", 0.0, Reason.IDENTICAL), pair("b", 1e-9))
    assert printed(capsys, near, quiet=True).startswith("PASS  ")
    assert json.loads(near.to_json(tmp_path / "x.json").read_text())["verdict"] == "PASS"


def test_identical_but_for_rows_on_one_side_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = comparison(pair("a", 0.0, Reason.IDENTICAL), missing("b"))
    assert printed(capsys, compared, quiet=True).startswith("FAIL")
    assert opened(tmp_path, compared)["Summary"]["B2"].value == "FAIL"


def test_verdict_line_has_the_conclusion(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        printed(capsys, fed(judged("a"), judged("b", 31.0)), quiet=True)
        == "FAIL  npu against golden: bug: b, excess 31; 1 of 2 rows fail\n"
    )
    assert (
        printed(capsys, fed(judged("a")), quiet=True)
        == "PASS  npu against golden: rounding; all 1 compared rows within tolerance\n"
    )


def test_terminal_lists_five_culprits_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    out = printed(
        capsys,
        fed(
            *(
                judged(f"encoder.layers.{number}.attention.self.{'long' * 20}", 31.0)
                for number in range(7)
            )
        ),
    )
    listed = out[out.index("Culprits") : out.index("First divergence")]
    assert max(map(len, listed.splitlines())) <= 80
    assert listed.count("the sign is flipped") == listed.count(f"hint, {HINT}") == 5
    assert "… and 2 more in the report" in listed


# JSON


def test_json_has_conclusion_culprits_and_the_numbers_of_every_row(tmp_path: Path) -> None:
    compared = fed(judged("a"), replace(judged("b", 31.0), noise=1e-5))
    found = json.loads(compared.to_json(tmp_path / "x.json").read_text())
    assert (found["conclusion"], found["baseline"], found["fed"]) == (
        "bug: b, excess 31",
        "cpu-bf16",
        True,
    )
    assert found["culprits"] == [
        {
            "place": "b", "row": 2, "name": "b", "call": 0, "stage": "forward",
            "site": "module", "before": "", "reason": "introduced", "excess": 31.0,
            "over_limit": 31.0 / MOST, "limit": MOST, "jump": None, "seen": 1,
            "words": ["the sign is flipped"], "hints": [HINT], "configured": [],
        }
    ]  # fmt: skip
    row = found["rows"][1]
    assert [row[name] for name in ("excess", "excess_limit", "baseline", "noise")] == [
        31.0,
        MOST,
        1e-3,
        1e-5,
    ]


def test_json_of_two_bundles_alone_has_the_same_keys(tmp_path: Path) -> None:
    kinds = [fed(judged("a")), comparison(pair("a"))]
    found = [json.loads(each.to_json(tmp_path / "x.json").read_text()) for each in kinds]
    assert found[0].keys() == found[1].keys()
    assert found[0]["rows"][0].keys() == found[1]["rows"][0].keys()
    assert (found[1]["baseline"], found[1]["fed"], found[1]["culprits"]) == (None, False, [])


# The file


def test_a_multiple_of_no_limit_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choices = [write(tmp_path / str(chosen), [item("pick", [chosen, 1, 2])]) for chosen in (0, 5)]
    assert (
        "x limit: the error as a multiple of its limit; blank for integers and booleans, of which"
        " none may differ" in one_line(printed(capsys, ac.diff(*choices)))
    )
    nan = [write(tmp_path / f"nan{value}", [item("fc", [value, 1.0])]) for value in (0.0, math.nan)]
    assert "its limit; inf: the limit is zero, or NaN or Inf is on one side only" in one_line(
        printed(capsys, ac.diff(*nan))
    )


def one_line(text: str) -> str:
    return " ".join(text.split())


# What an error looks like, and what it comes from


@pytest.mark.parametrize(
    ("factor", "of_loss", "words", "hint"),
    [
        (0.5, True, "0.5000 of golden's (spread 1e-07): ", "1/2; often: a mean over 2 "),
        (8.0, False, "8.0000 of golden's (spread 1e-07): ", "8; often: a sum over 8 "),
        (65536.0, None, "65536 of golden's (spread 1e-07): ", "often: a loss scale "),
        (-1.0, None, "-1.0000 of golden's (spread 1e-07): ", "often: the loss has the other sign"),
        (0.7315, None, "0.7315 of golden's (spread 1e-07): ", "often: clipping at another norm"),
    ],
)
def test_a_factor_of_all_gradients_is_said_with_its_cause(
    factor: float, of_loss: bool | None, words: str, hint: str
) -> None:
    row = judged("a", 31.0)
    found = culprit(row, scaled=ScaledGradients(factor, 1e-7, 3, 0, 0, row, of_loss))
    causes = "normalisation, reduction, clipping or loss scale, not rounding"
    begins = {
        True: "; the loss already gives them so",
        False: "; what the loss gives is right",
        None: "",
    }
    assert error_words(found) == (words + causes + begins[of_loss],)
    assert culprit_hints(found)[0].startswith(hint)


def test_rows_of_choices_that_differ_are_counted() -> None:
    found = culprit(judged("a"), shape=OtherChoices(off=1, rows=6, first=(4,)))
    assert error_words(found)[-1] == "in 1 of 6 rows, the first [4]"
