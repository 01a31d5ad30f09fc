"""``ac.log_to``: what is logged, where, and what is said where a library is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accucompare as ac
from accucompare.errors import ReportError, UsageError
from tests.compare.builder import item, write

NAMES = ("blocks.0", "odd[name]*", "")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> ac.Comparison:
    folder = tmp_path_factory.mktemp("logged")
    values = np.arange(1, 9, dtype=np.float32)
    golden = write(folder / "golden", [item(name, values) for name in NAMES])
    off = [item(name, values * (1 + (name == "blocks.0") * 0.5)) for name in NAMES]
    return ac.diff(golden, write(folder / "npu", off))


class Writer:
    """As a ``SummaryWriter``."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = str(log_dir)
        self.scalars: dict[tuple[str, Any], float] = {}
        self.texts: dict[str, str] = {}

    def add_scalar(self, name: str, value: float, step: int | None) -> None:
        self.scalars[name, step] = value

    def add_text(self, name: str, text: str, step: int | None) -> None:
        self.texts[name] = text

    def flush(self) -> None:
        pass


def test_a_writer_gets_scalars_texts_and_the_page(
    comparison: ac.Comparison, tmp_path: Path
) -> None:
    writer = Writer(tmp_path)
    ac.log_to(writer, comparison, step=3)
    assert writer.scalars["accucompare/passed", 3] == 0
    assert writer.scalars["accucompare/rows_failing", 3] == 1
    assert writer.scalars["accucompare/relative_l2/blocks.0", 3] == pytest.approx(0.5)
    assert ("accucompare/relative_l2/odd_name__", 3) in writer.scalars
    assert writer.texts["accucompare/culprit"] == "blocks.0"
    assert writer.texts["accucompare/conclusion"] == comparison.conclusion
    page = Path(writer.texts["accucompare/page"])
    assert page.read_text().startswith("<!doctype html>")
    assert comparison.reports == []


def test_a_target_that_is_none_is_refused(comparison: ac.Comparison) -> None:
    for target in ("tensorbored", 3, None):
        with pytest.raises(UsageError, match="wandb, tensorboard or mlflow"):
            ac.log_to(target, comparison)


@pytest.mark.parametrize("library", ["wandb", "mlflow"])
def test_a_missing_library_is_said_with_the_cure(
    library: str, comparison: ac.Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ReportError, match=f"{library} is not installed.*pip install {library}"):
        ac.log_to(library, comparison)
    monkeypatch.delitem(sys.modules, library)
    (tmp_path / library).mkdir()  # of offline runs: Python takes it for a package
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ReportError, match=f"{library} is not installed"):
        ac.log_to(library, comparison)
    sys.modules.pop(library, None)
