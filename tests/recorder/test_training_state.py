"""``--save-state`` of a training, and going on from it: the same bits as without the interruption, or it is said what is missing."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.training_state import Component
from accucompare.compare.result import Answer
from accucompare.compare.rows import Reason
from accucompare.errors import BundleError, CaptureError, UsageError
from tests.conftest import Run


class Net(nn.Module):
    """Dropout, batch norm, a buffer that it computes itself and changes, and a counter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.first, self.norm, self.drop, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8), persistent=False)
        self.register_buffer("table", torch.arange(8.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = self.drop(self.norm(self.first(x)))
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        out: torch.Tensor = self.last(hidden + self.mean) * (1 + self.calls / 10)
        return out


@dataclass
class Loop:
    """A model with all that trains it; and what came out."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    scaler: Any
    losses: list[float] = field(default_factory=list)

    @classmethod
    def new(cls, seed: int = 0, lr: float = 1e-2) -> Loop:
        torch.manual_seed(seed)
        model = Net().train()
        optimizer = torch.optim.AdamW(model.parameters(), lr)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], gamma=0.5)
        return cls(model, optimizer, scheduler, torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2))

    @property
    def parts(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": self.scaler}

    def step(self, number: int) -> None:
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(number))
        loss = self.model(x).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.losses.append(loss.item())

    def tensors(self) -> dict[str, torch.Tensor]:
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}


def run(loop: Loop, out: Path, steps: range, recorded: str | None = None, **options: Any) -> Loop:
    with ac.capture(loop.model, out, backward=True, steps=recorded, **options) as session:
        for number in steps:
            loop.step(number)
            session.step()
    return loop


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Loop]:
    """Steps 0 to 5 in one go; of steps 3 to 5 the records, and the state before them."""
    out = tmp_path_factory.mktemp("golden") / "golden"
    torch.manual_seed(1)
    loop = Loop.new()
    run(loop, out, range(6), "3-5", save_state=True, **loop.parts)
    return out, loop


@pytest.fixture(scope="module")
def continued(golden: tuple[Path, Loop], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Loop]:
    """Steps 3 to 5, from that state, of a loop that was made otherwise."""
    out = tmp_path_factory.mktemp("continued") / "out"
    loop = Loop.new(seed=5)
    return out, run(loop, out, range(3, 6), like=golden[0], **loop.parts)


def test_going_on_from_a_state_gives_the_bits_of_the_run_that_went_on(golden: tuple[Path, Loop], continued: tuple[Path, Loop]) -> None:
    whole, rest = golden[1], continued[1]
    assert rest.losses == whole.losses[3:]
    for name, tensor in whole.tensors().items():
        assert torch.equal(rest.tensors()[name], tensor), name
    for part in ("scheduler", "scaler"):
        assert rest.parts[part].state_dict() == whole.parts[part].state_dict()
    assert rest.model.calls == whole.model.calls


def test_every_record_of_the_steps_that_went_on_is_identical(golden: tuple[Path, Loop], continued: tuple[Path, Loop]) -> None:
    comparison = ac.diff(golden[0], continued[0])
    assert {row.record.step for row in comparison.rows} == {3, 4, 5}
    assert {row.reason for row in comparison.rows} == {Reason.IDENTICAL}
    assert comparison.answer is Answer.IDENTICAL
    assert not any(finding.serious for finding in comparison.preflight)


def test_random_numbers_are_drawn_on_after_the_capture(golden: tuple[Path, Loop], tmp_path: Path) -> None:
    path, _ = golden
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        loop = Loop.new(seed)
        with ac.capture(loop.model, tmp_path / f"out{seed}", like=path, **loop.parts):
            drawn.append((torch.rand(3).tolist(), random.random(), np.random.rand(), nn.functional.dropout(torch.ones(9)).tolist()))
    assert drawn[0] == drawn[1]


# -- what is left out ---------------------------------------------------------------------------------------------------------------

LEFT_OUT: dict[str, tuple[Callable[[Loop], dict[str, Any]], Component]] = {
    "optimizer": (lambda loop: {"scheduler": loop.scheduler, "scaler": loop.scaler}, Component.OPTIMIZER),
    "scheduler": (lambda loop: {"optimizer": loop.optimizer, "scaler": loop.scaler}, Component.SCHEDULER),
    "scaler": (lambda loop: {"optimizer": loop.optimizer, "scheduler": loop.scheduler}, Component.SCALER),
    "random": (lambda loop: {**loop.parts, "seed": 12}, Component.RANDOM),
}


@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_what_is_not_restored_changes_the_run_and_is_unverified(left_out: str, golden: tuple[Path, Loop], tmp_path: Path, cli: Run) -> None:
    """The negative control: a check that holds without the component, too, would prove nothing."""
    path, whole = golden
    loop = Loop.new()
    given, component = LEFT_OUT[left_out]
    run(loop, tmp_path / "out", range(3, 6), like=path, **given(loop))
    after = [(each.losses[-3:], each.scaler.state_dict(), each.scheduler.last_epoch) for each in (loop, whole)]
    assert after[0] != after[1]
    done = cli("diff", path, tmp_path / "out", "--report", tmp_path / "report.xlsx")
    assert done.returncode == 2
    words = " ".join(done.stdout.split())
    assert f"unverified: candidate started from step 3 of {path} without the {component} of that state" in words


def opaque_in_the_optimizer(loop: Loop) -> None:
    loop.optimizer.state[loop.model.first.weight]["cache"] = object()


def closure_in_the_scheduler(loop: Loop) -> None:
    loop.scheduler.anneal = lambda step: step


def other_parameters(loop: Loop) -> None:
    loop.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


def sparse_gradient(loop: Loop) -> None:
    loop.model.first.weight.grad = torch.ones(8, 6).to_sparse()


def subclass_in_the_optimizer(loop: Loop) -> None:
    class Distributed(torch.Tensor):
        pass

    loop.optimizer.state[loop.model.first.weight]["shard"] = torch.ones(2).as_subclass(Distributed)


def generator_of_its_own(loop: Loop) -> None:
    loop.model.generator = torch.Generator()


CANNOT_BE_SAVED: dict[str, tuple[Callable[[Loop], None], Component, str]] = {
    "opaque": (opaque_in_the_optimizer, Component.OPTIMIZER, "optimizer 0 first.weight, 'cache': a object cannot be saved"),
    "subclass": (subclass_in_the_optimizer, Component.OPTIMIZER, "optimizer 0 first.weight, 'shard': a Distributed cannot be saved"),
    "closure": (closure_in_the_scheduler, Component.SCHEDULER, "scheduler 0 anneal: a function cannot be saved"),
    "other": (other_parameters, Component.OPTIMIZER, "optimizer 0 holds 1 parameter(s) that the model does not have"),
    "sparse": (sparse_gradient, Component.GRADIENTS, "gradients, 'first.weight': a tensor that is sparse_coo"),
    "generator": (generator_of_its_own, Component.RANDOM, "generator: a generator of the model's own cannot be saved"),
}


@pytest.mark.parametrize("what", CANNOT_BE_SAVED)
def test_what_cannot_be_saved_is_listed_with_its_reason(what: str, tmp_path: Path) -> None:
    change, component, reason = CANNOT_BE_SAVED[what]
    loop = Loop.new()
    with ac.capture(loop.model, tmp_path / "golden", save_state=True, steps="1-1", **loop.parts) as session:
        loop.step(0)
        change(loop)
        session.step()
    with ac.open_bundle(tmp_path / "golden") as bundle:
        state = bundle.manifest.training.training_state
    assert state is not None
    assert [entry.reason for entry in state.missing if entry.component is component and entry.reason.startswith(reason)]


def test_a_component_that_there_is_none_of_is_listed_with_the_reason(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with ac.capture(model, tmp_path / "golden", save_state=True, scaler=torch.amp.GradScaler("cpu", enabled=False)):
        pass
    with ac.open_bundle(tmp_path / "golden") as bundle:
        state = bundle.manifest.training.training_state
    assert state is not None
    assert {entry.component: entry.reason for entry in state.unused} == {
        Component.OPTIMIZER: "there is none",
        Component.SCHEDULER: "there is none",
        Component.SCALER: "it is not enabled",
    }


def test_a_state_that_lacks_something_makes_what_starts_from_it_unverified(tmp_path: Path) -> None:
    loop = Loop.new()
    closure_in_the_scheduler(loop)
    run(loop, tmp_path / "golden", range(2), save_state=True, **loop.parts)
    again = Loop.new()
    run(again, tmp_path / "out", range(2), like=tmp_path / "golden", **again.parts)
    comparison = ac.diff(tmp_path / "golden", tmp_path / "out")
    assert not comparison.passed
    assert comparison.trouble.startswith("unverified: candidate started from step 0 of")
    assert "without the scheduler of that state: scheduler 0 anneal: a function cannot be saved" in comparison.trouble


def test_an_optimizer_that_the_capture_was_not_given_is_missing_once_it_has_state(tmp_path: Path) -> None:
    loop = Loop.new()
    run(loop, tmp_path / "first", range(1), save_state=True)
    run(loop, tmp_path / "second", range(1, 2), save_state=True)
    missing = []
    for name in ("first", "second"):
        with ac.open_bundle(tmp_path / name) as bundle:
            state = bundle.manifest.training.training_state
        assert state is not None
        missing.append([entry.reason for entry in state.missing if entry.component is Component.OPTIMIZER])
    assert missing == [[], ["AdamW stepped the model's parameters, but the capture was not given it (optimizer=…)"]]


# -- what is code, and stays the loop's own -----------------------------------------------------------------------------------------


def test_what_no_step_has_changed_is_code_and_not_taken_from_the_state(tmp_path: Path) -> None:
    """Else a wrong learning rate would be hidden by golden's."""
    loop, other = Loop.new(lr=1e-2), Loop.new(lr=3e-2)
    run(loop, tmp_path / "golden", range(1), save_state=True, **loop.parts)
    run(other, tmp_path / "out", range(0), like=tmp_path / "golden", **other.parts)
    assert other.optimizer.param_groups[0]["lr"] == 3e-2
    with ac.open_bundle(tmp_path / "out") as bundle:
        assert "--like: optimizer 0 has 0.lr 0.03 here, 0.01 in the state; it keeps its own" in bundle.manifest.notes


def test_what_the_steps_have_changed_is_taken_from_the_state(golden: tuple[Path, Loop], tmp_path: Path) -> None:
    loop = Loop.new(lr=3e-2)
    run(loop, tmp_path / "out", range(0), like=golden[0], **loop.parts)
    assert loop.optimizer.param_groups[0]["lr"] == 5e-3
    assert loop.optimizer.param_groups[0]["initial_lr"] == 3e-2
    assert loop.scheduler.last_epoch == 3


def test_what_was_taken_from_a_state_is_part_of_the_next_one(golden: tuple[Path, Loop], tmp_path: Path) -> None:
    first, second = Loop.new(), Loop.new()
    run(first, tmp_path / "first", range(0), like=golden[0], save_state=True, **first.parts)
    run(second, tmp_path / "second", range(3, 6), like=tmp_path / "first", **second.parts)
    assert second.losses == golden[1].losses[3:]
    assert second.scheduler.state_dict() == golden[1].scheduler.state_dict()


# -- other loops ----------------------------------------------------------------------------------------------------------------------


def test_state_of_another_type_than_its_parameter_keeps_it(tmp_path: Path) -> None:
    """``load_state_dict`` would cast moments in float32 to the bfloat16 of the parameter."""
    models = [nn.Linear(3, 3).to(torch.bfloat16) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in models]
    moment = torch.randn(3, 3)
    optimizers[0].state[models[0].weight]["momentum_buffer"] = moment
    for model, optimizer, options in zip(models, optimizers, ({"save_state": True}, {"like": tmp_path / "0"}), strict=True):
        with ac.capture(model, tmp_path / str(models.index(model)), optimizer=optimizer, **options):
            pass
    assert torch.equal(optimizers[1].state[models[1].weight]["momentum_buffer"], moment)


def test_several_optimizers_and_gradients_that_are_left_over_come_back(tmp_path: Path) -> None:
    def build() -> tuple[nn.Module, list[torch.optim.Optimizer]]:
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        return model, [torch.optim.Adam(model[0].parameters()), torch.optim.SGD(model[1].parameters(), 0.1, momentum=0.9)]

    (model, optimizers), (other, others) = build(), build()
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    with ac.capture(model, tmp_path / "golden", save_state=True, optimizer=optimizers):
        pass
    with ac.capture(other, tmp_path / "out", like=tmp_path / "golden", optimizer=others):
        pass
    for ours, theirs in zip(optimizers, others, strict=True):
        state = [[each.state[tensor] for group in each.param_groups for tensor in group["params"]] for each in (ours, theirs)]
        for mine, its in zip(*state, strict=True):
            assert mine.keys() == its.keys()
            assert all(torch.equal(torch.as_tensor(mine[key]), torch.as_tensor(its[key])) for key in mine)
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.grad, its.grad)


def test_an_optimizers_state_follows_its_parameters_under_other_names_and_in_another_order(tmp_path: Path) -> None:
    def build(names: str) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Module()
        for name in names:
            model.add_module(name, nn.Linear(2, 2, bias=False))
        return model, torch.optim.SGD([model.get_submodule(name).weight for name in sorted(names)], 0.1, momentum=0.9)

    (model, optimizer), (other, its) = build("ab"), build("ca")
    for number, name in enumerate("ab"):
        optimizer.state[model.get_submodule(name).weight]["momentum_buffer"] = torch.full((2, 2), float(number))
    with ac.capture(model, tmp_path / "golden", save_state=True, optimizer=optimizer):
        pass
    with ac.capture(other, tmp_path / "out", like=tmp_path / "golden", optimizer=its, map=["a=c", "b=a"]):
        pass
    assert its.state[other.c.weight]["momentum_buffer"].tolist() == [[0, 0], [0, 0]]
    assert its.state[other.a.weight]["momentum_buffer"].tolist() == [[1, 1], [1, 1]]


def test_steps_before_the_state_are_refused(golden: tuple[Path, Loop], tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"--steps 2-4: the state of .* is that before step 3; choose steps from 3 on"),
        ac.capture(Loop.new().model, tmp_path / "out", like=golden[0], steps="2-4"),
    ):
        pass


def test_a_golden_of_a_later_step_is_not_fed_to_the_weights_of_the_first(golden: tuple[Path, Loop], tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=rf"begins with the weights of step 3, and the model has those of step 0: give --like {golden[0]}"),
        ac.capture(Loop.new().model, tmp_path / "out", feed=golden[0]),
    ):
        pass


def test_a_count_of_steps_is_counted_from_the_state(golden: tuple[Path, Loop], tmp_path: Path) -> None:
    loop = Loop.new()
    with ac.capture(loop.model, tmp_path / "out", like=golden[0], steps=2, **loop.parts) as session:
        numbers = []
        for number in range(3, 6):
            numbers.append(session.step_number)
            loop.step(number)
            session.step()
    assert numbers == [3, 4, 5]
    with ac.open_bundle(tmp_path / "out") as bundle:
        assert [entry.step for _, entry in bundle.steps()] == [3, 4]
        assert bundle.manifest.options.steps == 2


# -- what does not fit ----------------------------------------------------------------------------------------------------------------


def sgd(loop: Loop) -> Any:
    return torch.optim.SGD(loop.model.parameters(), 0.1)


def two_groups(loop: Loop) -> Any:
    parameters = list(loop.model.parameters())
    return torch.optim.AdamW([{"params": parameters[:2]}, {"params": parameters[2:]}])


def fewer(loop: Loop) -> Any:
    return torch.optim.AdamW(list(loop.model.parameters())[1:])


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (sgd, r"--like: optimizer 0 is a torch\.optim\.sgd\.SGD here, but a torch\.optim\.adamw\.AdamW in "),
        (two_groups, r"--like: optimizer 0 has 2 parameter group\(s\) here, but 1 in "),
        (fewer, r"--like: optimizer 0: other parameter groups: 'first\.weight' is in group 0 in .* only"),
        (lambda loop: [sgd(loop), sgd(loop)], r"--like: there are 2 optimizers here, but 1 in "),
    ],
    ids=["class", "groups", "parameters", "number"],
)
def test_an_optimizer_that_does_not_fit_is_refused_and_nothing_is_changed(
    optimizer: Callable[[Loop], Any], message: str, golden: tuple[Path, Loop], tmp_path: Path
) -> None:
    loop = Loop.new(seed=9)
    before = loop.model.first.weight.clone()
    with pytest.raises(CaptureError, match=message), ac.capture(loop.model, tmp_path / "out", like=golden[0], optimizer=optimizer(loop)):
        pass
    assert torch.equal(loop.model.first.weight, before)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["optimizer", "scheduler", "scaler"])
def test_something_else_in_place_of_an_optimizer_is_a_usage_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"^{name} must be an? .*, but is a dict"):
        ac.capture(nn.Linear(1, 1), tmp_path / "out", **{name: {}})
    with pytest.raises(UsageError, match=rf"^{name} must be an? .*, but is the class SGD"):
        ac.capture(nn.Linear(1, 1), tmp_path / "out", **{name: torch.optim.SGD})


def edited(golden: Path, out: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    shutil.copytree(golden, out)
    manifest = json.loads((out / "manifest.json").read_text())
    edit(manifest["capture"])
    (out / "manifest.json").write_text(json.dumps(manifest))
    return out


def test_a_bundle_of_an_older_version_cannot_continue_a_training(golden: tuple[Path, Loop], tmp_path: Path) -> None:
    old = edited(golden[0], tmp_path / "old", lambda capture: capture.pop("training_state"))
    loop = Loop.new()
    with pytest.raises(CaptureError, match="was written by an older accucompare, which saved weights and inputs, but not the state of the"):
        run(loop, tmp_path / "out", range(3, 6), like=old, **loop.parts)
    with ac.capture(loop.model, tmp_path / "forward", like=old):  # of weights alone it still can
        pass


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "step": lambda state: state.update(step=-1),
    "step too large": lambda state: state.update(step=1 << 70),
    "options": lambda state: state["optimizers"][0].update(options=[1]),
    "tensor": lambda state: state["optimizers"][0]["state"]["first.weight"]["dict"][1].__setitem__(1, {"tensor": "99"}),
    "no state": lambda state: state["optimizers"][0]["state"].update({"first.weight": {"value": 3}}),
    "unhashable": lambda state: state["schedulers"][0]["options"].update(last_epoch={"dict": [[[], {"value": 3}]]}),
    "random": lambda state: state["random"]["dict"][1][1]["list"].__setitem__(1, {"value": 7}),
    "random devices": lambda state: state["random"]["dict"][0][1]["dict"][0].__setitem__(1, {"tensor": "1"}),
    "draws": lambda state: state["draws"].update(numbers={"no hex": 1}),
    "draws' count": lambda state: state["draws"].update(count=1.5),
    "gradients": lambda state: state.update(gradients={"dict": [["first.weight", {"value": 1}]]}),
    "no gradients": lambda state: state.update(gradients={"value": 1}),
    "attributes": lambda state: state.update(attributes={"": {"calls": [1]}}),
    "component": lambda state: state.update(missing=[{"component": "nothing", "reason": ""}]),
}


@pytest.mark.parametrize("damage", HOSTILE)
def test_a_damaged_state_is_an_error_that_names_the_file(damage: str, golden: tuple[Path, Loop], tmp_path: Path) -> None:
    path = edited(golden[0], tmp_path / "bad", lambda capture: HOSTILE[damage](capture["training_state"]))
    loop = Loop.new()
    with pytest.raises(BundleError, match=f"^{path}") as raised:
        run(loop, tmp_path / "out", range(3, 6), like=path, **loop.parts)
    assert len(str(raised.value)) < 600


def test_a_flipped_bit_in_a_saved_moment_is_found_and_named(golden: tuple[Path, Loop], tmp_path: Path) -> None:
    shutil.copytree(golden[0], tmp_path / "bad")
    with ac.open_bundle(tmp_path / "bad") as bundle:
        record = next(record for record in bundle.state() if record.name == "optimizer 0 first.weight 1")
        _, offset = bundle.locate(record)
    with (tmp_path / "bad/rank0/state.npz").open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))
    loop = Loop.new()
    with pytest.raises(BundleError, match=r"rank0/state\.npz: optimizer 0 first\.weight 1 .* is corrupt"):
        run(loop, tmp_path / "out", range(3, 6), like=tmp_path / "bad", **loop.parts)
