"""Which code a model ran: digests of source files, versions of packages, configuration of modules.

A baseline is trusted because it ran golden's code. These facts prove it
(``compare.limits.provenance``).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
import xxhash
from torch import nn

from accucompare.live.modules import class_of

#: Not noted: Python's library, whose version is in the manifest, and accucompare's own code.
_OWN = str(Path(__file__).parents[2])
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})

#: The file of ``torch.compile``'s wrapper functions.
_COMPILER = str(Path(torch.__file__).parent / "_dynamo" / "eval_frame.py")

#: Where Python code reads an environment variable by name.
_READS = re.compile(
    rb"""(?:environ(?:\.get\(|\.setdefault\(|\.pop\(|\[)|getenv\()"""
    rb"""\s*["']([A-Za-z_][A-Za-z0-9_]*)["']"""
)

#: Seconds: more than the unit of any file system's clock.
_UNIT = 5

#: Attributes with a module's device, type or file: they differ between captures of one model.
_NOT_CONFIGURED = {"training", "device", "dtype", "name_or_path"}


class FunctionsRun:
    """Collects the files of the Python functions that a thread runs, by ``sys.setprofile``.

    Collects nothing if another profiler is at work on the thread."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}  # the name of the Python module that first ran code of each
        self.running: int | None = None  # the thread that collects now, or ``None``
        self.compiled = False  # whether a function of ``torch.compile`` was called
        self.disturbed = False  # whether another profiler was at work

    def start(self) -> None:
        """Collect from now on, on this thread."""
        caller: FrameType | None = sys._getframe()
        while caller is not None and not self.compiled:
            self.compiled, caller = _is_compiled(caller.f_code), caller.f_back
        self.disturbed = self.disturbed or sys.getprofile() is not None
        if self.running is None and not self.disturbed:
            self.running = threading.get_ident()
            sys.setprofile(self._note)

    def stop(self) -> None:
        """Stop collecting; does nothing on another thread."""
        if self.running == threading.get_ident():
            self.running = None
            sys.setprofile(None)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not collect within the context. A stop within it lasts."""
        sys.setprofile(None)
        try:
            yield
        finally:
            if self.running == threading.get_ident():
                sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            file = frame.f_code.co_filename
            if file not in self.files:
                self.files[file] = str(frame.f_globals.get("__name__"))
            if file == _COMPILER:
                self.compiled = self.compiled or _is_compiled(frame.f_code)


def _is_compiled(code: CodeType) -> bool:
    """Whether it is what ``torch.compile`` puts around compiled code."""
    return code.co_filename == _COMPILER and "callback" in code.co_freevars


def class_sources(modules: Mapping[str, nn.Module]) -> list[str]:
    """The names of the Python modules that define the classes of a model's modules."""
    return sorted({class_of(module).__module__ for module in modules.values()})


def homes_of_classes(modules: Mapping[str, nn.Module]) -> dict[str, list[str]]:
    """The defining Python modules of each class name; several classes may share a name."""
    homes: dict[str, set[str]] = {}
    for module in modules.values():
        kind = class_of(module)
        homes.setdefault(kind.__name__, set()).add(without_folder(kind.__module__))
    return {name: sorted(found) for name, found in homes.items()}


def without_folder(name: str) -> str:
    """A Python module's name without the folder that ``load_case`` adds to names that are taken."""
    return name.partition(" of ")[0]


def digests_of(names: Iterable[str]) -> dict[str, str]:
    """Digests of the source files of loaded Python modules, by module name.

    Of two case files with one name, the second is imported as ``model of /folder``. It is called
    ``model`` here, and replaces the first.
    """
    digests: dict[str, str] = {}
    for name in sorted(set(names), key=lambda name: (" of " not in name, name)):
        file = _file_of(name)
        if file and not _is_foreign(file):
            with contextlib.suppress(OSError):  # gone or unreadable
                digests.setdefault(without_folder(name), _digest(file))
    return dict(sorted(digests.items()))


def _digest(file: str) -> str:
    """A file's digest, which is kept as long as the file is not written to."""
    status = os.stat(file)
    written = max(status.st_mtime, status.st_ctime)
    key = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    # a file system may see two writes within its clock's unit as one
    return _digest_since(file, key if time.time() - written > _UNIT else (time.perf_counter_ns(),))


@lru_cache(maxsize=4096)
def _digest_since(file: str, key: tuple[int, ...]) -> str:
    return xxhash.xxh3_128_hexdigest(Path(file).read_bytes())


def variables_named(names: Iterable[str]) -> set[str]:
    """The environment variables that the source files of Python modules read by name."""
    found: set[str] = set()
    for name in names:
        file = _file_of(name)
        if file and not _is_foreign(file):
            with contextlib.suppress(OSError):
                found |= _variables_in(file, os.stat(file).st_mtime_ns)
    return found


@lru_cache(maxsize=4096)
def _variables_in(file: str, changed: int) -> frozenset[str]:
    """``changed`` is part of the cache's key."""
    return frozenset(each.decode() for each in _READS.findall(Path(file).read_bytes()))


def modules_in(files: Mapping[str, str]) -> set[str]:
    """The names of the loaded Python modules whose source is in these files, each given with the
    name that its code had.

    Where that is the name of another file, code was moved between modules. Only then are all
    modules looked through, which takes longer than the capture of a small model.
    """
    ours = {file: name for file, name in files.items() if not _is_foreign(file)}
    found = {name for file, name in ours.items() if _file_of(name) == file}
    without = {name for name in ours.values() if name in sys.modules and _file_of(name) is None}
    moved = {
        file
        for file, name in ours.items()
        if name not in found and name not in without and not file.startswith("<")
    }
    return found | {name for name in [*sys.modules] if moved and _file_of(name) in moved}


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """The versions of the installed packages that Python modules belong to, by package name."""
    versions = {}
    for package in sorted({name.partition(".")[0] for name in names}):
        version = version_of(package)
        if version is not None:
            versions[package] = version
    return versions


def version_of(package: str) -> str | None:
    """A package's version from ``__version__``, else from its installation; ``None`` if unknown."""
    version = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(version, str):
        return str(version)  # torch's has a class of its own
    installed = _installed_version(package)
    if installed is None and _is_installed(package):
        names = importlib.metadata.packages_distributions().get(package, ())
        return next((version for each in names if (version := _installed_version(each))), None)
    return installed


@lru_cache(maxsize=4096)
def _installed_version(distribution: str) -> str | None:
    """Cached: reading takes longer than the capture of a small model."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def source_configuration(modules: Mapping[str, nn.Module]) -> dict[str, dict[str, Any]]:
    """Each module's public numbers, strings and booleans (``eps``, ``approximate``), by name."""
    found = {
        name: {
            key: value
            for key, value in vars(module).items()
            if not key.startswith("_")
            and key not in _NOT_CONFIGURED
            and type(value) in (bool, int, float, str)
        }
        for name, module in modules.items()
    }
    return {name: values for name, values in found.items() if values}


def _file_of(name: str) -> str | None:
    """The file of a loaded Python module. Asking by attribute might load a lazy module."""
    file = getattr(sys.modules.get(name), "__dict__", {}).get("__file__")
    return file if isinstance(file, str) else None


def _is_foreign(file: str) -> bool:
    if file.startswith(_OWN):
        return True
    return (
        file.startswith(_STANDARD) and "site-packages" not in file and "dist-packages" not in file
    )


def _is_installed(package: str) -> bool:
    file = _file_of(package) or ""
    return "site-packages" in file or "dist-packages" in file
