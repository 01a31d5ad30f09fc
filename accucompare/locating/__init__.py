"""Rounding or a bug, and where? Fed captures, a baseline and a comparison in one call."""

from accucompare.locating.case_locate import locate as locate
from accucompare.locating.case_locate import locate_case as locate_case
from accucompare.locating.culprit_operators import locate_operators as locate_operators
from accucompare.locating.culprit_operators import operators_by_hand as operators_by_hand
from accucompare.locating.locate_setup import LocateSetup as LocateSetup
from accucompare.locating.rank_group import RankGroup as RankGroup
