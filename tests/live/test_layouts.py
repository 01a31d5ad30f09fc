"""Where a part lies, computed without the other ranks: as PyTorch cuts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

import accucompare as ac
from accucompare.bundle.format import Shard
from accucompare.errors import UsageError
from accucompare.live.layouts.layouts import placed_part

tensor = pytest.importorskip("torch.distributed.tensor", reason="new in torch 2.5")
placements = pytest.importorskip("torch.distributed.tensor.placement_types")


class Mesh:
    """A mesh as one of its ranks sees it."""

    def __init__(self, shape: tuple[int, ...], place: tuple[int, ...]) -> None:
        self.shape, self.place = shape, place

    def get_coordinate(self) -> list[int]:
        return [*self.place]


def cut(whole: torch.Tensor, mesh: Mesh, how: tuple[Any, ...]) -> torch.Tensor:
    """A rank's part, by PyTorch's own functions."""
    for count, index, placement in zip(mesh.shape, mesh.place, how, strict=True):
        if hasattr(placement, "dim"):
            whole = placement._split_tensor(whole, count, with_padding=False)[0][index]
    return whole


@pytest.mark.parametrize(
    "how",
    [
        (tensor.Shard(0), tensor.Shard(0)),
        (tensor.Shard(1), tensor.Shard(0)),
        (tensor.Replicate(), tensor.Shard(1)),
        (placements._StridedShard(0, split_factor=2), tensor.Shard(0)),
        (placements._StridedShard(0, split_factor=3), tensor.Shard(1)),
        (tensor.Shard(0), placements._StridedShard(1, split_factor=2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(12, 8), (7, 5), (3, 11), (1, 4)], ids=str)
def test_every_rank_has_the_part_that_pytorch_cuts_for_it(
    shape: tuple[int, int], how: tuple[Any, ...]
) -> None:
    whole = torch.arange(shape[0] * shape[1]).reshape(shape)
    found = torch.full(shape, -1)
    for place in itertools.product(range(2), range(3)):
        mesh = Mesh((2, 3), place)
        part = cut(whole, mesh, how)
        shard = placed_part(whole.shape, mesh, how, ("a", "b"), part.shape)
        assert shard is not None
        assert shard.holds(tuple(part.shape))
        for where, start in shard.boxes(tuple(part.shape)):
            box = part[where]
            target = tuple(slice(at, at + n) for at, n in zip(start, box.shape, strict=True))
            assert torch.equal(whole[target], box)
            found[target] = box
    assert torch.equal(found, whole)


def test_a_part_of_another_shape_has_no_layout() -> None:
    """``from_local`` takes the ranks' parts to be alike, if it is told nothing else."""
    mesh = Mesh((2,), (1,))
    for length, known in ((3, True), (4, False)):
        made = placed_part(torch.Size([7]), mesh, (tensor.Shard(0),), ("tp",), torch.Size([length]))
        assert (made is not None) == known


def test_terms_of_two_reductions_have_no_layout() -> None:
    whole, mesh = torch.Size([4]), Mesh((2, 2), (0, 1))
    both = placed_part(whole, mesh, (tensor.Partial(), tensor.Partial()), ("dp", "tp"), whole)
    assert both == Shard((4,), (0,), "sum", ("dp", "tp"), ("dp", "tp"))
    mixed = tensor.Partial(), tensor.Partial("max")
    assert placed_part(whole, mesh, mixed, ("dp", "tp"), whole) is None


def test_several_ranks_in_one_process_are_refused(tmp_path: Path) -> None:
    local = pytest.importorskip("torch.distributed._local_tensor", reason="new in torch 2.10")
    with local.LocalTensorMode(2), pytest.raises(UsageError, match="a process for each rank"):
        ac.capture(torch.nn.Linear(2, 2), tmp_path / "out").__enter__()
