"""What both models were given, each in its own dtype: golden's inputs and weights, rounded.

That is no difference, but a user's tolerance may count it as one: an atol of 1e-3 fails
``torch.randn`` in bfloat16. So a given value passes if it is, bit for bit, golden's rounded to the
candidate's dtype (or the other way round). So does what is passed on unchanged, such as the first
layer's input."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from accucompare.bundle.format import Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.measuring import PairOfTensors
from accucompare.compare.pairing import Pair
from accucompare.compare.rows import Task
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
