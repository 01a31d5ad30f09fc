"""What a culprit's error looks like."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OtherChoices:
    """Integers, booleans or masks that differ.

    Attributes:
        off, rows: how many rows of choices (a token's experts) differ, of how many; 0 if unknown.
        first: the index of the first one.
    """

    off: int = 0
    rows: int = 0
    first: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """The shape of an error.

    Attributes:
        words: at most three facts: what is not finite, where the error is, what it is.
        hints: at most two: what such an error comes from.
    """

    words: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
