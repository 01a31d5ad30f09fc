"""msprobe's dumps (``mindstudio-probe``): ``step<N>/rank<R>/dump.json`` and a ``.pt`` a tensor, or statistics alone."""

from __future__ import annotations

from pathlib import Path

from accucompare.bundle.records import Role
from accucompare.dumps.items import Dump, Format
from accucompare.selection import DumpFormat


def _recognise(path: Path) -> bool:
    return path.name == "dump.json" or next(path.glob("dump.json"), None) is not None


def _open(path: Path, name_pattern: str | None) -> Dump:
    return Dump((), (Role.INPUT, Role.OUTPUT))


FORMAT = Format(DumpFormat.MSPROBE.value, "msprobe", _recognise, _open, "dump.json, in step<N>/rank<R> or step<N>/proc<PID>")
