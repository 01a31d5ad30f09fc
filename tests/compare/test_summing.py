"""Normalisations that sum over a batch, in another order of summing: rounding, and a variance that
is off by a thousandth is none.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.api import Comparison
from accucompare.compare.limits.tolerance import Tolerance
from accucompare.compare.origins.terms import Terms
from tests.compare.builder import item, write

Made = Callable[[], nn.Module]
#: Of both signs and no pattern.
X = np.sin(np.arange(1.0, 65.0)).astype(np.float32)


def batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
    )


def group_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
    )


class WrongVariance(nn.BatchNorm2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = 1.001 * x.var((0, 2, 3), keepdim=True, correction=0)
        normal = (x - x.mean((0, 2, 3), keepdim=True)) / (variance + self.eps).sqrt()
        return normal * self.weight[:, None, None] + self.bias[:, None, None]


def compared(
    tmp_path: Path, make: Made, *, last: str = "candidate", fault: bool = False, mean: float = 3.0
) -> Comparison:
    """A step of training on images in another memory format on one side, fed, and judged by a
    baseline in float64.
    """
    torch.manual_seed(0)
    golden = make().train()
    x = torch.randn(8, 3, 32, 32) + mean
    for name in ("golden", "candidate", "baseline"):
        model, given = copy.deepcopy(golden), x
        if fault and name == "candidate":
            model[1].__class__ = WrongVariance  # type: ignore[index]
        if name == last:
            model, given = (
                model.to(memory_format=torch.channels_last),
                x.contiguous(memory_format=torch.channels_last),
            )  # type: ignore[call-overload]
        if name == "baseline":
            model, given = model.double(), x.double()
        with ac.capture(
            model, tmp_path / name, feed=None if name == "golden" else tmp_path / "golden"
        ):
            model(given).square().mean().backward()
    return ac.diff(tmp_path / "golden", tmp_path / "candidate", baseline=tmp_path / "baseline")


@pytest.mark.parametrize("last", ["golden", "candidate"])
@pytest.mark.parametrize("make", [batch_norm, group_norm])
def test_another_memory_format_is_rounding(tmp_path: Path, make: Made, last: str) -> None:
    found = compared(tmp_path, make, last=last)
    assert (found.answer.value, found.passed) == ("rounding", True), found.culprits


def test_a_variance_that_is_off_by_a_thousandth_is_a_bug_beside_another_memory_format(
    tmp_path: Path,
) -> None:
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
def test_a_normalisation_sums_over_all_but_its_channels_or_samples(
    kind: str, shape: tuple[int, ...], terms: int
) -> None:
    assert Terms().summed(item("norm", dtype="float32", type=kind, shape=shape).record) == terms


def test_the_room_for_sums_grows_with_their_root_and_ends_below_a_fault() -> None:
    default = Tolerance(rel_l2=2e-6, by_default=True)
    assert default.of_sums(10_000, "float32").summing == pytest.approx(4 * 100 * 2**-24)
    # sums are kept in float32
    assert default.of_sums(10_000, "bfloat16").summing == pytest.approx(4 * 100 * 2**-24)
    assert default.of_sums(1 << 40, "float32").rel_l2 == 1e-4
    # the user's own
    assert Tolerance(rel_l2=1e-7).of_sums(10_000, "float32") == Tolerance(rel_l2=1e-7)
    assert not default.of_sums(0, "float32").summing


class Sum(torch.autograd.Function):
    """Adds a bias to channels, whose gradient is summed up one term after the other."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, bias: torch.Tensor, factor: float) -> torch.Tensor:
        context.factor = factor
        return x + bias[:, None, None]

    @staticmethod
    def backward(context: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:  # type: ignore[override]
        rows = grad.transpose(0, 1).reshape(grad.shape[1], -1).numpy()
        return (
            grad,
            torch.from_numpy(np.add.accumulate(rows, 1)[:, -1] * np.float32(context.factor)),
            None,
        )


class Bias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias, self.factor = nn.Parameter(torch.randn(6)), 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = (
            Sum.apply(x, self.bias, self.factor) if self.factor else x + self.bias[:, None, None]
        )
        return found


@pytest.mark.parametrize(
    ("after", "factor", "answer"),
    [
        (nn.BatchNorm2d(6), 1.0, "rounding"),
        (nn.SiLU(), 1.0, "rounding"),
        (nn.SiLU(), 1.001, "different"),
    ],
    ids=["zero but for rounding", "another order", "off by a thousandth"],
)
def test_a_biases_gradient_is_judged_by_how_many_terms_it_has(
    tmp_path: Path, after: nn.Module, factor: float, answer: str
) -> None:
    torch.manual_seed(0)
    golden, x = nn.Sequential(Bias(), after), torch.randn(16, 6, 64, 64)
    candidate = copy.deepcopy(golden)
    candidate[0].factor = factor  # type: ignore[assignment]
    with ac.capture(golden, tmp_path / "golden"):
        golden(x).square().mul(
            torch.rand(x.shape, generator=torch.Generator().manual_seed(1))
        ).mean().backward()
    with ac.capture(candidate, tmp_path / "candidate", feed=tmp_path / "golden"):
        candidate(x).square().mul(
            torch.rand(x.shape, generator=torch.Generator().manual_seed(1))
        ).mean().backward()
    found = ac.diff(tmp_path / "golden", tmp_path / "candidate")
    assert (found.answer.value, [each.name for each in found.culprits]) == (
        answer,
        ["0"] if answer == "different" else [],
    )


@pytest.mark.parametrize(("part", "alone"), [(2.0**-23, False), (2.0**-25, True)])
def test_a_gradient_that_rounding_alone_left_of_its_terms_is_judged_by_them(
    tmp_path: Path, part: float, alone: bool
) -> None:
    """As of queries that are all alike: a fused attention makes it zero, a composed one noise."""
    arrived = np.ones(64, np.float32)
    noise = np.where(np.arange(64) % 2, 2.0**-10, -(2.0**-10)).astype(np.float32)
    golden = write(
        tmp_path / "golden",
        [
            item("attention", arrived, role="grad_output"),
            item("q", arrived * part, role="grad_output", parent=("attention", 0)),
        ],
    )
    feed = {"golden": "golden", "identity": ac.open_bundle(golden).identity(), "not_fed": []}
    sides = [
        write(
            tmp_path / name,
            [
                item("attention", arrived, "bfloat16", role="grad_output"),
                item("q", own, "bfloat16", role="grad_output", parent=("attention", 0)),
            ],
            capture={"feed": feed},
        )
        for name, own in (("candidate", arrived * part + noise), ("baseline", 0 * noise))
    ]
    found = ac.diff(golden, sides[0], baseline=sides[1])
    assert (found.answer.value == "rounding") is alone


@pytest.mark.parametrize(("roundings", "passes"), [(4, True), (400, False)])
@pytest.mark.parametrize("made_of", [
    # a mean of what a normalisation gave: zero, but for rounding
    [("input", X), ("buffer_update", X[:8] * 1e-9)],
    # the mean of squares of an RMSNorm's output hardly depends on its input
    [("input", X), ("output", X), ("grad_output", X), ("grad_input", X[::-1] / 8)],
    [("grad_output", X), ("call_grad", X[:8] * 1e-9)],  # a bias before a normalisation
], ids=["mean", "norm", "bias"])  # fmt: skip
def test_what_is_left_of_terms_is_judged_by_them_although_the_baseline_is_nearer(
    tmp_path: Path, made_of: list[tuple[str, np.ndarray]], roundings: int, passes: bool
) -> None:
    def side(off: float) -> list[Any]:
        *before, (role, left) = made_of
        terms = np.linalg.norm(X) * (len(left) / len(X) if role == "buffer_update" else 1.0)
        error = off * 2.0**-24 * terms * np.resize([1.0, -1.0], len(left)) / len(left) ** 0.5
        last = item("n", (left + error).astype(np.float32), role=role, path="x", type="RMSNorm")
        return [*(item("n", value, role=each, type="RMSNorm") for each, value in before), last]

    golden = write(tmp_path / "golden", side(0.0))
    feed = {"golden": "golden", "identity": ac.open_bundle(golden).identity(), "not_fed": []}
    candidate, baseline = (
        write(tmp_path / str(off), side(off), capture={"backward": True, "feed": feed})
        for off in (roundings, 0.01)
    )
    assert ac.diff(golden, candidate, baseline=baseline).passed is passes
