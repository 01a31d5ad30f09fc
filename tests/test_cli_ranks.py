"""``accucompare ranks`` on real trainings of two and four ranks, right ones and faulty ones.

The faults are user code's, of ``planted.rank_faults``; all processes are started once."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import accucompare as ac
from accucompare.compare.invariants import RankStatus
from planted.rank_faults import CATALOGUE
from planted.rank_training import train
from tests.conftest import Run
from tests.groups import leave
from tests.made_once import made_once

TWO = ("ddp2", "accumulated_ddp2", "zero2", "fsdp1_2", "fsdp2", "tp2", "sp2", "hand_tp2")
FOUR = ("tp2dp2",)


class Planted(NamedTuple):
    """A fault, the checks that fail, and where the first one does."""

    fault: str
    checks: tuple[str, ...]
    place: str
    ranks: tuple[int, ...] = (0, 1)


FAULTS = {
    "unreduced": Planted(
        "tp2: partial not reduced in blocks.0.attention.o",
        ("layouts", "gradients", "updates"),
        "blocks.0.attention.o",
    ),
    "arithmetic": Planted(
        "tp2: eps 0.1 in blocks.1.norm1, rank 1",
        ("calls", "layouts", "gradients", "updates"),
        "blocks.1.norm1",
    ),
    "rows": Planted("tp2: a block of rows twice in blocks.0.attention.q", ("reduction",), "q"),
    "norm": Planted("tp2: norm counts replicas again in *", ("clipped-norm",), "", ()),
    "not synced": Planted(
        "ddp2: no_sync left on in *", ("gradients", "reduction", "updates"), "embed.weight"
    ),
    "ignored": Planted(
        "ddp2: parameter ignored by DDP in blocks.0.mlp.gate",
        ("gradients", "reduction", "updates"),
        "blocks.0.mlp.gate.weight",
    ),
    "twice": Planted("ddp2: a batch given twice in the loop, rank 1", ("batches",), ""),
    "rate": Planted("ddp2: another lr in *, rank 1", ("loop", "updates"), ""),
    "stale": Planted(
        "ddp2: stale weight in blocks.0.mlp.up, rank 1", ("updates",), "blocks.0.mlp.up.weight"
    ),
    "divided": Planted(
        "accumulated_ddp2: divided at each micro-batch in *", ("reduction",), "embed.weight"
    ),
    "stale part": Planted(
        "fsdp2: stale weight in blocks.1.mlp.down, rank 1",
        ("updates",),
        "blocks.1.mlp.down.weight",
        (1,),
    ),
    "not gathered": Planted("zero2: parameters not gathered in *", ("updates",), "embed.weight"),
    "not summed": Planted(
        "sp2: gradient of a norm not summed in norm",
        ("gradients", "reduction", "updates"),
        "norm.weight",
    ),
}


def work(rank: int, ranks: int, folder: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store{ranks}", rank=rank, world_size=ranks
    )
    for name in TWO if ranks == 2 else FOUR:
        train(name, Path(folder, name))
    for name, planted in FAULTS.items() if ranks == 2 else ():
        fault = next(each for each in CATALOGUE if str(each) == planted.fault)
        options: dict[str, Any] = {"clip": 0.1, "steps": 3} if fault.clip else {}
        if fault.built is not None:
            options["built"] = fault.built
        train(fault.layout, Path(folder, name), [fault.plant], **options)
    if ranks == 2:
        train("tp2", Path(folder, "clipped"), clip=0.1, steps=3)
    leave()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = (
        "import sys, torch.multiprocessing as mp; from tests.test_cli_ranks import work\n"
        "import torch.distributed.fsdp, torch.distributed.tensor.parallel\n"
        "for ranks in (2, 4): mp.start_processes(work, (ranks, sys.argv[1]), nprocs=ranks,"
        " start_method='fork')"
    )
    return made_once(tmp_path_factory, "right ranks", program)


@pytest.mark.parametrize("name", [*TWO, *FOUR, "clipped"])
def test_of_a_right_training_nothing_fails(name: str, folder: Path) -> None:
    checks = ac.check_ranks(folder / name)
    assert checks.of(RankStatus.FAIL) == []
    assert (checks.exit_code, checks.passed) == (0, True)


@pytest.mark.parametrize("name", ["tp2", "tp2dp2"])
def test_what_ranks_hold_in_common_is_looked_at(name: str, folder: Path) -> None:
    checks = ac.check_ranks(folder / name)
    looked = {each.check.value for each in checks.of(RankStatus.PASS)}
    assert looked >= {"weights", "batches", "calls", "layouts", "gradients", "reduction", "updates"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(name: str, folder: Path) -> None:
    checks = ac.check_ranks(folder / name)
    planted = FAULTS[name]
    found = [each.check.value for each in checks.of(RankStatus.FAIL)]
    assert tuple(found) == planted.checks
    first = checks[found[0]]
    assert planted.place in first.place.name
    assert first.place.ranks == planted.ranks
    assert checks.exit_code == 1


def test_the_table_says_what_was_measured_where_and_what_to_do(folder: Path, cli: Run) -> None:
    done = cli("ranks", folder / "arithmetic")
    assert done.returncode == 1
    assert done.stdout.startswith("ranks: FAIL in 4 of 10 checks, 4 not looked at")
    assert re.search(
        r"  FAIL          calls: ranks 0 and 1, step 0, blocks\.1\.norm1 output: equal inputs and"
        r" weights gave several outputs \(relative L2 0\.\d+\)\n {16}→ look at this module",
        done.stdout,
    )
    assert "not looked at vocabulary-padding: nothing tells which rows are padding" in done.stdout


def test_json_has_every_check(folder: Path, cli: Run, tmp_path: Path) -> None:
    done = cli("ranks", folder / "tp2dp2", "--json", "ranks.json", "--quiet")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    content = json.loads((tmp_path / "ranks.json").read_text())
    assert (content["answer"], content["exit_code"], content["ranks"]) == ("holds", 0, 4)
    assert {each["status"] for each in content["checks"]} == {"PASS", "NOT LOOKED AT"}
    assert len(content["checks"]) == 14


def test_json_has_the_violations(folder: Path, cli: Run, tmp_path: Path) -> None:
    assert cli("ranks", folder / "stale", "--json", "ranks.json").returncode == 1
    checks = {
        each["id"]: each for each in json.loads((tmp_path / "ranks.json").read_text())["checks"]
    }
    found = checks["updates"]
    assert (found["status"], found["role"], found["step"]) == ("FAIL", "param_before", 1)
    assert found["fact"]["type"] == "ReplicasApart"
    assert found["cure"]
    assert len(found["first_violations"]) == found["violations"] > 0


def test_a_json_file_in_the_bundle_is_refused(folder: Path, cli: Run) -> None:
    done = cli("ranks", folder / "tp2", "--json", folder / "tp2" / "ranks.json")
    assert done.returncode == 2
    assert "lies in the bundle" in done.stderr


def test_a_process_of_its_own(folder: Path, process: Run) -> None:
    done = process("ranks", folder / "ddp2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ranks: PASS of ")


def test_in_python(folder: Path) -> None:
    checks = ac.check_ranks(str(folder / "twice"))
    assert not checks.passed
    assert checks["batches"].status.value == "FAIL"
    assert repr(checks).startswith("<RankChecks of ")
