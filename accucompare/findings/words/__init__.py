"""A finding in words."""

from accucompare.findings.words.hints import DIVISIONS, LOGS, hints_for, operator_name
from accucompare.findings.words.wording import (
    answer,
    called,
    described,
    finding_headline,
    kinds,
    printable_value,
    short,
    smallest,
    where,
)

__all__ = [
    "DIVISIONS",
    "LOGS",
    "answer",
    "called",
    "described",
    "finding_headline",
    "hints_for",
    "kinds",
    "operator_name",
    "printable_value",
    "short",
    "smallest",
    "where",
]
