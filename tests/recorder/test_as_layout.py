"""One device computes in the parts of a bundle's ranks."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from msgspec.structs import replace
from torch import nn
from torch.nn import functional

import accucompare as ac
from accucompare.bundle.format import Shard
from accucompare.errors import BundleError
from tests.compare.builder import Item, edit_manifest, item, write
from tests.conftest import Run


def ranks_of(
    folder: Path,
    cuts: Mapping[str, tuple[tuple[int, ...], int]],
    ranks: int = 2,
    dimension: str = "tp",
    batches: bool = False,
    items: Sequence[Item] = (),
) -> Path:
    """The bundle of ranks that hold parts of parameters.

    ``cuts``: the shape of each, and the axis that is cut. ``batches``: each has its own."""
    own = items or [item("fc", [1.0], rank=rank) for rank in range(ranks)]
    out = write(folder / "ranks", own, ranks=ranks)
    for rank in range(ranks):
        held = {}
        for name, (shape, axis) in cuts.items():
            each = shape[axis] // ranks
            part, start = [*shape], [0] * len(shape)
            part[axis], start[axis] = each, rank * each
            held[name] = {
                "dtype": "float32",
                "shape": part,
                "digests": {"float32": f"{rank:032x}"},
                "shard": {"shape": shape, "start": start, "mesh": [dimension]},
            }

        def change(manifest: dict[str, Any], rank: int = rank, held: Any = held) -> None:
            manifest["mesh"] = {dimension: [rank, ranks]}
            manifest["model"]["parameters"] = held
            given = {"float32": f"{rank * batches:032x}"}
            manifest["inputs"] = {"0": {"0": {"dtype": "float32", "shape": [4], "digests": given}}}

        edit_manifest(out, change, f"rank{rank}/manifest.json" if rank else "manifest.json")
    return out


def computed(
    model: nn.Module, x: torch.Tensor, folder: Path, layout: Path | None
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Output, gradient of the input, gradients of parameters; captured in a layout."""
    model, x = copy.deepcopy(model), x.clone().requires_grad_()
    numerics = ac.Arithmetic(as_layout=layout)
    with ac.capture(model, folder / "out", numerics=numerics, overwrite=True):
        output = model(x)
        output.float().square().sum().backward()
    assert x.grad is not None
    gradients = {
        name: each.grad for name, each in model.named_parameters() if each.grad is not None
    }
    return output.detach(), x.grad, gradients


def recorded_output(folder: Path, name: str) -> torch.Tensor:
    with ac.open_bundle(folder / "out") as bundle:
        return torch.from_numpy(bundle.load(name))


def linear(
    dtype: torch.dtype = torch.bfloat16, bias: bool = True
) -> tuple[nn.Linear, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(64, 32, bias).to(dtype), torch.randn(5, 64).to(dtype)


def in_rank_order(terms: list[torch.Tensor]) -> torch.Tensor:
    total = terms[0]
    for each in terms[1:]:
        total = total + each
    return total


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_inputs_that_are_cut_give_the_sum_of_rounded_terms(
    tmp_path: Path, ranks: int, dtype: torch.dtype
) -> None:
    fc, x = linear(dtype)
    layout = ranks_of(tmp_path, {"weight": ((32, 64), 1)}, ranks)
    output, *_ = computed(fc, x, tmp_path, layout)
    columns = zip(x.chunk(ranks, 1), fc.weight.chunk(ranks, 1), strict=True)
    terms = [functional.linear(a.contiguous(), w.contiguous(), fc.bias / ranks) for a, w in columns]
    assert torch.equal(output, in_rank_order(terms))
    assert not torch.equal(output, fc(x))
    assert torch.equal(recorded_output(tmp_path, ""), output.float())


@pytest.mark.parametrize("ranks", [2, 4])
def test_outputs_that_are_cut_give_a_sum_of_rounded_gradients(tmp_path: Path, ranks: int) -> None:
    fc, x = linear()
    cuts = {"weight": ((32, 64), 0), "bias": ((32,), 0)}
    output, of_input, gradients = computed(fc, x, tmp_path, ranks_of(tmp_path, cuts, ranks))
    assert torch.equal(output, fc(x))
    given = (2 * output.float()).bfloat16().chunk(ranks, 1)
    terms = [g @ w for g, w in zip(given, fc.weight.chunk(ranks), strict=True)]
    assert torch.equal(of_input, in_rank_order(terms))
    assert torch.equal(gradients["weight"], torch.cat([g.T @ x for g in given]))


def test_gradients_of_two_products_of_one_input_are_added_up_apart(tmp_path: Path) -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up = nn.Linear(64, 32, False), nn.Linear(64, 32, False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.gate(x) + self.up(x)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, x = Gated().bfloat16(), torch.randn(5, 64).bfloat16()
    cuts = {"gate.weight": ((32, 64), 0), "up.weight": ((32, 64), 0)}
    output, of_input, _ = computed(model, x, tmp_path, ranks_of(tmp_path, cuts))
    given = (2 * output.float()).bfloat16().chunk(2, 1)
    each = [
        in_rank_order([g @ w for g, w in zip(given, fc.weight.chunk(2), strict=True)])
        for fc in (model.up, model.gate)
    ]
    assert torch.equal(of_input, each[0] + each[1])


def test_conv1d_of_transformers_is_cut_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    kind: Any = transformers.pytorch_utils.Conv1D
    conv, x = kind(32, 64).bfloat16(), torch.randn(5, 64).bfloat16()
    output, *_ = computed(conv, x, tmp_path, ranks_of(tmp_path, {"weight": ((64, 32), 0)}))
    terms = [
        torch.addmm(conv.bias / 2, a.contiguous(), w)
        for a, w in zip(x.chunk(2, 1), conv.weight.chunk(2), strict=True)
    ]
    assert torch.equal(output, in_rank_order(terms))


def test_rows_of_ranks_with_a_batch_each_are_computed_apart(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.LayerNorm(64).bfloat16(), torch.randn(64, 64).bfloat16()
    layout = ranks_of(tmp_path, {}, dimension="dp", batches=True)
    output, of_input, gradients = computed(model, x, tmp_path, layout)
    plain, of_plain, whole = computed(model, x, tmp_path, None)
    assert torch.equal(output, plain)
    assert torch.equal(of_input, of_plain)
    parts = [computed(model, each, tmp_path, None)[2] for each in x.chunk(2)]
    for name, gradient in gradients.items():
        assert torch.equal(gradient, parts[0][name] + parts[1][name])
    assert any(not torch.equal(gradients[name], whole[name]) for name in whole)


def test_positions_of_ranks_in_sequence_parallel_are_computed_apart(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.LayerNorm(64).bfloat16(), torch.randn(2, 64, 64).bfloat16()
    given = [item("", np.zeros((2, 32, 64), "f4"), role="input", rank=rank) for rank in range(2)]
    shards = [Shard((2, 64, 64), (0, 32 * rank, 0), mesh=("tp",)) for rank in range(2)]
    items = [
        each._replace(record=replace(each.record, shard=shard))
        for each, shard in zip(given, shards, strict=True)
    ]
    layout = ranks_of(tmp_path, {}, items=items)
    _, of_input, gradients = computed(model, x, tmp_path, layout)
    assert torch.equal(of_input, computed(model, x, tmp_path, None)[1])
    parts = [computed(model, each, tmp_path, None)[2] for each in x.chunk(2, 1)]
    for name, gradient in gradients.items():
        assert torch.equal(gradient, parts[0][name] + parts[1][name])


def test_parameters_that_are_only_kept_in_parts_are_computed_with_whole(tmp_path: Path) -> None:
    fc, x = linear()
    kept = ranks_of(tmp_path, {"weight": ((32, 64), 0)}, dimension="dp", batches=True)
    output, of_input, _ = computed(fc, x[:4], tmp_path, kept)
    plain, of_plain, _ = computed(fc, x[:4], tmp_path, None)
    assert torch.equal(output, plain)
    assert torch.equal(of_input, of_plain)


class Habits(nn.Module):
    """Calls a module twice, by keyword, and writes into what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(input=x).relu_()
        return self.fc(x).add_(1)  # type: ignore[no-any-return]


def test_each_call_is_computed_in_parts_and_recorded_whole(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Habits().bfloat16(), torch.randn(5, 64).bfloat16()
    layout = ranks_of(tmp_path, {"fc.weight": ((64, 64), 1)})
    output, *_ = computed(model, x, tmp_path, layout)

    def product(value: torch.Tensor) -> torch.Tensor:
        columns = zip(value.chunk(2, 1), model.fc.weight.chunk(2, 1), strict=True)
        bias = model.fc.bias / 2
        return in_rank_order(
            [functional.linear(a.contiguous(), w.contiguous(), bias) for a, w in columns]
        )

    first = product(x)
    assert torch.equal(output, product(first.relu()) + 1)
    bundle = ac.open_bundle(tmp_path / "out")
    recorded = {(each.name, each.call, each.role) for each in bundle.records()}
    computed(model, x, tmp_path / "plain", None)
    plain = ac.open_bundle(tmp_path / "plain" / "out")
    assert recorded == {(each.name, each.call, each.role) for each in plain.records()}
    assert torch.equal(recorded_output(tmp_path, "fc"), first.float())


def test_afterwards_nothing_is_left(tmp_path: Path) -> None:
    fc, x = linear()
    layout = ranks_of(tmp_path, {"weight": ((32, 64), 1)})
    plain = fc(x)
    with ac.capture(fc, tmp_path / "out", numerics=ac.Arithmetic(as_layout=layout)):
        apart = fc(x)
        copied = copy.deepcopy(fc)
    assert "forward" not in vars(fc)
    assert torch.equal(fc(x), plain)
    assert not torch.equal(apart, plain)
    assert torch.equal(copied(x), plain)


def test_what_is_computed_with_whole_is_told(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    layout = ranks_of(tmp_path, {"weight": ((4, 4), 0)})
    model = Own()
    numerics = ac.Arithmetic(as_layout=layout)
    with ac.capture(model, tmp_path / "out", numerics=numerics, overwrite=True):
        model(torch.ones(2, 4))
    notes = " ".join(ac.open_bundle(tmp_path / "out").manifest.notes)
    assert "1 of their cut parameters were computed with whole: weight" in notes


def test_the_manifest_says_whose_sums_it_makes(tmp_path: Path) -> None:
    fc, x = linear()
    layout = ranks_of(tmp_path, {"weight": ((32, 64), 1)}, 4)
    computed(fc, x, tmp_path, layout)
    made_as = ac.open_bundle(tmp_path / "out").manifest.options.as_layout
    assert made_as is not None
    assert (made_as.bundle, made_as.ranks, made_as.mesh) == (str(layout), 4, {"tp": 4})


CASE = """
import torch
from accucompare import Case

def case():
    return Case(torch.nn.Linear(4, 2), torch.ones(3, 4))
"""


@pytest.mark.parametrize("kind", ["one", "no layout", "another model"])
def test_a_bundle_that_no_case_can_compute_as_is_refused(
    kind: str, tmp_path: Path, cli: Run
) -> None:
    (tmp_path / "case.py").write_text(CASE)
    layout = {
        "one": lambda: write(tmp_path / "ranks", [item("fc", [1.0])]),
        "no layout": lambda: ranks_of(tmp_path, {}),
        "another model": lambda: ranks_of(tmp_path, {"fc.weight": ((2, 4), 0)}),
    }[kind]()
    result = cli("capture", "case.py", "--as-layout", layout, "--out", "out")
    assert result.returncode == 2
    cure = {
        "one": "name the bundle of the parallel run",
        "no layout": "or leave --as-layout out",
        "another model": "name a bundle of the same model",
    }[kind]
    assert cure in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()


def test_a_layout_that_does_not_fit_its_part_is_damage(tmp_path: Path) -> None:
    fc, x = linear()
    layout = ranks_of(tmp_path, {"weight": ((32, 64), 1)})
    edit_manifest(
        layout, lambda manifest: manifest["model"]["parameters"]["weight"].update(shape=[40, 64])
    )
    with pytest.raises(BundleError, match="does not fit its shape"):
        computed(fc, x, tmp_path, layout)
