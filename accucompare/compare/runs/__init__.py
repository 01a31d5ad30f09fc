"""Two runs of training, step by step."""

from accucompare.compare.runs.acceptance import Acceptance, Met, accept
from accucompare.compare.runs.ladder import JudgedBy, Parting, Rung, TrainingResult, climb, coarsest
from accucompare.compare.runs.later_steps import after_updates, by_envelope
from accucompare.compare.runs.step_pairs import StepPair, clipped, number_words, percent
from accucompare.compare.runs.step_rows import number_of, with_clipping, with_step_rows
from accucompare.compare.runs.wander import Apart, Quantity, Wander, value_of

__all__ = [
    "Acceptance",
    "Apart",
    "JudgedBy",
    "Met",
    "Parting",
    "Quantity",
    "Rung",
    "StepPair",
    "TrainingResult",
    "Wander",
    "accept",
    "after_updates",
    "by_envelope",
    "climb",
    "clipped",
    "coarsest",
    "number_of",
    "number_words",
    "percent",
    "value_of",
    "with_clipping",
    "with_step_rows",
]
