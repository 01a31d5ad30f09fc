"""What is said of several runs of one model in their order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timezone

from accucompare.compare.trends import (
    BEST,
    FIRST,
    LeftOutRun,
    NotInTrendWhy,
    PlaceState,
    PlaceTrend,
    TrendAnswer,
    TrendFacts,
    TrendRun,
)
from accucompare.text import counted, first_few, printable

#: The answers in the words of other commands' verdicts.
TREND_VERDICTS = {
    TrendAnswer.WITHIN: "PASS",
    TrendAnswer.FAILS: "FAIL",
    TrendAnswer.NOT_SURE: "TROUBLE",
}


def trend_headline(facts: TrendFacts) -> str:
    """The answer in one line: since when it fails, and where first."""
    newest, failing = printable(facts.newest.name), len(facts.failing)
    parts = [*_troubles(facts)]
    if failing:
        told = f"{counted(failing, 'layer')} {_fail(failing)} in {newest}"
        last = next(iter(facts.falls), None)
        if last is not None and len(facts.falls[last]) == failing:
            parts.append(f"{told} {_since(facts, last)}")
        else:
            parts += [told, *([] if last is None else [fall_words(facts, last)])]
        if more := sum(map(len, [*facts.falls.values()][1:])):
            parts.append(f"{more:,} since earlier runs")
        if always := len(facts.in_state(PlaceState.ALWAYS)):
            parts.append(f"{always:,} in every run that compared {'it' if always == 1 else 'them'}")
    elif facts.newest.exit_code == 1:
        parts.append(f"{newest} fails: {printable(facts.newest.conclusion)}")
    elif facts.answer is TrendAnswer.WITHIN:
        parts.append(_all_clear(facts))
    sentence = "; ".join(parts)
    return f"not sure: {sentence}" if facts.answer is TrendAnswer.NOT_SURE else sentence


def _all_clear(facts: TrendFacts) -> str:
    compared = sum(error.ok is not None for error in facts.newest.layers.values())
    came_back = facts.in_state(PlaceState.CAME_BACK)
    back = f"; {counted(len(came_back), 'layer')} that failed before" if came_back else ""
    are = " is" if len(came_back) == 1 else " are"
    return (
        f"{printable(facts.newest.name)} is within its limits in"
        f" {'its one layer' if compared == 1 else f'all {compared:,} layers'} compared"
        f"{f'{back}{are} back' if back else ''}"
    )


def _troubles(facts: TrendFacts) -> Iterator[str]:
    for why, words in (
        (NotInTrendWhy.UNREADABLE, "cannot be read"),
        (NotInTrendWhy.OTHER_MODEL, "another model's"),
    ):
        names = [_last(each.path) for each in facts.troubles if each.why is why]
        if names:
            are = "" if why is NotInTrendWhy.UNREADABLE else "is " if len(names) == 1 else "are "
            yield f"{first_few(names)} {are}{words}"
    if facts.newest.exit_code not in (0, 1):
        told = printable(facts.newest.conclusion.removeprefix("not sure: "))
        yield f"{printable(facts.newest.name)}: {told}"
    if facts.lost and not facts.failing:
        lost = [place.layer for place in facts.lost]
        count = counted(len(lost), "layer")
        yield f"{printable(facts.newest.name)} left out {count}: {first_few(lost)}"


def fall_words(facts: TrendFacts, run: int) -> str:
    """``12 since tuesday (ok in monday), first a.fc: relative L2 1e-07 → 4e-01 (x 4e+06)``."""
    return f"{len(facts.falls[run]):,} {_since(facts, run)}"


def _since(facts: TrendFacts, run: int) -> str:
    first = facts.falls[run][0]
    before = "" if first.before is None else f" (ok in {printable(facts.runs[first.before].name)})"
    return (
        f"since {printable(facts.runs[run].name)}{before}, first {first.layer}:"
        f" {change_words(first)}"
    )


def change_words(place: PlaceTrend) -> str:
    """How its error changed when it fell out: ``relative L2 1.2e-07 → 4.5e-01 (x 3.8e+06)``."""
    before, after = place.error_before, place.error_after
    if after is None:
        return "fails without a relative L2 error"
    told = f"relative L2 {_number(before)} → {_number(after)}"
    factor = place.factor
    return told if factor is None else f"{told} (x {_factor(factor)})"


def culprit_of(run: TrendRun) -> str:
    """The first culprit that a run's own comparison names; ``""`` if it names none."""
    return run.culprits[0] if run.culprits else ""


def against_words(facts: TrendFacts) -> str:
    """What the newest run is held against, as a column's title says it."""
    named = {BEST: "best run", FIRST: "first run"}
    return "" if facts.against is None else named.get(facts.against, printable(facts.against))


def worse_words(facts: TrendFacts) -> str:
    """How many layers grew worse than what they are held against, and which most."""
    if facts.against is None:
        return ""
    held = [place for place in facts.places if place.factor_against is not None]
    title = f"against {'the ' * (facts.against in (BEST, FIRST))}{against_words(facts)}"
    if not held:
        return f"{title}: no layer has an error in both"
    worst = max(held, key=lambda place: place.factor_against or 0.0)
    assert worst.factor_against is not None
    assert worst.against is not None
    if worst.factor_against <= 1:
        return f"{title}: no layer has a larger error"
    return (
        f"{title}: most grew {worst.layer}, x {_factor(worst.factor_against)}: relative L2"
        f" {_number(worst.error_against)} in {printable(facts.runs[worst.against].name)},"
        f" {_number(worst.newest.rel_l2 if worst.newest else None)} now"
    )


def when_words(run: TrendRun) -> str:
    """When it was captured; marked if only its file's date tells."""
    if not run.captured:
        return ""
    when = f"{datetime.fromtimestamp(run.captured, timezone.utc):%Y-%m-%d %H:%M}"
    return when if run.dated else f"{when} (its file)"


def left_out_run_words(each: LeftOutRun) -> str:
    if each.why is NotInTrendWhy.OTHER_MODEL:
        return (
            f"{each.path}: another model, or other inputs: {each.alike} of {each.layers} layers"
            " have the name and shape of a layer of the other runs; give the runs of one model"
        )
    if each.why is NotInTrendWhy.NO_COMPARISON:
        return f"{each.path}: left out: a JSON, but not of a comparison"
    return each.told if each.path in each.told else f"{each.path}: {each.told}"


def trend_notes(facts: TrendFacts) -> list[str]:
    """What differs between the runs besides the model's numbers."""
    notes = [
        f"{what} differ between the runs: {first_few(told)}"
        for what, told in (
            ("limits", _by_value(facts, "limits")),
            ("goldens", _by_value(facts, "golden")),
        )
        if len(told) > 1
    ]
    fed = {run.fed for run in facts.runs}
    if len(fed) > 1:
        free = [run.name for run in facts.runs if not run.fed]
        notes.append(f"some runs are fed, and these are not: {first_few(free)}")
    told = [] if facts.failing else facts.lost
    gone = [each for each in facts.in_state(PlaceState.NOT_IN_NEWEST) if each not in told]
    if gone:
        names = first_few([place.layer for place in gone])
        notes.append(f"{counted(len(gone), 'layer')} of earlier runs not in the newest: {names}")
    return notes


def _by_value(facts: TrendFacts, name: str) -> list[str]:
    """Each value, with the first run that has it."""
    first: dict[str, str] = {}
    for run in facts.runs:
        first.setdefault(getattr(run, name), run.name)
    return [f"{printable(value) or 'none'} (from {printable(run)})" for value, run in first.items()]


def _last(path: str) -> str:
    return printable(path.rstrip("/").rpartition("/")[2] or path)


def _fail(count: int) -> str:
    return "fails" if count == 1 else "fail"


def _number(value: float | None) -> str:
    return "?" if value is None else "0" if not value else f"{value:.2e}"


def _factor(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.3g}"
