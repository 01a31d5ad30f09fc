"""The verdict on what a fed call hands on of a call in it, where that value was not fed."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence

import msgspec
import numpy as np

from accucompare.bundle.format import GlobalRecord, Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.measuring import PairOfTensors
from accucompare.compare.pairing import Pair
from accucompare.compare.rows import PairOutcome, Status, Task
from accucompare.errors import BundleError
from accucompare.numbers import DTYPES, round_to, widen


def with_given(tasks: list[Task]) -> list[Task]:
    """The tasks, in execution order; marks inputs, parameters, pairs of the same two tensors."""
    given = {_content(task.pair) for task in tasks if _is_given(task.pair)} - {None}
    return (
        [
            msgspec.structs.replace(task, given_to_both=True)
            if _content(task.pair) in given
            else task
            for task in tasks
        ]
        if given
        else tasks
    )


def is_rounded(
    golden_bundle: Bundle, golden: Record, candidate_bundle: Bundle, candidate: Record
) -> bool:
    """Whether one tensor is the other, rounded to its own dtype; ``False`` without values."""
    if None in (golden.member, candidate.member):
        return False
    dtypes = DTYPES[golden.dtype], DTYPES[candidate.dtype]
    pair = PairOfTensors(
        golden_bundle.stored(golden).blocks,
        candidate_bundle.stored(candidate).blocks,
        *dtypes,
        math.prod(golden.shape),
    )
    finer = int(dtypes[0].digits < dtypes[1].digits)  # which of the two is to be rounded
    to = dtypes[1 - finer]
    for segment in pair.segments(split=False):
        for raw in pair.raw_blocks(segment):
            rounded = widen(round_to(widen(raw[finer], dtypes[finer]), to), to)
            if not np.array_equal(rounded, widen(raw[1 - finer], to), equal_nan=True):
                return False
    return True


def _is_given(pair: Pair) -> bool:
    record = pair.record
    return record.role is Role.PARAM_BEFORE or (record.role is Role.INPUT and record.parent is None)


def _content(pair: Pair) -> tuple[str, str] | None:
    """The digests of two tensors of different floating dtypes; ``None`` for other pairs."""
    golden, candidate = pair.golden, pair.candidate
    if (
        golden is None
        or candidate is None
        or golden.digest is None
        or candidate.digest is None
        or golden.shape != candidate.shape
    ):
        return None
    floating = all(
        record.dtype in DTYPES and DTYPES[record.dtype].digits for record in (golden, candidate)
    )
    return (
        (golden.digest, candidate.digest) if floating and golden.dtype != candidate.dtype else None
    )


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
    too. ``outcomes`` is changed. ``not_fed``: step, name, call, role and path of each such value,
    by golden's names."""
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
