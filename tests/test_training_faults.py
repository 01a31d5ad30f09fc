"""The benchmark of planted faults, its part of training: a few faults and one fault-free pair of a
small LSTM.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from accucompare.bundle.format.records import Role
from benchmarks.training_trial import METHODS, PAIRS, Bench
from planted.backward_faults import of_residual
from planted.training_catalogue import OF_UPDATE, faults_of, left_by
from planted.training_faults import TrainingFault, of_input
from planted.training_models import PLAIN, TRAININGS, build_training, train

FAULTS = {
    "module": of_input("mix.up", "x 1.01"),
    "glue": of_residual("mix", 0, "norm"),
    "update": next(fault for fault in OF_UPDATE if fault.update == "beta1 0.8 for 0.9"),
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    threads = torch.get_num_threads()
    yield Bench("recurrent", "bfloat16", tmp_path_factory.mktemp("training"))
    torch.set_num_threads(threads)


@pytest.mark.parametrize("which", FAULTS)
def test_a_planted_fault_of_training_is_named_first_by_a_fed_capture(
    bench: Bench, which: str
) -> None:
    trial = bench.try_fault(FAULTS[which], "split-K")
    assert trial.error == ""
    assert trial.rise > 1
    assert trial.rank[METHODS[0]] == 1, trial.named


def test_a_fault_that_rounding_hides_changes_less_than_rounding_does(bench: Bench) -> None:
    """AdamW on weights in bfloat16: a decay of 1e-4 of a weight is no step of that type."""
    trial = bench.try_fault(
        TrainingFault("", "update", "", roles=(Role.PARAM_UPDATE,), update="no weight decay"),
        "split-K",
    )
    assert trial.error == ""
    assert trial.rise < 1


def test_a_fault_free_pair_of_training_raises_no_alarm(bench: Bench) -> None:
    pair = bench.try_pair("split-K")
    assert (pair.error, pair.alarms[METHODS[0]]) == ("", [])
    assert pair.rows > 100


def test_there_are_faults_of_every_kind_and_pairs_enough() -> None:
    kinds = {
        fault.kind
        for name in ("recurrent", "vit")
        for fault in faults_of(build_training(name).model)
    }
    assert len(kinds) == 17
    left = {
        fault.kind
        for name in ("convolutions", "codebook")
        for fault in left_by(build_training(name).model)
    }
    assert len(left) == 9
    assert len(TRAININGS) * 2 * len(PAIRS) >= 96


def faulty(name: str, kind: str) -> tuple[TrainingFault, nn.Module, nn.Module]:
    """A fault, a model trained with it, and one without."""
    training = build_training(name)
    fault = next(fault for fault in left_by(training.model) if fault.kind == kind)
    wrong, right = copy.deepcopy(training.model), copy.deepcopy(training.model)
    fault.plant(wrong)
    train(training, wrong, replace(PLAIN, **fault.loop))
    train(training, right, PLAIN)
    return fault, wrong, right


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("convolutions", "momentum 0.9 for 0.1"),
        ("convolutions", "running mean not updated"),
        ("convolutions", "running variance x 4"),
    ],
)
def test_a_fault_of_running_statistics_changes_that_buffer_and_nothing_that_is_computed(
    name: str, kind: str
) -> None:
    fault, wrong, right = faulty(name, kind)
    other = {
        key
        for key, value in wrong.state_dict().items()
        if not torch.equal(value, right.state_dict()[key])
    }
    assert other == {f"{fault.name}.{fault.path}"}


@pytest.mark.parametrize("kind", ["decay 0.5 for 0.9", "codebook's sums not updated"])
def test_a_fault_of_a_codebooks_average_changes_its_sums(kind: str) -> None:
    _, wrong, right = faulty("codebook", kind)
    assert not torch.allclose(
        wrong.get_buffer("codebook.sums"), right.get_buffer("codebook.sums"), rtol=0.01
    )


@pytest.mark.parametrize(
    ("kind", "missing"), [("input detached", True), ("parameter frozen", False)]
)
def test_a_gradient_is_missing_behind_a_detached_input_and_of_a_frozen_parameter(
    kind: str, missing: bool
) -> None:
    training = build_training("codebook")
    fault = next(
        fault for fault in left_by(training.model) if fault.kind == kind and fault.name == "decoder"
    )
    fault.plant(training.model)
    (inputs, target), *_ = training.batches[0]
    training.loss(training.model(**inputs), target).backward()  # type: ignore[no-untyped-call]
    assert (training.model.get_parameter("encoder.weight").grad is None) == missing
    assert (training.model.get_parameter("decoder.weight").grad is None) != missing


def test_what_a_loop_changes_between_updates_is_in_what_the_next_step_starts_from() -> None:
    fault, wrong, right = faulty("codebook", "weight x 0.5")
    norms = [model.get_parameter(fault.loop["halved"]).detach().norm() for model in (wrong, right)]
    assert norms[0] < 0.3 * norms[1]  # twice: after either update


@pytest.mark.parametrize("told", [{"skipped": 1}, {"forgotten": "encoder.weight"}])
def test_an_update_that_is_skipped_or_of_a_forgotten_moment_leaves_other_weights(
    told: dict[str, Any],
) -> None:
    training = build_training("codebook")
    wrong, right = copy.deepcopy(training.model), copy.deepcopy(training.model)
    assert train(training, wrong, replace(PLAIN, **told)) == train(training, right, PLAIN)
    assert not torch.equal(
        wrong.get_parameter("encoder.weight"), right.get_parameter("encoder.weight")
    )


def test_a_number_added_to_the_loss_changes_no_weight() -> None:
    training = build_training("codebook")
    wrong, right = copy.deepcopy(training.model), copy.deepcopy(training.model)
    losses = train(training, wrong, replace(PLAIN, added=0.5)), train(training, right, PLAIN)
    assert losses[0] == pytest.approx([loss + 0.5 for loss in losses[1]])
    assert all(
        torch.equal(one, other)
        for one, other in zip(wrong.parameters(), right.parameters(), strict=True)
    )
