"""Reading a bundle: which records it holds, and their data, block by block and verified."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from operator import attrgetter
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from accucompare.bundle.format import (
    SERIES_ROLES,
    STATE_ROLES,
    GlobalRecord,
    Key,
    Manifest,
    Record,
    Role,
    SketchFacts,
    StepEntry,
    Windows,
    display_name,
    manifests_of,
    open_lines,
)
from accucompare.bundle.reading.archive import Archive
from accucompare.bundle.reading.global_tensor import GlobalTensor, PartsMemory
from accucompare.bundle.reading.notebook_bundle import bundle_html
from accucompare.bundle.reading.record_lines import records_of_lines
from accucompare.bundle.reading.step_columns import StepColumns
from accucompare.bundle.reading.stored_tensor import StoredTensor, ThreadBuffer, check_digest
from accucompare.bundle.writing import SKETCHES_A_MEMBER, sketches_name
from accucompare.errors import BundleError, RecordError, UsageError
from accucompare.numbers import CHUNK, DTYPES, SKETCH_VERSION, Array, Float64, digest, widen
from accucompare.places import Place, Url, place_of
from accucompare.selection import LEAST_SKETCH_SIZE, MOST_SKETCH_SIZE, Mode

_NEXT = 8  # lists of records requested ahead
_NOWHERE: tuple[Any, ...] = (-1,)
_SMALL = (CHUNK + 16) * 8  # bytes of a member of at most a chunk, with its header
_SKETCHES_HELD = 2  # members of 8 MiB: neighbouring records are compared one after the other
# a step with longer lines on average, or with more bytes, is read line by line
_USUAL_LINE, _MOST_BYTES = 1 << 12, 1 << 28


class _Sketches(NamedTuple):
    """A member that holds sketches, one per row, and which of them hold NaN or Inf."""

    rows: Float64
    damaged: frozenset[int]


class Bundle:
    """A bundle opened for reading by ``open_bundle``; also a context manager.

    Attributes:
        path: its directory, or its URL.
        manifest: rank 0's manifest.
        manifests: every rank's manifest, by rank.
        ranks: how many captured together.
    """

    def __init__(self, path: Place) -> None:
        self.path = path
        self._windows = Windows()
        self.manifest = Manifest.read(path / "manifest.json")
        self.manifests = {0: self.manifest, **manifests_of(path, self.manifest.ranks)}
        self.ranks = self.manifest.ranks
        self.missing_ranks = [rank for rank in range(self.ranks) if rank not in self.manifests]
        self._order = [(rank, entry.step) for rank, entry in self.steps()]
        self._places = {step: place for place, step in enumerate(self._order)}
        self._archives: dict[tuple[int, int | str], Archive] = {}  # by rank and step
        self._opening = threading.Lock()
        self._opening_sketches = threading.Lock()
        # members that hold sketches, by rank, step and number
        self._sketches: dict[tuple[int, int, int], _Sketches] = {}
        self._sketch_facts: dict[int, SketchFacts] = {}  # checked, by rank
        self._buffer = ThreadBuffer()
        self._parts_memory = PartsMemory()

    def __repr__(self) -> str:
        return (
            f"<Bundle {self.path}: {len(self.steps())}"
            f" step(s){'' if self.complete else ', incomplete'}>"
        )

    def _repr_html_(self) -> str:
        return bundle_html(
            self.path, self.manifest, [entry for _, entry in self.steps()], self.complete
        )

    def __enter__(self) -> Bundle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files and forget what was read of a URL; reading opens them again."""
        for archive in self._archives.values():
            archive.close()
        self._archives.clear()
        self._windows.give_up()

    def give_up(self) -> None:
        """Make other threads' reads from silent storage fail. Local files never wait."""
        self._windows.give_up()

    @property
    def complete(self) -> bool:
        """Whether every rank's capture ran to its end."""
        return not self.missing_ranks and all(
            manifest.complete for manifest in self.manifests.values()
        )

    def steps(self) -> list[tuple[int, StepEntry]]:
        """(rank, step) pairs of the finished steps, in order."""
        return [
            (rank, entry)
            for rank, manifest in sorted(self.manifests.items())
            for entry in manifest.steps
        ]

    def identity(self) -> str:
        """A digest (32 hexadecimal digits) of the digests of all finished steps of all ranks.

        A copied bundle has the same."""
        lines = "".join(f"{rank} {entry.step} {entry.digest}\n" for rank, entry in self.steps())
        return xxhash.xxh3_128_hexdigest(lines.encode())

    def records(self) -> Iterator[Record]:
        """Every record of every finished step, by rank, step and execution order. Raises
        BundleError if a step's list of records is missing or damaged."""
        for rank, entry in self.steps():
            yield from self.step_records(rank, entry)

    def step_records(self, rank: int, entry: StepEntry) -> list[Record]:
        """The records of one finished step, in execution order. Errors as ``records``."""
        columns = self.step_columns(rank, entry)
        if columns is not None:
            return list(columns)
        return sorted(self._read_lines(rank, f"step{entry.step}", entry), key=attrgetter("order"))

    def step_columns(self, rank: int, entry: StepEntry) -> StepColumns | None:
        """The same as columns; ``None`` if ``step_records`` must look at each line, which raises
        the errors too."""
        path = self.path / f"rank{rank}" / f"step{entry.step}.jsonl"
        self._expect_after(rank, entry)
        most = min(entry.records * _USUAL_LINE, _MOST_BYTES)
        try:
            with open_lines(path, self._windows) as file:
                content = file.read(most + 1)
        except (OSError, BundleError):
            return None
        if len(content) > most or xxhash.xxh3_128_hexdigest(content) != entry.digest:
            return None
        columns = StepColumns.of_lines(content, rank, entry.step)
        if columns is None or len(columns) != entry.records:
            return None
        return None if columns.outline.roles.intersection(STATE_ROLES) else columns

    def state(self, rank: int = 0) -> Iterator[Record]:
        """The records of the state that a rank saved with ``--save-state``: parameters, buffers,
        case inputs and training state. Raises BundleError if the bundle was captured without it, or
        it is damaged."""
        state = self.manifests[rank].state if rank in self.manifests else None
        if state is None:
            raise BundleError(
                f"{self.path}: holds no model state; capture it with save_state=True (--save-state)"
            )
        yield from self._read_lines(rank, "state", StepEntry(0, **state))

    def load(
        self,
        name: str,
        *,
        call: int = 0,
        role: str = "output",
        path: str | None = None,
        step: int = 0,
        rank: int = 0,
    ) -> Array:
        """Load one record's values.

        Args:
            name: qualified name of the module; ``"(root)"`` or ``""`` for the root.
            call: call index in the step.
            role: as a record has it, such as ``"input"``, ``"grad_output"`` or ``"op_output"``.
            path: place in a nested value; may be left out where the call has a single record of the
                role.

        Returns:
            The values; a type that NumPy lacks is widened exactly (bfloat16 to float32).

        Raises:
            RecordError: if there is no such record, several match, it has no data, or it is
                damaged.
            UsageError: if there is no such role.
        """
        return self.values(self.find(name, call=call, role=role, path=path, step=step, rank=rank))

    def find(
        self,
        name: str,
        *,
        call: int = 0,
        role: str = "output",
        path: str | None = None,
        step: int = 0,
        rank: int = 0,
    ) -> Record:
        """The record that ``load`` would load. Arguments and errors as there."""
        roles = [each.value for each in Role if each not in (*STATE_ROLES, *SERIES_ROLES)]
        if role not in roles:
            raise UsageError(f"role must be one of {', '.join(roles)}, but is {role!r}")
        name = "" if name == display_name("") else name
        entries = [entry for number, entry in self.steps() if (number, entry.step) == (rank, step)]
        wanted = [
            record
            for entry in entries
            for record in self.step_records(rank, entry)
            if (record.name, record.call, record.role) == (name, call, role)
            and path in (None, record.path)
        ]
        if len(wanted) == 1:
            return wanted[0]
        place = f"{self.path}: {Key(rank, step, name, call, Role(role), path or '')}"
        if not wanted:
            names = {record.name for entry in entries for record in self.step_records(rank, entry)}
            raise RecordError(
                f"{place}: no such record; {_nearest(name, names)}`accucompare show {self.path}`"
                " lists them"
            )
        raise RecordError(
            f"{place}: has {len(wanted)} records; name a path:"
            f" {', '.join(repr(r.path) for r in wanted[:8])}"
        )

    def values(self, record: Record) -> Array:
        """A record's verified values in its shape, widened exactly. Errors as ``raw``."""
        return widen(self.raw(record), DTYPES[record.dtype])

    def raw(self, record: Record) -> Array:
        """A record's stored bits in its own shape, verified against the digest. Raises RecordError
        if it has no data or is damaged."""
        if isinstance(record, GlobalRecord):
            tensor = GlobalTensor(record, self._stored, self._parts_memory)
            found = tensor.part()
            tensor.verify()
            return found
        # first, because it checks that there is as much data as the record says
        archive, offset = self.locate(record)
        raw = np.empty(record.shape, DTYPES[record.dtype].storage)
        archive.read_into(memoryview(raw.reshape(-1).view("u1")), offset)
        check_digest(archive, record, digest(raw))
        return raw

    def stored(self, record: Record) -> StoredTensor | GlobalTensor:
        """A record's data on disk, to be read in parts. Errors as ``locate``."""
        if isinstance(record, GlobalRecord):
            return GlobalTensor(record, self._stored, self._parts_memory)
        return self._stored(record)

    def _stored(self, record: Record) -> StoredTensor:
        archive, offset = self.locate(record)
        return StoredTensor(record, archive, offset, self._buffer)

    def small_data(self, records: Iterable[Record]) -> tuple[bytes, list[int]]:
        """The stored bits of the small ones of some records, read together and verified.

        Args:
            records: neighbours, each with a member.

        Returns:
            Bytes, and where in them each record's data begins. -1 stands for a large or damaged
            record: ``stored`` says what is wrong with one.
        """
        pieces, places, length = list[bytes](), list[int](), 0
        for _, neighbours in itertools.groupby(records, _step_of):
            of_step = list(neighbours)
            names = [record.member for record in of_step if record.member is not None]
            try:
                content, members = self._archive(of_step[0]).small_members(names, _SMALL)
            except BundleError:
                places += [-1] * len(of_step)
                continue
            found = {
                name: (
                    length + member.offset,
                    member.shape,
                    member.dtype,
                    xxhash.xxh3_128_hexdigest(
                        content[member.offset : member.offset + member.nbytes]
                    ),
                )
                for name, member in members.items()
            }
            for record in of_step:
                place, *known = found.get(record.member or "", _NOWHERE)
                own = [record.shape, DTYPES[record.dtype].storage, record.digest]
                places.append(place if known == own else -1)
            pieces.append(content)
            length += len(content)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), places

    def small_columns(self, columns: StepColumns) -> tuple[bytes, NDArray[np.int64]]:
        """``small_data`` of all records of a step; also -1 for those without a member."""
        members = columns.outline.members
        nowhere = b"", np.full(len(columns), -1)
        if not members.names:
            return nowhere
        try:
            content, found = self._archive(columns[0]).small_members(members.names, _SMALL)
        except BundleError:
            return nowhere
        starts, digests, view = [], [], memoryview(content)
        for name, form in zip(members.names, members.forms, strict=True):
            member = found.get(name)
            start = end = -1
            if member is not None and (member.shape, member.dtype) == form:
                start, end = member.offset, member.offset + member.nbytes
            starts.append(start)
            digests.append(xxhash.xxh3_128_digest(view[start:end]))
        known = np.frombuffer(b"".join(digests), np.uint8).reshape(len(starts), -1)[members.of]
        intact = (known == columns.digests).all(axis=1) & (members.of >= 0)
        return content, np.where(intact, np.array(starts)[members.of], -1)

    def sketch_facts(self, record: Record) -> SketchFacts:
        """How a record's sketch was made. Raises RecordError if the manifest does not say, or says
        what this version cannot read."""
        checked = self._sketch_facts.get(record.rank)
        if checked is not None:
            return checked
        facts = self.manifests.get(record.rank, self.manifest).options.sketch
        if facts is None:
            raise RecordError(
                f"{self.path}: {record.key} has a sketch, and the manifest does not say how it was"
                " made; capture it again"
            )
        if facts.version != SKETCH_VERSION:
            raise RecordError(
                f"{self.path}: its sketches are of version {facts.version}, and this accucompare"
                f" reads version {SKETCH_VERSION}; capture it again with this one (accucompare"
                f" capture … --mode sketch --out {self.path} --overwrite)"
            )
        if not LEAST_SKETCH_SIZE <= facts.size <= MOST_SKETCH_SIZE:
            raise RecordError(
                f"{self.path}: its manifest says that a sketch has {facts.size} numbers, and none"
                f" has fewer than {LEAST_SKETCH_SIZE} or more than {MOST_SKETCH_SIZE}; capture it"
                " again"
            )
        self._sketch_facts[record.rank] = facts
        return facts

    def sketch(self, record: Record) -> Float64:
        """A record's sketch, of shape (size,). Raises RecordError if it is not there or damaged."""
        rows = self.sketches(record)
        assert record.sketch is not None
        found: Float64 = rows[record.sketch % SKETCHES_A_MEMBER]
        return found

    def sketches(self, record: Record) -> Float64:
        """The sketches of a record and its neighbours, of shape (n, size): its own is row
        ``record.sketch % SKETCHES_A_MEMBER``. Errors as ``sketch``."""
        facts = self.sketch_facts(record)
        if record.sketch is None:
            raise RecordError(f"{self.path}: {record.key} has no sketch")
        number, place = divmod(record.sketch, SKETCHES_A_MEMBER)
        held = self._sketches.get((record.rank, record.step, number)) or self._read_sketches(
            record, number, facts.size
        )
        if place >= len(held.rows):
            raise RecordError(
                f"{self.path}: {record.key} names a sketch that is not there; capture it again"
            )
        if place in held.damaged:
            raise RecordError(
                f"{self.path}: the sketch of {record.key} holds NaN or Inf, which none of ours"
                " does; capture it again"
            )
        return held.rows

    def _read_sketches(self, record: Record, number: int, size: int) -> _Sketches:
        """The member with a record's sketch. The last few are kept for its neighbours."""
        place = record.rank, record.step, number
        with self._opening_sketches:
            held = self._sketches.get(place)
            if held is None:
                rows = _sketch_rows(self._archive(record), sketches_name(number), size)
                while len(self._sketches) >= _SKETCHES_HELD:
                    del self._sketches[next(iter(self._sketches))]
                held = self._sketches[place] = _Sketches(
                    rows, frozenset(np.flatnonzero(~np.isfinite(rows).all(axis=1)).tolist())
                )
        return held

    def locate(self, record: Record) -> tuple[Archive, int]:
        """The open archive that holds a record's data, and the offset of its first byte. Raises
        RecordError if it has no data, or its member disagrees with it."""
        if record.member is None or isinstance(record, GlobalRecord):
            raise RecordError(
                f"{self.path}: {record.key} has no data ({self._why_without(record)})"
            )
        archive = self._archive(record)
        member = archive.member(record.member)
        if member.shape != record.shape or member.dtype != DTYPES[record.dtype].storage:
            raise RecordError(
                f"{archive.path}: member {record.member!r} is {member.dtype} {member.shape}, but"
                f" its record {record.key} says {record.dtype} {record.shape}; one of the two is"
                " damaged"
            )
        return archive, member.offset

    def _why_without(self, record: Record) -> str:
        """Why a record has no data: the kind of value, or a mode that keeps less than values."""
        if not record.layout.has_data:
            return record.layout.value
        mode = self.manifest.options.mode
        return "its values were not recorded" + (
            f"; captured with --mode {mode}" if mode not in (None, Mode.TENSORS) else ""
        )

    def _archive(self, record: Record) -> Archive:
        """The step's ``.npz``, opened on first use."""
        place = _step_of(record)
        archive = self._archives.get(place)
        if archive is None:
            with self._opening:
                stem = place[1] if place[1] == "state" else f"step{place[1]}"
                archive = self._archives.get(place) or Archive(
                    self.path / f"rank{record.rank}" / f"{stem}.npz", self._windows
                )
                self._archives[place] = archive
        return archive

    def _expect_after(self, rank: int, entry: StepEntry) -> None:
        """At a URL, request the lists of records that come after this one."""
        if isinstance(self.path, Url):
            place = self._places.get((rank, entry.step), len(self._order))
            for later, step in self._order[place + 1 : place + 1 + _NEXT]:
                self._windows.expect(self.path / f"rank{later}" / f"step{step}.jsonl")

    def _read_lines(self, rank: int, stem: str, entry: StepEntry) -> list[Record]:
        path = self.path / f"rank{rank}" / f"{stem}.jsonl"
        self._expect_after(rank, entry)
        return records_of_lines(path, self._windows, rank, entry)


def _step_of(record: Record) -> tuple[int, int | str]:
    """The rank and the step, or "state", whose files hold a record."""
    return record.rank, "state" if record.role in STATE_ROLES else record.step


def _sketch_rows(archive: Archive, name: str, size: int) -> Float64:
    """One member of sketches. Its header is checked before memory is allocated for it."""
    member, most = archive.member(name), (SKETCHES_A_MEMBER, size)
    if (
        member.dtype != np.float64
        or len(member.shape) != 2
        or member.shape[0] > most[0]
        or member.shape[1] != size
    ):
        raise RecordError(
            f"{archive.path}: member {name!r} holds {member.dtype} {member.shape}, and not float64"
            f" {most}; capture it again"
        )
    return archive.read_whole(name)


def _nearest(name: str, names: set[str]) -> str:
    """The name that was most likely meant, if there is one."""
    from rapidfuzz import fuzz, process

    found = process.extractOne(name, sorted(names - {name}), scorer=fuzz.WRatio, score_cutoff=60)
    return "" if name in names or found is None else f"did you mean {display_name(found[0])!r}? "


def open_bundle(path: str | Place) -> Bundle:
    """Open a bundle for reading.

    Args:
        path: the directory, or the URL, that a capture wrote to.

    Raises:
        BundleError: if it is missing, damaged, or of a newer format.
        UsageError: if it is a URL that cannot be taken.

    Example:
        >>> with open_bundle("golden") as bundle:
        ...     bundle.load("blocks.0.conv1").shape
        (2, 16, 16, 16)
    """
    return Bundle(place_of(path))
