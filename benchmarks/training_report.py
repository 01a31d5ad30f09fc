"""What the trials of training add up to: rates beside those of other methods, false alarms, and
what was missed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from rich.table import Table

from benchmarks.figures import Entry, grid, rates
from benchmarks.training_trial import CURVE, METHODS
from planted.faults_alone import RISES

Found = dict[str, list[Entry]]

#: The smallest top-1 rate that is good enough, of the first method.
TARGET = 0.98
#: A change no larger than that which rounding makes cannot be seen.
VISIBLE = 1.0


def tables(found: Found) -> Iterator[Table]:
    """Every table of the report, the most important first."""
    seen = _visible(found)
    yield _planted(found["trials"])
    yield _rates("Named first, of the visible faults", seen, lambda trial: trial["setup"])
    large = [trial for trial in seen if trial["rise"] >= RISES]
    yield _rates(
        f"of those that change it by {RISES:g} times what rounding does, as faults of a forward are"
        " counted",
        large,
        lambda trial: trial["setup"],
    )
    yield _rates("by architecture", seen, lambda trial: trial["architecture"])
    yield _rates("by kind", seen, lambda trial: trial["kind"])
    yield _rates("by site", seen, lambda trial: f"{trial['site']}, {trial['setup']}")
    yield _rates(
        "by size of the fault, as a multiple of rounding", seen, lambda trial: _size(trial["rise"])
    )
    yield _alarms(found["pairs"])


def judge(found: Found) -> list[str]:
    """The targets that were missed, one sentence each."""
    short = []
    method = METHODS[0]
    for setup in sorted({trial["setup"] for trial in found["trials"]}):
        rate = _share([trial for trial in _visible(found) if trial["setup"] == setup], method)
        if rate < TARGET:
            short.append(f"{method}, {setup}: top-1 {rate:.1%}, not {TARGET:.0%}")
    for pair in found["pairs"]:
        if rows := pair["alarms"].get(method):
            where = f"{pair['architecture']}, {pair['setup']}, {pair['order']}"
            short.append(
                f"{method}: false alarm, {where}: {len(rows)} of {pair['rows']} rows, the first"
                f" {rows[0]}"
            )
    raised = [each for part in found.values() for each in part if each["error"]]
    return short + [
        f"{each['architecture']}, {each['setup']}, {each.get('fault', each['order'])}:"
        f" {each['error'][:300]}"
        for each in raised[:20]
    ]


def missed(found: Found, method: str) -> Iterator[str]:
    """One line for each visible fault that a method did not name first, with what it named
    instead."""
    for trial in _visible(found):
        rank = trial["rank"].get(method, 0)
        if rank == 1:
            continue
        place = f"it is the {rank}." if rank else "it is not named"
        used = f", error / limit {trial['used']:.2g}" if trial["used"] is not None else ""
        what = (
            f"{trial['architecture']}, {trial['setup']}: {trial['fault']} ({trial['rise']:.1f}"
            f" roundings, {trial['order']})"
        )
        instead = trial["named"].get(method) or "nothing"
        yield f"{what}: {trial['error'][:200] or f'named {instead}; {place}{used}'}"


def _visible(found: Found) -> list[Entry]:
    return [trial for trial in found["trials"] if trial["rise"] > VISIBLE or trial["error"]]


def _share(trials: Sequence[Entry], method: str) -> float:
    return (
        sum(trial["rank"].get(method) == 1 for trial in trials) / len(trials)
        if trials
        else math.nan
    )


def _size(rise: float) -> str:
    for power in range(12):
        if rise <= 2 ** (power + 1):
            return f"{2**power:4d} to {2 ** (power + 1)}"
    return "over 4096"


def _rates(title: str, trials: list[Entry], key: Callable[[Entry], str]) -> Table:
    def cells(group: Sequence[Entry]) -> list[str]:
        noticed = sum(trial["noticed"] for trial in group) / len(group) if group else math.nan
        return [*(f"{_share(group, method):6.1%}" for method in METHODS), f"{noticed:6.1%}"]

    return rates(title, trials, key, (*METHODS, f"({CURVE})"), cells)


def _planted(trials: list[Entry]) -> Table:
    """What was planted, and how many rounding hides."""
    table = grid(
        "Faults: planted; of these, changing no bit, or no more than rounding does",
        "",
        "planted",
        "no bit",
        "under rounding",
    )
    for setup in sorted({trial["setup"] for trial in trials}):
        group = [trial for trial in trials if trial["setup"] == setup and not trial["error"]]
        nothing = sum(trial["rise"] == 0.0 for trial in group)
        table.add_row(
            setup,
            str(len(group)),
            str(nothing),
            str(sum(0.0 < trial["rise"] <= VISIBLE for trial in group)),
        )
    return table


def _alarms(pairs: list[Entry]) -> Table:
    methods = METHODS[:2]
    table = grid(
        "False alarms: fault-free pairs with a row over its limit", "", "pairs", "rows", *methods
    )
    groups = defaultdict(list)
    for pair in pairs:
        groups[f"{pair['order']}, {pair['setup']}"].append(pair)
    for name, group in [*sorted(groups.items()), ("all", pairs)]:
        alarms = [
            str(sum(bool(pair["alarms"].get(method)) for pair in group)) for method in methods
        ]
        table.add_row(name, str(len(group)), f"{sum(pair['rows'] for pair in group):,}", *alarms)
    return table
