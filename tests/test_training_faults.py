"""The benchmark of planted faults, its part of training: a few faults and one fault-free pair of a small LSTM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from accucompare.bundle.records import Role
from benchmarks.training_trial import METHODS, PAIRS, Bench
from planted.backward_faults import of_residual
from planted.training_catalogue import OF_UPDATE, faults_of
from planted.training_faults import TrainingFault, of_input
from planted.training_models import TRAININGS, build_training

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
def test_a_planted_fault_of_training_is_named_first_by_a_fed_capture(bench: Bench, which: str) -> None:
    trial = bench.try_fault(FAULTS[which], "split-K")
    assert trial.error == ""
    assert trial.rise > 1
    assert trial.rank[METHODS[0]] == 1, trial.named


def test_a_fault_that_rounding_hides_changes_less_than_rounding_does(bench: Bench) -> None:
    """AdamW on weights in bfloat16: a decay of 1e-4 of a weight is no step of that type."""
    trial = bench.try_fault(TrainingFault("", "update", "", roles=(Role.PARAM_UPDATE,), update="no weight decay"), "split-K")
    assert trial.error == ""
    assert trial.rise < 1


def test_a_fault_free_pair_of_training_raises_no_alarm(bench: Bench) -> None:
    pair = bench.try_pair("split-K")
    assert (pair.error, pair.alarms[METHODS[0]]) == ("", [])
    assert pair.rows > 100


def test_there_are_faults_of_every_kind_and_pairs_enough() -> None:
    kinds = {fault.kind for name in ("recurrent", "vit") for fault in faults_of(build_training(name).model)}
    assert len(kinds) == 17
    assert len(TRAININGS) * 2 * len(PAIRS) >= 96
