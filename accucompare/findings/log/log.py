"""Writing a watch's log, event by event."""

from __future__ import annotations

import contextlib
import logging
import os
from enum import Enum
from pathlib import Path
from typing import IO, Any

import msgspec

from accucompare.bundle.format import bundle_around
from accucompare.errors import UsageError
from accucompare.findings.log.events import Event, WatchStart
from accucompare.storage_errors import cure_of
from accucompare.text import storable

_LOGGER = logging.getLogger(__name__)
_ENCODER = msgspec.json.Encoder()

#: Logs that this process is writing.
_open: set[Path] = set()


def _encoded(event: Event) -> bytes:
    try:
        return _ENCODER.encode(event)
    except UnicodeEncodeError:  # a lone surrogate, as of a file name in another encoding
        return _ENCODER.encode(_storable(event))


def _storable(value: Any) -> Any:
    if isinstance(value, str) and not isinstance(value, Enum):
        return storable(value)
    if isinstance(value, msgspec.Struct):
        return type(value)(
            **{name: _storable(each) for name, each in msgspec.structs.asdict(value).items()}
        )
    if isinstance(value, dict):
        return {_storable(key): _storable(each) for key, each in value.items()}
    return [_storable(each) for each in value] if isinstance(value, (list, tuple)) else value


class Log:
    """A file that events are added to, each at once, so that a killed process keeps the earlier
    ones.

    A full disk ends the log with a warning, but not the watched run; ``failure`` says why, and what
    to do."""

    def __init__(self, path: Path) -> None:
        """UsageError if it cannot be written, is being written by another watch of this process, or
        lies in a bundle."""
        self.path = path
        self.failure: str | None = None
        self._place = Path(os.path.realpath(path))  # leaves circular links as they are
        if self._place in _open:
            raise UsageError(
                f"{path}: another watch is writing its log there; give this one a directory of its"
                " own (out=)"
            )
        if (bundle := bundle_around(path)) is not None:
            raise UsageError(
                f"{path}: lies in the bundle {bundle}; choose another directory for the watch"
                " (--out, out=)"
            )
        self._file: IO[bytes] | None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)
            self._mend(self._file)
        except OSError as error:
            raise UsageError(
                f"{path}: the log of the watch cannot be written ({error.strerror});"
                f" {cure_of(error)}"
            ) from None
        _open.add(self._place)

    def write(self, event: Event) -> None:
        if self._file is None:
            return
        try:
            rest = memoryview(_encoded(event) + b"\n")
            while rest:  # a nearly full disk takes a part
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self.close()
            ends = UsageError(
                f"{self.path}: the log of the watch ends here ({error.strerror}); {cure_of(error)}"
            )
            self.failure = str(ends)
            _LOGGER.warning("%s; the watch goes on", self.failure)

    def close(self) -> None:
        _open.discard(self._place)
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _mend(self, file: IO[bytes]) -> None:
        """Cut off an unfinished last line of a killed process."""
        file.seek(0)
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)


_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def log_path(directory: Path, rank: int) -> Path:
    """Where a rank's log is in the directory of a watch."""
    return directory / f"rank{rank}.jsonl"


def _is_start(line: bytes) -> bool:
    try:
        return isinstance(_DECODER.decode(line), WatchStart)
    except ValueError:
        return False


def read_log(path: Path) -> list[list[Event]]:
    """The runs in a log, each a list of events that begins with its ``WatchStart``.

    A line cut short by a killed process is left out: the last one, or the last before another run.
    Raises UsageError if there is no such file, or it is no log of a watch."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    runs: list[list[Event]] = []
    for index, line in enumerate(lines, start=1):
        try:
            event = _DECODER.decode(line)
        except ValueError as error:  # from msgspec, or for a byte that is not UTF-8
            if index == len(lines) and not line.endswith(b"\n"):
                break
            if index < len(lines) and runs and _is_start(lines[index]):
                continue
            raise UsageError(f"{path}, line {index}: is no event of a watch ({error})") from None
        if isinstance(event, WatchStart):
            runs.append([])
        if not runs:
            raise UsageError(
                f"{path}, line {index}: is no log of a watch: it does not begin with a start"
            )
        runs[-1].append(event)
    if not runs:
        raise UsageError(f"{path}: holds no events: no watch was running, or its disk was full")
    return runs
