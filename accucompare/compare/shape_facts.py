"""What an error looks like, in fields: ``report.words.shape_words`` makes the sentences.

Indices are of whole tensors, also where a sample was looked at."""

from __future__ import annotations

from enum import Enum

import msgspec


class Axis(msgspec.Struct, frozen=True):
    """A dimension of a tensor that has ``ndim`` of them, which tells what its slices are."""

    dim: int
    ndim: int


class NamedSlices(msgspec.Struct, frozen=True):
    """``count`` of the ``size`` slices along an axis: the first few, and the last.

    Of all slices, one in ``step`` was looked at."""

    axis: Axis
    size: int
    count: int
    few: tuple[int, ...]
    last: int
    step: int = 1


class BadKind(Enum):
    """What the candidate has at elements where golden has none."""

    NAN = "NaN"
    INFINITE = "Inf"
    FINITE = "finite"
    SATURATED = "saturated"  # its dtype's largest value


class BadElements(msgspec.Struct, frozen=True):
    """``count`` of all ``elements``, in these slices; without any, the ``first`` one's index."""

    kind: BadKind
    count: int
    elements: int
    slices: tuple[NamedSlices, ...] = ()
    first: tuple[int, ...] = ()


class ErrorPlace(msgspec.Struct, frozen=True):
    """A share of the squared error in what all ``slices`` have in common, or in one element.

    ``rest_identical``: of a single run of slices, if all others are right, whether bit for bit."""

    share: float
    slices: tuple[NamedSlices, ...] = ()
    index: tuple[int, ...] = ()
    rest_identical: bool | None = None


class PatternKind(Enum):
    """What was done to golden's values, and the fields of ``Pattern`` that say more."""

    ZERO = "zero"
    NEARLY_ZERO = "nearly zero"
    SOME_ZEROS = "some zeros"  # share of the elements
    CONSTANT = "constant"
    NEARLY_CONSTANT = "nearly constant"
    FEW_VALUES = "few values"  # count
    SIGN = "sign"
    SCALE = "scale"  # low
    SCALES = "scales"  # low, high
    OFFSET = "offset"  # low, of golden's RMS if that is not zero
    OFFSETS = "offsets"  # low, high
    CLIPPED = "clipped"
    CLIPPED_BELOW = "clipped below"  # low: 0 if there
    CLIPPED_ABOVE = "clipped above"  # the same
    SOFTMAX_AGAIN = "softmax"
    SHIFTED = "shifted"  # by indices[0] along the axis
    SWAPPED = "swapped"  # two slices along the axis, as the next
    REVERSED = "reversed"
    MOVED = "moved"  # count, and the first few indices
    TRANSPOSED = "transposed"  # two dimensions
    LAID_OUT = "laid out"  # all dimensions in their order
    NEGATIVE = "negative"  # share of the squared error where golden is
    POSITIVE = "positive"
    BY_GOLDEN = "by golden"  # the error is a function of golden's values
    ROWS_ALIKE = "rows alike"  # every row has the same error but for a factor
    UNRELATED = "unrelated"
    # no pattern; low: the error's RMS over golden's
    NOISE = "noise"  # golden is zero
    ROUNDING = "rounding"  # to so many bits: count
    RELATIVE = "relative"
    ABSOLUTE = "absolute"
    NEITHER = "neither"


class Pattern(msgspec.Struct, frozen=True):
    """What was done to golden's values, all or those of a place."""

    kind: PatternKind
    axis: Axis | None = None  # whose slices have each a factor or offset; without one, each row has
    # low, high: the range of factors or offsets without the outermost tenth; or a single number
    low: float | None = None
    high: float | None = None
    share: float = 0.0
    count: int = 0
    indices: tuple[int, ...] = ()


class ErrorCause(Enum):
    """A cause of an error that nothing else makes: the pattern itself excludes others."""

    SATURATED = "saturated"
    SOFTMAX = "softmax"
    EPS = "eps"


class ErrorShape(msgspec.Struct, frozen=True):
    """The shape of an error; what is uncertain is left out."""

    bad: tuple[BadElements, ...] = ()
    place: ErrorPlace | None = None
    patterns: tuple[Pattern, ...] = ()
    causes: tuple[ErrorCause, ...] = ()
    dtype: str = "float32"  # the candidate's
    one_in: int = 1  # of so many elements one was looked at


class OtherChoices(msgspec.Struct, frozen=True):
    """Integers, booleans or masks that differ."""

    # off, rows: if each row is a choice, such as a token's experts: how many rows differ, of how
    # many; 0 if unknown
    off: int = 0
    rows: int = 0
    first: tuple[int, ...] = ()  # the index of the first one
