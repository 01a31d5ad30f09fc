"""How a model computes: precision, determinism, autocast, eager mode."""

from accucompare.live.numerics.autocast import autocast_now as autocast_now
from accucompare.live.numerics.autocast import autocast_then as autocast_then
from accucompare.live.numerics.autocast import describe_autocast as describe_autocast
from accucompare.live.numerics.backends import OWN as OWN
from accucompare.live.numerics.backends import backwards_at_once as backwards_at_once
from accucompare.live.numerics.backends import registered_again as registered_again
from accucompare.live.numerics.compiled_regions import CompiledRegions as CompiledRegions
from accucompare.live.numerics.compiled_regions import ProbedGraph as ProbedGraph
from accucompare.live.numerics.compiled_regions import probing as probing
from accucompare.live.numerics.compiled_regions import telling_compilation as telling_compilation
from accucompare.live.numerics.eager import eager_stance as eager_stance
from accucompare.live.numerics.graph_trial import OperatorTrial as OperatorTrial
from accucompare.live.numerics.graph_trial import generated_code as generated_code
from accucompare.live.numerics.graph_trial import kernel_of as kernel_of
from accucompare.live.numerics.graph_trial import try_backwards as try_backwards
from accucompare.live.numerics.graph_trial import try_prefixes as try_prefixes
from accucompare.live.numerics.graph_trial import try_values as try_values
from accucompare.live.numerics.in_parts import in_parts as in_parts
from accucompare.live.numerics.numerics import Numerics as Numerics
from accucompare.live.numerics.regions import ModuleTree as ModuleTree
