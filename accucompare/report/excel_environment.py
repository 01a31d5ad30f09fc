"""The sheet *Environment*: both manifests, entry by entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from openpyxl import Workbook

from accucompare.bundle.manifest import Manifest
from accucompare.compare.comparison import Comparison
from accucompare.report.excel_styles import CELL_WRAPPED, DIFFERENT, HEADER, MUTED_TEXT, SECTION, add_sheet, styled

TITLE = "Environment"
ABSENT = "—"
_LONGEST = 20  # entries of a list or of a table that are shown; of longer ones the number is
_TABLES = ("parameters", "buffers", "modules", "inputs")  # of one line per layer or tensor: always shown as a number

#: Entries that tell two captures apart without telling anything about their numbers; never marked.
_EXPECTED = ("command", "command_line", "argv", "created", "time", "started", "finished", "duration", "seconds", "out", "pid")

#: Entries for the summary, by any part of their dotted key, the most telling first.
_IMPORTANT = (
    "device", "dtypes", "dtype", "autocast", "versions", "torch", "class", "training", "mode", "active_dropout",
    "seed", "feed", "random", "complete", "ranks", "steps", "records", "only", "skip", "git", "created",
)  # fmt: skip


class Entry(NamedTuple):
    """One line: a dotted key, what each side says, and whether the difference should catch the eye."""

    key: str
    golden: str
    candidate: str
    differs: bool


def entries(golden: Manifest, candidate: Manifest) -> list[Entry]:
    """Both manifests side by side, in the order of golden's; what only the candidate has follows its like."""
    left, right = dict(_flat(golden)), dict(_flat(candidate))
    seen: dict[str, int] = {}

    def position(key: str) -> list[int]:
        parts = key.split(".")
        return [seen.setdefault(".".join(parts[: depth + 1]), len(seen)) for depth in range(len(parts))]

    return [_entry(key, left.get(key), right.get(key)) for key in sorted({**left, **right}, key=position)]


def important(found: Sequence[Entry]) -> list[Entry]:
    """The entries for the summary."""
    ranks = {name: rank for rank, name in enumerate(_IMPORTANT)}
    placed = [(min((ranks[part] for part in entry.key.split(".") if part in ranks), default=None), entry) for entry in found]
    return [entry for rank, entry in sorted(((rank, entry) for rank, entry in placed if rank is not None), key=lambda pair: pair[0])]


def _last(key: str) -> str:
    return key.rsplit(".", 1)[-1]


def _entry(key: str, golden: tuple[str, Any] | None, candidate: tuple[str, Any] | None) -> Entry:
    left, right = (side[0] if side else ABSENT for side in (golden, candidate))
    differs = (golden[1] if golden else ABSENT) != (candidate[1] if candidate else ABSENT)
    if differs and left == right:
        right += " (contents differ)"
    return Entry(key, left, right, differs and _last(key) not in _EXPECTED)


def _flat(manifest: Manifest) -> Iterator[tuple[str, tuple[str, Any]]]:
    """(dotted key, (what is shown, what is compared)) of everything in a manifest."""
    yield "complete", _shown(manifest.complete)
    yield from _walk("stopped", manifest.stopped or {})
    yield "ranks", _shown(manifest.ranks)
    yield "steps", _shown(len(manifest.steps))
    yield "records", _shown(sum(step.records for step in manifest.steps))
    for name in ("environment", "capture", "model"):
        yield from _walk(name, getattr(manifest, name))
    yield "inputs", (_number(manifest.inputs, "step"), manifest.inputs)
    for number, note in enumerate(manifest.notes, 1):
        yield f"notes.{number}", _shown(note)


def _walk(key: str, value: Any) -> Iterator[tuple[str, tuple[str, Any]]]:
    if isinstance(value, (dict, list)) and (_last(key) in _TABLES or len(value) > _LONGEST):
        yield key, (_number(value, "entry"), value)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _walk(f"{key}.{name}", inner)
    else:
        yield key, _shown(value)


def _shown(value: Any) -> tuple[str, Any]:
    if value is None:
        return "none", value
    if isinstance(value, bool):
        return "yes" if value else "no", value
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none", value
    return str(value), value


def _number(value: Sequence[Any] | dict[str, Any], noun: str) -> str:
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{len(value):,} {noun if len(value) == 1 else plural}"


def add_environment(workbook: Workbook, comparison: Comparison) -> None:
    """Add the sheet."""
    sheet = add_sheet(workbook, TITLE, (38, 52, 52, 12))
    sheet.row_dimensions[1].height = 26
    sheet.freeze_panes = "B4"
    sheet.print_title_rows = "3:3"
    found = entries(comparison.golden.manifest, comparison.candidate.manifest)
    sheet.append([styled(sheet, "How each bundle was captured", SECTION)])
    differing = sum(entry.differs for entry in found)
    note = f"{len(found)} entries, {differing} differ. When and by which command is never marked."
    sheet.append([styled(sheet, note, MUTED_TEXT)])
    sheet.append([styled(sheet, title, HEADER) for title in ("entry", "golden", "candidate", "")])
    sheet.auto_filter.ref = f"A3:D{len(found) + 4}"
    sides = (comparison.golden.path, comparison.candidate.path)
    for entry in [Entry("path", str(sides[0]), str(sides[1]), False), *found]:
        mark = DIFFERENT._replace(wrap=True, vertical="top") if entry.differs else CELL_WRAPPED
        values = (entry.key, entry.golden, entry.candidate, "differs" if entry.differs else "")
        sheet.append([styled(sheet, value, mark if place else CELL_WRAPPED) for place, value in enumerate(values)])
