"""What the commands print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import accucompare as ac
from accucompare.report.excel_summary import meaning
from accucompare.report.terminal import print_comparison
from tests.compare.builder import item, write


@pytest.mark.parametrize(
    ("steps", "ranks", "place"),
    [(1, 1, "fc output"), (2, 1, "fc output (step 1)"), (1, 2, "fc output (rank 1)"), (2, 2, "fc output (step 1, rank 1)")],
)
def test_verdict_and_json_say_in_which_step_and_rank_of_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int, ranks: int, place: str
) -> None:
    sides = [[item("fc", [1.0], step=step, rank=rank) for rank in range(ranks) for step in range(steps)] for _ in range(2)]
    sides[1][-1] = item("fc", [2.0], step=steps - 1, rank=ranks - 1)
    golden, candidate = (write(tmp_path / name, items, ranks=ranks) for name, items in zip(("golden", "npu"), sides, strict=True))
    comparison = ac.diff(golden, candidate)
    print_comparison(comparison, Path("x.xlsx"), quiet=True)
    assert capsys.readouterr().out.endswith(f" rows fail; first divergence: {place}\n")
    assert json.loads(comparison.to_json(tmp_path / "x.json").read_text())["first_divergence"] == place


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: list[list[float]], candidate: list[list[float]], rows: int
) -> None:
    paths = [
        write(tmp_path / name, [item(f"fc{number}", value) for number, value in enumerate(values)])
        for name, values in (("golden", golden), ("npu", candidate))
    ]
    comparison = ac.diff(*paths)
    assert comparison.nonfinite_on_both == rows
    print_comparison(comparison, Path("x.xlsx"), quiet=False)
    told = {0: "", 1: "1 row holds NaN or Inf on both sides\n", 2: "2 rows hold NaN or Inf on both sides\n"}[rows]
    assert told in capsys.readouterr().out
    assert json.loads(comparison.to_json(tmp_path / "x.json").read_text())["nonfinite_on_both"] == rows
    assert (f"{rows} hold" in meaning(comparison)) == (rows > 0)


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: bool, complete: tuple[bool, bool], told: str, value: float
) -> None:
    golden = write(tmp_path / "golden", [item("fc", [1.0])], complete=complete[0])
    candidate = write(tmp_path / "npu", [item("fc", [value])], complete=complete[1])
    print_comparison(ac.diff(golden, candidate), Path("x.xlsx"), quiet=quiet)
    assert told in capsys.readouterr().out.splitlines()[0]
