"""Several processes capture together: each writes its own rank."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch
from torch import nn

import accucompare as ac
from accucompare.errors import CaptureError
from tests.forkserver import with_torch
from tests.recorded import Opened


def work(rank: int, folder: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    with ac.capture(model, f"{folder}/out") as session:
        model(torch.full((1, 2), float(rank))).sum().backward()
        session.step()
    try:
        with ac.capture(model, f"{folder}/out"):
            pass
    except CaptureError as error:  # found by rank 0 alone, but told to both: neither waits for the other for ever
        Path(f"{folder}/refused{rank}").write_text(str(error))
    torch.distributed.destroy_process_group()


def test_each_rank_is_written_and_read(tmp_path: Path, opened: Opened) -> None:
    program = (
        "import sys, torch.multiprocessing as mp; from tests.recorder.test_distributed import work;"
        "mp.start_processes(work, (sys.argv[1],), nprocs=2, start_method='fork')"
    )
    done = with_torch()(program, tmp_path, cwd=tmp_path, variables=os.environ)
    assert done.returncode == 0, done.stderr
    bundle = opened(tmp_path / "out")
    assert bundle.complete
    assert bundle.manifest.ranks == 2
    assert [bundle.load("", role="input", rank=rank).tolist() for rank in (0, 1)] == [[[0, 0]], [[1, 1]]]
    assert {entry.name for entry in bundle.records()} == {"", "0", "1"}
    assert all("already holds a bundle" in (tmp_path / f"refused{rank}").read_text() for rank in (0, 1))
