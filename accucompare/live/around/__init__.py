"""Where a model runs: machine, code, libraries, ranks."""

from accucompare.live.around.environment import (
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
    TalksError,
    any_has,
    collectives,
    coordinates,
    has_sharded_parameters,
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
    "FunctionsRun",
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
    "has_sharded_parameters",
    "loaded_libraries",
    "modules_in",
    "notes_on",
    "notes_on_what_ran",
    "silence",
    "variables_named",
    "versions_of",
]
