"""The ranks on which an error begins: whose part is wrong, whose weight, who goes on with an old
part of a ring."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from accucompare.bundle.format import GlobalRecord, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.layouts import RankRecords
from accucompare.compare.origins.describing import DESCRIBED, MOST_ELEMENTS, wrong_parts
from accucompare.compare.origins.sites import Culprit
from accucompare.compare.rows import Row, Status


def where_it_begins(
    culprits: list[Culprit],
    rows: Iterable[Row],
    sides: tuple[Bundle, Bundle],
    ranks: RankRecords | None,
) -> list[Culprit]:
    """The culprits; of those whose error shows on several ranks, with the ranks where it begins.

    A sum over the ranks is wrong on all of them if one's weight is.

    Args:
        rows: of the steps that fail.
        sides: golden and the candidate.
    """
    first = [each for each in culprits[:DESCRIBED] if isinstance(each.row.candidate, GlobalRecord)]
    if ranks is None or not first:
        return culprits
    weights = _wrong_weights({culprit.name for culprit in first}, rows, sides)
    return [
        replace(each, wrong=weights.get(each.name) or _first_given_again(each, ranks) or each.wrong)
        for each in culprits
    ]


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
        modules = [record.name, *users.get(f"{record.name}.{record.path}".lstrip("."), ())]
        small = math.prod(record.shape) <= MOST_ELEMENTS
        if row.status is not Status.FAIL or row.metrics is None or not names & {*modules}:
            continue
        if (
            small
            and row.candidate is not None
            and None not in (record.member, row.candidate.member)
        ):
            ours, theirs = (
                bundle.values(each).astype(np.float64)
                for bundle, each in zip(sides, (record, row.candidate), strict=True)
            )
            for module in modules:
                found.setdefault(module, set()).update(wrong_parts(row, ours, theirs))
    return {module: tuple(sorted(ranks)) for module, ranks in found.items()}


def _first_given_again(culprit: Culprit, ranks: RankRecords) -> tuple[int, ...]:
    """Of the wrong ranks of a ring those that are the first to be given a part again, where another
    rank is given each part once.

    A ring calls a module for each part, which goes from rank to rank. A rank that goes on with a
    part that it had hands it on, so that later ranks get it again, too."""
    if len(culprit.wrong) < 2:
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
            if rank in culprit.wrong and any({*parts} < each for each in whole):
                again = next(at for at, part in enumerate(parts) if part in parts[:at])
                found[rank] = min(again, found.get(rank, again))
    first = min(found.values(), default=0)
    return tuple(sorted(rank for rank, at in found.items() if at == first))
