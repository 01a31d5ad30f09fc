"""Gradients that one side clips otherwise, or not at all, and losses that the loop computes
otherwise, from capture to answer.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_sharded_data_parallel

import accucompare as ac
from accucompare.api import Comparison
from accucompare.bundle.format import Role
from accucompare.bundle.format.manifest import sealed
from accucompare.compare.decide import Answer
from accucompare.compare.remarks import NotOnSide, OneSideWhy
from tests.asked import grouped
from tests.combinations import once, pairwise

Clip = Callable[[nn.Module], object]


def _by_hand(norm: float) -> Clip:
    def clip(model: nn.Module) -> None:
        grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        total = torch.linalg.vector_norm(torch.stack([grad.norm() for grad in grads]))
        for grad in grads:
            grad.mul_(norm / total)

    return clip


def _by_fsdp(norm: float) -> Clip:
    """As ``FullyShardedDataParallel`` begins and ends, whose ranks add up their parts' norms."""

    def clip_grad_norm_(model: nn.Module) -> None:
        found = fully_sharded_data_parallel._get_grad_norm
        more = (torch.tensor(0.0), torch.device("cpu"))  # from torch 2.4 on
        count = len(inspect.signature(found).parameters)
        total = found([*model.parameters()], 2.0, *more[: count - 2])
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_((norm / (total + 1e-6)).clamp(max=1.0))

    return clip_grad_norm_


CLIPS: dict[str, Callable[[float], Clip]] = {
    "clip_grad_norm_": lambda norm: (
        lambda model: nn.utils.clip_grad_norm_(model.parameters(), norm)
    ),
    "clip_grad_value_": lambda norm: (
        lambda model: nn.utils.clip_grad_value_(model.parameters(), norm / 5)
    ),
    "by hand": _by_hand,
}


def mean_square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def trained(
    out: Path,
    clip: Clip = lambda model: None,
    loss: Callable[[torch.Tensor], torch.Tensor] = mean_square,
    hooked: bool = False,
    **options: Any,
) -> Path:
    """Two steps of two micro-batches. ``hooked``: the optimizer clips, in a hook of its own, and
    not the loop.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def clips(*_: object) -> None:
        clip(model)

    if hooked:
        optimizer.register_step_pre_hook(clips)
    with ac.capture(model, out, **grouped(backward=True, **options)) as session:
        for step in range(2):
            optimizer.zero_grad()
            for part in range(2):
                loss(
                    model(torch.sin(torch.arange(12.0).reshape(3, 4) + step + 2 * part)) * 10
                ).backward()
            if not hooked:
                clip(model)
            optimizer.step()
            session.step()
    return out


def compared(
    tmp_path: Path, golden: dict[str, Any], candidate: dict[str, Any], *, fed: bool = True
) -> Comparison:
    first = trained(tmp_path / "golden", **golden)
    return ac.diff(
        first, trained(tmp_path / "candidate", **candidate, **({"feed": first} if fed else {}))
    )


@pytest.mark.parametrize(("how", "other", "fed"), pairwise(CLIPS, (None, 0.325), (True, False)))
def test_clipping_that_the_other_side_does_otherwise_is_named_in_its_step(
    tmp_path: Path, how: str, other: float | None, fed: bool
) -> None:
    clip = CLIPS[how]
    comparison = compared(
        tmp_path, {"clip": clip(0.25)}, {} if other is None else {"clip": clip(other)}, fed=fed
    )
    assert comparison.answer is Answer.BUG
    assert ("clip" in comparison.conclusion, "step 0" in comparison.conclusion) == (True, True)
    assert comparison.culprits[0].place in (
        "the clipping of the gradients",
        "all 4 gradients of parameters",
    )


@pytest.mark.parametrize(("how", "other", "fed"), pairwise(CLIPS, (None, 0.325), (True, False)))
def test_a_hook_of_the_optimizer_that_clips_otherwise_is_named(
    tmp_path: Path, how: str, other: float | None, fed: bool
) -> None:
    clip = CLIPS[how]
    golden, candidate = (
        {"clip": clip(0.25), "hooked": True},
        {} if other is None else {"clip": clip(other), "hooked": True},
    )
    comparison = compared(tmp_path, golden, candidate, fed=fed)
    assert comparison.answer is Answer.BUG
    assert ("clip" in comparison.conclusion, "step 0" in comparison.conclusion) == (True, True)
    assert compared(tmp_path / "same", golden, golden, fed=fed).answer is Answer.IDENTICAL


def test_gradients_that_fsdp_clips_are_those_from_before(tmp_path: Path) -> None:
    golden = {"clip": CLIPS["clip_grad_norm_"](0.25)}
    assert compared(tmp_path, golden, {"clip": _by_fsdp(0.25)}, fed=False).passed


def test_fed_updates_after_clipping_by_hand_are_goldens(tmp_path: Path) -> None:
    """Golden's gradients are from before its clipping, those clipped by hand from after it."""
    golden, candidate = ({"clip": CLIPS[how](0.25)} for how in ("clip_grad_norm_", "by hand"))
    comparison = compared(tmp_path, golden, candidate)
    assert {each.record.role.value for each in comparison.rows if each.status.value == "fail"} == {
        "param_grad"
    }


@pytest.mark.parametrize("fed", [True, False], ids=["fed", "free"])
@pytest.mark.parametrize("how", CLIPS)
def test_the_same_clipping_is_no_difference(tmp_path: Path, how: str, fed: bool) -> None:
    clip = CLIPS[how](0.25)
    assert compared(tmp_path, {"clip": clip}, {"clip": clip}, fed=fed).answer is Answer.IDENTICAL


def _clears(model: nn.Sequential) -> None:
    model[2].bias.grad = None


def _grows(parameter: nn.Parameter) -> None:
    parameter.grad.mul_(1.5)


def _replaces(model: nn.Sequential) -> None:
    model[2].bias.grad = model[2].bias.grad * 1.5


#: Ways to change a gradient between its backward and the end of the step.
CHANGES: dict[str, tuple[bool, Clip]] = {
    "a hook": (True, lambda model: model[2].bias.register_hook(lambda grad: grad * 1.5)),
    "a hook after the sum": (
        True,
        lambda model: model[2].bias.register_post_accumulate_grad_hook(_grows),
    ),
    "in place": (False, lambda model: model[2].bias.grad.mul_(1.5)),
    "another tensor": (False, _replaces),
    "none": (False, _clears),
    "clipped": (False, lambda model: nn.utils.clip_grad_norm_([model[2].bias], 1e-3)),
}


def left(out: Path, clip: Clip = lambda model: None, hooked: bool = False, **options: Any) -> Path:
    """A step of two backwards, of which the loop keeps the gradients: no optimizer steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    if hooked:
        clip(model)
    with ac.capture(model, out, **grouped(backward=True, **options)):
        for part in range(2):
            mean_square(model(torch.sin(torch.arange(12.0).reshape(3, 4) + part))).backward()
        if not hooked:
            clip(model)
    return out


@pytest.mark.parametrize(("how", "fed"), once(CHANGES, [True, False]))
def test_a_gradient_that_is_changed_where_no_optimizer_steps_fails(
    tmp_path: Path, how: str, fed: bool
) -> None:
    hooked, change = CHANGES[how]
    golden = left(tmp_path / "golden")
    options = {"feed": golden} if fed else {}
    candidate = left(tmp_path / "candidate", change, hooked, **options)
    comparison = ac.diff(golden, candidate)
    assert (comparison.exit_code, comparison.culprits[0].row.record.role) == (1, Role.PARAM_GRAD)
    assert comparison.culprits[0].row.record.name == "2"
    again = left(tmp_path / "again", change, hooked, feed=candidate if fed else None)
    assert ac.diff(candidate, again).answer is Answer.IDENTICAL


def test_a_golden_that_has_gradients_of_updates_only_is_no_difference(tmp_path: Path) -> None:
    """An older version's."""
    older = left(tmp_path / "older", roles="forward,backward")
    manifest = json.loads((older / "manifest.json").read_text())
    manifest["capture"]["roles"] = None
    del manifest["capture"]["left_grads"]
    (older / "manifest.json").write_bytes(sealed(manifest))
    comparison = ac.diff(older, left(tmp_path / "candidate"))
    assert (comparison.exit_code, comparison.answer) == (0, Answer.IDENTICAL_SO_FAR)
    remarks = [row.verdict.remarks for row in comparison.rows if row.record.role is Role.PARAM_GRAD]
    assert remarks == [(NotOnSide(OneSideWhy.NO_UPDATE, golden=True),)] * 4


@pytest.mark.parametrize("fed", [True, False], ids=["fed", "free"])
def test_a_constant_in_the_loss_is_named(tmp_path: Path, fed: bool) -> None:
    """It changes no gradient, and so no weight."""
    comparison = compared(tmp_path, {}, {"loss": lambda output: mean_square(output) + 0.5}, fed=fed)
    assert not comparison.passed
    assert ("loss" in comparison.conclusion, "step 0" in comparison.conclusion) == (True, True)


class WithParts(nn.Module):
    """Returns its loss beside the parts of it, one of which is a number of Python's."""

    def __init__(self, of_loss: float = 0.0, of_part: float = 0.0) -> None:
        super().__init__()
        self.fc, self.more = nn.Linear(4, 2), (of_loss, of_part)

    def forward(self, values: torch.Tensor) -> dict[str, Any]:
        loss = self.fc(values).square().mean()
        return {
            "loss": loss + self.more[0],
            "parts": (loss * 0.5, float(loss.detach()) + self.more[1]),
        }


@pytest.mark.parametrize(
    ("more", "passes"), [((0.0, 0.0), True), ((1e-2, 0.0), False), ((0.0, 1e-2), False)]
)
def test_a_loss_that_the_model_returns_is_compared_with_its_parts(
    tmp_path: Path, more: tuple[float, float], passes: bool
) -> None:
    def once(out: Path, of_loss: float = 0.0, of_part: float = 0.0, **options: Any) -> Path:
        torch.manual_seed(0)
        model = WithParts(of_loss, of_part)
        with ac.capture(model, out, **grouped(backward=True, **options)):
            model(torch.ones(3, 4))["loss"].backward()
        return out

    golden = once(tmp_path / "golden")
    assert ac.diff(golden, once(tmp_path / "fed", *more, feed=golden)).passed is passes


def scaled(out: Path, scale: float, wrong: bool = False, feed: Path | None = None) -> Path:
    """A training whose loss is scaled, or not if by 0. ``wrong``: a gradient is too large."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    if wrong:
        model[1].register_full_backward_hook(lambda _, made, given: (1.5 * made[0],))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", scale or 1.0, growth_interval=1, enabled=scale > 0)
    with ac.capture(model, out, feed=feed) as session:
        for step in range(2):
            output = model(torch.sin(torch.arange(12.0).reshape(3, 4) + step))
            scaler.scale(mean_square(output)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            session.step()
    return out


@pytest.mark.parametrize("scales", [(0.0, 1024.0), (65536.0, 1024.0)], ids=["none", "another"])
@pytest.mark.parametrize("fed", [False, True], ids=["free", "fed"])
def test_losses_that_are_scaled_otherwise_are_no_difference(
    tmp_path: Path, scales: tuple[float, float], fed: bool
) -> None:
    golden = scaled(tmp_path / "golden", scales[0])
    feed = golden if fed else None
    assert ac.diff(golden, scaled(tmp_path / "own", scales[1], feed=feed)).exit_code == 0
    comparison = ac.diff(golden, scaled(tmp_path / "wrong", scales[1], wrong=True, feed=feed))
    assert (comparison.exit_code, comparison.culprits[0].name) == (1, "1")
