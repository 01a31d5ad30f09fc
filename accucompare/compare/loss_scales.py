"""Gradients of losses that a gradient scaler has multiplied otherwise on one side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from accucompare.bundle.format import (
    GRADIENT_ROLES,
    GlobalRecord,
    Layout,
    LayoutEvidence,
    Manifest,
    Record,
    whole_box,
)
from accucompare.compare.layouts import scaled
from accucompare.compare.pairing import Pair
from accucompare.compare.rows import Task
from accucompare.numbers import DTYPES


def loss_scale_ratios(golden: Manifest, own: Manifest) -> dict[int, float]:
    """Golden's loss scale over the other's, by step, where they differ; 1 without a scaler."""
    scales = [{each.step: each.loss_scale or 1.0 for each in one.series} for one in (golden, own)]
    ratios = {step: scales[0][step] / scales[1][step] for step in scales[0].keys() & scales[1]}
    return {step: ratio for step, ratio in ratios.items() if ratio != 1.0}


def with_golden_scale(pairs: Sequence[Pair], ratios: Mapping[int, float]) -> list[Pair]:
    """The pairs, with the candidate's gradients of calls as golden's loss scale makes them.

    Those of parameters are unscaled when they are recorded. Scales are powers of two, so that the
    products are exact. ``ratios``: as of ``loss_scale_ratios``."""
    return [
        replace(pair, candidate=in_golden_scale(pair.candidate, ratios))
        if ratios and pair.golden is not None and pair.candidate is not None
        else pair
        for pair in pairs
    ]


def with_scaled_baseline(tasks: Sequence[Task], ratios: Mapping[int, float]) -> list[Task]:
    """The tasks, with the baseline's gradients of calls as golden's loss scale makes them."""
    return [
        task
        if task.baseline is None or not ratios
        else replace(task, baseline=in_golden_scale(task.baseline, ratios))
        for task in tasks
    ]


def in_golden_scale(record: Record, ratios: Mapping[int, float]) -> Record:
    """A gradient of a call, times the ratio of its step; any other record as it is."""
    if (
        record.role not in GRADIENT_ROLES
        or record.step not in ratios
        or record.layout is not Layout.STRIDED
        or record.dtype not in DTYPES
    ):
        return record
    if not isinstance(record, GlobalRecord):
        box, known = whole_box((record,), record.shape), LayoutEvidence.LOSS_SCALE
        record = GlobalRecord.of(record, [box], evidence=known, sketch=None)
    return scaled(record, ratios[record.step])
