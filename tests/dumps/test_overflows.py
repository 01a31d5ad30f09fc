"""What CANN notes of operators that overflowed. The files are made here by the layouts that
msaccucmp reads; none is from an NPU.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from accucompare.dumps.importing import import_dump
from accucompare.dumps.overflows import outputs_of, overflows_in
from tests.conftest import Run
from tests.dumps.kernels import Value, kernel, noted, noted_json, noted_newer, write, write_note


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Two operators that overflowed, the later one first by its name, and one that did not."""
    folder = tmp_path / "dump" / "0"
    saturated = np.array([65504, -65504, 1], "float16")
    write(
        folder,
        "Add",
        "net/add",
        20,
        kernel("net/add", [], [Value(np.array([np.inf, np.nan, 1], "float32")), Value(saturated)]),
    )
    write(folder, "MatMulV2", "net/fc/MatMul", 10, kernel("net/fc/MatMul", [], [Value(saturated)]))
    write(folder, "Relu", "net/relu", 15, kernel("net/relu", [], [Value(saturated)]))
    write_note(folder, 21, noted("AI Core", 32, 20), "OpDebug.Node_Opdebug")
    write_note(folder, 11, noted("AI Core", 0x400 | 0x100, 10))
    return folder


def described(folder: Path) -> list[tuple[str, str, str]]:
    return [(each.name, each.what, each.where) for each in overflows_in(folder).found]


def test_operators_are_in_the_order_of_time_with_their_status_in_words(dump: Path) -> None:
    assert described(dump) == [
        (
            "MatMulV2 net/fc/MatMul",
            (
                "a conversion to float16 overflowed, the sum of a matrix product overflowed; AI"
                " Core status 1280 (0x500)"
            ),
            "task 10, stream 3, model 7",
        ),
        (
            "Add net/add",
            "floating-point arithmetic overflowed; AI Core status 32 (0x20)",
            "task 20, stream 3, model 7",
        ),
    ]


def test_values_of_the_operator_s_outputs_are_told(dump: Path) -> None:
    first, second = overflows_in(dump).found
    assert first.operator is not None
    assert second.operator is not None
    saturated = "float16 [3]: 2 at ±65504 (the largest of the type) of 3 values"
    assert list(outputs_of(first.operator)) == [("output.0", saturated)]
    assert list(outputs_of(second.operator)) == [
        ("output.0", "float32 [3]: 1 NaN, 1 Inf of 3 values"),
        ("output.1", saturated),
    ]


def test_json_of_msaccucmp_says_the_same_as_the_raw_file(dump: Path) -> None:
    before = described(dump)
    for path in dump.glob("Op[dD]ebug.*"):
        task, status = (10, 0x500) if path.name.startswith("Opdebug") else (20, 32)
        path.with_name(f"{path.name}.output.0.json").write_text(
            json.dumps(noted_json("AI Core", status, task))
        )
    assert described(dump) == before  # not twice
    for path in dump.glob("Op[dD]ebug.*[0-9]"):
        path.unlink()
    assert described(dump) == before


def test_the_outputs_that_msaccucmp_wrote_are_those_of_the_operator(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    write_note(dump, 2, noted("AI Core", 32, 12))
    for role, value in (("input.0", 1), ("output.0", np.inf)):
        np.save(
            dump / f"Exp.net_exp.12.3.1700000000000001.{role}.npy", np.full(2, value, "float32")
        )
    (found,) = overflows_in(dump).found
    assert found.name == "Exp net_exp"
    assert found.operator is not None
    assert list(outputs_of(found.operator)) == [("output.0", "float32 [2]: 2 Inf of 2 values")]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (
            noted("DHA Atomic Add", 9, 1),
            "the atomic addition overflowed; DHA Atomic Add status 9 (0x9)",
        ),
        (
            noted("L2 Atomic Add", 3, 1),
            "the atomic addition was given NaN as the number to add; L2 Atomic Add status 3 (0x3)",
        ),
        (noted("L2 Atomic Add", 100, 1), "overflowed; L2 Atomic Add status 100 (0x64)"),
        (noted("AI Core", 1 << 40, 1), "bit 40; AI Core status 1099511627776 (0x10000000000)"),
        (noted_newer(1, [32], 1), "floating-point arithmetic overflowed; AIV status 32 (0x20)"),
        (
            noted_newer(0, [0, 0x400, 0, 0], 1),
            (
                "the sum of a matrix product overflowed; AIC status 0 (0x0), 1024 (0x400), 0 (0x0),"
                " 0 (0x0)"
            ),
        ),
    ],
)
def test_every_unit_and_layout_is_told_in_words(content: bytes, what: str, tmp_path: Path) -> None:
    write_note(tmp_path, 1, content)
    assert described(tmp_path) == [
        ("an operator without a dump", what, "task 1, stream 3, model 7")
    ]


def test_the_newer_json_is_read(tmp_path: Path) -> None:
    data = {"model_id": 7, "stream_id": 3, "task_id": 1, "status": [32, 0]}
    path = tmp_path / "Opdebug.Node_OpDebug.0.3.1673383728094391.4.1.0.0.output.0.json"
    path.write_text(
        json.dumps(
            {"magic": "0x5a5a5a5a", "version": 1, "acc_list": {"acc_type": "AIV", "data": data}}
        )
    )
    assert [what.split(";")[0] for _, what, _ in described(tmp_path)] == [
        "floating-point arithmetic overflowed"
    ]


def test_of_two_runs_of_a_task_the_nearer_in_time_overflowed(tmp_path: Path) -> None:
    for time, name in ((1, "early"), (1_000, "late")):
        path = write(tmp_path, "Add", name, time, kernel(name, [], []))
        path.rename(tmp_path / path.name.replace(f".{time}.3.", ".4.3."))
    write_note(tmp_path, 1_005, noted("AI Core", 32, 4))
    assert [name for name, _, _ in described(tmp_path)] == ["Add late"]


def damaged() -> dict[str, bytes]:
    good = noted("AI Core", 32, 1)
    return {
        "no overflow": noted("AI Core", 0, 1),
        "another size": good[:-8],
        "empty": b"",
        "three bytes": b"abc",
        "newer, not valid": noted_newer(1, [32], 1, valid=0),
        "newer, another unit": noted_newer(9, [32], 1),
        "newer, without facts": noted_newer(1, [32], 1, length=0),
        "newer, of a length that lies": noted_newer(1, [32], 1, length=0xFFFFFFFF),
        "newer, cut": noted_newer(1, [32], 1)[:60],
    }


@pytest.mark.parametrize("content", damaged().values(), ids=damaged())
def test_a_damaged_note_is_named_beside_the_others(content: bytes, dump: Path, cli: Run) -> None:
    path = write_note(dump, 30, content)
    overflows = overflows_in(dump)
    assert len(overflows.found) == 2
    assert [path.name in why for why in overflows.unreadable] == [True]
    assert cli("overflow", dump, "--quiet").returncode == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"magic": 1}',
        '{"AI Core": {"status": "32"}}',
        '{"AI Core": 3}',
        "[" * 100_000,
        '{"AI Core": {"status": 1e400}}',
    ],
)
def test_hostile_json_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "Opdebug.Node_OpDebug.0.3.1673383728094391.output.0.json"
    path.write_text(text)
    overflows = overflows_in(tmp_path)
    assert overflows.found == []
    assert path.name in overflows.unreadable[0]


def test_huge_json_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "Opdebug.Node_OpDebug.0.3.1673383728094391.output.0.json"
    with path.open("wb") as file:
        file.truncate(1 << 34)
    assert "it has 17,179,869,184 bytes" in overflows_in(tmp_path).unreadable[0]


def test_a_damaged_dump_of_the_operator_is_told_in_place_of_its_values(
    dump: Path, cli: Run
) -> None:
    (path,) = dump.glob("MatMulV2.*")
    path.write_bytes(struct.pack("<Q", 1 << 60))
    ran = cli("overflow", dump)
    assert ran.returncode == 1
    assert "is truncated, or no kernel dump" in ran.stdout


def test_overflow_shows_them_and_fails(dump: Path, cli: Run) -> None:
    ran = cli("overflow", dump.parent)
    assert ran.returncode == 1
    lines = ran.stdout.splitlines()
    assert "2 overflows, the first of MatMulV2 net/fc/MatMul" in lines[0]
    assert "1. MatMulV2 net/fc/MatMul" in lines
    assert "2. Add net/add" in lines
    assert "   output.0: float32 [3]: 1 NaN, 1 Inf of 3 values" in lines


def test_the_log_of_a_watch_comes_before_overflows_below_it(dump: Path, cli: Run) -> None:
    (dump.parent / "rank0.jsonl").write_text("no log\n")
    ran = cli("overflow", dump.parent, "--report", "none")
    assert ran.returncode == 2
    assert "rank0.jsonl" in ran.stderr


def test_a_report_of_them_is_refused(dump: Path, cli: Run) -> None:
    ran = cli("overflow", dump, "--report", "out.html")
    assert ran.returncode == 2
    assert "there is no report" in ran.stderr


def test_import_takes_the_kernels_and_notes_what_overflowed(dump: Path, tmp_path: Path) -> None:
    found = import_dump(dump, tmp_path / "out")
    assert found.records == 4
    overflowed = [note.split(": ")[1] for note in found.notes if note.startswith("overflowed")]
    assert overflowed == ["MatMulV2 net/fc/MatMul", "Add net/add"]
    assert {each.why for each in found.left_out} == {
        "what the device noted of an overflow, which is no tensor"
    }
