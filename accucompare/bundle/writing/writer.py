"""Writing a bundle in the background: a bounded queue of records in, two files per step out."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import msgspec

from accucompare.bundle.format import Manifest, Record, StepEntry, StepSeries
from accucompare.bundle.writing.memory import Allocate, HostMemory, Lease
from accucompare.bundle.writing.record_file import Content, RecordFile, Sketched
from accucompare.errors import CaptureError
from accucompare.numbers import DTYPES, Array, fingerprint
from accucompare.places import Place, Url
from accucompare.selection import SKETCH_SIZE, Mode
from accucompare.storage_errors import FULL, cure_of

if TYPE_CHECKING:
    from accucompare.bundle.writing.uploads import Uploads

_LOGGER = logging.getLogger(__name__)
#: Bytes of tensors that may wait to be written, by default: 1 GiB.
QUEUE_BYTES = 1 << 30
#: Wake the writer only after this many records or bytes: each wake-up competes with the model for
#: the GIL.
_BATCH_RECORDS, _BATCH_BYTES = 1024, 1 << 20
# bytes; counting each small array takes longer than copying it
_COUNTED_TOGETHER = 64 << 10
#: Seconds between two manifests while steps write no other file.
_BETWEEN_MANIFESTS = 1.0


class _Tensor(msgspec.Struct, gc=False):  # else the cyclic GC runs more often
    record: Record
    array: Array | None
    model_input: bool
    lease: Lease | None
    ready: Callable[[], None] | None
    written: Callable[[Record], None] | None
    sketched: Callable[[], Sketched] | None


class _EndStep(NamedTuple):
    step: int
    partial: bool
    series: Callable[[], StepSeries] | None
    holds_records: bool
    manifest: Manifest  # as it was when the step ended


class BundleWriter:
    """Takes records from a capture and writes them in the background.

    ``take`` and ``add`` return at once while fewer than ``queue_bytes`` of tensors wait, and
    otherwise block until the disk has caught up. After a failure (a full disk) nothing is queued,
    and ``failure`` says what happened.

    A manifest is published after each step, marked incomplete; only ``close`` may publish a
    complete one, after the last file. As a context manager it closes at the end; an error that
    leaves the context becomes the reason why the bundle is incomplete."""

    def __init__(
        self,
        directory: Place,
        manifest: Manifest,
        rank: int = 0,
        queue_bytes: int = QUEUE_BYTES,
        mode: Mode = Mode.TENSORS,
        sketch_size: int = SKETCH_SIZE,
    ) -> None:
        """The mode says what is kept of a record; a saved state keeps its tensors. Raises
        CaptureError if the directory, or the URL, cannot be written to."""
        self.directory = directory
        # what the capture says of itself; only the capturing thread changes it
        self.manifest = manifest
        self.published = manifest  # the manifest that was written last; never changed
        # why nothing is written any more; ``None`` while all is well
        self.failure: CaptureError | None = None
        self._rank = rank
        name = f"rank{rank}/manifest.json" if rank else "manifest.json"
        self._uploads: Uploads | None = None
        local = directory
        if isinstance(directory, Url):
            from accucompare.bundle.writing.uploads import Uploads  # slow to import

            self._uploads = Uploads(directory, name)
            local = self._uploads.folder
        assert isinstance(local, Path)
        self._folder = local / f"rank{rank}"
        self._manifest_path = local / name
        self.mode = mode
        self._sketch_size = sketch_size
        self._process = os.getpid()
        self._closed = False
        self._queue: deque[_Tensor | _EndStep | None] = deque()
        # what the writing thread adds to the manifest
        self._steps = [*manifest.steps]
        self._series = [*manifest.series]
        self._inputs = {**manifest.inputs}
        self._manifest_due = 0.0  # when it may be written without another file
        self._changed = threading.Condition()
        self._publishing = threading.Lock()
        self._stopped: dict[str, Any] | None = None  # set when nobody waits for the thread any more
        self._due = False  # whether what is queued is to be written now
        self._queued_bytes = 0  # since the last wake-up
        self._file: RecordFile | None = None
        # what the queue and the current step's file hold, by the digests given
        self._announced: set[Content] = set()
        self._fingerprints: dict[Content, dict[str, str]] = {}
        if self._uploads is not None:
            manifest.environment["upload"] = uuid4().hex  # makes this capture's manifest unique
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._publish(self._with_steps(manifest.copy()))
        except OSError as error:
            raise self._cannot_write(error) from None
        if self._uploads is not None:
            self._uploads.begin()
        self._thread = threading.Thread(target=self._run, name="accucompare-writer", daemon=True)
        self.memory = HostMemory(queue_bytes, self._wake)
        self._counted_together = min(_COUNTED_TOGETHER, queue_bytes // 8)
        self._uncounted = 0  # bytes of small arrays
        self._thread.start()

    @property
    def wants_values(self) -> bool:
        """Whether it needs values; else a digest is enough, and statistics if it wants them."""
        return self.mode in (Mode.TENSORS, Mode.SKETCH)

    @property
    def wants_statistics(self) -> bool:
        return self.mode is not Mode.DIGEST

    @property
    def sketch_size(self) -> int | None:
        """How many numbers a tensor's sketch has; ``None`` if it keeps none."""
        return self._sketch_size if self.mode is Mode.SKETCH else None

    def take(self, nbytes: int, allocate: Allocate) -> Lease:
        """Host memory for a tensor to add; blocks while there is no room for it."""
        return self.memory.take(nbytes, allocate)

    def lend(self, nbytes: int, allocate: Allocate) -> Array:
        """Host memory for what is kept until nobody refers to the returned array any more."""
        return self.memory.lend(nbytes, allocate)

    def has(self, dtype: str, shape: tuple[int, ...], checksum: str) -> bool:
        """Whether the current step holds such a tensor: then its digest is enough."""
        return (dtype, shape, checksum) in self._announced

    def add(
        self,
        record: Record,
        array: Array | None,
        model_input: bool = False,
        lease: Lease | None = None,
        ready: Callable[[], None] | None = None,
        written: Callable[[Record], None] | None = None,
        sketched: Callable[[], Sketched] | None = None,
    ) -> None:
        """Queue one record of the current step.

        Args:
            record: with its array's digest, if that is known already.
            array: must not change any more; ``None`` for a record without data, and for one whose
                digest this step ``has``.
            model_input: whether the model is called with it: its fingerprint goes into the
                manifest.
            lease: the array's memory, if it was taken from here, or LENT; else this blocks until
                there is room.
            ready: called before the array is read: waits until a device has filled it.
            written: called by the writing thread with the written record, its digest and
                statistics.
            sketched: in place of an array, gives what a device has made of it; called after
                ``ready``, and before the memory is released.
        """
        nbytes = 0 if array is None else array.nbytes
        if array is not None and lease is None:
            self._uncounted += nbytes
            if self._uncounted >= self._counted_together:
                lease = self.memory.take(self._uncounted)
                self._uncounted = 0
        if self.memory.closed:
            self.failure = self.failure or self._without_thread()
        if self.failure is not None:
            return
        # a sketch is of one place in the whole, so equal bits of another part need one of their own
        announces = (record.shard is None or self.mode is not Mode.SKETCH) and (
            array is not None or record.statistics is not None
        )
        if record.digest is not None and announces:
            self._announced.add((record.dtype, record.shape, record.digest))
        # A deque needs no lock, and the writing thread looks only after it was woken
        self._queue.append(_Tensor(record, array, model_input, lease, ready, written, sketched))
        self._queued_bytes += nbytes
        if self._queued_bytes >= _BATCH_BYTES or len(self._queue) >= _BATCH_RECORDS:
            with self._changed:
                self._write_now()

    def end_step(
        self,
        step: int,
        partial: bool = False,
        series: Callable[[], StepSeries] | None = None,
        holds_records: bool = True,
    ) -> None:
        """Queue the end of a step: what was added since the last end becomes ``step<step>``.

        Args:
            partial: whether the capture was stopped inside it.
            series: gives the step's entry in the series; the writing thread calls it after all
                records.
            holds_records: False writes no file: the step is in the series only.
        """
        with self._changed:
            self._announced.clear()
            self._queue.append(_EndStep(step, partial, series, holds_records, self.manifest.copy()))
            self._write_now()

    def write_state(self, records: list[tuple[Record, Callable[[], Array]]]) -> None:
        """Write the state that ``--like`` starts from, in the calling thread, one tensor in memory
        at a time. Raises CaptureError if it cannot be written."""
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
        if self._uploads is not None:
            self._uploads.put(*self._files("state"))

    def close(self, stopped: dict[str, Any] | None = None, hurry: bool = False) -> None:
        """Wait until everything is written, then write the final manifest. Closing again does
        nothing. Raises CaptureError if anything could not be written.

        Args:
            stopped: where and why the capture ended early: ``{"step", "module", "error"}``;
                ``None`` if it ran to its end, which takes every step that it set out to record.
            hurry: do not wait for uploads, since the user wants to go; the rest stays here.
        """
        if os.getpid() != self._process:  # a forked process does not own the bundle
            raise self._without_thread()
        if self._closed:
            return
        self._closed = True
        with self._changed:
            self._queue.append(None)
            self._write_now()
        try:
            # bounded waits, so that Ctrl-C gets through on every platform
            while self._thread.is_alive():
                self._thread.join(timeout=0.2)
        except KeyboardInterrupt:  # the thread may still be writing a step
            self._stopped = stopped or {"error": "interrupted while the last steps were written"}
            with contextlib.suppress(OSError):
                self._publish(self._with_steps(self.manifest.copy()))
            raise
        self.memory.leave()
        if self._file is not None:  # of a step that did not end
            self._file.discard()
        if self._queue:
            self.failure = self.failure or self._without_thread()
        last = self._with_steps(self.manifest.copy())
        reason = last.lacking if self.failure is None else str(self.failure)
        stopped = stopped or ({"error": reason} if reason else None)
        try:
            self._publish(replace(last, complete=stopped is None, stopped=stopped))
        except OSError as error:
            self.failure = self.failure or self._cannot_write(error)
        if self._uploads is not None:
            self._finish_uploads(self._uploads, hurry)
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(CaptureError):  # the error that ended the context matters more
            self.close({"error": f"{type(error).__name__}: {error}"})

    def _with_steps(self, manifest: Manifest) -> Manifest:
        """The capture's manifest with the steps written so far; incomplete."""
        steps, series, inputs = [*self._steps], [*self._series], {**self._inputs}
        return replace(
            manifest,
            steps=steps,
            series=series,
            inputs=inputs,
            complete=False,
            stopped=self._stopped,
        )

    def _publish(self, manifest: Manifest) -> None:
        """Replace the last manifest, whole. Raises OSError."""
        with self._publishing:
            manifest.write(self._manifest_path)
            self.published = manifest

    def _finish_uploads(self, uploads: Uploads, hurry: bool) -> None:
        try:
            uploads.put()
            uploads.finish(hurry)
        except CaptureError as error:
            # then raise what stopped the capture
            if self.published.stopped is not None:
                _LOGGER.warning("%s", error)
            self.failure = self.failure or error

    def _run(self) -> None:
        try:
            while True:
                if not self._queue:
                    with self._changed:
                        self._due = self._due and bool(self._queue)
                        self._changed.wait_for(lambda: self._due and self._queue)
                item = self._queue.popleft()
                if item is None:
                    return
                if isinstance(item, _EndStep):
                    self._finish_step(item)
                    continue
                self._write(item)
                lease = item.lease
                del item  # free its memory before making room for the next
                if lease is not None:
                    lease.release()
        except OSError as error:
            self._fail(self._cannot_write(error))
        except BaseException as error:  # a bug must reach the user, not vanish with the thread
            self._fail(
                CaptureError(f"{self.directory}: writing failed ({type(error).__name__}: {error})")
            )

    def _write(self, item: _Tensor) -> None:
        if self._file is None:
            self._file = self._new_file(item.record.step)
        if item.ready is not None:
            item.ready()
        record = self._file.add(
            item.record,
            item.array,
            None if item.sketched is None else item.sketched(),
            item.ready is not None,  # helped, while the device computes
        )
        if item.model_input:
            self._note_input(record, item.array)
        if item.written is not None:
            item.written(record)

    def _new_file(self, step: int) -> RecordFile:
        return RecordFile(self._folder / f"step{step}", self.mode, self._sketch_size)

    def _write_now(self) -> None:
        """Wake the writing thread. The caller holds the lock."""
        self._queued_bytes = 0
        self._due = True  # it may be so of an earlier call that found nothing to write
        self._changed.notify_all()

    def _wake(self) -> bool:
        """Have the queue written for somebody who waits; whether there is a writing thread."""
        with self._changed:
            self._write_now()
        return self._thread.is_alive()

    def _finish_step(self, end: _EndStep) -> None:
        self.memory.take_back()
        if end.series is not None:
            self._series.append(end.series())
        if end.holds_records:
            self._finish_file(end)
        elif time.monotonic() < self._manifest_due:
            return
        self._publish(self._with_steps(end.manifest))
        if self._uploads is not None:
            self._uploads.put(*(self._files(f"step{end.step}") if end.holds_records else []))
        self._manifest_due = time.monotonic() + _BETWEEN_MANIFESTS

    def _finish_file(self, end: _EndStep) -> None:
        file = self._file or self._new_file(end.step)
        self._file = None
        self._fingerprints.clear()
        try:
            checksum = file.finish()
        except Exception:
            file.discard()
            raise
        self._steps.append(StepEntry(end.step, file.records, checksum, end.partial))

    def _files(self, stem: str) -> list[Path]:
        return [self._folder / f"{stem}{ending}" for ending in (".npz", ".jsonl")]

    def _note_input(self, record: Record, array: Array | None) -> None:
        content = (record.dtype, record.shape, record.digest)
        if array is not None and content not in self._fingerprints:
            self._fingerprints[content] = fingerprint(array, DTYPES[record.dtype])
        if content in self._fingerprints:
            place = ".".join(part for part in (record.name, record.path) if part)
            self._inputs.setdefault(str(record.step), {})[place] = {
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
        return CaptureError(
            f"{self.directory}: writing ended early, for its thread is gone; was the process"
            " forked?"
        )

    def _cannot_write(self, error: OSError) -> CaptureError:
        why = error.strerror or str(error)
        cure = cure_of(error)
        if self._uploads is not None and error.errno in FULL:
            cure = "files for a URL wait in TMPDIR: set it to a larger disk"
        readable = f"{len(self.published.steps)} finished step(s) in {self.directory} stay readable"
        return CaptureError(
            f"{error.filename or self._folder}: cannot be written ({why}); {readable}; {cure}"
        )
