"""The same case again: its samples in other batches, with a cache, and whole runs, repeated."""

from accucompare.rerunning.decode_of_case import DecodeCheck, check_decode
from accucompare.rerunning.invariance_of_case import InvarianceCheck, check_invariance
from accucompare.rerunning.repeats import RepeatCheck, check_repeat, repeat_runs

__all__ = [
    "DecodeCheck",
    "InvarianceCheck",
    "RepeatCheck",
    "check_decode",
    "check_invariance",
    "check_repeat",
    "repeat_runs",
]
