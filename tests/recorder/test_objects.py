"""Objects of classes of the user's own: a batch of graphs, a list of images; looked into for their
tensors, and fed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, MutableMapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.compare.decide import Answer
from tests.recorded import Glue, Opened, Record, places


class Images:
    """As torchvision's and detectron2's ImageList."""

    def __init__(self, tensors: torch.Tensor, sizes: list[tuple[int, int]]) -> None:
        self.tensors = tensors
        self.sizes = sizes
        self.origin = object()
        self._seen = 3


class Reduction(Enum):
    MEAN = 1
    SUM = 2


class Store(MutableMapping[str, Any]):
    """As what torch-geometric's Data keeps its tensors in."""

    def __init__(self, parent: Any) -> None:
        self._mapping: dict[str, Any] = {}
        self._parent = weakref.ref(parent)

    def __getitem__(self, key: str) -> Any:
        return self._mapping[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._mapping[key] = value

    def __delitem__(self, key: str) -> None:
        del self._mapping[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __copy__(self) -> Store:
        new = Store.__new__(Store)
        new.__dict__.update(self.__dict__)
        new._mapping = dict(self._mapping)
        return new


class Graphs:
    """As torch-geometric's Data: attributes are kept in a store."""

    def __init__(self, **values: Any) -> None:
        self.__dict__["_store"] = Store(self)
        for name, value in values.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if "_store" not in self.__dict__ or name not in self._store:
            raise AttributeError(name)
        return self._store[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._store[name] = value


def images(seed: int = 0) -> Images:
    return Images(
        torch.randn(2, 3, generator=torch.Generator().manual_seed(seed)), [(4, 5), (6, 7)]
    )


def graphs(seed: int = 0) -> Graphs:
    generator = torch.Generator().manual_seed(seed)
    return Graphs(
        x=torch.randn(4, 3, generator=generator), edge_index=torch.tensor([[0, 1], [1, 2]])
    )


def test_the_tensors_and_numbers_of_an_object_are_recorded(record: Record) -> None:
    bundle = record(Glue(lambda self, batch: batch.tensors * 2), images())
    assert places(bundle) == [
        "#0 input 0.tensors",
        "#0 input 0.sizes.0.0",
        "#0 input 0.sizes.0.1",
        "#0 input 0.sizes.1.0",
        "#0 input 0.sizes.1.1",
        "#0 output",
    ]


def test_what_is_kept_in_a_store_is_recorded(record: Record) -> None:
    assert places(record(Glue(lambda self, data: data.x * 2), graphs())) == [
        "#0 input 0._store.x",
        "#0 input 0._store.edge_index",
        "#0 output",
    ]


def test_an_object_without_tensors_stays_opaque(record: Record) -> None:
    class Settings:
        def __init__(self) -> None:
            self.width = 3

    (entry, *_) = record(Glue(lambda self, settings, x: x), Settings(), torch.ones(1)).records()
    assert entry.layout.value == "opaque"


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("golden", "candidate"),
    [
        (torch.float32, torch.int32),
        (torch.float32, torch.float16),
        (torch.contiguous_format, torch.channels_last),
        ("mean", "sum"),
        (Reduction.MEAN, Reduction.SUM),
        (slice(0, 3), slice(0, 4)),
        ({"a", "b"}, {"a", "c"}),
        (np.dtype("f4"), np.dtype("f8")),
        (nn.Linear, nn.Conv2d),
    ],
    ids=["integer", "half", "format", "text", "enum", "slice", "set", "numpy", "class"],
)
def test_plain_data_that_a_model_returns_is_compared(
    golden: Any, candidate: Any, inside: bool, record: Record
) -> None:
    def returned(value: Any) -> Any:
        def forward(self: Any, x: torch.Tensor) -> Any:
            both = Images(x, [])
            both.origin = value
            return both if inside else (x, value)

        return record(Glue(forward), torch.ones(1)).path

    first = returned(golden)
    assert ac.diff(first, returned(golden)).answer is Answer.IDENTICAL
    if not (inside and isinstance(golden, type)):
        assert ac.diff(first, returned(candidate)).exit_code == 1


def test_a_dtype_that_a_model_returns_may_be_its_own(record: Record) -> None:
    model = Glue(lambda self, x: (self.a(x), x.dtype), a=nn.LayerNorm(2))
    golden = record(model, torch.ones(1, 2)).path
    model = model.bfloat16()
    assert ac.diff(golden, record(model, torch.ones(1, 2).bfloat16()).path).exit_code == 0


@pytest.mark.parametrize(
    "value", [torch.float32, torch.device("cpu"), torch.strided, torch.contiguous_format], ids=str
)
def test_dtypes_and_devices_are_no_values(value: Any, record: Record) -> None:
    assert places(record(Glue(lambda self, x, value: x), torch.ones(1), value)) == [
        "#0 input 0",
        "#0 output",
    ]


def fed(model: nn.Module, folder: Path, golden: Any, candidate: Any) -> Any:
    with torch.no_grad(), ac.capture(model, folder / "golden"):
        model(golden)
    with ac.capture(model, folder / "fed", feed=folder / "golden"):
        return model(candidate)


@pytest.mark.parametrize(
    ("make", "name"), [(images, "tensors"), (graphs, "x")], ids=["images", "graphs"]
)
def test_an_object_is_fed_by_its_parts(
    make: Any, name: str, tmp_path: Path, opened: Opened
) -> None:
    model = Glue(
        lambda self, batch: self.a(batch), a=Glue(lambda self, batch: getattr(batch, name) * 2)
    )
    batch = make(1)
    before = getattr(batch, name).clone()
    output = fed(model, tmp_path, make(0), batch)
    np.testing.assert_array_equal(output, getattr(make(0), name) * 2)
    np.testing.assert_array_equal(getattr(batch, name), before)  # the caller's own stays
    assert opened(tmp_path / "fed").manifest.capture["feed"]["not_fed"] == []


@pytest.mark.parametrize(
    ("make", "name"), [(images, "tensors"), (graphs, "x")], ids=["images", "graphs"]
)
def test_what_a_module_sets_in_an_object_reaches_its_caller(
    make: Any, name: str, tmp_path: Path
) -> None:
    class Doubles(nn.Module):
        def forward(self, batch: Any) -> None:
            setattr(batch, name, getattr(batch, name) * 2)

    def forward(self: Any, batch: Any) -> Any:
        self.a(batch)
        return self.b(getattr(batch, name))

    fed(Glue(forward, a=Doubles(), b=nn.Tanh()), tmp_path, make(), make())
    assert ac.diff(tmp_path / "golden", tmp_path / "fed").passed
