"""What ``capture``, ``import``, ``show`` and ``verify`` print of a bundle."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from accucompare.bundle.format import Record, display_name
from accucompare.bundle.reading import (
    Bundle,
    GlobalTensor,
    Index,
    StoredTensor,
    Verified,
    open_bundle,
)
from accucompare.errors import RecordError, UsageError
from accucompare.files import written_whole
from accucompare.numbers import DTYPES, Array, DType, widen
from accucompare.places import Place, Url
from accucompare.report.console import WIDTH, open_console, safe_text
from accucompare.report.headline import Headline
from accucompare.report.table import COUNT, EXCESS, GENERAL, Column, Value
from accucompare.report.terminal.tables import NAME_WIDTH, print_table
from accucompare.report.words import training_words
from accucompare.selection import Mode
from accucompare.text import counted, first_few

_DAMAGE_SHOWN = 10
#: Bytes: a smaller tensor is read whole, and verified, before a part of it is shown.
_VERIFIED = 256 << 20
_VALUES_SHOWN = 200  # larger tensors show the ends of each axis


def print_capture(path: Place) -> None:
    with open_bundle(path) as bundle:
        steps = bundle.steps()
        records = sum(entry.records for _, entry in steps)
        size = sum(_sizes(path))
        console = open_console()
        series = 0 if steps else len(bundle.manifest.series)
        run = [each.run_steps for each in bundle.manifests.values()]
        number = len({entry.step for entries in run for entry in entries})
        ranks = f" of {counted(bundle.ranks, 'rank')}" if bundle.ranks > 1 else ""
        of_steps = f"{counted(number, 'step')}{ranks}, {counted(records, 'record')}, {_size(size)}"
        what = f"the series of {counted(series, 'step')}, no records" if series else of_steps
        console.say(f"captured {what} in {path}")
        idle = bundle.manifest.model.get("not_called") or []
        if idle:
            shown = first_few([display_name(name) for name in idle])
            console.say(f"registered but never called: {shown}")
        for note in bundle.manifest.notes:
            console.say(f"note: {note}")


def _sizes(path: Place) -> Iterable[int]:
    """The sizes of the files of all ranks."""
    if isinstance(path, Url):
        return [size for name, size in path.below().items() if name.startswith("rank")]
    return [file.stat().st_size for file in path.glob("rank*/*")]


def print_import(
    path: Place, tool: str, records: int, without_values: int, weights: int, notes: list[str]
) -> None:
    """Say what was imported, and what was left out.

    Args:
        path: the bundle.
        tool: whose dump it was made of.
        records, without_values: all records; those with statistics only, or of no tensor.
        weights: how many weights' digests the manifest has.
        notes: sentences, among them what was left out.
    """
    console = open_console()
    what = counted(records, "record") + (
        f" ({without_values} of them without values)" if without_values else ""
    )
    weighed = f" and the digests of {weights} weights" if weights else ""
    console.say(f"imported {what}{weighed} from {tool} into {path}")
    for note in notes:
        console.say(f"note: {note}")


def print_verified(bundle: Bundle, verified: Verified, quiet: bool) -> None:
    console = open_console()
    of_tensors = (
        f", {_size(verified.nbytes)} read"
        if verified.nbytes
        else ", which keep no tensors"
        if verified.records and not verified.damage
        else ""
    )
    amount = f"{counted(verified.records, 'record')}{of_tensors}"
    if verified.damage:
        word, what = Headline.TROUBLE, f"{len(verified.damage)} damaged; {amount}"
    elif not bundle.complete:
        word, what = Headline.TROUBLE, f"incomplete; what there is is sound: {amount}"
    else:
        word, what = Headline.OK, f"every record is as it was written; {amount}"
    style = "bold green" if word is Headline.OK else "bold red"
    console.answer(word.value, style, f"{bundle.path}: {what}")
    for damage in [] if quiet else verified.damage[:_DAMAGE_SHOWN]:
        console.say(damage, "red")
    if not quiet and len(verified.damage) > _DAMAGE_SHOWN:
        console.print(f"… and {len(verified.damage) - _DAMAGE_SHOWN} more")


def print_records(bundle: Bundle, glob: str | None = None, **place: Any) -> None:
    """List a bundle's records with type, role, shape, dtype and statistics. Raises UsageError if
    none matches.

    Args:
        glob: list records of matching layers only; ``None`` for all.
        place: what their step, rank, call, role and path must be; ``None`` for any.
    """
    asked = {what: value for what, value in place.items() if value is not None}
    listed = [
        record
        for record in bundle.records()
        if glob is None or fnmatchcase(display_name(record.name), glob)
    ]
    records = [
        record
        for record in listed
        if all(getattr(record, what) == value for what, value in asked.items())
    ]
    if not records and (asked or glob is not None):
        raise UsageError(f"{bundle.path}: {_none_listed(listed, asked, glob, bundle.path)}")
    console = open_console()
    if not bundle.complete:
        console.print(safe_text(f"{bundle.path} is incomplete", "yellow"))
    print_table(console, _RECORDS if len(bundle.steps()) > 1 else _RECORDS[1:], records)


def _none_listed(listed: list[Record], asked: dict[str, Any], glob: str | None, path: Place) -> str:
    """Why no record is listed, with the roles, else the paths, that there are instead."""
    lists = f"`accucompare show {path}` lists them"
    if not listed or not asked:
        return f"no layer matches {glob!r}; {lists}"
    of = f" of a layer that matches {glob!r}" if glob is not None else ""
    places = ", ".join(f"{what} {value or repr(value)}" for what, value in asked.items())
    of_role = [each for each in listed if each.role == asked.get("role", each.role)]
    found: Iterable[str] = ()
    if not of_role:
        what, found = "role", dict.fromkeys(each.role.value for each in listed)
    elif "path" in asked:
        what, found = "path", dict.fromkeys(each.path or "''" for each in of_role)
    there = f"; the {what}s are {first_few([*found], 8)}" if found else ""
    return f"holds no record of {places}{of}{there}; {lists}"


def _statistic(name: str) -> Callable[[Record], Value]:
    return lambda record: None if record.statistics is None else getattr(record.statistics, name)


def _least(record: Record) -> Value:
    """The smallest value; the layout of a value that is never recorded."""
    if record.statistics is not None:
        return record.statistics.min
    return None if record.layout.has_data else record.layout.value


_RECORDS = (
    Column("rank.step", lambda record: f"{record.rank}.{record.step}", GENERAL),
    Column("#", lambda record: record.order, COUNT),
    Column(
        "layer",
        lambda record: display_name(record.name) + (f" #{record.call}" if record.call else ""),
        least=NAME_WIDTH,
    ),
    Column("type", lambda record: record.type, least=12, spare=5),
    Column(
        "role",
        lambda record: f"{record.role.value}{'.' + record.path if record.path else ''}",
        least=12,
    ),
    Column("shape", lambda record: "x".join(map(str, record.shape)) or "-", GENERAL),
    Column("dtype", lambda record: record.dtype or record.detail_and_line[:24], GENERAL),
    Column("min", _least, EXCESS, spare=2),
    Column("max", _statistic("max"), EXCESS, spare=2),
    Column("mean", _statistic("mean"), EXCESS, spare=4),
    Column("L2", _statistic("l2"), EXCESS, spare=3),
    Column(
        "NaN/Inf",
        lambda record: (
            f"{record.statistics.nan}/{record.statistics.inf}" if record.statistics else ""
        ),
        GENERAL,
        spare=1,
    ),
)


def print_tensor(bundle: Bundle, record: Record, slices: str | None, save: Path | None) -> None:
    """Print one tensor's statistics and values, or a part of them; save the values as ``.npy``.

    Raises:
        RecordError: if it is damaged, or its values were not recorded.
        UsageError: if the slice makes no sense for the shape.
        ReportError: if the file cannot be written.
    """
    statistics = record.statistics
    wanted = (
        record.member is not None
        or not record.layout.has_data
        or slices is not None
        or save is not None
    )
    stored = bundle.stored(record) if wanted else None  # raises if there are no values
    index = _index(slices, record.shape) if slices is not None else ()
    if checked := stored is not None and (slices is None or stored.nbytes <= _VERIFIED):
        stored.read()  # to verify it; a block in memory at a time
    console = open_console()
    console.say(f"{record.key}: {record.type}, {record.dtype} {list(record.shape)}")
    if statistics is not None:
        sizes = ", ".join(
            f"{title} {training_words.number_words(getattr(statistics, title.lower()))}"
            for title in ("min", "max", "mean", "L2")
        )
        console.print(f"{sizes}, {statistics.nan} NaN, {statistics.inf} Inf")
    if stored is None:
        mode = bundle.manifest.options.mode
        console.print(
            safe_text(
                "its values were not recorded"
                + (f" (--mode {mode})" if mode not in (None, Mode.TENSORS) else "")
            )
        )
        return
    console.print(_printed(stored, index, DTYPES[record.dtype]))
    if not checked:
        whole = (
            f"only this part of its {_size(stored.nbytes)} was read, unverified; accucompare verify"
            f" {bundle.path} reads all"
        )
        console.say(whole)
    if save is not None:
        try:
            part = widen(stored.part(index), DTYPES[record.dtype])
        except MemoryError:
            raise RecordError(
                f"{record.key}: does not fit into memory; give a part of it (--slice)"
            ) from None
        written_whole(save, lambda temporary: _save(temporary, part))
        console.say(f"saved {part.dtype} {list(part.shape)} to {save}")


def _printed(stored: StoredTensor | GlobalTensor, index: Index, dtype: DType) -> str:
    """A part's values as NumPy prints them. Of a large one only the printed ends are read."""
    shape = stored.shape_of(index)
    if math.prod(shape) <= _VALUES_SHOWN:
        return np.array2string(widen(stored.part(index), dtype), max_line_width=WIDTH)
    # the fourth stands for those between
    ends = [[slice(None)] if length <= 7 else [slice(0, 4), slice(-3, None)] for length in shape]
    shown = np.empty([min(length, 7) for length in shape], dtype.widened)
    for place in itertools.product(*ends):
        shown[place] = widen(stored.part(index, place), dtype)
    return np.array2string(shown, max_line_width=WIDTH, threshold=0)


def _save(path: Path, values: Array) -> None:
    with path.open("wb") as file:  # np.save would append .npy to another suffix
        values = np.ascontiguousarray(values).reshape(values.shape)
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
        # NumPy's own writing does not say why it fails
        file.write(memoryview(values.reshape(-1).view("u1")))


def _index(text: str, shape: tuple[int, ...]) -> Index:
    try:
        parts: Index = tuple(
            _slice_part(part.strip())
            for part in text.strip().strip("[]").split(",")
            if part.strip()
        )
        np.broadcast_to(np.zeros(()), shape)[parts]
        return parts
    except ValueError:
        raise UsageError(
            f"--slice {text!r}: write it as in NumPy, such as '0, :4'; the shape is {list(shape)}"
        ) from None
    except IndexError as error:
        raise UsageError(
            f"--slice {text!r}: cannot be taken of shape {list(shape)} ({error})"
        ) from None


def _slice_part(part: str) -> int | slice | object:
    if part == "...":
        return ...
    if ":" not in part:
        return int(part)
    return slice(*(int(bound) if bound.strip() else None for bound in part.split(":")))


def _size(nbytes: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} GB"
