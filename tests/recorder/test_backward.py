"""What a capture records of a backward, and what a fed one gives it."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.format.records import GRADIENT_ROLES, Role
from accucompare.bundle.reading.reader import Bundle
from accucompare.compare.origins.sites import Stage
from accucompare.compare.rows.rows import Reason, Status
from accucompare.errors import CaptureError
from planted.training_faults import changed, of_glue, of_input, of_parameter
from tests.recorded import Opened
from tests.recorder.trained import MODELS, build, train


def gradients(
    bundle: Bundle, *roles: Role
) -> dict[tuple[str, int, str, str], np.ndarray[Any, Any]]:
    """Recorded gradients by (name, call, role, path)."""
    chosen = [record for record in bundle.records() if record.role in (roles or GRADIENT_ROLES)]
    return {
        (record.name, record.call, record.role.value, record.path): bundle.values(record)
        for record in chosen
    }


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


@pytest.mark.parametrize("name", MODELS)
def test_training_gives_the_same_bits_with_and_without_its_gradients_recorded(
    name: str, tmp_path: Path
) -> None:
    # whose dropout draws the same numbers
    plain, losses = train(name, tmp_path / "forward", 3, backward=False, mode="stats")
    recorded, others = train(name, tmp_path / "all", 3)
    assert losses == others
    assert all(
        torch.equal(one, other)
        for one, other in zip(weights(plain), weights(recorded), strict=True)
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_model_fed_with_itself_has_every_gradient_and_none_is_off(
    name: str, tmp_path: Path
) -> None:
    train(name, tmp_path / "golden", 2)
    train(name, tmp_path / "fed", 2, feed=tmp_path / "golden")
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    rows = [
        row
        for row in comparison.rows
        if row.record is not None and row.record.role in GRADIENT_ROLES
    ]
    assert len(rows) > 10
    # a sum of uses may be added in another order
    assert {row.reason for row in rows} <= {Reason.IDENTICAL, Reason.OK}
    assert comparison.passed


def test_what_arrives_at_an_output_is_what_a_hook_on_it_sees(
    tmp_path: Path, opened: Opened
) -> None:
    model, seen = build("tied"), []
    model.block.register_forward_hook(
        lambda module, args, output: (
            output.register_hook(lambda grad: seen.append(grad.clone())) and None
        )
    )
    train("tied", tmp_path / "golden", model=model)
    found = gradients(opened(tmp_path / "golden"), Role.GRAD_OUTPUT)
    assert len(seen) == 3
    for call, grad in zip((2, 1, 0), seen, strict=True):
        assert np.array_equal(found["block", call, "grad_output", ""], grad.numpy())


def test_what_a_call_adds_is_what_autograd_gives_for_that_call_alone(
    tmp_path: Path, opened: Opened
) -> None:
    train("recurrent", tmp_path / "golden", optimizer=None)
    bundle, model = opened(tmp_path / "golden"), build("recurrent")
    found = gradients(bundle)
    arrived = torch.from_numpy(bundle.load("out", role="input", path="0").copy()).requires_grad_()
    grad = torch.from_numpy(bundle.load("out", role="grad_output").copy())
    expected = torch.autograd.grad(
        model.out(arrived), [arrived, model.out.weight, model.out.bias], grad
    )
    for (role, path), tensor in zip(
        (("grad_input", "0"), ("call_grad", "weight"), ("call_grad", "bias")), expected, strict=True
    ):
        assert np.array_equal(found["out", 0, role, path], tensor.numpy())


@pytest.mark.parametrize("name", ["tied", "gpt2", "t5"])
def test_what_calls_add_to_a_parameter_sums_up_to_its_gradient(
    name: str, tmp_path: Path, opened: Opened
) -> None:
    model, _ = train(name, tmp_path / "golden", optimizer=None)
    names = {id(parameter): full for full, parameter in model.named_parameters()}
    sums: defaultdict[str, list[np.ndarray[Any, Any]]] = defaultdict(list)
    for (module, _, _, path), grad in gradients(
        opened(tmp_path / "golden"), Role.CALL_GRAD
    ).items():
        sums[path[1:] if path.startswith("/") else f"{module}.{path}".lstrip(".")].append(
            grad.astype(np.float64)
        )
    assert set(sums) == {names[id(each)] for each in model.parameters()}
    for full, parameter in model.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(sum(sums[full]), parameter.grad.numpy(), rtol=1e-5, atol=1e-7)


def test_a_tied_weight_has_a_gradient_of_each_module_that_used_it(
    tmp_path: Path, opened: Opened
) -> None:
    train("tied", tmp_path / "golden", optimizer=None)
    found = gradients(opened(tmp_path / "golden"), Role.CALL_GRAD)
    assert ("embed", 0, "call_grad", "weight") in found
    assert ("head", 0, "call_grad", "/embed.weight") in found


def test_the_gradient_of_an_output_that_its_own_call_uses_is_that_from_outside(
    tmp_path: Path, opened: Opened
) -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.linear(x)
            return y, y.square().sum()

    model = Inner()
    with ac.capture(model, tmp_path / "golden"):
        y, penalty = model(torch.ones(2, 4))
        (penalty + (3 * y).sum()).backward()
    found = gradients(opened(tmp_path / "golden"), Role.GRAD_OUTPUT)
    assert found["", 0, "grad_output", "0"].tolist() == np.full((2, 4), 3.0).tolist()
    np.testing.assert_allclose(
        found["linear", 0, "grad_output", ""], 3 + 2 * y.detach().numpy(), rtol=1e-6
    )


def test_backward_off_records_no_gradient(tmp_path: Path, opened: Opened) -> None:
    train("tied", tmp_path / "golden", backward=False)
    assert not any(
        record.role in GRADIENT_ROLES for record in opened(tmp_path / "golden").records()
    )


def test_micro_batches_and_two_backwards_are_calls_of_one_step(
    tmp_path: Path, opened: Opened
) -> None:
    model = nn.Linear(2, 2)
    with ac.capture(model, tmp_path / "golden"):
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
        y = model(torch.ones(1, 2)).sum()
        y.backward(retain_graph=True)
        y.backward()
    counts = Counter(
        (call, path)
        for _, call, role, path in gradients(opened(tmp_path / "golden"))
        if role == "call_grad"
    )
    assert counts == {(call, path): 1 for call in range(3) for path in ("weight", "bias")} | {
        (2, "weight#2"): 1,
        (2, "bias#2"): 1,
    }


def test_a_checkpointed_layer_has_its_gradients_once(tmp_path: Path, opened: Opened) -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.inner, x, use_reentrant=False)

    model = Checkpointed()
    with ac.capture(model, tmp_path / "golden"):
        model(torch.ones(2, 4)).sum().backward()
    found = gradients(opened(tmp_path / "golden"))
    assert Counter(name for name, _, role, _ in found if role == "call_grad") == {
        "inner.0": 2,
        "inner.2": 2,
    }
    assert all("#" not in path for *_, path in found)


def test_a_backward_that_raises_is_the_users_error_and_leaves_nothing_behind(
    tmp_path: Path, opened: Opened
) -> None:
    entrance = torch.autograd._engine_run_backward

    def fail(grad: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("no")

    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with pytest.raises(ArithmeticError, match="no"), ac.capture(model, tmp_path / "golden"):
        changed(model(torch.ones(1, 2)), fail).sum().backward()
    assert torch.autograd._engine_run_backward is entrance
    bundle = opened(tmp_path / "golden")
    assert not bundle.complete
    assert "ArithmeticError" in (bundle.manifest.stopped or {})["error"]


def test_a_graph_that_outlives_the_capture_records_nothing_more(
    tmp_path: Path, opened: Opened
) -> None:
    model = nn.Linear(2, 2)
    with ac.capture(model, tmp_path / "golden"):
        y = model(torch.ones(1, 2)).sum()
    y.backward()
    assert model.weight.grad is not None
    assert not gradients(opened(tmp_path / "golden"))


FAULTS = {
    "input": of_input("block", "x 1.02"),
    "weight": of_parameter("block", "weight", "x 1.02", lambda grad: grad * 1.02),
    "bias": of_parameter("block", "bias", "zero", torch.zeros_like),
    "glue": of_glue("", "norm", "gradient behind a child x 0.9", 0.9),
}


@pytest.mark.parametrize("which", FAULTS)
def test_a_fault_in_one_backward_is_named_by_a_fed_capture(which: str, tmp_path: Path) -> None:
    fault, (golden, fed, baseline) = (
        FAULTS[which],
        (tmp_path / name for name in ("golden", "fed", "baseline")),
    )
    train("tied", golden, 2)
    candidate = build("tied", torch.bfloat16)
    fault.plant(candidate)
    train("tied", fed, 2, model=candidate, feed=golden)
    train("tied", baseline, 2, model=build("tied", torch.bfloat16), feed=golden)
    comparison = ac.diff(golden, fed, baseline=baseline)
    first = comparison.culprits[0]
    assert (first.name, first.site, first.stage) == (
        fault.name,
        "glue" if fault.site == "glue" else "module",
        Stage.BACKWARD,
    )
    assert comparison.conclusion.startswith("bug: the backward of ")


def test_a_fault_in_a_backward_is_named_though_the_next_step_of_a_free_run_is_off_too(
    tmp_path: Path,
) -> None:
    """Its weights are other ones, then: that is no error of its forward."""
    golden, free, baseline = (tmp_path / name for name in ("golden", "free", "baseline"))
    candidate = build("tied")
    FAULTS["glue"].plant(candidate)
    train("tied", golden, 2)
    train("tied", free, 2, model=candidate)
    train("tied", baseline, 2, model=build("tied", torch.float64))
    comparison = ac.diff(golden, free, baseline=baseline)
    later = {
        row.reason
        for row in comparison.rows
        if row.record is not None and row.record.step == 1 and row.status is Status.FAIL
    }
    assert Reason.INHERITED in later
    assert Reason.INTRODUCED not in later
    first = comparison.culprits[0]
    assert (first.stage, first.row.record and first.row.record.step) == (Stage.BACKWARD, 0)


def test_a_wrong_loss_is_named_before_the_last_module_that_it_arrives_at(tmp_path: Path) -> None:
    golden, free, baseline = (tmp_path / name for name in ("golden", "free", "baseline"))
    for out, factor, dtype in (
        (golden, 1.0, torch.float32),
        (free, 0.5, torch.float32),
        (baseline, 1.0, torch.float64),
    ):
        model = build("recurrent", dtype)
        with ac.capture(model, out):
            ids = torch.randint(97, (2, 8), generator=torch.Generator().manual_seed(5))
            (MODELS["recurrent"][1](model, ids) * factor).backward()
    assert ac.diff(golden, free, baseline=baseline).culprits[0].stage is Stage.LOSS


def test_a_wrong_loss_is_told_from_a_wrong_model(tmp_path: Path) -> None:
    train("recurrent", tmp_path / "golden", optimizer=None)
    halved = build("recurrent")
    with ac.capture(halved, tmp_path / "fed", feed=tmp_path / "golden"):
        ids = torch.randint(97, (2, 8), generator=torch.Generator().manual_seed(5))
        (MODELS["recurrent"][1](halved, ids) / 2).backward()
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    assert {culprit.stage for culprit in comparison.culprits} == {Stage.LOSS}
    assert comparison.conclusion.startswith("bug: the backward of the loss, gradient of the output")


def test_a_parameter_that_a_module_returns_keeps_no_hook(tmp_path: Path) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self) -> torch.Tensor:
            return self.weight

    model = Table()
    with ac.capture(model, tmp_path / "golden"):
        model().sum().backward()
    assert not model.weight._backward_hooks


def test_what_torch_func_differentiates_is_left_alone(tmp_path: Path, opened: Opened) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    weights = dict(model.named_parameters())

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (x,)).sum()  # type: ignore[no-any-return]

    expected = torch.func.grad(loss)(weights, torch.ones(2, 3))
    with ac.capture(model, tmp_path / "golden"):
        found = torch.func.grad(loss)(weights, torch.ones(2, 3))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert opened(tmp_path / "golden").complete


def test_a_capture_in_which_no_backward_runs_is_one_of_the_forward_alone(
    tmp_path: Path, opened: Opened
) -> None:
    model = nn.Linear(2, 2)
    with ac.capture(model, tmp_path / "golden"):
        model(torch.ones(1, 2))
    bundle = opened(tmp_path / "golden")
    assert not bundle.manifest.notes
    assert not bundle.manifest.options.backward
    assert {record.role for record in bundle.records()} == {Role.INPUT, Role.OUTPUT}


def test_gradients_are_recorded_unless_that_is_refused(tmp_path: Path, opened: Opened) -> None:
    model = nn.Linear(2, 2)
    with ac.capture(model, tmp_path / "golden"):
        model(torch.ones(1, 2)).sum().backward()
    assert len(gradients(opened(tmp_path / "golden"))) == 3


def test_under_no_grad_hooks_look_for_nothing_of_a_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accucompare.live.autograd import spans

    def refuse(tensor: torch.Tensor) -> None:
        raise AssertionError("looked")

    monkeypatch.setattr(spans, "edge_of", refuse)
    with torch.no_grad(), ac.capture(nn.Linear(2, 2), tmp_path / "golden") as session:
        session._recorder._modules.named[""](torch.ones(1, 2))
    with ac.open_bundle(tmp_path / "golden") as bundle:
        assert bundle.complete


def test_a_loop_with_a_backward_that_is_fed_from_a_golden_without_one_says_what_is_missing(
    tmp_path: Path,
) -> None:
    model = nn.Linear(2, 2)
    with ac.capture(model, tmp_path / "golden"):
        model(torch.ones(1, 2))
    with (
        pytest.raises(
            CaptureError, match="was captured without gradients, so that none are computed here"
        ),
        ac.capture(model, tmp_path / "fed", feed=tmp_path / "golden"),
    ):
        model(torch.ones(1, 2)).sum().backward()


def test_an_update_without_a_gradient_is_not_the_culprit(tmp_path: Path) -> None:
    """The loss reaches no layer, so that no parameter has a gradient; what the optimizer makes of
    none is no error of its own.
    """

    def run(out: Path, reaches: bool, feed: Path | None = None) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        with ac.capture(model, out, feed=feed):
            loss = model(torch.ones(3, 4)).square().mean()
            (loss if reaches else torch.tensor(1.0, requires_grad=True)).backward()
            optimizer.step()
        return out

    golden = run(tmp_path / "golden", reaches=True)
    comparison = ac.diff(golden, run(tmp_path / "fed", reaches=False, feed=golden))
    assert not comparison.passed
    updates = [
        row
        for row in comparison.rows
        if row.record is not None and row.record.role is Role.PARAM_UPDATE
    ]
    assert {row.reason for row in updates} == {Reason.INHERITED}
    assert {
        culprit.row.record.role for culprit in comparison.culprits if culprit.row.record is not None
    } == {Role.LOSS, Role.GRAD_OUTPUT}


class _Adds(nn.Module):
    """As T5's attention: it returns the bias that it was given, and has used, beside what it
    computes.
    """

    def __init__(self, uses: bool) -> None:
        super().__init__()
        self.linear, self.uses = nn.Linear(4, 4), uses

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x)
        return (y + bias if self.uses else y), bias


class _Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, bias = self.inner(x, bias)
        return torch.tanh(y), bias


class _Biased(nn.Module):
    def __init__(self, uses: bool) -> None:
        super().__init__()
        self.bias = nn.Linear(4, 4)
        self.layers = nn.ModuleList([_Around(_Around(_Adds(uses))) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.bias(x)
        for layer in self.layers:
            x, bias = layer(x, bias)
        return x * bias


@pytest.mark.parametrize("uses", [True, False])
def test_a_value_that_nested_modules_pass_on_has_its_gradient_at_each_of_them_also_when_fed(
    uses: bool, tmp_path: Path
) -> None:
    def run(out: Path, feed: Path | None = None) -> Path:
        torch.manual_seed(0)
        model = _Biased(uses)
        with ac.capture(model, out, feed=feed):
            model(torch.ones(3, 4)).square().mean().backward()
        return out

    golden = run(tmp_path / "golden")
    comparison = ac.diff(golden, run(tmp_path / "fed", golden))
    passed_on = [
        row.record
        for row in comparison.rows
        if row.record is not None and row.place.endswith("inner grad_output.1")
    ]
    assert len(passed_on) == 6
    assert not comparison.unmatched()
    assert comparison.passed
