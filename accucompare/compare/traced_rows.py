"""The rows of pairs, each with where its error came from."""

from __future__ import annotations

from collections.abc import Iterator

from accucompare.bundle.format import WRITTEN_ROLES, Key, Record, Role
from accucompare.compare.fusions import terms_of_calls
from accucompare.compare.judging import RowsOfStep, of_ranks
from accucompare.compare.opened import Opened
from accucompare.compare.origins import NotFed, Trace, not_fed
from accucompare.compare.pairing import Pair
from accucompare.compare.rows import PairOutcome, Row, Verdict, row_of
from accucompare.errors import BundleError


def rows_in_order(
    pairs: list[Pair], outcomes: list[PairOutcome | BundleError], opened: Opened, origins: Trace
) -> Iterator[RowsOfStep | list[Row]]:
    """The rows of pairs and of steps judged at once, in golden's execution order."""
    steps = [(place, opened.at_once[place]) for place in sorted(opened.at_once)]
    begin, damage = 0, opened.damage
    for end, pair in enumerate(pairs):
        while steps and steps[0][0] < (pair.record.rank, pair.record.step):
            yield rows_of_pairs(pairs[begin:end], outcomes[begin:end], damage, origins)
            begin = end
            yield steps.pop(0)[1].traced(origins.trace, damage)
    yield rows_of_pairs(pairs[begin:], outcomes[begin:], damage, origins)
    yield from (step.traced(origins.trace, damage) for _, step in steps)


def trace_of_sides(opened: Opened, pairs: list[Pair]) -> Trace:
    """What traces errors of these pairs: which values were not fed, and what both sides have."""
    golden, candidate, records = opened.golden, opened.candidate, opened.golden_records
    steps = {(rank, entry.step) for rank, entry in golden.steps()} & {
        (rank, entry.step) for rank, entry in candidate.steps()
    }
    if not candidate.manifest.fed:
        return Trace(steps=steps)
    # a root that was left out still has inputs
    recorded = {record.name for record in records if record.role in (Role.OUTPUT, *WRITTEN_ROLES)}
    both = [
        (own.key, pair.golden.key)
        for pair in pairs
        if pair.golden is not None and pair.candidate is not None
        for own in (pair.candidate, *terms_of_calls(pair.candidate))
    ]
    # the candidate's manifest has the candidate's names
    places = {_place(own): _place(key) for own, key in opened.fusions.renamed.items()}
    places |= {_place(theirs): _place(ours) for theirs, ours in both if theirs != ours}
    names = {theirs.name: ours.name for theirs, ours in both}
    values = {
        places.get(at, (*at[:2], names.get(at[2], at[2]), *at[3:]))
        for own in not_fed(candidate.manifests)
        for at in [places.get(own, own)]
    }
    return Trace(True, values, recorded, steps)


def _place(key: Key) -> NotFed:
    return key.rank, key.step, key.name, key.call, key.role.value, key.path


def rows_of_pairs(
    pairs: list[Pair], outcomes: list[PairOutcome | BundleError], damage: list[str], origins: Trace
) -> list[Row]:
    """The rows of pairs with these outcomes."""

    def traced(record: Record, verdict: Verdict) -> Verdict:
        return of_ranks(origins.trace(record, verdict))

    return [
        row_of(pair, outcome, damage, traced) for pair, outcome in zip(pairs, outcomes, strict=True)
    ]
