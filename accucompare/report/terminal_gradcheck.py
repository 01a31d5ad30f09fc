"""What the terminal shows of gradients checked against finite differences."""

from __future__ import annotations

from rich.text import Text

from accucompare.bundle.records import display_name
from accucompare.findings.checks import Status
from accucompare.findings.differences import GradientCheck, ModuleGradients
from accucompare.findings.wording import printable
from accucompare.report.console import open_console

_STYLES = {Status.FAIL: "bold red", Status.WARN: "yellow", Status.PASS: "green", Status.NOT_LOOKED_AT: "bright_black"}


def print_gradcheck(found: GradientCheck, quiet: bool = False) -> None:
    """Print the verdict; then each module that fails, with what is inside of it first, and a line for each of the others.

    ``quiet``: print the verdict line only.
    """
    console = open_console()
    counts = {status: len(found.of(status)) for status in (Status.PASS, Status.WARN, Status.FAIL, Status.NOT_LOOKED_AT)}
    worst = next((status for status in (Status.FAIL, Status.WARN, Status.PASS) if counts[status]), Status.NOT_LOOKED_AT)
    words = ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)
    console.print(Text.assemble((worst.value, _STYLES[worst]), f"  gradients of {len(found.modules):,} modules: {words}"), soft_wrap=True)
    if quiet:
        return
    for each in found.modules:
        console.print(_line(each), soft_wrap=True)


def _line(each: ModuleGradients) -> Text:
    status = each.outcome.status
    line = Text(f"  {status.value:<13} ", _STYLES[status])
    line.append(f"{printable(display_name(each.name))} ({printable(each.type, 60)}): ", "bold" if status is Status.FAIL else "")
    if each.inside:
        line.append(f"holds {', '.join(map(printable, each.inside[:3]))}, which fails by itself")
    else:
        line.append(printable(each.outcome.measured, 500))
    if each.functions:
        line.append(f"; custom Functions: {', '.join(printable(name, 60) for name in each.functions[:5])}")
    return line
