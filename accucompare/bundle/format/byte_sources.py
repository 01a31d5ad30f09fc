"""Where an archive's bytes come from: a local file, or windows of an object in storage."""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol

from accucompare.errors import BundleError
from accucompare.places import Place, ServerAnswer, Url, wait
from accucompare.storage_errors import NoAnswerError

#: How many unread files stay open. A bundle has one per step and rank, and a process may open only
#: 256 (macOS) to 1,024.
OPEN_FILES = 48
#: Bytes per request.
WINDOW = 8 << 20
#: How many windows a bundle keeps, and how many it requests ahead. Each thread also keeps the one
#: that it reads.
HELD, AHEAD = 8, 2
#: How many small files are requested ahead.
_EXPECTED = 16
#: Fields of a description that change when an object is replaced, as several libraries name them.
_STAMPS = (
    "size",
    "ETag",
    "etag",
    "LastModified",
    "Last-Modified",
    "mtime",
    "updated",
    "created",
    "Content-MD5",
)


class Source(Protocol):
    """Bytes that any number of threads may read at any offset. OSError if that fails."""

    size: int

    def read(self, count: int, offset: int) -> bytes:
        """Up to ``count`` bytes from an offset; fewer only at the end."""

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill the buffer from its beginning; return how many bytes were read, 0 at the end."""

    def changed(self) -> bool:
        """Whether it was written to or replaced since it was opened."""

    def close(self) -> None: ...


class _Descriptor:
    """A file that is open while it is read, and until ``OPEN_FILES`` others were read after it."""

    # open but not being read, the last one read at the end
    _idle: ClassVar[OrderedDict[_Descriptor, None]] = OrderedDict()
    # reentrant: the garbage collector may close a file while the lock is held
    _lock: ClassVar[threading.RLock] = threading.RLock()

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._number).st_size
        self.stamp = _stamp(os.fstat(self._number))
        self._readers = 1
        self.rest()

    def wake(self) -> int:
        """Open it if needed, and keep it open until ``rest``. OSError if it is gone or replaced."""
        with self._lock:
            if self._number is None:
                number = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                if _stamp(os.fstat(number)) != self.stamp:
                    os.close(number)
                    raise OSError(errno.ESTALE, "changed while it was read", str(self.path))
                self._number = number
            self._idle.pop(self, None)
            self._readers += 1
            return self._number

    def rest(self) -> None:
        with self._lock:
            self._readers -= 1
            if not self._readers:
                self._idle[self] = None
            while len(self._idle) > OPEN_FILES:
                next(iter(self._idle)).close()

    def close(self) -> None:
        """Close it, unless it is being read."""
        with self._lock:
            if self in self._idle and self._number is not None:
                del self._idle[self]
                os.close(self._number)
                self._number = None


class LocalFile:
    """A regular file, read by position."""

    def __init__(self, path: Path) -> None:
        """Raises BundleError for what is no regular file."""
        if not stat.S_ISREG(path.stat().st_mode):  # opening a FIFO would wait for its writer
            raise BundleError(f"{path}: is not a regular file; refused")
        self._descriptor = _Descriptor(path)
        weakref.finalize(self, self._descriptor.close)  # in case nobody closes the bundle
        self.size = self._descriptor.size

    def read(self, count: int, offset: int) -> bytes:
        number = self._descriptor.wake()
        try:
            return os.pread(number, count, offset)
        finally:
            self._descriptor.rest()

    def read_into(self, buffer: memoryview, offset: int) -> int:
        number = self._descriptor.wake()
        try:
            return os.preadv(number, [buffer], offset)
        finally:
            self._descriptor.rest()

    def changed(self) -> bool:
        try:
            number = self._descriptor.wake()
            try:
                return (
                    not _stamp(os.fstat(number))
                    == _stamp(os.stat(self._descriptor.path))
                    == self._descriptor.stamp
                )
            finally:
                self._descriptor.rest()
        except OSError:
            return True

    def close(self) -> None:
        self._descriptor.close()


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    """What changes when a file is written to or replaced."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class Windows:
    """What was read last of a bundle's objects, and what will be needed next.

    Threads measure neighbouring tensors and need the same windows. Each window is requested once;
    fsspec's own caches do not do that."""

    def __init__(self) -> None:
        self._asked: OrderedDict[tuple[Url, int], Future[bytes]] = OrderedDict()
        self._expected: dict[Url, Future[ServerAnswer]] = {}
        self._lock = threading.Lock()
        self._own = _OwnWindow()
        self._stop = threading.Event()
        # set if the storage does not answer: do not wait for the rest one by one
        self._gone: NoAnswerError | None = None

    def give_up(self) -> None:
        """End every waiting read, in all threads, as after Ctrl-C. Later reads begin anew."""
        with self._lock:
            self._stop.set()
            self._stop = threading.Event()
            self._asked.clear()
            self._expected.clear()
            self._own = _OwnWindow()
            self._gone = None

    def get(self, url: Url, number: int, size: int) -> bytes:
        """A window of an object of that size. OSError if it cannot be read."""
        key = url, number
        if self._own.key == key:
            return self._own.content
        self._refuse_if_gone()
        with self._lock:
            stop = self._stop
            after_another = (url, number - 1) in self._asked or self._own.key == (url, number - 1)
            mine = self._asked.get(key)
        if mine is None:
            mine = self._ask(url, number, size)
        if after_another:
            for ahead in range(number + 1, number + 1 + AHEAD):
                self._ask_ahead(url, ahead, size)
        try:
            content: bytes = wait(mine, url, stop=stop, shared=True)
            wanted = _extent(number, size)
            if len(content) != wanted:
                raise OSError(errno.EIO, _of_wrong_length(len(content), wanted, url), str(url))
        except BaseException as error:
            with self._lock:
                if self._asked.get(key) is mine:
                    del self._asked[key]
                self._gone = error if isinstance(error, NoAnswerError) else self._gone
            raise
        self._own.key, self._own.content = key, content
        return content

    def expect(self, url: Url) -> None:
        """Request a small file that will be opened soon."""
        with self._lock:
            if url not in self._expected and len(self._expected) < _EXPECTED:
                self._expected[url] = url.begin_read(WINDOW)

    def _refuse_if_gone(self) -> None:
        if self._gone is not None:
            raise NoAnswerError(*self._gone.args)

    def description(self, url: Url) -> dict[str, Any]:
        """What the storage says of a file that is opened now. Errors as ``Url.described``."""
        self._refuse_if_gone()
        with self._lock:
            asked = self._expected.pop(url, None)
        try:
            described, content = ({}, None) if asked is None else wait(asked, url)
        except OSError:
            described, content = {}, None  # asking again gives an error that says more
        if content is None or len(content) != described.get("size"):
            try:
                return url.described()
            except NoAnswerError as error:
                self._gone = error
                raise
        here: Future[bytes] = Future()
        here.set_result(content)
        with self._lock:
            self._hold((url, 0), here)
        return dict(described)

    def _ask_ahead(self, url: Url, number: int, size: int) -> None:
        with self._lock:
            waiting = sum(not each.done() for each in self._asked.values())
            if number * WINDOW >= size or (url, number) in self._asked or waiting > HELD // 2:
                return
        self._ask(url, number, size)

    def _ask(self, url: Url, number: int, size: int) -> Future[bytes]:
        """Request a window, unless another thread has; drop the oldest that have arrived."""
        key, start = (url, number), number * WINDOW
        with self._lock:
            if key not in self._asked:
                asked = url.begin("cat_file", start=start, end=start + _extent(number, size))
                self._hold(key, asked)
            self._asked.move_to_end(key)
            return self._asked[key]

    def _hold(self, key: tuple[Url, int], asked: Future[bytes]) -> None:
        """Keep a window in place of the oldest that have arrived. The caller holds the lock."""
        there = [each for each, other in self._asked.items() if other.done()]
        for oldest in there[: max(0, len(self._asked) + 1 - HELD)]:
            del self._asked[oldest]
        self._asked[key] = asked


class _OwnWindow(threading.local):
    """The window that this thread reads."""

    key: tuple[Url, int] | None = None
    content: bytes = b""


def _extent(number: int, size: int) -> int:
    return min(WINDOW, size - number * WINDOW)


def _of_wrong_length(found: int, wanted: int, url: Url) -> str:
    if found > wanted and url.read_only:
        return (
            "its server sends whole files only, and no ranges of them; copy the bundle to a"
            " directory"
        )
    return f"{found} bytes came where {wanted} were asked for; was it replaced while it was read?"


class RemoteFile:
    """An object in storage, read in windows."""

    def __init__(self, url: Url, windows: Windows) -> None:
        self._url = url
        self._windows = windows
        described = windows.description(url)
        if not isinstance(described.get("size"), int) or described.get("partial") is False:
            raise OSError(
                errno.ENOTSUP,
                "its server does not say how long it is, or sends no ranges; copy the bundle",
                str(url),
            )
        self.size: int = described["size"]
        self._stamp = stamp_of(described)

    def read(self, count: int, offset: int) -> bytes:
        found = bytearray(max(0, min(count, self.size - offset)))
        view, done = memoryview(found), 0
        while done < len(found):
            done += self.read_into(view[done:], offset + done)
        return bytes(found)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        if offset >= self.size:
            return 0
        number, start = divmod(offset, WINDOW)
        part = memoryview(self._windows.get(self._url, number, self.size))[
            start : start + len(buffer)
        ]
        buffer[: len(part)] = part
        return len(part)

    def changed(self) -> bool:
        try:
            return stamp_of(self._url.call("info")) != self._stamp
        except OSError:
            return True

    def close(self) -> None:
        pass


def stamp_of(described: dict[str, Any]) -> tuple[str, ...]:
    """The fields of a storage's description that change when an object is replaced."""
    return tuple(str(described.get(name)) for name in _STAMPS)


def open_source(place: Place, windows: Windows | None) -> Source:
    """Open a file to be read by position; a URL needs ``windows``. Raises OSError if it cannot be
    read; BundleError if it is no regular file."""
    return LocalFile(place) if isinstance(place, Path) else RemoteFile(place, windows or Windows())


def open_lines(place: Place, windows: Windows | None) -> IO[bytes]:
    """Open a file to be read from beginning to end. Arguments and errors as ``open_source``."""
    if isinstance(place, Url):
        return io.BufferedReader(_Stream(RemoteFile(place, windows or Windows())), 1 << 20)
    if not stat.S_ISREG(place.stat().st_mode):  # opening a FIFO would wait for its writer
        raise BundleError(f"{place}: is not a regular file; refused")
    return place.open("rb")


class _Stream(io.RawIOBase):
    """A source as a stream."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._place = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        done = self._source.read_into(memoryview(buffer).cast("B"), self._place)
        self._place += done
        return done
