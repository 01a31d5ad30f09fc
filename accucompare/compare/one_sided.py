"""Records and modules of one side alone, because the other did not run, record or call them."""

from __future__ import annotations

from collections.abc import Collection

from accucompare.bundle.reader import Bundle
from accucompare.bundle.records import NODE_ROLES, TRAINING_ROLES, WAYS_OF_UPDATING, Role
from accucompare.compare.align import Pair
from accucompare.compare.outcomes import Outcome
from accucompare.compare.rows import Reason, Row, Verdict
from accucompare.selection import Selection


def not_run(pair: Pair, steps: Collection[tuple[int, int]]) -> Outcome | None:
    """The outcome for a record of a step that a fed candidate did not run. ``steps``: the ranks and steps that it ran."""
    if pair.golden is None or (pair.golden.rank, pair.golden.step) in steps:
        return None
    return Outcome(None, Verdict(Reason.NOT_COMPARABLE, detail="a step that was not fed"))


def untrained(golden: Bundle, candidate: Bundle) -> str:
    """Which side was captured without gradients, on request or because no backward ran; ``""`` if neither was."""
    if not golden.manifest.options.backward:
        return "golden"
    return "" if candidate.manifest.options.no_backward is False else "the candidate"  # an older bundle does not say


def not_trained(pair: Pair, side: str) -> Outcome | None:
    """The outcome for a record of a backward or an update that one side lacks. ``side``: the one that ``untrained`` names."""
    if pair.record.role not in (*TRAINING_ROLES, *NODE_ROLES) or None not in (pair.golden, pair.candidate):
        return None
    return Outcome(None, Verdict(Reason.NOT_COMPARABLE, detail=f"{side} was captured without gradients"))


def no_gradient(pair: Pair) -> Outcome | None:
    """The outcome for a call's part of an input's gradient that is zero everywhere on one side, where the other gives none.

    It is one and the same: autograd adds nothing. A module that works in place on a part of a tensor gives zeros for what it has written
    over, and none where that was a tensor of its own, as it is when it is fed.
    """
    record = pair.golden or pair.candidate
    if record is None or record.role is not Role.GRAD_INPUT or None not in (pair.golden, pair.candidate):
        return None
    found = record.statistics
    if found is None or found.nan or found.inf or (found.min, found.max) != (0, 0):
        return None
    has, lacks = ("golden", "the candidate") if pair.golden is not None else ("the candidate", "golden")
    return Outcome(None, Verdict(Reason.NOT_COMPARABLE, detail=f"{has}'s is zero everywhere, and {lacks} adds none, which is the same"))


def other_state(pair: Pair, classes: tuple[str, str] | None) -> Outcome | None:
    """The outcome for an optimizer's state that only one side has, because the other's optimizer is of another class (``classes``)."""
    record = pair.golden or pair.candidate
    if (
        classes is None
        or record is None
        or record.role not in (Role.STATE_BEFORE, Role.STATE_AFTER)
        or None not in (pair.golden, pair.candidate)
    ):
        return None
    return Outcome(None, Verdict(Reason.NOT_COMPARABLE, detail=f"golden's optimizer is {classes[0]}, the candidate's {classes[1]}"))


def other_way(pair: Pair) -> Outcome | None:
    """The outcome for how an optimizer computes (``AdamW.0.foreach``), which an older bundle holds and a newer one does not."""
    record = pair.golden or pair.candidate
    if record is None or None not in (pair.golden, pair.candidate) or record.name or record.role is not Role.STATE_BEFORE:
        return None
    if record.path.rpartition(".")[2] not in WAYS_OF_UPDATING:
        return None
    return Outcome(None, Verdict(Reason.NOT_COMPARABLE, detail="how an update is computed, not what; newer captures do not record it"))


def other_classes(golden: Bundle, candidate: Bundle) -> tuple[str, str] | None:
    """The names of the classes of the two optimizers, if they differ."""
    ours, theirs = ((bundle.manifest.options.optimizer or "").partition(" of ")[0].rpartition(".")[2] for bundle in (golden, candidate))
    return (ours, theirs) if ours and theirs and ours != theirs else None


def never_called(golden: Bundle, candidate: Bundle, selection: Selection) -> list[Row]:
    """A row for each registered module that neither side called, or that one side did not call."""
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
