"""Damaged and hostile dumps: the file is named, nothing runs, nothing is left that opens as
complete, and an earlier bundle stays.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import signal
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accucompare.bundle.format.records import Layout
from accucompare.bundle.reading.reader import open_bundle
from accucompare.dumps import dump_files, importing
from accucompare.dumps.dump_files import UnreadableError, read_npy
from accucompare.dumps.importing import import_dump
from accucompare.dumps.items import Naming
from accucompare.errors import AccucompareError, BundleError, CaptureError
from tests.conftest import Run

VALUES = torch.arange(6, dtype=torch.float32)


class Runs:
    """What a pickle would run: it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def index(**of: Any) -> dict[str, Any]:
    name = "Module.fc.Linear.forward.0"
    output = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [6],
        "data_name": f"{name}.output.0.pt",
        **of,
    }
    return {
        "task": "tensor",
        "level": "L0",
        "data": {
            name: {"input_args": [], "input_kwargs": {}, "output": [output], "parameters": {}}
        },
    }


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A dump of msprobe's with one tensor."""
    folder = tmp_path / "dump" / "step0" / "rank0"
    (folder / "dump_tensor_data").mkdir(parents=True)
    (folder / "dump.json").write_text(json.dumps(index()))
    torch.save(VALUES, folder / "dump_tensor_data" / "Module.fc.Linear.forward.0.output.0.pt")
    return folder


@pytest.fixture
def tensor(dump: Path) -> Path:
    return dump / "dump_tensor_data" / "Module.fc.Linear.forward.0.output.0.pt"


def refused(dump: Path, match: str, error: type[AccucompareError] = BundleError) -> None:
    out = dump.parent / "out"
    with pytest.raises(error, match=match):
        import_dump(dump, out)
    assert not out.exists()


def unreadable(dump: Path, match: str) -> None:
    """The tensor is listed with the reason, and the bundle is incomplete."""
    found = import_dump(dump, dump.parent / "out")
    assert len(found.unreadable) == 1
    with open_bundle(dump.parent / "out") as bundle:
        assert not bundle.complete
        (record,) = bundle.records()
        assert record.layout is Layout.UNREADABLE
        assert record.member is None
        assert match in record.detail


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"data": {"a',
        "[1]",
        '{"data": 3}',
        "null",
        "[" * 200_000,
        '{"data": {"Module.a.L.forward.0": 1}}',
    ],
)
def test_an_index_that_is_truncated_or_none_is_refused_by_its_name(
    content: str, dump: Path
) -> None:
    (dump / "dump.json").write_text(content)
    refused(dump, r"dump\.json: ")


@pytest.mark.parametrize(
    "name", ["../../../../secret.pt", "/etc/passwd", "a/../../x.pt", "link.pt"]
)
def test_a_file_name_that_leads_out_of_the_dump_is_refused(
    name: str, dump: Path, tmp_path: Path
) -> None:
    torch.save(VALUES, tmp_path / "secret.pt")
    (dump / "dump_tensor_data" / "link.pt").symlink_to(tmp_path / "secret.pt")
    (dump / "dump.json").write_text(json.dumps(index(data_name=name)))
    refused(dump, "leads out of the dump; refused")


@pytest.mark.parametrize("shape", [[-1], [1 << 62, 1 << 62], ["6"], 6, [True], None, [1] * 100])
def test_an_impossible_shape_is_refused(shape: Any, dump: Path) -> None:
    (dump / "dump.json").write_text(json.dumps(index(shape=shape)))
    refused(dump, "impossible shape")


@pytest.mark.parametrize(
    "parents",
    [
        {"Module.fc.Linear.forward.0": "Module.fc.Linear.forward.0"},
        {"Module.fc.Linear.forward.0": 7},
        [],
    ],
)
def test_calls_in_themselves_do_not_hang(parents: Any, dump: Path) -> None:
    (dump / "construct.json").write_text(json.dumps(parents))
    if parents and not isinstance(parents["Module.fc.Linear.forward.0"], str):
        assert import_dump(dump, dump.parent / "out").records == 1
    else:
        refused(dump, r"construct\.json: ")


def test_a_missing_file_is_listed_and_the_bundle_is_incomplete(dump: Path, tensor: Path) -> None:
    tensor.unlink()
    unreadable(dump, f"{tensor}: No such file")


def test_a_truncated_file_is_listed(dump: Path, tensor: Path) -> None:
    tensor.write_bytes(tensor.read_bytes()[:-200])
    unreadable(dump, str(tensor))


def test_a_pickle_with_code_is_not_run(dump: Path, tensor: Path, tmp_path: Path) -> None:
    torch.save(Runs(tmp_path / "ran"), tensor)
    unreadable(dump, "opening it could run code")
    assert not (tmp_path / "ran").exists()


def test_a_bare_pickle_is_not_opened(dump: Path, tensor: Path, tmp_path: Path) -> None:
    tensor.write_bytes(pickle.dumps(Runs(tmp_path / "ran")))
    unreadable(dump, "is truncated, or no file of its kind")
    assert not (tmp_path / "ran").exists()


def test_without_torch_a_pt_says_what_to_install(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    unreadable(
        dump, "needs torch to be read, which is not installed: pip install accucompare[torch]"
    )


def test_a_pipe_is_not_waited_for(dump: Path, tensor: Path) -> None:
    tensor.unlink()
    os.mkfifo(tensor)
    unreadable(dump, "is not a regular file")


def test_a_tensor_that_grows_when_it_is_read_is_refused(dump: Path, tensor: Path) -> None:
    torch.save(torch.zeros(1).expand(1 << 40), tensor)
    (dump / "dump.json").write_text(json.dumps(index(shape=[1 << 40])))
    unreadable(dump, "far larger than its file")


def test_a_compressed_pt_is_refused(dump: Path, tensor: Path) -> None:
    with zipfile.ZipFile(tensor) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(tensor, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    unreadable(dump, "is compressed, as torch.save never does")


@pytest.mark.parametrize(
    ("of", "match"),
    [
        ({"shape": [2, 3]}, "the shape [6]"),
        ({"dtype": "torch.int64"}, "holds float32, but the dump says int64"),
    ],
)
def test_a_file_that_is_not_what_the_index_says_is_listed(
    of: dict[str, Any], match: str, dump: Path
) -> None:
    (dump / "dump.json").write_text(json.dumps(index(**of)))
    unreadable(dump, match)


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def zipped(path: Path, content: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.output.npy", content)


def zeros_in_npz(path: Path) -> None:
    zipped(
        path,
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (250000,), }", bytes(1_000_000)),
    )


CLAIM = "{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999,), }"
HUGE = {"x.output": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4 << 40]}}
FILES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "objects": ("x.output.npy", lambda path: np.save(path, np.array([None]), allow_pickle=True)),
    "more than there is": (
        "x.output.npy",
        lambda path: path.write_bytes(
            npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999,), }")
        ),
    ),
    "code in a header": (
        "x.output.npy",
        lambda path: path.write_bytes(npy("__import__('os').mkdir('ran')")),
    ),
    "strings": ("x.output.npy", lambda path: np.save(path, np.array(["a"]))),
    "a long header": (
        "x.output.npy",
        lambda path: path.write_bytes(
            b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + b" " * 100
        ),
    ),
    "a bomb": ("x.npz", zeros_in_npz),
    "a truncated header": ("x.npz", lambda path: zipped(path, b"\x93NUMPY\x01")),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_array_is_listed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump_files, "_SMALL", 1 << 10)
    name, write = FILES[kind]
    (tmp_path / "dump").mkdir()
    write(tmp_path / "dump" / name)
    found = import_dump(tmp_path / "dump", tmp_path / "out", naming=Naming("[x/]{name}.{role}"))
    assert len(found.unreadable) == 1
    assert name in found.unreadable[0]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "header",
    [
        b"\xff" * 8,
        struct.pack("<Q", 1 << 40),
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 5) + b'{"a":',
    ],
)
def test_a_damaged_safetensors_is_refused(header: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(header)
    refused(tmp_path / "x.safetensors", r"x\.safetensors: ")


def test_a_safetensors_that_claims_more_than_it_has_is_refused(tmp_path: Path) -> None:
    header = json.dumps(HUGE).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    refused(tmp_path / "x.safetensors", "lies outside of the file")


def test_what_a_second_tensor_of_one_name_is_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    np.save(tmp_path / "dump" / "a.output.npy", VALUES.numpy())
    np.savez(tmp_path / "dump" / "a.npz", output=VALUES.numpy())
    with pytest.raises(BundleError, match=r"a call 0 output .* is in the dump twice"):
        import_dump(tmp_path / "dump", tmp_path / "out", naming=Naming("{name}[.{role}][/output]"))
    assert not (tmp_path / "out").exists()


def test_a_failed_import_leaves_the_earlier_bundle(dump: Path) -> None:
    out = dump.parent / "out"
    import_dump(dump, out)
    with pytest.raises(CaptureError, match="already holds a bundle"):
        import_dump(dump, out)
    shutil.copy(dump / "dump.json", dump / "whole.json")
    (dump / "dump.json").write_text("{")
    with pytest.raises(BundleError):
        import_dump(dump, out, overwrite=True)
    with open_bundle(out) as bundle:
        assert bundle.complete
        assert bundle.values(next(bundle.records())).tolist() == VALUES.tolist()
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "rank0"]


def test_ctrl_c_leaves_nothing_that_opens(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(importing, "_checked", interrupted)
    with pytest.raises(KeyboardInterrupt):
        import_dump(dump, dump.parent / "out")
    assert not (dump.parent / "out").exists()


def test_the_command_says_what_is_wrong_in_one_line_and_exits_with_two(
    dump: Path, tensor: Path, cli: Run
) -> None:
    tensor.write_bytes(b"PK")
    failed = cli("import", dump, "--out", "out")
    assert failed.returncode == 2
    assert failed.stderr.count("\n") == 1
    assert (
        f"out: is incomplete, for 1 tensor(s) of {dump} cannot be read: fc call 0 output"
        in failed.stderr
    )


def test_names_of_a_dump_cannot_write_to_the_terminal(dump: Path, cli: Run) -> None:
    content = index(data_name="\x1b[31m\u202e.pt")
    content["data"]["Functional.\x1b[2J.0.forward"] = {}
    (dump / "dump.json").write_text(json.dumps(content))
    failed = cli("import", dump, "--out", "out")
    assert failed.returncode == 2
    assert "\\x1b[31m\\u202e.pt" in failed.stderr
    assert "\\x1b[2J" in failed.stdout
    assert not {"\x1b", "\u202e"} & {*failed.stderr, *failed.stdout}


def test_the_command_says_what_it_left_out_and_quiet_says_nothing(dump: Path, cli: Run) -> None:
    loud = cli("import", dump, "--out", "out")
    assert (loud.returncode, loud.stdout.splitlines()) == (
        0,
        [
            "imported 1 record from msprobe into out",
            (
                "note: msprobe does not record the call of the whole model, nor what the optimizer"
                " does"
            ),
        ],
    )
    quiet = cli("import", dump, "--out", "out", "--overwrite", "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["nowhere"], "nowhere: there is no such file or directory"),
        (
            ["empty"],
            "empty: no format is recognised; name it with --from. The formats are\n  msprobe: dump",
        ),
        (
            ["model.onnx"],
            (
                "model.onnx: is a model, and no outputs; give those that Polygraphy saved: import"
                " out.json --onnx model.onnx"
            ),
        ),
        (
            ["with_model"],
            "with_model: holds a model, and no outputs; give those that Polygraphy saved",
        ),
        (
            ["dump", "--name-pattern", "{name}"],
            "--name-pattern: dumps of msprobe have names of their own",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], match: str, dump: Path, tmp_path: Path, cli: Run
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "with_model").mkdir()
    for model in (tmp_path / "model.onnx", tmp_path / "with_model" / "model.onnx"):
        model.write_bytes(b"\x08\x09")
    failed = cli("import", *arguments, "--out", "out")
    assert failed.returncode == 2
    assert match in failed.stderr


@settings(max_examples=100)
@given(edits=st.lists(st.tuples(st.integers(8, 127), st.integers(0, 255)), min_size=1, max_size=4))
def test_an_npy_whose_header_is_damaged_is_told_whatever_its_bytes(
    edits: list[tuple[int, int]],
) -> None:
    stream = io.BytesIO()
    np.save(stream, np.ones((2, 3), np.float32))
    content = bytearray(stream.getvalue())
    for place, byte in edits:
        content[place] = byte
    with contextlib.suppress(UnreadableError):  # or it is read, where the edit does no harm
        read_npy(io.BytesIO(content), len(content), "x.npy")


@pytest.mark.parametrize(
    "header", [b"{'descr': (", b"'''", b"(" * 60, b"\xff\xfe", b"{1: 2}", b"{'descr': 0}"]
)
def test_an_import_goes_on_after_an_npy_that_no_parser_takes(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "dump").mkdir()
    np.save(tmp_path / "dump" / "sound.output.npy", np.ones(3, np.float32))
    text = header.ljust(117) + b"\n"
    (tmp_path / "dump" / "damaged.output.npy").write_bytes(
        b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    )
    imported = import_dump(tmp_path / "dump", tmp_path / "out")
    assert (imported.records, len(imported.unreadable)) == (2, 1)
