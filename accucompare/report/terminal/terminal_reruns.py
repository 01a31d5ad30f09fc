"""Samples in other batches, sequences with a cache, repeated runs, and the checks of one run's
ranks, in the terminal."""

from __future__ import annotations

from accucompare.bundle.format import display_name
from accucompare.compare.invariants import RankStatus, RunChecks
from accucompare.compare.reruns import Decoded, Invariance, Repeated
from accucompare.report.console import open_console
from accucompare.report.table import COUNT, EXCESS, SCIENTIFIC, Column
from accucompare.report.terminal.tables import print_table
from accucompare.report.words import decode_words, invariance_words, rank_words, repeat_words

#: By exit code.
_STYLES = ("green", "bold red", "yellow")
_STATES = {
    RankStatus.FAIL: ("FAIL", "bold red"),
    RankStatus.PASS: ("PASS", "green"),
    RankStatus.NOT_LOOKED_AT: ("not looked at", "bright_black"),
}
_FAIL, _DIM = "bold red", "bright_black"


def print_invariance(found: Invariance, quiet: bool = False) -> None:
    """Print each run and where its samples begin to change, and a table by layer; only the first
    line if ``quiet``."""
    console = open_console()
    headline, style = invariance_words.invariance_headline(found), _STYLES[found.exit_code]
    console.answer(headline, style, found.case, "invariance: ")
    if quiet:
        return
    console.say(f"  {invariance_words.what_was_run(found)}")
    for each in found.outcomes:
        word, style = ("MORE", _FAIL) if each.fails else ("rounding", "green")
        if not each.changed:
            word = "same bits" if each.outputs else "not sure"
        console.entry(
            (word, style),
            invariance_words.variant_words(each.variant),
            invariance_words.what_changed(each),
            invariance_words.invariance_cure(each),
        )
    for why in dict.fromkeys(found.not_looked_at.values()):
        kinds = [kind.value for kind, own in found.not_looked_at.items() if own is why]
        told = invariance_words.NOT_LOOKED_AT[why]
        console.entry(("not looked at", _DIM), ", ".join(kinds), told)
    if found.layers:
        print_table(
            console,
            _COLUMNS,
            found.layers,
            "Layers whose bits change",
            style=lambda row, column: _FAIL if row.worst.more else "",
        )


def print_decode(found: Decoded, quiet: bool = False) -> None:
    """Print each run and at which token it begins to differ, and a table by layer of the first that
    does; only the first line if ``quiet``."""
    console = open_console()
    headline = decode_words.decode_headline(found)
    console.answer(headline, _STYLES[found.exit_code], found.case, "decode: ")
    if quiet:
        return
    console.say(f"  {decode_words.how_decoded(found)}")
    for each in found.outcomes:
        word, style = ("MORE", _FAIL) if each.fails else ("rounding", "green")
        if not each.fails and not each.sure:
            word, style = "not sure", "yellow"
        console.entry(
            (word, style),
            decode_words.way_words(each, found),
            decode_words.what_differs(each),
            decode_words.decode_cure(each),
        )
    for why in dict.fromkeys(found.not_looked_at.values()):
        ways = [way.value for way, own in found.not_looked_at.items() if own is why]
        console.entry(("not looked at", _DIM), ", ".join(ways), decode_words.NOT_DECODED[why])
    if found.failing:
        first = found.failing[0]
        print_table(
            console,
            _OF_TOKENS,
            [*first.layers.items()],
            f"Layers that are off, {decode_words.way_words(first, found)}",
        )


def print_repeats(made: Repeated, quiet: bool = False) -> None:
    """Print where runs begin to disagree, how often, and what replays say; only the first line if
    ``quiet``."""
    console = open_console()
    style = _STYLES[made.exit_code]
    console.answer(repeat_words.repeat_headline(made), style, made.what, "repeat: ")
    if quiet:
        return
    for each in (*repeat_words.what_is_known(made), repeat_words.what_replays_say(made)):
        if each:
            console.say(f"  {each}")
    if cure := repeat_words.repeat_cure(made):
        console.say(f"  → {cure}")


def print_ranks(checks: RunChecks, quiet: bool = False) -> None:
    """Print each check with what was measured, where, and what to do; only counts if ``quiet``."""
    console = open_console()
    headline = rank_words.in_one_line(checks)
    console.answer(headline, _STYLES[checks.exit_code], str(checks.path), "ranks: ")
    for outcome in () if quiet else checks.outcomes:
        where = rank_words.place(outcome.place)
        console.entry(
            _STATES[outcome.status],
            outcome.check.value,
            (f"{where}: " if where else "") + rank_words.what_was_measured(outcome),
            rank_words.what_to_do(outcome),
        )


_OF_TOKENS = (
    Column("layer", lambda row: display_name(row[0]), least=24),
    Column("first token", lambda row: row[1].first.token, COUNT),
    Column("tokens", lambda row: row[1].tokens, COUNT),
    Column("worst", lambda row: decode_words.token_place_words(row[1].worst), least=12, spare=1),
    Column("relative L2", lambda row: row[1].worst.rel_l2, SCIENTIFIC),
    Column("rounding", lambda row: row[1].worst.rounding, SCIENTIFIC),
    Column("x limit", lambda row: row[1].worst.over_limit, EXCESS),
)

_COLUMNS = (
    Column("layer", lambda row: display_name(row.worst.name), least=24),
    Column("class", lambda row: row.worst.type, least=12, spare=1),
    Column("runs", lambda row: row.runs, COUNT),
    Column("worst", lambda row: invariance_words.variant_words(row.variant), least=12),
    Column("max ULP", lambda row: row.worst.ulp, COUNT),
    Column("relative L2", lambda row: row.worst.rel_l2, SCIENTIFIC),
    Column("rounding", lambda row: row.worst.rounding, SCIENTIFIC),
    Column("x limit", lambda row: row.worst.over_limit, EXCESS),
)
