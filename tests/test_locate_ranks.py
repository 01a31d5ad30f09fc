"""``accucompare locate`` under torchrun: rank 0 orders, all ranks run, rank 0 answers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from accucompare.errors import CaptureError
from accucompare.locating import RankGroup
from tests.forkserver import with_torch

ROOT = Path(__file__).parents[1]

#: A model of two layers, of which two ranks have a part each. Rank 1 of ``faulty`` errs in ``act``.
CASE = """
import os
import torch
import torch.distributed as dist
from torch import nn
from accucompare import Case

class Off(nn.Module):
    def forward(self, x):
        return torch.relu(x) * (1.05 if OFF else 1.0)

class Row(nn.Linear):
    def forward(self, x):
        total = nn.functional.linear(x, self.weight)
        if dist.is_initialized():
            dist.all_reduce(total)
        return total + self.bias

OFF = False

def case():
    torch.manual_seed(3)
    up, act, down = nn.Linear(6, 8), Off(), Row(8, 6)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        rows = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
        up.weight, up.bias = nn.Parameter(up.weight[rows]), nn.Parameter(up.bias[rows])
        down.weight = nn.Parameter(down.weight[:, rows])
    return Case(nn.Sequential(up, act, down).eval(), torch.randn(3, 6))

def faulty():
    global OFF
    OFF = os.environ["RANK"] == "1"
    return case()
"""


class Store:
    """What torch's stores do, in one process."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.held[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.held[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.held for key in keys)

    def compare_set(self, key: str, expected: str, value: str) -> None:
        if self.held.get(key, b"") == expected.encode():
            self.set(key, value)


def test_all_ranks_run_what_rank_0_orders_and_end_with_its_code() -> None:
    store = Store()
    codes: list[int] = []
    other = threading.Thread(target=lambda: codes.append(RankGroup(1, 2, store).follow()))
    other.start()
    group = RankGroup(0, 2, store)
    with group.led() as answer:
        group.order(["--version"])
        with pytest.raises(CaptureError, match=r"verify missing: rank [01] ended with exit code 2"):
            group.order(["verify", "missing"])
        answer.append(1)
    other.join(20)
    assert codes == [1]


def test_a_failure_of_rank_0_ends_the_others() -> None:
    store = Store()
    codes: list[int] = []
    other = threading.Thread(target=lambda: codes.append(RankGroup(1, 2, store).follow()))
    other.start()
    with pytest.raises(ValueError), RankGroup(0, 2, store).led():  # noqa: PT011 - any would do
        raise ValueError
    other.join(20)
    assert codes == [2]


#: Two ranks with the environment that torchrun gives them, in forks of this process. What they
# start as ``sys.executable`` is given, too.
RANKS = """
import os, sys
from torch.distributed import TCPStore
from accucompare.cli import main

sys.executable = sys.argv.pop(1)
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
for rank in "01":
    if not os.fork():
        os.environ.update(
            RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port)
        )
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        main()
codes = {os.waitstatus_to_exitcode(os.wait()[1]) for rank in "01"}
sys.exit(max(codes))
"""


def by_ranks(folder: Path, python: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "model.py").write_text(CASE)
    program = ROOT / "accucompare" / "__main__.py"
    here = folder / "python"
    forked = f'shift 2; exec {" ".join(python)} {program} "$@"'
    here.write_text(f'#!/bin/sh\n[ "$1" != -m ] || {{ {forked}; }}\nexec {sys.executable} "$@"\n')
    here.chmod(0o755)
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    return with_torch()(RANKS, here, *arguments, cwd=folder, variables=variables)


@pytest.mark.skipif(sys.platform != "linux", reason="torchrun starts the ranks")
def test_locate_names_layer_and_rank_in_one_command(python: list[str], tmp_path: Path) -> None:
    done = by_ranks(
        tmp_path,
        python,
        *("locate", "model.py:faulty", "--golden-case", "model.py", "--device", "cpu"),
        *("--report", "none"),
    )
    assert "bug: 1, excess" in done.stdout, done.stdout + done.stderr
    assert "wrong on rank 1" in done.stdout
    assert done.returncode == 1
