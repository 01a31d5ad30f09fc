"""Rounding or a bug, and where? Fed captures, a baseline and a comparison in one call."""

from accucompare.locating.case_locate import locate, locate_case
from accucompare.locating.culprit_operators import locate_operators, operators_by_hand
from accucompare.locating.locate_setup import LocateSetup
from accucompare.locating.rank_group import RankGroup

__all__ = [
    "LocateSetup",
    "RankGroup",
    "locate",
    "locate_case",
    "locate_operators",
    "operators_by_hand",
]
