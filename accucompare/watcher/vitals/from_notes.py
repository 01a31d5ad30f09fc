"""What the checklist takes from a step's calls, as the watch has noted them."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from accucompare.findings.log import Narrowed, Number, What, number
from accucompare.watcher.looking import Note

#: How many inputs in too narrow a type are named.
_FEW = 8
#: Names of inputs that are positions or ids.
_COUNTED = re.compile(
    r"position|time_?steps?$|(^|[._])ids?$|_ids$|(^|[._])(index|indices)$", re.IGNORECASE
)
#: The largest whole number up to which a type holds all.
_WHOLE = {"bfloat16": 256, "float16": 2048}


def has_matrix(module: nn.Module) -> bool:
    """Whether a module multiplies its input by a matrix, as no embedding and no norm does."""
    # a scripted module has no get()
    weight = next((each for name, each in module._parameters.items() if name == "weight"), None)
    return (
        weight is not None
        and not is_lazy(weight)
        and weight.dim() > 1
        and not isinstance(module, nn.Embedding)
    )


def first_entered(
    notes: Sequence[Note], matrices: Collection[str]
) -> tuple[str, Number, Number] | None:
    """The smallest and the largest value of the first input of the first of these modules."""
    for note in notes:
        if note.what is What.BEGAN and note.place.name in matrices:
            extrema = next((each for role, _, each in note.parts if role == "input"), None)
            if extrema is None:
                return None
            return note.place.name, number(extrema.low), number(extrema.high)
    return None


def first_outputs(
    notes: Sequence[Note], owners: Collection[str]
) -> dict[str, tuple[Number, Number]]:
    """The extrema of the first tensor that each module's first call gave, unless it is one
    number."""
    found: dict[str, tuple[Number, Number]] = {}
    for note in notes:
        name = note.place.name
        if note.what is What.ENDED and name in owners and note.parts and name not in found:
            extrema = note.parts[0][2]
            if math.prod(extrema.shape) > 1:
                found[name] = number(extrema.low), number(extrema.high)
    return found


def narrowed_inputs(notes: Sequence[Note], named: Mapping[str, nn.Module]) -> list[Narrowed]:
    """The first positions and ids in half types that cannot hold them exactly."""
    found = []
    for note in notes:
        for role, path, extrema in note.parts if note.what is What.BEGAN else ():
            limit = _WHOLE.get(extrema.dtype)
            if limit is None or role != "input" or not limit < extrema.high < math.inf:
                continue
            name = _name_of_argument(type(named[note.place.name]).forward, path)
            if _COUNTED.search(name):
                found.append(Narrowed(note.place.name, name, extrema.dtype, number(extrema.high)))
    return found[:_FEW]


@functools.cache
def _name_of_argument(forward: Any, path: str) -> str:
    """The name of a positional argument of ``forward``."""
    first, dot, rest = path.partition(".")
    if not first.isdigit():
        return path
    try:
        names = [
            each.name
            for each in inspect.signature(forward).parameters.values()
            if each.kind is each.POSITIONAL_OR_KEYWORD
        ]
    except (TypeError, ValueError):  # of a function that is not Python's
        return path
    return names[int(first) + 1] + dot + rest if int(first) + 1 < len(names) else path
