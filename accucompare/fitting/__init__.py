"""What to keep in float32, so that the output is within what is asked, and a run that proves it."""

from accucompare.fitting.case_fit import FitSetup, fit, fit_case
from accucompare.fitting.fit_result import FitResult
from accucompare.fitting.kept_in_float32 import keep_in_float32

__all__ = ["FitResult", "FitSetup", "fit", "fit_case", "keep_in_float32"]
