"""One model run again: in other batches, and as it was. What of it changed?"""

from accucompare.compare.reruns.batch_axes import BatchAxes
from accucompare.compare.reruns.invariance_facts import (
    Invariance,
    InvarianceAnswer,
    LayerChange,
    LayerVariation,
    NotVariedWhy,
    Variant,
    VariantOutcome,
    Variation,
)
from accucompare.compare.reruns.invariance_runs import VariedRuns
from accucompare.compare.reruns.repeat_facts import (
    Disagreement,
    Disagreements,
    NotReplayedWhy,
    Repeated,
    RepeatedAnswer,
    Replays,
)
from accucompare.compare.reruns.repeated_runs import RepeatedRuns

__all__ = [
    "BatchAxes",
    "Disagreement",
    "Disagreements",
    "Invariance",
    "InvarianceAnswer",
    "LayerChange",
    "LayerVariation",
    "NotReplayedWhy",
    "NotVariedWhy",
    "Repeated",
    "RepeatedAnswer",
    "RepeatedRuns",
    "Replays",
    "Variant",
    "VariantOutcome",
    "Variation",
    "VariedRuns",
]
