"""Tokens of one tensor, computed twice: which are apart by more than rounding?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accucompare.compare.constants import NEAR_LOWEST
from accucompare.compare.limits import DEFAULT_REL_L2, excess_limit, floor
from accucompare.numbers import DTYPES, Array, DType, Float64, Kind, widen


@dataclass(frozen=True)
class TokenErrors:
    """How far the tokens of a tensor are from golden's."""

    # by token; infinite where golden is zero and the other is not, and where values that are not
    # finite, or integers, differ
    rel_l2: Float64
    norms: Float64  # of the differences, by token
    of_golden: Float64  # golden's norm, by token
    whole: float = 0.0  # relative L2 error over all tokens whose values are finite

    def at(self, places: tuple[Any, ...]) -> TokenErrors:
        """Those of some tokens; the whole stays that of all."""
        return TokenErrors(
            self.rel_l2[places], self.norms[places], self.of_golden[places], self.whole
        )

    def spread(self, places: tuple[Any, ...], size: tuple[int, int]) -> TokenErrors:
        """The same in arrays of all tokens, which are zero elsewhere."""

        def full(values: Float64) -> Float64:
            made = np.zeros(size)
            made[places] = values
            return made

        return TokenErrors(full(self.rel_l2), full(self.norms), full(self.of_golden), self.whole)


def token_errors(golden: Array, other: Array, dtypes: tuple[str, str]) -> TokenErrors:
    """The errors of ``other``.

    Args:
        golden, other: stored bits, by token.
        dtypes: the type of each.
    """
    ours, theirs = (DTYPES[name] for name in dtypes)
    if ours.kind in (Kind.INT, Kind.BOOL) or ours.kind is not theirs.kind:
        apart = (golden != other).any(1)
        none = np.zeros(len(golden))
        return TokenErrors(np.where(apart, np.inf, 0.0), np.where(apart, np.inf, 0.0), none)
    one, two = _numbers(golden, ours), _numbers(other, theirs)
    most = min(_largest(ours), _largest(theirs))
    marks = _marks(one, most)
    unlike, usual = (marks != _marks(two, most)).any(1), marks == 0
    one, two = np.where(usual, one, 0.0), np.where(usual & np.isfinite(two), two, 0.0)
    norms, of_golden = np.linalg.norm(two - one, axis=1), np.linalg.norm(one, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rel_l2 = np.where(norms > 0, norms / of_golden, 0.0)
    rel_l2 = np.where(unlike, np.inf, rel_l2)
    norm = float(np.linalg.norm(of_golden[~unlike]))
    whole = float(np.linalg.norm(norms[~unlike])) / norm if norm else 0.0
    return TokenErrors(rel_l2, np.where(unlike, np.inf, norms), of_golden, whole)


def over_limits(
    found: TokenErrors, rounding: TokenErrors | None, elements: int, dtype: str
) -> Float64:
    """Each token's error as a multiple of its limit.

    A token is held against what rounding made of the same token, or of all of them: those are more
    numbers, so chance tells less.

    Args:
        rounding: of the same tokens, computed as a whole in the same type; ``None`` without.
        elements: of a token.
        dtype: that the tokens are of.
    """
    if not DTYPES[dtype].digits:
        return found.rel_l2
    if rounding is None:
        return found.rel_l2 / DEFAULT_REL_L2[dtype]
    limit = excess_limit(elements, dtype)
    own = np.where(np.isfinite(rounding.rel_l2), rounding.rel_l2, 0.0)
    expected = np.maximum(own, max(rounding.whole, floor(dtype)))
    # where golden is zero, what rounding leaves of terms as large as elsewhere
    usual = float(np.sqrt(np.mean(np.square(found.of_golden)))) if len(found.of_golden) else 0.0
    finite = rounding.norms[np.isfinite(rounding.norms)]
    left = max(float(finite.max(initial=0.0)), floor(dtype) * usual)
    of_zero = np.isinf(found.rel_l2) & np.isfinite(found.norms)
    with np.errstate(divide="ignore", invalid="ignore"):
        beside_zero = found.norms / left if left else np.where(found.norms > 0, np.inf, 0.0)
    excess = np.where(of_zero, beside_zero, found.rel_l2 / expected)
    over: Float64 = excess / limit
    return over


def keys_seen(mask: Array, dtype: str) -> NDArray[np.int64] | None:
    """How many keys each query may see; ``None`` if it is no mask. ``mask``: stored bits; the last
    axis is that of keys."""
    kind = DTYPES[dtype]
    if kind.kind is Kind.BOOL:
        return np.asarray(np.asarray(mask, bool).sum(-1))
    if kind.kind is not Kind.FLOAT:
        return None
    values = _numbers(mask, kind)
    hidden = _marks(values, _largest(kind)) != 0
    return None if (values[~hidden] != 0).any() else np.asarray((~hidden).sum(-1))


def _numbers(values: Array, dtype: DType) -> Float64:
    wide = widen(np.ascontiguousarray(values), dtype)
    if wide.dtype.kind == "c":
        wide = wide.view(wide.real.dtype)
    return wide.astype(np.float64)


def _largest(dtype: DType) -> float:
    return NEAR_LOWEST * float(dtype.largest) if dtype.largest else math.inf


def _marks(values: Float64, most: float) -> NDArray[np.int8]:
    """What is no number to be measured: NaN; infinite, or near the lowest or largest of a type."""
    marks = np.zeros(values.shape, np.int8)
    marks[np.isnan(values)] = 3
    marks[values >= most] = 1
    marks[values <= -most] = 2
    return marks
