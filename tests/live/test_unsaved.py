"""While a model is captured or watched, the user's own copies, pickles and exports of it are those
of a plain run.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.live.modules.unsaved import Unsaved


class Block(nn.Module):
    """A module that reduces itself by a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) + self.count

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)


def users_hook(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


def build() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), Block(), nn.Dropout(0.0))
    model[1].register_forward_hook(users_hook)
    return model


@pytest.fixture
def plain() -> nn.Module:
    return build()


@pytest.fixture(params=["capture", "watch"])
def hooked(request: pytest.FixtureRequest, tmp_path: Path, plain: nn.Module) -> Iterator[nn.Module]:
    model = build()
    run = (
        ac.capture(model, tmp_path / "bundle")
        if request.param == "capture"
        else ac.watch(model, out=tmp_path / "log")
    )
    with run:
        model(torch.ones(2, 3)).sum().backward()
        yield model


def by_torch_save(model: nn.Module) -> nn.Module:
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    with torch.serialization.safe_globals(
        [nn.Sequential, nn.Linear, nn.Dropout, Block, users_hook]
    ):
        return torch.load(stream)  # which refuses every class that is not named


def by_fx(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(torch.fx.symbolic_trace(copy.deepcopy(model))))


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "old pickle": lambda model: pickle.loads(pickle.dumps(model, 2)),
    "torch.save": by_torch_save,
    "fx": by_fx,
    "share_memory": lambda model: copy.deepcopy(model).share_memory(),
}


def hooks_of(model: nn.Module) -> list[Any]:
    tables = ("_forward_hooks", "_forward_pre_hooks")
    return [
        hook
        for module in model.modules()
        for table in tables
        for hook in getattr(module, table).values()
    ]


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_that_is_made_meanwhile_has_the_users_hooks_alone(
    hooked: nn.Module, plain: nn.Module, way: str
) -> None:
    made = COPIES[way](hooked)
    plain = COPIES[way](plain)
    assert hooks_of(made) == hooks_of(plain)
    x = torch.rand(2, 3)
    torch.testing.assert_close(made(x), plain(x), rtol=0, atol=0)


def test_the_pickle_is_byte_for_byte_that_of_a_plain_run(tmp_path: Path) -> None:
    model = build()
    before = pickle.dumps(model)
    with ac.capture(model, tmp_path / "bundle"):
        assert pickle.dumps(model) == before


def test_the_models_own_hooks_stay_on_it_when_it_is_copied(hooked: nn.Module) -> None:
    count = len(hooks_of(hooked))
    copy.deepcopy(hooked)
    assert len(hooks_of(hooked)) == count
    assert any(isinstance(hook, Unsaved) for hook in hooks_of(hooked))


def test_modules_are_reduced_by_pythons_own_function_afterwards(tmp_path: Path) -> None:
    with ac.capture(build(), tmp_path / "a"), ac.watch(build(), out=tmp_path / "b"):
        pass
    assert nn.Module.__reduce_ex__ is object.__reduce_ex__


def test_a_shallow_copy_shares_the_children_and_has_no_hooks_of_its_own(hooked: nn.Module) -> None:
    made = copy.copy(hooked)
    assert (made[0] is hooked[0], len(made._forward_hooks)) == (True, 0)


def test_a_model_is_exported_while_it_is_captured(hooked: nn.Module, plain: nn.Module) -> None:
    exported = torch.export.export(hooked.eval(), (torch.ones(2, 3),), strict=False)
    torch.testing.assert_close(
        exported.module()(torch.ones(2, 3)), plain.eval()(torch.ones(2, 3)), rtol=0, atol=0
    )
