"""The columns of the sheet *Layers*, one table for every tabular report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain, islice
from itertools import count as naturals
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from accucompare.bundle.format import display_name
from accucompare.compare.measuring import Metrics
from accucompare.compare.result import Result
from accucompare.compare.rows import Row
from accucompare.numbers import Statistics
from accucompare.report.words import layout_words, limit_words, verdict_words

if TYPE_CHECKING:
    import pandas

Value = str | int | float | None

# Number formats in Excel's notation. Zero is a bare 0, so that other numbers stand out.
TEXT = "@"
COUNT = "#,##0"
SCIENTIFIC = "0.00E+00;-0.00E+00;0"
NUMBER = "0.00000E+00;-0.00000E+00;0"
PERCENT = "[=0]0;[<0.0001]0.0E+00;0.00%"
LOGARITHM = "+0.0;-0.0;0.0"
EXCESS = "[=0]0;[<1000]0.00;0.0E+00"
GENERAL = "General"
#: Shown for a candidate's value that equals golden's.
SAME = "same"

_DTYPE = {TEXT: "str", COUNT: "UInt64"}  # pandas'; everything else is a float


class Scale(str, Enum):
    """How a column visualises its numbers."""

    NONE = ""
    BAR = "bar"  # from 0 to 1
    HEAT = (  # a logarithm to base 10, over 0 for what fails; neighbouring columns have one scale
        "heat"
    )
    SHADES = "shades"  # relative to the column
    MATRIX = "matrix"  # relative to all neighbouring columns of this scale


class Column(NamedTuple):
    """One column."""

    title: str
    # a row's value (``""`` or ``None`` if there is none); ``None`` to show the row's number
    get: Callable[[Any], Value] | None
    format: str = TEXT  # a number format, as above
    width: float = 0  # in characters, in Excel
    group: str = "record"  # neighbours of one group look alike
    sparse: bool = False  # whether Excel hides it if no row has a value
    # its level in Excel's column outline: 0 always shown, 1 most telling, 2 the rest
    folded: int = 0
    several: bool = False  # whether it is folded only if all rows have the same value
    scale: Scale = Scale.NONE
    wrap: bool = False
    link: Callable[[Any], str] | None = None  # where a click leads for a row, in links' notation
    # in a terminal: the fewest characters of a name; 0 for a column that is never cut
    least: int = 0
    spare: int = 0  # in a terminal: 0 if always shown; the largest number is dropped first


def limit_on_error(row: Row) -> float | None:
    """The limit on the relative L2 error: the one in force, else error divided by multiple."""
    if row.verdict.rel_l2_limit is not None:
        return row.verdict.rel_l2_limit or None  # a logarithmic axis has no zero
    over_limit = row.verdict.over_limit
    if row.metrics is None or not over_limit or not math.isfinite(over_limit):
        return None
    implied = row.metrics.rel_l2 / over_limit
    return implied if implied > 0 and math.isfinite(implied) else None


def chosen(columns: Sequence[Column], *titles: str) -> list[Column]:
    by_title = {column.title: column for column in columns}
    return [by_title[title] for title in titles]


def layer(row: Row) -> str:
    """A row's module, for people."""
    return row.module or (row.record.name if row.record else "") or display_name("")


def bracketed(numbers: tuple[int, ...]) -> str:
    """A shape or an index, as PyTorch prints it: ``[2, 16, 768]``."""
    return f"[{', '.join(map(str, numbers))}]"


class Of:
    """Reads a value from a part of a row; ``otherwise`` where the row has no such part.

    Attributes:
        part: gives the part or ``None``; readers of several columns call it once per row.
    """

    __slots__ = ("otherwise", "part", "read")

    def __init__(self, part: Callable[[Row], Any], name: str, otherwise: Value = None) -> None:
        self.part, self.read, self.otherwise = part, attrgetter(name), otherwise

    def __call__(self, row: Row) -> Value:
        whole = self.part(row)
        value: Value = self.otherwise if whole is None else self.read(whole)
        return value


_record, _golden, _candidate = attrgetter("record"), attrgetter("golden"), attrgetter("candidate")


def _golden_statistics(row: Row) -> Statistics | None:
    return row.golden.statistics if row.golden else None


def _candidate_statistics(row: Row) -> Statistics | None:
    return row.candidate.statistics if row.candidate else None


def _measured(row: Row) -> Metrics | None:
    """The measured differences; ``None`` if no value was finite."""
    return None if row.metrics is None or row.metrics.nothing_finite else row.metrics


def _count(name: str) -> Callable[[Row], Value]:
    """A count that is nearly always zero; zeros are left out, so that other numbers stand out."""
    read = attrgetter(name)
    return lambda row: (row.metrics and read(row.metrics)) or None


def _by_limit(said: Callable[[Any], Value]) -> Callable[[Row], Value]:
    return lambda row: said(row.verdict.limit)


def _golden_shape(row: Row) -> str:
    return bracketed(row.golden.shape) if row.golden else ""


def _other_shape(row: Row) -> str:
    """The candidate's shape: ``same`` if it equals golden's."""
    if row.candidate is None:
        return ""
    if row.golden is not None and row.golden.shape == row.candidate.shape:
        return SAME
    return bracketed(row.candidate.shape)


def _other_name(row: Row) -> str:
    """The candidate's name: ``same`` if it equals golden's and no renaming paired them."""
    if row.golden is None or row.candidate is None:
        return ""
    return SAME if row.golden.name == row.candidate.name else display_name(row.candidate.name)


def _where(row: Row) -> str:
    if row.metrics and row.metrics.max_abs_index is not None:
        return bracketed(row.metrics.max_abs_index)
    return ""


COLUMNS: tuple[Column, ...] = (
    Column("#", None, COUNT, 8),
    Column("step", Of(_record, "step"), COUNT, 7, folded=1, several=True),
    Column("rank", Of(_record, "rank"), COUNT, 7, folded=1, several=True),
    Column("layer", layer, TEXT, 40),
    Column("type", Of(_record, "type", ""), TEXT, 20),
    Column("call", Of(_record, "call"), COUNT, 7),
    Column("role", Of(_record, "role.value", ""), TEXT, 16),
    Column("path", Of(_record, "path", ""), TEXT, 20),
    Column("reason", attrgetter("reason.value"), TEXT, 15, "verdict"),
    Column(
        "relative L2", Of(_measured, "rel_l2"), SCIENTIFIC, 12, "difference", scale=Scale.SHADES
    ),
    Column("excess", attrgetter("verdict.excess"), EXCESS, 10, "baseline", sparse=True),
    Column("x limit", attrgetter("verdict.over_limit"), EXCESS, 10, "judgement", scale=Scale.BAR),
    Column("max abs diff", Of(_measured, "max_abs"), SCIENTIFIC, 12, "difference"),
    Column("detail", verdict_words.detail, TEXT, 48, "judgement"),
    Column("golden shape", _golden_shape, TEXT, 18, folded=1),
    Column("candidate shape", _other_shape, TEXT, 18, folded=2),
    Column("golden dtype", Of(_golden, "dtype", ""), TEXT, 11, folded=2),
    Column("candidate dtype", Of(_candidate, "dtype", ""), TEXT, 11, folded=2),
    Column("candidate layer", _other_name, TEXT, 36, folded=2),
    Column("nearest name", attrgetter("nearest"), TEXT, 36, folded=2),
    Column("layout", layout_words.layout, TEXT, 28, sparse=True, folded=1),
    Column("largest error on", layout_words.largest_error_on, TEXT, 12, sparse=True, folded=1),
    Column("tolerance", _by_limit(limit_words.judging_limits), TEXT, 24, "judgement", folded=1),
    Column("status", attrgetter("status.value"), TEXT, 13, "judgement", folded=2),
    Column("rule", _by_limit(limit_words.rule), TEXT, 24, "judgement", folded=2),
    Column("would pass at", attrgetter("verdict.needed"), TEXT, 20, "judgement", folded=2),
    Column(
        "baseline relative L2", attrgetter("baseline_error"), SCIENTIFIC, 12, "baseline", True, 1
    ),
    Column("excess limit", attrgetter("verdict.excess_limit"), EXCESS, 12, "baseline", True, 2),
    Column("noise", attrgetter("noise"), SCIENTIFIC, 11, "baseline", sparse=True, folded=2),
    Column("1 − cosine", Of(_measured, "one_minus_cosine"), SCIENTIFIC, 12, "difference", folded=1),
    Column("at index", _where, TEXT, 16, "difference", folded=2),
    Column("golden there", Of(_measured, "golden_at_max"), NUMBER, 14, "difference", folded=2),
    Column(
        "candidate there", Of(_measured, "candidate_at_max"), NUMBER, 14, "difference", folded=2
    ),
    Column("max rel diff", Of(_measured, "max_rel"), SCIENTIFIC, 12, "difference", folded=2),
    Column("mean abs diff", Of(_measured, "mean_abs"), SCIENTIFIC, 12, "difference", folded=2),
    Column("RMSE", Of(_measured, "rmse"), SCIENTIFIC, 12, "difference", folded=2),
    Column("bias", Of(_measured, "bias"), SCIENTIFIC, 12, "difference", folded=2),
    Column("max ULP", Of(_measured, "max_ulp"), COUNT, 13, "difference", folded=2),
    Column("over tolerance", Of(_measured, "over_tolerance"), PERCENT, 11, "difference", folded=2),
    Column("over 1e-3", Of(_measured, "over_1e3"), PERCENT, 10, "difference", folded=2),
    Column("over 5e-3", Of(_measured, "over_5e3"), PERCENT, 10, "difference", folded=2),
    Column("non-finite mismatch", _count("nonfinite_mismatch"), COUNT, 12, "not finite", folded=1),
    Column("golden NaN", _count("golden_nan"), COUNT, 11, "not finite", folded=2),
    Column("candidate NaN", _count("candidate_nan"), COUNT, 11, "not finite", folded=2),
    Column("golden Inf", _count("golden_inf"), COUNT, 11, "not finite", folded=2),
    Column("candidate Inf", _count("candidate_inf"), COUNT, 11, "not finite", folded=2),
    Column("saturated", _count("saturated"), COUNT, 11, "not finite", folded=2),
    Column("masked", _count("masked"), COUNT, 11, "not finite", folded=2),
    Column("golden L2", Of(_golden_statistics, "l2"), NUMBER, 14, "golden", folded=1),
    Column("golden min", Of(_golden_statistics, "min"), NUMBER, 14, "golden", folded=2),
    Column("golden max", Of(_golden_statistics, "max"), NUMBER, 14, "golden", folded=2),
    Column("golden mean", Of(_golden_statistics, "mean"), NUMBER, 14, "golden", folded=2),
    Column("candidate L2", Of(_candidate_statistics, "l2"), NUMBER, 14, "candidate", folded=1),
    Column("candidate min", Of(_candidate_statistics, "min"), NUMBER, 14, "candidate", folded=2),
    Column("candidate max", Of(_candidate_statistics, "max"), NUMBER, 14, "candidate", folded=2),
    Column("candidate mean", Of(_candidate_statistics, "mean"), NUMBER, 14, "candidate", folded=2),
)


def comparison_columns(comparison: Result) -> tuple[Column, ...]:
    """The columns of a comparison: ``COLUMNS``, and two of its reference if it has one."""
    reference = comparison.reference
    if reference is None:
        return COLUMNS
    at = 1 + [column.title for column in COLUMNS].index("relative L2")
    return (
        *COLUMNS[:at],
        Column(
            "reference relative L2", reference.error, SCIENTIFIC, 12, "baseline", scale=Scale.SHADES
        ),
        Column("x reference", reference.ratio, EXCESS, 11, "baseline"),
        *COLUMNS[at:],
    )


_IN_BLOCK = 1 << 14  # rows of a data frame that are put together
_AT_ONCE = 256  # rows that are read together, and stay in the processor's cache meanwhile


def value_blocks(
    columns: Sequence[Column], rows: Iterable[Any], size: int, numbers: Iterable[int] | None = None
) -> Iterator[list[list[Value]]]:
    """Values by column, in blocks of ``size`` rows; ``numbers``: the rows', or ``None``."""
    each, own_numbers = iter(rows), naturals(1) if numbers is None else iter(numbers)
    while True:
        values: list[list[Value]] = [[] for _ in columns]
        while len(few := list(islice(each, min(_AT_ONCE, size - len(values[0]))))):
            parts: dict[Any, list[Any]] = {None: list(islice(own_numbers, len(few)))}
            for column, own in zip(columns, values, strict=True):
                own += _of_few(column.get, few, parts)
        if not values[0]:
            return
        yield values


def _of_few(
    get: Callable[[Any], Value] | None, few: Sequence[Any], parts: dict[Any, list[Any]]
) -> Iterable[Value]:
    """A column's values in a few rows; ``parts`` caches what several columns read."""
    if get is None:
        return parts[None]
    if not isinstance(get, Of):
        return map(get, few)
    if (wholes := parts.get(get.part)) is None:
        wholes = parts[get.part] = list(map(get.part, few))
    if type(None) in set(map(type, wholes)):
        return [get.otherwise if whole is None else get.read(whole) for whole in wholes]
    return map(get.read, wholes)


def to_dataframe(comparison: Result) -> pandas.DataFrame:
    """One line per row of the comparison, in its order, with all its columns.

    Floats keep NaN and infinities; what was not measured is NaN, too. Counts are ``UInt64``, ``NA``
    if missing. Missing text is ``""``. A column with an integer that float64 cannot hold is
    ``Int64`` or ``UInt64`` with ``NA``, or object if it has floats too."""
    import pandas

    columns = comparison_columns(comparison)
    read = {column.title: _Read(_DTYPE.get(column.format, "float64")) for column in columns}
    for block in value_blocks(columns, comparison.rows, _IN_BLOCK):
        for each, values in zip(read.values(), block, strict=True):
            each.add(values)
    return pandas.DataFrame({title: each.series() for title, each in read.items()})


class _Read:
    """A column's values, block by block; floats take eight bytes each."""

    def __init__(self, dtype: str) -> None:
        self._dtype, self._blocks, self._floats, self._exact = dtype, list[Any](), False, True

    def add(self, values: list[Value]) -> None:
        if self._dtype != "float64":
            self._blocks.append(values)
            return
        kinds = set(map(type, values))
        self._floats = self._floats or float in kinds
        if kinds <= {float, type(None)}:
            self._blocks.append(np.array(values, np.float64))
            return
        self._exact = self._exact and all(
            float(value) == value for value in values if isinstance(value, int)
        )
        self._blocks.append(values)

    def series(self) -> pandas.Series[Any]:
        import pandas

        if self._dtype != "float64":
            return pandas.Series(list(chain(*self._blocks)), dtype=self._dtype)
        if self._exact:
            return pandas.Series(
                np.concatenate(
                    [np.zeros(0), *(np.array(block, np.float64) for block in self._blocks)]
                )
            )
        values = [
            None if value is None or value != value else value
            for block in self._blocks
            for value in block
        ]
        dtype = "object" if self._floats else _exact_dtype(values)
        return pandas.Series(
            (
                [math.nan if value is None else value for value in values]
                if dtype == "object"
                else values
            ),
            dtype=dtype,
        )


def _exact_dtype(values: Sequence[Value]) -> str:
    """pandas' dtype for exact numbers, one of them an integer that float64 cannot hold."""
    there = [value for value in values if value is not None]
    if all(isinstance(value, int) for value in there):
        least, most = min(map(int, there)), max(map(int, there))
        if least >= -(1 << 63) and most < 1 << 63:
            return "Int64"
        if least >= 0 and most < 1 << 64:
            return "UInt64"
    return "object"
