from __future__ import annotations

import math
from typing import Literal, TypeAlias

#: JSON has no NaN and no Infinity: these are written as words.
Number: TypeAlias = float | Literal["nan", "inf", "-inf"]


def number(value: float) -> Number:
    """A number as JSON can hold it."""
    if math.isnan(value):
        return "nan"
    return float(value) if math.isfinite(value) else "inf" if value > 0 else "-inf"
