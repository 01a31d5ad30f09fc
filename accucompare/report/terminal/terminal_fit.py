"""What to keep in float32, in the terminal."""

from __future__ import annotations

from rich.text import Text

from accucompare.bundle.format import display_name
from accucompare.compare.fits import Fit, FitAnswer
from accucompare.report.console import open_console, print_heading, print_rest, safe_text
from accucompare.report.contents import PLACE_COLUMNS, fit_run_columns, shown_places
from accucompare.report.terminal.tables import print_table
from accucompare.report.words import fit_words

_LOOKS = {
    FitAnswer.NOTHING_TO_KEEP: "green",
    FitAnswer.FITS: "green",
    FitAnswer.BEST_FOR_BUDGET: "green",
    FitAnswer.UNREACHABLE: "bold red",
}
_MOST = 10  # blocks


def print_fit(found: Fit, code: str = "", quiet: bool = False) -> None:
    """Print the answer, the places, the runs, and the blocks by their share of the error; only the
    first line if ``quiet``. ``code``: the file with the code to paste."""
    console = open_console()
    line = Text.assemble("fit: ", (fit_words.fit_headline(found), _LOOKS[found.answer]), "  ")
    console.print(line.append(safe_text(found.case)), soft_wrap=True)
    if quiet:
        return
    for fact in fit_words.fit_facts_in_words(found):
        console.print(Text("  ").append(safe_text(fact)), soft_wrap=True)
    if hint := fit_words.fit_hint(found):
        console.print(Text("  → ").append(safe_text(hint)), soft_wrap=True)
    kept = found.kept if found.answer is not FitAnswer.UNREACHABLE else None
    if kept is not None and len(kept):
        print_heading(console, "Keep in float32")
        for name in kept.whole:
            console.print(Text("  ").append(safe_text(name)), soft_wrap=True)
        for name in kept.own:
            console.print(
                Text("  ").append(safe_text(display_name(name))).append(" (its own code alone)"),
                soft_wrap=True,
            )
        if code:
            told = f"from {code}: model = fitted(model), in place of model.to({found.dtype})"
            console.print(Text("  → ").append(safe_text(told)), soft_wrap=True)
    print_table(console, fit_run_columns(found), list(found.runs), "Runs")
    if places := shown_places(found):
        title = "Where the error comes from, with nothing in float32 (an estimate)"
        print_table(console, PLACE_COLUMNS, places[:_MOST], title)
        print_rest(console, len(places), _MOST)
