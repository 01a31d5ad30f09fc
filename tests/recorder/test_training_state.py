"""``--save-state`` of a training, and going on from it: the same bits as without the interruption,
or it is said what is missing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.format.saved_training import Component, Missing
from accucompare.compare.decide import Answer
from accucompare.compare.preflight_facts import BesideGolden
from accucompare.compare.rows.rows import Reason
from accucompare.compare.trust.unverified import unverified
from accucompare.report.words.preflight_words import message
from tests.asked import grouped
from tests.conftest import Run
from tests.recorder.looped import Loop, edited, interrupted, run


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Loop]:
    return interrupted(tmp_path_factory.mktemp("golden") / "golden")


@pytest.fixture(scope="module")
def continued(
    golden: tuple[Path, Loop], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Loop]:
    """Steps 3 to 5, from that state, of a loop that was made otherwise."""
    out = tmp_path_factory.mktemp("continued") / "out"
    loop = Loop.new(seed=5)
    return out, run(loop, out, range(3, 6), like=golden[0], **loop.parts)


def test_going_on_from_a_state_gives_the_bits_of_the_run_that_went_on(
    golden: tuple[Path, Loop], continued: tuple[Path, Loop]
) -> None:
    whole, rest = golden[1], continued[1]
    assert rest.losses == whole.losses[3:]
    for name, tensor in whole.tensors().items():
        assert torch.equal(rest.tensors()[name], tensor), name
    for part in ("scheduler", "scaler"):
        assert rest.parts[part].state_dict() == whole.parts[part].state_dict()
    assert rest.model.calls == whole.model.calls


def test_every_record_of_the_steps_that_went_on_is_identical(
    golden: tuple[Path, Loop], continued: tuple[Path, Loop]
) -> None:
    comparison = ac.diff(golden[0], continued[0])
    assert {row.record.step for row in comparison.rows} == {3, 4, 5}
    assert {row.reason for row in comparison.rows} == {Reason.IDENTICAL}
    assert comparison.answer is Answer.IDENTICAL
    assert not any(finding.serious for finding in comparison.preflight)


def test_random_numbers_are_drawn_on_after_the_capture(
    golden: tuple[Path, Loop], tmp_path: Path
) -> None:
    path, _ = golden
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        loop = Loop.new(seed)
        with ac.capture(loop.model, tmp_path / f"out{seed}", **grouped(like=path, **loop.parts)):
            drawn.append(
                (
                    torch.rand(3).tolist(),
                    random.random(),
                    np.random.rand(),
                    nn.functional.dropout(torch.ones(9)).tolist(),
                )
            )
    assert drawn[0] == drawn[1]


# what is left out

LEFT_OUT: dict[str, tuple[Callable[[Loop], dict[str, Any]], Component]] = {
    "optimizer": (
        lambda loop: {"scheduler": loop.scheduler, "scaler": loop.scaler},
        Component.OPTIMIZER,
    ),
    "scheduler": (
        lambda loop: {"optimizer": loop.optimizer, "scaler": loop.scaler},
        Component.SCHEDULER,
    ),
    "scaler": (
        lambda loop: {"optimizer": loop.optimizer, "scheduler": loop.scheduler},
        Component.SCALER,
    ),
    "random": (lambda loop: {**loop.parts, "seed": 12}, Component.RANDOM),
}


@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_what_is_not_restored_changes_the_run_and_is_unverified(
    left_out: str, golden: tuple[Path, Loop], tmp_path: Path, cli: Run
) -> None:
    """The negative control: a check that holds without the component, too, would prove nothing."""
    path, whole = golden
    loop = Loop.new()
    given, component = LEFT_OUT[left_out]
    run(loop, tmp_path / "out", range(3, 6), like=path, **given(loop))
    after = [
        (each.losses[-3:], each.scaler.state_dict(), each.scheduler.last_epoch)
        for each in (loop, whole)
    ]
    assert after[0] != after[1]
    done = cli("diff", path, tmp_path / "out", "--report", tmp_path / "report.xlsx")
    assert done.returncode == 2
    words = " ".join(done.stdout.split())
    assert (
        f"unverified: candidate started from step 3 of {path} without the {component} of that state"
        in words
    )


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
    "opaque": (
        opaque_in_the_optimizer,
        Component.OPTIMIZER,
        "optimizer 0 first.weight, 'cache': an object cannot be saved",
    ),
    "subclass": (
        subclass_in_the_optimizer,
        Component.OPTIMIZER,
        "optimizer 0 first.weight, 'shard': a Distributed cannot be saved",
    ),
    "closure": (
        closure_in_the_scheduler,
        Component.SCHEDULER,
        "scheduler 0 anneal: a function cannot be saved",
    ),
    "other": (
        other_parameters,
        Component.OPTIMIZER,
        "optimizer 0 holds 1 parameter(s) that the model does not have",
    ),
    "sparse": (
        sparse_gradient,
        Component.GRADIENTS,
        "gradients, 'first.weight': a tensor that is sparse_coo",
    ),
    "generator": (
        generator_of_its_own,
        Component.RANDOM,
        "generator: a generator of the model's own cannot be saved",
    ),
}


def test_a_scaler_without_a_state_is_listed(tmp_path: Path) -> None:
    class Constant:
        def scale(self, loss: torch.Tensor) -> torch.Tensor:
            return loss * 8

        def step(self, optimizer: torch.optim.Optimizer) -> None:
            optimizer.step()

    with ac.capture(
        nn.Linear(1, 1), tmp_path / "golden", save_state=True, loop=ac.Loop(scaler=Constant())
    ):
        pass
    with ac.open_bundle(tmp_path / "golden") as bundle:
        state = bundle.manifest.training.training_state
    assert state is not None
    assert (
        Missing(Component.SCALER, "a Constant has no state_dict and load_state_dict")
        in state.missing
    )


@pytest.mark.parametrize("what", CANNOT_BE_SAVED)
def test_what_cannot_be_saved_is_listed_with_its_reason(what: str, tmp_path: Path) -> None:
    change, component, reason = CANNOT_BE_SAVED[what]
    loop = Loop.new()
    with ac.capture(
        loop.model, tmp_path / "golden", **grouped(save_state=True, steps="1-1", **loop.parts)
    ) as session:
        loop.step(0)
        change(loop)
        session.step()
    with ac.open_bundle(tmp_path / "golden") as bundle:
        state = bundle.manifest.training.training_state
        notes = bundle.manifest.notes
    assert state is not None
    assert [
        entry.reason
        for entry in state.missing
        if entry.component is component and entry.reason.startswith(reason)
    ]
    assert any(
        note.startswith(
            f"save_state (--save-state): not all of the {component} could be saved: {reason}"
        )
        for note in notes
    )


def test_a_component_that_there_is_none_of_is_listed_with_the_reason(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with ac.capture(
        model,
        tmp_path / "golden",
        save_state=True,
        loop=ac.Loop(scaler=torch.amp.GradScaler("cpu", enabled=False)),
    ):
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
    assert (
        "without the scheduler of that state: scheduler 0 anneal: a function cannot be saved"
        in comparison.trouble
    )


def test_other_batches_than_goldens_are_unverified_in_a_loop_of_ones_own(
    golden: tuple[Path, Loop], tmp_path: Path
) -> None:
    """The data loader is not saved; where the digests show that the batches agree, nothing is
    missing (see above).
    """
    loop = Loop.new()
    run(loop, tmp_path / "out", range(3), like=golden[0], **loop.parts)
    comparison = ac.diff(golden[0], tmp_path / "out")
    assert (
        "without the data loader of that state: the batches come from a loop of your own"
        in comparison.trouble
    )
    assert comparison.trouble.startswith("unverified")


def test_series_without_records_need_the_state_too(tmp_path: Path) -> None:
    """Losses of 1,000 steps depend on what the first began with, though none of its tensors is
    kept.
    """
    first, again, other = Loop.new(), Loop.new(), Loop.new()
    series = {"backward": False, "roles": "series"}
    run(first, tmp_path / "golden", range(6), "3-5", save_state=True, **series, **first.parts)
    run(again, tmp_path / "again", range(3, 6), like=tmp_path / "golden", **series, **again.parts)
    run(
        other,
        tmp_path / "other",
        range(4, 7),
        like=tmp_path / "golden",
        **series,
        optimizer=other.optimizer,
    )
    with ac.open_bundle(tmp_path / "golden") as golden, ac.open_bundle(tmp_path / "again") as same:
        assert same.manifest.series == golden.manifest.series
        assert not list(unverified([(BesideGolden.CANDIDATE, same)], golden))
        with ac.open_bundle(tmp_path / "other") as differs:
            found = [*map(message, unverified([(BesideGolden.CANDIDATE, differs)], golden))]
    for component in ("data loader", "scheduler", "gradient scaler"):
        assert any(f"without the {component} of that state" in text for text in found)


class Seeded(nn.Module):
    """Draws the same in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        return nn.functional.dropout(self.fc(nn.functional.dropout(x)), 0.5)


def seeded(out: Path, numbers: range, **options: Any) -> list[list[Any]]:
    torch.manual_seed(0)
    model, drawn = Seeded(), []
    with ac.capture(model, out, **grouped(**options)) as session:
        for _ in numbers:
            nn.functional.dropout(torch.ones(3))
            drawn.append(model(torch.ones(2, 4)).tolist())
            session.step()
    return drawn


def test_a_model_that_seeds_its_generators_again_draws_on_as_it_did(tmp_path: Path) -> None:
    whole = seeded(tmp_path / "golden", range(4), steps="2-3", save_state=True)
    assert seeded(tmp_path / "out", range(2, 4), like=tmp_path / "golden") == whole[2:]


def test_draws_that_only_the_device_of_golden_can_repeat_are_unverified_on_another(
    tmp_path: Path,
) -> None:
    seeded(tmp_path / "golden", range(4), steps="2-3", save_state=True)
    path = edited(
        tmp_path / "golden",
        tmp_path / "gpu",
        lambda capture: capture["training_state"].update(device="cuda"),
    )
    seeded(tmp_path / "out", range(2, 4), like=path)
    comparison = ac.diff(path, tmp_path / "out")
    reason = (
        "without the random generators of that state: the model seeds them again in each step,"
        " which only a cuda can continue"
    )
    assert reason in comparison.trouble


def test_an_optimizer_that_the_capture_was_not_given_is_missing_once_it_has_state(
    tmp_path: Path,
) -> None:
    loop = Loop.new()
    run(loop, tmp_path / "first", range(1), save_state=True)
    run(loop, tmp_path / "second", range(1, 2), save_state=True)
    missing = []
    for name in ("first", "second"):
        with ac.open_bundle(tmp_path / name) as bundle:
            state = bundle.manifest.training.training_state
        assert state is not None
        missing.append(
            [entry.reason for entry in state.missing if entry.component is Component.OPTIMIZER]
        )
    assert missing == [
        [],
        ["AdamW stepped the model's parameters, but the capture was not given it (loop=…)"],
    ]


# what is code, and stays the loop's own


def test_what_no_step_has_changed_is_code_and_not_taken_from_the_state(tmp_path: Path) -> None:
    """Else a wrong learning rate would be hidden by golden's."""
    loop, other = Loop.new(lr=1e-2), Loop.new(lr=3e-2)
    run(loop, tmp_path / "golden", range(1), save_state=True, **loop.parts)
    run(other, tmp_path / "out", range(0), like=tmp_path / "golden", **other.parts)
    assert other.optimizer.param_groups[0]["lr"] == 3e-2
    with ac.open_bundle(tmp_path / "out") as bundle:
        assert (
            "start (--like): optimizer 0 has 0.lr 0.03 here, 0.01 in the state; it keeps its own"
            in bundle.manifest.notes
        )


def test_what_the_steps_have_changed_is_taken_from_the_state(
    golden: tuple[Path, Loop], tmp_path: Path
) -> None:
    loop = Loop.new(lr=3e-2)
    run(loop, tmp_path / "out", range(0), like=golden[0], **loop.parts)
    assert loop.optimizer.param_groups[0]["lr"] == 5e-3
    assert loop.optimizer.param_groups[0]["initial_lr"] == 3e-2
    assert loop.scheduler.last_epoch == 3


def test_what_was_taken_from_a_state_is_part_of_the_next_one(
    golden: tuple[Path, Loop], tmp_path: Path
) -> None:
    first, second = Loop.new(), Loop.new()
    run(first, tmp_path / "first", range(0), like=golden[0], save_state=True, **first.parts)
    run(second, tmp_path / "second", range(3, 6), like=tmp_path / "first", **second.parts)
    assert second.losses == golden[1].losses[3:]
    assert second.scheduler.state_dict() == golden[1].scheduler.state_dict()


# other loops


def test_state_of_another_type_than_its_parameter_keeps_it(tmp_path: Path) -> None:
    """``load_state_dict`` would cast moments in float32 to the bfloat16 of the parameter."""
    models = [nn.Linear(3, 3).to(torch.bfloat16) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in models]
    moment = torch.randn(3, 3)
    optimizers[0].state[models[0].weight]["momentum_buffer"] = moment
    for model, optimizer, options in zip(
        models, optimizers, ({"save_state": True}, {"like": tmp_path / "0"}), strict=True
    ):
        with ac.capture(
            model, tmp_path / str(models.index(model)), **grouped(optimizer=optimizer, **options)
        ):
            pass
    assert torch.equal(optimizers[1].state[models[1].weight]["momentum_buffer"], moment)


def test_several_optimizers_and_gradients_that_are_left_over_come_back(tmp_path: Path) -> None:
    def build() -> tuple[nn.Module, list[torch.optim.Optimizer]]:
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        return model, [
            torch.optim.Adam(model[0].parameters()),
            torch.optim.SGD(model[1].parameters(), 0.1, momentum=0.9),
        ]

    (model, optimizers), (other, others) = build(), build()
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    with ac.capture(model, tmp_path / "golden", save_state=True, loop=optimizers):
        pass
    with ac.capture(other, tmp_path / "out", start=tmp_path / "golden", loop=others):
        pass
    for ours, theirs in zip(optimizers, others, strict=True):
        state = [
            [each.state[tensor] for group in each.param_groups for tensor in group["params"]]
            for each in (ours, theirs)
        ]
        for mine, its in zip(*state, strict=True):
            assert mine.keys() == its.keys()
            assert all(
                torch.equal(torch.as_tensor(mine[key]), torch.as_tensor(its[key])) for key in mine
            )
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.grad, its.grad)


def test_an_optimizers_state_follows_its_parameters_under_other_names_and_in_another_order(
    tmp_path: Path,
) -> None:
    def build(names: str) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Module()
        for name in names:
            model.add_module(name, nn.Linear(2, 2, bias=False))
        return model, torch.optim.SGD(
            [model.get_submodule(name).weight for name in sorted(names)], 0.1, momentum=0.9
        )

    (model, optimizer), (other, its) = build("ab"), build("ca")
    for number, name in enumerate("ab"):
        optimizer.state[model.get_submodule(name).weight]["momentum_buffer"] = torch.full(
            (2, 2), float(number)
        )
    with ac.capture(model, tmp_path / "golden", save_state=True, loop=optimizer):
        pass
    with ac.capture(
        other,
        tmp_path / "out",
        start=ac.StartFrom(tmp_path / "golden", map=["a=c", "b=a"]),
        loop=its,
    ):
        pass
    assert its.state[other.c.weight]["momentum_buffer"].tolist() == [[0, 0], [0, 0]]
    assert its.state[other.a.weight]["momentum_buffer"].tolist() == [[1, 1], [1, 1]]


def test_a_count_of_steps_is_counted_from_the_state(
    golden: tuple[Path, Loop], tmp_path: Path
) -> None:
    loop = Loop.new()
    with ac.capture(
        loop.model, tmp_path / "out", **grouped(like=golden[0], steps=2, **loop.parts)
    ) as session:
        numbers = []
        for number in range(3, 6):
            numbers.append(session.step_number)
            loop.step(number)
            session.step()
    assert numbers == [3, 4, 5]
    with ac.open_bundle(tmp_path / "out") as bundle:
        assert [entry.step for _, entry in bundle.steps()] == [3, 4]
        assert bundle.manifest.options.steps == 2
