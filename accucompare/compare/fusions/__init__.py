"""Layers that one side has fused: found by the rows of their weights, split or put together."""

from accucompare.compare.fusions.carried_apart import added_like, is_sum, with_carried_sums
from accucompare.compare.fusions.flat_tokens import is_view, viewed
from accucompare.compare.fusions.fused_weights import find_fused
from accucompare.compare.fusions.fusions import Fusions, on_fusions
from accucompare.compare.fusions.gradient_pieces import in_pieces_like, with_sums_of_pieces

__all__ = [
    "Fusions",
    "added_like",
    "find_fused",
    "in_pieces_like",
    "is_sum",
    "is_view",
    "on_fusions",
    "viewed",
    "with_carried_sums",
    "with_sums_of_pieces",
]
