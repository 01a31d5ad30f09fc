"""Writing a bundle in the background: what lies on disk, how much waits in memory, and what a
failure leaves.
"""

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
from msgspec.structs import replace

import accucompare as ac
from accucompare.bundle.format.manifest import Manifest
from accucompare.bundle.format.records import Record
from accucompare.bundle.writing.archive_writer import ArchiveWriter
from accucompare.bundle.writing.record_file import RecordFile
from accucompare.bundle.writing.writer import BundleWriter
from accucompare.compare.rows.rows import Reason
from accucompare.errors import CaptureError
from accucompare.numbers.digests import digest
from accucompare.selection import Mode
from tests.compare.builder import item, write


def add(writer: BundleWriter, name: str, values: Any, step: int = 0) -> None:
    record, array, _ = item(name, values, step=step)
    writer.add(record, array)


def files(directory: Path) -> list[str]:
    return sorted(
        str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()
    )


def no_space() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


# What lies on disk


def test_a_bundle_is_a_manifest_and_two_files_a_step(tmp_path: Path) -> None:
    write(tmp_path / "b", [item("a", [1.0]), item("a", [1.0], step=1)])
    assert files(tmp_path / "b") == [
        "manifest.json",
        "rank0/step0.jsonl",
        "rank0/step0.npz",
        "rank0/step1.jsonl",
        "rank0/step1.npz",
    ]


def test_plain_numpy_opens_a_step(tmp_path: Path) -> None:
    write(
        tmp_path / "b",
        [
            item("=1+1", [1.0, 2.0]),
            item("层1", [3], path="0"),
            item("a/b", 1.5, "bfloat16"),
            item("x" * 300, True),
        ],
    )
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
    write(
        tmp_path / "b",
        [item("a", [1.0, 2.0]), item("b", [1.0, 2.0], role="input"), item("c", [1.0, 3.0])],
    )
    records = list(ac.open_bundle(tmp_path / "b").records())
    assert [record.member for record in records] == [
        "000000.a.output",
        "000000.a.output",
        "000001.c.output",
    ]
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
    assert (bundle.values(one).tolist(), bundle.values(other).tolist()) == (
        [1.0, 2.0],
        [0x3F80, 0x4000],
    )
    bundle.close()


def test_a_record_without_data_has_a_line_and_no_member(tmp_path: Path) -> None:
    write(tmp_path / "b", [item("a", dtype="float32", layout="sparse", shape=(2, 3), detail="coo")])
    (record,) = ac.open_bundle(tmp_path / "b").records()
    assert (record.member, record.digest, record.statistics, record.shape, record.detail) == (
        None,
        None,
        None,
        (2, 3),
        "coo",
    )


def test_a_step_without_records_is_there(tmp_path: Path) -> None:
    write(tmp_path / "b", [])
    bundle = ac.open_bundle(tmp_path / "b")
    assert list(bundle.records()) == []
    assert [entry.records for _, entry in bundle.steps()] == [0]


def test_a_step_that_did_not_end_leaves_no_files(tmp_path: Path) -> None:
    with BundleWriter(tmp_path, Manifest()) as writer:
        writer.add(*item("fc", [1.0]))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["manifest.json"]


def test_the_manifest_lists_finished_steps_with_their_digests(tmp_path: Path) -> None:
    write(tmp_path / "b", [item("a", [1.0]), item("b", [1.0]), item("a", [1.0], step=1)])
    steps = json.loads((tmp_path / "b/manifest.json").read_text())["steps"]
    lines = [(tmp_path / f"b/rank0/step{step}.jsonl").read_bytes() for step in range(2)]
    assert [(entry["step"], entry["records"]) for entry in steps] == [(0, 2), (1, 1)]
    assert [entry["digest"] for entry in steps] == [
        digest(np.frombuffer(content, np.uint8)) for content in lines
    ]


def test_inputs_of_the_case_leave_their_fingerprints_in_the_manifest(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest())
    record, array, _ = item("", np.ones(2, np.float32), role="input", path="x", parent=None)
    writer.add(record, array, model_input=True)
    writer.end_step(0)
    writer.close()
    (entry,) = Manifest.read(tmp_path / "b/manifest.json").inputs["0"].values()
    assert (entry["dtype"], entry["shape"], sorted(entry["digests"])) == (
        "float32",
        [2],
        ["bfloat16", "float16", "float32"],
    )


def test_other_ranks_write_manifests_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "b", [item("a", [1.0]), item("a", [1.0], rank=1)], ranks=2)
    assert files(tmp_path / "b")[:1] + files(tmp_path / "b")[3:4] == [
        "manifest.json",
        "rank1/manifest.json",
    ]


# Records that repeat an earlier one


def known(name: str, values: Any, **options: Any) -> tuple[Record, np.ndarray]:
    """A record that comes with its digest, and its array."""
    record, array, _ = item(name, values, **options)
    assert array is not None
    return replace(record, digest=digest(array)), array


def test_a_record_with_a_digest_that_the_step_has_needs_no_array(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest())
    first, array = known("a", [1.0, 2.0])
    writer.add(first, array)
    assert writer.has(first.dtype, first.shape, first.digest or "")
    writer.add(replace(first, name="b"), None)
    writer.end_step(0)
    writer.close()
    with ac.open_bundle(tmp_path / "b") as bundle:
        one, other = bundle.records()
        assert replace(other, name="a") == one
        assert bundle.values(other).tolist() == [1.0, 2.0]


def test_a_tensor_of_another_dtype_shape_or_step_is_not_had(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest())
    record, array = known("a", np.zeros(2, np.uint16))
    writer.add(record, array)
    assert record.digest is not None
    assert not writer.has("bfloat16", (2,), record.digest)  # its statistics are others
    assert not writer.has("uint16", (2, 1), record.digest)
    writer.end_step(0)
    assert not writer.has("uint16", (2,), record.digest)
    writer.close()


def test_a_digest_that_comes_with_the_array_is_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "accucompare.bundle.writing.record_file.digest", lambda _: pytest.fail("computed")
    )
    writer = BundleWriter(tmp_path / "b", Manifest())
    writer.add(*known("a", [1.0]))
    writer.end_step(0)
    writer.close()


def test_an_array_is_not_read_before_it_is_ready(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest())
    record, _, _ = item("a", [0.0, 0.0])
    late = np.zeros(2)
    writer.add(record, late, ready=lambda: late.__setitem__(slice(None), [1.0, 2.0]))
    writer.end_step(0)
    writer.close()
    with ac.open_bundle(tmp_path / "b") as bundle:
        assert bundle.load("a").tolist() == [1.0, 2.0]


def test_memory_is_released_when_its_tensor_is_written_and_not_before(
    tmp_path: Path, gate: threading.Event
) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest(), queue_bytes=4096)
    lease = writer.take(16, lambda nbytes: np.zeros(nbytes, np.uint8))
    assert lease.block is not None
    record, _, _ = item("a", [0.0, 0.0])
    writer.add(record, lease.block.view(np.float64), lease=lease)
    assert writer.memory.held == 16
    gate.set()
    writer.end_step(0)
    writer.close()
    following = BundleWriter(tmp_path / "c", Manifest(), queue_bytes=4096)
    assert (writer.memory.held, following.memory.kept) == (0, 4096)
    following.close()


def test_equal_inputs_of_the_case_each_have_a_fingerprint(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest())
    record, array = known("", [1.0], role="input", path="0", parent=None)
    writer.add(record, array, model_input=True)
    writer.add(replace(record, path="1"), None, model_input=True)
    writer.end_step(0)
    writer.close()
    inputs = Manifest.read(tmp_path / "b/manifest.json").inputs["0"]
    assert list(inputs) == ["0", "1"]
    assert inputs["0"] == inputs["1"]


def test_without_tensors_records_keep_digests_and_statistics(tmp_path: Path) -> None:
    kept, left = (
        BundleWriter(tmp_path / "kept", Manifest()),
        BundleWriter(tmp_path / "left", Manifest(), mode=Mode.STATS),
    )
    for writer in (kept, left):
        add(writer, "a", [1.0, 2.0])
        add(writer, "b", [1.0, 2.0])
        writer.end_step(0)
        writer.close()
    with ac.open_bundle(tmp_path / "kept") as one, ac.open_bundle(tmp_path / "left") as other:
        assert list(other.records()) == [replace(record, member=None) for record in one.records()]
        assert np.load(tmp_path / "left/rank0/step0.npz").files == []


# The queue


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While it is not set, nothing gets written."""
    event = threading.Event()
    plain = RecordFile.add

    def slow(self: RecordFile, record: Record, *values: Any) -> Record:
        assert event.wait(3600)
        return plain(self, record, *values)

    monkeypatch.setattr(RecordFile, "add", slow)
    yield event
    event.set()


class Producer(threading.Thread):
    """Adds tensors of 80 bytes; tells when it has to wait, and the most bytes that were ever
    held."""

    def __init__(self, writer: BundleWriter, count: int) -> None:
        super().__init__(daemon=True)
        self.writer, self.count, self.added, self.most = writer, count, 0, 0
        self.waits = threading.Event()
        plain = writer.memory._changed.wait

        def wait(timeout: float | None = None) -> bool:
            self.waits.set()
            return plain(timeout)

        writer.memory._changed.wait = wait  # type: ignore[method-assign]

    def run(self) -> None:
        for number in range(self.count):
            add(self.writer, f"a{number}", np.full(10, float(number)))
            self.added += 1
            self.most = max(self.most, self.writer.memory.held)


def test_no_more_than_the_bound_ever_waits_to_be_written(
    tmp_path: Path, gate: threading.Event
) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest(), queue_bytes=200)
    producer = Producer(writer, 20)
    producer.start()
    assert producer.waits.wait(3600)
    assert producer.added == 2
    gate.set()
    producer.join(3600)
    writer.end_step(0)
    writer.close()
    assert (producer.added, producer.most) == (20, 160)
    assert len(list(ac.open_bundle(tmp_path / "b").records())) == 20


def test_small_records_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the thread that writes is awake, the model's waits for the interpreter."""
    writer = BundleWriter(tmp_path / "b", Manifest())
    woken: list[int] = []
    plain = writer._changed.notify_all
    monkeypatch.setattr(writer._changed, "notify_all", lambda: (woken.append(1), plain()))
    for number in range(20):
        add(writer, f"a{number}", [number])
    writer.end_step(0)
    writer.close()
    assert len(woken) <= 2  # at the step's end and at the capture's
    assert len(list(ac.open_bundle(tmp_path / "b").records())) == 20


def test_a_wake_up_that_finds_nothing_to_write_hides_no_later_one(tmp_path: Path) -> None:
    """The thread may have written all that it is woken for before it is woken."""
    writer = BundleWriter(tmp_path / "b", Manifest())

    def until_it_waits() -> None:
        while not writer._changed._waiters:  # type: ignore[attr-defined]
            pass

    until_it_waits()
    assert writer._wake()
    until_it_waits()
    add(writer, "a", [1.0])
    writer.end_step(0)
    closing = threading.Thread(target=writer.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()


def test_a_large_record_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = threading.Event()
    plain = RecordFile.add
    monkeypatch.setattr(RecordFile, "add", lambda *arguments: (plain(*arguments), written.set())[0])
    writer = BundleWriter(tmp_path / "b", Manifest())
    add(writer, "a", np.zeros(1 << 18))
    assert written.wait(3600)
    writer.end_step(0)
    writer.close()


def test_a_tensor_larger_than_the_bound_waits_alone(tmp_path: Path, gate: threading.Event) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest(), queue_bytes=1)
    producer = Producer(writer, 3)
    producer.start()
    assert producer.waits.wait(3600)
    assert producer.added == 1
    gate.set()
    producer.join(3600)
    writer.end_step(0)
    writer.close()
    assert (producer.added, producer.most) == (3, 80)


def test_a_failure_frees_who_waits(
    tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ArchiveWriter, "add", lambda *_: (_ for _ in ()).throw(no_space()))
    writer = BundleWriter(tmp_path / "b", Manifest(), queue_bytes=100)
    producer = Producer(writer, 10)
    producer.start()
    assert producer.waits.wait(3600)
    gate.set()
    producer.join(3600)
    assert producer.added == 10
    assert writer.memory.held == 0
    with pytest.raises(CaptureError):
        writer.close()


def test_nothing_is_waited_for_when_the_writers_thread_is_gone(
    tmp_path: Path, gate: threading.Event
) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest(), queue_bytes=80)
    writer.memory._alive = lambda: False  # as in a process that was forked
    for number in range(3):
        add(writer, str(number), np.full(10, float(number)))
    gate.set()
    writer.end_step(0)
    with pytest.raises(CaptureError, match="its thread is gone"):
        writer.close()


def test_a_thread_that_ends_by_anything_at_all_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordFile, "add", lambda *_: (_ for _ in ()).throw(SystemExit("gone")))
    writer = BundleWriter(tmp_path / "b", Manifest())
    add(writer, "a", [1.0])
    with pytest.raises(CaptureError, match=r"writing failed \(SystemExit: gone\)"):
        writer.close()


# Failures


def test_a_full_disk_is_told_and_leaves_the_finished_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ArchiveWriter.add

    def fails_later(self: ArchiveWriter, name: str, array: Any) -> None:
        if "second" in name:
            raise no_space()
        plain(self, name, array)

    monkeypatch.setattr(ArchiveWriter, "add", fails_later)
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
    assert (
        str(caught.value)
        == f"{directory}/rank0: cannot be written (No space left on device); 1 finished step(s) in"
        f" {directory} stay readable; free some space, or choose another disk"
    )
    assert files(directory) == ["manifest.json", "rank0/step0.jsonl", "rank0/step0.npz"]
    with ac.open_bundle(directory) as bundle:
        assert not bundle.complete
        assert bundle.manifest.stopped == {"error": str(caught.value)}
        assert bundle.load("first").tolist() == [1.0, 2.0]


def test_a_step_that_no_manifest_lists_is_not_called_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest(complete=True))
    monkeypatch.setattr(Manifest, "write", lambda self, path: (_ for _ in ()).throw(no_space()))
    add(writer, "first", [1.0, 2.0])
    writer.end_step(0)
    with pytest.raises(
        CaptureError, match=r"No space left on device\); 0 finished step\(s\) in .* stay readable"
    ):
        writer.close()
    with ac.open_bundle(tmp_path / "b") as bundle:
        assert bundle.steps() == []


def test_a_file_that_may_grow_no_further_is_a_full_disk(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = BundleWriter(tmp_path / "b", Manifest(complete=True))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        add(writer, "small", np.zeros(10))
        writer.end_step(0)
        add(writer, "large", np.random.default_rng(0).normal(size=1 << 18), step=1)
        writer.end_step(1)
        with pytest.raises(
            CaptureError, match=r"cannot be written \(File too large\); 1 finished step\(s\)"
        ):
            writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files(tmp_path / "b") == ["manifest.json", "rank0/step0.jsonl", "rank0/step0.npz"]


def test_a_manifest_that_cannot_be_written_at_the_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest())
    monkeypatch.setattr(Manifest, "write", lambda *_: (_ for _ in ()).throw(no_space()))
    with pytest.raises(CaptureError, match="No space left on device"):
        writer.close()


def test_a_step_that_cannot_be_renamed_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest())
    monkeypatch.setattr(RecordFile, "finish", lambda *_: (_ for _ in ()).throw(no_space()))
    add(writer, "a", [1.0])
    writer.end_step(0)
    with pytest.raises(CaptureError, match="No space left on device"):
        writer.close()
    assert files(tmp_path / "b") == ["manifest.json"]


def test_files_that_cannot_be_opened_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ArchiveWriter, "__init__", lambda *_: (_ for _ in ()).throw(no_space()))
    writer = BundleWriter(tmp_path / "b", Manifest())
    add(writer, "a", [1.0])
    with pytest.raises(CaptureError, match="No space left on device"):
        writer.close()
    assert files(tmp_path / "b") == ["manifest.json"]


def test_a_bug_in_the_writer_reaches_the_capture_as_an_error(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest())
    record, array, _ = item("a", [1.0])
    writer.add(
        Record(
            **{
                **{name: getattr(record, name) for name in Record.__struct_fields__},
                "dtype": "float31",
            }
        ),
        array,
    )
    with pytest.raises(CaptureError, match=r"b: writing failed \(KeyError: 'float31'\)"):
        writer.close()
    assert files(tmp_path / "b") == ["manifest.json"]


def test_a_killed_capture_leaves_its_finished_steps_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = threading.Event()
    plain = RecordFile.add

    def add_and_tell(self: RecordFile, record: Record, *values: Any) -> Record:
        written = plain(self, record, *values)
        if record.step == 1:
            inside.set()
        return written

    monkeypatch.setattr(RecordFile, "add", add_and_tell)
    writer = BundleWriter(tmp_path / "b", Manifest())
    add(writer, "a", [1.0])
    writer.end_step(0)
    add(writer, "a", [2.0], step=1)
    assert inside.wait(3600)
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
