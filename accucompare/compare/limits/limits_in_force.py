"""The limits in force in a diff: of a file by layer, the user's for all, or of each dtype.

``compare.pair_limits.limits_in_force`` makes them of what was asked and of the candidate."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from accucompare.bundle.format import Record, Role
from accucompare.compare.constants import BY_DIGITS, FED_ROUNDINGS, KERNELS_OF_DEVICES
from accucompare.compare.limit_facts import DefaultOfDtype, LimitSource, RuleOfFile
from accucompare.compare.limits.tolerance import Tolerance, fed_limit
from accucompare.errors import UsageError
from accucompare.files import bounded
from accucompare.numbers import DTYPES
from accucompare.places import local

_MOST_BYTES = 16 << 20  # of a file of rules, which has a few lines per layer
_RULE_KEYS = ["layer", "type", "role", "dtype"]
_LIMIT_KEYS = ["atol", "rtol", "rel_l2", "cosine"]


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


def read_rules(path: str | Path) -> tuple[Rule, ...]:
    """Read a tolerance file. Raises UsageError if it cannot be read, or holds anything else.

    Args:
        path: a TOML file of ``[[rule]]`` tables, each with globs (``layer``, ``type``, ``role``,
            ``dtype``; ``"*"`` if left out) and at least one limit (``atol``, ``rtol``, ``rel_l2``,
            ``cosine``).
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
    if not tolerance.has_limit:
        raise UsageError(f"{place}: has no limit; give one of {', '.join(_LIMIT_KEYS)}")
    return Rule(tolerance, file, number, **{key: table[key] for key in _RULE_KEYS if key in table})


DEFAULT_REL_L2 = {
    name: BY_DIGITS[dtype.digits][0] for name, dtype in DTYPES.items() if dtype.digits
}
CEILING = {name: BY_DIGITS[dtype.digits][1:] for name, dtype in DTYPES.items() if dtype.digits}

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
class LimitsInForce:
    """The limits of each pair: the user's by layer, the user's for all, or a table by dtype."""

    # from a file; the first that applies to the candidate's record wins
    rules: tuple[Rule, ...] = ()
    # the user's limits for all other layers; else the table by dtype
    otherwise: Tolerance = field(default_factory=Tolerance)
    # whether the candidate was fed; then a multiple of the rounding replaces the table
    fed: bool = False
    # rounding, conv_rounding: unit roundoff of operands of float32 products and convolutions
    rounding: float = 0.0
    conv_rounding: float = 0.0
    # the classes in ``COPIES`` that are torch's own in this model
    copies: frozenset[str] = frozenset()
    # names of the candidate's modules that sum over a batch or an image, see ``SUMMED``
    sums: frozenset[str] = frozenset()
    # the classes in ``RECURRENT`` that are torch's own in this model
    recurrent: frozenset[str] = frozenset()
    on_device: bool = False  # whether the candidate ran on an accelerator

    def tolerance_for(self, golden: Record, candidate: Record, coarsest: str = "") -> Tolerance:
        """The limits for a pair of floating or complex records. ``coarsest``: the dtype with the
        fewest digits so far in its step; by default the pair's."""
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
        return ruled or (self.otherwise if self.otherwise.has_limit else None)


@cache
def kernels_of(type: str) -> float:
    """How many times as far off as others a class's kernel on a device may be in float32."""
    return next((times for name, times in KERNELS_OF_DEVICES.items() if re.search(name, type)), 1.0)


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
    return Tolerance(
        rel_l2=fed_limit(rounding),
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
