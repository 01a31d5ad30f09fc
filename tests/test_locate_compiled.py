"""``locate --compile`` and ``capture --compile``, with backends of these tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from openpyxl import load_workbook
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import _BACKENDS, _COMPILER_FNS
from torch._functorch._aot_autograd.utils import make_boxed_func

import accucompare as ac
from accucompare.api import Comparison
from accucompare.bundle.format import Role
from accucompare.bundle.reading import open_bundle
from accucompare.compare.decide import Answer
from accucompare.errors import UsageError
from accucompare.live.modules import name_modules
from accucompare.live.numerics import ModuleTree, OperatorTrial, kernel_of
from accucompare.scripts import captures
from accucompare.scripts.plan import Action, Plan
from planted.computed_lowerings import lowering_named
from planted.computed_models import computed_case
from tests.conftest import Run

# torch's compiler warns of what it meets on its way
pytestmark = pytest.mark.filterwarnings("default")

_MODELS = "planted.computed_models"
_HERE = "tests.test_locate_compiled"


class _Gated(nn.Module):
    """A layer that no compiler takes in: it reads a value, and that in a loop of its own code."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.act = nn.Linear(6, 6), nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.act(self.inner(x))
        return made


class _Model(nn.Module):
    def __init__(self, compiled: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        self.first, self.drop, self.second = _Gated(), nn.Dropout(drop), _Gated()
        self.norm = nn.BatchNorm1d(6)
        if compiled:
            self.second = torch.compile(self.second, backend="aot_eager")  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.norm(self.second(self.drop(self.first(x)) + x))
        return made


def plain() -> ac.Case:
    return ac.Case(_Model().eval(), torch.randn(5, 6))


def training() -> ac.Case:
    return ac.Case(_Model(), torch.randn(5, 6), loss=lambda output: output.pow(3).mean())


def dropping() -> ac.Case:
    return ac.Case(_Model(drop=0.5), torch.randn(5, 6))


class _Choosing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin().argmax(-1)


def choosing() -> ac.Case:
    return ac.Case(nn.Sequential(_Gated(), _Choosing()), torch.randn(5, 6))


def compiled_in_part() -> ac.Case:
    return ac.Case(_Model(compiled=True), torch.randn(5, 6))


class _Shared(nn.Module):
    """One layer that the model calls itself, and blocks call, too."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.LayerNorm(6)
        self.norm, self.blocks = norm, nn.ModuleList([_Gated(), _Gated()])
        for each in self.blocks:
            each.act = nn.Sequential(norm, nn.Tanh())  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        for each in self.blocks:
            x = x + each(x)
        made: torch.Tensor = self.norm(x)
        return made


class _Drawing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.normal(0.0, 1.0, x.shape)


def shared() -> ac.Case:
    return ac.Case(_Shared(), torch.randn(5, 6), loss=lambda output: output.pow(3).mean())


def drawing() -> ac.Case:
    return ac.Case(nn.Sequential(_Gated(), _Drawing()), torch.randn(5, 6))


def _too_large(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    return lambda *given: [1.01 * each for each in graph(*given)]


def compiled_in_place() -> ac.Case:
    model = _Model()
    model.second.compile(backend=_too_large)
    return ac.Case(model.eval(), torch.randn(5, 6))


def compiled_forward() -> ac.Case:
    model = _Model()
    model.second.forward = torch.compile(model.second.forward, backend=_too_large)  # type: ignore[method-assign]
    return ac.Case(model.eval(), torch.randn(5, 6))


@pytest.fixture
def backend() -> Iterator[Callable[..., str]]:
    """Registers a backend under a name of its own."""
    made: list[str] = []

    def register(run: Callable[..., Any]) -> str:
        made.append(f"of_tests_{len(made)}")
        torch._dynamo.register_backend(run, name=made[-1])
        return made[-1]

    yield register
    for name in made:
        _BACKENDS.pop(name, None)
        _COMPILER_FNS.pop(name, None)


def _located(case: str, backend: str, out: Path, **options: Any) -> Comparison:
    torch._dynamo.reset()
    asked = ac.LocateOptions(compile=backend, **options)
    return ac.locate(case, "cpu", out=out, options=asked)


def test_regions_are_the_layers_of_blocks_then_blocks_then_the_model() -> None:
    tree = ModuleTree(name_modules(computed_case("blocks", trains=False).model))
    layers, blocks, whole = tree.levels()
    assert {"blocks.0.mlp", "blocks.1.attention", "tokens", "head"} <= {*layers}
    assert "blocks.0.mlp" not in blocks
    assert {"blocks.0", "head"} <= {*blocks}
    assert whole == ("",)


def test_a_wrong_lowering_is_named_with_its_operator_and_line(
    backend: Callable[..., str], tmp_path: Path
) -> None:
    name = backend(lowering_named("mask folded to -4").backend())
    found = _located(f"{_MODELS}:blocks", name, tmp_path)
    assert (found.answer, found.exit_code) == (Answer.BUG, 1)
    assert found.culprits[0].name in ("blocks.0.attention", "blocks.1.attention")
    assert found.compiled is not None
    assert found.compiled.operator is not None
    assert found.compiled.operator.operator == "torch.softmax"
    assert found.compiled.operator.line.startswith("planted/computed_models.py:")
    assert "torch.softmax" in found.conclusion
    page = found.to_html(tmp_path / "found.html").read_text()
    assert f'<li dir="auto">backend {name}: ' in page
    sheet = load_workbook(found.to_excel(tmp_path / "found.xlsx"), read_only=True)["Summary"]
    cells = [str(cell) for row in sheet.iter_rows(values_only=True) for cell in row if cell]
    assert any(cell.startswith("in torch.softmax (planted/computed_models.py:") for cell in cells)
    report = found.to_json(tmp_path / "found.json")
    assert json.loads(report.read_text())["compiled"]["operator"]["operator"] == "torch.softmax"


def test_a_wrong_backward_is_named(backend: Callable[..., str], tmp_path: Path) -> None:
    name = backend(lowering_named("backward of tanh").backend())
    found = _located(f"{_MODELS}:odd_training", name, tmp_path)
    assert found.answer is Answer.BUG
    assert found.culprits[0].name.endswith("residual")
    assert found.compiled is not None
    assert found.compiled.operator is not None
    assert (found.compiled.operator.operator, found.compiled.operator.backward) == (
        "torch.tanh",
        True,
    )


def test_a_right_backend_is_rounding_and_told_beside_float64(tmp_path: Path) -> None:
    found = _located(f"{_HERE}:plain", "aot_eager", tmp_path)
    assert (found.answer, found.exit_code) == (Answer.ROUNDING, 0)
    assert "as near to float64 as eager" in found.conclusion
    assert found.compiled is not None
    assert found.compiled.whole
    assert not found.compiled.eager


def test_what_does_not_compile_is_split_and_no_all_clear(
    backend: Callable[..., str], tmp_path: Path
) -> None:
    def only_small(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        operators = [node for node in graph.graph.nodes if node.op.startswith("call_")]
        if len(operators) > 1:
            raise RuntimeError("one operator at most")
        return graph.forward

    found = _located(f"{_HERE}:plain", backend(only_small), tmp_path)
    assert (found.answer, found.exit_code) == (Answer.NOT_SURE, 2)
    assert "one operator at most" in found.conclusion
    assert found.compiled is not None
    assert {"first", "second", ""} <= {*found.compiled.eager}
    assert "first.inner" in found.compiled.levels[0].compiled.regions


def test_a_backward_that_does_not_compile_is_split(
    backend: Callable[..., str], tmp_path: Path
) -> None:
    def without_tanh(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        if any("tanh" in str(node.target) for node in graph.graph.nodes):
            raise RuntimeError("no kernel for tanh_backward")
        return make_boxed_func(graph.forward)

    name = backend(
        aot_autograd(
            fw_compiler=lambda graph, _: make_boxed_func(graph.forward), bw_compiler=without_tanh
        )
    )
    found = _located(f"{_HERE}:training", name, tmp_path)
    assert found.answer is Answer.NOT_SURE
    assert found.compiled is not None
    assert {"first", "first.act", "second.act", ""} <= {*found.compiled.eager}
    assert found.compiled.levels[0].compiled.regions["first.inner"].graphs
    assert "no kernel for tanh_backward" in found.compiled.eager["first.act"]


def test_a_region_that_draws_random_numbers_is_named(tmp_path: Path) -> None:
    found = _located(f"{_HERE}:dropping", "aot_eager", tmp_path)
    assert found.answer is Answer.NOT_SURE
    assert found.compiled is not None
    assert "draws random numbers" in found.compiled.eager["drop"]


def test_a_case_that_compiles_a_part_is_captured_at_that(tmp_path: Path) -> None:
    found = _located(f"{_HERE}:compiled_in_part", "own", tmp_path)
    assert found.exit_code == 0
    assert "1 region ran compiled, and the code around them eagerly" in found.conclusion
    with open_bundle(tmp_path / "regions" / "compiled") as bundle:
        compiled = bundle.manifest.options.compiled
        assert compiled is not None
        assert [*compiled.regions] == ["second"]
        assert compiled.regions["second"].graphs == 1
        assert {record.name for record in bundle.records()} >= {"first.act", "second"}
        assert "second.act" not in {record.name for record in bundle.records()}


@pytest.mark.parametrize("case", ["compiled_in_place", "compiled_forward"])
def test_a_part_that_is_compiled_has_the_backend_of_its_own(case: str, tmp_path: Path) -> None:
    found = _located(f"{_HERE}:{case}", "own", tmp_path)
    assert found.answer is Answer.BUG
    assert found.culprits[0].name.startswith("second")
    assert found.compiled is not None
    assert found.compiled.operator is not None  # of the graph as that backend compiles it


def test_a_script_is_compared_with_itself_run_eagerly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its three runs, here in this process."""

    def run(command: Any, plan: Plan, *rest: Any) -> None:
        torch.manual_seed(0)
        made, model = plan.options, compiled_in_place().model
        numerics = ac.Arithmetic(compile=made["compile"], regions=made.get("regions", ()))
        with ac.capture(model, plan.out, feed=made.get("feed"), seed=0, numerics=numerics):
            model(torch.ones(5, 6))

    monkeypatch.setattr(captures, "_captured", run)
    plan = Plan(action=Action.CAPTURE, folder="", options={"compile": "own"})
    found = captures.locate_compiled_script(
        ["python"], "cpu", tmp_path, plan, overwrite=False, announce=lambda told: None
    )
    assert found.exit_code == 1
    assert found.culprits[0].name == "second"
    assert found.compiled is not None
    assert [*found.compiled.levels[0].compiled.regions] == ["second"]


def test_a_layer_that_the_model_and_its_blocks_call_is_no_fault(tmp_path: Path) -> None:
    assert _located(f"{_HERE}:shared", "aot_eager", tmp_path).exit_code == 0


def test_random_numbers_are_noticed_as_they_are_drawn(tmp_path: Path) -> None:
    found = _located(f"{_HERE}:drawing", "aot_eager", tmp_path)
    assert found.answer is Answer.NOT_SURE
    assert found.compiled is not None
    assert "draws random numbers" in found.compiled.eager["1"]


@pytest.mark.parametrize(("case", "code"), [("plain", 2), ("training", 1)])
def test_a_weight_that_compiled_code_overwrites(
    case: str, code: int, backend: Callable[..., str], tmp_path: Path
) -> None:
    def overwriting(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]

        def run(*given: Any) -> Any:
            made = graph(*given)
            for name, each in zip(names, given, strict=True):
                if "bias" in name:
                    each.data.add_(1.0)  # as a kernel does, which no version counts
            return made

        return run

    found = _located(f"{_HERE}:{case}", backend(overwriting), tmp_path)
    assert found.exit_code == code
    if code == 1:
        changed = [row.module for row in found.rows if row.record.role is Role.PARAM_CHANGED]
        assert "first.inner" in changed
    else:
        assert "its compiled code has written into inner.bias" in found.conclusion


def test_a_compiled_capture_is_compared_with_a_golden_that_saw_all(
    backend: Callable[..., str], tmp_path: Path
) -> None:
    model, inputs = _Model().eval(), torch.randn(5, 6)
    with ac.capture(model, tmp_path / "golden"):
        model(inputs)
    with ac.capture(model, tmp_path / "compiled", numerics=ac.Arithmetic(compile="aot_eager")):
        model(inputs)
    assert "forward" not in vars(model.first)
    found = ac.diff(tmp_path / "golden", tmp_path / "compiled")
    assert found.passed
    assert not found.unmatched()
    assert {row.module for row in found.rows if row.golden} == {
        "", "first", "drop", "second", "norm"
    }  # fmt: skip


def test_a_backend_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such backend here"):
        _located(f"{_HERE}:plain", "nosuch", tmp_path)


def test_a_model_that_compiles_nothing_has_no_own_regions(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="compiles none of its modules"):
        _located(f"{_HERE}:plain", "own", tmp_path)


@pytest.mark.parametrize("options", [{"golden_case": "other.py"}, {"repeat": 2}])
def test_a_golden_from_elsewhere_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="compares a case with itself"):
        _located(f"{_HERE}:plain", "aot_eager", tmp_path, **options)


def test_the_command_needs_no_device_and_tells_of_what_it_compiled(
    cli: Run, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\nfrom accucompare import Case\n"
        "torch._dynamo.register_backend(lambda graph, inputs: graph.forward, name='of_the_case')\n"
        "def case():\n    return Case(torch.nn.Linear(3, 3), torch.ones(2, 3))\n"
    )
    torch._dynamo.reset()
    ran = cli("locate", "model.py", "--compile", "of_the_case", "--json", "found.json")
    assert ran.returncode == 0
    assert "backend of_the_case: 1 region (1 graph" in ran.stdout
    assert json.loads((tmp_path / "found.json").read_text())["compiled"]["whole"]
    again = cli("locate", "--compile", "model.py")
    assert again.returncode == 2
    assert "write the case before it" in again.stderr


def test_an_operator_whose_integers_are_wrong_is_named(
    backend: Callable[..., str], tmp_path: Path
) -> None:
    def first_place(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        def run(*given: Any) -> Any:
            made = graph(*given)
            return [each if each.is_floating_point() else 0 * each for each in made]

        return run

    found = _located(f"{_HERE}:choosing", backend(first_place), tmp_path)
    assert found.culprits[0].name == "1"
    assert found.compiled is not None
    assert found.compiled.operator is not None
    assert found.compiled.operator.operator == "Tensor.argmax"


def test_a_kernel_is_known_by_the_operators_that_it_fused() -> None:
    code = "cpp_fused_add_0(buf0)\ncpp_fused_gelu_mul_1(buf1)\nextern_kernels.addmm(buf2)"

    def of(operator: str) -> str:
        return kernel_of(code, OperatorTrial("n", operator, "", 1, "float32", 1.0, 0.0))

    assert of("torch.nn.functional.gelu") == "cpp_fused_gelu_mul_1"
    assert of("torch.nn.functional.linear") == ""
