"""Which modules to keep in float32, so that an output is within what is asked."""

from accucompare.compare.fits.called_tree import CalledTree as CalledTree
from accucompare.compare.fits.called_tree import Mask as Mask
from accucompare.compare.fits.error_terms import ENTERING as ENTERING
from accucompare.compare.fits.error_terms import LEAVING as LEAVING
from accucompare.compare.fits.error_terms import LOW as LOW
from accucompare.compare.fits.error_terms import ErrorTerms as ErrorTerms
from accucompare.compare.fits.fit_facts import CurvePoint as CurvePoint
from accucompare.compare.fits.fit_facts import Fit as Fit
from accucompare.compare.fits.fit_facts import FitAnswer as FitAnswer
from accucompare.compare.fits.fit_facts import FitGoal as FitGoal
from accucompare.compare.fits.fit_facts import FitOutput as FitOutput
from accucompare.compare.fits.fit_facts import FitRun as FitRun
from accucompare.compare.fits.fit_facts import KeptPlaces as KeptPlaces
from accucompare.compare.fits.fit_facts import PlaceShare as PlaceShare
from accucompare.compare.fits.fit_facts import Switched as Switched
from accucompare.compare.fits.keeping_search import Choice as Choice
from accucompare.compare.fits.keeping_search import KeepingSearch as KeepingSearch
