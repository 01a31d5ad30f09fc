"""Every row as a Parquet file: the columns of the sheet *Layers*, with types."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accucompare.compare.result import Result
from accucompare.errors import ReportError
from accucompare.files import PARQUET_FILE, written_whole
from accucompare.report.files.json import head
from accucompare.report.files.json_file import encoded_json
from accucompare.report.table import COUNT, TEXT, Column, Value, comparison_columns, value_blocks
from accucompare.text import storable

if TYPE_CHECKING:
    import pyarrow

#: Rows that are read together, and how many of these blocks are written together.
_IN_BLOCK, _BLOCKS = 1 << 13, 8
_DIGITS = 20  # of the largest integer of 64 bits
#: Columns that are integers for tensors of integers, beyond what a float64 holds.
_INTEGERS = (
    "golden there",
    "candidate there",
    "golden min",
    "golden max",
    "candidate min",
    "candidate max",
)


def write_parquet(comparison: Result, path: Path) -> Path:
    """Write every row, in groups of 65,536, one of which is in memory.

    Counts are unsigned integers, text is dictionary-encoded, all else is float64: ``null`` if
    missing, NaN if not a number. An integer that float64 cannot hold is exact in a column of its
    own (``golden min (exact)``), ``null`` elsewhere, so all files have the same columns. The
    metadata ``accucompare`` hold the first of the JSON lines. Raises ReportError if pyarrow is
    missing, the path has another ending, or the file cannot be written."""
    PARQUET_FILE.refuse_other(path)
    arrow, parquet = require_pyarrow()
    columns, kinds = zip(*_columns(arrow, comparison), strict=True)
    about = {**head(comparison), "row_count": len(comparison.rows)}
    text = json.dumps(about, ensure_ascii=False, allow_nan=False)
    schema = arrow.schema(
        [(column.title, kind) for column, kind in zip(columns, kinds, strict=True)],
        metadata={"accucompare": encoded_json(text)},
    )

    def write(temporary: Path) -> None:
        with (
            temporary.open("wb") as file,
            parquet.ParquetWriter(file, schema, compression="zstd") as writer,
        ):
            blocks = value_blocks(columns, comparison.rows, _IN_BLOCK)
            batches = (
                arrow.record_batch(list(map(_array, repeat(arrow), kinds, block)), schema=schema)
                for block in blocks
            )
            while group := list(islice(batches, _BLOCKS)):
                writer.write_table(
                    arrow.Table.from_batches(group, schema), row_group_size=_IN_BLOCK * _BLOCKS
                )

    return written_whole(path, write, (arrow.ArrowException,))


def require_pyarrow() -> Any:
    """pyarrow and its Parquet module, imported only now. Raises ReportError if it is missing, or
    broken."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ReportError(
            f"a Parquet file needs pyarrow ({error}); install it with: pip install"
            " 'accucompare[parquet]'"
        ) from None
    return pyarrow, pyarrow.parquet


def _columns(arrow: Any, comparison: Result) -> list[tuple[Column, pyarrow.DataType]]:
    """The columns of *Layers* with types, and an exact one beside those that may hold integers."""
    columns = []
    for column in comparison_columns(comparison):
        columns.append((column, _kind(arrow, column)))
        if column.title in _INTEGERS and column.get:
            both = arrow.decimal128(_DIGITS)  # signed and unsigned integers of 64 bits
            columns.append((Column(f"{column.title} (exact)", _exact(column.get), COUNT), both))
    return columns


def _exact(get: Callable[[Any], Value]) -> Callable[[Any], Value]:
    def integer(row: Any) -> Value:
        value = get(row)
        return value if isinstance(value, int) and float(value) != value else None

    return integer


def _kind(arrow: Any, column: Column) -> pyarrow.DataType:
    if column.format == TEXT:
        return arrow.dictionary(arrow.int32(), arrow.string())
    return arrow.uint64() if column.format == COUNT else arrow.float64()


def _array(arrow: Any, kind: pyarrow.DataType, values: Sequence[Value]) -> pyarrow.Array:
    if kind == arrow.float64():
        # NaN stays NaN
        return arrow.array([None if value is None else float(value) for value in values], kind)
    if not arrow.types.is_dictionary(kind):
        return arrow.array(values, kind)
    known: dict[Value, int] = {}
    indices = [None if value is None else known.setdefault(value, len(known)) for value in values]
    words = arrow.array([storable(str(value)) for value in known], arrow.string())
    return arrow.DictionaryArray.from_arrays(arrow.array(indices, arrow.int32()), words)
