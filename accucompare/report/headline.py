"""The word in capitals that begins an answer."""

from __future__ import annotations

from enum import Enum


class Headline(str, Enum):
    IDENTICAL = "IDENTICAL"
    PASS = "PASS"
    FAIL = "FAIL"
    TROUBLE = "TROUBLE"
    OK = "OK"  # of a bundle, and of an installation
    FINITE = "FINITE"  # of a watch
    NOT_FINITE = "NOT FINITE"
    CHECKS_FAIL = "FINITE, CHECKS FAIL"
