"""Culprits that are off at padding alone, by the attention mask that the model was given.

A token that may attend to nothing has no defined result: one kernel gives zeros there, another
the mean of all values, a third NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from accucompare.bundle.format import Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.origins.sites import Culprit
from accucompare.numbers import DTYPES, Kind


def marked_at_padding(
    culprits: list[Culprit], golden: Bundle, candidate: Bundle, most_elements: int
) -> list[Culprit]:
    """The culprits, marked if all of them are off at padding alone. Errors as ``Bundle.values``."""
    masks: dict[tuple[int, int], list[NDArray[np.bool_]]] = {}
    for culprit in culprits:
        ours, theirs = culprit.row.golden, culprit.row.candidate
        if (
            ours is None
            or theirs is None
            or None in (ours.member, theirs.member)
            or ours.shape != theirs.shape
            or math.prod(ours.shape) > most_elements
            or {DTYPES[record.dtype].kind for record in (ours, theirs)} != {Kind.FLOAT}
        ):
            return culprits
        step = (ours.rank, ours.step)
        if step not in masks:
            masks[step] = list(_masks(golden, *step))
        if not any(_right_elsewhere(culprit, golden, candidate, mask) for mask in masks[step]):
            return culprits
    return [replace(culprit, padding=True) for culprit in culprits]


def _masks(golden: Bundle, rank: int, step: int) -> Iterable[NDArray[np.bool_]]:
    """Where tokens are real, by each attention mask of batch entries and tokens in the inputs."""
    for number, entry in golden.steps():
        if (number, entry.step) != (rank, step):
            continue
        for record in golden.step_records(rank, entry):
            if _is_mask(record):
                yield golden.values(record) != 0


def _is_mask(record: Record) -> bool:
    return (
        not record.name
        and record.role is Role.INPUT
        and record.path.endswith("attention_mask")
        and len(record.shape) == 2
        and record.member is not None
    )


@np.errstate(all="ignore")
def _right_elsewhere(
    culprit: Culprit, golden: Bundle, candidate: Bundle, real: NDArray[np.bool_]
) -> bool:
    """Whether real tokens are within the limit that the whole tensor fails."""
    row, verdict = culprit.row, culprit.row.verdict
    times = verdict.over_limit
    if row.golden is None or row.candidate is None or row.metrics is None or real.all():
        return False
    limit = row.metrics.rel_l2 / times if times and math.isfinite(times) else verdict.rel_l2_limit
    axes = _axes(row.golden.shape, real.shape)
    if limit is None or axes is None:
        return False
    sides = golden.values(row.golden), candidate.values(row.candidate)
    told, made = (np.moveaxis(side, axes, (0, 1))[real].astype(np.float64) for side in sides)
    return float(np.linalg.norm(made - told)) <= limit * float(np.linalg.norm(told))


def _axes(shape: tuple[int, ...], of: tuple[int, ...]) -> tuple[int, int] | None:
    """The dimensions of batch entries and tokens."""
    if shape[:2] == of:
        return 0, 1
    return (0, 2) if len(shape) == 4 and (shape[0], shape[2]) == of else None
