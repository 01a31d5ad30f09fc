"""A finding in words."""

from accucompare.findings.words.hints import DIVISIONS, LOGS, hints, operator_name
from accucompare.findings.words.wording import answer, called, described, headline, kinds, printable, short, smallest, where

__all__ = [
    "DIVISIONS",
    "LOGS",
    "answer",
    "called",
    "described",
    "headline",
    "hints",
    "kinds",
    "operator_name",
    "printable",
    "short",
    "smallest",
    "where",
]
