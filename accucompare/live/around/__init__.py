"""Where a model runs: machine, code, libraries, ranks."""

from accucompare.live.around.environment import ShardOf as ShardOf
from accucompare.live.around.environment import describe_classes as describe_classes
from accucompare.live.around.environment import describe_environment as describe_environment
from accucompare.live.around.environment import describe_model as describe_model
from accucompare.live.around.environment import describe_tensors as describe_tensors
from accucompare.live.around.environment import device_of as device_of
from accucompare.live.around.environment import notes_on as notes_on
from accucompare.live.around.environment import notes_on_what_ran as notes_on_what_ran
from accucompare.live.around.libraries import loaded_libraries as loaded_libraries
from accucompare.live.around.ranks import Dimensions as Dimensions
from accucompare.live.around.ranks import TalksError as TalksError
from accucompare.live.around.ranks import any_has as any_has
from accucompare.live.around.ranks import collectives as collectives
from accucompare.live.around.ranks import coordinates as coordinates
from accucompare.live.around.ranks import dimensions_of as dimensions_of
from accucompare.live.around.ranks import has_sharded_parameters as has_sharded_parameters
from accucompare.live.around.ranks import is_of_mesh as is_of_mesh
from accucompare.live.around.ranks import silence as silence
from accucompare.live.around.sources import FunctionsRun as FunctionsRun
from accucompare.live.around.sources import digests_of as digests_of
from accucompare.live.around.sources import modules_in as modules_in
from accucompare.live.around.sources import variables_named as variables_named
from accucompare.live.around.sources import versions_of as versions_of
