"""What a culprit's error looks like."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OtherChoices:
    """Integers, booleans or masks that differ.

    Attributes:
        off, rows: where each row is a choice, such as a token's experts: how many rows differ, of
            how many; 0 if that is not known.
        first: the index of the first of them.
    """

    off: int = 0
    rows: int = 0
    first: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """The shape of an error.

    Attributes:
        words: at most three facts: what is not finite, then where the error is, then what it is.
            Empty if nothing is certain.
        hints: at most two: what such an error comes from.
    """

    words: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
