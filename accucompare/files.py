"""Files that commands write whole or not at all, and read up to a bound."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from accucompare.errors import ReportError, UsageError
from accucompare.storage_errors import FULL, cure_of

#: Stands for standard output.
STDOUT = Path("-")
_MOST_LINKS = 40  # as in Linux


@dataclass(frozen=True)
class Endings:
    """How names of files of one kind end; any other name may be of a file that is someone's."""

    kind: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        *others, last = self.known
        return f"{', '.join(others)} or {last}" if others else last

    def fit(self, path: Path) -> bool:
        """Whether a path has one, or is a stream. A directory gets its own message later."""
        return path.suffix.lower() in self.known or is_stream(path) or os.path.isdir(path)

    def refuse_other(self, path: Path) -> None:
        """Raise ReportError if a path has none of them."""
        if not self.fit(path):
            raise ReportError(
                f"{path}: {self.kind} name must end in {self}, such as"
                f" {path.stem or 'report'}{self.known[0]}"
            )


ROW_LINES = (".jsonl", ".ndjson")
PYTHON_FILE = Endings("a Python file's", (".py",))
JSON_FILE = Endings("a JSON file's", (".json",))
COMPARISON_FILE = Endings("a JSON file's", (".json", *ROW_LINES))
PARQUET_FILE = Endings("a Parquet file's", (".parquet",))
EXCEL_FILE = Endings("an Excel report's", (".xlsx",))
PAGE_FILE = Endings("a page's", (".html",))


def written_whole(
    path: Path, write: Callable[[Path], object], errors: tuple[type[Exception], ...] = ()
) -> Path:
    """Write a temporary file beside its place, and rename it when it is complete.

    A symbolic link is followed. A device, a pipe and ``-`` (standard output) are written through.
    Raises ReportError if the path is a directory, or the file cannot be written.

    Args:
        path: where to; missing directories are created.
        write: writes to the path that it is given.
        errors: what ``write`` may raise besides OSError.
    """
    if os.path.isdir(path):
        raise ReportError(f"{path}: is a directory; name a file in it")
    failures: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        if is_stream(path):
            _write_through(path, write)
        else:
            _write_aside(Path(os.path.realpath(path)), write)
    except failures as error:
        if isinstance(error, BrokenPipeError):
            raise
        place = "standard output" if path == STDOUT else path
        why, cure = getattr(error, "strerror", None) or error, cure_of(error)
        if isinstance(error, PermissionError) and path.suffix.lower() == ".xlsx":
            cure = f"close it if it is open in Excel, or {cure}"
        elif (folder := _other_full_disk(path, error)) is not None:
            cure = (
                f"{folder}, where temporary files wait, is full: free some space there, or set"
                " TMPDIR to another disk"
            )
        raise ReportError(f"{place}: cannot be written ({why}); {cure}") from error
    return path


def _other_full_disk(path: Path, error: BaseException) -> str | None:
    """The directory of temporary files, if it is fuller than the disk of the failed file."""
    if getattr(error, "errno", None) not in FULL:
        return None
    import shutil
    import tempfile

    with suppress(OSError):
        folder = tempfile.gettempdir()
        if is_stream(path):
            return folder if str(getattr(error, "filename", None)).startswith(folder) else None
        place = next(each for each in path.absolute().parents if os.path.exists(each))
        if shutil.disk_usage(folder).free < shutil.disk_usage(place).free:
            return folder
    return None


def is_stream(path: Path) -> bool:
    """Whether a path is written through: ``-``, ``/dev/stdout`` and its like, a device, a pipe."""
    if _descriptor(path) is not None:
        return True
    with suppress(OSError):
        return not stat.S_ISREG(path.stat().st_mode) and not path.is_dir()
    return False


def is_stdout(path: Path) -> bool:
    return _descriptor(path) == 1


def same_place(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, by name or by links, hard or symbolic."""
    if is_stdout(one) or is_stdout(other):
        return is_stdout(one) and is_stdout(other)
    with suppress(OSError):
        return os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)


def bounded(path: Path, most: int) -> bytes:
    """Read a file; UsageError if it is unreadable, larger than ``most`` bytes, or endless."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    if len(content) > most:
        raise UsageError(f"{path}: is larger than {most >> 20} MiB, or without end; refused")
    return content


def _descriptor(path: Path) -> int | None:
    """The file descriptor that a path such as ``/dev/stdout`` or ``/dev/fd/3`` stands for."""
    if path == STDOUT:
        return 1
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(path.parent)
        if path.name.isdecimal() and re.fullmatch(
            rf"/proc/{os.getpid()}(/task/\d+)?/fd|/dev/fd", folder
        ):
            return int(path.name)
        if not os.path.islink(path):  # accepts a name that is too long
            return None
        path = Path(folder) / os.readlink(path)
    return None


def replace_whole(path: Path, temporary: Path, write: Callable[[Path], object]) -> None:
    """Write a temporary file, and rename it when it is complete; OSError leaves nothing behind."""
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):  # the error of the writing is already being reported
            temporary.unlink(missing_ok=True)


def _write_aside(path: Path, write: Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():  # a link in a circle
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    replace_whole(path, path.with_name(f".accucompare-{os.urandom(6).hex()}.part"), write)


def _write_through(path: Path, write: Callable[[Path], object]) -> None:
    """Write a temporary file, since writers of reports seek, and copy its bytes."""
    import shutil
    import tempfile  # both load slower than everything else that help needs

    number = _descriptor(path)
    with tempfile.TemporaryDirectory(prefix="accucompare.") as folder:
        whole = Path(folder) / "whole"
        try:
            write(whole)
        except OSError as error:
            error.filename = error.filename or (str(whole) if error.errno else None)
            raise
        if number == 1:
            sys.stdout.flush()
        with (
            whole.open("rb") as source,
            open(path if number is None else os.dup(number), "wb") as target,
        ):
            shutil.copyfileobj(source, target)
