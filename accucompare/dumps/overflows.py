"""The operators that overflowed on an NPU: files that CANN writes beside its kernel dumps when told
to look for overflows.

``Opdebug.Node_OpDebug.{task_id}.{stream_id}.{timestamp}`` is a kernel dump whose output is the
device's note, in one of two layouts. msaccucmp makes JSON of it, under the same name with
``.output.0.json``. The operator's task is the one inside the note, not in the file's name: its
kernel dump is the one of that task and stream in the same folder."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from accucompare.dumps.dump_files import UnreadableError, load_npy, read_json, size_of
from accucompare.dumps.folders import files_in, folders_with
from accucompare.dumps.items import LoadedItem
from accucompare.dumps.kernel_files import NAME, NPY_NAME, load, read_header
from accucompare.errors import BundleError
from accucompare.numbers import DTYPES, Kind, summarize, widen
from accucompare.text import counted

_DEBUG = re.compile(
    r"(?P<noted>opdebug\.node_opdebug\.\d{1,18}(?:\.\d{1,18}){0,2}"
    r"\.(?P<time>\d{10,20})(?:\.\d{1,9}){0,4})(?P<json>\.output\.\d{1,6}\.json)?",
    re.IGNORECASE,
)
_LONGEST = 1 << 20  # bytes of a note; it has 2,048, and its JSON a little more

#: The older layout has 2,048 bytes: of each unit where its facts begin, and where its status does.
_OLDER_SIZE = 2048
_OLDER = {"DHA Atomic Add": (0, 512), "L2 Atomic Add": (128, 768), "AI Core": (256, 1040)}
_MAGIC = 0x5A5A5A5A  # begins the newer layout
#: The newer layout: a unit's name by its number, and how many numbers precede its status.
_NEWER = {0: ("AIC", 10), 1: ("AIV", 10), 2: ("AICPU", 7), 3: ("SDMA", 9)}

#: What the bits of a core's status mean.
_BITS = {
    3: "the smallest signed integer was negated",
    4: "integer arithmetic overflowed",
    5: "floating-point arithmetic overflowed",
    6: "floating-point arithmetic underflowed",
    7: "a negative number was converted to an unsigned integer",
    8: "a conversion to float16 overflowed",
    9: "a conversion to float16 underflowed",
    10: "the sum of a matrix product overflowed",
    11: "the sum of a matrix product underflowed",
    13: "a scalar instruction was given NaN or Inf",
    14: "a vector instruction was given NaN or Inf",
    15: "a matrix product was given NaN or Inf",
    61: "a copy was given NaN or Inf",
}
_CORES = ("AI Core", "AIC", "AIV")
_ATOMIC = (
    "the atomic addition overflowed",
    "the atomic addition underflowed",
    "the atomic addition was given NaN as the number to add",
    "the atomic addition was given NaN as the number to add to",
    "the atomic addition was given NaN twice",
)
#: For an atomic addition, which status comes first.
_ATOMIC_FIRST = {"DHA Atomic Add": 9, "L2 Atomic Add": 1}


@dataclass(frozen=True)
class OverflowedOperator:
    """The operator that overflowed, and its outputs' loaders, which raise ``UnreadableError``."""

    type: str
    name: str
    outputs: tuple[tuple[str, Callable[[], LoadedItem]], ...]


@dataclass(frozen=True)
class Overflow:
    """One overflow, as a unit of the device noted it."""

    file: Path
    time: int  # when it was written, in microseconds
    # of the device: ``AI Core``, ``DHA Atomic Add``, ``L2 Atomic Add``, ``AIC``, ``AIV``,
    # ``AICPU``, ``SDMA``
    unit: str
    task: int
    stream: int
    model: int
    status: tuple[int, ...]  # not 0; 64 bits per number
    operator: OverflowedOperator | None  # ``None`` if its dump is not in the same folder

    @property
    def name(self) -> str:
        """The operator, as far as it is known."""
        if self.operator is None:
            return "an operator without a dump"
        return f"{self.operator.type} {self.operator.name}"

    @property
    def what(self) -> str:
        """What happened, in words, with the status as a number."""
        first = _ATOMIC_FIRST.get(self.unit)
        words = []
        for status in self.status:
            if self.unit in _CORES:
                words += [_BITS.get(bit, f"bit {bit}") for bit in range(64) if status >> bit & 1]
            elif first is not None and first <= status < first + len(_ATOMIC):
                words.append(_ATOMIC[status - first])
        numbers = ", ".join(f"{status} ({status:#x})" for status in self.status)
        return f"{', '.join(dict.fromkeys(words)) or 'overflowed'}; {self.unit} status {numbers}"

    @property
    def where(self) -> str:
        return f"task {self.task}, stream {self.stream}, model {self.model}"


@dataclass(frozen=True)
class Overflows:
    """All overflows below a folder, by time, and the unreadable files, each with the reason."""

    found: list[Overflow]
    unreadable: list[str]


def is_note(name: str) -> bool:
    """Whether a file's name is a note's, raw or as JSON."""
    return _DEBUG.fullmatch(name) is not None


def holds_overflows(path: Path) -> bool:
    """Whether a note is in a folder or below it. Never raises for hostile content."""
    return bool(folders_with(path, is_note))


def overflows_in(path: Path) -> Overflows:
    """What the notes in a folder and below it say. Raises BundleError if a folder cannot be read,
    or a link leads out of it."""
    found: list[Overflow] = []
    unreadable: list[str] = []
    for folder in folders_with(path, is_note):
        files = files_in(folder)
        noted: dict[str, tuple[int, Path]] = {}
        for file in files:
            match = _DEBUG.fullmatch(file.name)
            # the bits and their JSON say the same
            if match is not None and (match["json"] is None or match["noted"] not in noted):
                noted[match["noted"]] = int(match["time"]), file
        for time, file in noted.values():
            try:
                units = _units(file)
            except (UnreadableError, BundleError) as error:
                unreadable.append(str(error))
                continue
            found += [
                Overflow(file, time, *unit, _operator(files, unit[1], unit[2], time))
                for unit in units
            ]
    found.sort(key=lambda each: (each.time, each.file))
    return Overflows(found, unreadable)


def notes_of(path: Path, most: int = 5) -> tuple[str, ...]:
    """A sentence for each of the first overflows, and the number of the others."""
    overflows = overflows_in(path)
    said = [
        f"overflowed: {each.name}: {each.what}; {each.where}" for each in overflows.found[:most]
    ]
    if len(overflows.found) > most:
        said.append(
            f"overflowed: {len(overflows.found) - most:,} more; accucompare overflow {path}"
            " shows all"
        )
    return (*said, *(f"not read: {why}" for why in overflows.unreadable[:most]))


def outputs_of(operator: OverflowedOperator) -> Iterator[tuple[str, str]]:
    """Each output of an operator, and its values in words."""
    for name, load_output in operator.outputs:
        try:
            yield name, _described(load_output())
        except UnreadableError as error:
            yield name, str(error)


def _described(loaded: LoadedItem) -> str:
    dtype = DTYPES[loaded.dtype]
    statistics = summarize(loaded.array, dtype)
    what = f"{loaded.dtype} {list(loaded.array.shape)}"
    if dtype.kind not in (Kind.FLOAT, Kind.COMPLEX):
        return what
    bad = [
        f"{count:,} {name}"
        for count, name in ((statistics.nan, "NaN"), (statistics.inf, "Inf"))
        if count
    ]
    at_most = 0
    if dtype.kind is Kind.FLOAT and dtype.largest in (statistics.max, -(statistics.min or 0.0)):
        at_most = int(np.count_nonzero(np.abs(widen(loaded.array, dtype)) == dtype.largest))
    saturated = [f"{at_most:,} at ±{dtype.largest:g} (the largest of the type)"] if at_most else []
    if bad or saturated:
        return f"{what}: {', '.join([*bad, *saturated])} of {counted(loaded.array.size, 'value')}"
    if statistics.min is None or statistics.max is None:
        return f"{what}: no values"
    return f"{what}: finite, from {statistics.min:g} to {statistics.max:g}"


def _operator(files: list[Path], task: int, stream: int, time: int) -> OverflowedOperator | None:
    """The operator of a task, by the dump nearest in time; for msaccucmp, by one kernel's files."""
    nearest: tuple[int, str] | None = None
    by_kernel: dict[str, list[tuple[Path, re.Match[str]]]] = {}
    for file in files:
        match = NAME.fullmatch(file.name) or NPY_NAME.fullmatch(file.name)
        if (
            match is None
            or is_note(match["kernel"])
            or int(match["task"]) != task
            or int(match["stream"] or stream) != stream
        ):
            continue
        by_kernel.setdefault(match["kernel"], []).append((file, match))
        apart = abs(int(match["time"]) - time)
        if nearest is None or (apart, match["kernel"]) < nearest:
            nearest = apart, match["kernel"]
    if nearest is None:
        return None
    mine = by_kernel[nearest[1]]
    _, match = mine[0]
    name = match["name"]
    outputs: list[tuple[str, Callable[[], LoadedItem]]] = []
    if match.re is NAME:  # msaccucmp's files beside it hold the same
        try:
            kernel = read_header(mine[0][0])
        except UnreadableError as error:
            return OverflowedOperator(
                match["type"], name, (("output", partial(_fail, str(error))),)
            )
        name = kernel.name or name
        outputs += [
            (f"output.{number}", partial(load, tensor, mine[0][0]))
            for number, tensor in enumerate(kernel.outputs)
        ]
    else:
        written = [(file, each) for file, each in mine if each["role"] == "output"]
        outputs += [
            (f"output.{int(each['number'])}{each['more']}", partial(load_npy, file))
            for file, each in written
        ]
    return OverflowedOperator(match["type"], name, tuple(outputs))


def _fail(why: str) -> LoadedItem:
    raise UnreadableError(why)


_Unit = tuple[str, int, int, int, tuple[int, ...]]


def _units(file: Path) -> list[_Unit]:
    """The units that noted an overflow: name, task, stream, model and status. Raises
    UnreadableError or BundleError if the file is damaged, or no unit has a status."""
    try:
        noted = list(_in_json(file) if file.name.lower().endswith(".json") else _in_dump(file))
    except (struct.error, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableError(
            f"{file}: is damaged, or of a layout that is not known ({str(error)[:200]})"
        ) from None
    found = [unit for unit in noted if any(unit[4])]
    if not found:
        raise UnreadableError(
            f"{file}: its status is 0, though CANN writes such a file only where something"
            " overflowed"
        )
    return found


def _in_dump(file: Path) -> Iterator[_Unit]:
    outputs = read_header(file).outputs
    if not outputs:
        raise ValueError("it has no output")
    for tensor in outputs:
        if tensor.size > _LONGEST:
            raise ValueError(f"it has {tensor.size:,} bytes")
        with file.open("rb") as opened:
            opened.seek(tensor.at)
            content = opened.read(tensor.size)
        if struct.unpack_from("<I", content)[0] == _MAGIC:
            yield _newer(content)
            continue
        if len(content) != _OLDER_SIZE:
            raise ValueError(f"it has {len(content):,} bytes, and not {_OLDER_SIZE:,}")
        for unit, (facts, status) in _OLDER.items():
            model, stream, task = struct.unpack_from("<QQQ", content, facts)
            yield unit, task, stream, model, struct.unpack_from("<Q", content, status)


def _newer(content: bytes) -> _Unit:
    _, _, valid, kind, _, length = struct.unpack_from("<6I", content)
    if valid != 1 or kind not in _NEWER:
        raise ValueError(f"valid is {valid}, and the unit's number {kind}")
    unit, before = _NEWER[kind]
    if not before < length // 8 <= 64:
        raise ValueError(f"a unit's facts have {length:,} bytes")
    model, stream, task = struct.unpack_from("<QQQ", content, 24)
    return (
        unit,
        task,
        stream,
        model,
        struct.unpack_from(f"<{length // 8 - before}Q", content, 24 + 8 * before),
    )


def _in_json(file: Path) -> Iterator[_Unit]:
    if size_of(file) > _LONGEST:
        raise ValueError(f"it has {size_of(file):,} bytes")
    found = read_json(file)
    units = (
        {found["acc_list"]["acc_type"]: found["acc_list"]["data"]} if "magic" in found else found
    )
    for unit, facts in units.items():
        status = facts["status"]
        numbers = tuple(
            _number(each) for each in (status if isinstance(status, list) else [status])[:64]
        )
        yield (
            str(unit)[:40],
            _number(facts["task_id"]),
            _number(facts["stream_id"]),
            _number(facts["model_id"]),
            numbers,
        )


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{str(value)[:40]!r} is no number of 64 bits")
    return value
