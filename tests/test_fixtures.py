"""The fixtures, captured and compared: the whole way on real models, and the right layer named for
every planted fault.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import accucompare as ac
from accucompare.bundle.format.records import Role
from accucompare.case import Case, load_case, steps_of
from accucompare.devices import DeviceName
from accucompare.recorder.session.case_capture import capture_case
from accucompare.selection import FloatType
from tests.conftest import ROOT

NAMES = ["tricky", "cnn", "gpt2", "t5", "minilm"]
WITH_DATA = ("strided", "scalar")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Small models on several threads, in several test processes, mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclasses.dataclass
class Captured:
    """One fixture: its golden bundle, where others of it go, and the case, built once more under
    the same seed.
    """

    name: str
    folder: Path
    golden: Path
    case: Case

    @property
    def target(self) -> str:
        return f"{ROOT}/fixtures/{self.name}.py"


@pytest.fixture(scope="module", params=NAMES)
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    folder = tmp_path_factory.mktemp(request.param)
    golden = capture_case(
        f"{ROOT}/fixtures/{request.param}.py", folder / "golden", DeviceName("cpu")
    )
    torch.manual_seed(0)
    case, _ = load_case(f"{ROOT}/fixtures/{request.param}.py")
    return Captured(request.param, folder, golden, case)


def test_golden_against_itself_captured_again_is_identical_everywhere(captured: Captured) -> None:
    capture_case(captured.target, captured.folder / "again", DeviceName("cpu"))
    comparison = ac.diff(captured.golden, captured.folder / "again")
    assert comparison.passed
    assert comparison.first_divergence is None
    without_data = {"not called", "not comparable"}
    assert {row.reason.value for row in comparison.rows} <= {"identical"} | without_data
    for row in comparison.rows:
        if row.reason.value == "not comparable":
            assert row.golden is not None
            assert row.golden.layout.value not in WITH_DATA
    with ac.open_bundle(captured.golden) as bundle:
        assert bundle.complete
        assert sum(row.golden is not None for row in comparison.rows) == len(list(bundle.records()))


def test_every_layer_has_finite_and_right_metrics_against_bfloat16(captured: Captured) -> None:
    capture_case(
        captured.target, captured.folder / "bf16", DeviceName("cpu"), dtype=FloatType.BFLOAT16
    )
    comparison = ac.diff(captured.golden, captured.folder / "bf16")
    pairs = [
        row
        for row in comparison.rows
        if row.golden and row.candidate and row.golden.layout.value in WITH_DATA
    ]
    assert len(pairs) > 20
    with (
        ac.open_bundle(captured.golden) as golden,
        ac.open_bundle(captured.folder / "bf16") as candidate,
    ):
        for row in pairs:
            assert row.metrics is not None, row.place
            assert math.isfinite(row.metrics.rel_l2), row.place
            assert math.isfinite(row.metrics.one_minus_cosine), row.place
            assert math.isfinite(row.metrics.max_abs), row.place
        for row in pairs[:: len(pairs) // 12]:
            check(
                row.metrics, golden.values(row.golden), candidate.values(row.candidate), row.place
            )


def check(metrics: Any, golden: np.ndarray, candidate: np.ndarray, place: str) -> None:
    """Against the definitions, computed by torch in float64."""
    left, right = (
        torch.from_numpy(np.array(values)).double().reshape(-1) for values in (golden, candidate)
    )
    if not left.numel():
        return
    norm, difference = left.norm().item(), right - left
    assert metrics.rel_l2 == pytest.approx(
        difference.norm().item() / norm if norm else 0.0, rel=1e-9
    ), place
    assert metrics.max_abs == difference.abs().max().item(), place
    assert metrics.rmse == pytest.approx(difference.square().mean().sqrt().item(), rel=1e-9), place
    if norm and right.norm():
        chord = (left / norm - right / right.norm()).square().sum().item() / 2
        assert metrics.one_minus_cosine == pytest.approx(chord, rel=1e-6, abs=1e-28), place


# planted faults


def faulty(output: Any) -> Any:
    """The output of a module that is one percent too large."""
    if dataclasses.is_dataclass(output) and not isinstance(output, (type, dict)):
        return dataclasses.replace(output, hidden=output.hidden * 1.01)
    return pytree.tree_map(
        lambda leaf: (
            leaf * 1.01 if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf
        ),
        output,
    )


def capture_with_fault(captured: Captured, name: str) -> Path:
    out = captured.folder / "fault"
    model = copy.deepcopy(captured.case.model)
    model.get_submodule(name).register_forward_hook(lambda module, args, output: faulty(output))
    with ac.capture(model, out, overwrite=True) as session, torch.no_grad():
        for args, kwargs in copy.deepcopy(steps_of(captured.case.inputs)):
            model(*args, **kwargs)
            session.step()
    return out


def leaves(captured: Captured) -> Iterator[str]:
    """The modules that were called, called no others, and gave floating numbers that are not all
    zero.
    """
    with ac.open_bundle(captured.golden) as bundle:
        records = list(bundle.records())
    containers = {entry.parent[0] for entry in records if entry.parent}
    for name in dict.fromkeys(entry.name for entry in records if entry.name not in containers):
        outputs = [
            entry
            for entry in records
            if entry.name == name and entry.role is Role.OUTPUT and entry.dtype == "float32"
        ]
        if any(entry.statistics and entry.statistics.l2 for entry in outputs):
            yield name


def test_a_planted_fault_in_one_layer_makes_it_the_first_divergence(captured: Captured) -> None:
    names = list(leaves(captured))
    assert len(names) > 10
    for name in names[:: max(len(names) // 3, 1)]:
        found = ac.diff(captured.golden, capture_with_fault(captured, name)).first_divergence
        assert found is not None, name
        assert (found.record.name, found.record.role.value, found.reason.value) == (
            name,
            "output",
            "introduced",
        ), name


def test_without_a_fault_the_same_way_of_capturing_is_identical(captured: Captured) -> None:
    """So that it is the fault that the test above finds."""
    out = captured.folder / "fault"
    model = copy.deepcopy(captured.case.model)
    assert isinstance(model, nn.Module)
    with ac.capture(model, out, overwrite=True) as session, torch.no_grad():
        for args, kwargs in copy.deepcopy(steps_of(captured.case.inputs)):
            model(*args, **kwargs)
            session.step()
    assert ac.diff(captured.golden, out).passed


@pytest.mark.parametrize("captured", ["minilm"], indirect=True)
def test_the_demos_planted_fault_is_found(captured: Captured) -> None:
    capture_case(f"{captured.target}:faulty", captured.folder / "faulty", DeviceName("cpu"))
    found = ac.diff(captured.golden, captured.folder / "faulty").first_divergence
    assert found is not None
    assert found.place == "encoder.layer.2.attention.output.LayerNorm output"
    assert found.reason.value == "introduced"
