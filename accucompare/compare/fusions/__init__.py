"""Layers that one side has fused: found by the rows of their weights, split or put together."""

from accucompare.compare.fusions.calls_in_parts import as_golden_calls, given_as_golden
from accucompare.compare.fusions.carried_apart import is_sum, with_carried_sums
from accucompare.compare.fusions.flat_tokens import is_view, viewed
from accucompare.compare.fusions.fused_weights import find_fused
from accucompare.compare.fusions.fusions import Fusions, on_fusions
from accucompare.compare.fusions.gradient_pieces import made_like, with_sums_of_pieces
from accucompare.compare.fusions.parts_of_calls import (
    Part,
    box_of_part,
    made_of_calls,
    next_part,
    rows,
    side_by_side,
    starts_of,
    terms_of_calls,
)

__all__ = [
    "Fusions",
    "Part",
    "as_golden_calls",
    "box_of_part",
    "find_fused",
    "given_as_golden",
    "is_sum",
    "is_view",
    "made_like",
    "made_of_calls",
    "next_part",
    "on_fusions",
    "rows",
    "side_by_side",
    "starts_of",
    "terms_of_calls",
    "viewed",
    "with_carried_sums",
    "with_sums_of_pieces",
]
