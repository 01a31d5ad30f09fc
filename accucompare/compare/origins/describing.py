"""What a culprit's row shows: integers, booleans or masks that differ, or an error's shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from msgspec.structs import replace as replaced

from accucompare.bundle.format import Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.limits import differing, other_configuration
from accucompare.compare.measuring import Sample, is_masked, may_hold_masks
from accucompare.compare.origins.off_at_padding import marked_at_padding
from accucompare.compare.origins.sites import Culprit, Stage
from accucompare.compare.pairing import Renaming
from accucompare.compare.rows import Option, Row, Status, is_buffer
from accucompare.compare.shape_facts import OtherChoices
from accucompare.numbers import DTYPES, Float64, Kind, widen

#: The most culprits described, elements read for one, and elements sampled of larger tensors.
DESCRIBED = 3
MOST_ELEMENTS = 16 << 20
SAMPLED = 4 << 20


def with_descriptions(
    culprits: list[Culprit], golden: Bundle, candidate: Bundle, renamings: Sequence[Renaming] = ()
) -> list[Culprit]:
    """The culprits with settings that differ, and the first few with their errors' shape.

    Errors as ``Bundle.values``."""
    configured: dict[str, list[Option]] = {}
    for name, key, ours, theirs in other_configuration(
        golden.manifest, candidate.manifest, renamings
    ):
        configured.setdefault(name, []).append(Option(key, repr(ours), repr(theirs)))
    culprits = [
        replace(culprit, configured=tuple(configured.get(culprit.name, ()))) for culprit in culprits
    ]
    culprits = marked_at_padding(culprits, golden, candidate, MOST_ELEMENTS)
    described = [_described(culprit, golden, candidate) for culprit in culprits[:DESCRIBED]]
    return described + culprits[DESCRIBED:]


def _described(culprit: Culprit, golden: Bundle, candidate: Bundle) -> Culprit:
    ours, theirs = culprit.row.golden, culprit.row.candidate
    if culprit.scaled is not None:
        return culprit
    if differing_choices(culprit.row):
        return replace(culprit, shape=_other_choices(culprit.row, golden, candidate))
    if (
        ours is None
        or theirs is None
        or None in (ours.member, theirs.member)
        or ours.shape != theirs.shape
    ):
        return culprit
    if {DTYPES[record.dtype].kind for record in (ours, theirs)} != {Kind.FLOAT}:
        return culprit
    from accucompare.compare.shape import describe_error

    sample = None
    if math.prod(ours.shape) > MOST_ELEMENTS:
        metrics = culprit.row.metrics
        worst = None if metrics is None else metrics.nonfinite_index or metrics.max_abs_index
        sample = Sample.of(ours.shape, SAMPLED, worst or (0,) * len(ours.shape))
    values = [
        _values(bundle, record, sample) for bundle, record in ((golden, ours), (candidate, theirs))
    ]
    if all(may_hold_masks(DTYPES[record.dtype], record.statistics) for record in (ours, theirs)):
        masked = is_masked(values[0], DTYPES[ours.dtype]) & is_masked(
            values[1], DTYPES[theirs.dtype]
        )
        for side in values:
            side[masked] = -np.inf  # masks are equal
    normalised = ours.role is Role.OUTPUT and "Norm" in ours.type
    shape = describe_error(*values, dtype=theirs.dtype, sample=sample, normalised=normalised)
    if culprit.stage is not Stage.FORWARD or is_buffer(ours):
        shape = replaced(shape, causes=())  # they are of what a forward gives
    return replace(culprit, shape=shape)


def _other_choices(row: Row, golden: Bundle, candidate: Bundle) -> OtherChoices:
    """For rows of choices (a token's experts): how many differ, and the first."""
    ours, theirs = row.golden, row.candidate
    if (
        ours is None
        or theirs is None
        or None in (ours.member, theirs.member)
        or ours.shape != theirs.shape
        or len(ours.shape) < 2
    ):
        return OtherChoices()
    if are_masks(row) or math.prod(ours.shape) > MOST_ELEMENTS:
        return OtherChoices()
    rows = (bundle.values(record) for bundle, record in ((golden, ours), (candidate, theirs)))
    off = np.not_equal(*rows).any(axis=-1)
    if not off.any():
        return OtherChoices()
    first = np.unravel_index(int(np.argmax(off)), off.shape)
    return OtherChoices(int(np.count_nonzero(off)), off.size, tuple(map(int, first)))


@np.errstate(invalid="ignore")  # a signalling NaN is a value like any other here
def _values(bundle: Bundle, record: Record, sample: Sample | None) -> Float64:
    """A record's values, or only those of a sample."""
    if sample is None:
        return bundle.values(record).astype(np.float64)
    dtype = DTYPES[record.dtype]
    # it was verified when it was measured
    return widen(bundle.stored(record).part(sample.slices), dtype).astype(np.float64)


def differing_choices(row: Row) -> int:
    """How many integers, booleans or masks of a failing row differ; 0 for other rows."""
    return differing(row.metrics) if row.metrics is not None and is_choice(row) else 0


def is_choice(row: Row) -> bool:
    """Whether integers or booleans differ, or masks let other positions through."""
    if row.status is not Status.FAIL or row.golden is None or row.golden.dtype not in DTYPES:
        return False
    return not DTYPES[row.golden.dtype].digits or are_masks(row)


def are_masks(row: Row) -> bool:
    """Whether a row is of masks of two kinds, measured by what they let through."""
    return (
        row.golden is not None
        and row.candidate is not None
        and row.metrics is not None
        and _of_two_kinds(row.golden, row.candidate)
    )


def _of_two_kinds(golden: Record, candidate: Record) -> bool:
    both = golden.dtype in DTYPES and candidate.dtype in DTYPES
    return both and DTYPES[golden.dtype].kind is not DTYPES[candidate.dtype].kind
