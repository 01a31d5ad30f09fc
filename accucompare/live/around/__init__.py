"""Where a model runs: machine, code, libraries, ranks."""

from accucompare.live.around.environment import (
    ShardOf,
    describe_classes,
    describe_environment,
    describe_model,
    describe_tensors,
    device_of,
    notes_on,
    notes_on_what_ran,
)
from accucompare.live.around.libraries import loaded_libraries
from accucompare.live.around.ranks import (
    Dimensions,
    TalksError,
    any_has,
    collectives,
    coordinates,
    dimensions_of,
    has_sharded_parameters,
    is_of_mesh,
    silence,
)
from accucompare.live.around.sources import (
    FunctionsRun,
    digests_of,
    modules_in,
    variables_named,
    versions_of,
)

__all__ = [
    "Dimensions",
    "FunctionsRun",
    "ShardOf",
    "TalksError",
    "any_has",
    "collectives",
    "coordinates",
    "describe_classes",
    "describe_environment",
    "describe_model",
    "describe_tensors",
    "device_of",
    "digests_of",
    "dimensions_of",
    "has_sharded_parameters",
    "is_of_mesh",
    "loaded_libraries",
    "modules_in",
    "notes_on",
    "notes_on_what_ran",
    "silence",
    "variables_named",
    "versions_of",
]
