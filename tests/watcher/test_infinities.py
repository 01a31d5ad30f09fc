"""Inf and NaN that sound programs use, of which nothing is said, and those that begin where they
should not, which are named there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import accucompare as ac
from accucompare.findings.log.events import Alert
from accucompare.report.watch_words import said
from tests.asked import looking
from tests.recorded import Glue
from tests.watcher.watched import events, origins

INF = math.inf
DIAGONAL = torch.eye(4, dtype=torch.bool)
FIRST = torch.tensor([True, False, False, False])
CHAIN = torch.tensor([[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5], [0, 0, 0, 1.0]])
LABELS = torch.arange(4)

Function = Callable[[torch.Tensor], torch.Tensor]
#: What a child, ``made``, makes of a linear layer's output; what its parent makes of that; and the
# loss, or none.
Program = tuple[Function, Function, Function | None]


def mean(x: torch.Tensor) -> torch.Tensor:
    return x.float().square().mean()


def same(x: torch.Tensor) -> torch.Tensor:
    return x


def label_loss(x: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(x.float(), LABELS)


def normalised(adjacency: torch.Tensor) -> torch.Tensor:
    degrees = adjacency.sum(1).pow(-0.5)
    return degrees.masked_fill(degrees == INF, 0.0)


def forward_algorithm(transitions: torch.Tensor) -> torch.Tensor:
    scores = torch.zeros(4)
    for _ in range(3):
        scores = torch.logsumexp(scores[:, None] + transitions, 0)
    return scores


SOUND: dict[str, Program] = {
    "distances, but to itself": (
        lambda x: torch.cdist(x, x).masked_fill(DIAGONAL, INF),
        lambda d: d.min(-1).values,
        mean,
    ),
    "nearest neighbours": (
        lambda x: torch.cdist(x, x).masked_fill(DIAGONAL, INF),
        lambda d: d.topk(2, largest=False).values,
        mean,
    ),
    "a filled diagonal": (
        lambda x: torch.cdist(x, x).fill_diagonal_(INF),
        lambda d: d.argmin(-1).float(),
        None,
    ),
    "keys to sort by": (
        lambda x: torch.where(x > 0, INF, x),
        lambda keys: keys.sort(-1).indices.float(),
        None,
    ),
    "a minimum with no member": (
        lambda x: torch.full((6, 4), INF).scatter_reduce(
            0, LABELS[:, None].expand(4, 4), x, "amin"
        ),
        lambda least: torch.where(least.isinf(), 0.0, least),
        mean,
    ),
    "a maximum with no member": (
        lambda x: torch.full((6, 4), -INF).scatter_reduce(
            0, LABELS[:, None].expand(4, 4), x, "amax"
        ),
        lambda most: most.masked_fill(most == -INF, 0.0),
        mean,
    ),
    "bounds": (
        lambda x: torch.tensor([-INF, 0.0, 0.0, INF]).expand_as(x),
        lambda bound: bound.clamp(-1, 1),
        None,
    ),
    "distances as logits": (
        lambda x: -torch.cdist(x, x).masked_fill(DIAGONAL.roll(1, 0), INF),
        same,
        label_loss,
    ),
    "a policy's mask": (lambda x: x.masked_fill(DIAGONAL.roll(1, 0), -INF), same, label_loss),
    "top-k sampling": (
        lambda x: x.masked_fill(x < x.topk(2).values[:, -1:], -INF),
        lambda x: x.softmax(-1),
        mean,
    ),
    "a mask set by index": (
        lambda x: x.index_fill(1, LABELS[:1], -INF),
        lambda x: x.softmax(-1),
        mean,
    ),
    "a sum of exponentials from nothing": (
        lambda x: torch.logaddexp(torch.full_like(x, -INF), x),
        same,
        mean,
    ),
    "the log of a mask": (lambda x: x + (~FIRST).float().log(), lambda x: x.softmax(-1), mean),
    "the log of whole numbers": (
        lambda x: x + (~FIRST).long().log(),
        lambda x: x.softmax(-1),
        mean,
    ),
    "the log of no probability": (
        lambda x: CHAIN.log() + 0 * x.detach().mean(),
        forward_algorithm,
        None,
    ),
    "a mask beyond float16": (
        lambda x: x.half() + (FIRST.half() * -1e9),
        lambda x: x.float().softmax(-1),
        mean,
    ),
    "a mask that is cast": (
        lambda x: x + (FIRST.float() * -1e9).half(),
        lambda x: x.softmax(-1),
        mean,
    ),
    "the lowest number, cast": (
        lambda x: x + (FIRST * torch.finfo(torch.float32).min).half(),
        lambda x: x.softmax(-1),
        mean,
    ),
    "degrees of 0": (lambda x: normalised(DIAGONAL.roll(1, 0).float().triu(1)) * x, same, mean),
    "degrees of 0 that a child gives": (
        lambda x: torch.relu(x.detach().round()).pow(-0.5),
        lambda x: x.masked_fill(x.isinf(), 0.0),
        None,
    ),
    "division by 0, clamped": (
        lambda x: 1 / torch.relu(x.detach()),
        lambda x: x.clamp(max=5.0),
        None,
    ),
    "division by 0, replaced": (
        lambda x: x.abs().detach() / torch.zeros(4),
        lambda x: torch.nan_to_num(x, posinf=1.0),
        None,
    ),
    "rows with nothing in them": (
        lambda x: x.masked_fill(FIRST[:, None], -INF).softmax(-1),
        lambda p: p.masked_fill(FIRST[:, None], 0.0),
        mean,
    ),
    "a scaled maximum pool": (lambda x: functional.max_pool1d(x[None], 3, 1, 1)[0], same, mean),
    "a beam": (
        lambda x: torch.full((4, 4), -INF).index_fill(1, LABELS[:1], 0.0) + x,
        lambda x: x.topk(1).values,
        mean,
    ),
}


def model_of(made: Function, then: Function, dtype: torch.dtype) -> Any:
    model: Any = Glue(
        lambda self, x: then(self.made(self.first(x))),
        first=nn.Linear(4, 4),
        made=Glue(lambda self, x: made(x)),
    )
    return model.to(dtype)


def train(
    model: nn.Module, out: Path, loss: Function | None, dtype: torch.dtype, **options: Any
) -> Any:
    """Two steps of SGD, or of a forward without gradients; and the watch."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with ac.watch(model, **looking(optimizer=optimizer, out=out, quiet=True, **options)) as watch:
        for _ in range(2):
            with torch.set_grad_enabled(loss is not None):
                output = model(torch.randn(4, 4).to(dtype))
            if loss is not None:
                loss(output).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
            watch.step()
    return watch


def are_finite(model: nn.Module) -> bool:
    return all(bool(parameter.isfinite().all()) for parameter in model.parameters())


@pytest.mark.parametrize("frames", [0, 21])
@pytest.mark.parametrize("name", SOUND)
def test_what_a_sound_program_does_with_infinities_is_left_alone(
    name: str, frames: int, tmp_path: Path
) -> None:
    made, then, loss = SOUND[name]
    torch.manual_seed(0)
    watch = train(model_of(made, then, torch.float32), tmp_path, loss, torch.float32, frames=frames)
    assert [(found.place, found.kinds) for found in watch.findings] == []


FLOATS = (torch.float32, torch.float16, torch.bfloat16)

#: What ``made`` computes beyond what its type holds, and by which operator.
ORIGINS: dict[str, tuple[Function, str]] = {
    "a negative square": (lambda x: -(x * torch.finfo(x.dtype).max ** 0.6).pow(2), "aten.pow"),
    "less than an exponential": (lambda x: x - (x.abs() * 1000).exp(), "aten.exp"),
    "an exponential times cosines": (
        lambda x: torch.full((), 1000.0).to(x.dtype).exp() * x.sign(),
        "aten.exp",
    ),
    "a temperature of 0": (
        lambda x: -x.abs() * (1 / torch.zeros((), dtype=x.dtype)),
        "aten.reciprocal",
    ),
    "a sentinel beside an overflow": (
        lambda x: torch.where(x > 0, -((x * 1000).exp()) - 1e30, -INF),
        "aten.exp",
    ),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ORIGINS)
def test_a_minus_inf_that_is_computed_is_no_mask_and_reaches_no_parameter(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    made, operator = ORIGINS[name]
    model = model_of(made, same, dtype)
    with pytest.raises(ac.NonFiniteError) as raised:
        train(model, tmp_path, label_loss, dtype)
    found = raised.value.finding
    assert (found.name, found.step, found.operator.startswith(operator)) == ("made", 0, True)
    assert are_finite(model)


HARM: dict[str, tuple[Program, str, str]] = {
    "a sentinel in a norm": (
        (lambda x: x.masked_fill(FIRST, INF), lambda x: functional.layer_norm(x, (4,)), mean),
        "made",
        "+Inf",
    ),
    "a sentinel in the loss": (
        (lambda x: x.masked_fill(FIRST, INF), same, lambda x: (x - x.mean()).mean()),
        "loss",
        "NaN",
    ),
    "a label that is masked": (
        (lambda x: x.masked_fill(DIAGONAL, -INF), same, label_loss),
        "loss",
        "+Inf",
    ),
    "a row that is masked": (
        (lambda x: x.masked_fill(FIRST[:, None], -INF), same, label_loss),
        "loss",
        "NaN",
    ),
    "the log of 0, used": (
        (lambda x: torch.relu(x).log(), lambda x: x - x.detach(), mean),
        "made",
        "-Inf",
    ),
    "a row with nothing in it": (
        (lambda x: x.masked_fill(FIRST[:, None], -INF).softmax(-1), lambda p: p * p, mean),
        "made",
        "NaN",
    ),
    "the log of what a loss wants": (
        (lambda x: torch.relu(x).log() * torch.ones(4), same, lambda x: -x.mean()),
        "made",
        "-Inf",
    ),
}


@pytest.mark.parametrize("name", HARM)
def test_what_is_legal_is_told_once_it_does_harm(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    (made, then, loss), place, kind = HARM[name]
    model = model_of(made, then, torch.float32)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(ac.NonFiniteError) as raised:
        train(model, tmp_path, loss, torch.float32)
    found = raised.value.finding
    assert kind in found.kinds
    assert (found.site.value if place == "loss" else found.name) == place
    assert all(map(torch.equal, before, model.parameters()))


def test_a_loss_names_what_the_model_gave_it(tmp_path: Path) -> None:
    made, then, loss = HARM["a row that is masked"][0]
    with pytest.raises(
        ac.NonFiniteError,
        match=(
            r"made outside of the model: what it gave was finite, but for an Inf that is legal"
            r" \(output\)"
        ),
    ):
        train(model_of(made, then, torch.float32), tmp_path, loss, torch.float32)


def test_what_filled_its_output_once_is_named_when_it_computes_an_inf_later(tmp_path: Path) -> None:
    scale = [0.0, 1e30]
    model = model_of(
        lambda x: (x - (x * scale[0]).pow(2)).masked_fill(DIAGONAL.roll(1, 0), -INF),
        same,
        torch.float32,
    )
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with (
        contextlib.suppress(ac.NonFiniteError),
        ac.watch(model, optimizer, out=tmp_path, quiet=True) as watch,
    ):
        for _ in range(2):
            label_loss(model(torch.randn(4, 4))).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            watch.step()
            scale.pop(0)
    (found,) = origins(watch)
    assert (found.name, found.step, found.operator) == ("made", 1, "aten.pow.Tensor_Scalar")
    assert are_finite(model)


def test_a_pole_that_comes_to_nothing_is_noted_once(tmp_path: Path) -> None:
    made, then, loss = SOUND["division by 0, clamped"]
    watch = train(model_of(made, then, torch.float32), tmp_path, loss, torch.float32)
    (warned,) = events(watch, Alert)
    assert (warned.name, said(warned.text)) == (
        "made",
        "made (Glue): +Inf began there, and came to nothing: no output, gradient or loss has it",
    )


def test_what_comes_into_a_buffer_has_not_come_to_nothing(tmp_path: Path) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.first.running_mean.add_(self.made(self.first(x)).detach().mean(0))
        return torch.ones(())

    model: Any = Glue(
        forward, first=nn.BatchNorm1d(4), made=Glue(lambda self, x: 1 / torch.relu(x))
    )
    with pytest.raises(ac.NonFiniteError) as raised:
        train(model, tmp_path, None, torch.float32)
    assert raised.value.finding.name == "made"


WAYS: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "written into": lambda model, loss: (
        loss.backward(),
        next(model.parameters()).grad.mul_(math.nan),
    ),  # type: ignore[union-attr]
    "put there": lambda model, loss: [
        setattr(each, "grad", torch.full_like(each, math.nan)) for each in model.parameters()
    ],
    "clipped by nothing": lambda model, loss: (
        loss.backward(),
        [each.grad.div_(0.0) for each in model.parameters()],
    ),  # type: ignore[union-attr]
    "of a loss": lambda model, loss: (loss * math.nan).backward(),
    "of an Inf in a loss": lambda model, loss: (loss * INF).backward(),
    "of a hook": lambda model, loss: (
        next(model.parameters()).register_hook(lambda grad: grad * math.nan),
        loss.backward(),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_that_is_not_finite_never_reaches_a_parameter(way: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with (
        contextlib.suppress(ac.NonFiniteError),
        ac.watch(model, optimizer, out=tmp_path, quiet=True, look=ac.LookAt(frames=0)) as watch,
    ):
        WAYS[way](model, model(torch.randn(4, 4)).square().mean())
        optimizer.step()
    assert origins(watch)
    assert are_finite(model)
