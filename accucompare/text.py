"""Makes text safe to show and to store: names, types, paths and notes that others chose."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

_SURROGATE = re.compile("[\ud800-\udfff]")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s'\"]*@")
_QUERY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s?'\"]*)\?[^\s'\")]*")


def printable(text: str) -> str:
    """The text in one line, without characters that are invisible or steer a terminal.

    Each character that is not printable is escaped as in Python (``\\x1b``, ``\\u202e``): control
    codes, line breaks, marks of direction or without width, lone surrogates."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def printable_lines(text: str) -> str:
    """The same for a text with lines, such as a model's error; tabs become spaces."""
    return "\n".join(printable(line) for line in text.expandtabs().split("\n"))


def uncoloured(text: str) -> str:
    """A message without a terminal's colour codes."""
    return _STYLE.sub("", text)


def storable(text: str) -> str:
    """The text with lone surrogates escaped, as in some file names, so that UTF-8 can hold it."""
    return _SURROGATE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


#: A word, or an acronym by its letters, that begins with the sound of a vowel.
_VOWEL = re.compile(r"[AEFHILMNORSX][A-Z]|(?![A-Z]{2})(?:[AEIOaeio]|[Uu](?:p|n(?!i|et)))")


def with_article(name: str) -> str:
    """``a Linear``, ``an Embedding``, ``an LSTM``."""
    return f"{'an' if _VOWEL.match(name) else 'a'} {name}"


def counted(count: int, noun: str) -> str:
    """``1 record``, ``1,200 records``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def first_few(items: Sequence[object], most: int = 3, between: str = ", ") -> str:
    """``a, b, c, and 4 more``."""
    left = len(items) - most
    return between.join([*map(str, items[:most]), *([f"and {left} more"] if left > 0 else [])])


def ranges(numbers: Iterable[int], to: str = "-") -> list[str]:
    """Sorted numbers in few parts: ``0``, ``2-7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return [to.join(map(str, run)) for run in runs]


def without_credentials(text: str) -> str:
    """A text whose URLs lose ``user:password@`` and everything after ``?``."""
    return _QUERY.sub(r"\1", _USER.sub(r"\1", text)) if "://" in text else text


def cut(text: str, most: int, length: Callable[[str], int] = len) -> str:
    """The text with ``…`` in place of its middle, at most ``most`` long."""
    if length(text) <= most:
        return text
    head, tail = "", ""
    while True:
        longer = (
            (head, text[-len(tail) - 1] + tail)
            if len(tail) <= len(head)
            else (head + text[len(head)], tail)
        )
        if length("".join(longer)) + 1 > most:
            return f"{head}…{tail}"
        head, tail = longer
