"""Subclasses of tensors that carry attributes, such as monai's MetaTensor, in a fed capture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from tests.recorded import Glue, Opened


class Tagged(torch.Tensor):
    """Hands its tag on to whatever is computed of it, as MetaTensor does."""

    tag: str

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = super().__torch_function__(function, types, args, kwargs or {})
        tags = [each.tag for each in args if isinstance(each, Tagged) and hasattr(each, "tag")]
        if isinstance(result, Tagged) and tags:
            result.tag = tags[0]
        return result


def tagged(values: torch.Tensor, tag: str = "spacing 1 mm") -> Tagged:
    made = values.clone().as_subclass(Tagged)
    made.tag = tag
    return made


def feed(model: nn.Module, folder: Path, *inputs: torch.Tensor) -> tuple[Path, Any]:
    """Golden of the first input, and a capture fed with it of the last; what the second run
    returns.
    """
    with torch.no_grad(), ac.capture(model, folder / "golden"):
        model(inputs[0])
    with ac.capture(model, folder / "fed", feed=ac.FedWith(folder / "golden", force=True)):
        output = model(inputs[-1])
    return folder / "fed", output


def model() -> nn.Module:
    return Glue(lambda self, x: self.b(self.a(x) + 1), a=nn.Linear(3, 3), b=nn.ReLU())


def test_it_is_fed_in_its_own_class_with_its_attributes(tmp_path: Path, opened: Opened) -> None:
    seen: list[Any] = []
    net = model()
    net.b.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    golden, arrived = torch.randn(2, 3), torch.randn(2, 3)
    fed, output = feed(net, tmp_path, tagged(golden), tagged(arrived))
    assert opened(fed).manifest.capture["feed"]["not_fed"] == []
    assert {type(value) for value in (*seen, output)} == {Tagged}
    assert {value.tag for value in (*seen, output)} == {"spacing 1 mm"}
    np.testing.assert_array_equal(output.as_subclass(torch.Tensor).detach(), net(golden).detach())


def test_golden_may_be_of_another_class(tmp_path: Path) -> None:
    golden = torch.randn(2, 3)
    net = model()
    _, output = feed(net, tmp_path, golden, tagged(torch.randn(2, 3), "mine"))
    assert output.tag == "mine"
    np.testing.assert_array_equal(output.as_subclass(torch.Tensor).detach(), net(golden).detach())


def test_a_class_that_refuses_to_be_computed_with_is_fed_all_the_same(
    tmp_path: Path, opened: Opened
) -> None:
    class Strict(Tagged):
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function in (
                torch.Tensor.copy_,
                torch.Tensor.eq,
                torch.Tensor.as_strided,
                torch.Tensor.narrow,
            ):
                raise TypeError("not with me")
            return super().__torch_function__(function, types, args, kwargs)

    net = Glue(lambda self, x: self.a(x), a=nn.ReLU(inplace=True))
    fed, _ = feed(net, tmp_path, torch.randn(2, 3), torch.randn(2, 3).as_subclass(Strict))
    assert opened(fed).manifest.capture["feed"]["not_fed"] == []


@pytest.mark.parametrize("rows", [slice(None), slice(0, 1)], ids=["whole", "a part"])
def test_what_is_written_in_place_reaches_the_callers_own(rows: slice, tmp_path: Path) -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        x = x * 2
        y = self.a(x[rows])
        return x, y

    x = tagged(torch.randn(2, 3))
    fed, (whole, part) = feed(Glue(forward, a=nn.ReLU(inplace=True)), tmp_path, x, x)
    assert ac.diff(tmp_path / "golden", fed).passed
    assert (type(whole), type(part)) == (Tagged, Tagged)
