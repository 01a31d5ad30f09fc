"""What to keep in float32, in the terminal."""

from __future__ import annotations

from accucompare.bundle.format import display_name
from accucompare.compare.fits import Fit, FitAnswer
from accucompare.report.console import open_console
from accucompare.report.contents import fit_tables
from accucompare.report.terminal.tables import print_table
from accucompare.report.words import fit_words

_MOST = 10  # blocks


def print_fit(found: Fit, code: str = "", quiet: bool = False) -> None:
    """Print the answer, the places, the runs, and the blocks by their share of the error; only the
    first line if ``quiet``. ``code``: the file with the code to paste."""
    console = open_console()
    style = "bold red" if found.exit_code else "green"
    console.answer(fit_words.fit_headline(found), style, found.case, "fit: ")
    if quiet:
        return
    for fact in fit_words.fit_facts_in_words(found):
        console.say(f"  {fact}")
    if hint := fit_words.fit_hint(found):
        console.say(f"  → {hint}")
    kept = found.kept if found.answer is not FitAnswer.UNREACHABLE else None
    if kept is not None and len(kept):
        console.heading("Keep in float32")
        for name in kept.whole:
            console.say(f"  {name}")
        for name in kept.own:
            console.say(f"  {display_name(name)} (its own code alone)")
        if code:
            told = f"from {code}: model = fitted(model), in place of model.to({found.dtype})"
            console.say(f"  → {told}")
    print_table(console, fit_tables.fit_run_columns(found), list(found.runs), "Runs")
    if places := fit_tables.shown_places(found):
        title = "Where the error comes from, with nothing in float32 (an estimate)"
        print_table(console, fit_tables.PLACE_COLUMNS, places[:_MOST], title)
        console.rest(len(places), _MOST)
