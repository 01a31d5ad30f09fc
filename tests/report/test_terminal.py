"""What the commands print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import accucompare as ac
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
