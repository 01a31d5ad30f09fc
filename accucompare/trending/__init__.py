"""Several runs of one model in their order: since when does each layer fail?"""

from accucompare.trending.trends import Trend, trend

__all__ = ["Trend", "trend"]
