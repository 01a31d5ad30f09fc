"""The ranks on which an error begins: whose part is wrong, whose weight, who goes on with an old
part of a ring."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from accucompare.bundle.format import GlobalRecord, Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.layouts import RankRecords, interleaved
from accucompare.compare.origins.describing import DESCRIBED
from accucompare.compare.origins.sites import Culprit
from accucompare.compare.rows import Row, Status
from accucompare.numbers import BLOCK, DTYPES, Float64, Kind, widen


def where_it_begins(
    culprits: list[Culprit],
    rows: Iterable[Row],
    sides: tuple[Bundle, Bundle],
    ranks: RankRecords | None,
) -> list[Culprit]:
    """The culprits; the first few of several ranks with those where the error begins.

    A sum over the ranks is wrong on all of them if one's weight is.

    Args:
        rows: of the steps that fail.
        sides: golden and the candidate.
    """
    first = [each for each in culprits[:DESCRIBED] if isinstance(each.row.candidate, GlobalRecord)]
    if ranks is None or not first:
        return culprits
    weights = _wrong_weights({culprit.name for culprit in first}, rows, sides)
    found = []
    for culprit in culprits[:DESCRIBED]:
        wrong = weights.get(culprit.name, ())
        if not wrong and culprit.scaled is None:
            wrong = _wrong_parts(culprit.row, sides)
            wrong = _first_given_again(culprit, wrong, ranks) or wrong
        found.append(replace(culprit, wrong=wrong))
    return found + culprits[DESCRIBED:]


def _wrong_weights(
    names: set[str], rows: Iterable[Row], sides: tuple[Bundle, Bundle]
) -> dict[str, tuple[int, ...]]:
    """Whose part of a weight the first step begins wrong, by module; a tied one's, by each."""
    users: dict[str, list[str]] = {}
    for name, first in (sides[0].manifest.model.get("tied") or {}).items():
        users.setdefault(first, []).append(name.rpartition(".")[0])
    found: dict[str, set[int]] = {}
    for row in rows:
        record = row.golden
        if record is None or record.role is not Role.PARAM_BEFORE or record.step:
            continue
        modules = {record.name, *users.get(f"{record.name}.{record.path}".lstrip("."), ())}
        if row.status is Status.FAIL and names & modules:
            for module in modules:
                found.setdefault(module, set()).update(_wrong_parts(row, sides))
    return {module: tuple(sorted(ranks)) for module, ranks in found.items()}


def _wrong_parts(row: Row, sides: tuple[Bundle, Bundle]) -> tuple[int, ...]:
    """The ranks whose own parts of a tensor are over the limit that it fails; of fused layers, in
    the arrangement with the fewest of them."""
    record, times = row.candidate, row.verdict.over_limit
    if not isinstance(record, GlobalRecord) or record.reduced or row.metrics is None or not times:
        return ()
    if row.golden is None or row.golden.shape != record.shape:
        return ()
    both = row.golden, record
    if any(each.member is None or DTYPES[each.dtype].kind is not Kind.FLOAT for each in both):
        return ()
    limit, fewest = row.metrics.rel_l2 / times, tuple[int, ...]()
    for each in (record, *(other for _, other in interleaved(record))):
        if not all(box.same and len(box.terms) == 1 for box in each.boxes):
            return ()
        errors = _errors_of_boxes(row.golden, each, sides)
        over = (box for box, error in zip(each.boxes, errors, strict=True) if error > limit)
        wrong = {term.rank for box in over for (term,) in (box.terms, *box.replicas)}
        if wrong and not 0 < len(fewest) <= len(wrong):
            fewest = tuple(sorted(wrong))
        if len(fewest) < 2:
            break
    return fewest


@np.errstate(all="ignore")
def _errors_of_boxes(golden: Record, record: GlobalRecord, sides: tuple[Bundle, Bundle]) -> Float64:
    """The relative L2 error of each box; the tensors are read in runs of whole rows."""
    size, row = math.prod(golden.shape), math.prod(golden.shape[1:])
    step = max(BLOCK // max(row, 1), 1) * max(row, 1)
    readings = [
        bundle.stored(each).blocks(0, size, step)
        for bundle, each in zip(sides, (golden, record), strict=True)
    ]
    sums = np.zeros((2, len(record.boxes)))
    for first in range(0, size, step):
        ours, theirs = (
            widen(next(blocks), DTYPES[each.dtype]).astype(np.float64)
            for blocks, each in zip(readings, (golden, record), strict=True)
        )
        for number, box in enumerate(record.boxes):
            shape = (-1,) if box.flat else (-1, *golden.shape[1:])
            at = first if box.flat else first // row
            begin, *inner = zip(box.start or (0,), box.shape or (1,), strict=True)
            place = (
                slice(max(begin[0] - at, 0), max(sum(begin) - at, 0)),
                *(slice(start, start + length) for start, length in inner),
            )
            own, other = (each.reshape(shape)[place] for each in (ours, theirs))
            sums[:, number] += np.square(other - own).sum(), np.square(own).sum()
    found: Float64 = np.sqrt(sums[0] / sums[1])
    return found


def _first_given_again(
    culprit: Culprit, wrong: Sequence[int], ranks: RankRecords
) -> tuple[int, ...]:
    """Of the wrong ranks of a ring those that are the first to be given a part again, where another
    rank is given each part once.

    A ring calls a module for each part, which goes from rank to rank. A rank that goes on with a
    part that it had hands it on, so that later ranks get it again, too."""
    if len(wrong) < 2:
        return ()
    call = culprit.name, culprit.call
    given: dict[tuple[str, str], dict[int, list[str | None]]] = {}
    for key, group in ranks.groups.items():
        if key.role is Role.INPUT and key.step == culprit.record.step:
            for record in group.values():
                if record.parent == call:
                    held = given.setdefault((key.name, key.path), {})
                    held.setdefault(record.rank, []).append(record.digest)
    found: dict[int, int] = {}
    for held in given.values():
        whole = [{*parts} for parts in held.values() if len({*parts}) == len(parts) > 1]
        for rank, parts in held.items():
            if rank in wrong and any({*parts} < each for each in whole):
                again = next(at for at, part in enumerate(parts) if part in parts[:at])
                found[rank] = min(again, found.get(rank, again))
    first = min(found.values(), default=0)
    return tuple(sorted(rank for rank, at in found.items() if at == first))
