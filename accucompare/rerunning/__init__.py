"""The same case again: its samples in other batches, and whole runs, repeated."""

from accucompare.rerunning.invariance_of_case import InvarianceCheck, check_invariance
from accucompare.rerunning.repeats import RepeatCheck, check_repeat, repeat_runs

__all__ = ["InvarianceCheck", "RepeatCheck", "check_invariance", "check_repeat", "repeat_runs"]
