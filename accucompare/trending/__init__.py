"""Several runs of one model in their order: since when does each layer fail?"""

from accucompare.trending.trends import Trend as Trend
from accucompare.trending.trends import trend as trend
