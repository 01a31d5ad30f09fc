"""The sheet *Environment*: how each bundle, or each rank of a watch, was made, entry by entry."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from accucompare.bundle.format import Manifest
from accucompare.compare.result import Result
from accucompare.report.table.columns import TEXT, Column
from accucompare.report.table.looks import AMBER
from accucompare.report.table.sheets import Table, heading_lines

ABSENT = "—"
_LONGEST = 20  # of a list or table that are shown; longer ones show their length
#: With an entry per layer or tensor: always shown as a number.
_TABLES = ("parameters", "buffers", "modules", "inputs", "not_fed")
#: Characters. Lines break at a space or slash, and so hold fewer than fit.
_WRAPS_AT, _A_LINE = 56, 40

#: Entries that always differ between captures and do not affect their numbers; never marked.
_EXPECTED = (
    *("command", "command_line", "argv", "created", "time", "started", "finished", "duration"),
    *("seconds", "out", "pid", "upload"),
)

#: Entries for the summary, the most telling first: keys or their beginnings; names or ``""``.
_IMPORTANT = {
    "environment.created": "date",
    "environment.command": "command",
    "environment.versions": "",
    "environment.device": "",
    "model.class": "",
    "model.dtypes": "dtypes of parameters",
    "capture.dtype": "cast to (--dtype)",
    "environment.autocast": "",
    "model.training": "",
    "capture.mode": "",
    "model.active_dropout": "",
    "capture.seed": "",
    "capture.feed": "",
    "environment.random": "",
    "complete": "",
    "ranks": "",
    "steps": "",
    "records": "",
    "capture.only": "",
    "capture.skip": "",
    "environment.git": "",
}


DIFFERS = Column("", lambda entry: "differs" if entry.differs else "", TEXT, 12, wrap=True)


class EnvironmentEntry(NamedTuple):
    """One line."""

    key: str
    values: Sequence[str]  # by column: golden, the candidate and the baseline; or the ranks
    marked: Sequence[bool]  # for each, whether it differs from the others enough to be highlighted
    differs: bool = False  # whether golden's and the candidate's do


class _Value(NamedTuple):
    """What is shown, and what is compared."""

    shown: str
    compared: Any


def environment_sheets(comparison: Result) -> Table:
    """The manifests side by side."""
    sides = [
        comparison.golden,
        comparison.candidate,
        *([comparison.baseline] if comparison.baseline else []),
    ]
    titles = ("golden", "candidate", "baseline")[: len(sides)]
    paths = EnvironmentEntry("path", [str(side.path) for side in sides], [False] * len(sides))
    listed = [paths, *entries(*(side.manifest for side in sides))]
    note = (
        f"{len(listed)} entries, {sum(entry.differs for entry in listed)} differ. When and by which"
        " command is never marked."
    )
    if comparison.baseline:
        note += " What the baseline says is marked where neither golden nor the candidate says it."
    return entry_table("How each bundle was captured", note, titles, listed, DIFFERS)


def entry_table(
    heading: str,
    note: str,
    titles: Sequence[str],
    listed: Sequence[EnvironmentEntry],
    *more: Column,
) -> Table:
    """A sheet *Environment* with a column for each title, and more columns to the right."""

    def height(entry: EnvironmentEntry) -> float:
        longest = max(map(len, entry.values))
        return 14 * min(1 + longest // _A_LINE, 20) if longest > _WRAPS_AT else 0

    columns = [*entry_columns(titles), *more]
    return Table(
        "Environment",
        columns,
        listed,
        heading=heading_lines(heading, note),
        frozen=1,
        fill=lambda entry: entry_fill(entry, len(more)),
        height=height,
    )


def entry_columns(titles: Sequence[str]) -> list[Column]:
    """The entries' keys, and a column for each title."""

    def value(number: int) -> Callable[[EnvironmentEntry], str]:
        return lambda entry: entry.values[number]

    keys = Column("entry", lambda entry: entry.key, TEXT, 56, wrap=True)
    return [
        keys,
        *(Column(title, value(number), TEXT, 52, wrap=True) for number, title in enumerate(titles)),
    ]


def entry_fill(entry: EnvironmentEntry, more: int) -> tuple[str, ...]:
    """The colours of an entry's cells, and of ``more`` cells to the right."""
    return tuple(
        AMBER if marked else "" for marked in (False, *entry.marked, *[entry.differs] * more)
    )


def entries(
    golden: Manifest, candidate: Manifest, baseline: Manifest | None = None
) -> list[EnvironmentEntry]:
    """The manifests side by side, in golden's order; what golden lacks follows in its table."""
    tables = [
        dict(_of_manifest(manifest))
        for manifest in (golden, candidate, baseline)
        if manifest is not None
    ]
    place: dict[str, int] = {}

    def position(key: str) -> list[int]:
        parts = key.split(".")
        return [
            place.setdefault(".".join(parts[: depth + 1]), len(place))
            for depth in range(len(parts))
        ]

    keys = sorted({key: None for table in tables for key in table}, key=position)
    return [
        _entry(key, [table.get(key, _Value(ABSENT, ABSENT)) for table in tables]) for key in keys
    ]


def important(listed: Sequence[EnvironmentEntry]) -> list[EnvironmentEntry]:
    """The entries for the summary, with its names."""
    shown = []
    for start, name in _IMPORTANT.items():
        of_it = [
            entry for entry in listed if entry.key == start or entry.key.startswith(f"{start}.")
        ]
        shown += [
            entry._replace(key=name or entry.key.partition(".")[2] or entry.key) for entry in of_it
        ]
    return shown


def _last(key: str) -> str:
    return key.rsplit(".", 1)[-1]


def _entry(key: str, values: Sequence[_Value]) -> EnvironmentEntry:
    golden, candidate, *baseline = values
    telling = _last(key) not in _EXPECTED
    differs = golden.compared != candidate.compared
    if differs and golden.shown == candidate.shown:
        candidate = candidate._replace(shown=f"{candidate.shown} (contents differ)")
    apart = [
        telling and third.compared not in (golden.compared, candidate.compared)
        for third in baseline
    ]
    marked = differs and telling
    return EnvironmentEntry(
        key,
        [value.shown for value in (golden, candidate, *baseline)],
        [marked, marked, *apart],
        marked,
    )


def _of_manifest(manifest: Manifest) -> Iterator[tuple[str, _Value]]:
    """Everything in a manifest, under dotted keys."""
    yield "complete", _value(manifest.complete)
    yield from flat("stopped", manifest.stopped or {})
    sizes = {name: size for name, (_, size) in manifest.mesh.items()}
    yield "ranks", _value(max(manifest.ranks, math.prod(sizes.values())))  # put together: as of one
    yield from flat("mesh", sizes)
    yield "steps", _value(len(manifest.run_steps))
    yield "records", _value(sum(step.records for step in manifest.steps))
    feed = manifest.capture.get("feed")
    of_feed = (
        {
            "feed": feed.get("golden"),
            "feed_identity": feed.get("identity"),
            "not_fed": feed.get("not_fed"),
        }
        if feed
        else {}
    )
    for name, table in (
        ("environment", manifest.environment),
        ("capture", {**manifest.capture, **of_feed}),
        ("model", manifest.model),
    ):
        yield from flat(name, table)
    yield "inputs", _Value(_number(manifest.inputs, "step"), manifest.inputs)
    for number, note in enumerate(manifest.notes, 1):
        yield f"notes.{number}", _value(note)


def flat(key: str, value: Any, longest: int = _LONGEST) -> Iterator[tuple[str, _Value]]:
    """A table's values under dotted keys; anything longer than ``longest`` as its length."""
    if isinstance(value, (dict, list)) and (_last(key) in _TABLES or len(value) > longest):
        yield key, _Value(_number(value, "entry"), value)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from flat(f"{key}.{name}", inner, longest)
    else:
        yield key, _value(value)


def _value(value: Any) -> _Value:
    if value is None:
        return _Value("none", value)
    if isinstance(value, bool):
        return _Value("yes" if value else "no", value)
    if isinstance(value, list):
        return _Value(", ".join(map(str, value)) or "none", value)
    return _Value(str(value), value)


def _number(value: Sequence[Any] | Mapping[str, Any], noun: str) -> str:
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{len(value):,} {noun if len(value) == 1 else plural}"
