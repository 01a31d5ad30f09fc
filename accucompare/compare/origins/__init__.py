"""Where a wrong value was made, and what its error shows."""

from accucompare.compare.origins import unsteady
from accucompare.compare.origins.culprits import find_culprits, is_of_glue, scaled_first
from accucompare.compare.origins.describing import (
    are_masks,
    differing_choices,
    is_choice,
    with_descriptions,
)
from accucompare.compare.origins.module_calls import parameter_of, with_producers
from accucompare.compare.origins.outside_changes import small_changes
from accucompare.compare.origins.row_culprits import STRUCTURAL
from accucompare.compare.origins.scaled import FactorCause, ScaledGradients
from accucompare.compare.origins.sites import Culprit, Stage
from accucompare.compare.origins.terms import OF_SUMS, PARAMETER_GRADIENTS, Terms
from accucompare.compare.origins.trace import NotFed, Trace, not_fed
from accucompare.compare.origins.unseen import (
    Unseen,
    unseen_rows,
    weights_not_shown,
    without_output,
)
from accucompare.compare.origins.vouching import vouched_for
from accucompare.compare.origins.wrong_ranks import where_it_begins

__all__ = [
    "OF_SUMS",
    "PARAMETER_GRADIENTS",
    "STRUCTURAL",
    "Culprit",
    "FactorCause",
    "NotFed",
    "ScaledGradients",
    "Stage",
    "Terms",
    "Trace",
    "Unseen",
    "are_masks",
    "differing_choices",
    "find_culprits",
    "is_choice",
    "is_of_glue",
    "not_fed",
    "parameter_of",
    "scaled_first",
    "small_changes",
    "unseen_rows",
    "unsteady",
    "vouched_for",
    "weights_not_shown",
    "where_it_begins",
    "with_descriptions",
    "with_producers",
    "without_output",
]
