"""What msaccucmp makes of CANN's kernel dumps:
``{op_type}.{op_name}.{task_id}.{stream_id}.{timestamp}.{input|output}.{n}.npy``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from accucompare.bundle.format import Role
from accucompare.dumps.dump_files import load_npy
from accucompare.dumps.folders import files_in, folders_with, step_folders
from accucompare.dumps.items import Dump, Format, Item, ItemPart, Naming, NotImported
from accucompare.dumps.kernel_files import NPY_NAME
from accucompare.dumps.overflows import is_note, notes_of
from accucompare.selection import DumpFormat


def _belongs(name: str) -> bool:
    return NPY_NAME.fullmatch(name) is not None


def _open(path: Path, naming: Naming) -> Dump:
    steps = step_folders(path, _belongs, "msaccucmp's .npy files")
    parts = tuple(ItemPart(0, step, partial(_items, folder)) for step, folder in steps)
    note = (
        "kernels are listed under their own names, with slashes as msaccucmp writes them, as _; "
        "which layer ran one, CANN does not say: --map brings the two together"
    )
    return Dump(parts, (Role.INPUT, Role.OUTPUT), partial=True, notes=(*notes_of(path), note))


def _items(folder: Path) -> Iterator[Item | NotImported]:
    """The tensors of all kernels, in the order of their timestamps."""
    found = []
    for path in files_in(folder):
        match = NPY_NAME.fullmatch(path.name)
        if is_note(path.name):
            yield NotImported(path.name, "what the device noted of an overflow, which is no tensor")
        elif match is None:
            yield NotImported(
                path.name,
                "its name is none of msaccucmp's,"
                " OP_TYPE.OP_NAME.TASK.STREAM.TIMESTAMP.output.N.npy",
            )
        else:
            found.append(
                (
                    (
                        int(match["time"]),
                        int(match["task"]),
                        match["kernel"],
                        match["role"] == "output",
                        int(match["number"]),
                    ),
                    path,
                    match,
                )
            )
    outputs = Counter(match["kernel"] for _, _, match in found if match["role"] == Role.OUTPUT)
    numbers: dict[str, dict[str, int]] = {}
    for _, path, match in sorted(found, key=lambda each: each[0]):
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


MSACCUCMP_FORMAT = Format(
    DumpFormat.MSACCUCMP.value,
    "msaccucmp",
    lambda path: bool(folders_with(path, _belongs)),
    _open,
    "files named OP_TYPE.OP_NAME.TASK.STREAM.TIMESTAMP.output.N.npy",
)
