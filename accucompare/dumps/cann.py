"""Kernel dumps of CANN, one call per kernel, in the order of their timestamps; and what msaccucmp
makes of them: ``{op_type}.{op_name}.{task_id}.{stream_id}.{timestamp}.{input|output}.{n}.npy``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from accucompare.bundle.format import Role
from accucompare.dumps.dump_files import UnreadableError, load_npy
from accucompare.dumps.folders import files_in, folders_with, step_folders
from accucompare.dumps.items import Dump, Format, Item, ItemPart, LoadedItem, Naming, NotImported
from accucompare.dumps.kernel_files import NAME, NPY_NAME, Tensor, load, read_header
from accucompare.dumps.overflows import is_note, notes_of
from accucompare.selection import DumpFormat

#: A file, and the parts of its name.
_Found = tuple[Path, re.Match[str]]
_ItemsIn = Callable[[Path], Iterator[Item | NotImported]]


def _format(
    name: DumpFormat,
    title: str,
    tool: str,
    pattern: re.Pattern[str],
    items: _ItemsIn,
    as_written: str,
) -> Format:
    """``tool``: whose files they are; ``as_written``: how kernels' names are changed."""

    def belongs(name: str) -> bool:
        return pattern.fullmatch(name) is not None

    def opened(path: Path, naming: Naming) -> Dump:
        steps = step_folders(path, belongs, tool)
        parts = tuple(ItemPart(0, step, partial(items, folder)) for step, folder in steps)
        note = (
            f"kernels are listed under their own names{as_written}; which layer ran one, CANN does"
            " not say: --map brings the two together"
        )
        notes = (*notes_of(path), note)
        return Dump((Role.INPUT, Role.OUTPUT), parts=parts, partial=True, notes=notes)

    ending = "" if pattern is NAME else ".output.N.npy"
    looks_like = f"files named OP_TYPE.OP_NAME.TASK.STREAM.TIMESTAMP{ending}"
    return Format(
        name.value, title, lambda path: bool(folders_with(path, belongs)), opened, looks_like
    )


def _sorted_out(
    folder: Path, pattern: re.Pattern[str], not_so: str, found: list[_Found]
) -> Iterator[NotImported]:
    """What is no tensor's file; ``found`` gets those that are."""
    for path in files_in(folder):
        match = pattern.fullmatch(path.name)
        if is_note(path.name):
            yield NotImported(path.name, "what the device noted of an overflow, which is no tensor")
        elif match is None:
            yield NotImported(path.name, f"its name is none of {not_so}")
        else:
            found.append((path, match))


def _kernels(folder: Path) -> Iterator[Item | NotImported]:
    """The tensors of all kernels, in the order of their timestamps."""
    found: list[_Found] = []
    yield from _sorted_out(
        folder, NAME, "a kernel dump, OP_TYPE.OP_NAME.TASK.STREAM.TIMESTAMP", found
    )
    found.sort(key=lambda each: (int(each[1]["time"]), int(each[1]["task"]), each[0]))
    calls: Counter[str] = Counter()
    for path, match in found:
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


def _npy_files(folder: Path) -> Iterator[Item | NotImported]:
    """The same of msaccucmp's files."""
    found: list[_Found] = []
    yield from _sorted_out(
        folder, NPY_NAME, "msaccucmp's, OP_TYPE.OP_NAME.TASK.STREAM.TIMESTAMP.output.N.npy", found
    )
    found.sort(key=lambda each: _order(each[1]))
    outputs = Counter(match["kernel"] for _, match in found if match["role"] == Role.OUTPUT)
    numbers: dict[str, dict[str, int]] = {}
    for path, match in found:
        kernels = numbers.setdefault(match["name"], {})
        call = kernels.setdefault(match["kernel"], len(kernels))
        number = str(int(match["number"])) + match["more"]
        # as for a module's only output
        alone = match["role"] == Role.OUTPUT and outputs[match["kernel"]] == 1
        yield Item(
            match["name"],
            Role(match["role"]),
            "" if alone else number,
            call,
            load=partial(load_npy, path),
            type=match["type"],
        )


def _order(match: re.Match[str]) -> tuple[int, int, str, bool, int]:
    return (
        int(match["time"]),
        int(match["task"]),
        match["kernel"],
        match["role"] == "output",
        int(match["number"]),
    )


CANN_FORMAT = _format(
    DumpFormat.CANN, "CANN's kernel dump", "CANN's kernel dumps", NAME, _kernels, ""
)
MSACCUCMP_FORMAT = _format(
    DumpFormat.MSACCUCMP,
    "msaccucmp",
    "msaccucmp's .npy files",
    NPY_NAME,
    _npy_files,
    ", with slashes as msaccucmp writes them, as _",
)
