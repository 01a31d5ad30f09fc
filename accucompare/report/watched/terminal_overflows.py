"""What ``overflow`` prints of a folder in which CANN noted overflowing operators."""

from __future__ import annotations

from pathlib import Path

from accucompare.dumps import Overflows, outputs_of
from accucompare.report.console import open_console
from accucompare.report.headline import Headline
from accucompare.text import counted

_SHOWN = 100
_UNREADABLE_SHOWN = 5


def print_overflows(path: Path, overflows: Overflows, quiet: bool = False) -> None:
    """Print the verdict, and unless ``quiet`` each operator that overflowed, by time."""
    console = open_console()
    found, unreadable = overflows.found, overflows.unreadable
    word = Headline.TROUBLE if unreadable else Headline.NOT_FINITE
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
    more = "; ".join(filter(None, (damaged, many)))
    console.answer(word.value, "bold red", f"{path}: {more}")
    if quiet:
        return
    for number, each in enumerate(found[:_SHOWN], 1):
        console.print()
        console.say(f"{number}. {each.name}", "bold")
        console.say(f"   {each.what}")
        console.say(f"   {each.where}, time {each.time}, {each.file.relative_to(path)}")
        for name, what in () if each.operator is None else outputs_of(each.operator):
            console.say(f"   {name}: {what}")
    if len(found) > _SHOWN:
        console.print(f"and {len(found) - _SHOWN:,} more")
    for why in unreadable[:_UNREADABLE_SHOWN]:
        console.say(f"not read: {why}", "yellow")
