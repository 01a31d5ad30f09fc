"""Layers that one side has fused: a serving engine's Llama against transformers'."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.compare.fusions import find_fused
from accucompare.compare.preflight_facts import CarriedApart, FusedNames, OtherDigests
from accucompare.compare.rows import Reason
from accucompare.errors import UsageError
from planted import serving_models
from planted.serving_models import LAYOUTS, Faults

Made = Callable[..., ac.Comparison]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("golden") / "golden"
    capture(serving_models.trained(), out)
    return out


def capture(model: nn.Module, out: Path, feed: Any = None, dtype: Any = torch.float32) -> Path:
    with torch.no_grad(), ac.capture(model.to(dtype), out, seed=0, feed=feed):
        model(**serving_models.tokens())
    return out


def reasons(comparison: ac.Comparison, name: str, role: str = "output") -> list[str]:
    return [
        row.reason.value
        for row in comparison.rows
        if row.record is not None and (row.record.name, row.record.role.value) == (name, role)
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_queries_keys_and_values_of_one_layer_are_rows_of_goldens(
    golden: Path, tmp_path: Path, layout: str
) -> None:
    comparison = ac.diff(golden, capture(serving_models.serving(layout), tmp_path / "own"))
    assert comparison.exit_code == 0
    for name in ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj"):
        assert reasons(comparison, f"model.layers.1.{name}") == ["ok"]
        assert reasons(comparison, f"model.layers.1.{name}", "input") == ["ok"]
    assert {row.reason for row in comparison.rows} & {Reason.MISSING, Reason.EXTRA} == set()
    told = [finding.fact for finding in comparison.preflight]
    assert sum(isinstance(fact, FusedNames) for fact in told) == 2
    assert CarriedApart(False, ("RMSNorm", "LlamaDecoderLayer")) in told


def test_golden_may_be_the_fused_one(golden: Path, tmp_path: Path) -> None:
    engine = capture(serving_models.serving(LAYOUTS[2]), tmp_path / "engine")
    comparison = ac.diff(engine, golden)
    assert comparison.exit_code == 0
    assert reasons(comparison, "model.layers.0.self_attn.qkv_proj") == ["ok"]
    fed = ac.diff(engine, capture(serving_models.trained(), tmp_path / "fed", feed=engine))
    assert fed.exit_code == 0
    assert reasons(fed, "model.layers.2.mlp.gate_up_proj") == ["ok"]
    wrong = serving_models.trained()
    wrong.model.layers[1].mlp.act_fn.forward = torch.nn.functional.gelu
    fed = ac.diff(engine, capture(wrong, tmp_path / "wrong", feed=engine))
    assert [each.name for each in fed.culprits] == ["model.layers.1.mlp"]


class InARow(nn.Module):
    """Takes the tokens of a batch one after the other, as serving engines do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.lm_head = model.model, model.lm_head

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.model(input_ids, positions))


def test_tokens_in_a_row_are_goldens_batch(tmp_path: Path) -> None:
    tokens = serving_models.tokens()["input_ids"][:1]
    golden = tmp_path / "golden"
    with torch.no_grad(), ac.capture(model := serving_models.trained(), golden, seed=0):
        model(tokens)
    for name, feed in (("own", None), ("fed", ac.FedWith(golden, force=True))):
        engine = InARow(serving_models.serving())
        with torch.no_grad(), ac.capture(engine, tmp_path / name, seed=0, feed=feed):
            engine(tokens[0].int(), torch.arange(tokens.shape[1]))
        comparison = ac.diff(golden, tmp_path / name)
        assert set(reasons(comparison, "model.layers.1.mlp")) <= {"ok", "identical"}, name
        assert set(reasons(comparison, "lm_head")) <= {"ok", "identical"}, name
        assert comparison.exit_code == 0, name
        assert not any(isinstance(each.fact, OtherDigests) for each in comparison.preflight), name


class Tables(nn.Module):
    """Values of tokens, without a batch."""

    def forward(self, tokens: int) -> torch.Tensor:
        return torch.arange(float(tokens))[:, None] * torch.ones(3)


class Tabled(nn.Module):
    """A linear layer in two parts or in one, and tables."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.embed, self.tables = nn.Embedding(9, 4), Tables()
        weights = torch.randn(6, 4)
        parts = {"both": weights} if fused else {"a": weights[:3], "b": weights[3:]}
        for name, own in parts.items():
            setattr(self, name, nn.Linear(4, len(own), bias=False))
            getattr(self, name).weight.data = own

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        made = self.both(x) if hasattr(self, "both") else torch.cat([self.a(x), self.b(x)], -1)
        return made + self.tables(ids.shape[-1]).repeat(1, 2)


def test_what_has_no_batch_is_not_given_one(tmp_path: Path) -> None:
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    for name, given in (("golden", ids), ("engine", ids[0])):
        torch.manual_seed(0)
        with torch.no_grad(), ac.capture(model := Tabled(name == "engine"), tmp_path / name):
            model(given)
    found = ac.diff(tmp_path / "golden", tmp_path / "engine")
    assert reasons(found, "tables") == ["identical"]
    assert found.exit_code == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("", None),
        ("k_v_swapped", "model.layers.1.self_attn"),
        ("loaded_v_k", "model.layers.1.self_attn"),
        ("gate_up_swapped", "model.layers.1.mlp"),
        ("residual_doubled", "model.layers.1"),
        ("norm_eps", "model.layers.1.post_attention_layernorm"),
    ],
)
def test_a_fault_of_a_serving_engine_is_named_in_a_fed_capture(
    golden: Path, tmp_path: Path, dtype: Any, fault: str, place: str | None
) -> None:
    model = serving_models.serving(faults=Faults(fault))
    own = capture(model, tmp_path / "own", feed=golden, dtype=dtype)
    comparison = ac.diff(golden, own)
    assert [each.name for each in comparison.culprits[:1]] == ([] if place is None else [place])
    assert comparison.exit_code == (0 if place is None else 1)


def test_other_weights_prove_nothing(golden: Path, tmp_path: Path) -> None:
    model = serving_models.serving()
    with torch.no_grad():
        model.model.layers[1].self_attn.qkv_proj.weight[3].mul_(1.01)
    comparison = ac.diff(golden, capture(model, tmp_path / "own"))
    assert comparison.exit_code == 1
    assert reasons(comparison, "model.layers.1.self_attn.q_proj") == ["not comparable"]
    with pytest.raises(UsageError, match="other weights"):
        capture(model, tmp_path / "fed", feed=golden)


def test_a_map_overrules(golden: Path, tmp_path: Path) -> None:
    own = capture(serving_models.serving(), tmp_path / "own")
    comparison = ac.diff(golden, own, map="re:(.*)layers.1(.*)q_proj=\\1layers.1\\2qkv_proj")
    assert reasons(comparison, "model.layers.1.self_attn.q_proj") == ["not comparable"]
    assert reasons(comparison, "model.layers.0.self_attn.q_proj") == ["ok"]


def test_fused_layers_that_are_goldens_stay_as_they_are(tmp_path: Path) -> None:
    fused, golden = Net(True, False), tmp_path / "golden"
    with torch.no_grad(), ac.capture(fused, golden, seed=0, save_state=True):
        fused(torch.ones(2, 6))
    apart = Net(False, True)
    with torch.no_grad(), ac.capture(apart, tmp_path / "own", start=golden):
        apart(torch.ones(2, 6))
    assert ac.diff(golden, tmp_path / "own").exit_code == 0


class Turned(nn.Module):
    """GPT-2's layer, which holds its weight transposed."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach().T.clone())
        self.bias = nn.Parameter(layer.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class Net(nn.Module):
    """Three layers that take the same value, apart or as one."""

    def __init__(self, fused: bool, turned: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(6, size) for size in (5, 3, 3)]
        self.fused = fused
        if fused:
            whole = nn.Linear(6, 11)
            with torch.no_grad():
                whole.weight.copy_(torch.cat([each.weight for each in layers]))
                whole.bias.copy_(torch.cat([each.bias for each in layers]))
            self.qkv: nn.Module = Turned(whole) if turned else whole
        else:
            self.q, self.k, self.v = (Turned(each) if turned else each for each in layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fused:
            q, k, v = self.qkv(x).split((5, 3, 3), -1)
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        return torch.tanh(q).sum(-1, keepdim=True) * k.sigmoid() + v


def trained(net: Net, out: Path) -> Path:
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    torch.manual_seed(1)
    with ac.capture(net, out, seed=0) as session:
        for _ in range(2):
            net(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
    return out


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("of_golden", [False, True])
def test_gradients_and_updates_of_parts_are_rows(
    tmp_path: Path, of_golden: bool, turned: bool
) -> None:
    apart, fused = Net(False, turned and of_golden), Net(True, turned)
    sides = [trained(apart, tmp_path / "apart"), trained(fused, tmp_path / "fused")]
    comparison = ac.diff(*(sides[::-1] if of_golden else sides))
    for role in ("param_grad", "param_update", "call_grad", "grad_output"):
        found = [
            row.reason
            for row in comparison.rows
            if row.record is not None and row.record.role.value == role and row.record.name
        ]
        assert found, role
        assert {*found} <= {Reason.OK, Reason.IDENTICAL}, role
    assert comparison.exit_code == 0


def test_a_diff_of_fused_layers_needs_no_torch(golden: Path, tmp_path: Path) -> None:
    own = capture(serving_models.serving(), tmp_path / "own")
    code = (
        "import sys, accucompare as ac; c = ac.diff(*sys.argv[1:]); print('torch' in sys.modules)"
    )
    root = str(Path(ac.__file__).parent.parent)
    ran = subprocess.run(
        [sys.executable, "-c", code, str(golden), str(own)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": root},
    )
    assert ran.stdout == "False\n"


def test_a_manifest_holds_no_long_list_of_a_weights_rows(tmp_path: Path) -> None:
    """50,257 rows, as a vocabulary has, make no runs of rows."""
    model = nn.Sequential(nn.Linear(2, 50_257), nn.Identity())
    with ac.capture(model, tmp_path / "odd"):
        model(torch.ones(1, 2))
    parameters = ac.open_bundle(tmp_path / "odd").manifest.model["parameters"]
    assert "rows" not in parameters["0.weight"]


class Block(nn.Module):
    """Adds to its residual; apart, it gives both on, and the next one adds them."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.norm, self.fc, self.apart = nn.LayerNorm(6), nn.Linear(6, 6), apart
        self.factor = 1.0  # of the carried term's gradient

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        x = x if residual is None else x + residual
        made = self.fc(self.norm(x))
        if not self.apart:
            return x + made
        carried = x * 1.0
        if carried.requires_grad:
            carried.register_hook(lambda grad: grad * self.factor)
        return made, carried


class Blocks(nn.Module):
    def __init__(self, apart: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block(apart) for _ in range(3))
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given: Any = x
        for layer in self.layers:
            given = layer(*given) if isinstance(given, tuple) else layer(given)
        return self.head(given[0] + given[1] if isinstance(given, tuple) else given)


@pytest.mark.parametrize("factor", [1.0, 1.05])
def test_gradients_of_a_residual_carried_apart_are_those_of_the_sum(
    tmp_path: Path, factor: float
) -> None:
    for name in ("golden", "own"):
        model = Blocks(apart=name == "own")
        model.layers[1].factor = factor if name == "own" else 1.0
        with ac.capture(model, tmp_path / name):
            model(torch.ones(2, 5, 6).cumsum(1)).pow(2).mean().backward()
    comparison = ac.diff(tmp_path / "golden", tmp_path / "own")
    assert comparison.exit_code == (factor != 1.0)
    gradients = [row for row in comparison.rows if row.record.role.value == "grad_output"]
    assert all(row.golden is not None and row.candidate is not None for row in gradients)
    terms = [row for row in gradients if row.record.name == "layers.1"]
    assert len(terms) == 2


def test_fresh_weights_of_one_seed_are_no_parts_of_each_others(tmp_path: Path) -> None:
    """Two versions draw the same numbers for other weights."""
    models = []
    for order in (("v", "o", "wi"), ("wi", "v", "o")):
        model = nn.ModuleDict({"v": nn.Linear(4, 4), "o": nn.Linear(4, 4), "wi": nn.Linear(4, 8)})
        numbers = torch.manual_seed(0)
        for name in order:
            nn.init.normal_(model[name].weight, generator=numbers)
        with ac.capture(model, tmp_path / order[0], seed=0):
            pass
        models.append(ac.open_bundle(tmp_path / order[0]).manifest.model)
    assert find_fused(*models) == []


def test_a_weight_whose_rows_are_in_another_order_is_another_weight(
    golden: Path, tmp_path: Path
) -> None:
    wrong = serving_models.trained()
    weight = wrong.model.layers[1].mlp.gate_proj.weight
    with torch.no_grad():
        weight[:2] = weight[[1, 0]]
    fed = capture(wrong, tmp_path / "fed", feed=ac.FedWith(golden, force=True))
    comparison = ac.diff(golden, fed)
    assert comparison.exit_code == 1
    assert comparison.culprits[0].name == "model.layers.1.mlp.gate_proj"
