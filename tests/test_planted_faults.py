"""The benchmark of planted faults, on two faults and one fault-free pair of a small GPT-2."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.environment_trial import KINDS as KINDS_OF_ENVIRONMENT
from benchmarks.environment_trial import Trial as OfEnvironment
from benchmarks.faults_trial import METHODS, Bench
from planted import environment_case
from planted.faults_alone import Call, rise
from planted.faults_kinds import KINDS, Fault, faults_in
from planted.faults_models import ARCHITECTURES, build

LEAF = Fault("wrong eps", "transformer.h.1.ln_2", 0, 1, "module", 0.5)
GLUE = Fault("attention scale", "transformer.h.2.attn", 0, 1, "glue", 0.5)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    threads = torch.get_num_threads()
    yield Bench("gpt2", "bfloat16", tmp_path_factory.mktemp("faults"))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The library of an operator, built so that it computes a kernel."""
    folder, built = tmp_path_factory.mktemp("library"), {}

    def build(kernel: int) -> Path:
        if kernel not in built:
            (folder / "gate.c").write_text(environment_case.SOURCE, encoding="utf-8")
            # a name of its own: a library is loaded once
            built[kernel] = folder / f"gate{kernel}.so"
            subprocess.run(
                [
                    "cc",
                    "-shared",
                    "-fPIC",
                    f"-DKERNEL={kernel}",
                    folder / "gate.c",
                    "-o",
                    built[kernel],
                ],
                check=True,
            )
        return built[kernel]

    return build


@pytest.mark.parametrize("fault", [LEAF, GLUE], ids=["leaf", "glue"])
def test_a_planted_fault_is_named_first_in_the_fed_capture_with_baseline(
    bench: Bench, fault: Fault
) -> None:
    trial = bench.try_fault(fault, "split-K")
    assert trial.error == ""
    assert trial.rise > 4
    assert trial.rank[METHODS[-1]] == 1, trial.named


def test_two_planted_faults_are_both_named_in_the_fed_capture_with_baseline(bench: Bench) -> None:
    assert bench.try_fault(LEAF, "reversed", GLUE).rank[METHODS[-1]] == 2


def test_a_fault_free_pair_raises_no_alarm_with_a_baseline(bench: Bench) -> None:
    pair = bench.try_order("split-K")
    assert pair.error == ""
    assert [pair.alarms[method] for method in METHODS[1::2]] == [[], []]


def test_a_fault_that_does_not_rise_over_rounding_is_not_tried(bench: Bench) -> None:
    trial = bench.try_fault(
        Fault("scaled output", "transformer.h.0.ln_1", 0, 1, "module", 1e-4), "split-K"
    )
    assert trial.rise < 1
    assert trial.rank == {}


def test_the_rise_of_a_scale_is_its_size_over_the_rounding_of_the_type() -> None:
    module, given = nn.Identity().to(torch.bfloat16), torch.linspace(1, 2, 65, dtype=torch.float64)
    fault = Fault("scaled output", "", 0, 1, "module", 0.125)
    exact = given.bfloat16().double()  # no rounding of its own: half a unit roundoff stands for it
    assert rise(module, Call((exact,), {}), fault.plant, torch.bfloat16, 1) == pytest.approx(
        0.125 / 2**-9, rel=0.02
    )


@pytest.mark.parametrize(
    ("kernel", "factors"), [(0, [0.5]), (1, [0.5, 0.515]), (2, [0.5, 0.75]), (3, [-0.5])]
)
@pytest.mark.parametrize("way", KINDS_OF_ENVIRONMENT)
def test_each_way_to_choose_a_kernel_chooses_it(
    way: str,
    kernel: int,
    factors: list[float],
    library: Callable[[int], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variable, built, flag = (kernel if way == each else 0 for each in KINDS_OF_ENVIRONMENT)
    (tmp_path / "flag").write_text(str(flag), encoding="utf-8")
    told = {
        "PLANTED_LIBRARY": str(library(built)),
        "PLANTED_FLAG": str(tmp_path / "flag"),
        "PLANTED_KERNEL": str(variable or ""),
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    gate = environment_case.case().model.get_submodule(environment_case.PLACE)
    assert gate(torch.ones(2, 64)).unique().tolist() == pytest.approx(factors)


@pytest.mark.parametrize(
    ("kernel", "code", "named", "right"),
    [
        (1, 1, "gate", True),
        (1, 1, "act", False),
        (1, 0, "", False),
        (1, 2, "gate", False),
        (0, 0, "", True),
        (0, 2, "", False),
    ],
)
def test_a_fault_of_the_environment_is_right_if_it_fails_at_its_operator(
    kernel: int, code: int, named: str, right: bool
) -> None:
    assert (
        OfEnvironment("file read at run time", "bfloat16", kernel, code, named, "").right is right
    )


def test_every_kind_of_fault_is_found_in_some_model() -> None:
    found = set()
    for name in ("gpt2", "albert", "llama", "vit"):
        model, _ = build(name)
        calls = {module: 2 for module, _ in model.named_modules()}
        found |= {
            fault.kind for fault in faults_in(model, calls, "bfloat16", 1, np.random.default_rng(0))
        }
    assert found == set(KINDS)
    assert len(ARCHITECTURES) >= 9
