"""The verdict on what a fed call hands on of a call in it, where that value was not fed."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from accucompare.bundle.format import GlobalRecord, Record, Role
from accucompare.compare.rows import PairOutcome, Status, Task
from accucompare.errors import BundleError

#: What a call gives of what a call in it has given.
_GIVEN = (Role.OUTPUT, Role.GRAD_INPUT)

#: A step, a module's name, and its call.
_Call = tuple[int, str, int]


def judge_handed_on(
    tasks: Sequence[Task],
    outcomes: list[PairOutcome | BundleError],
    not_fed: Collection[tuple[int, str, int, str, str]],
) -> None:
    """Judge the same bits once: by the row of the call that made them.

    Golden's value takes the place of what an inner call gave, so the baseline of the outer one's
    error is that of its own code alone. Where the inner value was not fed, it has the inner error,
    too. ``outcomes`` is changed.

    Args:
        not_fed: step, name, call, role and path of each such value, by golden's names.
    """
    if not not_fed:
        return
    passed: dict[tuple[Role, _Call, Hashable, Hashable], PairOutcome] = {}
    failed: list[tuple[int, tuple[Role, _Call, Hashable, Hashable]]] = []
    for place, (task, outcome) in enumerate(zip(tasks, outcomes, strict=True)):
        golden, candidate = task.pair.golden, task.pair.candidate
        if isinstance(outcome, BundleError) or golden is None or candidate is None:
            continue
        if golden.role not in _GIVEN:
            continue
        own = golden.step, golden.name, golden.call
        bits = _bits(golden), _bits(candidate)
        if outcome.verdict.status is Status.FAIL:
            failed.append((place, (golden.role, own, *bits)))
        elif (
            golden.parent is not None
            and outcome.verdict.status is Status.PASS
            and (*own, golden.role.value, golden.path) in not_fed
        ):
            passed[(golden.role, (golden.step, *golden.parent), *bits)] = outcome
    for place, value in failed:
        if None not in value and value in passed:
            outcomes[place] = passed[value]


def _bits(record: Record) -> Hashable:
    """What a value is, on all ranks; ``None`` if that is not known."""
    if not isinstance(record, GlobalRecord):
        return record.digest
    terms = [
        (term.rank, term.digest, box.start, box.where)
        for box in record.boxes
        for addends in (box.terms, *box.replicas)
        for term in addends
    ]
    return None if any(digest is None for _, digest, *_ in terms) else tuple(sorted(terms))
