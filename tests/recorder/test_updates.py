"""What a capture records of an optimizer's update, and what a fed one gives it."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.format.records import UPDATE_ROLES, Layout, Role
from accucompare.bundle.reading.reader import Bundle
from accucompare.bundle.writing import BundleWriter
from accucompare.compare.origins.sites import Stage
from accucompare.compare.rows.rows import Reason, Status
from accucompare.live.operators import dispatch
from accucompare.numbers import digest
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.recording.updates import Updates
from accucompare.recorder.session import recording
from planted.training_faults import UPDATE_FAULTS, wrong_update
from tests.asked import grouped
from tests.recorded import Opened
from tests.recorder.trained import build, train


def updates(bundle: Bundle, step: int = 0) -> dict[tuple[str, str, str], Any]:
    """Values of a step's update by (name, role, path)."""
    chosen = [
        record for record in bundle.records() if record.role in UPDATE_ROLES and record.step == step
    ]
    return {
        (record.name, record.role.value, record.path): bundle.values(record)
        for record in chosen
        if record.member is not None
    }


def test_an_update_is_recorded_with_what_it_was_given_and_what_it_made(
    tmp_path: Path, opened: Opened
) -> None:
    kept: dict[str, torch.Tensor] = {}
    model = build("tied")

    def keep(model: nn.Module) -> None:
        block = model.get_submodule("block")
        kept.update({"before": block.weight.detach().clone(), "grad": block.weight.grad.clone()})  # type: ignore

    optimizers = []

    def adamw(model: nn.Module) -> torch.optim.Optimizer:
        optimizers.append(torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01))
        return optimizers[0]

    train("tied", tmp_path / "golden", 1, model=model, optimizer=adamw, before_update=keep)
    found = updates(opened(tmp_path / "golden"))
    after = model.get_submodule("block").weight.detach()  # type: ignore[union-attr]
    state = optimizers[0].state[model.get_submodule("block").weight]  # type: ignore[index]
    assert np.array_equal(found["block", "param_before", "weight"], kept["before"].numpy())
    assert np.array_equal(found["block", "param_grad", "weight"], kept["grad"].numpy())
    assert np.array_equal(
        found["block", "param_update", "weight"], (after - kept["before"]).numpy()
    )
    for name in ("exp_avg", "exp_avg_sq", "step"):
        assert np.array_equal(found["block", "state_after", f"weight.{name}"], state[name].numpy())
    assert found["", "state_before", "AdamW.0.lr"] == 1e-3
    assert found["", "state_before", "AdamW.0.betas.1"] == 0.999


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("mode", ["tensors", "digest"])
def test_an_update_is_the_same_whether_the_writer_is_late_or_early(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch, mode: str, late: bool
) -> None:
    model = nn.Linear(80, 80)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = model.weight.detach().clone()
    updated, spared = threading.Event(), []
    plain, ends = BundleWriter._write, Updates._ends

    def write(writer: BundleWriter, item: Any) -> None:
        assert not late or updated.wait(3600)
        plain(writer, item)

    def wait(updates: Any, *arguments: Any) -> None:
        updates._sink._writer._wake()
        while not late and not all(each.spare for each in updates._before.values()):
            time.sleep(0.001)
        spared.append(all(each.spare for each in updates._before.values()))
        ends(updates, *arguments)

    monkeypatch.setattr(BundleWriter, "_write", write)
    monkeypatch.setattr(Updates, "_ends", wait)
    asked = grouped(record=mode, roles="update")
    with ac.capture(model, tmp_path / "golden", **asked):
        model(torch.ones(80)).sum().backward()
        optimizer.step()
        updated.set()
    digests = {
        (record.role.value, record.path): record.digest
        for record in opened(tmp_path / "golden").records()
    }
    assert spared == [not late]
    assert digests["param_before", "weight"] == digest(before.numpy())
    assert digests["param_update", "weight"] == digest((model.weight.detach() - before).numpy())


def test_a_gradient_is_recorded_before_it_is_clipped(tmp_path: Path, opened: Opened) -> None:
    norms: list[float] = []
    train(
        "recurrent",
        tmp_path / "golden",
        before_update=lambda model: norms.append(
            float(nn.utils.clip_grad_norm_(model.parameters(), 0.01))
        ),
    )
    grads = [
        value
        for (_, role, _), value in updates(opened(tmp_path / "golden")).items()
        if role == "param_grad"
    ]
    assert np.sqrt(
        sum(np.square(grad.astype(np.float64)).sum() for grad in grads)
    ) == pytest.approx(norms[0], rel=1e-5)
    assert norms[0] > 0.02


def test_a_trainable_parameter_without_a_gradient_is_recorded_as_such(tmp_path: Path) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self.used(x)

    def once(out: Path, with_idle: bool) -> None:
        torch.manual_seed(0)
        model = Half()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with ac.capture(model, out):
            loss = model(torch.ones(1, 2)).sum() + (model.idle.weight.sum() * 0 if with_idle else 0)
            loss.backward()
            optimizer.step()

    once(tmp_path / "golden", True)
    once(tmp_path / "candidate", False)
    comparison = ac.diff(tmp_path / "golden", tmp_path / "candidate")
    failed = {row.place: row.reason for row in comparison.rows if row.status is Status.FAIL}
    assert failed == {"idle param_grad.weight": Reason.MISSING}


def test_parameters_in_no_optimizer_are_told(tmp_path: Path, opened: Opened) -> None:
    model = build("recurrent")
    train(
        "recurrent",
        tmp_path / "golden",
        model=model,
        optimizer=lambda model: torch.optim.SGD(model.get_submodule("out").parameters(), 0.1),
    )
    assert any(
        "trainable parameter(s) are in no optimizer that stepped" in note
        for note in opened(tmp_path / "golden").manifest.notes
    )


def test_hooks_of_updates_and_of_clipping_are_taken_off(tmp_path: Path) -> None:
    from torch.nn.utils import clip_grad
    from torch.optim import optimizer

    norm = clip_grad._get_total_norm
    train("recurrent", tmp_path / "golden")
    assert clip_grad._get_total_norm is norm
    assert not optimizer._global_optimizer_pre_hooks
    assert not optimizer._global_optimizer_post_hooks


def test_two_models_with_two_optimizers_are_told_apart(tmp_path: Path, opened: Opened) -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (one, other)]
    with ac.capture(one, tmp_path / "golden"):
        other(one(torch.ones(1, 2))).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert {
        name for name, role, _ in updates(opened(tmp_path / "golden")) if role == "param_update"
    } == {""}
    assert (
        len([key for key in updates(opened(tmp_path / "golden")) if key[1] == "param_update"]) == 2
    )


@pytest.mark.parametrize(
    "kind", [kind for kind in UPDATE_FAULTS if kind != "biases decayed"]
)  # here all are
def test_a_fault_of_the_update_is_named_by_a_fed_capture(kind: str, tmp_path: Path) -> None:
    golden, fed, baseline = (tmp_path / name for name in ("golden", "fed", "baseline"))
    train("tied", golden, 2)
    with wrong_update(kind):
        train("tied", fed, 2, feed=golden)
    train("tied", baseline, 2, model=build("tied", torch.float64), feed=golden)
    comparison = ac.diff(golden, fed, baseline=baseline)
    assert comparison.culprits
    assert {culprit.stage for culprit in comparison.culprits} == {Stage.UPDATE}


def test_a_wrong_learning_rate_is_said_as_such_and_not_as_many_wrong_updates(
    tmp_path: Path,
) -> None:
    train("tied", tmp_path / "golden", 2)
    other = lambda model: torch.optim.AdamW(model.parameters(), lr=2e-3)  # noqa: E731
    train("tied", tmp_path / "fed", 2, feed=tmp_path / "golden", optimizer=other)
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    assert comparison.culprits[0].place == "what the update is given of AdamW.0.lr"
    assert {culprit.stage for culprit in comparison.culprits} == {Stage.UPDATE}
    assert not [
        each
        for each in comparison.culprits
        if each.row.record and each.row.record.role is Role.PARAM_UPDATE
    ]


@pytest.mark.parametrize("way", ["foreach", "fused"])
def test_an_update_that_is_computed_another_way_is_no_difference(way: str, tmp_path: Path) -> None:
    adamw = lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False, fused=False)  # noqa: E731
    other = lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, **{way: True})  # noqa: E731
    train("recurrent", tmp_path / "golden", optimizer=adamw)
    train("recurrent", tmp_path / "fed", feed=tmp_path / "golden", optimizer=other)
    assert ac.diff(tmp_path / "golden", tmp_path / "fed").passed


def test_each_step_of_a_fed_capture_starts_from_goldens_weights(tmp_path: Path) -> None:
    """A wrong update of one step is no error of the next step's forward."""
    train("tied", tmp_path / "golden", 3)
    with wrong_update("beta1 0.8 for 0.9"):
        train("tied", tmp_path / "fed", 3, feed=tmp_path / "golden")
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    failed = {
        row.record.role
        for row in comparison.rows
        if row.record is not None and row.status is Status.FAIL
    }
    assert failed <= {Role.STATE_BEFORE, Role.STATE_AFTER, Role.PARAM_UPDATE}


@pytest.mark.parametrize("clipped", [False, True])
def test_an_update_is_given_goldens_gradients_whatever_arrives(
    clipped: bool, tmp_path: Path
) -> None:
    """Gradients that were halved fail; what the update makes of golden's in their place does
    not."""

    def clip(model: nn.Module) -> None:
        if clipped:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    def halve(model: nn.Module) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad *= 0.5
        clip(model)

    train("tied", tmp_path / "golden", 2, before_update=clip)
    train("tied", tmp_path / "fed", 2, before_update=halve, feed=tmp_path / "golden")
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    by_role = {
        role: [row for row in comparison.rows if row.record is not None and row.record.role is role]
        for role in UPDATE_ROLES
    }
    assert {row.reason for row in by_role[Role.PARAM_GRAD]} == {Reason.INTRODUCED}
    assert {
        row.reason for role in UPDATE_ROLES if role is not Role.PARAM_GRAD for row in by_role[role]
    } == {Reason.IDENTICAL}


def test_free_running_updates_of_other_gradients_are_not_judged(tmp_path: Path) -> None:
    train("tied", tmp_path / "golden", 1)
    train("tied", tmp_path / "candidate", 1, model=build("tied", torch.bfloat16))
    comparison = ac.diff(tmp_path / "golden", tmp_path / "candidate")
    made = [
        row
        for row in comparison.rows
        if row.record is not None and row.record.role is Role.PARAM_UPDATE
    ]
    assert {row.status for row in made} <= {Status.PASS, Status.NOT_COMPARED}
    assert comparison.passed


def test_a_closure_computes_its_gradients_in_the_update(tmp_path: Path, opened: Opened) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    with ac.capture(model, tmp_path / "golden"):
        optimizer.step(closure)
    found = updates(opened(tmp_path / "golden"))
    assert np.abs(found["", "param_grad", "weight"]).max() > 0


def test_a_step_that_is_skipped_has_no_update(tmp_path: Path, opened: Opened) -> None:
    model, scaler = nn.Linear(2, 2), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.capture(model, tmp_path / "golden"), contextlib.suppress(ZeroDivisionError):
        scaler.scale(model(torch.full((1, 2), float("inf"))).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert not updates(opened(tmp_path / "golden"))


def test_a_scaled_gradient_is_recorded_unscaled(tmp_path: Path, opened: Opened) -> None:
    model, scaler = nn.Linear(2, 2), torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.capture(model, tmp_path / "golden"):
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.step(optimizer)
    assert updates(opened(tmp_path / "golden"))["", "param_grad", "weight"].tolist() == [
        [1.0, 1.0],
        [1.0, 1.0],
    ]


def test_a_fused_update_that_unscales_its_gradients_is_given_goldens(tmp_path: Path) -> None:
    def once(out: Path, factor: float, **options: Any) -> None:
        torch.manual_seed(0)
        model, scaler = nn.Linear(4, 4), torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer = torch.optim.AdamW(model.parameters(), 0.1, fused=True)
        with ac.capture(model, out, **grouped(backward=True, **options)):
            scaler.scale(model(torch.linspace(-1, 1, 8).reshape(2, 4)).square().sum()).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad *= factor
            scaler.step(optimizer)

    once(tmp_path / "golden", 1.0)
    once(tmp_path / "fed", 0.5, feed=tmp_path / "golden")
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    failed = {
        row.record.role
        for row in comparison.rows
        if row.record is not None and row.status is Status.FAIL
    }
    assert failed == {Role.PARAM_GRAD}


def test_a_fed_update_that_computes_its_own_gradients_is_not_judged_by_goldens(
    tmp_path: Path,
) -> None:
    def once(out: Path, factor: float, **options: Any) -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(torch.linspace(-1, 1, 8).reshape(2, 4)).square().sum()
            loss.backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad *= factor
            return loss

        with ac.capture(model, out, **grouped(backward=True, **options)):
            optimizer.step(closure)

    once(tmp_path / "golden", 1.0)
    once(tmp_path / "fed", 0.5, feed=tmp_path / "golden")
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    made = [
        row
        for row in comparison.rows
        if row.record is not None and row.record.role is Role.PARAM_UPDATE
    ]
    assert {row.reason for row in made} == {Reason.NOT_COMPARABLE}
    assert {culprit.row.record.role for culprit in comparison.culprits if culprit.row.record} == {
        Role.PARAM_GRAD
    }


def test_a_gradient_that_is_kept_in_main_grad_is_recorded_from_there(
    tmp_path: Path, opened: Opened
) -> None:
    """As Megatron does it: ``grad`` is None when the update begins, and the optimizer holds copies
    of the parameters.
    """
    model = nn.Linear(2, 2)
    copies = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(copies, 0.1)
    with ac.capture(model, tmp_path / "golden"):
        model(torch.ones(1, 2)).sum().backward()
        for parameter, copy in zip(model.parameters(), copies, strict=True):
            parameter.main_grad = copy.grad = parameter.grad * 2  # type: ignore
            parameter.grad = None
        optimizer.step()
        for parameter in model.parameters():
            parameter.main_grad.zero_()  # type: ignore[attr-defined]
    bundle = opened(tmp_path / "golden")
    found = {record.path: record for record in bundle.records() if record.role is Role.PARAM_GRAD}
    assert bundle.values(found["weight"]).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert {record.detail for record in found.values()} == {"main_grad"}
    assert any(
        "holds no parameter of the model (SGD); its updates are not recorded" in note
        for note in bundle.manifest.notes
    )
    assert bundle.manifest.series[0].grad_norm == pytest.approx(np.sqrt(4 * 4 + 2 * 4))


def test_what_megatron_chains_of_two_optimizers_is_one_update(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in model]
    with ac.capture(model, str(tmp_path / "out")) as session:
        model(torch.ones(2, 3)).sum().backward()
        for parameter in model.parameters():
            parameter.main_grad, parameter.grad = parameter.grad, None  # type: ignore[attr-defined]
            parameter.grad = parameter.main_grad  # type: ignore[attr-defined]
        for optimizer in optimizers:
            optimizer.step()
        session.step()
    with ac.open_bundle(tmp_path / "out") as bundle:
        assert {each.call for each in bundle.records() if each.role in UPDATE_ROLES} == {0}
        assert [each.updates for each in bundle.manifest.series] == [1]


def test_main_grad_is_used_where_the_optimizer_holds_the_parameters_themselves(
    tmp_path: Path, opened: Opened
) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.capture(model, tmp_path / "golden"):
        for parameter in model.parameters():
            parameter.main_grad = torch.full_like(parameter, 3.0)  # type: ignore[attr-defined]
        optimizer.step()
    found = updates(opened(tmp_path / "golden"))
    assert found["", "param_grad", "weight"].tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_a_trainable_parameter_in_no_optimizer_has_a_record_all_the_same(
    tmp_path: Path, opened: Opened
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].requires_grad_(False)
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    with ac.capture(model, tmp_path / "golden"):
        model(torch.ones(1, 2)).sum().backward()
        model[2].bias.grad = None
        optimizer.step()
    bundle = opened(tmp_path / "golden")
    found = {
        (record.name, record.path): record
        for record in bundle.records()
        if record.role is Role.PARAM_GRAD
    }
    assert set(found) == {(name, path) for name in ("0", "2") for path in ("weight", "bias")}
    assert np.array_equal(bundle.values(found["2", "weight"]), model[2].weight.grad.numpy())  # type: ignore[union-attr]
    assert {found["2", path].detail for path in ("weight", "bias")} == {
        "in no optimizer that stepped"
    }


def test_a_sparse_gradient_is_listed_and_counts_in_the_norm(tmp_path: Path, opened: Opened) -> None:
    model = nn.Embedding(8, 3, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.capture(model, tmp_path / "golden"):
        model(torch.tensor([1, 1, 5])).sum().backward()
        optimizer.step()
    bundle = opened(tmp_path / "golden")
    (grad,) = [record for record in bundle.records() if record.role is Role.PARAM_GRAD]
    assert (grad.layout, grad.member) == (Layout.SPARSE, None)
    assert bundle.manifest.series[0].grad_norm == pytest.approx(np.sqrt(3 * 4 + 3 * 1))
    assert any(record.role is Role.PARAM_UPDATE and record.member for record in bundle.records())


def test_two_optimizers_of_a_gan_record_each_their_own_update(
    tmp_path: Path, opened: Opened
) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"generator": nn.Linear(2, 2), "critic": nn.Linear(2, 1)})
    optimizers = {name: torch.optim.SGD(part.parameters(), 0.1) for name, part in model.items()}
    grads: dict[str, torch.Tensor] = {}
    with ac.capture(model, tmp_path / "golden", loop=optimizers.values()) as session:
        for _ in range(2):
            for name, sign in (("critic", -1.0), ("generator", 1.0)):
                model.zero_grad()
                (sign * model["critic"](model["generator"](torch.ones(1, 2)))).sum().backward()
                grads[name] = model[name].weight.grad.clone()  # type: ignore[union-attr, operator]
                optimizers[name].step()
            session.step()
    bundle = opened(tmp_path / "golden")
    for step in (0, 1):
        chosen = [
            record
            for record in bundle.records()
            if record.step == step and record.role is Role.PARAM_GRAD
        ]
        assert sorted((record.name, record.call, record.path) for record in chosen) == [
            *(("critic", 0, path) for path in ("bias", "weight")),
            *(("generator", 1, path) for path in ("bias", "weight")),
        ]
    found = updates(bundle, 1)
    assert all(
        np.array_equal(found[name, "param_grad", "weight"], grad.numpy())
        for name, grad in grads.items()
    )
    assert [entry.updates for entry in bundle.manifest.series] == [2, 2]


def test_a_capture_inside_a_capture_records_the_same_and_leaves_nothing(tmp_path: Path) -> None:
    from torch.nn.utils import clip_grad

    group, step = clip_grad._group_tensors_by_device_and_dtype, torch.amp.GradScaler.step
    model = build("recurrent")
    clip = lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # noqa: E731
    with ac.capture(model, tmp_path / "outer"):
        train("recurrent", tmp_path / "inner", model=model, before_update=clip)
    train("recurrent", tmp_path / "alone", before_update=clip)
    for name in ("outer", "inner"):
        comparison = ac.diff(tmp_path / "alone", tmp_path / name)
        assert {row.reason for row in comparison.rows} == {Reason.IDENTICAL}
    assert clip_grad._group_tensors_by_device_and_dtype is group
    assert torch.amp.GradScaler.step is step


def test_captures_that_end_in_the_order_they_began_draw_right_and_leave_nothing(
    tmp_path: Path,
) -> None:
    from torch.nn.utils import clip_grad

    group = clip_grad._group_tensors_by_device_and_dtype
    captures = [ac.capture(nn.Linear(2, 2), tmp_path / str(number)) for number in range(2)]
    for capture in captures:
        capture.__enter__()
    captures[0].__exit__(None, None, None)
    drawn = nn.functional.dropout(torch.ones(64))
    captures[1].__exit__(None, None, None)
    with ac.capture(nn.Linear(2, 2), tmp_path / "alone"):
        assert torch.equal(nn.functional.dropout(torch.ones(64)), drawn)
    assert clip_grad._group_tensors_by_device_and_dtype is group
    assert not torch._C._dispatch_tls_is_dispatch_key_included(
        torch._C._parse_dispatch_key(dispatch._KEY)
    )


def test_no_gradient_is_held_longer_than_plain_training_holds_it(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    gradients: list[weakref.ref[torch.Tensor]] = []
    with ac.capture(model, tmp_path / "golden"):
        out = model(torch.ones(64, 64))
        out.register_hook(lambda grad: gradients.append(weakref.ref(grad)))
        out.square().sum().backward()
        del out
        assert gradients[0]() is None  # what passes through the graph
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        gradients += [
            weakref.ref(parameter.grad)
            for parameter in model.parameters()
            if parameter.grad is not None
        ]
        optimizer.step()
        optimizer.zero_grad()
        assert len(gradients) == 5
        assert all(gradient() is None for gradient in gradients)  # those of the parameters


def test_an_update_has_the_same_digests_and_statistics_with_and_without_its_tensors(
    tmp_path: Path, opened: Opened
) -> None:
    def once(out: Path, mode: str) -> dict[Any, Any]:
        torch.manual_seed(0)
        model = nn.Linear(1024, 1024)  # so large that two threads share it
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        with ac.capture(model, out, record=ac.Recorded(mode, roles="grads,update")) as session:
            for _ in range(2):
                model(torch.ones(1, 1024)).square().sum().backward()
                optimizer.step()
                session.step()
        return {record.key: (record.digest, record.statistics) for record in opened(out).records()}

    with_tensors, without = once(tmp_path / "tensors", "tensors"), once(tmp_path / "stats", "stats")
    assert with_tensors == without
    assert sum(key.path == "weight.exp_avg" for key in without) == 3
    assert all(digest and statistics for digest, statistics in without.values())


def test_a_fed_model_has_goldens_weights_wherever_the_updates_are(tmp_path: Path) -> None:
    """After ``session.step()``, between two calls of one step, or once in several steps."""

    def trained(out: Path, **options: Any) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
        wrong = options.pop("lr", 0.1)
        first, last = (torch.optim.SGD(model[each].parameters(), wrong) for each in (0, 2))
        with ac.capture(model, out, **grouped(backward=True, **options)) as session:
            for number in range(5):
                model(torch.ones(1, 3)).sum().backward()
                first.step()
                model(torch.ones(1, 3)).square().sum().backward()
                session.step()
                if number % 2:
                    last.step()
                    last.zero_grad()
        return out

    golden = trained(tmp_path / "golden")
    assert {
        row.reason for row in ac.diff(golden, trained(tmp_path / "same", feed=golden)).rows
    } == {Reason.IDENTICAL}
    comparison = ac.diff(golden, trained(tmp_path / "fed", feed=golden, lr=0.2))
    failed = [
        row.record
        for row in comparison.rows
        if row.status is Status.FAIL and row.record is not None
    ]
    # what golden's last update made, it has not recorded
    known = {record.role for record in failed if record.step < 4}
    # the learning rate, and what is made of it
    assert known == {Role.STATE_BEFORE, Role.PARAM_UPDATE}


@pytest.mark.parametrize("by_hand", [True, False])
def test_an_update_without_an_optimizer_of_torchs_is_noted(
    by_hand: bool, tmp_path: Path, opened: Opened
) -> None:
    model = nn.Linear(2, 2)
    with ac.capture(model, tmp_path / "golden") as session:
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters() if by_hand else ():
                    parameter -= 0.1 * parameter.grad
            session.step()
    noted = [
        note
        for note in opened(tmp_path / "golden").manifest.notes
        if "without a step of a torch.optim optimizer" in note
    ]
    assert len(noted) == by_hand


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_updates_are_right_where_there_is_room_for_few_at_a_time(
    dtype: torch.dtype, tmp_path: Path, opened: Opened
) -> None:
    """Their memory is used again as soon as one is written."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(6))).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    expected = []
    options = CaptureOptions(roles="update", queue_bytes=40_000)
    with recording(model, tmp_path / "out", options) as session:
        for _ in range(3):
            model(torch.ones(2, 64, dtype=dtype)).square().sum().backward()
            before = [each.detach().clone() for each in model.parameters()]
            optimizer.step()
            expected.append(
                [
                    (each.detach().float() - old.float()).numpy()
                    for each, old in zip(model.parameters(), before, strict=True)
                ]
            )
            session.step()
    bundle = opened(tmp_path / "out")
    found = {
        (each.step, each.name): bundle.values(each)
        for each in bundle.records()
        if each.role is Role.PARAM_UPDATE
    }
    assert len(found) == 18
    for (step, name), update in found.items():
        assert np.array_equal(update, expected[step][int(name)])
