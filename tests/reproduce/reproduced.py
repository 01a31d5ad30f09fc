"""Modules that the tests of the reproducer plant a value in that is not finite, and the hooks that
take a call's snapshot.

The hooks are written here once more, without the watch, as an independent reference.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.utils import _pytree as pytree

from accucompare.findings.log.events import Cause, Direction, Finding, Site
from accucompare.live.numerics.autocast import autocast_now
from accucompare.live.operators.random_state import RandomState
from accucompare.live.values.values import leaves
from accucompare.reproduce.module_outcome import RunOutcome
from accucompare.reproduce.reproducer import Reproducer
from accucompare.reproduce.saving import save_reproducer
from accucompare.reproduce.snapshot import Snapshot
from tests.forkserver import SCRIPT, with_torch

NAN, INF = float("nan"), float("inf")


class Unkept(nn.Module):
    """Keeps none of its constructor's arguments, and a tensor that is no buffer."""

    def __init__(self, width: int, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first = nn.Linear(width, width * 2)
        self.second = nn.Linear(width * 2, width, bias=False)
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("offset", torch.zeros(width), persistent=False)
        self.nothing = None
        self.function = function
        self.table = torch.full((width,), INF)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.function(self.first(x))) * self.scale + self.offset + self.table


class Tied(nn.Module):
    """An embedding and a head with one weight, and one activation under two names."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(size, width)
        self.head = nn.Linear(width, size, bias=False)
        self.head.weight = self.embed.weight
        self.act = nn.PReLU()
        self.again = self.act

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.again(self.act(self.embed(ids))))


class ManyTypes(nn.Module):
    """Takes tensors of every kind, nested, and writes down what it was given."""

    def forward(
        self, given: dict[str, Any], *more: Any, option: str, scale: float
    ) -> dict[str, Any]:
        total = sum(
            (
                tensor.to(torch.complex64).abs().sum()
                for _, tensor in leaves((given, more))
                if isinstance(tensor, torch.Tensor)
            ),
            0,
        )
        return {
            "same": more[0] is more[1],
            "total": total * scale,
            "strides": torch.tensor(given["turned"].stride()),
            "word": option,
        }


class Root(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sqrt()


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sub_(1).log_()


class Around(nn.Module):
    """Gives a layer inside it something that is not finite, and hides what came of it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nan_to_num(self.norm(x / 0))


class PassesOn(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, mask


def poisoned(parameter: torch.Tensor, value: float = NAN) -> None:
    with torch.no_grad():
        parameter.view(-1)[0] = value


@dataclass
class Taken:
    """A call's snapshot, and what came of it when it was first made."""

    snapshot: Snapshot
    outputs: dict[str, Any]
    gradients: dict[str, torch.Tensor]


def take(model: nn.Module, name: str, *args: Any, backward: bool = False, **kwargs: Any) -> Taken:
    """Run a model, and take the snapshot of the first call of the module of that name."""
    module = model.get_submodule(name)
    taken: list[Taken] = []

    def before(_: nn.Module, args: Any, kwargs: Any) -> None:
        copies: dict[int, torch.Tensor] = {}

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            return copies.setdefault(
                id(tensor), tensor.detach().clone().requires_grad_(tensor.requires_grad)
            )

        args, kwargs = pytree.tree_map_only(torch.Tensor, copied, (args, kwargs))
        buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
        random = RandomState({"cpu": torch.get_rng_state()})
        snapshot = Snapshot(
            module,
            name,
            0,
            args,
            kwargs,
            random,
            autocast_now(),
            buffers,
            {},
            torch.is_grad_enabled(),
        )
        taken.append(Taken(snapshot, {}, {}))

    def after(_: nn.Module, args: Any, output: Any) -> None:
        for path, part in leaves(output):
            taken[0].outputs[path] = (
                part.detach().clone() if isinstance(part, torch.Tensor) else part
            )
            if backward and isinstance(part, torch.Tensor) and part.requires_grad:
                part.register_hook(
                    lambda grad, path=path: taken[0].snapshot.grads.__setitem__(path, grad.clone())
                )

    hooks = [
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after),
    ]
    output = model(*args, **kwargs)
    for hook in hooks:
        hook.remove()
    if backward:
        sum(
            part.float().sum()
            for _, part in leaves(output)
            if isinstance(part, torch.Tensor) and part.requires_grad
        ).backward()
        taken[0].gradients = {
            name: each.grad.clone()
            for name, each in module.named_parameters()
            if each.grad is not None
        }
    return taken[0]


def found(taken: Taken, **changes: Any) -> Finding:
    """What a watch would say of it."""
    said: dict[str, Any] = {
        "step": 7,
        "order": 3,
        "name": taken.snapshot.name,
        "call": 0,
        "type": type(taken.snapshot.module).__name__,
        "site": Site.MODULE,
        "direction": Direction.BACKWARD if taken.snapshot.grads else Direction.FORWARD,
        "origin": True,
        "cause": Cause.INSIDE,
        "kinds": ["NaN"],
    }
    return Finding(**{**said, **changes})


def save(taken: Taken, stem: Path, case: str | None = None, **changes: Any) -> tuple[Path, Finding]:
    """The script, and the finding with the notes on it."""
    finding = found(taken, **changes)
    script, notes = save_reproducer(stem, finding, taken.snapshot, case)
    return script, replace(finding, reproducer_notes=notes)


def rerun(script: Path, given: dict[str, Any] | None = None) -> RunOutcome:
    reproducer = Reproducer.open(script)
    with reproducer.bundle, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        module = reproducer.restore(runpy.run_path(str(script))["build"]())
        return reproducer.run(module, given)


class Answer(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run_here(script: Path, *arguments: str) -> Answer:
    """What the script answers, run in this process, which has imported torch already."""
    said, warned = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(warned),
    ):
        patch.setattr(sys, "argv", [str(script), *arguments])
        patch.setattr(sys, "path", [*sys.path])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
    return Answer(ended.value.code, said.getvalue(), warned.getvalue())


def run(script: Path) -> subprocess.CompletedProcess[str]:
    """What the script answers, run in another process than this one, from anywhere."""
    return with_torch()(SCRIPT, script, cwd=Path("/"), variables=os.environ)
