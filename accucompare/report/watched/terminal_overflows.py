"""What ``overflow`` prints of a folder in which CANN noted overflowing operators."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from accucompare.dumps import Overflows, outputs_of
from accucompare.report.console import open_console, safe_text
from accucompare.report.headline import Headline
from accucompare.text import counted

_SHOWN = 100
_UNREADABLE_SHOWN = 5


def print_overflows(path: Path, overflows: Overflows, quiet: bool = False) -> None:
    """Print the verdict, and unless ``quiet`` each operator that overflowed, by time."""
    console = open_console()
    found, unreadable = overflows.found, overflows.unreadable
    word, style = (
        (Headline.TROUBLE.value, "bold red")
        if unreadable
        else (Headline.NOT_FINITE.value, "bold red")
    )
    many = (
        ""
        if not found
        else f"{counted(len(found), 'overflow')}, the first of {found[0].name}: {found[0].what}"
    )
    damaged = (
        f"{counted(len(unreadable), 'file')} could not be read, the first {unreadable[0]}"
        if unreadable
        else ""
    )
    console.print(
        Text.assemble(
            (word, style), safe_text(f"  {path}: {'; '.join(filter(None, (damaged, many)))}")
        ),
        soft_wrap=True,
    )
    if quiet:
        return
    for number, each in enumerate(found[:_SHOWN], 1):
        console.print()
        console.print(safe_text(f"{number}. {each.name}"), style="bold", soft_wrap=True)
        console.print(safe_text(f"   {each.what}"), soft_wrap=True)
        console.print(
            safe_text(f"   {each.where}, time {each.time}, {each.file.relative_to(path)}"),
            soft_wrap=True,
        )
        for name, what in () if each.operator is None else outputs_of(each.operator):
            console.print(safe_text(f"   {name}: {what}"), soft_wrap=True)
    if len(found) > _SHOWN:
        console.print(f"and {len(found) - _SHOWN:,} more")
    for why in unreadable[:_UNREADABLE_SHOWN]:
        console.print(safe_text(f"not read: {why}"), style="yellow", soft_wrap=True)
