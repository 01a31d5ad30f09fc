"""What must hold between the ranks of one run, without a golden."""

from accucompare.compare.invariants import rank_facts as rank_facts
from accucompare.compare.invariants.check_run import check_run as check_run
from accucompare.compare.invariants.rank_facts import NotSeenWhy as NotSeenWhy
from accucompare.compare.invariants.rank_facts import RankAnswer as RankAnswer
from accucompare.compare.invariants.rank_facts import RankCheck as RankCheck
from accucompare.compare.invariants.rank_facts import RankFact as RankFact
from accucompare.compare.invariants.rank_facts import RankOutcome as RankOutcome
from accucompare.compare.invariants.rank_facts import RankPlace as RankPlace
from accucompare.compare.invariants.rank_facts import RankStatus as RankStatus
from accucompare.compare.invariants.rank_facts import RunChecks as RunChecks
