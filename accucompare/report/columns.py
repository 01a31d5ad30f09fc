"""The columns of the sheet *Layers*, as one table that every tabular report reads."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from accucompare.bundle.records import Record, display_name
from accucompare.compare.result import Result
from accucompare.compare.rows import Row

if TYPE_CHECKING:
    import pandas

Value = str | int | float | None

# Number formats, as Excel writes them. Zero is shown as a bare 0, so that what is not zero stands out.
TEXT = "@"
COUNT = "#,##0"
SCIENTIFIC = "0.00E+00;-0.00E+00;0"
NUMBER = "0.00000E+00;-0.00000E+00;0"
PERCENT = "[=0]0;[<0.0001]0.0E+00;0.00%"
EXCESS = "[=0]0;[<1000]0.00;0.0E+00"
#: What stands in the place of a value of the candidate's that is golden's.
SAME = "same"

_DTYPE = {TEXT: "str", COUNT: "UInt64"}  # pandas'; everything else is a float


class Column(NamedTuple):
    """One column.

    Attributes:
        title: its header.
        get: its value, given the row's number (from 1) and the row; where there is nothing, text columns give ``""``, others
            ``None``.
        format: one of the number formats above.
        width: in characters.
        group: what it belongs to; neighbours of one group look alike.
        sparse: whether Excel hides it where no row has a value: without a baseline, or a second run, it has no meaning.
        folded: how deep in Excel's outline of columns it is, which is folded: 0 for those that are always seen, 1 for the most telling
            of each further group, 2 for the rest of it.
        several: whether it is only folded while all rows agree in it.
    """

    title: str
    get: Callable[[int, Row], Value]
    format: str
    width: float
    group: str
    sparse: bool = False
    folded: int = 0
    several: bool = False


def layer(row: Row) -> str:
    """The module that a row is about, as people read it."""
    return row.module or (row.record.name if row.record else "") or display_name("")


def bracketed(numbers: tuple[int, ...]) -> str:
    """A shape or an index, as PyTorch prints it: ``[2, 16, 768]``."""
    return f"[{', '.join(map(str, numbers))}]"


def _golden(row: Row) -> Record | None:
    return row.golden


def _candidate(row: Row) -> Record | None:
    return row.candidate


def _either(row: Row) -> Record | None:
    return row.record


def _of(side: Callable[[Row], Record | None], attribute: str, otherwise: Value = None) -> Callable[[int, Row], Value]:
    read = attrgetter(attribute)

    def get(number: int, row: Row) -> Value:
        record = side(row)
        value: Value = otherwise if record is None else read(record)
        return value

    return get


def _metric(name: str) -> Callable[[int, Row], Value]:
    """A measured difference; nothing where there was no finite value to measure it at."""
    read = attrgetter(name)

    def get(number: int, row: Row) -> Value:
        value: Value = None if row.metrics is None or row.metrics.nothing_finite else read(row.metrics)
        return value

    return get


def _count(name: str) -> Callable[[int, Row], Value]:
    """A count that is nearly always zero, and then left out, so that what is there stands out."""
    read = attrgetter(name)

    def get(number: int, row: Row) -> Value:
        return (row.metrics and read(row.metrics)) or None

    return get


def _statistic(side: Callable[[Row], Record | None], name: str) -> Callable[[int, Row], Value]:
    read = attrgetter(name)

    def get(number: int, row: Row) -> Value:
        record = side(row)
        value: Value = None if record is None or record.statistics is None else read(record.statistics)
        return value

    return get


def _golden_shape(number: int, row: Row) -> str:
    return bracketed(row.golden.shape) if row.golden else ""


def _other_shape(number: int, row: Row) -> str:
    """The candidate's shape: ``same``, where it is golden's."""
    if row.candidate is None:
        return ""
    return SAME if row.golden is not None and row.golden.shape == row.candidate.shape else bracketed(row.candidate.shape)


def _other_name(number: int, row: Row) -> str:
    """The candidate's qualified name: ``same``, where it is golden's, and no renaming made them match."""
    if row.golden is None or row.candidate is None:
        return ""
    return SAME if row.golden.name == row.candidate.name else display_name(row.candidate.name)


def _value(name: str) -> Callable[[int, Row], Value]:
    read = attrgetter(name)
    return lambda number, row: read(row)


def _where(number: int, row: Row) -> str:
    return bracketed(row.metrics.max_abs_index) if row.metrics and row.metrics.max_abs_index is not None else ""


COLUMNS: tuple[Column, ...] = (
    Column("#", lambda number, row: number, COUNT, 8, "record"),
    Column("step", _of(_either, "step"), COUNT, 7, "record", folded=1, several=True),
    Column("rank", _of(_either, "rank"), COUNT, 7, "record", folded=1, several=True),
    Column("layer", lambda number, row: layer(row), TEXT, 40, "record"),
    Column("type", _of(_either, "type", ""), TEXT, 20, "record"),
    Column("call", _of(_either, "call"), COUNT, 7, "record"),
    Column("role", _of(_either, "role.value", ""), TEXT, 16, "record"),
    Column("path", _of(_either, "path", ""), TEXT, 14, "record"),
    Column("reason", lambda number, row: row.reason.value, TEXT, 15, "verdict"),
    Column("relative L2", _metric("rel_l2"), SCIENTIFIC, 12, "difference"),
    Column("excess", _value("verdict.excess"), EXCESS, 10, "baseline", sparse=True),
    Column("x limit", _value("verdict.used"), EXCESS, 10, "judgement"),
    Column("max abs diff", _metric("max_abs"), SCIENTIFIC, 12, "difference"),
    Column("detail", lambda number, row: row.verdict.detail, TEXT, 48, "judgement"),
    Column("golden shape", _golden_shape, TEXT, 18, "record", folded=1),
    Column("candidate shape", _other_shape, TEXT, 18, "record", folded=2),
    Column("golden dtype", _of(_golden, "dtype", ""), TEXT, 11, "record", folded=2),
    Column("candidate dtype", _of(_candidate, "dtype", ""), TEXT, 11, "record", folded=2),
    Column("candidate layer", _other_name, TEXT, 36, "record", folded=2),
    Column("nearest name", lambda number, row: row.nearest, TEXT, 36, "record", folded=2),
    Column("tolerance", lambda number, row: row.verdict.tolerance, TEXT, 24, "judgement", folded=1),
    Column("status", lambda number, row: row.status.value, TEXT, 13, "judgement", folded=2),
    Column("rule", lambda number, row: row.verdict.rule, TEXT, 24, "judgement", folded=2),
    Column("would pass at", lambda number, row: row.verdict.needed, TEXT, 20, "judgement", folded=2),
    Column("baseline relative L2", _value("baseline"), SCIENTIFIC, 12, "baseline", sparse=True, folded=1),
    Column("excess limit", _value("verdict.excess_limit"), EXCESS, 12, "baseline", sparse=True, folded=2),
    Column("noise", _value("noise"), SCIENTIFIC, 11, "baseline", sparse=True, folded=2),
    Column("1 − cosine", _metric("one_minus_cosine"), SCIENTIFIC, 12, "difference", folded=1),
    Column("at index", _where, TEXT, 16, "difference", folded=2),
    Column("golden there", _metric("golden_at_max"), NUMBER, 14, "difference", folded=2),
    Column("candidate there", _metric("candidate_at_max"), NUMBER, 14, "difference", folded=2),
    Column("max rel diff", _metric("max_rel"), SCIENTIFIC, 12, "difference", folded=2),
    Column("mean abs diff", _metric("mean_abs"), SCIENTIFIC, 12, "difference", folded=2),
    Column("RMSE", _metric("rmse"), SCIENTIFIC, 12, "difference", folded=2),
    Column("bias", _metric("bias"), SCIENTIFIC, 12, "difference", folded=2),
    Column("max ULP", _metric("max_ulp"), COUNT, 13, "difference", folded=2),
    Column("over tolerance", _metric("over_tolerance"), PERCENT, 11, "difference", folded=2),
    Column("over 1e-3", _metric("over_1e3"), PERCENT, 10, "difference", folded=2),
    Column("over 5e-3", _metric("over_5e3"), PERCENT, 10, "difference", folded=2),
    Column("non-finite mismatch", _count("nonfinite_mismatch"), COUNT, 12, "not finite", folded=1),
    Column("golden NaN", _count("golden_nan"), COUNT, 11, "not finite", folded=2),
    Column("candidate NaN", _count("candidate_nan"), COUNT, 11, "not finite", folded=2),
    Column("golden Inf", _count("golden_inf"), COUNT, 11, "not finite", folded=2),
    Column("candidate Inf", _count("candidate_inf"), COUNT, 11, "not finite", folded=2),
    Column("saturated", _count("saturated"), COUNT, 11, "not finite", folded=2),
    Column("masked", _count("masked"), COUNT, 11, "not finite", folded=2),
    Column("golden L2", _statistic(_golden, "l2"), NUMBER, 14, "golden", folded=1),
    Column("golden min", _statistic(_golden, "min"), NUMBER, 14, "golden", folded=2),
    Column("golden max", _statistic(_golden, "max"), NUMBER, 14, "golden", folded=2),
    Column("golden mean", _statistic(_golden, "mean"), NUMBER, 14, "golden", folded=2),
    Column("candidate L2", _statistic(_candidate, "l2"), NUMBER, 14, "candidate", folded=1),
    Column("candidate min", _statistic(_candidate, "min"), NUMBER, 14, "candidate", folded=2),
    Column("candidate max", _statistic(_candidate, "max"), NUMBER, 14, "candidate", folded=2),
    Column("candidate mean", _statistic(_candidate, "mean"), NUMBER, 14, "candidate", folded=2),
)


def to_dataframe(comparison: Result) -> pandas.DataFrame:
    """One line per row of the comparison, in its order, under the titles of ``COLUMNS``: always all of them.

    Floats stay floats, NaN and infinities included (so what was not measured is NaN too); counts are ``UInt64`` with ``NA``
    where there is none; text is ``""`` where there is none. A column with an integer that float64 cannot hold is one of objects.
    """
    import pandas

    numbered = list(enumerate(comparison.rows, 1))
    columns = {}
    for column in COLUMNS:
        values = [column.get(number, row) for number, row in numbered]
        dtype = _DTYPE.get(column.format, "float64")
        if dtype == "float64" and any(isinstance(value, int) and float(value) != value for value in values):
            values, dtype = [float("nan") if value is None else value for value in values], "object"
        columns[column.title] = pandas.Series(values, dtype=dtype)
    return pandas.DataFrame(columns)
