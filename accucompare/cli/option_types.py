"""What values the command line's options take: sizes, places, one of an Enum's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import click

from accucompare.errors import UsageError
from accucompare.places import Url, local, place_of


class OneOf(click.Choice):  # type: ignore[type-arg]  # generic only in newer versions
    """One of an Enum's values, converted to that Enum."""

    def __init__(self, kind: type[Enum], *but: Enum) -> None:
        super().__init__([each.value for each in kind if each not in but])
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._kind(super().convert(value, param, ctx))


class SizeType(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes such as 512MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", value.lower())
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is no size; write it as 512MiB or 1GiB", param, ctx)
        return int(float(match[1]) * 1024 ** " kmgt".index(match[2] or " "))


class ReadBy(click.ParamType):  # type: ignore[type-arg]
    """A text converted by a function, whose ValueError is the message."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


class LocalPath(click.Path):
    """A path of this machine."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            local(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)


class FiniteRange(click.FloatRange):
    """A range that excludes NaN and Inf."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number


class BundlePlace(click.Path):
    """A directory, or a URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        place = place_of(value) if isinstance(value, str) else value
        return place if isinstance(place, Url) else super().convert(place, param, ctx)


#: Everything but bundles.
LOCAL = LocalPath(path_type=Path)
PLACE = BundlePlace(path_type=Path)
