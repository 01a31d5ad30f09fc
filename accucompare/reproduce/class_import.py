"""Importing a running program's class in another process, without running the program."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import sysconfig
import types
from pathlib import Path


class CannotRebuildError(Exception):
    """A module, or a value in it, cannot be written as Python; says which, and why."""


def place_text(path: Path, directory: Path | None) -> str:
    """A path as Python: from ``HERE``, the script's directory, if they share more than the root, so
    that both can be moved together."""
    here = None if directory is None else directory.resolve()
    if here is None or path.anchor != here.anchor or path.parts[1:2] != here.parts[1:2]:
        return repr(str(path))
    return f"str(HERE / {Path(os.path.relpath(path, here)).as_posix()!r})"


def import_lines(
    module: types.ModuleType, name: str, short: str, directory: Path | None = None
) -> list[str]:
    """The lines that import a name in another process; they use ``sys`` and the script's ``HERE``.
    Raises CannotRebuildError if there is no file to import, or importing it would run it."""
    renamed = name if short == name else f"{name} as {short}"
    file = getattr(module, "__file__", None)
    called = module.__name__
    if called == "__main__":
        spec = getattr(module, "__spec__", None)
        if not file or not Path(file).is_file():
            raise CannotRebuildError(f"{name} was defined in a session without a file")
        reason = _runs(Path(file))
        if reason is not None:
            raise CannotRebuildError(
                f"{name} is defined in {file}, which {reason}, so that importing it would run the"
                " training again"
            )
        called = spec.name if spec is not None else ""  # with python -m
    if not file:
        spec = getattr(module, "__spec__", None)
        if spec is None or spec.origin not in ("built-in", "frozen"):
            raise CannotRebuildError(f"{name} is defined in {called}, which has no file")
        return [f"from {called} import {renamed}"]
    path = Path(file).resolve()
    parts = called.split(".")
    place = path.parent if path.stem == "__init__" else path.with_name(path.name.partition(".")[0])
    if called and list(place.parts[-len(parts) :]) == parts:
        root = place.parents[len(parts) - 1]
        known = {Path(folder).resolve() for folder in sysconfig.get_paths().values()}
        installed = root in known or root.name == "lib-dynload"
        return [
            *([] if installed else [f"sys.path.insert(0, {place_text(root, directory)})"]),
            f"from {called} import {renamed}",
        ]
    return [
        "from accucompare.reproduce import import_file",
        f"{short} = import_file({place_text(path, directory)}).{name}",
    ]


def _runs(file: Path) -> str | None:
    """Why importing a script would run it, in words; ``None`` if its action is guarded."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return "cannot be read"
    if any(
        isinstance(part, (ast.For, ast.While, ast.With, ast.AsyncFor, ast.AsyncWith))
        for part in body
    ):
        return "has loops outside of functions"
    guarded = any(
        isinstance(part, ast.If)
        and "__name__" in ast.dump(part.test)
        and "__main__" in ast.dump(part.test)
        for part in body
    )
    return None if guarded else 'does not keep what it does under `if __name__ == "__main__":`'


def import_file(path: str) -> types.ModuleType:
    """Import a Python file by its path, not as ``__main__``, so that its guarded part does not run.
    Raises ImportError if there is no such file; or whatever the file raises."""
    file = Path(path).resolve()
    name = f"{file.stem} of {file.parent}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ImportError(f"there is no Python file {path}")
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
