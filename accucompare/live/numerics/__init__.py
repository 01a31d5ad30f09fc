"""How a model computes: precision, determinism, autocast, eager mode."""

from accucompare.live.numerics.autocast import autocast_now, autocast_then, describe_autocast
from accucompare.live.numerics.backends import OWN, backwards_at_once, registered_again
from accucompare.live.numerics.compiled_regions import (
    CompiledRegions,
    ProbedGraph,
    probing,
    telling_compilation,
)
from accucompare.live.numerics.eager import eager_stance
from accucompare.live.numerics.emulation import without_last_bits
from accucompare.live.numerics.graph_trial import (
    OperatorTrial,
    generated_code,
    kernel_of,
    try_backwards,
    try_prefixes,
    try_values,
)
from accucompare.live.numerics.in_parts import in_parts
from accucompare.live.numerics.numerics import Numerics
from accucompare.live.numerics.regions import ModuleTree

__all__ = [
    "OWN",
    "CompiledRegions",
    "ModuleTree",
    "Numerics",
    "OperatorTrial",
    "ProbedGraph",
    "autocast_now",
    "autocast_then",
    "backwards_at_once",
    "describe_autocast",
    "eager_stance",
    "generated_code",
    "in_parts",
    "kernel_of",
    "probing",
    "registered_again",
    "telling_compilation",
    "try_backwards",
    "try_prefixes",
    "try_values",
    "without_last_bits",
]
