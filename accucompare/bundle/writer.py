"""Writing a bundle: a bounded queue of tensors in, one ``.npz`` and one ``.jsonl`` a step out, on a background thread."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

import xxhash
from msgspec.structs import replace

from accucompare.bundle.archive import ArchiveWriter, member_name
from accucompare.bundle.manifest import BASELINES, PREVIOUS, Manifest, StepEntry, holds_bundle
from accucompare.bundle.memory import Allocate, HostMemory, Lease
from accucompare.bundle.records import Record
from accucompare.errors import CaptureError
from accucompare.numbers.digests import digest, fingerprint
from accucompare.numbers.dtypes import DTYPES, Array
from accucompare.numbers.statistics import Statistics, summarize
from accucompare.text import storable

#: How many bytes of tensors may wait to be written, by default: 1 GiB.
QUEUE_BYTES = 1 << 30
#: How many records, or bytes of tensors, wake the thread that writes: each time, it and the model wait for one interpreter.
_BATCH_RECORDS, _BATCH_BYTES = 1024, 1 << 20
#: What makes two records' data and statistics equal: dtype, shape, digest.
Content = tuple[str, tuple[int, ...], str | None]
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _line(record: Record) -> bytes:
    content = record.to_json()
    try:
        return _JSON.encode(content).encode() + b"\n"
    except UnicodeEncodeError:
        content = {name: storable(value) if isinstance(value, str) else value for name, value in content.items()}
        return _JSON.encode(content).encode() + b"\n"


class RecordFile:
    """A ``.npz`` and its ``.jsonl``, written under temporary names and renamed whole.

    A record whose bytes, shape and storage type equal an earlier one's names that one's member. Without ``tensors``, records keep
    digests and statistics only, and the ``.npz`` stays empty.
    """

    def __init__(self, stem: Path, tensors: bool = True) -> None:
        self._npz = stem.with_name(stem.name + ".npz")
        self._jsonl = stem.with_name(stem.name + ".jsonl")
        self._parts = [path.with_name(path.name + ".part") for path in (self._npz, self._jsonl)]
        stem.parent.mkdir(parents=True, exist_ok=True)
        self._lines: IO[bytes] = self._parts[1].open("wb")
        try:
            self._archive = ArchiveWriter(self._parts[0])
        except OSError:
            self._lines.close()
            self._parts[1].unlink()
            raise
        self._hasher = xxhash.xxh3_128()
        self._tensors = tensors
        self._members: dict[tuple[str, tuple[int, ...], str | None], str] = {}  # by storage type, shape and digest
        self._known: dict[Content, tuple[str | None, Statistics]] = {}
        self.records = 0

    def add(self, record: Record, array: Array | None) -> Record:
        """Write one record.

        Args:
            record: with the digest and the statistics of the array, if they are known already.
            array: C-contiguous, of the storage type of the record's dtype; ``None`` for a record without data, for one whose
                digest is that of an earlier record of the same dtype and shape, and for one whose statistics are all that is kept.

        Returns:
            The record as it was written, with its member, digest and statistics.
        """
        if array is not None and record.digest is None:
            record = replace(record, digest=digest(array))
        content = (record.dtype, record.shape, record.digest)
        if record.statistics is not None:
            self._known.setdefault(content, (None, record.statistics))
        if array is not None and content not in self._known:
            self._known[content] = self._store(record, array)
        if content in self._known:
            member, statistics = self._known[content]
            record = replace(record, member=member, statistics=statistics)
        line = _line(record)
        self._hasher.update(line)
        self._lines.write(line)
        self.records += 1
        return record

    def _store(self, record: Record, array: Array) -> tuple[str | None, Statistics]:
        """Write an array, unless one of another dtype has the same bits; its statistics are its own all the same."""
        statistics = summarize(array, DTYPES[record.dtype])
        if not self._tensors:
            return None, statistics
        bits = (array.dtype.str, array.shape, record.digest)
        if bits not in self._members:
            self._members[bits] = member_name(len(self._members), record.name, record.role.value, record.path)
            self._archive.add(self._members[bits], array)
        return self._members[bits], statistics

    def finish(self) -> str:
        """Close both files, give them their names, and return the digest of the ``.jsonl``."""
        self._archive.finish()
        self._lines.close()
        for part, final in zip(self._parts, (self._npz, self._jsonl), strict=True):
            os.replace(part, final)
        return self._hasher.hexdigest()

    def discard(self) -> None:
        """Remove what was written; never raises."""
        self._archive.discard()
        with contextlib.suppress(OSError):
            self._lines.close()
        with contextlib.suppress(OSError):
            self._parts[1].unlink()


class _Tensor(NamedTuple):
    record: Record
    array: Array | None
    case_input: bool
    lease: Lease | None
    ready: Callable[[], None] | None


class _EndStep(NamedTuple):
    step: int
    partial: bool


class BundleWriter:
    """Takes records from a capture and writes them in the background.

    ``take`` and ``add`` return at once while fewer than ``queue_bytes`` of tensors wait, and otherwise block until the disk has
    caught up. After a failure (a full disk) nothing is queued any more, and ``failure`` says what happened.
    """

    def __init__(self, directory: Path, manifest: Manifest, rank: int = 0, queue_bytes: int = QUEUE_BYTES, tensors: bool = True) -> None:
        """Without ``tensors``, records keep digests and statistics only; a saved state keeps its tensors."""
        self.directory = directory
        self.manifest = manifest
        self.failure: CaptureError | None = None
        self._rank = rank
        self._folder = directory / f"rank{rank}"
        self._manifest_path = (self._folder if rank else directory) / "manifest.json"
        self.tensors = tensors
        self._queue: deque[_Tensor | _EndStep | None] = deque()
        self._changed = threading.Condition()
        self._due = False  # whether what is queued is to be written now
        self._queued_bytes = 0  # since it was due last
        self._file: RecordFile | None = None
        self._announced: set[Content] = set()  # what the queue and the file of the current step hold, by the digests it came with
        self._fingerprints: dict[Content, dict[str, str]] = {}
        self._folder.mkdir(parents=True, exist_ok=True)
        manifest.write(self._manifest_path)
        self._thread = threading.Thread(target=self._run, name="accucompare-writer", daemon=True)
        self.memory = HostMemory(queue_bytes, self._wake)
        self._thread.start()

    def take(self, nbytes: int, allocate: Allocate) -> Lease:
        """Host memory for a tensor that will be added; blocks while there is no room for it."""
        return self.memory.take(nbytes, allocate)

    def has(self, dtype: str, shape: tuple[int, ...], checksum: str) -> bool:
        """Whether the current step holds a tensor like this, so that a record with its digest needs no array."""
        return (dtype, shape, checksum) in self._announced

    def add(
        self,
        record: Record,
        array: Array | None,
        case_input: bool = False,
        lease: Lease | None = None,
        ready: Callable[[], None] | None = None,
    ) -> None:
        """Queue one record of the current step.

        Args:
            record: with its array's digest, if that is known already.
            array: must not change any more; ``None`` for a record without data, and for one whose digest this step ``has``.
            case_input: whether it is an input of the root module: its fingerprint goes into the manifest.
            lease: the memory that the array is in, if it was taken from here; else this blocks until there is room for it.
            ready: to be called before the array is read: waits until a device has filled it in.
        """
        if array is not None and lease is None:
            lease = self.memory.take(array.nbytes)
        with self._changed:
            if self.memory.closed:
                self.failure = self.failure or self._without_thread()
            if self.failure is not None:
                return
            if record.digest is not None and (array is not None or record.statistics is not None):
                self._announced.add((record.dtype, record.shape, record.digest))
            self._queue.append(_Tensor(record, array, case_input, lease, ready))
            self._queued_bytes += 0 if array is None else array.nbytes
            if self._queued_bytes >= _BATCH_BYTES or len(self._queue) >= _BATCH_RECORDS:
                self._write_now()

    def end_step(self, step: int, partial: bool = False) -> None:
        """Queue the end of a step: what was added since the last end is renamed whole to ``step<step>``."""
        with self._changed:
            self._announced.clear()
            self._queue.append(_EndStep(step, partial))
            self._write_now()

    def write_state(self, records: list[tuple[Record, Callable[[], Array]]]) -> None:
        """Write the state that ``--like`` starts from, in the calling thread, one tensor in memory at a time.

        Raises:
            CaptureError: if it cannot be written.
        """
        try:
            file = RecordFile(self._folder / "state")
            try:
                for record, array in records:
                    file.add(record, array())
                self.manifest.state = {"records": file.records, "digest": file.finish()}
            except BaseException:
                file.discard()
                raise
        except OSError as error:
            raise self._cannot_write(error) from None

    def close(self) -> None:
        """Wait until everything is on disk and write the manifest.

        Raises:
            CaptureError: if anything could not be written.
        """
        with self._changed:
            self._queue.append(None)
            self._write_now()
        while self._thread.is_alive():  # bounded waits, so that Ctrl-C gets through on every platform
            self._thread.join(timeout=0.2)
        self.memory.leave()
        if self._queue:
            self.failure = self.failure or self._without_thread()
        if self.failure is not None:
            self.manifest.complete = False
            self.manifest.stopped = self.manifest.stopped or {"error": str(self.failure)}
        try:
            self.manifest.write(self._manifest_path)
        except OSError as error:
            self.failure = self.failure or self._cannot_write(error)
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while (item := self._take()) is not None:
                if isinstance(item, _EndStep):
                    self._finish_step(item)
                    continue
                self._write(item)
                lease = item.lease
                del item  # its memory is free before there is room for the next
                if lease is not None:
                    lease.release()
        except OSError as error:
            self._fail(self._cannot_write(error))
        except BaseException as error:  # a bug here must reach the user as an error of the capture, not vanish with the thread
            self._fail(CaptureError(f"{self.directory}: writing failed ({type(error).__name__}: {error})"))

    def _write(self, item: _Tensor) -> None:
        if self._file is None:
            self._file = RecordFile(self._folder / f"step{item.record.step}", self.tensors)
        if item.ready is not None:
            item.ready()
        record = self._file.add(item.record, item.array)
        if item.case_input:
            self._note_input(record, item.array)

    def _take(self) -> _Tensor | _EndStep | None:
        with self._changed:
            self._due = self._due and bool(self._queue)
            self._changed.wait_for(lambda: self._due and self._queue)
            return self._queue.popleft()

    def _write_now(self) -> None:
        """Wake the thread that writes, from within the lock."""
        self._queued_bytes = 0
        if not self._due:
            self._due = True
            self._changed.notify_all()

    def _wake(self) -> bool:
        """Let what is queued be written, for somebody waits for its memory; whether there is a thread that does."""
        with self._changed:
            self._write_now()
        return self._thread.is_alive()

    def _finish_step(self, end: _EndStep) -> None:
        file = self._file or RecordFile(self._folder / f"step{end.step}", self.tensors)
        self._file = None
        self._fingerprints.clear()
        try:
            checksum = file.finish()
        except Exception:
            file.discard()
            raise
        self.manifest.steps.append(StepEntry(end.step, file.records, checksum, end.partial))
        self.manifest.write(self._manifest_path)

    def _note_input(self, record: Record, array: Array | None) -> None:
        content = (record.dtype, record.shape, record.digest)
        if array is not None and content not in self._fingerprints:
            self._fingerprints[content] = fingerprint(array, DTYPES[record.dtype])
        if content in self._fingerprints:
            place = ".".join(part for part in (record.name, record.path) if part)
            self.manifest.inputs.setdefault(str(record.step), {})[place] = {
                "dtype": record.dtype,
                "shape": list(record.shape),
                "digests": self._fingerprints[content],
            }

    def _fail(self, failure: CaptureError) -> None:
        if self._file is not None:
            self._file.discard()
            self._file = None
        with self._changed:
            self.failure = failure
            self._queue.clear()
            self._changed.notify_all()
        self.memory.close()

    def _without_thread(self) -> CaptureError:
        return CaptureError(f"{self.directory}: writing ended early, for its thread is gone; was the process forked?")

    def _cannot_write(self, error: OSError) -> CaptureError:
        return CaptureError(
            f"{error.filename or self._folder}: cannot be written ({error.strerror or error}); "
            f"{len(self.manifest.steps)} finished step(s) in {self.directory} stay readable"
        )


def refuse_directory(directory: Path, overwrite: bool) -> None:
    """Say why a capture may not write into a directory; changes nothing.

    Raises:
        CaptureError: if something is there that may not be overwritten.
    """
    if directory.exists() and not directory.is_dir():
        raise CaptureError(f"{directory}: exists and is not a directory; choose another --out")
    if not directory.is_dir() or _hardly_begun(directory) or _left_behind(directory):
        return
    if not (directory / "manifest.json").is_file():
        raise CaptureError(f"{directory}: is not empty and holds no bundle, so it is not touched; choose another --out")
    if not holds_bundle(directory):
        raise CaptureError(
            f"{directory}: its manifest.json is no bundle's, or damaged, so nothing there is touched; choose another --out or remove it"
        )
    if not overwrite:
        raise CaptureError(f"{directory}: already holds a bundle; overwrite it (--overwrite, overwrite=True) or choose another --out")


def prepare_directory(directory: Path, overwrite: bool) -> None:
    """Make the directory that a capture writes into; with ``overwrite``, move an earlier bundle aside, into ``.previous``.

    It stays there until ``forget_previous``, so that a capture that fails has destroyed nothing. One that was moved there by a capture
    that never began is put back first.

    Raises:
        CaptureError: if something is there that may not be overwritten, or it cannot be made.
    """
    try:
        restore_previous(directory)
        refuse_directory(directory, overwrite)
        if holds_bundle(directory):
            _move_aside(directory)
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CaptureError(f"{error.filename or directory}: cannot be written ({error.strerror or error})") from None


def forget_previous(directory: Path) -> None:
    """Remove the bundle that a finished capture has replaced; never raises."""
    with contextlib.suppress(OSError):
        for path in _own_files(directory / PREVIOUS):
            path.unlink()
            _remove_empty(path.parent, directory)


def restore_previous(directory: Path) -> None:
    """Put back the bundle that was moved aside, if none has begun in its place.

    Raises:
        OSError: if that cannot be done.
    """
    if _left_behind(directory):
        for path in reversed(_own_files(directory / PREVIOUS)):  # the manifest comes last: until then it can be done again
            _move(path, directory / path.relative_to(directory / PREVIOUS), directory)


def _left_behind(directory: Path) -> bool:
    """Whether a capture was stopped after it had moved a bundle aside, and before it began its own."""
    return not (directory / "manifest.json").exists() and holds_bundle(directory / PREVIOUS)


def _hardly_begun(directory: Path) -> bool:
    """Whether nothing is in a directory but what a capture leaves that was stopped before it had a manifest."""
    return all(
        path.name == "manifest.json.part" or (re.fullmatch(r"rank\d+", path.name) and path.is_dir() and not any(path.iterdir()))
        for path in directory.iterdir()
    )


def _move_aside(directory: Path) -> None:
    previous = directory / PREVIOUS
    keep = not holds_bundle(previous)  # else what is in the way was left by a capture that failed to replace it
    for path in _own_files(directory):
        if keep:
            _move(path, previous / path.relative_to(directory), directory)
        else:
            path.unlink()
            _remove_empty(path.parent, directory)


def _move(path: Path, target: Path, directory: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(path, target)
    _remove_empty(path.parent, directory)


def _remove_empty(folder: Path, directory: Path) -> None:
    """Remove a folder of a bundle, and those that it is in, as far as nothing is left in them."""
    with contextlib.suppress(OSError):
        while folder != directory:
            folder.rmdir()
            folder = folder.parent


#: The files that a capture writes into its directory and into those of ranks; nothing else is ever moved or removed.
_MANIFEST = re.compile(r"manifest\.json(\.part)?")
_OF_RANK = re.compile(rf"(step\d+|state)\.(npz|jsonl)(\.part)?|{_MANIFEST.pattern}")


def _own_files(directory: Path) -> list[Path]:
    """The files of the bundle in a directory, and of its ``repeat1``, …; the manifest first."""
    if not directory.is_dir():
        return []
    files, folders = [], []
    for path in sorted(directory.iterdir()):
        if path.is_symlink() or not path.is_dir():
            files += [path] if _MANIFEST.fullmatch(path.name) else []
        elif re.fullmatch(r"rank\d+", path.name):
            folders += [each for each in sorted(path.iterdir()) if _OF_RANK.fullmatch(each.name)]
        elif re.fullmatch(r"repeat\d+", path.name) and holds_bundle(path):
            folders += _own_files(path)
        elif path.name == BASELINES:
            folders += [file for each in sorted(path.iterdir()) if holds_bundle(each) for file in _own_files(each)]
    return files + folders
