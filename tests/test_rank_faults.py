"""Faults planted on several ranks: is the module named, and the rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.ranks import Bench
from benchmarks.ranks_group import groups
from benchmarks.ranks_trial import Setup, judge
from planted.rank_catalogue import ALL_FAULTS
from tests.made_once import made_once

ROOT = Path(__file__).parents[1]

#: Of each, in words, the reason that the first culprit has.
FAULTS = {
    "tp2: partial not reduced in blocks.0.attention.o": "unreduced",
    "tp2: eps 0.1 in blocks.1.norm1, rank 1": "ranks disagree",
    "ddp2: GELU in blocks.1.mlp.act, rank 1": "introduced",
    "tp2: norm counts replicas again in *": "introduced",
    "hand_tp2: gradient of the input not summed in blocks.0.attention.qkv": "unreduced",
    "experts_ep2: rows not sorted by expert in blocks.1.mlp, rank 1": "glue",
    "stacked_ep2: GELU in one of the stack in blocks.1.mlp.experts, rank 1": "introduced",
    "ring2_ids: keys and values not received in blocks.0.attention.core, rank 1": "glue",
    "cp2: x 1.01 in blocks.0.mlp.act, rank 1": "introduced",
}

#: Of those that are also trained fed, each rank with its part of golden.
FED = {
    "tp2: eps 0.1 in blocks.1.norm1, rank 1": "ranks disagree",
    "ddp2: GELU in blocks.1.mlp.act, rank 1": "introduced",
    "hand_tp2: gradient of the input not summed in blocks.0.attention.qkv": "unreduced",
}


def main(folder: str) -> None:
    """Train with each fault, and write what is said of it."""
    told = {}
    with groups(ALL_FAULTS, Path(folder)) as made:
        bench = Bench(Path(folder), made)
        for name in FAULTS:
            fault = next(fault for fault in ALL_FAULTS if str(fault) == name)
            setup = Setup(fault.layout, clip=fault.clip)
            golden, faulty = bench.golden(setup), bench.faulty(setup, fault)
            trials = [judge(fault, golden, None, faulty)]
            if name in FED:
                trials.append(judge(fault, golden, None, bench.fed(setup, fault, faulty)))
            told[name] = [[each.module, each.rank, each.named] for each in trials]
    (Path(folder) / "told.json").write_text(json.dumps(told))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[bool, bool, str]]]:
    program = "import sys; from tests.test_rank_faults import main; main(sys.argv[1])"
    folder = made_once(tmp_path_factory, "faults of ranks", program)
    return json.loads((folder / "told.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.skipif(sys.platform != "linux", reason="the ranks are forked")
@pytest.mark.parametrize(("name", "reason"), FAULTS.items())
def test_module_and_rank_are_named(
    told: dict[str, list[tuple[bool, bool, str]]], name: str, reason: str
) -> None:
    module, rank, named = told[name][0]
    assert (module, rank) == (True, True), named
    assert f", {reason}]" in named


@pytest.mark.skipif(sys.platform != "linux", reason="the ranks are forked")
@pytest.mark.parametrize(("name", "reason"), FED.items())
def test_module_and_rank_are_named_where_ranks_are_fed(
    told: dict[str, list[tuple[bool, bool, str]]], name: str, reason: str
) -> None:
    module, rank, named = told[name][1]
    assert (module, rank) == (True, True), named
    assert f", {reason}]" in named
