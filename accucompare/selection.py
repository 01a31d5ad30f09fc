"""Choosing layers by glob: ``--only`` and ``--skip``, in a capture as in a diff."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Selection:
    """Which qualified names are meant: those that match any of ``only`` (all, if empty) and none of ``skip``.

    Globs are matched against the whole name, case counts, and ``*`` crosses dots: ``encoder.*`` means everything inside the
    encoder, ``*.attention`` every attention at any depth, ``""`` the root alone.
    """

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    @classmethod
    def of(cls, only: str | Iterable[str], skip: str | Iterable[str]) -> Selection:
        """Build one from a single glob or several."""
        return cls(_tuple(only), _tuple(skip))

    def allows(self, name: str) -> bool:
        chosen = not self.only or any(fnmatchcase(name, glob) for glob in self.only)
        return chosen and not any(fnmatchcase(name, glob) for glob in self.skip)


def _tuple(globs: str | Iterable[str]) -> tuple[str, ...]:
    return (globs,) if isinstance(globs, str) else tuple(globs)
