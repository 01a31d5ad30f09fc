"""Limits: the user's own, those of a file of rules by layer, or a table by dtype."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from accucompare.bundle.flags import roundoff
from accucompare.bundle.format import Record, Role
from accucompare.compare.constants import (
    BY_DIGITS,
    CLEAR,
    FED_ROUNDINGS,
    FED_ROUNDINGS_OF_SUMS,
    MOST_OF_SUMS,
    ORDERS_OF_SUMS,
    SMALLEST_COSINE,
)
from accucompare.compare.remarks import (
    DefaultOfDtype,
    LimitOrigin,
    LimitsOfPair,
    LimitSource,
    PairRemark,
    RuleOfFile,
)
from accucompare.errors import UsageError
from accucompare.files import bounded
from accucompare.numbers import DTYPES
from accucompare.places import local

DEFAULT_REL_L2 = {
    name: BY_DIGITS[dtype.digits][0] for name, dtype in DTYPES.items() if dtype.digits
}
CEILING = {name: BY_DIGITS[dtype.digits][1:] for name, dtype in DTYPES.items() if dtype.digits}

#: A type that rounds by this or more is coarse.
COARSE = roundoff("hf32")

COPIES = (
    "Embedding",
    "Identity",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Flatten",
    "Unflatten",
    "ReLU",
    "MaxPool1d",
    "MaxPool2d",
)


@dataclass(frozen=True)
class Tolerance:
    """The limits of a pair of records, all of which must be kept; ``None`` is no limit.

    Attributes:
        atol, rtol: every element has |candidate - golden| <= atol + rtol * |golden|; if only one is
            given, the other is 0.
        rel_l2: largest relative L2 error.
        cosine: smallest cosine similarity.
        tolerances: for ``accucompare.diff``: a TOML file of limits by layer; the first rule that
            applies wins, these limits judge the rest.
        source: where the limits come from.
        by_default: whether these are defaults, which a baseline replaces if there is one.
        ceiling: the largest relative L2 error that is rounding, whatever judges, if known.
        fed: whether the candidate was fed, so that an error over the ceiling was made here.
        summing: the relative L2 error of another order of long sums; a baseline has only one order.
        composed: that of a recurrent module composed of operators; a fused baseline rounds less.
        unjudged: why no baseline judges.
    """

    atol: float | None = None
    rtol: float | None = None
    rel_l2: float | None = None
    cosine: float | None = None
    tolerances: str | Path | None = None
    source: LimitOrigin = LimitSource.UNKNOWN
    by_default: bool = False
    ceiling: float | None = None
    fed: bool = False
    summing: float = 0.0
    composed: float = 0.0
    unjudged: tuple[PairRemark, ...] = ()

    def __post_init__(self) -> None:
        for name in ("atol", "rtol", "rel_l2", "cosine"):
            value = getattr(self, name)
            if value is None:
                continue
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not 0 <= value <= sys.float_info.max
            ):
                raise UsageError(
                    f"{name} must be a finite number that is not negative, but is {value!r}"
                )
        if self.cosine is not None and not SMALLEST_COSINE <= self.cosine <= 1.0:
            raise UsageError(
                f"cosine is the smallest similarity that passes, between {SMALLEST_COSINE} and 1"
                f" (such as 0.999), but is {self.cosine!r}; it is not 1 - cosine"
            )

    @property
    def given(self) -> bool:
        """Whether there is any limit."""
        return (self.atol, self.rtol, self.rel_l2, self.cosine) != (None, None, None, None)

    def is_no_rounding(self, rel_l2: float) -> bool:
        """Whether an error is clearly over the ceiling; unknown (false) for golden's zeros."""
        return self.ceiling is not None and CLEAR * self.ceiling < rel_l2 < math.inf

    def scaled(self, factor: float) -> Tolerance:
        """The same with ceiling scaled and, unless the user's, the relative limit."""
        return self if factor == 1.0 else _scaled(self, factor)

    def of_sums(self, terms: int, dtype: str) -> Tolerance:
        """The same with room for another order of summing so many terms; the user's limits stay."""
        if not terms or not self.by_default or self.rel_l2 is None:
            return self
        summing = min(
            ORDERS_OF_SUMS
            * math.sqrt(terms)
            * min(DTYPES[dtype].rounding, DTYPES["float32"].rounding),
            MOST_OF_SUMS,
        )
        return replace(self, rel_l2=max(self.rel_l2, summing), summing=summing)

    def of_roundings(self, error: float) -> Tolerance:
        """The same with room for roundings of this relative L2 error; the user's limits stay."""
        if not error or not self.by_default or self.rel_l2 is None:
            return self
        return replace(self, rel_l2=max(self.rel_l2, FED_ROUNDINGS / 2 * error), composed=error)

    def of_zero(self, terms: float, record: Record) -> Tolerance:
        """The same for zeros that rounding left of terms of this norm; the user's limits stay."""
        if not terms or not self.by_default or self.rel_l2 is None:
            return self
        most = _fed(DTYPES[record.dtype].rounding, math.inf).rel_l2 or 0.0
        return replace(
            self, rel_l2=None, atol=most * terms / math.sqrt(max(math.prod(record.shape), 1))
        )

    @cached_property
    def judged(self) -> LimitsOfPair:
        """What a verdict keeps of the limits."""
        limits = self.atol, self.rtol, self.rel_l2, self.cosine
        return LimitsOfPair(*limits, self.source, self.by_default, self.unjudged)


#: For integers and booleans.
EXACT = Tolerance(source=LimitSource.EXACT)


@dataclass(frozen=True)
class Rule:
    """A ``[[rule]]`` of a tolerance file: globs of the records it applies to, and the limits."""

    tolerance: Tolerance
    file: str
    number: int
    layer: str = "*"
    type: str = "*"
    role: str = "*"
    dtype: str = "*"

    def applies_to(self, record: Record) -> bool:
        return (
            fnmatchcase(record.name, self.layer)
            and fnmatchcase(record.type, self.type)
            and fnmatchcase(record.role.value, self.role)
            and fnmatchcase(record.dtype, self.dtype)
        )


@dataclass(frozen=True)
class Tolerances:
    """All limits in force.

    Attributes:
        rules: from a file; the first that applies to the candidate's record wins.
        otherwise: the user's limits for all other layers; else the table by dtype.
        fed: whether the candidate was fed; then a multiple of the rounding replaces the table.
        copies: the classes in ``COPIES`` that are torch's own in this model.
        sums: names of the candidate's modules that sum over a batch or an image, see ``SUMMED``.
        recurrent: the classes in ``RECURRENT`` that are torch's own in this model.
        rounding, conv_rounding: unit roundoff of operands of float32 products and convolutions.
    """

    rules: tuple[Rule, ...] = ()
    otherwise: Tolerance = Tolerance()
    fed: bool = False
    rounding: float = 0.0
    conv_rounding: float = 0.0
    copies: frozenset[str] = frozenset()
    sums: frozenset[str] = frozenset()
    recurrent: frozenset[str] = frozenset()

    def tolerance_for(self, golden: Record, candidate: Record, coarsest: str = "") -> Tolerance:
        """The limits for a pair of floating or complex records.

        Args:
            coarsest: the dtype with the fewest digits so far in its step; by default the pair's.
        """
        coarsest = coarsest or min(
            (golden.dtype, candidate.dtype), key=lambda name: DTYPES[name].digits
        )
        products = max(self.rounding, self.conv_rounding)
        if (own := self.of_user(candidate)) is not None:
            return _of_user(own, _ceiling(coarsest, products, copies=False, fed=self.fed))
        if self.fed:
            own_products = self.conv_rounding if "Conv" in candidate.type else self.rounding
            copies = candidate.role is Role.OUTPUT and candidate.type in self.copies
            return _fed(
                max(DTYPES[coarsest].rounding, own_products), _ceiling(coarsest, products, copies)
            )
        ceiling = _ceiling(coarsest, products, copies=False, fed=False)
        return _default(coarsest, coarsest in (golden.dtype, candidate.dtype), ceiling)

    def of_user(self, candidate: Record) -> Tolerance | None:
        """The user's own limits for a record; ``None`` if there are none."""
        ruled = next((rule.tolerance for rule in self.rules if rule.applies_to(candidate)), None)
        return ruled or (self.otherwise if self.otherwise.given else None)


@lru_cache(maxsize=4096)
def _scaled(tolerance: Tolerance, factor: float) -> Tolerance:
    rel_l2, ceiling = (
        None if each is None else each * factor for each in (tolerance.rel_l2, tolerance.ceiling)
    )
    return replace(
        tolerance, rel_l2=rel_l2 if tolerance.by_default else tolerance.rel_l2, ceiling=ceiling
    )


def with_ceiling(tolerance: Tolerance, least: float) -> Tolerance:
    """The same with a ceiling of at least so much."""
    return replace(tolerance, ceiling=max(tolerance.ceiling or 0.0, least))


@cache
def _of_user(tolerance: Tolerance, ceiling: float) -> Tolerance:
    return replace(tolerance, ceiling=ceiling)


@cache
def _default(coarsest: str, own: bool, ceiling: float) -> Tolerance:
    return Tolerance(
        rel_l2=DEFAULT_REL_L2[coarsest],
        source=DefaultOfDtype(coarsest, before=not own),
        by_default=True,
        ceiling=ceiling,
    )


@cache
def _fed(rounding: float, ceiling: float) -> Tolerance:
    roundings = FED_ROUNDINGS if rounding >= COARSE else FED_ROUNDINGS_OF_SUMS
    return Tolerance(
        rel_l2=roundings * rounding,
        source=LimitSource.FED,
        by_default=True,
        ceiling=ceiling,
        fed=True,
    )


@cache
def _ceiling(coarsest: str, products: float, copies: bool, fed: bool = True) -> float:
    """The ceiling by coarsest type or product format; ``copies``: a fed module only copies."""
    if copies:
        return FED_ROUNDINGS * DTYPES[coarsest].rounding
    formats = [name for name in ("bfloat16", "float16") if products >= DTYPES[name].rounding / 2]
    return max(CEILING[name][0 if fed else 1] for name in (coarsest, *formats[:1]))


_MOST_BYTES = 16 << 20  # of a file of rules, which has a few lines per layer
_RULE_KEYS = ["layer", "type", "role", "dtype"]
_LIMIT_KEYS = ["atol", "rtol", "rel_l2", "cosine"]


def read_rules(path: str | Path) -> tuple[Rule, ...]:
    """Read a tolerance file.

    Args:
        path: a TOML file of ``[[rule]]`` tables, each with globs (``layer``, ``type``, ``role``,
            ``dtype``; ``"*"`` if left out) and at least one limit (``atol``, ``rtol``, ``rel_l2``,
            ``cosine``).

    Raises:
        UsageError: if it cannot be read, or holds anything else.
    """
    path = local(path)
    if sys.version_info >= (3, 11):  # here, for few diffs have such a file
        import tomllib
    else:
        import tomli as tomllib
    try:
        content = tomllib.loads(bounded(Path(path), _MOST_BYTES).decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not valid TOML ({error})") from None
    tables = content.pop("rule", [])
    if content or not isinstance(tables, list) or not tables:
        raise UsageError(
            f"{path}: must hold [[rule]] tables and nothing else, but has"
            f" {sorted(content) or 'none'}"
        )
    return tuple(_rule(table, str(path), number) for number, table in enumerate(tables, 1))


def _rule(table: Any, file: str, number: int) -> Rule:
    place = f"{file}, rule {number}"
    if not isinstance(table, Mapping):
        raise UsageError(f"{place}: must be a [[rule]] table, but is {table!r}")
    unknown = sorted(set(table) - {*_RULE_KEYS, *_LIMIT_KEYS})
    if unknown:
        raise UsageError(
            f"{place}: unknown key {unknown[0]!r}; known are {', '.join(_RULE_KEYS + _LIMIT_KEYS)}"
        )
    for key in _RULE_KEYS:
        if not isinstance(table.get(key, ""), str):
            raise UsageError(f"{place}: {key} must be a glob in quotes, but is {table[key]!r}")
    try:
        tolerance = Tolerance(
            **{key: table[key] for key in _LIMIT_KEYS if key in table},
            source=RuleOfFile(file, number),
        )
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    if not tolerance.given:
        raise UsageError(f"{place}: has no limit; give one of {', '.join(_LIMIT_KEYS)}")
    return Rule(tolerance, file, number, **{key: table[key] for key in _RULE_KEYS if key in table})
