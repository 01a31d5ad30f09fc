"""Layers that one side has fused: found by the rows of their weights, split or put together."""

from accucompare.compare.fusions.calls_in_parts import as_golden_calls as as_golden_calls
from accucompare.compare.fusions.calls_in_parts import given_as_golden as given_as_golden
from accucompare.compare.fusions.carried_apart import added_like as added_like
from accucompare.compare.fusions.carried_apart import is_sum as is_sum
from accucompare.compare.fusions.carried_apart import with_carried_sums as with_carried_sums
from accucompare.compare.fusions.flat_tokens import is_view as is_view
from accucompare.compare.fusions.flat_tokens import viewed as viewed
from accucompare.compare.fusions.fused_weights import find_fused as find_fused
from accucompare.compare.fusions.fusions import Fusions as Fusions
from accucompare.compare.fusions.fusions import on_fusions as on_fusions
from accucompare.compare.fusions.gradient_pieces import in_pieces_like as in_pieces_like
from accucompare.compare.fusions.gradient_pieces import with_sums_of_pieces as with_sums_of_pieces
from accucompare.compare.fusions.parts_of_calls import box_of_part as box_of_part
from accucompare.compare.fusions.parts_of_calls import calls_of as calls_of
from accucompare.compare.fusions.parts_of_calls import made_of_calls as made_of_calls
from accucompare.compare.fusions.parts_of_calls import next_start as next_start
from accucompare.compare.fusions.parts_of_calls import rows as rows
from accucompare.compare.fusions.parts_of_calls import starts_of as starts_of
