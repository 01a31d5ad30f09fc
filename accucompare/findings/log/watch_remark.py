"""What a watch or a check has to say, without words."""

from __future__ import annotations

from typing import Any

import msgspec


class WatchRemark(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fact with its values: numbers, names, other remarks. ``report.words`` has its sentence."""

    fact: str
    values: dict[str, Any] = {}


def remark(fact: str, /, **values: Any) -> WatchRemark:
    return WatchRemark(fact, values)
