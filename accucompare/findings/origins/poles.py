"""Origins at an exact 0 or a fully masked row, which code often removes again."""

from __future__ import annotations

import math

from accucompare.findings.log import MINUS, NAN, Finding
from accucompare.findings.origins.operator_names import DIVISIONS, LOGS, operator_name

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
