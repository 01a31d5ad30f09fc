"""megatron-core's own GPT on two ranks against one device, from one training of two processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import accucompare as ac
from accucompare.bundle.format import GlobalRecord
from accucompare.bundle.reading import open_bundle
from accucompare.compare.remarks import ReducedHere
from planted.megatron_on_cpu import has_megatron
from tests.groups import leave
from tests.made_once import made_once

#: Right trainings, with golden of each.
RIGHT = {
    "megatron_sp2": "megatron_one",
    "megatron_dp2": "megatron_one",
    "megatron_pp2": "megatron_one",
    "megatron_moe_sp2": "megatron_moe_one",
    "megatron_ep2": "megatron_ep_one",
    "megatron_cp2": "megatron_long_one",
}
FAULT = "megatron_tp2: non-contiguous partial not reduced in"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the ranks are forked"),
    pytest.mark.skipif(not has_megatron(), reason="megatron-core is not installed"),
]


def work(rank: int, folder: str) -> None:
    """Of one rank: every training."""
    import torch
    import torch.distributed as dist

    from planted.megatron_faults import MEGATRON_FAULTS
    from planted.rank_training import train

    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    for name in RIGHT:
        train(name, Path(folder, name))
    fault = next(each for each in MEGATRON_FAULTS if str(each).startswith(FAULT))
    train(fault.layout, Path(folder, "fault"), [fault.plant])
    leave()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "from pathlib import Path\n"
        "import torch.multiprocessing as mp; from tests.test_megatron import work\n"
        "import megatron.core.models.gpt.gpt_model\n"
        "mp.start_processes(work, (sys.argv[1],), nprocs=2, start_method='fork')\n"
        "from planted.rank_training import train\n"
        "for name in sys.argv[2:]: train(name, Path(sys.argv[1], name))"
    )
    return made_once(tmp_path_factory, "megatron", program, *sorted({*RIGHT.values()}))


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_training_passes(name: str, folder: Path) -> None:
    found = ac.diff(folder / RIGHT[name], folder / name)
    assert found.passed
    # the embedding's output is cut and transposed under sequence parallel; a stage keeps its input
    left = {row.record.name for row in found.uncompared if row.record is not None}
    assert left <= {"sp2": {"embedding.word_embeddings"}, "pp2": {"decoder"}}.get(name[-3:], set())


def test_a_partial_that_megatron_does_not_reduce_is_named(folder: Path) -> None:
    found = ac.diff(folder / "megatron_one", folder / "fault")
    first = found.culprits[0]
    assert first.name == "decoder.layers.0.self_attention.linear_proj"
    assert ReducedHere("sum", (0, 1)) in first.row.verdict.remarks


def test_gate_and_up_are_interleaved(folder: Path) -> None:
    with open_bundle(folder / "megatron_sp2") as bundle:
        shards = [
            each.shard
            for each in bundle.records()
            if each.name == "decoder.layers.0.mlp.linear_fc1" and each.role.value == "param_grad"
        ]
    assert {shard.runs[0] for shard in shards if shard is not None} == {
        ((0, 12), (24, 12)),
        ((12, 12), (36, 12)),
    }


def test_padding_of_the_vocabulary_is_left_out_of_logits_and_zero_in_gradients(
    folder: Path,
) -> None:
    found = ac.diff(folder / "megatron_one", folder / "megatron_sp2")
    made = {
        str(row.record.key): row.candidate
        for row in found.rows
        if row.record is not None and isinstance(row.candidate, GlobalRecord)
    }
    logits = next(
        each for key, each in made.items() if key.startswith("output_layer call 0 output")
    )
    weight = "embedding.word_embeddings call 0 param_grad.weight"
    gradient = next(each for key, each in made.items() if key.startswith(weight))
    assert logits.shape[-1] == 30
    assert logits.padding == (2, 2)
    assert gradient.shape == (32, 16)


def test_a_distributed_optimizers_shares_are_flat_parts(folder: Path) -> None:
    with open_bundle(folder / "megatron_dp2") as bundle:
        shares = [each for each in bundle.records() if each.role.value == "param_grad"]
        held = [
            [entry.own_weights for entry in manifest.series]
            for manifest in bundle.manifests.values()
        ]
    assert shares
    assert all(each.shard is not None and each.shard.flat for each in shares)
    # each rank has been given what the others stepped
    assert held[0] == held[1]
    assert len({*held[0]}) == len(held[0]) > 1
    assert None not in held[0]
