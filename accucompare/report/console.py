"""The commands' output: as wide as the terminal, or in 100 columns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from accucompare.text import cut, printable

WIDTH = 100
_LEAST_NAME = 12  # characters of a name in a line that is too long without it


def open_console(stderr: bool = False) -> Console:
    """A console that prints text as it is."""
    console = Console(highlight=False, markup=False, emoji=False, stderr=stderr)
    console.width = console.width if console.is_terminal else WIDTH
    return console


def safe_text(text: str, style: str = "") -> Text:
    """A printed line without anything that a terminal would obey."""
    return Text(printable(text), style)


def fitted(console: Console, name: str, used: int) -> str:
    """A name beside ``used`` characters, cut in the middle if too long; whole in a pipe or file."""
    if not console.is_terminal:
        return name
    return cut(name, max(console.width - used, _LEAST_NAME), cell_len)


def print_heading(console: Console, title: str) -> None:
    """A heading, set apart from the lines above."""
    console.print()
    console.print(Text(title, "bold"))


def print_rest(console: Console, count: int, shown: int) -> None:
    """Say how many more are in the report, if any."""
    if count > shown:
        console.print(f"… and {count - shown:,} more in the report")


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """Let the reader of a pipe leave early (``| head``) without changing the command's result."""
    # rich turns a broken pipe into an exit, and stdout into a sink
    with contextlib.suppress(BrokenPipeError, SystemExit):
        yield
