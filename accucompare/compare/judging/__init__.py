"""Whether the error of a pair is within its limit."""

from accucompare.compare.judging.estimates import EstimatedMetrics, estimate_columns, room
from accucompare.compare.judging.handed_on import judge_handed_on, with_given
from accucompare.compare.judging.judge import is_noise, judge_pair
from accucompare.compare.judging.judging import judge_task, judge_tasks, judge_with
from accucompare.compare.judging.proof import Beside, open_beside, why_not_proved, with_proofs
from accucompare.compare.judging.rank_verdicts import (
    fail_left_terms,
    judge_own_clipping,
    judge_own_means,
    of_ranks,
    pass_used_terms,
)
from accucompare.compare.judging.row_columns import (
    DiffRows,
    MetricColumns,
    RowsOfStep,
    but_plain,
    of_failing_steps,
    plain_count,
    reasons_of,
    whole_steps,
    with_changed,
)
from accucompare.compare.judging.sides import Sides
from accucompare.compare.judging.small_pairs import with_small_pairs
from accucompare.compare.judging.token_verdicts import (
    settle_tokens,
    where_fed_alike,
    with_baseline_rows,
)

__all__ = [
    "Beside",
    "DiffRows",
    "EstimatedMetrics",
    "MetricColumns",
    "RowsOfStep",
    "Sides",
    "but_plain",
    "estimate_columns",
    "fail_left_terms",
    "is_noise",
    "judge_handed_on",
    "judge_own_clipping",
    "judge_own_means",
    "judge_pair",
    "judge_task",
    "judge_tasks",
    "judge_with",
    "of_failing_steps",
    "of_ranks",
    "open_beside",
    "pass_used_terms",
    "plain_count",
    "reasons_of",
    "room",
    "settle_tokens",
    "where_fed_alike",
    "whole_steps",
    "why_not_proved",
    "with_baseline_rows",
    "with_changed",
    "with_given",
    "with_proofs",
    "with_small_pairs",
]
