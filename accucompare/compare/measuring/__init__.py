"""The numbers of one pair of tensors, without judging them."""

from accucompare.compare.measuring.blocks import Blocks as Blocks
from accucompare.compare.measuring.blocks import PairOfTensors as PairOfTensors
from accucompare.compare.measuring.blocks import Sample as Sample
from accucompare.compare.measuring.broadcasting import is_broadcast as is_broadcast
from accucompare.compare.measuring.broadcasting import measure_broadcast as measure_broadcast
from accucompare.compare.measuring.masks import are_masks_of_two_kinds as are_masks_of_two_kinds
from accucompare.compare.measuring.masks import is_masked as is_masked
from accucompare.compare.measuring.masks import masks_may_explain as masks_may_explain
from accucompare.compare.measuring.masks import may_hold_masks as may_hold_masks
from accucompare.compare.measuring.measure import Metrics as Metrics
from accucompare.compare.measuring.measure import measure_identical as measure_identical
from accucompare.compare.measuring.measure import measure_masks as measure_masks
from accucompare.compare.measuring.measure import measure_pair as measure_pair
from accucompare.compare.measuring.norms import Run as Run
from accucompare.compare.measuring.small import PlacedPair as PlacedPair
from accucompare.compare.measuring.small import SmallMetrics as SmallMetrics
from accucompare.compare.measuring.small import measure_columns as measure_columns
from accucompare.compare.measuring.small import measure_small as measure_small
from accucompare.compare.measuring.small import small_form as small_form
from accucompare.compare.measuring.training_errors import Values as Values
from accucompare.compare.measuring.training_errors import at_right_angles as at_right_angles
from accucompare.compare.measuring.training_errors import beyond_last_place as beyond_last_place
from accucompare.compare.measuring.training_errors import carriers as carriers
from accucompare.compare.measuring.training_errors import common_factor as common_factor
from accucompare.compare.measuring.training_errors import common_limit as common_limit
from accucompare.compare.measuring.training_errors import standard_error as standard_error
