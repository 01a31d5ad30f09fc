"""Operators by their plain names, and origins at an exact 0 or a fully masked row, which code often
removes again."""

from __future__ import annotations

import math
import re

from accucompare.findings.log import MINUS, NAN, Finding

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


_SOFTMAXES = ("softmax", "log_softmax", "scaled_dot_product_attention", "logsumexp")
_POWERS = ("rsqrt", "pow")
_CASTS = ("to_copy", "copy")
#: So low a number is no activation, but hides what it is added to.
_HIDES = -1e9


def is_pole(finding: Finding) -> bool:
    """Whether an origin, whose operator is known, is a pole.

    - -Inf alone: the log of a 0; or a mask's number, cast to a type that cannot hold it;
    - Inf alone: division by a 0, or its negative power;
    - NaN alone: a softmax of -Inf only."""
    given = [tensor for tensor in finding.operator_tensors if tensor.role == "input"]
    gave = [tensor for tensor in finding.operator_tensors if tensor.role == "output"]
    name = operator_name(finding.operator)
    if not given or not gave:
        return False
    if finding.kinds == [NAN]:
        return any(name.startswith(each) or name == f"_{each}" for each in _SOFTMAXES) and any(
            float(each.low) == -math.inf for each in given
        )
    if NAN in finding.kinds:
        return False
    if finding.kinds == [MINUS] and all(float(each.high) > -math.inf for each in gave):
        if name in LOGS:
            return all(float(each.low) == 0 for each in given)
        if name in _CASTS:
            return all(float(each.low) <= _HIDES for each in given)
    return (
        name in (*DIVISIONS, *_POWERS)
        and given[-1 if name in DIVISIONS else 0].abs_min == 0
        and all(each.finite for each in given)
    )
