"""Golden's values in place of a module's own."""

from accucompare.recorder.feeding.copies import IN_PLACE_OF, is_in_place
from accucompare.recorder.feeding.fed_updates import FedUpdates
from accucompare.recorder.feeding.feeding import Feeding
from accucompare.recorder.feeding.golden_calls import CallsOfGolden
from accucompare.recorder.feeding.golden_checks import check_golden, check_model, held_steps
from accucompare.recorder.feeding.golden_values import FedPlace, Memory
from accucompare.recorder.feeding.lending import Lent
from accucompare.recorder.feeding.operator_feed import OperatorFeed, storages

__all__ = [
    "IN_PLACE_OF",
    "CallsOfGolden",
    "FedPlace",
    "FedUpdates",
    "Feeding",
    "Lent",
    "Memory",
    "OperatorFeed",
    "check_golden",
    "check_model",
    "held_steps",
    "is_in_place",
    "storages",
]
