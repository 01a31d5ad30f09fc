"""Nested tensors, which hold tensors of different lengths: recorded, compared and fed by their
values.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.format.records import Layout
from accucompare.compare.rows.rows import Reason
from accucompare.report.words import verdict_words
from tests.recorded import Glue, Opened, Record

LAYOUTS = pytest.mark.parametrize(
    "layout", [torch.strided, torch.jagged], ids=["strided", "jagged"]
)
pytestmark = pytest.mark.filterwarnings("ignore:.*prototype")


def ragged(layout: torch.layout, *lengths: int, width: int = 4) -> torch.Tensor:
    values = torch.arange(sum(lengths) * width, dtype=torch.float32).view(-1, width)
    return torch.nested.nested_tensor(
        [each.clone() for each in values.split(lengths)], layout=layout
    )


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2).eval()


def padded() -> dict[str, torch.Tensor]:
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[0, 3:] = mask[1, 4:] = True
    return {"src": torch.randn(3, 5, 16), "src_key_padding_mask": mask}


def capture(
    model: nn.Module, out: Path, *args: Any, feed: Path | None = None, **kwargs: Any
) -> Path:
    with torch.no_grad(), ac.capture(model, out, feed=ac.FedWith(feed, force=feed is not None)):
        model(*args, **kwargs)
    return out


@LAYOUTS
def test_its_values_are_recorded_in_one_array_with_the_shapes_of_its_parts(
    layout: torch.layout, record: Record
) -> None:
    results: list[Any] = []
    model, tensor = nn.Identity(), ragged(layout, 3, 5)
    model.register_forward_hook(lambda module, args, output: results.append(output))
    bundle = record(model, tensor)
    assert results[0] is tensor
    for entry in bundle.records():
        assert (entry.layout, entry.shape, entry.components) == (
            Layout.NESTED,
            (8, 4),
            ((3, 4), (5, 4)),
        )
    np.testing.assert_array_equal(bundle.load(""), np.arange(32, dtype=np.float32).reshape(8, 4))


def test_parts_that_differ_in_several_dimensions_are_recorded_in_a_row(record: Record) -> None:
    bundle = record(
        nn.Identity(), torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(3, 2)])
    )
    assert {(entry.shape, entry.components) for entry in bundle.records()} == {
        ((12,), ((2, 3), (3, 2)))
    }
    np.testing.assert_array_equal(bundle.load(""), [1.0] * 6 + [0.0] * 6)


def test_one_whose_parts_have_been_transposed_is_recorded_by_value(record: Record) -> None:
    nested = torch.nested.nested_tensor(
        [torch.arange(6.0).view(2, 3), torch.ones(4, 3)], layout=torch.jagged
    ).transpose(1, 2)
    bundle = record(nn.Identity(), nested)
    np.testing.assert_array_equal(bundle.load("").reshape(-1)[:6], [0, 3, 1, 4, 2, 5])


def test_without_parts_it_is_recorded_empty(record: Record) -> None:
    bundle = record(nn.Identity(), torch.nested.nested_tensor([]))
    assert {(entry.shape, entry.components) for entry in bundle.records()} == {((0,), ())}


@pytest.mark.parametrize("fed", [False, True], ids=["free", "fed"])
def test_a_fault_in_an_encoder_that_is_given_a_padding_mask_is_found(
    fed: bool, tmp_path: Path
) -> None:
    model, inputs = encoder(), padded()
    faulty = copy.deepcopy(model)
    with torch.no_grad():
        faulty.layers[1].norm2.weight.mul_(1.1)
    golden = capture(model, tmp_path / "golden", **inputs)
    comparison = ac.diff(
        golden, capture(faulty, tmp_path / "candidate", feed=golden if fed else None, **inputs)
    )
    assert not comparison.passed
    assert comparison.culprits[0].name == "layers.1.norm2"
    assert not [row.place for row in comparison.rows if row.verdict.reason is Reason.NOT_COMPARABLE]


def test_an_encoder_fed_from_itself_is_fed_everywhere(tmp_path: Path, opened: Opened) -> None:
    model, inputs = encoder(), padded()
    golden = capture(model, tmp_path / "golden", **inputs)
    fed = opened(capture(model, tmp_path / "fed", feed=golden, **inputs))
    assert fed.manifest.capture["feed"]["not_fed"] == []
    assert {row.verdict.reason for row in ac.diff(golden, fed.path).rows} == {
        Reason.IDENTICAL,
        Reason.NOT_CALLED,
    }


class Double(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@LAYOUTS
def test_a_fed_module_is_given_goldens_values(
    layout: torch.layout, tmp_path: Path, opened: Opened
) -> None:
    model = Glue(lambda self, x: self.b(self.a(x)), a=nn.Identity(), b=Double())
    golden = capture(model, tmp_path / "golden", ragged(layout, 3, 5))
    fed = opened(capture(model, tmp_path / "fed", ragged(layout, 3, 5) * 10, feed=golden))
    np.testing.assert_array_equal(fed.load("b"), np.arange(32, dtype=np.float32).reshape(8, 4) * 2)
    assert fed.load("")[7, 3] == 62


@LAYOUTS
def test_what_a_module_writes_into_one_reaches_its_caller(
    layout: torch.layout, tmp_path: Path, opened: Opened
) -> None:
    class Doubling(nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            x.mul_(2)

    def forward(self: Any, x: torch.Tensor) -> Any:
        self.a(x)
        return self.b(x)

    model = Glue(forward, a=Doubling(), b=nn.Identity())
    golden = capture(model, tmp_path / "golden", ragged(layout, 3, 5))
    fed = opened(capture(model, tmp_path / "fed", ragged(layout, 3, 5), feed=golden))
    assert ac.diff(golden, fed.path).passed


@LAYOUTS
def test_other_lengths_are_not_fed_and_that_is_said(
    layout: torch.layout, tmp_path: Path, opened: Opened
) -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return y * 2

    golden = capture(Sum(), tmp_path / "golden", ragged(layout, 3, 5), torch.ones(2))
    fed = opened(capture(Sum(), tmp_path / "fed", ragged(layout, 5, 3), torch.ones(2), feed=golden))
    assert [(each["path"], each["why"]) for each in fed.manifest.capture["feed"]["not_fed"]] == [
        ("0", "the tensors nested in it have other shapes than golden's")
    ]


@LAYOUTS
def test_other_lengths_are_another_shape(layout: torch.layout, tmp_path: Path) -> None:
    golden = capture(nn.Identity(), tmp_path / "golden", ragged(layout, 3, 5))
    other = capture(nn.Identity(), tmp_path / "other", ragged(layout, 5, 3))
    comparison = ac.diff(golden, other)
    assert {row.verdict.reason for row in comparison.rows} == {Reason.SHAPE}
    assert "[[3, 4], [5, 4]] and [[5, 4], [3, 4]]" in verdict_words.detail(comparison.rows[0])


@LAYOUTS
def test_where_autograd_follows_one_a_fed_capture_runs_and_says_what_it_could_not_feed(
    layout: torch.layout, tmp_path: Path
) -> None:
    model = Glue(
        lambda self, x: self.child(ragged(layout, 3, 5).requires_grad_() * x), child=nn.Identity()
    )
    golden = tmp_path / "golden"
    for out, x, feed in ((golden, 1.0, None), (tmp_path / "fed", 2.0, golden)):
        with ac.capture(model, out, feed=feed), torch.enable_grad():
            model(torch.tensor(x))
    not_fed = {
        (each["name"], each["role"])
        for each in ac.open_bundle(tmp_path / "fed").manifest.capture["feed"]["not_fed"]
    }
    calls = {("child", "input"), ("child", "output"), ("", "output")}
    assert not_fed == (calls if layout is torch.strided else set())
