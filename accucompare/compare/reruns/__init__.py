"""One model run again: in other batches, with a cache, and as it was. What of it changed?"""

from accucompare.compare.reruns.decode_facts import (
    DecodeAnswer,
    Decoded,
    DecodeOutcome,
    DecodeWay,
    LayerDecoded,
    NotDecodedWhy,
    TokenDifference,
)
from accucompare.compare.reruns.invariance_facts import (
    Invariance,
    InvarianceAnswer,
    LayerChange,
    NotVariedWhy,
    Variant,
    VariantOutcome,
    Variation,
)
from accucompare.compare.reruns.invariance_runs import BatchAxes, VariedRuns
from accucompare.compare.reruns.repeat_facts import (
    Disagreement,
    Disagreements,
    NotReplayedWhy,
    Repeated,
    RepeatedAnswer,
    Replays,
)
from accucompare.compare.reruns.repeated_runs import RepeatedRuns
from accucompare.compare.reruns.token_values import (
    TokenErrors,
    keys_seen,
    over_limits,
    token_errors,
)

__all__ = [
    "BatchAxes",
    "DecodeAnswer",
    "DecodeOutcome",
    "DecodeWay",
    "Decoded",
    "Disagreement",
    "Disagreements",
    "Invariance",
    "InvarianceAnswer",
    "LayerChange",
    "LayerDecoded",
    "NotDecodedWhy",
    "NotReplayedWhy",
    "NotVariedWhy",
    "Repeated",
    "RepeatedAnswer",
    "RepeatedRuns",
    "Replays",
    "TokenDifference",
    "TokenErrors",
    "Variant",
    "VariantOutcome",
    "Variation",
    "VariedRuns",
    "keys_seen",
    "over_limits",
    "token_errors",
]
