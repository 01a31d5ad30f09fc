"""The progress bar of a command, on stderr."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console


@contextlib.contextmanager
def progress_bar(verb: str, unit: str, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr, called with done and total; ``None`` without a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    from rich import progress

    amount = progress.DownloadColumn() if unit == "bytes" else progress.MofNCompleteColumn()
    with progress.Progress(
        progress.TextColumn(verb),
        progress.BarColumn(),
        amount,
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task(verb, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def compilation_bar(quiet: bool) -> Iterator[None]:
    """A line on stderr, if that is a terminal, with the region that is being compiled."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    from rich import progress

    from accucompare.live.numerics import telling_compilation

    with progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}"),
        progress.TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task("", visible=False, total=None)

        def tell(name: str, done: int, count: int) -> None:
            bar.update(task, description=f"compiling {name} ({done + 1} of {count})", visible=True)

        with telling_compilation(tell):
            yield
