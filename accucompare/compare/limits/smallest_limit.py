"""The smallest limits that would pass a pair, rounded so that they do."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

import msgspec

from accucompare.compare.constants import SMALLEST_COSINE

_THREE_DIGITS_UP = Context(prec=3, rounding=ROUND_CEILING)


class SmallestLimit(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The smallest limit that would pass a pair.

    Attributes:
        name: ``atol``, ``rtol``, ``rel_l2``, ``cosine``, ``excess``; ``different`` for integers.
        error: what was measured; for a cosine, 1 - cosine.
    """

    name: str
    error: float

    def __str__(self) -> str:
        """``atol 2.40e-05``, ``cosine 0.999``, ``3 different``; ``""`` if none would pass."""
        if self.name == "different":
            return f"{self.error:.0f} different"
        return f"{self.name} {value}" if (value := self.value) else ""

    @property
    def value(self) -> str:
        """The number alone, to be given as a limit; ``""`` if no finite limit would pass."""
        match self.name:
            case "cosine":
                return _cosine(self.error)
            case "excess":
                return (
                    f"{float(_THREE_DIGITS_UP.create_decimal(Decimal(self.error))):g}"
                    if math.isfinite(self.error)
                    else ""
                )
            case "different":
                return f"{self.error:.0f}"
        if not self.error:
            return "0"
        above = math.nextafter(self.error, math.inf)  # the error may have been rounded down
        if math.isinf(above):
            return ""
        digits = f"{_THREE_DIGITS_UP.create_decimal(Decimal(above)):.2e}"
        return digits if math.isfinite(float(digits)) else ""


def _cosine(one_minus_cosine: float) -> str:
    """The cosine, its distance from 1 rounded to two digits; ``""`` if too small for a limit."""
    if not one_minus_cosine:
        return "1"
    unit = Decimal(1).scaleb(-min(max(1 - Decimal(one_minus_cosine).adjusted(), 2), 16))
    limit = (1 - Decimal(one_minus_cosine)).quantize(unit, rounding=ROUND_FLOOR)
    # the limit is read as a float, which near 1 is coarser than the printed digits
    while 1.0 - float(limit) < one_minus_cosine:
        limit -= unit
    return str(limit) if float(limit) >= SMALLEST_COSINE else ""
