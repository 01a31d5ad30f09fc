"""The sheet *Environment*: both manifests, and the baseline's, entry by entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from openpyxl import Workbook
from openpyxl.utils import get_column_letter

from accucompare.bundle.manifest import Manifest
from accucompare.compare.result import Result
from accucompare.report.excel_styles import add_sheet, styled
from accucompare.report.looks import CELL_WRAPPED, DIFFERENT, HEADER, MUTED_TEXT, SECTION

TITLE = "Environment"
ABSENT = "—"
_LONGEST = 20  # entries of a list or of a table that are shown; of longer ones the number is
_TABLES = ("parameters", "buffers", "modules", "inputs", "not_fed")  # of one line per layer or tensor: always shown as a number

#: Entries that tell two captures apart without telling anything about their numbers; never marked.
_EXPECTED = ("command", "command_line", "argv", "created", "time", "started", "finished", "duration", "seconds", "out", "pid")

#: Entries for the summary, by their dotted keys or by what those begin with, the most telling first, and how it calls them; ``""``: by
#: their keys.
_IMPORTANT = {
    "environment.created": "date", "environment.command": "command", "environment.versions": "", "environment.device": "",
    "model.class": "", "model.dtypes": "dtypes of parameters", "capture.dtype": "cast to (--dtype)", "environment.autocast": "",
    "model.training": "", "capture.mode": "", "model.active_dropout": "", "capture.seed": "", "capture.feed": "",
    "environment.random": "", "complete": "", "ranks": "", "steps": "", "records": "", "capture.only": "", "capture.skip": "",
    "environment.git": "",
}  # fmt: skip


class Entry(NamedTuple):
    """One line.

    Attributes:
        key: dotted.
        golden, candidate: what each side says.
        differs: whether their difference should catch the eye.
        baseline: what the baseline says.
        apart: whether it says something else than either side, and that should catch the eye.
    """

    key: str
    golden: str
    candidate: str
    differs: bool
    baseline: str = ABSENT
    apart: bool = False


def entries(golden: Manifest, candidate: Manifest, baseline: Manifest | None = None) -> list[Entry]:
    """The manifests side by side, in the order of golden's; what only another one has follows its like."""
    left, right = dict(_flat(golden)), dict(_flat(candidate))
    third = {} if baseline is None else dict(_flat(baseline))
    seen: dict[str, int] = {}

    def position(key: str) -> list[int]:
        parts = key.split(".")
        return [seen.setdefault(".".join(parts[: depth + 1]), len(seen)) for depth in range(len(parts))]

    return [_entry(key, left.get(key), right.get(key), third.get(key)) for key in sorted({**left, **right, **third}, key=position)]


def important(found: Sequence[Entry]) -> list[Entry]:
    """The entries for the summary, called as it calls them."""
    shown = []
    for start, name in _IMPORTANT.items():
        of_it = [entry for entry in found if entry.key == start or entry.key.startswith(f"{start}.")]
        shown += [entry._replace(key=name or entry.key.partition(".")[2] or entry.key) for entry in of_it]
    return shown


def _last(key: str) -> str:
    return key.rsplit(".", 1)[-1]


_Said = tuple[str, Any]  # what is shown, and what is compared


def _entry(key: str, golden: _Said | None, candidate: _Said | None, baseline: _Said | None = None) -> Entry:
    (left, ours), (right, theirs), (third, its) = (side or (ABSENT, ABSENT) for side in (golden, candidate, baseline))
    telling = _last(key) not in _EXPECTED
    differs = ours != theirs
    if differs and left == right:
        right += " (contents differ)"
    return Entry(key, left, right, differs and telling, third, its not in (ours, theirs) and telling)


def _flat(manifest: Manifest) -> Iterator[tuple[str, _Said]]:
    """(dotted key, (what is shown, what is compared)) of everything in a manifest."""
    yield "complete", _shown(manifest.complete)
    yield from _walk("stopped", manifest.stopped or {})
    yield "ranks", _shown(manifest.ranks)
    yield "steps", _shown(len(manifest.steps))
    yield "records", _shown(sum(step.records for step in manifest.steps))
    feed = manifest.capture.get("feed")
    flat = {"feed": feed.get("golden"), "feed_identity": feed.get("identity"), "not_fed": feed.get("not_fed")} if feed else {}
    for name, table in (("environment", manifest.environment), ("capture", {**manifest.capture, **flat}), ("model", manifest.model)):
        yield from _walk(name, table)
    yield "inputs", (_number(manifest.inputs, "step"), manifest.inputs)
    for number, note in enumerate(manifest.notes, 1):
        yield f"notes.{number}", _shown(note)


def _walk(key: str, value: Any) -> Iterator[tuple[str, _Said]]:
    if isinstance(value, (dict, list)) and (_last(key) in _TABLES or len(value) > _LONGEST):
        yield key, (_number(value, "entry"), value)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _walk(f"{key}.{name}", inner)
    else:
        yield key, _shown(value)


def _shown(value: Any) -> _Said:
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


def add_environment(workbook: Workbook, comparison: Result) -> None:
    """Add the sheet."""
    sides = [comparison.golden, comparison.candidate, *([comparison.baseline] if comparison.baseline else [])]
    titles = ("entry", "golden", "candidate", "baseline")[: 1 + len(sides)]
    sheet = add_sheet(workbook, TITLE, (38, *([52] * len(sides)), 12))
    sheet.row_dimensions[1].height = 26
    sheet.freeze_panes = "B4"
    sheet.print_title_rows = "3:3"
    found = entries(*(side.manifest for side in sides))
    sheet.append([styled(sheet, "How each bundle was captured", SECTION)])
    differing = sum(entry.differs for entry in found)
    note = f"{len(found)} entries, {differing} differ. When and by which command is never marked."
    if comparison.baseline:
        note += " What the baseline says is marked where neither golden nor the candidate says it."
    sheet.append([styled(sheet, note, MUTED_TEXT)])
    sheet.append([styled(sheet, title, HEADER) for title in (*titles, "")])
    sheet.auto_filter.ref = f"A3:{get_column_letter(len(titles) + 1)}{len(found) + 4}"
    paths = [str(side.path) for side in sides]
    for line, entry in enumerate([Entry("path", paths[0], paths[1], False, paths[-1]), *found], 4):
        if (longest := max(map(len, (entry.golden, entry.candidate, entry.baseline)))) > _WRAPS_AT:
            sheet.row_dimensions[line].height = 14 * min(1 + longest // _A_LINE, 20)
        look, third = (_MARKED if marked else CELL_WRAPPED for marked in (entry.differs, entry.apart))
        cells = [(entry.key, CELL_WRAPPED), (entry.golden, look), (entry.candidate, look)]
        cells += [(entry.baseline, third)] if comparison.baseline else []
        sheet.append([styled(sheet, *cell) for cell in (*cells, ("differs" if entry.differs else "", look))])


_WRAPS_AT, _A_LINE = 56, 40  # characters; a line that wraps breaks at a space or slash, and so holds fewer than fit
_MARKED = DIFFERENT._replace(wrap=True, vertical="top")
