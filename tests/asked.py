"""The keywords of ``ac.capture`` and ``ac.watch`` for tests that have options in one dict."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import accucompare as ac


def grouped(**flat: Any) -> dict[str, Any]:
    """Options of a capture under their names on the command line, in their groups."""
    if not flat.pop("backward", True):
        flat["roles"] = "forward"
    kinds = {
        "record": ac.Recorded,
        "feed": ac.FedWith if "feed" in flat else None,
        "start": ac.StartFrom,
        "loop": ac.Loop,
        "numerics": ac.Arithmetic,
    }
    return _in_groups(flat, kinds)


def looking(**flat: Any) -> dict[str, Any]:
    """The same of a watch."""
    if "like" in flat:
        flat["start"] = flat.pop("like")
    return _in_groups(flat, {"look": ac.LookAt, "loop": ac.Loop})


def _in_groups(flat: dict[str, Any], kinds: dict[str, Any]) -> dict[str, Any]:
    groups = {}
    for keyword, kind in kinds.items():
        names = [] if kind is None else [each.name for each in fields(kind) if each.name in flat]
        if names:
            groups[keyword] = kind(**{name: flat.pop(name) for name in names})
    return {**flat, **groups}
