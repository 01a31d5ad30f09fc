"""Writing down how a module is made: every recipe is run here, and what it makes is compared with
the module.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import logging
import math
import random
import sys
import types
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from accucompare.reproduce.class_import import CannotRebuildError, import_file
from accucompare.reproduce.recipe import recipe


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


class Kind(enum.Enum):
    SMALL = 1


@dataclasses.dataclass
class Options:
    width: int = 4
    kinds: tuple[str, ...] = ("a",)
    dtype: torch.dtype = torch.bfloat16


class Keeps(nn.Module):
    """Keeps its one argument, under its own name."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class KeepsPrivately(nn.Module):
    def __init__(self, value: int, *, more: bool) -> None:
        super().__init__()
        self._value = value
        self.more = nn.Parameter(torch.ones(value)) if more else None


class FromChild(nn.Module):
    """Gives its arguments to a child, which keeps them."""

    def __init__(self, width: int, layer: int = 0) -> None:
        super().__init__()
        self.inner = nn.ModuleList([Layer(width, layer)])


class Layer(nn.Module):
    def __init__(self, width: int, layer: int) -> None:
        super().__init__()
        self.width, self.layer = width, layer
        self.fc = nn.Linear(width, width)


class Around(nn.Module):
    """Takes a module, and any number of which it keeps in a list."""

    def __init__(self, function: nn.Module, p: float = 0.5) -> None:
        super().__init__()
        self.function = function
        self.p = nn.Dropout(p)


class Misleading(nn.Module):
    """Its attribute of an argument's name is not that argument."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.width = width * 2


class OnlyOnce(nn.Module):
    made = 0

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)
        OnlyOnce.made += 1
        if OnlyOnce.made > 1:
            raise RuntimeError("only once")


class Draws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = float(random.random() + np.random.rand() + torch.rand(()).item() > 9)


def made(module: nn.Module) -> nn.Module:
    """What the recipe of a module makes."""
    written = recipe(module)
    names: dict[str, Any] = {"sys": sys}
    exec("\n".join(written.imports), names)
    again: nn.Module = eval(written.text, names)
    return again


def shapes(module: nn.Module) -> dict[str, tuple[Any, ...]]:
    tensors = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return {name: tuple(tensor.shape) for name, tensor in tensors}


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (nn.Linear(2, 3, bias=False), "nn.Linear(2, 3, bias=False)"),
        (nn.Conv2d(3, 4, (3, 1), stride=2, groups=1), "nn.Conv2d(3, 4, (3, 1), stride=(2, 2))"),
        (
            nn.ConvTranspose1d(2, 3, 2, output_padding=1, stride=2),
            "nn.ConvTranspose1d(2, 3, (2,), stride=(2,), output_padding=(1,))",
        ),
        (nn.GRU(2, 3), "nn.GRU(2, 3)"),
        (nn.RNN(2, 3, nonlinearity="relu"), "nn.RNN(2, 3, nonlinearity='relu')"),
        (nn.Embedding(3, 2, max_norm=1.0), "nn.Embedding(3, 2, max_norm=1.0)"),
        (
            nn.BatchNorm2d(3, track_running_stats=False),
            "nn.BatchNorm2d(3, track_running_stats=False)",
        ),
        (nn.GELU("tanh"), "nn.GELU(approximate='tanh')"),
        (
            nn.MultiheadAttention(8, 2, bias=False, add_bias_kv=True),
            "nn.MultiheadAttention(8, 2, bias=False, add_bias_kv=True)",
        ),
        (
            nn.TransformerDecoderLayer(8, 2, norm_first=True, bias=False),
            "nn.TransformerDecoderLayer(8, 2, norm_first=True, bias=False)",
        ),
        (nn.Sequential(nn.ReLU(), nn.Sequential()), "nn.Sequential(nn.ReLU(), nn.Sequential())"),
        (nn.ModuleList([nn.Tanh()]), "nn.ModuleList([nn.Tanh()])"),
        (nn.DataParallel(nn.Linear(2, 3)), "nn.Linear(2, 3)"),
        (torch.compile(nn.ReLU(), backend="eager"), None),
        (
            nn.Sequential(collections.OrderedDict(a=nn.Linear(1, 2))),
            "assemble(nn.Sequential, {'a': nn.Linear(1, 2)})",
        ),
        (nn.ModuleDict({"a b": nn.Tanh()}), "assemble(nn.ModuleDict, {'a b': nn.Tanh()})"),
        (
            nn.ParameterList([torch.ones(2)]),
            "assemble(nn.ParameterList, {'_size': 1, '0': parameter(2)})",
        ),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2), None),
        (nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)), None),
        (KeepsPrivately(3, more=True), "KeepsPrivately(3, more=True)"),
        (KeepsPrivately(3, more=False), "KeepsPrivately(3, more=False)"),
        (FromChild(3, 4), "FromChild(3, layer=4)"),
        (FromChild(3), "FromChild(3)"),
        (Around(nn.Tanh(), 0.25), "Around(nn.Tanh(), p=0.25)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_a_recipe_makes_a_module_like_the_live_one(module: nn.Module, text: str | None) -> None:
    again = made(module)
    live = (
        module.module
        if isinstance(module, nn.DataParallel)
        else getattr(module, "_orig_mod", module)
    )
    assert repr(again) == repr(live)
    assert shapes(again) == shapes(live)
    if text is not None:
        assert recipe(module).text == text


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        2.5,
        math.inf,
        "a 'b'\n\"",
        b"x",
        1j,
        ...,
        (1,),
        (),
        [1, [2, {"k": (3, None)}]],
        {1: "x", "y": {2}},
        frozenset([1]),
        collections.OrderedDict(a=1),
        torch.float16,
        torch.Size([2, 3]),
        slice(1, 2),
        Kind.SMALL,
        Options(8),
        Namespace(hidden=4),
        types.SimpleNamespace(hidden=4),
        nn.functional.gelu,
        torch.tanh,
        math.sqrt,
        len,
        nn.LayerNorm,
        functools.partial(nn.LayerNorm, eps=0.5),
        np.float32(0.5),
        list(range(60)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_attribute_is_written_down(value: Any) -> None:
    again = made(Keeps(value)).value
    if isinstance(value, functools.partial):
        assert (again.func, again.args, again.keywords) == (value.func, value.args, value.keywords)
    else:
        assert again == (value.item() if isinstance(value, np.generic) else value)


def test_a_guess_that_is_wrong_is_not_written() -> None:
    written = recipe(Misleading(3))
    assert "Misleading(6)" not in written.text
    assert shapes(made(Misleading(3))) == {"fc.weight": (3, 3), "fc.bias": (3,)}


def test_an_attribute_that_was_changed_later_is_kept() -> None:
    module = nn.Sequential(nn.LayerNorm(2), nn.ELU())
    module[1].alpha = 7.0
    module[0].flavour = "odd"
    again = made(module)
    assert (again[1].alpha, again[0].flavour) == (7.0, "odd")


def test_a_constructor_that_raises_gives_way_to_the_parts() -> None:
    OnlyOnce.made = 0
    assert recipe(OnlyOnce(3)).text == "assemble(OnlyOnce, {'fc': nn.Linear(3, 3)})"


def test_neither_random_numbers_nor_logging_are_touched() -> None:
    module = Draws()
    before = (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
        logging.root.manager.disable,
    )
    recipe(module)
    assert (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
        logging.root.manager.disable,
    ) == before


def odd_ones() -> Iterator[Any]:
    class Local(nn.Module):
        pass

    yield Local(), "is defined inside a function, so that it cannot be imported"
    yield nn.Sequential(nn.ReLU(), Local()), "is defined inside a function"
    yield Keeps(lambda x: x), "<lambda> is defined inside a function"
    yield (
        Keeps(object()),
        "its attribute 'value' is a builtins.object, which cannot be written down",
    )
    yield Keeps([torch.ones(2)]), "its attribute 'value' is a torch.Tensor"
    yield torch.jit.trace(nn.Linear(1, 1), torch.ones(1)), "scripted or traced"


@pytest.mark.parametrize(("module", "message"), list(odd_ones()), ids=str)
def test_what_cannot_be_written_down_is_an_error_that_says_why(
    module: nn.Module, message: str
) -> None:
    with pytest.raises(CannotRebuildError, match=message):
        recipe(module)


def test_a_class_that_its_module_no_longer_has_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Keeps(1)
    monkeypatch.setitem(globals(), "Keeps", KeepsPrivately)
    with pytest.raises(CannotRebuildError, match="cannot be imported by that name"):
        recipe(module)


def test_two_classes_of_one_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("one_of_two", "two_of_two"):
        (tmp_path / f"{name}.py").write_text(
            f"from torch import nn\nclass Block(nn.Module):\n    name = {name!r}\n"
        )
    import one_of_two  # type: ignore[import-not-found]
    import two_of_two  # type: ignore[import-not-found]

    again = made(nn.Sequential(one_of_two.Block(), two_of_two.Block()))
    assert [part.name for part in again] == ["one_of_two", "two_of_two"]


def test_a_file_is_imported_once_and_forgotten_if_it_raises(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("import neighbour\nx = object()\n")
    (tmp_path / "neighbour.py").write_text("")
    (tmp_path / "bad.py").write_text("1 / 0\n")
    assert import_file(str(tmp_path / "good.py")).x is import_file(str(tmp_path / "good.py")).x
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            import_file(str(tmp_path / "bad.py"))
    with pytest.raises(ImportError, match="there is no Python file"):
        import_file(str(tmp_path / "none.py"))
