"""Traces of Megatron's RouterTracer, written here as its source writes them; released versions of
megatron-core do not have it yet.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accucompare as ac
from accucompare.bundle.format.records import Layout
from accucompare.compare.decide import Answer
from accucompare.compare.origins.describing import differing_choices
from accucompare.compare.shape_facts import OtherChoices
from accucompare.dumps.importing import import_dump
from accucompare.errors import AccucompareError
from tests.conftest import Run

TOKENS, TOPK, EXPERTS = 6, 2, 8


def line(step: int, layer: int, rank: int = 0, experts: Any = None, **more: Any) -> dict[str, Any]:
    """What is written of one call of a router; the experts are by a seed."""
    rng = np.random.default_rng([step, layer, rank])
    chosen = (
        np.stack([np.sort(rng.permutation(EXPERTS)[:TOPK]) for _ in range(TOKENS)]).tolist()
        if experts is None
        else experts
    )
    known = {
        "step": step,
        "stage": "pre_dispatch",
        "block": "decoder",
        "layer": layer,
        "rank": rank,
    }
    return {**known, "num_tokens": len(chosen), "topk": TOPK, **more, "top_indices": chosen}


def trace(folder: Path, lines: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    for each in lines:
        with (folder / f"router_trace_rank{each['rank']}.jsonl").open("a") as file:
            file.write(json.dumps(each) + "\n")
    return folder


def lines() -> list[dict[str, Any]]:
    return [line(step, layer, rank) for rank in (0, 1) for step in (0, 1) for layer in (1, 2)]


def test_equal_traces_are_identical(tmp_path: Path) -> None:
    for side in ("golden", "candidate"):
        found = import_dump(trace(tmp_path / f"{side}-trace", lines()), tmp_path / side)
        assert (found.records, found.left_out, found.unreadable) == (8, [], [])
    compared = ac.diff(tmp_path / "golden", tmp_path / "candidate")
    assert compared.answer is Answer.IDENTICAL


def test_the_first_layer_and_step_whose_experts_differ_is_named_and_how_many(
    tmp_path: Path,
) -> None:
    changed = lines()
    for at in (3, 6, 7):  # step 1, layer 2 of rank 0, and more of rank 1
        changed[at]["top_indices"][4][0] = EXPERTS
    import_dump(trace(tmp_path / "golden-trace", lines()), tmp_path / "golden")
    import_dump(trace(tmp_path / "candidate-trace", changed), tmp_path / "candidate")
    found = ac.diff(tmp_path / "golden", tmp_path / "candidate")
    assert not found.passed
    assert found.first_divergence is not None
    record = found.first_divergence.record
    assert record is not None
    assert (record.step, record.rank, record.name) == (1, 0, "decoder.layers.2.mlp.router")
    assert found.culprits[0].shape == OtherChoices(off=1, rows=6, first=(4,))
    assert differing_choices(found.culprits[0].row) == 2


def test_the_order_in_which_a_token_s_experts_are_listed_is_no_difference(tmp_path: Path) -> None:
    turned = lines()
    turned[0]["top_indices"] = [each[::-1] for each in turned[0]["top_indices"]]
    import_dump(trace(tmp_path / "golden-trace", lines()), tmp_path / "golden")
    import_dump(trace(tmp_path / "candidate-trace", turned), tmp_path / "candidate")
    assert ac.diff(tmp_path / "golden", tmp_path / "candidate").passed


def test_a_missing_layer_of_a_trace_is_no_all_clear(tmp_path: Path) -> None:
    import_dump(trace(tmp_path / "golden-trace", lines()), tmp_path / "golden")
    import_dump(trace(tmp_path / "candidate-trace", lines()[:-1]), tmp_path / "candidate")
    assert not ac.diff(tmp_path / "golden", tmp_path / "candidate").passed


def test_names_calls_logits_and_inputs_are_those_of_megatron(tmp_path: Path) -> None:
    states, logits = np.arange(TOKENS * 4, dtype="<u2"), np.arange(TOKENS * EXPERTS, dtype="<u2")
    where = {"hs_offset": 2, "hs_bytes": states.nbytes, "hs_shape": [TOKENS, 4]}
    where |= {"logit_offset": 0, "logit_bytes": logits.nbytes, "logit_shape": [TOKENS, EXPERTS]}
    dump = trace(
        tmp_path / "trace", [line(3, 1, **where), line(3, 1), line(3, 2, block="mtp", mtp_idx=0)]
    )
    (dump / "hidden_states_rank0.bin").write_bytes(b"xx" + states.tobytes())
    (dump / "logits_rank0.bin").write_bytes(logits.tobytes())
    import_dump(dump, tmp_path / "out")
    with ac.open_bundle(tmp_path / "out") as bundle:
        records = list(bundle.records())
        assert [
            f"{each.step} {each.name} {each.call} {each.role}.{each.path}" for each in records
        ] == [
            "3 decoder.layers.1.mlp.router 0 input.0",
            "3 decoder.layers.1.mlp.router 0 output.logits",
            "3 decoder.layers.1.mlp.router 0 output.top_indices",
            "3 decoder.layers.1.mlp.router 1 output.top_indices",
            "3 mtp.layers.0.mtp_model_layer.layers.2.mlp.router 0 output.top_indices",
        ]
        assert [each.dtype for each in records] == [
            "bfloat16",
            "bfloat16",
            "int32",
            "int32",
            "int32",
        ]
        np.testing.assert_array_equal(bundle.values(records[0]).ravel().view("<u4") >> 16, states)


def test_one_rank_alone_is_rank_0(tmp_path: Path) -> None:
    dump = trace(tmp_path / "trace", [line(0, 1, rank=5)])
    for path in (dump, dump / "router_trace_rank5.jsonl"):
        import_dump(path, tmp_path / "out", overwrite=True)
        with ac.open_bundle(tmp_path / "out") as bundle:
            assert [each.rank for each in bundle.records()] == [0]


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 1},
        {"step": -1},
        {"step": 1.5},
        {"step": 1 << 70},
        {"layer": "../x"},
        {"block": "other"},
        {"block": "mtp", "mtp_idx": "0"},
        {"num_tokens": -1},
        {"num_tokens": 1 << 62},
        {"hs_offset": -1, "hs_shape": [1, 2]},
        {"hs_offset": 0, "hs_shape": "x"},
        {"logit_offset": 0},
    ],
    ids=str,
)
def test_a_damaged_line_is_named(change: dict[str, Any], tmp_path: Path) -> None:
    dump = trace(tmp_path / "trace", [line(0, 1)])
    with (dump / "router_trace_rank0.jsonl").open("a") as file:
        file.write(json.dumps({**line(0, 1), **change}) + "\n")
    with pytest.raises(
        AccucompareError, match=r"router_trace_rank0\.jsonl: line 2 is damaged, or no router's"
    ):
        import_dump(dump, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "[" * 100_000, "{}"],
    ids=["empty", "cut", "list", "number", "nested", "no keys"],
)
def test_a_file_that_is_no_trace_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "router_trace_rank0.jsonl").write_text(text)
    with pytest.raises(AccucompareError):
        import_dump(tmp_path / "router_trace_rank0.jsonl", tmp_path / "out")


@pytest.mark.parametrize(
    "change",
    [
        {"top_indices": [[1, 2], [3]]},
        {"top_indices": [[1, 2]]},
        {"top_indices": [["a", "b"]] * TOKENS},
        {"top_indices": [[1, 1 << 40]] * TOKENS},
        {"top_indices": [[1, 2.5]] * TOKENS},
        {"top_indices": 3},
        {"hs_offset": 0, "hs_shape": [1 << 30, 1 << 20]},
        {"hs_offset": 1 << 50, "hs_shape": [TOKENS, 4]},
    ],
    ids=["ragged", "fewer", "text", "large", "fraction", "number", "huge", "beyond the file"],
)
def test_values_that_cannot_be_read_are_named_and_the_others_imported(
    change: dict[str, Any], tmp_path: Path
) -> None:
    dump = trace(tmp_path / "trace", [line(0, 1), {**line(0, 2), **change}])
    (dump / "hidden_states_rank0.bin").write_bytes(b"few")
    found = import_dump(dump, tmp_path / "out")
    assert len(found.unreadable) == 1
    assert "decoder.layers.2.mlp.router" in found.unreadable[0]
    with ac.open_bundle(tmp_path / "out") as bundle:
        assert not bundle.complete
        assert next(iter(bundle.records())).layout is Layout.STRIDED


def test_the_command_recognises_a_trace(cli: Run, tmp_path: Path) -> None:
    ran = cli("import", trace(tmp_path / "trace", lines()), "--out", "out")
    assert ran.returncode == 0
    assert ran.stdout.startswith("imported 8 records from Megatron's RouterTracer into out")
