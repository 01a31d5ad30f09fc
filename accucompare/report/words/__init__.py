"""The words of verdicts, culprits and steps, the same in every report."""

from accucompare.report.words import (
    compiled_words,
    culprit_words,
    decision_words,
    decode_words,
    fit_code,
    fit_words,
    invariance_words,
    limit_words,
    preflight_words,
    rank_words,
    repeat_words,
    training_words,
    trend_words,
    verdict_words,
)
from accucompare.report.words.assertion import failure, nan_on_both
from accucompare.report.words.culprit_place import (
    NamedCulprit,
    culprit_hints,
    culprit_place,
    error_words,
)
from accucompare.report.words.culprit_words import place_words
from accucompare.report.words.preflight_words import ToldFinding

__all__ = [
    "NamedCulprit",
    "ToldFinding",
    "compiled_words",
    "culprit_hints",
    "culprit_place",
    "culprit_words",
    "decision_words",
    "decode_words",
    "error_words",
    "failure",
    "fit_code",
    "fit_words",
    "invariance_words",
    "limit_words",
    "nan_on_both",
    "place_words",
    "preflight_words",
    "rank_words",
    "repeat_words",
    "training_words",
    "trend_words",
    "verdict_words",
]
