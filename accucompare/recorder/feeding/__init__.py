"""Golden's values in place of a module's own."""

from accucompare.recorder.feeding.copies import IN_PLACE_OF as IN_PLACE_OF
from accucompare.recorder.feeding.copies import is_in_place as is_in_place
from accucompare.recorder.feeding.fed_updates import FedUpdates as FedUpdates
from accucompare.recorder.feeding.feeding import Feeding as Feeding
from accucompare.recorder.feeding.golden_calls import CallsOfGolden as CallsOfGolden
from accucompare.recorder.feeding.golden_checks import check_golden as check_golden
from accucompare.recorder.feeding.golden_checks import check_model as check_model
from accucompare.recorder.feeding.golden_checks import held_steps as held_steps
from accucompare.recorder.feeding.golden_values import FedPlace as FedPlace
from accucompare.recorder.feeding.golden_values import Memory as Memory
from accucompare.recorder.feeding.lending import Lent as Lent
from accucompare.recorder.feeding.operator_feed import OperatorFeed as OperatorFeed
from accucompare.recorder.feeding.operator_feed import storages as storages
