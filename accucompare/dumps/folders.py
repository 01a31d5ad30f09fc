"""Where a dump's files are: in a directory, in one folder below, or in folders per step."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from accucompare.dumps.dump_files import inside
from accucompare.errors import BundleError, UsageError

_MOST_LOOKED_AT = 200_000  # files and folders; a dump's own come long before
_STEP = re.compile(r"\d{1,9}")


def folders_with(path: Path, belongs: Callable[[str], bool]) -> list[Path]:
    """The folders below a path, itself included, that hold files whose name ``belongs`` to a dump;
    links to folders are not followed."""
    if not os.path.isdir(path):
        return []
    found, left = [], _MOST_LOOKED_AT
    for folder, inner, names in os.walk(path):
        inner.sort()
        if any(map(belongs, names)):
            found.append(Path(folder))
            inner.clear()  # folders inside a dump's folder are not part of it
        left -= len(names) + 1
        if left < 0:
            break
    return found


def step_folders(path: Path, belongs: Callable[[str], bool], tool: str) -> list[tuple[int, Path]]:
    """Each step with its folder. Raises UsageError if there is no file of the dump, or its folders
    are several and not named by step."""
    found = folders_with(path, belongs)
    if not found:
        raise UsageError(f"{path}: holds no file of {tool}")
    if len(found) == 1:
        return [(0, found[0])]
    if len({folder.parent for folder in found}) == 1 and all(
        _STEP.fullmatch(folder.name) for folder in found
    ):
        steps = sorted((int(folder.name), folder) for folder in found)
        if len({step for step, _ in steps}) == len(steps):
            return steps
    shown = ", ".join(str(folder) for folder in found[:3])
    raise UsageError(
        f"{path}: holds several dumps of {tool} ({shown}{', …' if len(found) > 3 else ''}); "
        "import one of them, or a folder that has one folder for each step, named by its number"
    )


def files_in(folder: Path) -> list[Path]:
    """The files in a folder, by name. Raises BundleError if it cannot be read, or a link leads out
    of it."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.is_dir())
    except OSError as error:
        raise BundleError(f"{folder}: cannot be read ({error.strerror})") from None
    return [inside(folder, name) for name in names]
