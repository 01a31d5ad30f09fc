"""Layers that one side has fused: found by the rows of their weights, split or put together."""

from accucompare.compare.fusions.carried_apart import added_like as added_like
from accucompare.compare.fusions.carried_apart import is_sum as is_sum
from accucompare.compare.fusions.carried_apart import with_carried_sums as with_carried_sums
from accucompare.compare.fusions.flat_tokens import is_view as is_view
from accucompare.compare.fusions.flat_tokens import viewed as viewed
from accucompare.compare.fusions.fused_weights import find_fused as find_fused
from accucompare.compare.fusions.fusions import Fusions as Fusions
from accucompare.compare.fusions.fusions import on_fusions as on_fusions
