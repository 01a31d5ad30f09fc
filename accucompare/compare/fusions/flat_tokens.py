"""Tokens of a batch that the candidate has one after the other: a serving engine has no batches."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from accucompare.bundle.format import (
    UNKNOWN_CONTENT,
    GlobalRecord,
    Layout,
    LayoutEvidence,
    Manifest,
    Record,
    Role,
    whole_box,
)
from accucompare.compare.pairing import Pair

_OF_CALLS = (Role.INPUT, Role.OUTPUT, Role.ARGUMENT_UPDATE, Role.GRAD_INPUT, Role.GRAD_OUTPUT)


def as_batches(golden: Manifest, own: Manifest, records: list[Record]) -> list[Record]:
    """The candidate's records, with the tokens of a batch as golden has them.

    The models' own inputs prove it: the same integers, ``[batch, tokens]`` and in a row."""
    forms: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # the candidate's, and golden's
    for step in golden.inputs.keys() & own.inputs.keys():
        given = {
            digest: tuple(entry["shape"])
            for entry in golden.inputs[step].values()
            if (digest := entry["digests"].get("int64"))
        }
        for entry in own.inputs[step].values():
            mine, theirs = tuple(entry["shape"]), given.get(entry["digests"].get("int64", ""))
            if theirs is not None and {len(mine), len(theirs)} == {1, 2}:
                forms[int(step)] = mine, theirs
    return [_formed(each, *forms[each.step]) if each.step in forms else each for each in records]


def with_own_form(pair: Pair) -> Pair:
    """The pair, with the candidate's value as it was captured if golden's has that shape: what both
    have by token alone, such as rotary tables, is of no batch."""
    golden, own = pair.golden, pair.candidate
    if golden is None or not isinstance(own, GlobalRecord) or golden.shape == own.shape:
        return pair
    (term, *others) = own.boxes[0].terms
    if others or not is_as_captured(own) or term.shape != golden.shape:
        return pair
    return replace(pair, candidate=replace(term, name=own.name, path=own.path))


def _formed(record: Record, mine: tuple[int, ...], theirs: tuple[int, ...]) -> Record:
    shape = record.shape
    if (
        record.role not in _OF_CALLS
        or record.layout is not Layout.STRIDED
        or shape[: len(mine)] != mine
    ):
        return record
    return viewed(record, (*theirs, *shape[len(mine) :]))


def is_view(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes differ only in neighbouring dimensions that are one, as tokens in a row
    are: each element is where it was."""
    if one == other or 0 in (*one, *other):
        return False
    ours, theirs = (
        {1, *itertools.accumulate(shape, operator.mul)} for shape in map(tuple, (one, other))
    )
    return max(ours) == max(theirs) and (ours <= theirs or theirs <= ours)


def viewed(record: Record, shape: tuple[int, ...]) -> GlobalRecord:
    """A record as it was captured, read in another shape or under another path."""
    box = whole_box((record,), shape, shape)
    return GlobalRecord.of(record, [box], shape=shape, evidence=LayoutEvidence.VALUES)


def plain_terms(*records: Record) -> tuple[tuple[Record, ...], tuple[int, ...]]:
    """The records as they were captured, and the form in which they are read; empty for their
    own."""
    terms = [each.boxes[0].terms[0] if isinstance(each, GlobalRecord) else each for each in records]
    viewed = any(isinstance(each, GlobalRecord) for each in records)
    return tuple(terms), records[0].shape if viewed else ()


def sum_of(
    *records: Record, evidence: LayoutEvidence = LayoutEvidence.VALUES, **changes: Any
) -> GlobalRecord:
    """What records add up to."""
    (first, *_), (terms, form) = records, plain_terms(*records)
    member = None if any(each.member is None for each in records) else first.member
    known = {"member": member, "evidence": evidence, **UNKNOWN_CONTENT, **changes}
    return GlobalRecord.of(first, [whole_box(terms, first.shape, form)], **known)


def is_as_captured(record: Record) -> bool:
    """Whether a record is as it was captured, or only of another shape."""
    if not isinstance(record, GlobalRecord):
        return True
    (box, *others) = record.boxes
    return not others and len(box.terms) == 1 and bool(box.form) and box.shape == box.part
