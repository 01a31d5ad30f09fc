"""Several comparisons of one model, in the order of their runs: since when does each layer fail?"""

from accucompare.compare.trends.layer_errors import LayerError as LayerError
from accucompare.compare.trends.layer_errors import SeenRow as SeenRow
from accucompare.compare.trends.layer_errors import errors_by_layer as errors_by_layer
from accucompare.compare.trends.place_trends import PlaceState as PlaceState
from accucompare.compare.trends.place_trends import PlaceTrend as PlaceTrend
from accucompare.compare.trends.trend_facts import BEST as BEST
from accucompare.compare.trends.trend_facts import FIRST as FIRST
from accucompare.compare.trends.trend_facts import TREND_EXIT_CODES as TREND_EXIT_CODES
from accucompare.compare.trends.trend_facts import LeftOutRun as LeftOutRun
from accucompare.compare.trends.trend_facts import NotInTrendWhy as NotInTrendWhy
from accucompare.compare.trends.trend_facts import TrendAnswer as TrendAnswer
from accucompare.compare.trends.trend_facts import TrendFacts as TrendFacts
from accucompare.compare.trends.trend_facts import TrendRun as TrendRun
from accucompare.compare.trends.trend_facts import of_other_models as of_other_models
