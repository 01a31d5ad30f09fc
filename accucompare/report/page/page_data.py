"""A page's data: columns as bytes that a browser unpacks at once, with a head that locates each.

A number is rounded and kept as the leading bytes of its float64, as many as its shown digits need.
All first bytes of a column come first, then all second ones, and so on, which compresses best. A
text is stored once; rows hold its number. Everything is one gzip stream in base64, written while it
is made, with the head at its end."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

import numpy as np
from isal import isal_zlib

from accucompare.numbers import Array
from accucompare.report.files import encoded_json
from accucompare.report.table import (
    COUNT,
    EXCESS,
    NUMBER,
    PERCENT,
    SCIENTIFIC,
    TEXT,
    Column,
    Value,
    value_blocks,
)
from accucompare.text import printable

#: Bytes kept of a float64: 12 bits of mantissa for three digits, 20 for six; else all.
_BYTES = {SCIENTIFIC: 3, NUMBER: 4}
#: Digits to round to before bytes are cut; rounding twice would change the last shown digit.
_DIGITS = {SCIENTIFIC: 3, NUMBER: 6}
_WHOLE = 8
#: The formats' names in the page's script.
_FORMATS = {
    TEXT: "text",
    COUNT: "count",
    SCIENTIFIC: "scientific",
    EXCESS: "excess",
    PERCENT: "percent",
    NUMBER: "number",
}
_INDEX = 4  # bytes of a text's number
_BLOCK = 1 << 14  # rows
#: The first bytes of what is no number; a NaN is always written as the first.
_NAN, _MISSING = (np.uint64(bits << 48) for bits in (0x7FF8, 0x7FFC))
_EXPONENT = np.uint64(0x7FF << 52)
_LEVEL = 2  # of isal's three: nearly as small as zlib's usual one, in a tenth of the time


class PageData:
    """Writes columns into a file; one is in memory at a time."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._gzip = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, 31)
        self._waiting = b""
        self._size = 0

    def table(
        self,
        title: str,
        columns: Sequence[Column],
        rows: Sequence[Any],
        numbers: Iterable[int] | None = None,
    ) -> dict[str, Any]:
        """Write a table in blocks of rows, column by column in each, and return its head.

        The candidate's numbers are differences in bits from golden's, since most are nearly equal.
        ``numbers``: the rows'; ``None`` for 1, 2, …."""
        at = self._size
        texts: list[dict[Value, int]] = [{} for _ in columns]
        for block in value_blocks(columns, rows, _BLOCK, numbers):
            of_golden: dict[str, Array] = {}
            for column, values, known in zip(columns, block, texts, strict=True):
                self._add(
                    _planes(_indices(values, known), _INDEX)
                    if column.format == TEXT
                    else _numbers(column, values, of_golden)
                )
        listed = [
            self._texts(known) if column.format == TEXT else None
            for column, known in zip(columns, texts, strict=True)
        ]
        titles = {column.title for column in columns}
        about = [
            {
                "title": column.title,
                "format": _FORMATS.get(column.format, "general"),
                "group": column.group,
                "folded": column.folded,
                "width": column.width,
                "bytes": _width(column),
                "texts": place,
                "other": other if (other := _other(column)) in titles else None,
            }
            for column, place in zip(columns, listed, strict=True)
        ]
        return {"title": title, "rows": len(rows), "at": at, "block": _BLOCK, "columns": about}

    def matrix(self, numbers: Sequence[float | None]) -> int:
        """Write a heat map's numbers by rows, three bytes each, and return where they lie."""
        return self._add(_planes(leading_bits(numbers, 3), 3))

    def finish(self, head: dict[str, Any]) -> None:
        """Write the head, and its length in the last four bytes."""
        encoded = encoded_json(json.dumps(head, ensure_ascii=False, allow_nan=False))
        self._add(encoded)
        self._add(len(encoded).to_bytes(4, "little"))
        self._write(self._gzip.flush(), last=True)

    def _texts(self, known: dict[Value, int]) -> list[int]:
        """Write a column's texts without invisible characters, and return where they lie."""
        texts = json.dumps(
            ["" if value is None else printable(str(value)) for value in known], ensure_ascii=False
        ).encode()
        return [self._add(texts), len(texts)]

    def _add(self, content: bytes) -> int:
        at, self._size = self._size, self._size + len(content)
        self._write(self._gzip.compress(content))
        return at

    def _write(self, compressed: bytes, last: bool = False) -> None:
        """Write in base64, which takes three bytes at a time."""
        waiting = self._waiting + compressed
        whole = len(waiting) if last else len(waiting) // 3 * 3
        self._file.write(b64encode(waiting[:whole]))
        self._waiting = waiting[whole:]


def _width(column: Column) -> int:
    """Bytes of a value."""
    return _INDEX if column.format == TEXT else _BYTES.get(column.format, _WHOLE)


def _other(column: Column) -> str:
    """The column that this one's values are differences from; ``""`` for none."""
    side, _, what = column.title.partition(" ")
    return f"golden {what}" if side == "candidate" and column.format != TEXT else ""


def _indices(values: list[Value], known: dict[Value, int]) -> Array:
    """The numbers of texts; ``known`` gets the new ones."""
    for value in dict.fromkeys(values):
        known.setdefault(value, len(known))
    return np.fromiter(map(known.__getitem__, values), np.uint32, len(values))


def _numbers(column: Column, values: list[Value], of_golden: dict[str, Array]) -> bytes:
    """The bytes of numbers; the candidate's are differences from ``of_golden``'s of this block."""
    count = _width(column)
    bits = leading_bits(values, count, _DIGITS.get(column.format, 0))
    if column.title.startswith("golden "):
        of_golden[column.title] = bits
    other = of_golden.pop(_other(column), None)
    return _planes(bits if other is None else bits ^ other, count)


def leading_bits(values: Sequence[Value], count: int, digits: int = 0) -> Array:
    """Numbers as bits of float64, zero beyond ``count`` bytes; NaN and missing ones are marked.

    ``digits``: decimal digits to round to first; 0 for all."""
    if "" in values:
        values = [None if value == "" else value for value in values]
    numbers = np.array(values, np.float64)  # NaN for None
    if digits:
        numbers = _to_digits(numbers, digits)
    bits = numbers.view(np.uint64)
    if count < _WHOLE:
        dropped = np.uint64(64 - 8 * count)
        rounded = bits + (np.uint64(1) << (dropped - np.uint64(1)))
        bits = (
            np.where(np.isfinite(numbers) & ((rounded & _EXPONENT) != _EXPONENT), rounded, bits)
            >> dropped
            << dropped
        )
    if not (nan := np.isnan(numbers)).any():
        return bits
    missing = np.array([value is None for value in values], bool)
    return np.where(missing, _MISSING, np.where(nan, _NAN, bits))


def _to_digits(numbers: Array, digits: int) -> Array:
    """Numbers rounded to decimal digits, except where the power of ten overflows float64."""
    with np.errstate(all="ignore"):
        power = 10.0 ** (digits - 1 - np.floor(np.log10(np.abs(numbers))))
        rounded = np.rint(numbers * power) / power
    return np.where(np.isfinite(rounded) & np.isfinite(power) & (power > 0), rounded, numbers)


def _planes(numbers: Array, count: int) -> bytes:
    """The ``count`` leading bytes of 64-bit numbers (last bytes of smaller ones), by planes."""
    size = numbers.dtype.itemsize
    written = numbers.astype(f">u{size}").view(np.uint8).reshape(-1, size)
    return (
        written[:, :count].T.tobytes() if size == _WHOLE else written[:, size - count :].T.tobytes()
    )
