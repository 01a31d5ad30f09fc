"""Kernel dumps of CANN: one call per kernel, in the order of their timestamps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from accucompare.bundle.format import Role
from accucompare.dumps.folders import files_in, folders_with, step_folders
from accucompare.dumps.items import (
    Dump,
    Format,
    Item,
    ItemPart,
    LoadedItem,
    Naming,
    NotImported,
    UnreadableError,
)
from accucompare.dumps.kernel_files import NAME, Tensor, load, read_header
from accucompare.dumps.overflows import is_note, notes_of
from accucompare.selection import DumpFormat


def _belongs(name: str) -> bool:
    return NAME.fullmatch(name) is not None


def _open(path: Path, naming: Naming) -> Dump:
    steps = step_folders(path, _belongs, "CANN's kernel dumps")
    parts = tuple(ItemPart(0, step, partial(_items, folder)) for step, folder in steps)
    note = (
        "kernels are listed under their own names; which layer ran one, CANN does not say: --map"
        " brings the two together"
    )
    return Dump(parts, (Role.INPUT, Role.OUTPUT), partial=True, notes=(*notes_of(path), note))


def _items(folder: Path) -> Iterator[Item | NotImported]:
    """The tensors of all kernels, in the order of their timestamps."""
    found = []
    for path in files_in(folder):
        match = NAME.fullmatch(path.name)
        if is_note(path.name):
            yield NotImported(path.name, "what the device noted of an overflow, which is no tensor")
        elif match is None:
            yield NotImported(
                path.name,
                "its name is none of a kernel dump, OP_TYPE.OP_NAME.TASK.STREAM.TIMESTAMP",
            )
        else:
            found.append((int(match["time"]), int(match["task"]), path, match))
    calls: Counter[str] = Counter()
    for _, _, path, match in sorted(found, key=lambda each: each[:3]):
        try:
            kernel = read_header(path)
        except UnreadableError as error:
            name = _module_name(match["name"])
            yield Item(name, Role.OUTPUT, "", calls[name], type=match["type"], load=_failing(error))
            calls[name] += 1
            continue
        name = _module_name(kernel.name or match["name"])
        for role, tensors in ((Role.INPUT, kernel.inputs), (Role.OUTPUT, kernel.outputs)):
            for number, tensor in enumerate(tensors):
                # as for a module's only output
                path_in_call = "" if role is Role.OUTPUT and len(tensors) == 1 else str(number)
                place = Item(name, role, path_in_call, calls[name], type=match["type"])
                yield _item(place, tensor, path)
        calls[name] += 1


def _module_name(name: str) -> str:
    return name.strip("/").replace("/", ".")


def _item(place: Item, tensor: Tensor, path: Path) -> Item | NotImported:
    what = f"{place.name} call {place.call} {place.role.value}.{place.path}"
    if tensor.why_not:
        return NotImported(what, tensor.why_not)
    return Item(
        place.name,
        place.role,
        place.path,
        place.call,
        tensor.dtype or "",
        load=partial(load, tensor, path),
        type=place.type,
    )


def _failing(error: UnreadableError) -> Callable[[], LoadedItem]:
    def load() -> LoadedItem:
        raise error

    return load


CANN_FORMAT = Format(
    DumpFormat.CANN.value,
    "CANN's kernel dump",
    lambda path: bool(folders_with(path, _belongs)),
    _open,
    "files named OP_TYPE.OP_NAME.TASK.STREAM.TIMESTAMP",
)
