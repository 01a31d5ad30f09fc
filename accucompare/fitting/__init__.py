"""What to keep in float32, so that the output is within what is asked, and a run that proves it."""

from accucompare.fitting.case_fit import FitSetup as FitSetup
from accucompare.fitting.case_fit import fit as fit
from accucompare.fitting.case_fit import fit_case as fit_case
from accucompare.fitting.fit_result import FitResult as FitResult
from accucompare.fitting.kept_in_float32 import keep_in_float32 as keep_in_float32
