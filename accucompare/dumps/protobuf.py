"""Reads protobuf's wire format ("Encoding" of the Protocol Buffers documentation) as far as a
dump's header needs: no schema, no recursion, every length checked."""

from __future__ import annotations

from collections.abc import Iterator

#: Kinds of values on the wire.
_VARINT, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT = 10


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Each field of a message: its number, and an unsigned integer or bytes. Raises ValueError if
    the message is truncated or damaged."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("a field has the number 0")
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == _DELIMITED:
            length, at = _varint(data, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise ValueError(f"a field is of the unknown kind {kind}")
        if length > len(data) - at:
            raise ValueError("a field is longer than what is left")
        yield number, data[at : at + length]
        at += length


def integers(value: int | memoryview) -> Iterator[int]:
    """The numbers of a repeated field, packed or single. Raises ValueError if it is truncated."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """An integer of seven bits per byte, the lowest first, and where it ends."""
    number = 0
    for shift in range(_LONGEST_VARINT):
        if at + shift >= len(data):
            raise ValueError("it ends early")
        byte = data[at + shift]
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number & 0xFFFFFFFFFFFFFFFF, at + shift + 1
    raise ValueError("an integer has more than 64 bits")
