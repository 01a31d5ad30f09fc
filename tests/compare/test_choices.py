"""Shapes and numbers of calls that rounding itself changes: neither a bug nor a pass where the
baseline has others too.
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.compare.decide import Answer
from accucompare.compare.rows.rows import Reason
from tests.asked import grouped
from tests.compare.builder import Item, item, write

BF16 = torch.bfloat16


def kept(count: int, dtype: str = "bfloat16", features: int = 4) -> list[Item]:
    """A layer that does nothing wrong, and boxes of which so many are kept."""
    fc = item("fc", np.linspace(-1, 1, 64).astype(np.float32), dtype)
    return [
        fc,
        item(
            "",
            np.linspace(-1, 1, count * features).reshape(count, features).astype(np.float32),
            dtype,
            parent=None,
        ),
    ]


def answered(
    tmp_path: Path, golden: list[Item], candidate: list[Item], baseline: list[Item]
) -> ac.Comparison:
    sides = [
        write(tmp_path / name, items)
        for name, items in (("golden", golden), ("candidate", candidate), ("baseline", baseline))
    ]
    return ac.diff(*sides[:2], baseline=sides[2])


@pytest.mark.parametrize("candidate", [48, 49, 50, 53])
def test_a_shape_that_the_baseline_has_other_too_is_not_sure(
    tmp_path: Path, candidate: int
) -> None:
    comparison = answered(tmp_path, kept(50, "float32"), kept(candidate), kept(49))
    # its values are compared and agree
    expected = (Answer.NOT_SURE, False) if candidate != 50 else (Answer.ROUNDING, True)
    assert (comparison.answer, comparison.passed) == expected
    assert Reason.SHAPE not in comparison.counts()


@pytest.mark.parametrize(
    ("candidate", "baseline"),
    [
        (kept(48), kept(50)),  # rounding changes nothing
        (kept(3), kept(49)),  # not so far
        (kept(50, features=5), kept(49)),  # not this dimension
        ([kept(50)[0], item("", np.ones(200, np.float32), "bfloat16", parent=None)], kept(49)),
    ],
)
def test_a_shape_that_rounding_does_not_make_fails_as_ever(
    tmp_path: Path, candidate: list[Item], baseline: list[Item]
) -> None:
    comparison = answered(tmp_path, kept(50, "float32"), candidate, baseline)
    assert comparison.rows[-1].reason is Reason.SHAPE


def test_other_values_of_the_same_shape_are_not_judged_where_rounding_changes_the_shape(
    tmp_path: Path,
) -> None:
    golden, candidate = kept(50, "float32"), kept(50)
    other = [
        candidate[0],
        item(
            "", -np.linspace(-1, 1, 200).reshape(50, 4).astype(np.float32), "bfloat16", parent=None
        ),
    ]
    assert answered(tmp_path, golden, other, kept(49)).answer is Answer.NOT_SURE


@pytest.mark.parametrize(("fed", "expected"), [(True, Answer.BUG), (False, Answer.NOT_SURE)])
def test_a_call_that_was_fed_where_the_baseline_could_not_be_is_judged_by_limits(
    tmp_path: Path, fed: bool, expected: Answer
) -> None:
    def head(count: int, dtype: str, scale: float = 1.0) -> list[Item]:
        values = np.linspace(-1, 1, count * 4).reshape(count, 4).astype(np.float32)
        given, gave = item("head", values, dtype, role="input"), item("head", scale * values, dtype)
        return [
            kept(1, dtype)[0],
            item("", values[0], dtype, role="input", parent=None),
            given,
            gave,
        ]

    golden = write(tmp_path / "golden", head(50, "float32"))
    identity = ac.open_bundle(golden).identity()
    feed = (
        {"capture": {"feed": {"golden": "golden", "identity": identity, "not_fed": []}}}
        if fed
        else {}
    )
    candidate = write(tmp_path / "candidate", head(50, "bfloat16", 1.5), **feed)
    baseline = write(tmp_path / "baseline", head(49, "bfloat16"), **feed)
    comparison = ac.diff(golden, candidate, baseline=baseline)
    assert comparison.answer is expected


def called(times: int, dtype: str = "bfloat16") -> list[Item]:
    x = np.linspace(-1, 1, 64).astype(np.float32)
    calls = [
        item("f", x, dtype, role=role, call=call)
        for call in range(times)
        for role in ("input", "output")
    ]
    return [*calls, item("", x, dtype, parent=None)]


@pytest.mark.parametrize("candidate", [17, 18, 21, 22])
def test_calls_that_one_side_alone_makes_are_not_sure_where_the_baseline_makes_another_number(
    tmp_path: Path, candidate: int
) -> None:
    comparison = answered(tmp_path, called(20, "float32"), called(candidate), called(21))
    assert comparison.answer is Answer.NOT_SURE
    assert not {Reason.MISSING, Reason.EXTRA} & set(comparison.counts())
    assert f"golden makes 20, the candidate {candidate}; the baseline 21" in comparison.conclusion


@pytest.mark.parametrize(
    ("candidate", "baseline", "reason"),
    [(21, 20, Reason.EXTRA), (19, 20, Reason.MISSING), (60, 21, Reason.EXTRA)],
)
def test_calls_that_rounding_does_not_make_are_missing_or_extra(
    tmp_path: Path, candidate: int, baseline: int, reason: Reason
) -> None:
    comparison = answered(tmp_path, called(20, "float32"), called(candidate), called(baseline))
    assert comparison.counts()[reason]


class Detector(nn.Module):
    """Keeps the boxes with a score over a half that overlap no better one."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.score, self.box, self.head = (
            nn.Linear(32, 32),
            nn.Linear(32, 1),
            nn.Linear(32, 4),
            nn.Linear(32, 8),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.backbone(x))
        scores, boxes = self.score(h).squeeze(-1).sigmoid(), self.box(h)
        low, high = (
            torch.minimum(boxes[:, :2], boxes[:, 2:]),
            torch.maximum(boxes[:, :2], boxes[:, 2:]),
        )
        areas = (high - low).prod(-1)
        common = (
            (torch.minimum(high[:, None], high) - torch.maximum(low[:, None], low))
            .clamp(min=0)
            .prod(-1)
        )
        overlap = common / (areas[:, None] + areas - common)
        chosen: list[int] = []
        for index in scores.argsort(descending=True).tolist():
            if scores[index] >= 0.5 and not (overlap[index, chosen] > 0.2).any():
                chosen.append(index)
        result: torch.Tensor = self.head(h[chosen])
        return result


class Solver(nn.Module):
    """dy/dt = f(y) by Heun's method, in steps as long as Euler's error lets them be."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.out = (
            nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)),
            nn.Linear(16, 4),
        )

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        t, dt = 0.0, 0.1
        while t < 2.0:
            dt = min(dt, 2.0 - t)
            first = self.f(y)
            second = self.f(y + dt * first)
            error = float((dt * (second - first) / 2).detach().norm() / y.detach().norm())
            if error < 4e-4:
                t, y = t + dt, y + dt * (first + second) / 2
            dt *= min(2.0, max(0.3, 0.9 * (4e-4 / max(error, 1e-9)) ** 0.5))
        result: torch.Tensor = self.out(y)
        return result


def other_order(model: nn.Module, scale: float = 1.0, name: str = "") -> nn.Module:
    """The same model with sums in another order, as another device has them; and an error in one
    module.
    """
    for own, module in model.named_modules():
        if isinstance(module, nn.Linear):
            by = scale if own == name else 1.0
            module.forward = lambda x, module=module, by=by: (
                by
                * nn.functional.linear(  # type: ignore[method-assign,misc]
                    x.flip(-1).float(), module.weight.flip(-1).float(), module.bias.float()
                ).to(x.dtype)
            )
    return model


def located(
    tmp_path: Path,
    kind: type[nn.Module],
    x: torch.Tensor,
    seed: int,
    fed: bool,
    scale: float = 1.0,
    name: str = "",
) -> ac.Comparison:
    torch.manual_seed(seed)
    model = kind().to(BF16).float().eval()
    golden = tmp_path / "golden"
    with ac.capture(model, golden):
        model(x)
    for out in ("candidate", "baseline"):
        other = kind().eval()
        other.load_state_dict(model.state_dict())
        if out == "candidate":
            other_order(other, scale, name)
        with ac.capture(
            other.to(BF16), tmp_path / out, **grouped(**{"feed": golden} if fed else {})
        ):
            other(x.to(BF16))
    return ac.diff(golden, tmp_path / "candidate", baseline=tmp_path / "baseline")


@pytest.mark.parametrize("fed", [False, True])
def test_another_number_of_boxes_in_bfloat16_is_no_bug_and_a_fault_before_them_is(
    tmp_path: Path, fed: bool
) -> None:
    x = torch.randn(150, 32, generator=torch.Generator().manual_seed(0)).to(BF16).float()
    clean = located(tmp_path / "clean", Detector, x, 0, fed)
    # rounding does change it; fed, the code goes on with golden's order of scores
    assert any(row.verdict.by_rounding for row in clean.rows) is not fed
    assert clean.answer is (Answer.ROUNDING if fed else Answer.NOT_SURE)
    assert (
        located(tmp_path / "bad", Detector, x, 0, fed, 1.2, "backbone").culprits[0].name
        == "backbone"
    )


def test_another_number_of_a_solver_s_steps_in_bfloat16_is_no_bug_and_a_fault_is(
    tmp_path: Path,
) -> None:
    x = torch.randn(2, 16, generator=torch.Generator().manual_seed(0)).to(BF16).float()
    clean = located(tmp_path / "clean", Solver, x, 2, fed=True)
    assert any(row.verdict.by_rounding for row in clean.rows)  # rounding does change it
    assert (clean.answer, clean.passed, bool(clean.trouble)) == (Answer.NOT_SURE, False, True)
    bad = located(tmp_path / "bad", Solver, x, 2, True, 1.2, "f.2")
    assert (bad.answer, bad.culprits[0].name) == (Answer.BUG, "f.2")


class _Chosen(nn.Module):
    """A sum over the two highest of eight scores, which are scaled."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.gate, self.factor = nn.Linear(32, 8), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, _ = (self.gate(x) * self.factor).topk(2, -1)
        chosen: torch.Tensor = x + scores.softmax(-1)[..., :1]
        return chosen


@pytest.mark.parametrize(("factor", "sound"), [(1.0, True), (1.05, False)])
def test_scores_that_lead_to_goldens_choice_may_still_be_wrong(
    tmp_path: Path, factor: float, sound: bool
) -> None:
    torch.manual_seed(0)
    right, x = _Chosen(1.0).bfloat16(), torch.randn(64, 32).bfloat16()
    other = copy.deepcopy(right)
    other.factor = factor
    sides = {"golden": copy.deepcopy(right).float(), "fed": other, "baseline": right}
    for name, model in sides.items():
        feed = None if name == "golden" else ac.FedWith(tmp_path / "golden", force=True)
        with ac.capture(model, tmp_path / name, feed=feed), torch.no_grad():
            model(x.to(model.gate.weight.dtype))
    found = ac.diff(tmp_path / "golden", tmp_path / "fed", baseline=tmp_path / "baseline")
    assert (found.passed, found.answer.value == "bug") == (sound, not sound)
