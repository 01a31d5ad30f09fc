"""Which modules to keep in float32, so that an output is within what is asked."""

from accucompare.compare.fits.called_tree import CalledTree, Mask
from accucompare.compare.fits.error_terms import ENTERING, LEAVING, LOW, ErrorTerms
from accucompare.compare.fits.fit_facts import (
    CurvePoint,
    Fit,
    FitAnswer,
    FitGoal,
    FitOutput,
    FitRun,
    KeptPlaces,
    PlaceShare,
    Switched,
)
from accucompare.compare.fits.keeping_search import Choice, KeepingSearch

__all__ = [
    "ENTERING",
    "LEAVING",
    "LOW",
    "CalledTree",
    "Choice",
    "CurvePoint",
    "ErrorTerms",
    "Fit",
    "FitAnswer",
    "FitGoal",
    "FitOutput",
    "FitRun",
    "KeepingSearch",
    "KeptPlaces",
    "Mask",
    "PlaceShare",
    "Switched",
]
