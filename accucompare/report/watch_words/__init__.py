"""The words of a watch's findings, the checklist and a gradcheck; a diff starts without them."""

from accucompare.report.watch_words.check_words import CHECK_WORDS, THRESHOLD_WORDS
from accucompare.report.watch_words.finding_words import (
    answer,
    called,
    described,
    finding_headline,
    kinds,
    short,
    smallest,
    where,
)
from accucompare.report.watch_words.hints import hints_for
from accucompare.report.watch_words.remark_words import printable_value, said

__all__ = [
    "CHECK_WORDS",
    "THRESHOLD_WORDS",
    "answer",
    "called",
    "described",
    "finding_headline",
    "hints_for",
    "kinds",
    "printable_value",
    "said",
    "short",
    "smallest",
    "where",
]
