"""Operators as they are called, their schemas, and random ones."""

from accucompare.live.operators import entrances as entrances
from accucompare.live.operators.choosing import OperatorChoice as OperatorChoice
from accucompare.live.operators.choosing import choosing as choosing
from accucompare.live.operators.dispatch import Inside as Inside
from accucompare.live.operators.dispatch import without_dispatch as without_dispatch
from accucompare.live.operators.entrances import running_steps as running_steps
from accucompare.live.operators.fallbacks import noting_fallbacks as noting_fallbacks
from accucompare.live.operators.operator_calls import CallMode as CallMode
from accucompare.live.operators.operator_calls import calls_models as calls_models
from accucompare.live.operators.operator_calls import is_caller as is_caller
from accucompare.live.operators.operator_calls import source_line as source_line
from accucompare.live.operators.random_state import RandomState as RandomState
from accucompare.live.operators.random_state import get_state as get_state
from accucompare.live.operators.random_state import random_state_kept as random_state_kept
from accucompare.live.operators.random_state import set_state as set_state
from accucompare.live.operators.randomness import Draws as Draws
from accucompare.live.operators.randomness import matched_randomness as matched_randomness
from accucompare.live.operators.schemas import LEFT_OUT as LEFT_OUT
from accucompare.live.operators.schemas import NO_VALUES as NO_VALUES
from accucompare.live.operators.schemas import WRITTEN_SILENTLY as WRITTEN_SILENTLY
from accucompare.live.operators.schemas import Blank as Blank
from accucompare.live.operators.schemas import Known as Known
from accucompare.live.operators.schemas import differentiated as differentiated
from accucompare.live.operators.schemas import is_plain as is_plain
from accucompare.live.operators.schemas import known_of as known_of
