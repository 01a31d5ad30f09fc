"""What the commands print."""

from __future__ import annotations

import json
from pathlib import Path

import openpyxl
import pytest
from openpyxl import load_workbook

import accucompare as ac
from accucompare.report.contents.summary_sheet import meaning
from accucompare.report.terminal.terminal import print_comparison
from tests.compare.builder import Item, item, write


@pytest.mark.parametrize(
    ("steps", "ranks", "place"),
    [
        (1, 1, "fc output"),
        (2, 1, "fc output (step 1)"),
        (1, 2, "fc output (rank 1)"),
        (2, 2, "fc output (step 1, rank 1)"),
    ],
)
def test_verdict_and_json_say_in_which_step_and_rank_of_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int, ranks: int, place: str
) -> None:
    sides = [
        [item("fc", [1.0], step=step, rank=rank) for rank in range(ranks) for step in range(steps)]
        for _ in range(2)
    ]
    sides[1][-1] = item("fc", [2.0], step=steps - 1, rank=ranks - 1)
    golden, candidate = (
        write(tmp_path / name, items, ranks=ranks)
        for name, items in zip(("golden", "npu"), sides, strict=True)
    )
    comparison = ac.diff(golden, candidate)
    print_comparison(comparison, [Path("x.xlsx")], quiet=True)
    named = place.replace(" output", f" in step {steps - 1}" if steps > 1 else "").partition(" (")[
        0
    ]
    verdict = capsys.readouterr().out
    assert f"{named}, x limit" in verdict
    assert verdict.endswith(" rows fail\n")
    assert (
        json.loads(comparison.to_json(tmp_path / "x.json").read_text())["first_divergence"] == place
    )


def write_both(tmp_path: Path, golden: list[Item], candidate: list[Item]) -> ac.Comparison:
    return ac.diff(
        *(write(tmp_path / name, items) for name, items in (("golden", golden), ("npu", candidate)))
    )


X = item("", [1.0, 2.0], role="input", parent=None)
A, B = item("a", [1.0, 3.0]), item("b", [1.0, 4.0])
Y = item("", [1.0], parent=None)
SPARSE = item("s", layout="sparse")
NAN = "golden has 0 NaN, the candidate 1; the first at [1]; begins here"


@pytest.mark.parametrize(
    ("golden", "candidate", "told"),
    [
        ([X, A, B], [X, A, item("b", [1.0, 4.0 + 1e-9])], "b output: relative L2 2.43e-10"),
        ([X, A, B], [X, A, item("b", [1.0, 40.0])], "b output: relative L2 8.73e+00"),
        (
            [X, A, B],
            [X, A, item("b", [[1.0, 4.0]])],
            "b output: golden is [2], the candidate [1, 2], compared element by element in a row",
        ),
        (
            [X, A, item("b", [0.0])],
            [X, A, item("b", [-0.0])],
            "b output: other bits of equal value",
        ),
        (
            [X, A, item("b", [1, 2, 3])],
            [X, A, item("b", [1, 2, 4])],
            "b output: 1 of 3 values different",
        ),
        ([X, A, B], [X, A, item("b", [1.0, float("nan")])], f"b output: {NAN}"),
        (
            [X, SPARSE, A, B],
            [X, SPARSE, A, item("b", [1.0, 5.0])],
            "b output: relative L2 2.43e-01",
        ),
        ([X, A, B], [X, A], ""),  # one side only is no other bits
        ([X, A, B], [X, A, B], ""),
        ([X, A, B], [X, item("a", [1.0, 3.5]), B], ""),  # nothing that was computed comes before it
        ([A, B], [item("a", [1.0, 3.5]), B], ""),
    ],
)
def test_it_is_said_how_far_two_captures_are_bit_for_bit_identical(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    golden: list[Item],
    candidate: list[Item],
    told: str,
) -> None:
    comparison = write_both(tmp_path, golden, candidate)
    print_comparison(comparison, [Path("x.xlsx")], quiet=False)
    lines = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("bit for bit identical")
    ]
    assert lines == ([f"bit for bit identical until {told}"] if told else [])
    place = json.loads(comparison.to_json(tmp_path / "x.json").read_text())["identical_until"]
    assert place == (told.partition(":")[0] or None)
    cells = [
        cell
        for line in load_workbook(comparison.to_excel(tmp_path / "x.xlsx"))["Summary"]
        for cell in line
    ]
    assert [
        cell.value for cell in cells if str(cell.value).startswith("bit for bit identical until")
    ] == lines


def test_the_first_row_with_other_bits_is_told_though_it_is_within_tolerance(
    tmp_path: Path,
) -> None:
    comparison = write_both(tmp_path, [X, A, B, Y], [X, A, item("b", [1.0, 4.0 + 1e-15]), Y])
    assert comparison.passed
    assert comparison.identical_until == comparison.rows[2]


def test_of_a_fed_comparison_no_row_is_the_first_with_other_bits(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", [X, A, B])
    with ac.open_bundle(golden) as bundle:
        feed = {"golden": str(golden), "identity": bundle.identity(), "not_fed": []}
    candidate = write(tmp_path / "npu", [X, A, item("b", [1.0, 40.0])], capture={"feed": feed})
    comparison = ac.diff(golden, candidate)
    assert comparison.fed
    assert comparison.identical_until is None


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("golden", "candidate", "rows"),
    [
        ([[1.0], [NAN]], [[1.0], [NAN]], 1),
        ([[1.0, INF], [NAN]], [[1.0, INF], [NAN]], 2),
        ([[1.0, INF], [1.0]], [[INF, 1.0], [1.0]], 1),
        ([[NAN], [1.0]], [[1.0], [NAN]], 0),
        ([[1.0], [2.0]], [[1.0], [2.0]], 0),
    ],
)
def test_values_that_are_not_finite_on_both_sides_are_counted_and_told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    golden: list[list[float]],
    candidate: list[list[float]],
    rows: int,
) -> None:
    paths = [
        write(tmp_path / name, [item(f"fc{number}", value) for number, value in enumerate(values)])
        for name, values in (("golden", golden), ("npu", candidate))
    ]
    comparison = ac.diff(*paths)
    assert comparison.nonfinite_on_both == rows
    print_comparison(comparison, [Path("x.xlsx")], quiet=False)
    told = {
        0: "",
        1: "1 row holds NaN or Inf on both sides\n",
        2: "2 rows hold NaN or Inf on both sides\n",
    }[rows]
    assert told in capsys.readouterr().out
    assert (
        json.loads(comparison.to_json(tmp_path / "x.json").read_text())["nonfinite_on_both"] == rows
    )
    assert (f"{rows} hold" in meaning(comparison)) == (rows > 0)


@pytest.mark.parametrize("atol", [None, 1e-3])
def test_the_verdict_line_of_a_pass_says_where_nan_stands_on_both_sides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], atol: float | None
) -> None:
    paths = [
        write(
            tmp_path / name, [item("a", [1.0 + off]), item("b", [NAN, 2.0 + off]), item("c", [INF])]
        )
        for name, off in (("golden", 0.0), ("npu", 0.0 if atol is None else 1e-4))
    ]
    comparison = ac.diff(*paths, atol=atol)
    assert (comparison.passed, comparison.exit_code) == (True, 0)
    said = "NaN on both sides in 1 row, first in b output"
    print_comparison(comparison, [], quiet=True)
    assert said in capsys.readouterr().out
    assert said in json.loads(comparison.to_json(tmp_path / "x.json").read_text())["conclusion"]
    assert said in comparison.to_html(tmp_path / "x.html").read_text()
    sheet = openpyxl.load_workbook(comparison.to_excel(tmp_path / "x.xlsx"))["Summary"]
    assert any(said in str(cell.value) for row in sheet.iter_rows() for cell in row)


@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize(
    ("complete", "told"),
    [
        ((True, False), "the capture of the candidate did not run to its end"),
        ((False, True), "the capture of golden did not run to its end"),
        ((False, False), "the capture of golden and of the candidate did not run to its end"),
    ],
)
@pytest.mark.parametrize("value", [1.0, 2.0])
def test_an_incomplete_side_is_told_whatever_the_verdict(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    quiet: bool,
    complete: tuple[bool, bool],
    told: str,
    value: float,
) -> None:
    golden = write(tmp_path / "golden", [item("fc", [1.0])], complete=complete[0])
    candidate = write(tmp_path / "npu", [item("fc", [value])], complete=complete[1])
    print_comparison(ac.diff(golden, candidate), [Path("x.xlsx")], quiet=quiet)
    assert told in capsys.readouterr().out.splitlines()[0]
