"""A file of limits by layer, type, role and dtype."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from accucompare.bundle.format import Record
from accucompare.compare.limit_facts import RuleOfFile
from accucompare.compare.limits.tolerance import Tolerance
from accucompare.errors import UsageError
from accucompare.files import bounded
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
    if not tolerance.has_limit:
        raise UsageError(f"{place}: has no limit; give one of {', '.join(_LIMIT_KEYS)}")
    return Rule(tolerance, file, number, **{key: table[key] for key in _RULE_KEYS if key in table})
