"""How a model computes: precision, determinism, autocast, eager mode."""

from accucompare.live.numerics.autocast import autocast_now, autocast_then, describe_autocast
from accucompare.live.numerics.eager import eager_stance
from accucompare.live.numerics.in_parts import in_parts
from accucompare.live.numerics.numerics import Numerics

__all__ = [
    "Numerics",
    "autocast_now",
    "autocast_then",
    "describe_autocast",
    "eager_stance",
    "in_parts",
]
