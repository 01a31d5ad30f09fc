"""Layers that one side has fused: found by the rows of their weights, split or put together."""

from accucompare.compare.fusions.calls_in_parts import as_golden_calls, given_as_golden
from accucompare.compare.fusions.carried_apart import added_like, is_sum, with_carried_sums
from accucompare.compare.fusions.flat_tokens import is_view, viewed
from accucompare.compare.fusions.fused_weights import find_fused
from accucompare.compare.fusions.fusions import Fusions, on_fusions
from accucompare.compare.fusions.gradient_pieces import in_pieces_like, with_sums_of_pieces
from accucompare.compare.fusions.parts_of_calls import (
    box_of_part,
    made_of_calls,
    next_start,
    rows,
    starts_of,
    terms_of_calls,
)

__all__ = [
    "Fusions",
    "added_like",
    "as_golden_calls",
    "box_of_part",
    "find_fused",
    "given_as_golden",
    "in_pieces_like",
    "is_sum",
    "is_view",
    "made_of_calls",
    "next_start",
    "on_fusions",
    "rows",
    "starts_of",
    "terms_of_calls",
    "viewed",
    "with_carried_sums",
    "with_sums_of_pieces",
]
