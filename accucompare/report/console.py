"""The commands' output: as wide as the terminal, or in 100 columns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from accucompare.text import cut, printable

WIDTH = 100
_INDENT = 16  # characters before a cure
_LEAST_NAME = 12  # characters of a name in a line that is too long without it


class ReportConsole(Console):
    """Prints text as it is."""

    def say(self, text: str | Text, style: str = "") -> None:
        """Print a line that the terminal wraps, so that a command in it can be copied whole;
        without anything in a text that a terminal would obey."""
        self.print(safe_text(text, style) if isinstance(text, str) else text, soft_wrap=True)

    def answer(self, word: str, style: str, more: str, before: str = "") -> None:
        """Print the first line: a coloured word or sentence, and what it is about."""
        self.say(Text.assemble(before, (word, style), safe_text(f"  {more}")))

    def entry(
        self, state: tuple[str, str], name: str, told: str, cure: str = "", limits: str = ""
    ) -> None:
        """Print one of several things looked at, with its state and its style; below, a cure."""
        line = Text(f"  {state[0]:<{_INDENT - 3}} ", state[1]).append(f"{name}: ", "bold")
        self.say(line.append(safe_text(told)).append(limits, "bright_black"))
        if cure:
            self.say(f"{'':<{_INDENT}}→ {cure}")

    def heading(self, title: str) -> None:
        """Print a heading, set apart from the lines above."""
        self.print()
        self.print(Text(title, "bold"))

    def rest(self, count: int, shown: int) -> None:
        """Print how many more are in the report, if any."""
        if count > shown:
            self.print(f"… and {count - shown:,} more in the report")

    def fitted(self, name: str, used: int) -> str:
        """A name beside ``used`` characters, cut in the middle if too long; whole in a pipe."""
        return (
            cut(name, max(self.width - used, _LEAST_NAME), cell_len) if self.is_terminal else name
        )


def open_console(stderr: bool = False) -> ReportConsole:
    console = ReportConsole(highlight=False, markup=False, emoji=False, stderr=stderr)
    console.width = console.width if console.is_terminal else WIDTH
    return console


def safe_text(text: str, style: str = "") -> Text:
    """A printed line without anything that a terminal would obey."""
    return Text(printable(text), style)


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """Let the reader of a pipe leave early (``| head``) without changing the command's result."""
    # rich turns a broken pipe into an exit, and stdout into a sink
    with contextlib.suppress(BrokenPipeError, SystemExit):
        yield
