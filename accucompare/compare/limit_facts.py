"""Which limits judged a pair, typed and without words: ``report.words`` makes the sentences."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import msgspec

from accucompare.compare.remarks import PairRemark


class LimitSource(str, Enum):
    """Where limits come from, if there is nothing to add."""

    UNKNOWN = "unknown"
    GIVEN = "given"  # by the user, for all layers
    FED = "fed"
    EXACT = "exact"
    BASELINE = "baseline"


class DefaultOfDtype(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """The table by dtype."""

    dtype: str  # the row of the table
    before: bool = False  # whether it is an earlier value's type; these values have another
    of_step: bool = False  # whether it is for a number of a step


class RuleOfFile(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A rule of a tolerance file, by its number from 1."""

    file: str
    number: int


LimitOrigin: TypeAlias = LimitSource | DefaultOfDtype | RuleOfFile


class LimitsOfPair(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """The limits of a tolerance, all of which judged; ``None`` is no limit."""

    atol: int | float | None
    rtol: int | float | None
    rel_l2: int | float | None
    cosine: int | float | None
    source: LimitOrigin
    by_default: bool  # whether they are not the user's
    unjudged: tuple[PairRemark, ...] = ()  # why no baseline judges


class LimitKind(str, Enum):
    """What a single limit is on, and what set it."""

    EXCESS = "excess"
    CEILING = "ceiling"
    APART = "apart"  # L2 norm of the difference of integers
    DIFFERENT = "different"  # how many integers differ
    LAST_PLACE = "last place"
    FACTOR = "common factor"
    ENVELOPE = "envelope"


class LimitOfKind(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A single limit, in place of the tolerance."""

    kind: LimitKind
    most: float


JudgedLimit: TypeAlias = LimitsOfPair | LimitOfKind
