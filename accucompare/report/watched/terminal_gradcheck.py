"""What the terminal shows of custom backwards checked against finite differences."""

from __future__ import annotations

from rich.text import Text

from accucompare.bundle.format import display_name
from accucompare.findings.checklist import CheckStatus
from accucompare.findings.differences import FunctionGradients, GradientCheck
from accucompare.report.console import open_console
from accucompare.report.watch_words import printable_value, said
from accucompare.report.watched.terminal_health import STATES

_ORDER = (CheckStatus.PASS, CheckStatus.WARN, CheckStatus.FAIL, CheckStatus.NOT_LOOKED_AT)
_MODULES_SHOWN = 3
_NONE = (
    "the first forward and the loss apply no custom autograd Function; PyTorch's own derivatives"
    " are not checked"
)
_ON_PURPOSE = (
    "if that is on purpose, as of a straight-through estimator or a gradient reversal, leave it"
    " out: --skip MODULE"
)


def print_gradcheck(found: GradientCheck, quiet: bool = False) -> None:
    """Print the verdict, and unless ``quiet`` each custom Function in each form of its calls."""
    console = open_console()
    counts = {status: len(found.of(status)) for status in _ORDER}
    words = ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)
    names = len({each.name for each in found.functions})
    forms = f" in {len(found.functions):,} forms of calls" if len(found.functions) > names else ""
    what = (
        f"{names:,} custom Function{'s' if names > 1 else ''}{forms}: {words}"
        if found.functions
        else _NONE
    )
    console.answer(found.status.value, STATES[found.status][1], what)
    if quiet:
        return
    for each in found.functions:
        console.say(_line(each))
    if counts[CheckStatus.FAIL]:
        console.say(_ON_PURPOSE, "bright_black")


def _line(each: FunctionGradients) -> Text:
    status = each.outcome.status
    line = Text(f"  {status.value:<13} ", STATES[status][1])
    line.append(printable_value(each.name, 80), "bold" if status is CheckStatus.FAIL else "")
    if each.modules:
        more = (
            f" and {len(each.modules) - _MODULES_SHOWN} more"
            if len(each.modules) > _MODULES_SHOWN
            else ""
        )
        names = map(display_name, each.modules[:_MODULES_SHOWN])
        line.append(f" in {', '.join(map(printable_value, names))}{more}")
    line.append(f" ({printable_value(each.given, 200)})" if each.given else "")
    line.append(f": {printable_value(said(each.outcome.measured), 500)}")
    return line
