"""Modules and their names, the hooks on them, and what they hold."""

from accucompare.live.modules import points
from accucompare.live.modules.attribute_walk import AttributeWalk, Inner, containers_of, is_of_torch
from accucompare.live.modules.attributes import (
    OF_EVERY_MODULE,
    Attributes,
    attributes_of,
    generators_of,
    plain_numbers,
    set_attributes,
)
from accucompare.live.modules.functions import (
    function_name,
    has_setup,
    is_torchs,
    observed_functions,
)
from accucompare.live.modules.hooks import (
    Call,
    Hook,
    Listener,
    Mark,
    arguments_of,
    in_backward,
    listens,
    only_holds_modules,
)
from accucompare.live.modules.left_numbers import NumbersKept
from accucompare.live.modules.names import Modules, class_of, name_modules, unwrapped
from accucompare.live.modules.points import check_finite
from accucompare.live.modules.recomputation import Witness, witness, witness_no_more
from accucompare.live.modules.state import put_together, state_record, take_apart
from accucompare.live.modules.trial_calls import in_trial_call
from accucompare.live.modules.unsaved import Unsaved

__all__ = [
    "OF_EVERY_MODULE",
    "AttributeWalk",
    "Attributes",
    "Call",
    "Hook",
    "Inner",
    "Listener",
    "Mark",
    "Modules",
    "NumbersKept",
    "Unsaved",
    "Witness",
    "arguments_of",
    "attributes_of",
    "check_finite",
    "class_of",
    "containers_of",
    "function_name",
    "generators_of",
    "has_setup",
    "in_backward",
    "in_trial_call",
    "is_of_torch",
    "is_torchs",
    "listens",
    "name_modules",
    "observed_functions",
    "only_holds_modules",
    "plain_numbers",
    "points",
    "put_together",
    "set_attributes",
    "state_record",
    "take_apart",
    "unwrapped",
    "witness",
    "witness_no_more",
]
