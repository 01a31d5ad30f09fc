"""Several processes capture together: each writes its own rank."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import accucompare as ac
from accucompare.bundle.format.records import Record, Role
from accucompare.errors import CaptureError
from tests.groups import leave
from tests.made_once import made_once
from tests.parts import put_together
from tests.recorded import Opened

#: How the trained model, or its optimizer, is spread over two ranks.
KINDS = ("ddp", "zero", "fsdp2")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def batch(rank: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 8).reshape(2, 4) * (rank + 1)


def spread(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model: nn.Module = network()
    if kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh

        from tests.watcher.two_ranks import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        for layer in model.children():
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    return model, torch.optim.AdamW(model.parameters(), 0.01)


def trained(kind: str, rank: int, out: str | None) -> list[Any]:
    """What three steps of training give, and leave: with a capture, if it is told where to
    write."""
    model, optimizer = spread(kind)
    losses = []

    def step() -> None:
        loss = model(batch(rank)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    if out is None:
        for _ in range(3):
            step()
    else:
        with ac.capture(
            model, out, save_state=True, record=ac.Recorded(only=["0", "2"]), loop=optimizer
        ) as session:
            for _ in range(3):
                step()
                session.step()
    tensors = [tensor.detach() for tensor in model.parameters()]
    return [losses, *(getattr(tensor, "_local_tensor", tensor).tolist() for tensor in tensors)]


def work(rank: int, folder: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    with ac.capture(model, f"{folder}/out") as session:
        model(torch.full((1, 2), float(rank))).sum().backward()
        session.step()
    try:
        with ac.capture(model, f"{folder}/out"):
            pass
    # found by rank 0 alone, but told to both: neither waits for the other for ever
    except CaptureError as error:
        Path(f"{folder}/refused{rank}").write_text(str(error))
    for kind in KINDS:
        plain, captured = (trained(kind, rank, out) for out in (None, f"{folder}/{kind}"))
        Path(f"{folder}/{kind}{rank}.json").write_text(json.dumps(plain == captured))
    leave()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have written; they are started once for all tests."""
    program = (
        "import sys, torch.multiprocessing as mp; from tests.recorder.test_distributed import work;"
        "mp.start_processes(work, (sys.argv[1],), nprocs=2, start_method='fork')"
    )
    return made_once(tmp_path_factory, "two processes", program)


def test_each_rank_is_written_and_read(folder: Path, opened: Opened) -> None:
    bundle = opened(folder / "out")
    assert bundle.complete
    assert bundle.manifest.ranks == 2
    assert [bundle.load("", role="input", rank=rank).tolist() for rank in (0, 1)] == [
        [[0, 0]],
        [[1, 1]],
    ]
    assert {entry.name for entry in bundle.records()} == {"", "0", "1"}
    assert all(
        "already holds a bundle" in (folder / f"refused{rank}").read_text() for rank in (0, 1)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_on_several_ranks_is_not_changed(kind: str, folder: Path) -> None:
    assert [json.loads((folder / f"{kind}{rank}.json").read_text()) for rank in (0, 1)] == [
        True,
        True,
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_has_its_own_ranks_gradient_and_an_update_the_mean_of_all(
    kind: str, folder: Path, opened: Opened
) -> None:
    own: list[dict[str, np.ndarray[Any, Any]]] = []
    for rank in (0, 1):
        model = network()
        model(batch(rank)).square().mean().backward()
        own.append(
            {
                name: each.grad.numpy()
                for name, each in model.named_parameters()
                if each.grad is not None
            }
        )
    bundle = opened(folder / kind)
    grads: dict[str, list[Record]] = {}
    for rank in (0, 1):
        records = [record for record in bundle.records() if (record.rank, record.step) == (rank, 0)]
        found = {
            role: {f"{each.name}.{each.path}": each for each in records if each.role is role}
            for role in Role
        }
        assert (
            found[Role.CALL_GRAD].keys()
            == found[Role.PARAM_GRAD].keys()
            == found[Role.PARAM_UPDATE].keys()
            == own[0].keys()
        )
        for name in own[0]:
            assert np.array_equal(bundle.values(found[Role.CALL_GRAD][name]), own[rank][name])
            grads.setdefault(name, []).append(found[Role.PARAM_GRAD][name])
        series = bundle.manifests[rank].series[0]
        assert (series.updates, series.of_parts) == (1, kind == "fsdp2")
        mine = [bundle.values(each).ravel() for each in found[Role.PARAM_GRAD].values()]
        assert series.grad_norm == pytest.approx(np.linalg.norm(np.concatenate(mine)), rel=1e-6)
    for name, records in grads.items():
        mean = (own[0][name] + own[1][name]) / 2
        wholes = [put_together(bundle, records)] if kind == "fsdp2" else map(bundle.values, records)
        for whole in wholes:
            np.testing.assert_allclose(whole, mean, rtol=1e-6)


def test_an_optimizer_that_steps_another_one_makes_one_update_with_the_others_state(
    folder: Path, opened: Opened
) -> None:
    """``ZeroRedundancyOptimizer``: each rank steps some of the parameters, and is given the
    others."""
    bundle = opened(folder / "zero")
    updates = [
        record
        for record in bundle.records()
        if record.role in (Role.PARAM_BEFORE, Role.PARAM_UPDATE) and record.step == 1
    ]
    assert all(record.call == 0 and "#" not in record.path for record in updates)
    held = {
        (record.name, record.path)
        for record in bundle.records()
        if record.role is Role.STATE_AFTER and record.path.endswith("exp_avg")
    }
    assert held == {(name, f"{own}.exp_avg") for name in ("0", "2") for own in ("weight", "bias")}
