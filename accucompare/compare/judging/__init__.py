"""Whether the error of a pair is within its limit."""

from accucompare.compare.judging.given import with_given
from accucompare.compare.judging.judge import is_noise, judge_pair
from accucompare.compare.judging.judging import judge_task, judge_tasks, judge_with
from accucompare.compare.judging.proof import Beside, open_beside, why_not_proved, with_proofs
from accucompare.compare.judging.rank_verdicts import of_own_means, of_ranks, used_as_terms
from accucompare.compare.judging.sides import Sides
from accucompare.compare.judging.small_pairs import with_small_pairs

__all__ = [
    "Beside",
    "Sides",
    "is_noise",
    "judge_pair",
    "judge_task",
    "judge_tasks",
    "judge_with",
    "of_own_means",
    "of_ranks",
    "open_beside",
    "used_as_terms",
    "why_not_proved",
    "with_given",
    "with_proofs",
    "with_small_pairs",
]
