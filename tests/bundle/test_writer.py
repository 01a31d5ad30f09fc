"""Writing a bundle in the background: what lies on disk, how much waits in memory, and what a failure leaves."""

from __future__ import annotations

import errno
import json
import resource
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accucompare as ac
from accucompare.bundle import writer as writer_module
from accucompare.bundle.digests import digest
from accucompare.bundle.manifest import Manifest
from accucompare.bundle.records import Record
from accucompare.bundle.writer import BundleWriter, RecordFile, forget_previous, prepare_directory
from accucompare.compare.comparison import Reason
from accucompare.errors import CaptureError
from tests.compare.builder import item, write


def add(writer: BundleWriter, name: str, values: Any, step: int = 0) -> None:
    record, array, _ = item(name, values, step=step)
    writer.add(record, array)


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def no_space() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


# What lies on disk


def test_a_bundle_is_a_manifest_and_two_files_a_step(tmp_path: Path) -> None:
    write(tmp_path / "b", [item("a", [1.0]), item("a", [1.0], step=1)])
    assert files(tmp_path / "b") == ["manifest.json", "rank0/step0.jsonl", "rank0/step0.npz", "rank0/step1.jsonl", "rank0/step1.npz"]


def test_plain_numpy_opens_a_step(tmp_path: Path) -> None:
    write(tmp_path / "b", [item("=1+1", [1.0, 2.0]), item("层1", [3], path="0"), item("a/b", 1.5, "bfloat16"), item("x" * 300, True)])
    with np.load(tmp_path / "b/rank0/step0.npz", allow_pickle=False) as loaded:
        arrays = {name: loaded[name].tolist() for name in loaded.files}
    assert arrays == {
        "000000._1_1.output": [1.0, 2.0],
        "000001._1.output.0": [3],
        "000002.a_b.output": 0x3FC0,
        f"000003.{'x' * 120}": True,
    }


def test_the_true_names_are_in_the_records(tmp_path: Path) -> None:
    names = ["=1+1", "层1", "a/b", "x" * 300, "a b", "-x", "@SUM(A1)", ""]
    write(tmp_path / "b", [item(name, [1.0]) for name in names])
    assert [record.name for record in ac.open_bundle(tmp_path / "b").records()] == names


def test_equal_tensors_share_one_member(tmp_path: Path) -> None:
    write(tmp_path / "b", [item("a", [1.0, 2.0]), item("b", [1.0, 2.0], role="input"), item("c", [1.0, 3.0])])
    records = list(ac.open_bundle(tmp_path / "b").records())
    assert [record.member for record in records] == ["000000.a.output", "000000.a.output", "000001.c.output"]
    assert records[0].digest == records[1].digest != records[2].digest
    assert records[0].statistics == records[1].statistics


def test_equal_bytes_of_another_shape_or_type_have_a_member_of_their_own(tmp_path: Path) -> None:
    zeros = [
        np.zeros(4, np.float32),
        np.zeros((2, 2), np.float32),
        np.zeros(4, np.int32),
        np.zeros(2, np.float64),
        np.zeros(0),
        np.zeros((0, 2)),
    ]
    write(tmp_path / "b", [item(str(number), values) for number, values in enumerate(zeros)])
    assert len({record.member for record in ac.open_bundle(tmp_path / "b").records()}) == len(zeros)


def test_types_stored_alike_share_a_member_but_not_statistics(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)
    write(tmp_path / "b", [item("a", bits, "bfloat16"), item("b", bits, "uint16")])
    bundle = ac.open_bundle(tmp_path / "b")
    one, other = bundle.records()
    assert one.member == other.member
    assert one.statistics is not None
    assert other.statistics is not None
    assert (one.statistics.max, other.statistics.max) == (2.0, 0x4000)
    assert (bundle.values(one).tolist(), bundle.values(other).tolist()) == ([1.0, 2.0], [0x3F80, 0x4000])
    bundle.close()


def test_a_record_without_data_has_a_line_and_no_member(tmp_path: Path) -> None:
    write(tmp_path / "b", [item("a", dtype="float32", layout="sparse", shape=(2, 3), detail="coo")])
    (record,) = ac.open_bundle(tmp_path / "b").records()
    assert (record.member, record.digest, record.statistics, record.shape, record.detail) == (None, None, None, (2, 3), "coo")


def test_a_step_without_records_is_there(tmp_path: Path) -> None:
    write(tmp_path / "b", [])
    bundle = ac.open_bundle(tmp_path / "b")
    assert list(bundle.records()) == []
    assert [entry.records for _, entry in bundle.steps()] == [0]


def test_the_manifest_lists_finished_steps_with_their_digests(tmp_path: Path) -> None:
    write(tmp_path / "b", [item("a", [1.0]), item("b", [1.0]), item("a", [1.0], step=1)])
    steps = json.loads((tmp_path / "b/manifest.json").read_text())["steps"]
    lines = [(tmp_path / f"b/rank0/step{step}.jsonl").read_bytes() for step in range(2)]
    assert [(entry["step"], entry["records"]) for entry in steps] == [(0, 2), (1, 1)]
    assert [entry["digest"] for entry in steps] == [digest(np.frombuffer(content, np.uint8)) for content in lines]


def test_inputs_of_the_case_leave_their_fingerprints_in_the_manifest(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest())
    record, array, _ = item("", np.ones(2, np.float32), role="input", path="x", parent=None)
    writer.add(record, array, case_input=True)
    writer.end_step(0)
    writer.close()
    (entry,) = Manifest.read(tmp_path / "b/manifest.json").inputs["0"].values()
    assert (entry["dtype"], entry["shape"], sorted(entry["digests"])) == ("float32", [2], ["bfloat16", "float16", "float32"])


def test_other_ranks_write_manifests_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "b", [item("a", [1.0]), item("a", [1.0], rank=1)], ranks=2)
    assert files(tmp_path / "b")[:1] + files(tmp_path / "b")[3:4] == ["manifest.json", "rank1/manifest.json"]


# The queue


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While it is not set, nothing gets written."""
    event = threading.Event()
    plain = RecordFile.add

    def slow(self: RecordFile, record: Record, array: Any) -> None:
        assert event.wait(30)
        plain(self, record, array)

    monkeypatch.setattr(RecordFile, "add", slow)
    yield event
    event.set()


class Producer(threading.Thread):
    """Adds tensors of 80 bytes; tells when it has to wait, and the most bytes that were ever held."""

    def __init__(self, writer: BundleWriter, count: int) -> None:
        super().__init__(daemon=True)
        self.writer, self.count, self.added, self.most = writer, count, 0, 0
        self.waits = threading.Event()
        plain = writer._changed.wait_for

        def wait_for(predicate: Any, timeout: float | None = None) -> Any:
            if threading.current_thread() is self and not predicate():
                self.waits.set()
            return plain(predicate, timeout)

        writer._changed.wait_for = wait_for  # type: ignore[method-assign]

    def run(self) -> None:
        for number in range(self.count):
            add(self.writer, f"a{number}", np.full(10, float(number)))
            self.added += 1
            self.most = max(self.most, self.writer._held)


def test_no_more_than_the_bound_ever_waits_to_be_written(tmp_path: Path, gate: threading.Event) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest(), queue_bytes=200)
    producer = Producer(writer, 20)
    producer.start()
    assert producer.waits.wait(30)
    assert producer.added == 2
    gate.set()
    producer.join(30)
    writer.end_step(0)
    writer.close()
    assert (producer.added, producer.most) == (20, 160)
    assert len(list(ac.open_bundle(tmp_path / "b").records())) == 20


def test_a_tensor_larger_than_the_bound_waits_alone(tmp_path: Path, gate: threading.Event) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest(), queue_bytes=1)
    producer = Producer(writer, 3)
    producer.start()
    assert producer.waits.wait(30)
    assert producer.added == 1
    gate.set()
    producer.join(30)
    writer.end_step(0)
    writer.close()
    assert (producer.added, producer.most) == (3, 80)


def test_a_failure_frees_who_waits(tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "write_member", lambda *_: (_ for _ in ()).throw(no_space()))
    writer = BundleWriter(tmp_path / "b", Manifest(), queue_bytes=100)
    producer = Producer(writer, 10)
    producer.start()
    assert producer.waits.wait(30)
    gate.set()
    producer.join(30)
    assert producer.added == 10
    assert writer._held == 0
    with pytest.raises(CaptureError):
        writer.close()


# Failures


def test_a_full_disk_is_told_and_leaves_the_finished_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = writer_module.write_member

    def fails_later(archive: Any, name: str, array: Any) -> None:
        if "second" in name:
            raise no_space()
        plain(archive, name, array)

    monkeypatch.setattr(writer_module, "write_member", fails_later)
    writer = BundleWriter(tmp_path / "b", Manifest(complete=True))
    add(writer, "first", [1.0, 2.0])
    writer.end_step(0)
    add(writer, "first", [1.0, 2.0], step=1)
    add(writer, "second", [1.0, 2.0, 3.0], step=1)
    writer.end_step(1)
    add(writer, "third", [1.0], step=2)
    writer.end_step(2)
    with pytest.raises(CaptureError) as caught:
        writer.close()
    directory = tmp_path / "b"
    assert str(caught.value) == (
        f"{directory}/rank0: cannot be written (No space left on device); 1 finished step(s) in {directory} stay readable"
    )
    assert files(directory) == ["manifest.json", "rank0/step0.jsonl", "rank0/step0.npz"]
    with ac.open_bundle(directory) as bundle:
        assert not bundle.complete
        assert bundle.manifest.stopped == {"error": str(caught.value)}
        assert bundle.load("first").tolist() == [1.0, 2.0]


def test_a_file_that_may_grow_no_further_is_a_full_disk(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = BundleWriter(tmp_path / "b", Manifest(complete=True))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        add(writer, "small", np.zeros(10))
        writer.end_step(0)
        add(writer, "large", np.random.default_rng(0).normal(size=1 << 18), step=1)
        writer.end_step(1)
        with pytest.raises(CaptureError, match=r"cannot be written \(File too large\); 1 finished step\(s\)"):
            writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files(tmp_path / "b") == ["manifest.json", "rank0/step0.jsonl", "rank0/step0.npz"]


def test_a_manifest_that_cannot_be_written_at_the_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest())
    monkeypatch.setattr(Manifest, "write", lambda *_: (_ for _ in ()).throw(no_space()))
    with pytest.raises(CaptureError, match="No space left on device"):
        writer.close()


def test_a_step_that_cannot_be_renamed_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest())
    monkeypatch.setattr(RecordFile, "finish", lambda *_: (_ for _ in ()).throw(no_space()))
    add(writer, "a", [1.0])
    writer.end_step(0)
    with pytest.raises(CaptureError, match="No space left on device"):
        writer.close()
    assert files(tmp_path / "b") == ["manifest.json"]


def test_files_that_cannot_be_opened_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module.zipfile, "ZipFile", lambda *_: (_ for _ in ()).throw(no_space()))
    writer = BundleWriter(tmp_path / "b", Manifest())
    add(writer, "a", [1.0])
    with pytest.raises(CaptureError, match="No space left on device"):
        writer.close()
    assert files(tmp_path / "b") == ["manifest.json"]


def test_a_bug_in_the_writer_reaches_the_capture_as_an_error(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest())
    record, array, _ = item("a", [1.0])
    writer.add(Record(**{**{name: getattr(record, name) for name in Record.__slots__}, "dtype": "float31"}), array)
    with pytest.raises(CaptureError, match=r"b: writing failed \(KeyError: 'float31'\)"):
        writer.close()
    assert files(tmp_path / "b") == ["manifest.json"]


def test_a_killed_capture_leaves_its_finished_steps_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = threading.Event()
    plain = RecordFile.add

    def add_and_tell(self: RecordFile, record: Record, array: Any) -> None:
        plain(self, record, array)
        if record.step == 1:
            inside.set()

    monkeypatch.setattr(RecordFile, "add", add_and_tell)
    writer = BundleWriter(tmp_path / "b", Manifest())
    add(writer, "a", [1.0])
    writer.end_step(0)
    add(writer, "a", [2.0], step=1)
    assert inside.wait(30)
    shutil.copytree(tmp_path / "b", tmp_path / "killed")  # what is on disk at this moment
    writer.end_step(1)
    writer.close()
    assert "rank0/step1.npz.part" in files(tmp_path / "killed")
    with ac.open_bundle(tmp_path / "killed") as bundle:
        assert not bundle.complete
        assert [record.step for record in bundle.records()] == [0]
        assert bundle.load("a").tolist() == [1.0]
    comparison = ac.diff(tmp_path / "killed", tmp_path / "killed")
    assert comparison.counts()[Reason.IDENTICAL] == 1
    assert not comparison.passed


def test_a_saved_state_is_read_back(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest())
    record, array, _ = item("w", [1.0, 2.0], "bfloat16", role="param", parent=None)
    assert array is not None
    writer.write_state([(record, lambda: array)])
    writer.close()
    with ac.open_bundle(tmp_path / "b") as bundle:
        (saved,) = bundle.state()
        assert bundle.values(saved).tolist() == [1.0, 2.0]


def test_a_state_that_cannot_be_saved_leaves_nothing_half_written(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest())

    def fails() -> np.ndarray:
        raise no_space()

    with pytest.raises(CaptureError, match="No space left on device"):
        writer.write_state([(item("w", [1.0], role="param").record, fails)])
    writer.close()
    assert files(tmp_path / "b") == ["manifest.json"]


# The directory


def test_a_new_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    prepare_directory(tmp_path / "a/b", overwrite=False)
    assert (tmp_path / "a/b").is_dir()


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    prepare_directory(tmp_path, overwrite=False)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_with_other_things_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(CaptureError, match="is not empty and holds no bundle, so it is not touched; choose another --out"):
        prepare_directory(tmp_path, overwrite)
    assert files(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(CaptureError, match="exists and is not a directory"):
        prepare_directory(tmp_path / "out", overwrite)
    assert (tmp_path / "out").read_text() == "x"


def test_a_bundle_is_only_replaced_when_asked(tmp_path: Path) -> None:
    bundle = write(tmp_path / "b", [item("a", [1.0]), item("a", [1.0], step=1)])
    (bundle / "notes.txt").write_text("mine")
    before = files(bundle)
    with pytest.raises(CaptureError, match="already holds a bundle; overwrite it"):
        prepare_directory(bundle, overwrite=False)
    assert files(bundle) == before
    prepare_directory(bundle, overwrite=True)
    forget_previous(bundle)
    assert files(bundle) == ["notes.txt"]


def test_a_bundle_is_kept_until_its_replacement_is_complete(tmp_path: Path) -> None:
    bundle = write(tmp_path / "b", [item("a", [1.0])])
    prepare_directory(bundle, overwrite=True)
    write(bundle, [item("b", [2.0])])  # fails, say; and is tried again
    prepare_directory(bundle, overwrite=True)
    with ac.open_bundle(bundle / ".previous") as previous:
        assert previous.load("a").tolist() == [1.0]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CaptureError, match=r"file/b: cannot be written \(Not a directory\)"):
        prepare_directory(tmp_path / "file" / "b", overwrite=False)
