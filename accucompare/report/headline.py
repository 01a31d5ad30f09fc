"""The words in capitals that the first line of an answer begins with."""

from __future__ import annotations

from enum import Enum


class Headline(str, Enum):
    """What came of it, in one word."""

    IDENTICAL = "IDENTICAL"
    PASS = "PASS"
    FAIL = "FAIL"
    TROUBLE = "TROUBLE"
    OK = "OK"  # of a bundle, and of an installation
    FINITE = "FINITE"  # of a watch
    NOT_FINITE = "NOT FINITE"
    CHECKS_FAIL = "FINITE, CHECKS FAIL"
