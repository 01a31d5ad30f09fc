"""What must hold between the ranks of one run, without a golden."""

from accucompare.compare.invariants import rank_facts
from accucompare.compare.invariants.check_run import check_run
from accucompare.compare.invariants.rank_facts import (
    NotSeenWhy,
    RankAnswer,
    RankCheck,
    RankFact,
    RankOutcome,
    RankPlace,
    RankStatus,
    RunChecks,
)

__all__ = [
    "NotSeenWhy",
    "RankAnswer",
    "RankCheck",
    "RankFact",
    "RankOutcome",
    "RankPlace",
    "RankStatus",
    "RunChecks",
    "check_run",
    "rank_facts",
]
