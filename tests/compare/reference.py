"""The metrics once more, in exact rational arithmetic and without a line of NumPy: what ``measure``
is tested against.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import torch

from accucompare.numbers.dtypes import DTYPES, DType

Number = int | float


def values_of(raw: np.ndarray, dtype: DType) -> list[Number]:
    """Stored bits as Python numbers, complex ones as pairs, widened by PyTorch instead of by us."""
    flat = np.ascontiguousarray(raw).reshape(-1)
    if dtype.name == "complex32":
        return [float(part) for part in flat.view(np.float16)]
    if flat.dtype.kind == "c":
        return [part for value in flat.tolist() for part in (value.real, value.imag)]
    if not dtype.ml_dtype:
        return [
            int(value) if dtype.kind.value in ("int", "bool") else value for value in flat.tolist()
        ]
    bits = torch.from_numpy(flat.view(f"i{flat.itemsize}").copy())
    return bits.view(getattr(torch, dtype.name)).to(torch.float32).tolist()


def reference(
    golden: Sequence[Number],
    candidate: Sequence[Number],
    atol: float | None = None,
    rtol: float | None = None,
) -> dict[str, Any]:
    """Every metric of two lists of numbers that has a closed form, by name, rounded to float64 once
    at the end.
    """
    finite = [
        (a, b)
        for a, b in zip(golden, candidate, strict=True)
        if math.isfinite(a) and math.isfinite(b)
    ]
    left, right = [Fraction(a) for a, _ in finite], [Fraction(b) for _, b in finite]
    apart = [b - a for a, b in zip(left, right, strict=True)]
    count = max(len(finite), 1)
    gg, cc, dd = (sum((x * x for x in values), Fraction()) for values in (left, right, apart))
    gc = sum((a * b for a, b in zip(left, right, strict=True)), Fraction())
    largest = max(map(abs, apart), default=Fraction())
    relative = [_ratio(abs(d), abs(a)) for d, a in zip(apart, left, strict=True)]
    expected: dict[str, Any] = {
        "elements": len(golden),
        "compared": len(finite),
        "rel_l2": _ratio_of_roots(dd, gg),
        "one_minus_cosine": one_minus_cosine(gg, cc, gc),
        "max_abs": to_float(largest),
        "max_rel": max(relative, default=0.0),
        "mean_abs": to_float(sum(map(abs, apart), Fraction()) / count),
        "rmse": root(dd / count),
        "bias": to_float(sum(apart, Fraction()) / count),
        "over_1e3": sum(share > 1e-3 for share in relative) / count,
        "over_5e3": sum(share > 5e-3 for share in relative) / count,
        "golden_nan": sum(map(math.isnan, golden)),
        "candidate_nan": sum(map(math.isnan, candidate)),
        "golden_inf": sum(map(math.isinf, golden)),
        "candidate_inf": sum(map(math.isinf, candidate)),
        "nonfinite_mismatch": sum(
            not (math.isfinite(a) and math.isfinite(b))
            and not (a == b or (math.isnan(a) and math.isnan(b)))
            for a, b in zip(golden, candidate, strict=True)
        ),
    }
    if (atol, rtol) != (None, None):
        allowed = [Fraction(atol or 0) + Fraction(rtol or 0) * abs(a) for a in left]
        expected["over_tolerance"] = (
            sum(abs(d) > limit for d, limit in zip(apart, allowed, strict=True)) / count
        )
        expected["tolerance_used"] = max(
            (_ratio(abs(d), limit) for d, limit in zip(apart, allowed, strict=True)), default=0.0
        )
        over = [abs(d) - Fraction(rtol or 0) * abs(a) for d, a in zip(apart, left, strict=True)]
        expected["needed_atol"] = to_float(max([Fraction(), *over]))
    return expected


def one_minus_cosine(gg: Fraction, cc: Fraction, gc: Fraction) -> float:
    """1 - gc / sqrt(gg cc), by the sine where the two are near: sin^2 = 1 - cos^2 is rational."""
    if not gg or not cc:
        return 0.0 if gg == cc else 1.0
    with mpmath.workdps(60):
        cosine = mpmath.sqrt(_mpf(gc * gc / (gg * cc))) * (1 if gc >= 0 else -1)
        sine_squared = _mpf(1 - gc * gc / (gg * cc))
        return float(sine_squared / (1 + cosine)) if cosine > 0 else float(1 - cosine)


def root(value: Fraction) -> float:
    with mpmath.workdps(60):
        return _to_float(mpmath.sqrt(_mpf(value)))


def to_float(value: Fraction) -> float:
    """Rounded once; infinite beyond float64."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def same(
    found: float | None, expected: float | None, rel: float = 1e-12, floor: float = 0.0
) -> bool:
    """Whether two numbers agree to ``rel``, or to ``floor``, or to one subnormal step; infinities
    exactly.
    """
    if found is None or expected is None:
        return found is expected
    if math.isinf(expected) or math.isinf(found):
        # the last bit decides
        return found == expected or min(abs(found), abs(expected)) > 1.7976931348e308
    return abs(Fraction(found) - Fraction(expected)) <= max(
        Fraction(rel) * abs(Fraction(expected)), Fraction(floor), Fraction(5e-324)
    )


def disagreements(found: Any, expected: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The metrics of a ``Metrics`` that are not what they should be, by name, with both values."""
    wrong = {}
    for name, value in expected.items():
        rel = 1e-9 if name == "one_minus_cosine" else 1e-12
        floor = {
            "bias": 1e-12 * min(expected["mean_abs"], 1.79e308),
            "one_minus_cosine": 1e-28,
        }.get(name, 0.0)
        if name == "needed_atol":
            floor = 1e-15 * expected["max_abs"]  # a difference of two numbers as large as that
        if not same(getattr(found, name), value, rel, floor if math.isfinite(floor) else 0.0):
            wrong[name] = (getattr(found, name), value)
    return wrong


def _ratio(numerator: Fraction, denominator: Fraction) -> float:
    if not denominator:
        return math.inf if numerator else 0.0
    return to_float(numerator / denominator)


def _ratio_of_roots(numerator: Fraction, denominator: Fraction) -> float:
    if not denominator:
        return math.inf if numerator else 0.0
    return root(numerator / denominator)


def _mpf(value: Fraction) -> Any:
    return mpmath.mpf(value.numerator) / mpmath.mpf(value.denominator)


def _to_float(value: Any) -> float:
    return math.inf if value > mpmath.mpf(np.finfo(np.float64).max) else float(value)


ALL = tuple(DTYPES.values())
FLOATS = tuple(dtype for dtype in ALL if dtype.kind.value == "float")
INTS = tuple(dtype for dtype in ALL if dtype.kind.value == "int")
COMPLEXES = tuple(dtype for dtype in ALL if dtype.kind.value == "complex")
