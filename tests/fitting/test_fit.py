"""``accucompare fit`` on real models: a run proves what is kept, and the code does the same."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import openpyxl
import pytest
import torch
from openpyxl.chart import ScatterChart
from torch import nn

import accucompare as ac
from accucompare.compare.fits import FitAnswer
from accucompare.devices import DeviceName
from accucompare.errors import CaptureError, UsageError
from accucompare.fitting import keep_in_float32
from accucompare.fitting.sensitivities import CountingMode
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session import capture_case
from accucompare.report.words import fit_words
from planted.faults_models import build
from tests.conftest import Run

CASES = """
import torch
from torch import nn
from accucompare import Case
from planted.faults_models import build

def bert(): return Case(*build("bert"))
def t5(): return Case(*build("t5"))
def convnext(): return Case(*build("convnext"))

def other_eps():
    made = bert()
    for module in made.model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-2
    return made

class Odd(nn.Module):
    '''Called twice, by keywords, in place, with a tied weight and a nested result.'''
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.block = nn.Sequential(nn.Linear(16, 64), nn.ReLU(inplace=True), nn.Linear(64, 16))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight
    def forward(self, *, ids, scale):
        x = self.embed(ids)
        for _ in range(2):
            x = x + self.block(self.norm(x))
        x *= scale
        return {"logits": (self.head(x),), "last": [x]}
def training():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(7)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    return Case(model, torch.randn(8, 16), lambda y: (y - 1).square().mean(), optimizer)
def odd():
    torch.manual_seed(0)
    return Case(Odd().eval(), {"ids": torch.randint(32, (3, 7)), "scale": torch.rand(3, 7, 1)})

class Overflows(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.wide, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        nn.init.constant_(self.wide.weight, 2e4)
    def forward(self, x):
        return self.last(self.wide(self.first(x).abs() + 1) * 1e-5)
def overflows():
    torch.manual_seed(0)
    return Case(Overflows().eval(), torch.randn(4, 8))

class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(7)))
    def forward(self, x):
        return self.layers(x).detach()
def detached():
    torch.manual_seed(0)
    return Case(Detached().eval(), torch.randn(4, 16))

class ForInference(nn.Module):
    '''Overwrites what a backward needs; masks its output; has a parameter of integers.'''
    def __init__(self, through_numpy):
        super().__init__()
        self.through_numpy = through_numpy
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 24)
        self.order = nn.Parameter(torch.arange(24), requires_grad=False)
    def forward(self, x):
        x = self.first(x).sigmoid_().add_(1)
        if self.through_numpy:
            x = torch.from_numpy(x.float().numpy().copy()).to(x.dtype)
        return self.last(x).masked_fill(self.order > 20, float("-inf"))
def in_place():
    torch.manual_seed(0)
    return Case(ForInference(False).eval(), torch.randn(4, 16))
def through_numpy():
    torch.manual_seed(0)
    return Case(ForInference(True).eval(), torch.randn(4, 16))

class Forces(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 32), nn.Linear(32, 1)
    def forward(self, x):
        x = x.detach().requires_grad_()
        energy = self.last(self.first(x).tanh()).sum()
        return -torch.autograd.grad(energy, x, create_graph=True)[0]
def forces():
    torch.manual_seed(0)
    return Case(Forces().eval(), torch.randn(6, 3))

class Narrow(nn.Linear):
    def forward(self, x):
        return super().forward(x.to(torch.float32))
def narrow(): return Case(nn.Sequential(Narrow(4, 4)), torch.ones(2, 4))
"""
CPU = DeviceName.parse("cpu")


class Cases:
    """Cases with a golden each, which is captured once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "fit_cases.py"
        self.file.write_text(CASES)
        self.count = 0

    def golden(self, name: str) -> Path:
        out = self.folder / name
        if not out.exists():
            capture_case(f"{self.file}:{name}", out, CPU, CaptureOptions())
        return out

    def fit(self, name: str, golden: str = "", **asked: Any) -> ac.FitResult:
        self.count += 1
        given = {"dtype": "bfloat16", "out": self.folder / f"fit{self.count}", **asked}
        return ac.fit(f"{self.file}:{name}", self.golden(golden or name), **given)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(tmp_path_factory.mktemp("fit"))


@pytest.fixture(scope="module")
def bert(cases: Cases) -> ac.FitResult:
    return cases.fit("bert", rel_l2=6e-3)


def code_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outputs_of(model: nn.Module, inputs: Any) -> list[torch.Tensor]:
    with torch.no_grad():
        made = model(**inputs)
    return [value.double() for value in made.values() if value is not None]


def error(golden: list[torch.Tensor], found: list[torch.Tensor]) -> float:
    pairs = zip(golden, found, strict=True)
    return max(float((other - one).norm() / one.norm()) for one, other in pairs)


def test_few_places_are_kept_and_a_run_proves_it(bert: ac.FitResult) -> None:
    assert (bert.answer, bert.exit_code) == (FitAnswer.FITS, 0)
    assert bert.proof.error <= 6e-3 < bert.least.error
    assert 0 < bert.proof.flops < 0.4
    assert bert.proof in bert.runs
    assert len(bert.runs) <= 12


def test_the_estimate_is_near_what_the_runs_show(bert: ac.FitResult) -> None:
    told = [run for run in bert.runs if run.expected is not None]
    assert told
    assert all(run.error / 2 < run.expected < run.error * 2 for run in told)
    assert sum(place.share for place in bert.places) == pytest.approx(1)


def test_the_code_to_paste_gets_the_shown_error(bert: ac.FitResult, tmp_path: Path) -> None:
    model, inputs = build("bert")
    golden = outputs_of(model, inputs)
    pasted = code_of(bert.to_python(tmp_path / "kept.py"))
    assert error(golden, outputs_of(pasted.fitted(model), inputs)) == pytest.approx(
        bert.proof.error, rel=1e-6
    )


def test_transformers_loads_the_same_in_the_lower_type(
    bert: ac.FitResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = build("bert")
    golden = outputs_of(model, inputs)
    model.save_pretrained(tmp_path / "saved")
    pasted = code_of(bert.to_python(tmp_path / "kept.py"))
    kind = type(model)
    monkeypatch.setattr(
        kind, "_keep_in_fp32_modules_strict", pasted.KEEP_IN_FP32_MODULES, raising=False
    )
    loaded = kind.from_pretrained(
        tmp_path / "saved", dtype=torch.bfloat16, attn_implementation="sdpa"
    ).eval()
    assert error(golden, outputs_of(pasted.fitted(loaded), inputs)) == pytest.approx(
        bert.proof.error, rel=1e-6
    )


@pytest.mark.parametrize(
    ("name", "dtype", "rel_l2"),
    [("t5", "float16", 3e-3), ("convnext", "bfloat16", 6e-3), ("odd", "bfloat16", 3e-3)],
)
def test_models_of_all_sorts_are_fitted(
    name: str, dtype: str, rel_l2: float, cases: Cases, tmp_path: Path
) -> None:
    found = cases.fit(name, dtype=dtype, rel_l2=rel_l2)
    assert found.answer is FitAnswer.FITS
    assert found.proof.error <= rel_l2 < found.least.error
    assert [run.failed for run in found.runs if run.failed] == []


def test_a_layer_that_overflows_is_kept(cases: Cases) -> None:
    found = cases.fit("overflows", dtype="float16", rel_l2=1e-2)
    assert found.answer is FitAnswer.FITS
    assert found.least.error == float("inf")
    assert "wide" in found.kept.whole
    assert found.proof.flops < 1


def test_without_gradients_each_block_is_run_alone(cases: Cases) -> None:
    found = cases.fit("detached", rel_l2=2e-3)
    assert (found.answer, found.backwards) == (FitAnswer.FITS, 0)
    assert found.proof.error <= 2e-3


@pytest.mark.parametrize("name", ["in_place", "through_numpy"])
def test_code_that_is_for_inference_is_run_block_by_block(name: str, cases: Cases) -> None:
    found = cases.fit(name, rel_l2=1e-3)
    assert (found.answer, found.backwards) == (FitAnswer.FITS, 0)
    assert found.proof.error <= 1e-3 < found.least.error < 1e-2  # its infinities are golden's


def test_a_forward_that_asks_for_gradients_itself_has_them(cases: Cases) -> None:
    found = cases.fit("forces", rel_l2=2e-3)
    assert (found.answer, found.exit_code) == (FitAnswer.FITS, 0)
    assert found.proof.error <= 2e-3


def test_weights_that_are_shared_are_kept_and_counted_together(cases: Cases) -> None:
    options = ac.FitOptions(by="bytes")
    found = cases.fit("odd", budget=0.1, options=options)  # the tied weight is 20 % of all
    assert found.proof.bytes <= 0.1
    assert not {"embed", "head"} & {*found.kept.whole, *found.kept.own}


def test_the_best_for_a_budget_that_overflows_is_no_success(cases: Cases) -> None:
    found = cases.fit("overflows", dtype="float16", budget=1e-4)
    assert (found.answer, found.exit_code) == (FitAnswer.UNREACHABLE, 1)
    assert "with 0.01% of the operations in float32" in fit_words.fit_headline(found)
    assert "a larger share" in fit_words.fit_hint(found)


def test_a_case_that_does_not_run_in_the_type_names_no_folder_that_is_gone(cases: Cases) -> None:
    with pytest.raises(CaptureError, match="the model raised in 0") as raised:
        cases.fit("narrow", rel_l2=1e-3)
    assert "What was recorded" not in str(raised.value)


def test_a_view_is_no_operation() -> None:
    with CountingMode() as counting:
        torch.ones(3, 4).view(4, 3).transpose(0, 1).add(1)
    assert counting.counts == {"": 24}  # the ones, and the sum


def test_a_tolerance_that_is_met_needs_nothing(cases: Cases) -> None:
    found = cases.fit("bert", rel_l2=0.5)
    assert (found.answer, found.exit_code) == (FitAnswer.NOTHING_TO_KEEP, 0)
    assert (len(found.runs), len(found.kept)) == (1, 0)


def test_what_nothing_reaches_says_the_best_that_can_be_had(cases: Cases) -> None:
    found = cases.fit("other_eps", golden="bert", rel_l2=1e-3)
    assert (found.answer, found.exit_code) == (FitAnswer.UNREACHABLE, 1)
    assert found.proof.error == found.runs[1].error > 1e-3


def test_a_budget_gives_the_best_for_it(cases: Cases) -> None:
    small, large = (cases.fit("bert", budget=budget) for budget in (0.02, 0.5))
    assert small.answer is FitAnswer.BEST_FOR_BUDGET
    assert small.proof.flops <= 0.02 < large.proof.flops <= 0.5
    assert small.least.error > small.proof.error > large.proof.error


def test_one_output_alone_may_be_asked_for(cases: Cases) -> None:
    found = cases.fit("bert", rel_l2=6e-3, options=ac.FitOptions(on="encoder.layer.0.intermediate"))
    assert [output.name for output in found.outputs] == ["encoder.layer.0.intermediate"]
    assert not any("layer.1" in name or "layer.2" in name for name in found.kept.whole)


def test_of_a_training_the_gradients_of_its_update_are_judged(cases: Cases) -> None:
    found = cases.fit("training", rel_l2=1.5e-3, options=ac.FitOptions(on="update"))
    assert (found.answer, found.outputs[0].label) == (FitAnswer.FITS, "update")
    assert found.proof.error <= 1.5e-3 < found.least.error
    assert 0 < found.proof.flops < 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"rel_l2": 1e-3, "options": ac.FitOptions(on="logits")},
            "it has last_hidden_state, pooler",
        ),
        ({"rel_l2": 1e-3, "options": ac.FitOptions(on="update")}, "a golden of a training"),
        ({}, "say what is asked"),
        ({"rel_l2": 1e-3, "budget": 0.1}, "say what is asked"),
        ({"budget": 10.0}, "a share over 0"),
        ({"rel_l2": -1.0}, "over 0"),
        ({"rel_l2": 1e-3, "dtype": "float64"}, "dtype must be one of"),
        ({"budget": 0.1, "dtype": "float32"}, "give --rel-l2"),
        ({"rel_l2": 1e-3, "golden": "t5"}, "another model|other weights|weights"),
    ],
)
def test_bad_requests_say_what_to_do(asked: dict[str, Any], message: str, cases: Cases) -> None:
    with pytest.raises(UsageError, match=message):
        cases.fit("bert", **asked)


def test_a_kept_module_casts_at_its_doors() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    seen = {}
    for name, module in model.named_modules():
        module.register_forward_hook(
            lambda module, given, output, name=name: seen.update({name: output.dtype})
        )
    keep_in_float32(model, torch.bfloat16, ("1",))
    assert model[1].weight.dtype == torch.float32
    assert model(torch.ones(2, 4)).dtype == torch.bfloat16
    assert seen == dict.fromkeys(("", "0", "1", "2"), torch.bfloat16)
    again = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert keep_in_float32(again, torch.bfloat16, ("1",), ("",))(torch.ones(2, 4)).dtype == (
        torch.float32
    )


def test_under_autocast_it_is_off_in_kept_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    keep_in_float32(model, torch.bfloat16, ("1",), autocast="cpu")
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.ones(2, 4)).dtype == torch.float32
        assert model[0](torch.ones(2, 4)).dtype == torch.bfloat16
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_the_command_writes_code_and_reports(cli: Run, cases: Cases, tmp_path: Path) -> None:
    golden = cases.golden("odd")
    case = f"{cases.file}:odd"
    half = "--dtype", "bfloat16", "--rel-l2", "3e-3"
    done = cli("fit", case, "--golden", golden, *half, "--report", "fit.xlsx", "--json", "fit.json")
    assert done.returncode == 0, done.stderr
    assert "the proof" in done.stdout
    written = json.loads((tmp_path / "fit.json").read_text())
    assert written["answer"] == "fits"
    assert written["proof"]["error"] <= 3e-3
    assert "def fitted" in (tmp_path / "fit" / "keep_in_float32.py").read_text()
    book = openpyxl.load_workbook(tmp_path / "fit.xlsx")
    assert book.sheetnames == ["Fit", "Curve", "Blocks", "Code"]
    (curve,) = book["Curve"]._charts
    assert isinstance(curve, ScatterChart)  # shares lie to scale
    assert len(curve.series) == 3
    assert [path.name for path in (tmp_path / "fit").iterdir()] == ["keep_in_float32.py"]
    (tmp_path / "file").touch()
    refused = cli("fit", case, "--golden", golden, *half, "--out", "file/x", "--code", "k.py")
    assert (refused.returncode, "file/x: cannot be written" in refused.stderr) == (2, True)
    unknown = cli("fit", case, "--golden", golden, "--dtype", "bfloat16", "--budget", "much")
    assert (unknown.returncode, "write 10%" in unknown.stderr) == (2, True)
