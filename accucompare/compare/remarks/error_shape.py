"""What a culprit's error looks like."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OtherChoices:
    """Integers, booleans or masks that differ.

    Attributes:
        off, rows: if each row is a choice, such as a token's experts: how many rows differ, of how
            many; 0 if unknown.
        first: the index of the first one.
    """

    off: int = 0
    rows: int = 0
    first: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """The shape of an error.

    Attributes:
        words: at most three facts: what is not finite, where the error is, what it is; empty if
            uncertain.
        hints: at most two: what such an error comes from.
    """

    words: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
