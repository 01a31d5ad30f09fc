"""Writing a bundle: a bounded queue of tensors in, one ``.npz`` and one ``.jsonl`` a step out, on a background thread."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import zipfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import xxhash

from accucompare.bundle.archive import member_name, write_member
from accucompare.bundle.digests import digest, fingerprint
from accucompare.bundle.dtypes import DTYPES, Array
from accucompare.bundle.manifest import Manifest, StepEntry
from accucompare.bundle.records import Record
from accucompare.bundle.statistics import summarize
from accucompare.errors import CaptureError

#: How many bytes of tensors may wait to be written, by default: 1 GiB.
QUEUE_BYTES = 1 << 30
#: Where in its directory a bundle waits that is being overwritten.
PREVIOUS = ".previous"


class RecordFile:
    """A ``.npz`` and its ``.jsonl``, written under temporary names and renamed whole.

    A record whose bytes, shape and storage type equal an earlier one's names that one's member.
    """

    def __init__(self, stem: Path) -> None:
        self._npz = stem.with_name(stem.name + ".npz")
        self._jsonl = stem.with_name(stem.name + ".jsonl")
        self._parts = [path.with_name(path.name + ".part") for path in (self._npz, self._jsonl)]
        stem.parent.mkdir(parents=True, exist_ok=True)
        self._lines: IO[bytes] = self._parts[1].open("wb")
        try:
            self._archive = zipfile.ZipFile(self._parts[0], "w", zipfile.ZIP_STORED)
        except OSError:
            self._lines.close()
            self._parts[1].unlink()
            raise
        self._hasher = xxhash.xxh3_128()
        self._members: dict[tuple[str, tuple[int, ...], str], Record] = {}
        self.records = 0

    def add(self, record: Record, array: Array | None) -> None:
        """Write one record; ``array`` is C-contiguous, of the storage type of the record's dtype."""
        if array is not None:
            fingerprint_key = (array.dtype.str, array.shape, digest(array))
            twin = self._members.get(fingerprint_key)
            if twin is None:
                name = member_name(len(self._members), record.name, record.role.value, record.path)
                write_member(self._archive, name, array)
                record = replace(record, member=name, digest=fingerprint_key[2], statistics=summarize(array, DTYPES[record.dtype]))
                self._members[fingerprint_key] = record
            else:
                same_type = twin.dtype == record.dtype
                statistics = twin.statistics if same_type else summarize(array, DTYPES[record.dtype])
                record = replace(record, member=twin.member, digest=twin.digest, statistics=statistics)
        line = json.dumps(record.to_json(), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        self._hasher.update(line)
        self._lines.write(line)
        self.records += 1

    def finish(self) -> str:
        """Close both files, give them their names, and return the digest of the ``.jsonl``."""
        self._archive.close()
        self._lines.close()
        for part, final in zip(self._parts, (self._npz, self._jsonl), strict=True):
            os.replace(part, final)
        return self._hasher.hexdigest()

    def discard(self) -> None:
        """Remove what was written; never raises."""
        file, self._archive.fp = self._archive.fp, None  # or the archive would try to end itself when it is forgotten
        for stream in (file, self._lines):
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    stream.close()
        for part in self._parts:
            with contextlib.suppress(OSError):
                part.unlink()


@dataclass(frozen=True)
class _Tensor:
    record: Record
    array: Array | None
    case_input: bool

    @property
    def nbytes(self) -> int:
        return 0 if self.array is None else self.array.nbytes


@dataclass(frozen=True)
class _EndStep:
    step: int
    partial: bool


class BundleWriter:
    """Takes records from a capture and writes them in the background.

    ``add`` and ``end_step`` return at once while fewer than ``queue_bytes`` of tensors wait, and otherwise block until the disk
    has caught up. After a failure (a full disk) they do nothing, and ``failure`` says what happened.
    """

    def __init__(self, directory: Path, manifest: Manifest, rank: int = 0, queue_bytes: int = QUEUE_BYTES) -> None:
        self.directory = directory
        self.manifest = manifest
        self.failure: CaptureError | None = None
        self._rank = rank
        self._folder = directory / f"rank{rank}"
        self._manifest_path = (self._folder if rank else directory) / "manifest.json"
        self._limit = queue_bytes
        self._held = 0
        self._queue: deque[_Tensor | _EndStep | None] = deque()
        self._changed = threading.Condition()
        self._file: RecordFile | None = None
        self._folder.mkdir(parents=True, exist_ok=True)
        manifest.write(self._manifest_path)
        self._thread = threading.Thread(target=self._run, name="accucompare-writer", daemon=True)
        self._thread.start()

    def add(self, record: Record, array: Array | None, case_input: bool = False) -> None:
        """Queue one record of the current step; ``array`` must not change any more.

        ``case_input`` marks an input of the root module: its fingerprint goes into the manifest.
        """
        item = _Tensor(record, array, case_input)
        with self._changed:
            self._wait_for_room(item.nbytes)
            if self.failure is None:
                self._held += item.nbytes
                self._queue.append(item)
                self._changed.notify_all()

    def wait_for_room(self, nbytes: int) -> None:
        """Block until a tensor of this size may be copied without exceeding the bound, or the queue is empty, or it has failed."""
        with self._changed:
            self._wait_for_room(nbytes)

    def _wait_for_room(self, nbytes: int) -> None:
        self._changed.wait_for(lambda: self.failure or not self._held or self._held + nbytes <= self._limit)

    def end_step(self, step: int, partial: bool = False) -> None:
        """Queue the end of a step: what was added since the last end is renamed whole to ``step<step>``."""
        with self._changed:
            self._queue.append(_EndStep(step, partial))
            self._changed.notify_all()

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
            self._changed.notify_all()
        while self._thread.is_alive():  # bounded waits, so that Ctrl-C gets through on every platform
            self._thread.join(timeout=0.2)
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
                nbytes = item.nbytes
                del item  # its memory is free before there is room for the next
                with self._changed:
                    self._held -= nbytes
                    self._changed.notify_all()
        except OSError as error:
            self._fail(self._cannot_write(error))
        except Exception as error:  # a bug here must reach the user as an error of the capture, not vanish with the thread
            self._fail(CaptureError(f"{self.directory}: writing failed ({type(error).__name__}: {error})"))

    def _write(self, item: _Tensor) -> None:
        if self._file is None:
            self._file = RecordFile(self._folder / f"step{item.record.step}")
        self._file.add(item.record, item.array)
        if item.case_input and item.array is not None:
            self._note_input(item.record, item.array)

    def _take(self) -> _Tensor | _EndStep | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue)
            return self._queue.popleft()

    def _finish_step(self, end: _EndStep) -> None:
        file = self._file or RecordFile(self._folder / f"step{end.step}")
        self._file = None
        try:
            checksum = file.finish()
        except Exception:
            file.discard()
            raise
        self.manifest.steps.append(StepEntry(end.step, file.records, checksum, end.partial))
        self.manifest.write(self._manifest_path)

    def _note_input(self, record: Record, array: Array) -> None:
        inputs = self.manifest.inputs.setdefault(str(record.step), {})
        place = ".".join(part for part in (record.name, record.path) if part)
        inputs[place] = {
            "dtype": record.dtype,
            "shape": list(record.shape),
            "digests": fingerprint(array, DTYPES[record.dtype]),
        }

    def _fail(self, failure: CaptureError) -> None:
        if self._file is not None:
            self._file.discard()
            self._file = None
        with self._changed:
            self.failure = failure
            self._queue.clear()
            self._held = 0
            self._changed.notify_all()

    def _cannot_write(self, error: OSError) -> CaptureError:
        return CaptureError(
            f"{error.filename or self._folder}: cannot be written ({error.strerror or error}); "
            f"{len(self.manifest.steps)} finished step(s) in {self.directory} stay readable"
        )


def prepare_directory(directory: Path, overwrite: bool) -> None:
    """Make the directory that a capture writes into; with ``overwrite``, move an earlier bundle aside, into ``.previous``.

    It stays there until ``forget_previous``, so that a capture that fails has destroyed nothing.

    Raises:
        CaptureError: if something is there that may not be overwritten, or it cannot be made.
    """
    try:
        if directory.exists() and not directory.is_dir():
            raise CaptureError(f"{directory}: exists and is not a directory; choose another --out")
        if directory.is_dir() and any(directory.iterdir()):
            if not (directory / "manifest.json").is_file():
                raise CaptureError(f"{directory}: is not empty and holds no bundle, so it is not touched; choose another --out")
            if not overwrite:
                raise CaptureError(
                    f"{directory}: already holds a bundle; overwrite it (--overwrite, overwrite=True) or choose another --out"
                )
            _move_aside(directory)
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CaptureError(f"{error.filename or directory}: cannot be written ({error.strerror or error})") from None


def forget_previous(directory: Path) -> None:
    """Remove the bundle that a finished capture has replaced."""
    shutil.rmtree(directory / PREVIOUS, ignore_errors=True)


def _move_aside(directory: Path) -> None:
    previous = directory / PREVIOUS
    keep = not previous.exists()  # else what is in the way was left by a capture that failed to replace it
    for path in [directory / "manifest.json", *directory.glob("rank*")]:
        if keep:
            previous.mkdir(exist_ok=True)
            path.rename(previous / path.name)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
