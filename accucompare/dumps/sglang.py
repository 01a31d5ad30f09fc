"""SGLang's dumper (sglang.srt.debug_utils.dumper): a ``.pt`` per tensor, ``{"value": …, "meta":
{…}}``, with tags in the file's name.

Its hooks name a module's tensors ``non_intrusive__MODULE.inputs.I`` and
``non_intrusive__MODULE.output``; parameters are ``param__NAME``, and gradients have ``grad__``
before the name."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from accucompare.bundle.format import Role
from accucompare.dumps.dump_files import UnreadableError, load_pt, of_tensor
from accucompare.dumps.folders import files_in, folders_with
from accucompare.dumps.items import Dump, Format, Item, ItemPart, LoadedItem, Naming, NotImported
from accucompare.errors import BundleError, UsageError
from accucompare.selection import DumpFormat

_BETWEEN = "___"
_NUMBER = re.compile(r"\d{1,18}")
_HOOKED, _PARAMETER, _GRADIENT = "non_intrusive__", "param__", "grad__"
_PLACE = re.compile(
    r"(?:(?P<module>.*)\.)?(?:inputs\.(?P<input>[^.]+)|output)(?:\.(?P<key>[^.]+))?", re.DOTALL
)
_RECOMPUTED = "recompute"  # recompute_status of a forward that runs again in the backward


@dataclass(frozen=True)
class _File:
    """A file, with the tags in its name."""

    path: Path
    index: int
    tags: dict[str, str]


def _tags(name: str) -> dict[str, str]:
    """The tags in a file's name; empty if it is no dump's."""
    if not name.endswith(".pt"):
        return {}
    tags = dict(
        part.split("=", 1) for part in name.removesuffix(".pt").split(_BETWEEN) if "=" in part
    )
    numbers = all(
        _NUMBER.fullmatch(tags.get(key, "0"))
        for key in ("step", "forward_pass_id", "rank", "dump_index")
    )
    return tags if {"name", "dump_index"} <= tags.keys() and numbers else {}


def _belongs(name: str) -> bool:
    return bool(_tags(name))


def _open(path: Path, naming: Naming) -> Dump:
    folders = folders_with(path, _belongs)
    if not folders:
        raise UsageError(f"{path}: holds no file of SGLang's dumper")
    if len(folders) > 1:
        raise UsageError(
            f"{path}: holds several dumps ({folders[0]}, {folders[1]}, …); import one of them"
        )
    by_place: dict[tuple[int, int], list[_File]] = defaultdict(list)
    others = []
    for file in files_in(folders[0]):
        tags = _tags(file.name)
        if not tags:
            others.append(
                NotImported(
                    file.name, "its name has no dump_index and name, as SGLang's dumper writes them"
                )
            )
            continue
        step = int(tags.get("step", tags.get("forward_pass_id", "0")))
        by_place[int(tags.get("rank", "0")), step].append(
            _File(file, int(tags["dump_index"]), tags)
        )
    ranks = {rank for rank, _ in by_place}
    alone = ranks != {0} and len(ranks) == 1
    if 0 not in ranks and not alone:
        raise BundleError(
            f"{path}: lacks rank 0; import the files of one rank by themselves, or of all"
        )
    parts = []
    for (rank, step), files in sorted(by_place.items()):
        files.sort(key=lambda file: file.index)
        parts.append(ItemPart(0 if alone else rank, step, _reader(files, others)))
        others = []
    notes = (f"of rank {min(ranks)} alone, which is rank 0 here",) if alone else ()
    of_files = (_place(file) for files in by_place.values() for file in files)
    places = [place for place in of_files if not isinstance(place, NotImported)]
    # Dumping gradients was the user's choice; inputs and outputs go together.
    present = {Role.INPUT, Role.OUTPUT} | {role for _, role, _ in places}
    hooked = any(_HOOKED in file.tags["name"] for files in by_place.values() for file in files)
    return Dump(
        tuple(sorted(present)),
        parts=tuple(parts),
        root=any(not name for name, _, _ in places),
        partial=not hooked,
        notes=notes,
    )


def _reader(
    files: list[_File], others: list[NotImported]
) -> Callable[[], Iterator[Item | NotImported]]:
    def items() -> Iterator[Item | NotImported]:
        yield from others
        calls: Counter[tuple[str, Role, str]] = Counter()
        for file in files:
            found = _place(file)
            if isinstance(found, NotImported):
                yield found
                continue
            name, role, path = found
            yield Item(name, role, path, calls[found], load=partial(_load, file.path))
            calls[found] += 1

    return items


def _place(file: _File) -> tuple[str, Role, str] | NotImported:
    """Name, role and path of what a file holds."""
    name = file.tags["name"]
    if file.tags.get("recompute_status") == _RECOMPUTED:
        return NotImported(
            name, "a forward that the backward runs again; a capture records the first only"
        )
    gradient = name.startswith(_GRADIENT)
    name = name.removeprefix(_GRADIENT)
    if name.startswith(_PARAMETER):
        module, _, parameter = name.removeprefix(_PARAMETER).rpartition(".")
        return module, Role.PARAM_GRAD if gradient else Role.PARAM, parameter
    if not name.startswith(_HOOKED):
        layer = file.tags.get("layer_id")
        named = name if layer is None else f"{name}.{layer}"
        return named, Role.GRAD_OUTPUT if gradient else Role.OUTPUT, ""
    match = _PLACE.fullmatch(name.removeprefix(_HOOKED))
    if match is None:
        return NotImported(
            name, "its name is none of SGLang's hooks, MODULE.inputs.I or MODULE.output"
        )
    entered = match["input"] is not None
    if gradient and entered:
        return NotImported(
            name,
            "the gradient of a tensor by all that use it; a bundle holds what each call adds to it",
        )
    path = ".".join(filter(None, (match["input"], match["key"])))
    return (
        match["module"] or "",
        Role.GRAD_OUTPUT if gradient else Role.INPUT if entered else Role.OUTPUT,
        path,
    )


def _load(path: Path) -> LoadedItem:
    found = load_pt(path)
    value = found["value"] if isinstance(found, dict) and "value" in found else found
    if type(value) in (bool, int, float):
        array = np.array(value)
        if array.dtype.name not in ("bool", "int64", "float64"):
            raise UnreadableError(f"{path}: holds an integer of more than 64 bits")
        return LoadedItem(array, array.dtype.name)
    return of_tensor(value, path)


SGLANG_FORMAT = Format(
    DumpFormat.SGLANG.value,
    "SGLang's dumper",
    lambda path: bool(folders_with(path, _belongs)),
    _open,
    "files named step=S___rank=R___dump_index=I___name=NAME.pt",
)
