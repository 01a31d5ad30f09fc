"""Operators by their plain names, and those that have no finite value at 0."""

from __future__ import annotations

import re

#: Operators whose value at 0 is -Inf.
LOGS = ("log", "log2", "log10")
#: Operators whose value is Inf where their divisor, the last argument, is 0.
DIVISIONS = ("div", "true_divide", "reciprocal", "remainder", "fmod", "floor_divide")


def operator_name(operator: str) -> str:
    """An operator's plain name: ``aten.log_.default`` and ``LogBackward0`` are both ``log``."""
    backward = re.fullmatch(r"([A-Za-z]\w*?)Backward\d*", operator)
    if backward is not None:
        return snake(backward[1])
    parts = operator.split(".")
    return (parts[1] if len(parts) > 1 else parts[0]).strip("_").removesuffix("_backward")


def snake(name: str) -> str:
    """A class's name as an operator's: ``LayerNorm`` is ``layer_norm``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
