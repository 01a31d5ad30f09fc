"""What one side alone has, because the other did not run it, did not record it, or never called it."""

from __future__ import annotations

from collections.abc import Collection

from accucompare.bundle.reader import Bundle
from accucompare.bundle.records import TRAINING_ROLES
from accucompare.compare.align import Pair
from accucompare.compare.outcomes import Outcome
from accucompare.compare.rows import Reason, Row, Verdict
from accucompare.selection import Selection


def not_run(pair: Pair, run: Collection[tuple[int, int]]) -> Outcome | None:
    """The outcome for a record of a step that a fed candidate did not run: of a case with an optimizer it runs the first only."""
    if pair.golden is None or (pair.golden.rank, pair.golden.step) in run:
        return None
    return Outcome(None, Verdict(Reason.NOT_COMPARABLE, detail="a step that was not fed"))


def untrained(golden: Bundle, candidate: Bundle) -> str:
    """Which side was captured without gradients, because that was asked or since nothing was sent backward; ``""`` if none was."""
    if not golden.manifest.options.backward:
        return "golden"
    return "" if candidate.manifest.options.no_backward is False else "the candidate"  # an older bundle does not say


def not_trained(pair: Pair, untrained: str) -> Outcome | None:
    """The outcome for a record of a backward or an update that only one side has, since the other was captured without."""
    record = pair.golden or pair.candidate
    if not untrained or record is None or record.role not in TRAINING_ROLES or None not in (pair.golden, pair.candidate):
        return None
    return Outcome(None, Verdict(Reason.NOT_COMPARABLE, detail=f"{untrained} was captured without gradients"))


def never_called(golden: Bundle, candidate: Bundle, selection: Selection) -> list[Row]:
    """A row for each module that was registered but never called on both sides, or on the only side that has it."""
    sides = [bundle.manifest.model for bundle in (golden, candidate)]
    idle = [set(side.get("not_called") or ()) for side in sides]
    modules = [side.get("modules") or {} for side in sides]
    rows = []
    for name in [*modules[0], *(name for name in modules[1] if name not in modules[0])]:
        where = [side for side, names in zip(("golden", "candidate"), idle, strict=True) if name in names]
        if where and selection.allows(name):
            kind = modules[0].get(name) or modules[1].get(name)
            detail = f"{kind}, never called" if len(where) == 2 else f"{kind}, never called in {where[0]}"
            rows.append(Row(None, None, Verdict(Reason.NOT_CALLED, detail=detail), module=name))
    return rows
