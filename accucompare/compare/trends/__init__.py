"""Several comparisons of one model, in the order of their runs: since when does each layer fail?"""

from accucompare.compare.trends.layer_errors import LayerError, SeenRow, errors_by_layer
from accucompare.compare.trends.place_trends import PlaceState, PlaceTrend
from accucompare.compare.trends.trend_facts import (
    BEST,
    FIRST,
    TREND_EXIT_CODES,
    LeftOutRun,
    NotInTrendWhy,
    TrendAnswer,
    TrendFacts,
    TrendRun,
    of_other_models,
)

__all__ = [
    "BEST",
    "FIRST",
    "TREND_EXIT_CODES",
    "LayerError",
    "LeftOutRun",
    "NotInTrendWhy",
    "PlaceState",
    "PlaceTrend",
    "SeenRow",
    "TrendAnswer",
    "TrendFacts",
    "TrendRun",
    "errors_by_layer",
    "of_other_models",
]
