"""The same case again: its samples in other batches, with a cache, and whole runs, repeated."""

from accucompare.rerunning.decode_of_case import DecodeCheck as DecodeCheck
from accucompare.rerunning.decode_of_case import check_decode as check_decode
from accucompare.rerunning.invariance_of_case import InvarianceCheck as InvarianceCheck
from accucompare.rerunning.invariance_of_case import check_invariance as check_invariance
from accucompare.rerunning.repeats import RepeatCheck as RepeatCheck
from accucompare.rerunning.repeats import check_repeat as check_repeat
from accucompare.rerunning.repeats import repeat_runs as repeat_runs
