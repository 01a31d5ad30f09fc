"""A file of layouts that the user gives: how ranks hold some tensors."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from accucompare.bundle.format import Record
from accucompare.errors import UsageError
from accucompare.files import bounded
from accucompare.places import local

_MOST_BYTES = 16 << 20  # of a file of layouts, which has a few lines per layer


class GivenLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ``[[layout]]`` of a file: globs of the records it applies to, and where their parts lie."""

    # layer, role: globs
    layer: str = "*"
    role: str = "*"
    # a word for each dimension of the tensor; ``[tp]`` behind one says that ranks along that
    # dimension of the mesh hold a part each: ``"batch sequence hidden[tp]"``
    dims: str = ""
    # of layers that are fused along the cut dimension: their widths in proportion, such as ``[4, 1,
    # 1]`` of query, key and value
    fused: tuple[int, ...] = ()
    sum: tuple[str, ...] = ()  # the dimensions of the mesh over which ranks hold terms of a sum

    def applies_to(self, record: Record) -> bool:
        return fnmatchcase(record.name, self.layer) and fnmatchcase(record.role.value, self.role)

    def axes(self) -> dict[int, tuple[str, ...]]:
        """The dimensions of the mesh that cut each axis."""
        found = {}
        for axis, word in enumerate(self.dims.split()):
            _, bracket, rest = word.partition("[")
            if bracket:
                names = rest.removesuffix("]").split(",")
                found[axis] = tuple(name.strip() for name in names)
        return found

    def check(self, mesh: Iterable[str]) -> None:
        """Raise UsageError if it names dimensions that the candidate's mesh lacks."""
        known = list(mesh)
        named = [*self.sum, *(name for names in self.axes().values() for name in names)]
        if unknown := [name for name in named if name not in known]:
            raise UsageError(
                f"layout of {self.layer!r}: the candidate's mesh has no dimension {unknown[0]!r};"
                f" it has {', '.join(known)}"
            )


class _File(msgspec.Struct, forbid_unknown_fields=True):
    layout: tuple[GivenLayout, ...]


def read_layouts(path: str | Path) -> tuple[GivenLayout, ...]:
    """Read a TOML file of ``[[layout]]`` tables. Raises UsageError if it holds anything else."""
    path = local(path)
    try:
        return msgspec.toml.decode(bounded(Path(path), _MOST_BYTES), type=_File).layout
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is no file of [[layout]] tables ({error})") from None
