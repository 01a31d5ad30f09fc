"""A third bundle: which is nearer to golden. It judges nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import accucompare as ac
from accucompare.errors import UsageError
from tests.compare.builder import Item, item, write

VALUES = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
NOISE = np.random.default_rng(1).normal(size=VALUES.shape)


def items(*errors: float) -> list[Item]:
    """Layers with these errors, in order; then the model's output, which has none."""
    made = [item(f"fc{at}", (VALUES * (1 + error * NOISE)).astype("f4")) for at, error in
            enumerate(errors)]  # fmt: skip
    return [*made, item("", VALUES, parent=None)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three")
    write(folder / "golden", items(0, 0, 0))
    write(folder / "npu", items(1e-3, 1e-3, 1e-3))
    write(folder / "gpu", items(2e-3, 4e-3, 1e-4))
    nan = VALUES.copy()
    nan[0, 0] = np.nan
    write(folder / "broken", [*items(0, 0)[:2], item("fc2", nan), item("", VALUES, parent=None)])
    return folder


def beside(folder: Path, reference: str, candidate: str = "npu") -> ac.Comparison:
    limits = ac.Tolerance(rel_l2=1e-2)
    golden, other = folder / "golden", folder / reference
    return ac.diff(golden, folder / candidate, reference=other, limits=limits)


def test_the_answer_says_which_is_nearer_and_the_verdict_stays(folder: Path) -> None:
    found = beside(folder, "gpu").beside_reference
    assert found is not None
    assert (found.nearer, found.further, found.alike) == (2, 1, 1)
    assert found.median == pytest.approx(0.5, rel=1e-2)
    assert found.worst is not None
    assert found.worst[0].module == "fc2"
    comparison = beside(folder, "gpu")
    alone = ac.diff(folder / "golden", folder / "npu", limits=ac.Tolerance(rel_l2=1e-2))
    assert comparison.conclusion == (
        f"{alone.conclusion}; the candidate is nearer to golden than the reference gpu: error"
        " smaller in 2 of 4 rows, x 0.5 in the median"
    )
    assert comparison.exit_code == alone.exit_code == 0


def test_a_candidate_that_is_further_is_called_further(folder: Path) -> None:
    assert "further from golden than the reference npu: error larger in 2 of 4 rows, x 2" in (
        beside(folder, "npu", "gpu").conclusion
    )
    assert "as near to golden as the reference npu" in beside(folder, "npu").conclusion


def test_a_reference_with_nan_is_infinitely_far(folder: Path) -> None:
    comparison = beside(folder, "broken")
    row = next(row for row in comparison.rows if row.module == "fc2")
    assert comparison.reference is not None
    assert comparison.reference.ratio(row) == 0


def test_every_report_has_the_errors_beside_each_other(folder: Path, tmp_path: Path) -> None:
    comparison = beside(folder, "gpu")
    table = comparison.to_dataframe()
    assert [*table["x reference"].round(2)] == [0.5, 0.25, 10.0, 1.0]
    told = json.loads(comparison.to_json(tmp_path / "x.json").read_text())
    errors = [row["reference"] for row in told["rows"]]
    assert errors == [*table["reference relative L2"]]
    assert told["reference"]["nearer"] == 2
    assert "x reference" not in ac.diff(folder / "golden", folder / "npu").to_dataframe()


def test_a_fed_reference_of_a_free_candidate_is_refused(folder: Path) -> None:
    with ac.open_bundle(folder / "golden") as opened:
        feed = {"golden": "golden", "identity": opened.identity(), "not_fed": []}
    write(folder / "fed", items(0, 0, 0), capture={"feed": feed})
    with pytest.raises(UsageError, match="capture both alike"):
        beside(folder, "fed")
