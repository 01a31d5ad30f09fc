"""Whether two bundles are of one model. If most names and shapes differ, no culprit is named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from accucompare.compare.pairing import Model, Renaming, counterparts, rename_parameter
from accucompare.compare.preflight_facts import OtherModel
from accucompare.compare.rows.operator_rows import is_operator
from accucompare.compare.rows.rows import Row


def other_model(
    golden: Model, candidate: Model, rows: Iterable[Row], renamings: Sequence[Renaming]
) -> OtherModel | None:
    """What shows that two models are compared, if they are and both manifests list parameters.

    A single fault can change the shape of all later values, but of no parameter. A quantised model
    has other parameters, but values of the same shapes. So most of both have to differ.

    Args:
        golden, candidate: the two manifests' ``model``.
        renamings: of golden's layers.
    """
    ours, theirs = (side.get("parameters") or {} for side in (golden, candidate))
    if not ours or not theirs or not less_than_half(*_parameters_alike(ours, theirs, renamings)):
        return None
    own = [row for row in rows if row.record is not None and not is_operator(row.record)]
    alike = sum(
        row.golden is not None
        and row.candidate is not None
        and row.golden.shape == row.candidate.shape
        for row in own
    )
    return OtherModel(alike, len(own)) if less_than_half(alike, len(own)) else None


def _parameters_alike(
    golden: dict[str, Any], candidate: dict[str, Any], renamings: Sequence[Renaming]
) -> tuple[int, int]:
    """How many parameters have the same name and shape on both sides, and how many there are."""
    partners = counterparts(golden, candidate, renamings, rename_parameter)
    alike = sum(
        golden[ours]["shape"] == candidate[theirs]["shape"] for ours, theirs in partners.items()
    )
    return alike, len(golden) + len(candidate) - len(partners)


def less_than_half(part: int, whole: int) -> bool:
    """Whether so few are alike that it is another model."""
    return 2 * part < whole
