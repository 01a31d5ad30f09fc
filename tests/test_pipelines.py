"""Pipelines of two stages against one device: names, microbatches, and faults of stages.

One training of two processes for all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import accucompare as ac
from accucompare.bundle.format import GlobalRecord
from accucompare.bundle.reading import open_bundle
from accucompare.compare.invariants import RankStatus
from accucompare.compare.preflight_facts import OddMicrobatches
from accucompare.compare.rows import Reason
from tests.conftest import Run
from tests.groups import leave
from tests.made_once import made_once

#: Right trainings, with what is said of their names.
RIGHT = {
    "pp2": "",
    "counted_pp2": "on rank 1, layers.0 to 1 is golden's blocks.2 to 3 (by their weights)",
    "wrapped_pp2": "on rank 1, language.decoder.layers.0 is golden's blocks.3",
    "chunks_pp2": "on rank 0, 0.layers.0 is golden's blocks.0, 1.layers.0 is golden's blocks.2",
    "tied_pp2": "on rank 1, layers.0 to 1 is golden's blocks.2 to 3",
}
FAULTS = {
    "given twice": "chunks_pp2: a microbatch given twice in the loop, rank 0",
    "dropped": "counted_pp2: a microbatch dropped in the loop",
    "received twice": "counted_pp2: a microbatch received twice in the loop, rank 1",
    "reordered": "counted_pp2: microbatches reordered, labels not in the loop",
    "tied": "tied_pp2: tied embedding not summed in embed",
    "no update": "chunks_pp2: a stage misses an update in *, rank 1",
    "exchanged": "counted_pp2: layers in the wrong order in *, rank 1",
}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the ranks are forked")


def work(rank: int, folder: str) -> None:
    """Of one rank: every training."""
    import torch
    import torch.distributed as dist

    from planted.pipeline_faults import PIPELINE_FAULTS
    from planted.rank_training import train

    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    for name in RIGHT:
        train(name, Path(folder, name))
    for name, wanted in FAULTS.items():
        fault = next(each for each in PIPELINE_FAULTS if str(each) == wanted)
        train(fault.layout, Path(folder, name), [fault.plant])
    leave()
    if rank == 0:
        for name in ("deep_one", "tied_one"):
            train(name, Path(folder, name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = (
        "import sys, torch.multiprocessing as mp; from tests.test_pipelines import work\n"
        "import torch.distributed.pipelining\n"
        "mp.start_processes(work, (sys.argv[1],), nprocs=2, start_method='fork')"
    )
    return made_once(tmp_path_factory, "pipelines", program)


def compared(folder: Path, name: str) -> ac.Comparison:
    layout = {**FAULTS, **dict.fromkeys(RIGHT, name)}[name]
    return ac.diff(
        folder / ("tied_one" if layout.startswith("tied") else "deep_one"), folder / name
    )


@pytest.mark.parametrize("name", RIGHT)
def test_each_row_of_golden_is_compared_and_right(name: str, folder: Path) -> None:
    found = compared(folder, name)
    assert found.passed
    assert not found.uncompared
    assert not any(isinstance(each.fact, OddMicrobatches) for each in found.preflight)


def test_names_that_were_put_back_are_shown(folder: Path, cli: Run) -> None:
    for name, said in RIGHT.items():
        golden = "tied_one" if name.startswith("tied") else "deep_one"
        done = cli("diff", folder / golden, folder / name, "--report", "none")
        assert done.returncode == 0
        assert said in done.stdout
        assert ("is golden's" in done.stdout) == bool(said)


def test_microbatches_are_rows_of_goldens_batch_on_every_stage(folder: Path) -> None:
    found = compared(folder, "counted_pp2")
    row = next(
        row for row in found.rows if str(row.record.key).startswith("blocks.3 call 0 output")
    )
    assert isinstance(row.candidate, GlobalRecord)
    assert [box.terms[0].call for box in row.candidate.boxes] == [0, 1, 2, 3]
    assert row.candidate.ranks == [1]


def test_what_a_schedule_tries_out_is_not_recorded(folder: Path) -> None:
    with open_bundle(folder / "counted_pp2") as bundle:
        inputs = {
            (each.rank, each.step, each.call)
            for each in bundle.records()
            if not each.name and each.role.value == "input"
        }
        assert inputs == {
            (rank, step, call) for rank in range(2) for step in range(2) for call in range(4)
        }
        assert [len(each.losses) for each in bundle.manifests[1].series] == [4, 4]


@pytest.mark.parametrize(
    ("name", "rank", "doubled", "dropped"),
    [("given twice", 0, (0,), (1,)), ("dropped", 0, (), (3,)), ("received twice", 1, (0,), (1,))],
)
def test_an_odd_microbatch_is_told(
    name: str, rank: int, doubled: tuple[int, ...], dropped: tuple[int, ...], folder: Path
) -> None:
    found = compared(folder, name)
    assert not found.passed
    (fact,) = [f.fact for f in found.preflight if isinstance(f.fact, OddMicrobatches)]
    assert (fact.ranks, fact.steps) == ((rank,), (0, 1))
    assert (fact.doubled, fact.dropped) == (doubled, dropped)


def test_rows_in_another_order_than_the_labels_are_an_error_of_the_loss(folder: Path) -> None:
    found = compared(folder, "reordered")
    first = found.culprits[0]
    assert (first.name, first.row.record.role.value) == ("", "grad_output")
    (odd,) = [each for each in found.preflight if isinstance(each.fact, OddMicrobatches)]
    assert isinstance(odd.fact, OddMicrobatches)
    assert (odd.fact.order, odd.serious) == ((3, 0, 1, 2), False)


def test_a_tied_weight_that_two_stages_do_not_sum_is_unreduced(folder: Path) -> None:
    first = compared(folder, "tied").culprits[0]
    assert (first.name, first.reason) == ("embed", Reason.UNREDUCED)


def test_the_rank_that_made_no_update_is_named(folder: Path, cli: Run) -> None:
    done = cli("diff", folder / "deep_one", folder / "no update", "--report", "none")
    assert done.returncode == 1
    assert "the update of blocks.1.norm1.weight (step 0)\n   module, missing\n   on rank 1" in (
        done.stdout
    )


def test_exchanged_layers_are_compared_where_they_stand(folder: Path) -> None:
    first = compared(folder, "exchanged").culprits[0]
    assert (first.name, first.row.record.role.value) == ("blocks.2.norm1", "output")


@pytest.mark.parametrize("name", RIGHT)
def test_without_golden_nothing_fails(name: str, folder: Path) -> None:
    assert ac.check_ranks(folder / name).of(RankStatus.FAIL) == []


def test_without_golden_a_tied_weight_that_is_not_summed_is_found(folder: Path) -> None:
    (failed,) = ac.check_ranks(folder / "tied").of(RankStatus.FAIL)
    assert (failed.check.value, failed.place.name) == ("reduction", "embed.weight")
