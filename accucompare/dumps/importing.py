"""Writes a bundle from another tool's dump: ``accucompare import``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from accucompare.bundle.format import TRAINING_ROLES, DumpFacts, Key, Layout, Manifest, Record, Role
from accucompare.bundle.writing import (
    BundleWriter,
    discard_unfinished,
    forget_previous,
    locked,
    prepare_directory,
    refuse_directory,
)
from accucompare.dumps.dump_files import UnreadableError
from accucompare.dumps.formats import format_of
from accucompare.dumps.items import Dump, Format, Item, ItemPart, LoadedItem, Naming, NotImported
from accucompare.errors import BundleError, UsageError
from accucompare.numbers import DTYPES, fingerprint
from accucompare.places import Place
from accucompare.selection import Mode

#: Bytes of tensors that may wait to be written: a few tensors.
_QUEUE_BYTES = 64 << 20
_NAMES_AS_THEY_ARE = Naming()
_BETWEEN_REPORTS = 16  # items between two reports of progress

#: Called with the items done, and the items known so far: a step that has not begun counts as one.
ImportProgress = Callable[[int, int], None]


@dataclass
class ImportResult:
    """What came of an import."""

    format: Format
    # records, without_values, weights: how many there are in the bundle
    records: int = 0
    without_values: int = 0
    weights: int = 0
    # what has no counterpart, each with its step and rank
    left_out: list[NotImported] = field(default_factory=list)
    # what could not be read, each with the reason; the bundle is then incomplete
    unreadable: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what a reader of the bundle is to know


def import_dump(
    path: Path,
    out: Place,
    *,
    format_name: str | None = None,
    naming: Naming = _NAMES_AS_THEY_ARE,
    overwrite: bool = False,
    progress: ImportProgress | None = None,
) -> ImportResult:
    """Make a bundle of another tool's dump, with a few tensors in memory.

    Args:
        format_name: one of ``formats.FORMATS``; ``None`` to recognise it.
        naming: what the user says of the dump's names, for the formats that need it.

    Returns:
        The result. If anything could not be read, the bundle is marked incomplete.

    Raises:
        UsageError: if no format is recognised, or the pattern does not fit.
        BundleError: if the dump is damaged or hostile.
        CaptureError: if the bundle cannot be written. After any of these, and Ctrl-C, nothing is
            left, and an earlier bundle is back.
    """
    chosen = format_of(path, format_name)
    if naming.pattern is not None and not chosen.takes_pattern:
        raise UsageError(
            f"--name-pattern: dumps of {chosen.title} have names of their own; leave it out"
        )
    if naming.onnx is not None and not chosen.takes_onnx:
        raise UsageError(f"--onnx: dumps of {chosen.title} are of no ONNX model; leave it out")
    refuse_directory(out, overwrite)
    dump = chosen.open(path, naming)
    if not dump.parts:
        raise BundleError(f"{path}: holds nothing to import")
    with locked(out):
        prepare_directory(out, overwrite)
        try:
            found = _Import(chosen, path, out, dump).run(progress or (lambda done, total: None))
        except BaseException:
            discard_unfinished(out)
            raise
        forget_previous(out)
    return found


class _Import:
    """One running import."""

    def __init__(self, chosen: Format, path: Path, out: Place, dump: Dump) -> None:
        self._path = path
        self._out = out
        self._dump = dump
        self._found = ImportResult(chosen, notes=list(dump.notes))

    def run(self, progress: ImportProgress) -> ImportResult:
        left, done = len(self._dump.parts), 0
        ranks = [
            (rank, list(parts))
            for rank, parts in groupby(self._dump.parts, key=lambda part: part.rank)
        ]
        for rank, parts in ranks:
            notes = list(self._dump.notes) if rank == 0 else []
            manifest = Manifest(
                ranks=1 + max(rank for rank, _ in ranks),
                environment=dict(self._dump.environment),
                notes=notes,
            )
            with BundleWriter(self._out, manifest, rank, _QUEUE_BYTES) as writer:
                rank_of = _Rank(writer, self._found)
                for part in parts:
                    left -= 1
                    with _ended(writer, part.step):
                        items = list(part.items())  # without their values
                        for place, item in enumerate(items):
                            rank_of.add(part, item)
                            if place % _BETWEEN_REPORTS == 0:
                                progress(done + place, done + len(items) + left)
                        rank_of.name_modules(part)
                    done += len(items)
                    progress(done, done + left)
                writer.close(rank_of.conclude(self._dump))
        if not self._found.records:
            raise BundleError(
                f"{self._path}: nothing in it has a counterpart in a"
                f" bundle{_most_of(self._found.left_out)}"
            )
        return self._found


@contextlib.contextmanager
def _ended(writer: BundleWriter, step: int) -> Iterator[None]:
    """End a step of the bundle even if it fails, so that its files are closed."""
    partial = True
    try:
        yield
        partial = False
    finally:
        writer.end_step(step, partial)


class _Rank:
    """The steps of one rank."""

    def __init__(self, writer: BundleWriter, found: ImportResult) -> None:
        self._writer = writer
        self._found = found
        self._left_out: list[NotImported] = []
        self._unreadable: list[str] = []
        self._roles: set[Role] = set()
        self._part: ItemPart | None = None
        self._order = 0
        self._seen: set[Key] = set()
        self._with_values = self._without_values = 0
        self._modules: dict[str, str] = {}
        self._weights: dict[str, dict[str, Any]] = {}

    def add(self, part: ItemPart, item: Item | NotImported) -> None:
        """Queue one item of a step."""
        if self._part is not part:
            self._part, self._order, self._seen = part, 0, set()
        if isinstance(item, NotImported):
            self._left_out.append(
                NotImported(f"{item.what} (step {part.step}, rank {part.rank})", item.why)
            )
            return
        key = Key(part.rank, part.step, item.name, item.call, item.role, item.path)
        if key in self._seen:
            raise BundleError(f"{key}: is in the dump twice; import one of the two alone")
        self._seen.add(key)
        if item.role is Role.PARAM:
            self._add_weight(key, item)
        else:
            self._add_record(key, item)

    def name_modules(self, part: ItemPart) -> None:
        """Note the modules that a step names, once all of it is queued."""
        self._modules.update(part.modules())

    def _add_record(self, key: Key, item: Item) -> None:
        layout, detail, loaded = item.layout, item.detail, None
        shape, dtype = item.shape or (), item.dtype
        if item.load is not None:
            try:
                loaded = _checked(item, item.load())
                shape, dtype = loaded.array.shape, loaded.dtype
            except UnreadableError as reason:
                layout, detail = Layout.UNREADABLE, str(reason)
                self._unreadable.append(f"{key}: {reason}")
        elif layout is Layout.STRIDED and item.statistics is not None and item.dtype not in DTYPES:
            layout, detail = Layout.UNREADABLE, f"its type {item.dtype!r} is none of PyTorch's"
            self._left_out.append(NotImported(f"the statistics of {key}", detail))
        record = Record(
            *key,
            order=self._order,
            type=item.type,
            parent=item.parent,
            shape=shape,
            dtype=dtype,
            layout=layout,
            statistics=(
                None if loaded is not None or layout is Layout.UNREADABLE else item.statistics
            ),
            detail=detail,
        )
        self._order += 1
        self._roles.add(key.role)
        self._with_values += loaded is not None
        self._without_values += loaded is None
        self._writer.add(record, None if loaded is None else loaded.array)
        if self._writer.failure is not None:
            raise self._writer.failure

    def _add_weight(self, key: Key, item: Item) -> None:
        """Note a weight's digest. Those of the first step count, as in a capture."""
        name = f"{key.name}.{key.path}" if key.name else key.path
        if name in self._weights:
            return
        if item.load is None:
            self._left_out.append(
                NotImported(
                    f"the weight {name}", "the dump has its statistics only, which prove nothing"
                )
            )
            return
        try:
            loaded = _checked(item, item.load())
        except UnreadableError as reason:
            self._unreadable.append(f"the weight {name}: {reason}")
            return
        digests = fingerprint(loaded.array, DTYPES[loaded.dtype])
        self._weights[name] = {
            "dtype": loaded.dtype,
            "shape": list(loaded.array.shape),
            "digests": digests,
        }

    def conclude(self, dump: Dump) -> dict[str, Any] | None:
        """Complete the manifest; returns why the bundle is incomplete, if it is."""
        manifest, found = self._writer.manifest, self._found
        trained = not self._roles.isdisjoint(TRAINING_ROLES)
        manifest.capture.update(
            mode=Mode.TENSORS.value if self._with_values else Mode.STATS.value,
            backward=trained,
            no_backward=not trained,
            imported={
                "format": found.format.title,
                **{name: getattr(dump, name) for name in DumpFacts.__struct_fields__},
                "roles": [Role(role).value for role in dump.roles],
                "left_out": [{"what": each.what, "why": each.why} for each in self._left_out],
            },
        )
        manifest.model.update(modules=self._modules, parameters=self._weights)
        manifest.notes += _in_short(self._left_out)
        found.notes += _in_short(self._left_out)
        found.left_out += self._left_out
        found.unreadable += self._unreadable
        found.records += self._with_values + self._without_values
        found.without_values += self._without_values
        found.weights += len(self._weights)
        if not self._unreadable:
            return None
        more = f", and {len(self._unreadable) - 1} more" if len(self._unreadable) > 1 else ""
        return {"error": f"values of the dump cannot be read: {self._unreadable[0]}{more}"}


def _checked(item: Item, loaded: LoadedItem) -> LoadedItem:
    """What was loaded, checked against the dump's index; UnreadableError if they differ."""
    if item.shape is not None and item.shape != loaded.array.shape:
        raise UnreadableError(
            f"its file holds the shape {list(loaded.array.shape)}, but the dump says"
            f" {list(item.shape)}"
        )
    if item.dtype and item.dtype != loaded.dtype:
        raise UnreadableError(f"its file holds {loaded.dtype}, but the dump says {item.dtype}")
    return loaded


def _in_short(left_out: Iterable[NotImported]) -> Iterator[str]:
    """A sentence for each reason why something was left out."""
    by_reason: dict[str, list[str]] = {}
    for each in left_out:
        by_reason.setdefault(each.why, []).append(each.what)
    for why, what in by_reason.items():
        more = f" and {len(what) - 1:,} more" if len(what) > 1 else ""
        yield f"left out: {what[0]}{more}: {why}"


def _most_of(left_out: list[NotImported]) -> str:
    return "".join(f"; {each}" for each in list(_in_short(left_out))[:3])
