"""Which modules to keep in float32, so that an output is within what is asked."""

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
)
from accucompare.compare.fits.keeping_search import Choice, KeepingSearch
from accucompare.compare.fits.module_tree import Mask, ModuleTree

__all__ = [
    "ENTERING",
    "LEAVING",
    "LOW",
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
    "ModuleTree",
    "PlaceShare",
]
