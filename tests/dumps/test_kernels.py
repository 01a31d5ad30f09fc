"""Kernel dumps of CANN and the .npy files of msaccucmp. The binary ones are made here by the
published schema; none is from an NPU.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import accucompare as ac
from accucompare.bundle.format.records import Layout, Record
from accucompare.compare.rows.rows import Reason
from accucompare.dumps.dump_files import UnreadableError
from accucompare.dumps.importing import import_dump
from accucompare.dumps.kernel_files import read_header
from accucompare.errors import UsageError
from accucompare.report.words import verdict_words
from tests.compare.builder import item
from tests.compare.builder import write as write_bundle
from tests.dumps.kernels import Value, block, kernel, number, to_5hd, to_nz, varint, write


def values(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def imported(dump: Path, tmp_path: Path) -> list[Record]:
    import_dump(dump, tmp_path / "out")
    with ac.open_bundle(tmp_path / "out") as bundle:
        return list(bundle.records())


def loaded(dump: Path, tmp_path: Path) -> dict[str, np.ndarray]:
    """Every tensor, by name, role and path."""
    import_dump(dump, tmp_path / "out")
    with ac.open_bundle(tmp_path / "out") as bundle:
        return {
            f"{record.name} {record.call} {record.role}.{record.path}": bundle.values(record)
            for record in bundle.records()
        }


def test_a_kernel_becomes_a_call_with_inputs_and_outputs(tmp_path: Path) -> None:
    left, right, mask = values(2, 3), values(3, 4, seed=1), np.array([[True, False]])
    content = kernel(
        "net/layer.0/fc/MatMul",
        [Value(left), Value(right.astype("float16"))],
        [Value(left @ right), Value(mask)],
        b"scratch",
    )
    write(tmp_path / "dump", "MatMulV2", "net/layer.0/fc/MatMul", 1, content)
    found = loaded(tmp_path / "dump", tmp_path)
    assert list(found) == [
        f"net.layer.0.fc.MatMul 0 {place}"
        for place in ("input.0", "input.1", "output.0", "output.1")
    ]
    np.testing.assert_array_equal(found["net.layer.0.fc.MatMul 0 input.1"], right.astype("float16"))
    np.testing.assert_array_equal(found["net.layer.0.fc.MatMul 0 output.0"], left @ right)
    np.testing.assert_array_equal(found["net.layer.0.fc.MatMul 0 output.1"], mask)


def test_calls_follow_the_timestamps_and_folders_named_by_numbers_are_steps(tmp_path: Path) -> None:
    for step in (0, 1):
        for time in (12, 9):  # not in the order of the names
            write(
                tmp_path / "dump" / str(step),
                "Add",
                "add",
                time,
                kernel("add", [], [Value(np.full(2, time, "int32"))], packed=False),
            )
    records = imported(tmp_path / "dump", tmp_path)
    assert [(record.step, record.call) for record in records] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    with ac.open_bundle(tmp_path / "out") as bundle:
        assert [bundle.values(record).tolist() for record in bundle.records()][:2] == [
            [9, 9],
            [12, 12],
        ]


def test_bfloat16_keeps_its_bits(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0x7FC0, 0x8000], "<u2")
    write(tmp_path / "dump", "Cast", "cast", 1, kernel("cast", [], [Value(bits, 27)]))
    (record,) = imported(tmp_path / "dump", tmp_path)
    assert record.dtype == "bfloat16"
    with ac.open_bundle(tmp_path / "out") as bundle:
        np.testing.assert_array_equal(bundle.load("cast"), np.array([1, np.nan, -0.0], "float32"))


@pytest.mark.parametrize("shape", [(16, 16), (5, 40), (2, 3, 17, 33)], ids=str)
def test_nz_is_put_back_into_rows(shape: tuple[int, ...], tmp_path: Path) -> None:
    array = values(*shape)
    write(
        tmp_path / "dump",
        "MatMul",
        "m",
        1,
        kernel("m", [], [Value(to_nz(array), format=29, original=shape)]),
    )
    np.testing.assert_array_equal(loaded(tmp_path / "dump", tmp_path)["m 0 output."], array)


def test_5hd_is_put_back_into_rows_of_either_order(tmp_path: Path) -> None:
    array = values(2, 19, 3, 5)
    last = array.transpose(0, 2, 3, 1)
    outputs = [
        Value(to_5hd(array), format=3, original=array.shape),
        Value(to_5hd(array), format=3, original=last.shape),
    ]
    write(tmp_path / "dump", "Conv2D", "c", 1, kernel("c", [], outputs))
    found = loaded(tmp_path / "dump", tmp_path)
    np.testing.assert_array_equal(found["c 0 output.0"], array)
    np.testing.assert_array_equal(found["c 0 output.1"], last)


def test_what_cannot_be_compared_is_listed_with_its_reason(tmp_path: Path) -> None:
    nz = to_nz(values(4, 4))
    outputs = [
        Value(np.zeros(4, "int32")),
        Value(nz, format=29),
        Value(nz, format=4),
        Value(np.zeros(4, "int32"), type=33),
    ]
    write(tmp_path / "dump", "MatMul", "m", 1, kernel("m", [], outputs))
    (tmp_path / "dump" / "mapping.csv").write_text("")
    found = import_dump(tmp_path / "dump", tmp_path / "out")
    assert found.records == 1
    assert [(each.what.split(" (")[0], each.why.split(",")[0]) for each in found.left_out] == [
        ("mapping.csv", "its name is none of a kernel dump"),
        ("m call 0 output.1", "it is in FRACTAL_NZ"),
        ("m call 0 output.2", "its format is number 4 of dump_data.proto"),
        ("m call 0 output.3", "its type is number 33 of dump_data.proto"),
    ]


def damaged() -> dict[str, bytes]:
    good = kernel("m", [], [Value(values(2, 2))])
    header = good[8 : 8 + struct.unpack("<Q", good[:8])[0]]

    def with_header(header: bytes) -> bytes:
        return struct.pack("<Q", len(header)) + header + good[-16:]

    return {
        "empty": b"",
        "cut in the length": good[:5],
        "cut in the header": good[:20],
        "cut in the data": good[:-1],
        "bytes left over": good + b"x",
        "huge header": struct.pack("<Q", 1 << 63) + good[8:],
        "negative header": b"\xff" * 8 + good[8:],
        "header without end": with_header(header + b"\x80" * 20),
        "field longer than the header": with_header(header + varint(3 << 3 | 2) + varint(1 << 62)),
        "group of an old kind": with_header(header + b"\x1b" * 10_000),
        "size that lies": kernel("m", [], [Value(values(2, 2), says=8)]),
        "size that overflows": kernel("m", [], [Value(values(2, 2), says=(1 << 64) - 16)]),
        "negative size": kernel("m", [], [Value(values(2, 2), says=-16)]),
        "shape that lies": kernel("m", [], [Value(values(2, 2), shape=(1 << 40, 1 << 40))]),
        "shape of many dimensions": kernel("m", [], [Value(values(2, 2), shape=(1,) * 1000)]),
        "original shape that does not fit": kernel(
            "m", [], [Value(to_nz(values(4, 4)), format=29, original=(400, 400))]
        ),
        "bool that is none": kernel("m", [], [Value(np.full(4, 7, "uint8"), type=11)]),
        "bytes inside": with_header(
            block(3, number(1, 1) + number(2, 2) + block(5, b"abcd") + number(6, 16))
        ),
        "tensors without number": with_header(header + block(3, b"") * 20_000),
        "name without end": with_header(header + block(6, b"n" * 100_000)),
        "dimensions without number": with_header(
            header + block(3, block(3, block(1, b"\1" * 1_000_000)))
        ),
        "pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    }


@pytest.mark.parametrize("content", damaged().values(), ids=damaged())
def test_a_damaged_file_is_named_and_its_kernel_stays_in_the_list(
    content: bytes, tmp_path: Path
) -> None:
    path = write(tmp_path / "dump", "MatMul", "m", 1, content)
    write(tmp_path / "dump", "Add", "whole", 2, kernel("whole", [], [Value(values(3))]))
    found = import_dump(tmp_path / "dump", tmp_path / "out")
    assert len(found.unreadable) == 1
    assert path.name in found.unreadable[0]
    with ac.open_bundle(tmp_path / "out") as bundle:
        layouts = {record.name: record.layout for record in bundle.records()}
        assert not bundle.complete
    assert layouts == {"m": Layout.UNREADABLE, "whole": Layout.STRIDED}


def test_a_header_is_not_read_beyond_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "Add.a.1.2.1700000000000000"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 1 << 34))
        file.truncate(1 << 35)  # sparse: takes no space
    with pytest.raises(UnreadableError, match="its header would have 17179869184 bytes"):
        read_header(path)


def test_several_dumps_in_one_folder_are_refused_by_name(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        write(tmp_path / "dump" / folder, "Add", "a", 1, kernel("a", [], [Value(values(2))]))
    with pytest.raises(
        UsageError, match=r"holds several dumps of CANN's kernel dumps .*dump/first, .*dump/second"
    ):
        import_dump(tmp_path / "dump", tmp_path / "out")


def test_npy_files_of_msaccucmp_are_read_with_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    arrays = {f"{role}.{n}": values(2, 3, seed=n) for role in ("input", "output") for n in (0, 10)}
    for time in (1_700_000_000_000_001, 1_700_000_000_000_002):
        for place, array in arrays.items():
            np.save(
                tmp_path / "dump" / f"MatMulV2.net_fc_MatMul.12.3.{time}.{place}.npy",
                array + (time % 2),
            )
    found = loaded(tmp_path / "dump", tmp_path)
    assert list(found) == [
        f"net_fc_MatMul {call} {place}"
        for call in (0, 1)
        for place in ("input.0", "input.10", "output.0", "output.10")
    ]
    np.testing.assert_array_equal(found["net_fc_MatMul 1 output.10"], arrays["output.10"])


def test_a_pickle_in_an_npy_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    path = tmp_path / "dump" / "Add.a.1.2.1700000000000000.output.0.npy"
    np.save(path, np.array([{}], object), allow_pickle=True)
    found = import_dump(tmp_path / "dump", tmp_path / "out")
    assert "holds objects, and not numbers; refused" in found.unreadable[0]


@pytest.fixture(scope="module")
def of_a_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers as a capture has them, and their kernels, one of them wrong."""
    here = tmp_path_factory.mktemp("kernels")
    x, weight, second = values(4, 4), values(4, 4, seed=1), values(4, 4, seed=2)
    golden = [
        item("layer.0.fc", x, role="input", path="0"),
        item("layer.0.fc", x @ weight),
        item("layer.1.fc", second),
    ]
    write_bundle(here / "golden", golden)
    right = kernel(
        "net/layer.0/fc/MatMul",
        [Value(x), Value(weight)],
        [Value(to_nz(x @ weight), format=29, original=(4, 4))],
    )
    write(here / "dump", "MatMulV2", "net/layer.0/fc/MatMul", 1, right)
    write(
        here / "dump",
        "MatMulV2",
        "net/layer.1/fc/MatMul",
        2,
        kernel("net/layer.1/fc/MatMul", [], [Value(second * np.float32(1.1))]),
    )
    import_dump(here / "dump", here / "npu")
    return here


def test_a_diff_names_the_layer_of_a_kernel_by_a_map(of_a_model: Path) -> None:
    found = ac.diff(of_a_model / "golden", of_a_model / "npu", map="layer.*=net.layer.*.MatMul")
    assert [(row.place, row.reason.value) for row in found.rows if row.metrics] == [
        ("layer.0.fc input.0", "identical"),
        ("layer.0.fc output", "identical"),
        ("layer.1.fc output", "introduced"),
    ]
    # the weight
    assert [row.place for row in found.rows if row.reason is Reason.NOT_COMPARABLE] == [
        "net.layer.0.fc.MatMul input.1"
    ]


def test_kernels_of_no_layer_are_no_difference_and_no_pass(of_a_model: Path) -> None:
    found = ac.diff(of_a_model / "golden", of_a_model / "npu")
    assert {row.reason for row in found.rows} == {Reason.NOT_COMPARABLE}
    assert all("--map pairs two names" in verdict_words.detail(row) for row in found.rows)
    assert found.trouble
    assert not found.passed
