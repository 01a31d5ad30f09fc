"""Text as it may be shown and stored: the one border for names, types, paths and notes that others chose."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")


def printable(text: str) -> str:
    """A text in one line that moves no cursor, turns no line and hides nothing.

    Every character that cannot be seen, but for the space, is escaped as Python does it (``\\x1b``, ``\\u202e``): control and
    escape codes, line breaks, marks of direction and of no width, lone surrogates. What is all printable is returned as it is.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def printable_lines(text: str) -> str:
    """The same for a text that has lines of its own, such as what a model raised; its tabs become spaces."""
    return "\n".join(printable(line) for line in text.expandtabs().split("\n"))


def storable(text: str) -> str:
    """A text that UTF-8 can hold: lone surrogates, as in file names of another encoding, are escaped, and nothing else is changed."""
    return _SURROGATE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
