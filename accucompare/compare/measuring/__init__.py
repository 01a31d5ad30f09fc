"""The numbers of one pair of tensors, without judging them."""

from accucompare.compare.measuring.blocks import Blocks, PairOfTensors, Sample
from accucompare.compare.measuring.broadcasting import is_broadcast, measure_broadcast
from accucompare.compare.measuring.masks import (
    are_masks_of_two_kinds,
    is_masked,
    masks_may_explain,
    may_hold_masks,
)
from accucompare.compare.measuring.measure import (
    Metrics,
    measure_identical,
    measure_masks,
    measure_pair,
)
from accucompare.compare.measuring.norms import Run
from accucompare.compare.measuring.small import (
    PlacedPair,
    SmallMetrics,
    measure_columns,
    measure_small,
    small_form,
)
from accucompare.compare.measuring.training_errors import (
    Values,
    at_right_angles,
    beyond_last_place,
    carriers,
    common_factor,
    common_limit,
    standard_error,
)

__all__ = [
    "Blocks",
    "Metrics",
    "PairOfTensors",
    "PlacedPair",
    "Run",
    "Sample",
    "SmallMetrics",
    "Values",
    "are_masks_of_two_kinds",
    "at_right_angles",
    "beyond_last_place",
    "carriers",
    "common_factor",
    "common_limit",
    "is_broadcast",
    "is_masked",
    "masks_may_explain",
    "may_hold_masks",
    "measure_broadcast",
    "measure_columns",
    "measure_identical",
    "measure_masks",
    "measure_pair",
    "measure_small",
    "small_form",
    "standard_error",
]
