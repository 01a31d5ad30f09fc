"""Normalisations that sum over a batch, in another order of summing: rounding, and a variance that is off by a thousandth is none."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.api import Comparison
from accucompare.compare.tolerance import Tolerance
from accucompare.compare.training import Terms
from tests.compare.builder import item

Made = Callable[[], nn.Module]


def batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
    )


def group_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU()
    )


class WrongVariance(nn.BatchNorm2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = 1.001 * x.var((0, 2, 3), keepdim=True, correction=0)
        normal = (x - x.mean((0, 2, 3), keepdim=True)) / (variance + self.eps).sqrt()
        return normal * self.weight[:, None, None] + self.bias[:, None, None]


def compared(tmp_path: Path, make: Made, *, last: str = "candidate", fault: bool = False, mean: float = 3.0) -> Comparison:
    """A step of training on images in another memory format on one side, fed, and judged by a baseline in float64."""
    torch.manual_seed(0)
    golden = make().train()
    x = torch.randn(8, 3, 32, 32) + mean
    for name in ("golden", "candidate", "baseline"):
        model, given = copy.deepcopy(golden), x
        if fault and name == "candidate":
            model[1].__class__ = WrongVariance  # type: ignore[index]
        if name == last:
            model, given = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if name == "baseline":
            model, given = model.double(), x.double()
        with ac.capture(model, tmp_path / name, feed=None if name == "golden" else tmp_path / "golden"):
            model(given).square().mean().backward()
    return ac.diff(tmp_path / "golden", tmp_path / "candidate", baseline=tmp_path / "baseline")


@pytest.mark.parametrize("last", ["golden", "candidate"])
@pytest.mark.parametrize("make", [batch_norm, group_norm])
def test_another_memory_format_is_rounding(tmp_path: Path, make: Made, last: str) -> None:
    found = compared(tmp_path, make, last=last)
    assert (found.answer.value, found.passed) == ("rounding", True), found.culprits


def test_a_variance_that_is_off_by_a_thousandth_is_a_bug_beside_another_memory_format(tmp_path: Path) -> None:
    found = compared(tmp_path, batch_norm, fault=True)
    assert (found.answer.value, found.culprits[0].place) == ("bug", "1")


@pytest.mark.parametrize(("kind", "shape", "terms"), [
    ("BatchNorm1d", (8, 16), 8),
    ("BatchNorm2d", (8, 16, 4, 4), 128),
    ("BatchNorm3d", (8, 16, 2, 2, 2), 64),
    ("SyncBatchNorm", (8, 16, 4, 4), 128),
    ("GroupNorm", (8, 16, 4, 4), 256),
    ("LayerNorm", (8, 16), 0),
])  # fmt: skip
def test_a_normalisation_sums_over_all_but_its_channels_or_samples(kind: str, shape: tuple[int, ...], terms: int) -> None:
    assert Terms().summed(item("norm", dtype="float32", type=kind, shape=shape).record) == terms


def test_the_room_for_sums_grows_with_their_root_and_ends_below_a_fault() -> None:
    default = Tolerance(rel_l2=2e-6, by_default=True)
    assert default.of_sums(10_000, "float32").summing == pytest.approx(4 * 100 * 2**-24)
    assert default.of_sums(10_000, "bfloat16").summing == pytest.approx(4 * 100 * 2**-24)  # sums are kept in float32
    assert default.of_sums(1 << 40, "float32").rel_l2 == 1e-4
    assert Tolerance(rel_l2=1e-7).of_sums(10_000, "float32") == Tolerance(rel_l2=1e-7)  # the user's own
    assert not default.of_sums(0, "float32").summing
