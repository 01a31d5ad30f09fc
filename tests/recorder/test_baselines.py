"""The baselines that golden brings along, and modules that do not run in float64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accucompare as ac
from accucompare.bundle.format.records import Record
from accucompare.bundle.reading.reader import open_bundle
from accucompare.compare.limits.golden_baselines import parse_precisions
from accucompare.compare.rows.rows import Reason
from accucompare.devices import DeviceName
from accucompare.errors import CaptureError, UsageError
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session.baselines import capture_baselines
from accucompare.recorder.session.case_capture import capture_case
from accucompare.report.words import limit_words
from accucompare.selection import FloatType
from tests.compare.builder import edit_manifest

CASE = """
import torch
from torch import nn
from accucompare import Case

class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, x):
        if x.dtype == torch.float64:
            raise RuntimeError("no kernel for Double")
        return self.fc(x).relu()

def case():
    return Case(
        nn.Sequential(
            nn.Linear(16, 16), nn.LayerNorm(16), Picky(), nn.Linear(16, 16), Picky()
        ).eval(),
        torch.randn(4, 16),
    )

def plain():
    return Case(nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)).eval(), torch.randn(4, 16))

def training():
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)).eval()
    return Case(
        model, [torch.randn(4, 16)] * 3, loss=torch.sum, optimizer=Descent(model.parameters(), 0.1)
    )

class Descent(torch.optim.SGD):
    pass

class Decay(torch.optim.SGD):
    def __init__(self, parameters, once, factor):
        super().__init__(parameters, 1e-3)
        self.once, self.factor = once, factor

    @torch.no_grad()
    def step(self):
        for each in self.param_groups[0]["params"]:
            if self.once:
                each.copy_(each.double() * self.factor - 1e-3 * each.grad.double())
            else:
                each.mul_(self.factor).add_(each.grad, alpha=-1e-3)

def decay(once=False, factor=0.999):
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16))
    optimizer = Decay(model.parameters(), once, factor)
    return Case(model, torch.randn(8, 16), loss=torch.sum, optimizer=optimizer)

def rounded_once():
    return decay(True)

def too_slow():
    return decay(True, 0.99901)
"""
CPU = DeviceName("cpu")


@pytest.fixture
def golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Captures a case as golden, and another time fed with it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(CASE)

    def capture(
        name: str, out: str = "golden", dtype: FloatType | None = None, **options: Any
    ) -> Path:
        return capture_case(f"model.py:{name}", out, CPU, CaptureOptions(**options), dtype=dtype)

    return capture


def test_a_brought_baseline_keeps_each_records_distance_from_golden(golden: Any) -> None:
    path = golden("plain", save_state=True)
    (kept,) = capture_baselines("model.py:plain", path, CPU, ["bfloat16"])
    tensors = golden("plain", "tensors", feed=path, like=path, dtype=FloatType.BFLOAT16)
    with open_bundle(path) as ours, open_bundle(tensors) as theirs, open_bundle(kept) as errors:
        found: dict[Any, Record] = {record.key: record for record in errors.records()}
        assert len(found) == sum(1 for _ in theirs.records()) > 5
        trusted = {record.key: record for record in ours.records()}
        for record in theirs.records():
            sides = (ours, trusted[record.key]), (theirs, record)
            golden_values, values = (
                bundle.values(each).astype(np.float64) for bundle, each in sides
            )
            error = found[record.key].error
            assert error is not None
            expected = math.sqrt(math.fsum(((values - golden_values) ** 2).flat)) / math.sqrt(
                math.fsum((golden_values**2).flat)
            )
            assert error.rel_l2 == pytest.approx(expected, rel=1e-9)
            assert found[record.key].member is None


def test_a_brought_baseline_judges_as_the_tensors_would(golden: Any) -> None:
    path = golden("plain", save_state=True)
    capture_baselines("model.py:plain", path, CPU, ["bfloat16"])
    candidate = golden("plain", "candidate", feed=path, like=path, dtype=FloatType.BFLOAT16)
    tensors = golden("plain", "tensors", feed=path, like=path, dtype=FloatType.BFLOAT16)
    brought, given = ac.diff(path, candidate), ac.diff(path, candidate, baseline=tensors)
    assert brought.baseline is not None
    assert brought.baseline.path == path / "baselines" / "bfloat16"
    assert [row.verdict for row in brought.rows] == [row.verdict for row in given.rows]
    assert brought.conclusion == "rounding"


def test_a_baseline_of_another_precision_is_not_taken(golden: Any) -> None:
    path = golden("plain", save_state=True)
    capture_baselines("model.py:plain", path, CPU, ["bfloat16"])
    candidate = golden("plain", "candidate", feed=path, like=path, dtype=FloatType.FLOAT16)
    assert ac.diff(path, candidate).baseline is None


def test_overwriting_golden_removes_the_baselines_that_it_brought(golden: Any) -> None:
    path = golden("plain", save_state=True)
    capture_baselines("model.py:plain", path, CPU, ["float32"])
    golden("plain", overwrite=True)
    assert not (path / "baselines").exists()


def test_modules_that_do_not_run_in_float64_run_in_float32_and_are_not_judged_by_it(
    golden: Any,
) -> None:
    path = golden("case", save_state=True)
    baseline = golden("case", "baseline", feed=path, like=path, dtype=FloatType.FLOAT64)
    with open_bundle(baseline) as bundle:
        assert bundle.manifest.capture["fallback"] == {"dtype": "float32", "modules": ["2", "4"]}
        assert "2 module(s) do not run in float64 and ran in float32: 2, 4" in bundle.manifest.notes
    candidate = golden("case", "candidate", feed=path, like=path)
    comparison = ac.diff(path, candidate, baseline=baseline)
    judged = {
        row.place for row in comparison.rows if limit_words.rule(row.verdict.limit) == "baseline"
    }
    assert {"0 output", "1 output", "2 input.0", "3 output"} <= judged
    assert not judged & {"2 output", "2.fc input.0", "2.fc output", "4 output"}
    rules = {row.place: limit_words.rule(row.verdict.limit) for row in comparison.rows}
    assert rules["2 output"] == "fed; the baseline has no such record"
    assert comparison.answer.value == "identical"


def test_a_module_that_runs_in_neither_type_is_the_error_that_it_was(
    golden: Any, tmp_path: Path
) -> None:
    path = golden("case", save_state=True)
    (tmp_path / "model.py").write_text(
        CASE.replace("x.dtype == torch.float64", "torch.is_grad_enabled() is False")
    )
    with pytest.raises(
        CaptureError, match="the model raised in 2, step 0: RuntimeError: no kernel for Double"
    ):
        golden("case", "baseline", feed=path, like=path, dtype=FloatType.FLOAT64, force=True)


def test_steps_that_a_fed_capture_does_not_run_are_told_and_are_no_failure(golden: Any) -> None:
    path = golden("training", save_state=True, backward=False)
    comparison = ac.diff(path, golden("training", "fed", feed=path, like=path))
    assert comparison.passed
    assert Reason.MISSING not in comparison.counts()
    words = comparison.conclusion.split("; ")
    assert words[:3] == [
        "identical in what was compared",
        "forward only: the case has a loss, but no gradient was compared",
        "1 of 3 steps",
    ]


def test_an_optimizer_whose_code_differs_is_no_pass_where_no_update_was_compared(
    golden: Any,
) -> None:
    path = golden("training", save_state=True, backward=False)
    fed = golden("training", "fed", feed=path, like=path)
    assert str(ac.open_bundle(fed).manifest.options.optimizer).endswith(".Descent")
    edit_manifest(fed, lambda manifest: manifest["model"]["sources"].update(model="0" * 32))
    comparison = ac.diff(path, fed)
    assert not comparison.passed
    assert (
        comparison.conclusion
        == "not sure: what was compared agrees, but the optimizer's code differs (model differs"
        " from golden's), and no update was compared"
    )


@pytest.mark.parametrize("text", ["", "float32,float31", "model.py"])
def test_a_precision_that_is_none_is_an_error_that_names_them(text: str) -> None:
    with pytest.raises(
        UsageError,
        match="must be of float64, float32, bfloat16, float16, hf32, tf32, separated by commas",
    ):
        parse_precisions(text)


def test_precisions_are_read_once_each() -> None:
    assert parse_precisions("float32, bfloat16,float32") == ("float32", "bfloat16")


@pytest.mark.parametrize("tensors", [False, True])
def test_a_baseline_that_fails_leaves_golden_complete_and_says_so(
    golden: Any, tmp_path: Path, tensors: bool
) -> None:
    (tmp_path / "picky.py").write_text(
        CASE.replace("torch.float64", "torch.bfloat16").replace("Double", "BFloat16")
    )
    path = capture_case("picky.py", tmp_path / "picky", CPU)
    with pytest.raises(CaptureError) as caught:
        capture_baselines("picky.py", path, CPU, ("bfloat16",), tensors=tensors)
    first, second = str(caught.value).splitlines()
    assert (
        first
        == "baseline for bfloat16: picky.py: the model raised in 2, step 0: RuntimeError: no kernel"
        " for BFloat16"
    )
    assert (
        second
        == f"{path} is complete, without this baseline; leave bfloat16 out of --with-baseline, or"
        " see --debug"
    )
    with open_bundle(path) as bundle:
        assert bundle.complete
    assert not [file for file in (tmp_path / "picky" / "baselines").rglob("*") if file.is_file()]


def test_beside_products_in_fewer_bits_float32s_own_rounding_counts(golden: Any) -> None:
    """An update that is rounded otherwise is none of the products' errors, and no bug."""
    golden("decay")
    capture_baselines("model.py:decay", "golden", CPU, ["tf32"])
    how = {"feed": "golden", "emulate": "tf32"}
    answers = [
        ac.diff("golden", golden(case, case, **how)).answer.value
        for case in ("rounded_once", "too_slow")
    ]
    assert answers == ["rounding", "bug"]
