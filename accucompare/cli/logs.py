"""The package's logging as a command shows it: warnings; with --debug all, with --quiet errors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import click

from accucompare.text import printable, printable_lines

_PACKAGE = logging.getLogger("accucompare")


class _Stderr(logging.Handler):
    """Prints to the current standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            click.echo(f"accucompare: {printable_lines(self.format(record))}", err=True)
        except Exception:
            self.handleError(record)


@contextlib.contextmanager
def shown_logs(debug: bool, quiet: bool) -> Iterator[None]:
    """Print the package's logs while a command runs; handlers of user code do not repeat them."""
    handler = _Stderr(logging.DEBUG if debug else logging.ERROR if quiet else logging.WARNING)
    if debug:
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    before = _PACKAGE.level, _PACKAGE.propagate
    _PACKAGE.addHandler(handler)
    _PACKAGE.setLevel(handler.level)
    _PACKAGE.propagate = False
    try:
        yield
    finally:
        _PACKAGE.removeHandler(handler)
        _PACKAGE.setLevel(before[0])
        _PACKAGE.propagate = before[1]


def announcer(quiet: bool) -> Callable[[str], None]:
    """Tells on standard error what is done next."""
    if quiet:
        return lambda doing: None
    return lambda doing: click.echo(f"… {printable(doing)}", err=True)


@contextlib.contextmanager
def told_later(name: str) -> Iterator[None]:
    """Silence this logger: the command itself tells the same at its end."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
