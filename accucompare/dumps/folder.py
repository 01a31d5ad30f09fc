"""Folders of ``.safetensors``, ``.npy``, ``.npz`` and ``.pt`` whose names say what each tensor is
(``--name-pattern``).

A tensor's name is its file's path in the folder without ending. If the file holds several tensors,
``/`` and the tensor's own name follow. In a single file, it is the tensor's own name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from accucompare.bundle.format import GRADIENT_ROLES, Role
from accucompare.dumps.dump_files import (
    UnreadableError,
    inside,
    load_npy,
    load_npz,
    load_pt,
    load_safetensors,
    names_in_npz,
    of_tensor,
    safetensors_index,
    tensors_in_pt,
)
from accucompare.dumps.items import Dump, Format, Item, ItemPart, LoadedItem, Naming, NotImported
from accucompare.dumps.name_pattern import DEFAULT_PATTERN, ROLES, NamePattern, PlaceInName
from accucompare.errors import BundleError, UsageError
from accucompare.selection import DumpFormat

_ENDINGS = (".safetensors", ".npy", ".npz", ".pt", ".pth")
_MOST_FILES = 1_000_000
_LOOKED_AT = 10_000  # entries read to recognise a folder
_UNORDERED = (
    "the files do not tell in which order the layers ran: rows are in order of names, unless golden"
    " tells the order"
)

_Load = Callable[[], LoadedItem]


def _recognise(path: Path) -> bool:
    if path.is_file():
        return path.suffix in _ENDINGS
    return any(
        name.endswith(_ENDINGS) for name, _ in zip(_files(path), range(_LOOKED_AT), strict=False)
    )


def _files(path: Path) -> Iterator[str]:
    """The relative paths of the files below a folder; links to folders are not followed."""
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            yield os.path.relpath(os.path.join(folder, name), path)


def _open(path: Path, naming: Naming) -> Dump:
    pattern = NamePattern.parse(DEFAULT_PATTERN if naming.pattern is None else naming.pattern)
    found: dict[tuple[int, int], list[tuple[PlaceInName, _Load]]] = {}
    others: dict[str, str] = {}
    for name, load in _tensors(path, others):
        place = pattern.place(name)
        if place is None:
            raise UsageError(_no_match(path, name, pattern, naming.pattern is None))
        found.setdefault((place.rank, place.step), []).append((place, load))
    if not found:
        raise BundleError(f"{path}: holds no tensor in a {', '.join(_ENDINGS)}")
    if 0 not in {rank for rank, _ in found}:
        raise BundleError(
            f"{path}: lacks rank 0; leave {{rank}} out of --name-pattern ({{_}} stands for it) to"
            " import a rank by itself"
        )
    first = min(found)
    parts = tuple(_part(*key, found[key], others if key == first else {}) for key in sorted(found))
    places = [place for each in found.values() for place, _ in each]
    roles = tuple(role for role in Role if any(place.role is role for place in places))
    root = any(not place.name for place in places)
    return Dump(roles, parts=parts, root=root, notes=(_UNORDERED,))


def _no_match(path: Path, name: str, pattern: NamePattern, by_default: bool) -> str:
    known = f"its role is one of {', '.join(ROLES)}"
    example = "'{name}'" if by_default else f"{DEFAULT_PATTERN!r}"
    return (
        f"{path}: the tensor {name[:200]!r} does not match --name-pattern {pattern.text!r}; say"
        f" what is what in such names, which are without the file's ending ({known}; [...] may be"
        " missing; {_} is anything; without {role} all are outputs), such as --name-pattern"
        f" {example}"
    )


def _tensors(path: Path, others: dict[str, str]) -> Iterator[tuple[str, _Load]]:
    """Each tensor's name and how to load it. All else goes to ``others`` with the reason."""
    if path.is_file():
        yield from _in_file(path, "", others)
        return
    for count, name in enumerate(_files(path)):
        if count >= _MOST_FILES:
            raise BundleError(f"{path}: holds more than {_MOST_FILES:,} files; import a part of it")
        stem, ending = os.path.splitext(name)
        if ending not in _ENDINGS:
            others[name] = "no .safetensors, .npy, .npz or .pt"
            continue
        yield from _in_file(inside(path, name), stem.replace(os.sep, "/"), others)


def _in_file(path: Path, stem: str, others: dict[str, str]) -> Iterator[tuple[str, _Load]]:
    """Each tensor of a file. A file that cannot be opened is listed as an unreadable tensor."""
    prefix = f"{stem}/" if stem else ""
    alone = stem or path.stem
    try:
        if path.suffix == ".npy":
            yield alone, partial(load_npy, path)
        elif path.suffix == ".npz":
            for name in names_in_npz(path):
                yield f"{prefix}{name}", partial(load_npz, path, name)
        elif path.suffix == ".safetensors":
            for name, entry in safetensors_index(path).items():
                yield f"{prefix}{name}", partial(load_safetensors, path, entry)
        else:
            for name, what in tensors_in_pt(path):
                if what:
                    others[f"{prefix or alone + '/'}{name}"] = what
                else:
                    yield f"{prefix}{name}" if name else alone, partial(_from_pt, path, name)
    except UnreadableError as error:
        raise BundleError(str(error)) from None


def _from_pt(path: Path, name: str) -> LoadedItem:
    found: Any = load_pt(path)
    for part in name.split("/") if name else ():
        found = (
            found[int(part)]
            if isinstance(found, (list, tuple))
            else next(value for key, value in found.items() if str(key) == part)
        )
    return of_tensor(found, path)


def _part(
    rank: int, step: int, found: list[tuple[PlaceInName, _Load]], others: dict[str, str]
) -> ItemPart:
    def items() -> Iterator[Item | NotImported]:
        yield from (NotImported(name, why) for name, why in others.items())
        calls: dict[str, int] = {}
        for place, _ in found:
            calls[place.name] = max(calls.get(place.name, 0), 1 + place.call)
        for place, load in sorted(found, key=lambda each: _order(each[0])):
            yield Item(
                place.name,
                place.role,
                place.path,
                place.call,
                load=load,
                parent=_parent(place, calls),
            )

    return ItemPart(rank, step, items, lambda: {place.name: "" for place, _ in found})


def _order(place: PlaceInName) -> tuple[Any, ...]:
    """Forward before backward; then by name, numbers as numbers; inputs before outputs."""
    backward = place.role in (*GRADIENT_ROLES, Role.PARAM_GRAD)
    return (
        backward,
        _natural(place.name),
        place.call,
        list(Role).index(place.role),
        _natural(place.path),
    )


def _natural(name: str) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdecimal() and len(part) < 20 else (-1, part)
        for part in re.split(r"(\d+)", name)
    ]


def _parent(place: PlaceInName, calls: dict[str, int]) -> tuple[str, int] | None:
    """The call of the nearest layer around a layer, by their names; ``None`` for the root's."""
    if not place.name:
        return None
    name = place.name
    while name:
        name = name.rpartition(".")[0]
        if name in calls:
            return name, place.call if calls[name] == calls[place.name] else 0
    return "", 0


FOLDER_FORMAT = Format(
    DumpFormat.FOLDER.value,
    "the folder of tensors",
    _recognise,
    _open,
    "files that end in .safetensors, .npy, .npz or .pt",
    takes_pattern=True,
    generic=True,
)
