"""Tokens of one tensor, computed twice: which are apart by more than rounding?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accucompare.compare.constants import NEAR_LOWEST
from accucompare.compare.limits import DEFAULT_REL_L2, excess_limit, floor
from accucompare.numbers import DTYPES, Array, DType, Float64, Kind, widen


class DecodeWay(str, Enum):
    """How the tokens were given to the model, in the order in which it is shown."""

    __str__ = str.__str__

    TOKENS = "token by token"
    CHUNKED = "prefill in chunks"
    STATIC = "static cache"
    LEFT = "padded left"
    UNEQUAL = "unequal lengths"
    RIGHT = "padded right"
    GENERATE = "by generate()"
    GENERATE_UNEQUAL = "by generate(), unequal lengths"


class NotDecodedWhy(str, Enum):
    """Why a way was not looked at."""

    __str__ = str.__str__

    NO_MASK = "no mask"
    NO_POSITIONS = "no positions"
    OWN_PROTOCOL = "own protocol"
    ENCODER_DECODER = "encoder-decoder"
    STATE = "state"
    NO_CACHE = "no cache returned"
    NO_STATIC = "no static cache"
    NO_GAPS = "no gaps"
    SHORT = "short"
    NO_GENERATE = "no generate"
    QUANTIZED = "quantized"


@dataclass(frozen=True)
class TokenDifference:
    """A value of one token that is off by more than rounding.

    Attributes:
        token: its index in the sequence, from 0, without padding.
        sample: the row of the batch.
        name, type, call, role, path: of the module call.
        parent: the name of the module that made an input; ``None`` for an output.
        argument: of an input that is not the module's first: its name.
        rel_l2: relative L2 error; ``rounding``: that of the whole run in the same type, if known.
        over_limit: the error as a multiple of its limit.
        keys: of a mask: how many keys the token may see here, and in golden.
    """

    token: int
    sample: int
    name: str
    type: str
    call: int
    role: str
    path: str
    parent: str | None
    argument: str
    rel_l2: float
    rounding: float | None
    over_limit: float
    keys: tuple[int, int] | None = None

    @property
    def maker(self) -> str:
        """The module whose code made the value, or was given it as an argument."""
        return self.name if self.parent is None or self.argument else self.parent


@dataclass(frozen=True)
class LayerDecoded:
    """A module whose values are off: the first one and the worst, and of how many tokens."""

    first: TokenDifference
    worst: TokenDifference
    tokens: int


@dataclass(frozen=True)
class DecodeOutcome:
    """What differs in one run with a cache.

    Attributes:
        dtype: what it computed in.
        calls: how many tokens each call of the model had.
        looked, left: how many values were compared, and how many could not be.
        unseen: tokens given after the first call of which no output of the model was compared.
        nearest: the largest error that passed, as a multiple of its limit.
        first: the first token's first value that is off, in execution order.
        layers: the modules whose values are off.
        choices: how many tokens went to another expert, or the like, by rounding.
        raised: what the model raised, if it did.
    """

    way: DecodeWay
    dtype: str
    calls: Sequence[int]
    looked: int = 0
    left: int = 0
    unseen: Sequence[int] = ()
    nearest: float = 0.0
    first: TokenDifference | None = None
    layers: Mapping[str, LayerDecoded] = field(default_factory=dict)
    choices: int = 0
    raised: str = ""

    @property
    def fails(self) -> bool:
        return self.first is not None

    @property
    def sure(self) -> bool:
        """Whether all that it was asked was seen."""
        return not self.raised and not self.unseen and self.looked > 0


class DecodeAnswer(str, Enum):
    """What all runs together say."""

    __str__ = str.__str__

    ROUNDING = "rounding"
    BROKEN = "more than rounding"
    NOT_SURE = "not sure"


@dataclass(frozen=True)
class Decoded:
    """A sequence as a whole, and again with the model's cache.

    Attributes:
        case, device, dtype: what was run, where, and the type it computed in.
        tokens: how long the sequence is; ``steps``: how many of its last tokens came one by one.
        samples: in the batch.
        golden: the type in which golden, the whole sequence, was computed.
        anticipates: the first module whose values change with later tokens, if the model's outputs
            do: then a cache cannot give them.
        outcomes: of each run.
        not_looked_at: the ways that were left out, and why.
    """

    case: str
    device: str
    dtype: str
    tokens: int
    steps: int
    samples: int
    golden: str
    anticipates: str | None
    outcomes: Sequence[DecodeOutcome]
    not_looked_at: Mapping[DecodeWay, NotDecodedWhy]

    @property
    def failing(self) -> list[DecodeOutcome]:
        """In the order of ways; of one way, that with the earliest token first: in a half type
        rounding hides more."""
        ways = [*DecodeWay]
        found = [(each.first.token, each) for each in self.outcomes if each.first is not None]
        found.sort(key=lambda entry: (ways.index(entry[1].way), entry[0]))
        return [each for _, each in found]

    @property
    def unsure(self) -> list[DecodeOutcome]:
        return [each for each in self.outcomes if not each.sure]

    @property
    def first(self) -> TokenDifference | None:
        """Where it begins, in the first run that fails."""
        return self.failing[0].first if self.failing else None

    @property
    def answer(self) -> DecodeAnswer:
        """The first rule that holds decides."""
        if self.failing:
            return DecodeAnswer.BROKEN
        if self.anticipates is not None or self.unsure or not self.outcomes:
            return DecodeAnswer.NOT_SURE
        return DecodeAnswer.ROUNDING

    @property
    def passed(self) -> bool:
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """0: rounding; 1: more; 2: not sure."""
        return [*DecodeAnswer].index(self.answer)


@dataclass(frozen=True)
class TokenErrors:
    """How far the tokens of a tensor are from golden's.

    Attributes:
        rel_l2: by token; infinite where golden is zero and the other is not, and where values that
            are not finite, or integers, differ.
        norms: of the differences, by token.
        of_golden: golden's norm, by token.
        whole: relative L2 error over all tokens whose values are finite.
    """

    rel_l2: Float64
    norms: Float64
    of_golden: Float64
    whole: float = 0.0

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
    """How many keys each query may see; ``None`` if it is no mask.

    Args:
        mask: stored bits; the last axis is that of keys.
    """
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
