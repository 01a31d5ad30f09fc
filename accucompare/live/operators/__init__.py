"""Operators as they are called, their schemas, and random ones."""

from accucompare.live.operators import entrances
from accucompare.live.operators.choosing import OperatorChoice, choosing
from accucompare.live.operators.dispatch import Inside, without_dispatch
from accucompare.live.operators.entrances import running_steps
from accucompare.live.operators.fallbacks import noting_fallbacks
from accucompare.live.operators.operator_calls import CallMode, calls_models, is_caller, source_line
from accucompare.live.operators.random_state import (
    RandomState,
    get_state,
    random_state_kept,
    set_state,
)
from accucompare.live.operators.randomness import Draws, matched_randomness
from accucompare.live.operators.schemas import (
    LEFT_OUT,
    NO_VALUES,
    WRITTEN_SILENTLY,
    Blank,
    Known,
    differentiated,
    is_plain,
    known_of,
)

__all__ = [
    "LEFT_OUT",
    "NO_VALUES",
    "WRITTEN_SILENTLY",
    "Blank",
    "CallMode",
    "Draws",
    "Inside",
    "Known",
    "OperatorChoice",
    "RandomState",
    "calls_models",
    "choosing",
    "differentiated",
    "entrances",
    "get_state",
    "is_caller",
    "is_plain",
    "known_of",
    "matched_randomness",
    "noting_fallbacks",
    "random_state_kept",
    "running_steps",
    "set_state",
    "source_line",
    "without_dispatch",
]
