"""Two runs of training, step by step."""

from accucompare.compare.runs.acceptance import (
    Acceptance,
    Met,
    StandardMeasure,
    StandardRule,
    StandardTrouble,
    accept,
)
from accucompare.compare.runs.ladder import climb, coarsest
from accucompare.compare.runs.later_steps import after_updates, by_envelope
from accucompare.compare.runs.parting import Parting, Rung
from accucompare.compare.runs.step_pairs import OtherSetting, StepPair
from accucompare.compare.runs.step_rows import number_of, with_clipping, with_step_rows
from accucompare.compare.runs.training_result import JudgedBy, TrainingResult
from accucompare.compare.runs.wander import Apart, Quantity, Wander, value_of

__all__ = [
    "Acceptance",
    "Apart",
    "JudgedBy",
    "Met",
    "OtherSetting",
    "Parting",
    "Quantity",
    "Rung",
    "StandardMeasure",
    "StandardRule",
    "StandardTrouble",
    "StepPair",
    "TrainingResult",
    "Wander",
    "accept",
    "after_updates",
    "by_envelope",
    "climb",
    "coarsest",
    "number_of",
    "value_of",
    "with_clipping",
    "with_step_rows",
]
