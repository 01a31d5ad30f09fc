"""What the trials add up to: tables of rates, of false alarms, of what was missed, and the figures
that limits are set by.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from rich.table import Table

from benchmarks.faults_trial import METHODS
from benchmarks.figures import Entry, grid, rates
from planted.faults_alone import RISES
from planted.faults_orders import ORDERS

Found = dict[str, list[Entry]]

#: The smallest top-1 rates that are good enough: method, setup, share.
TARGETS = (
    ("fed, baseline", "bfloat16", 0.98),
    ("fed, baseline", "float32", 0.99),
    ("fed, baseline", "float32 (float64 baseline)", 0.99),
    ("free, baseline", "bfloat16", 0.93),
)
#: The methods that must raise no false alarm.
_QUIET = ("free, baseline", "fed, baseline")
_SIZES = (1, 8, 64, 512, 4096, 32768)


def tables(found: Found) -> Iterator[Table]:
    """Every table of the report, the most important first."""
    counted = _counted(found)
    yield _planted(found["trials"])
    yield _rates("Top-1 and top-3 by setup", counted, lambda trial: trial["setup"])
    yield _rates("by architecture", counted, lambda trial: trial["architecture"])
    yield _rates("by kind", counted, lambda trial: trial["kind"])
    yield _rates("by site", counted, lambda trial: f"{trial['site']}, {trial['setup']}")
    yield _rates(
        "by size of the fault, in rounding errors of its module",
        counted,
        lambda trial: _octave(trial["rise"]),
    )
    yield _two_at_once(found["doubles"])
    yield _alarms(found["pairs"])
    yield _excesses(found)
    if any(pair["alarms"].get(method) for pair in _plain(found["pairs"]) for method in _QUIET):
        yield _loudest(found["pairs"])


def judge(found: Found) -> list[str]:
    """The targets that were missed, one sentence each."""
    missed = []
    for method, setup, target in TARGETS:
        trials = [trial for trial in _counted(found) if trial["setup"] == setup]
        rate = _share(trials, method, 1)
        if trials and rate < target:
            missed.append(f"{method}, {setup}: top-1 {rate:.1%}, not {target:.0%}")
    for method in _QUIET:
        loud = [pair for pair in _plain(found["pairs"]) if pair["alarms"].get(method)]
        if loud:
            missed.append(
                f"{method}: false alarms on {len(loud)} of {len(_plain(found['pairs']))} fault-free"
                " pairs"
            )
    doubles = [each for each in found["doubles"] if each["rise"] >= RISES]
    if doubles and (unnamed := sum(not each["rank"].get("fed, baseline") for each in doubles)):
        missed.append(f"two faults at once: {unnamed} of {len(doubles)} without both named")
    raised = [each for part in found.values() for each in part if each["error"]]
    missed += [
        f"{each['architecture']}, {each['setup']}, {each.get('fault', each['order'])}:"
        f" {each['error'][:300]}"
        for each in raised[:20]
    ]
    return missed


def _counted(found: Found) -> list[Entry]:
    return [trial for trial in found["trials"] if trial["rise"] >= RISES]


def _plain(pairs: list[Entry]) -> list[Entry]:
    return [pair for pair in pairs if pair["order"] in ORDERS]


def _share(trials: Sequence[Entry], method: str, top: int) -> float:
    return (
        sum(1 <= trial["rank"].get(method, 0) <= top for trial in trials) / len(trials)
        if trials
        else math.nan
    )


def _octave(rise: float) -> str:
    power = min(int(math.log2(rise)), 10)
    return f"{2**power:4d} to {2 ** (power + 1)}" if power < 10 else "1024 and more"


def _rates(title: str, trials: list[Entry], key: Callable[[Entry], str]) -> Table:
    def cells(group: Sequence[Entry]) -> list[str]:
        return [
            f"{_share(group, method, 1):6.1%} {_share(group, method, 3):6.1%}" for method in METHODS
        ]

    return rates(title, trials, key, METHODS, cells)


def _planted(trials: list[Entry]) -> Table:
    """What was planted, and how much of it is too small to be told from rounding."""
    table = grid(
        f"Faults: planted, and too small to count (under {RISES:g} rounding errors of their"
        " module)",
        "",
        "planted",
        "too small",
    )
    for setup in sorted({trial["setup"] for trial in trials}):
        group = [trial for trial in trials if trial["setup"] == setup]
        table.add_row(setup, str(len(group)), str(len(group) - len(_counted({"trials": group}))))
    return table


def _two_at_once(doubles: list[Entry]) -> Table:
    table = grid(
        "Two faults at once, the second behind the first: both named, and as the first two",
        "",
        "pairs",
        *METHODS,
    )
    for setup in sorted({each["setup"] for each in doubles}):
        group = [each for each in doubles if each["setup"] == setup and each["rise"] >= RISES]
        both = [
            f"{sum(each['rank'].get(method, 0) > 0 for each in group)},"
            f" {sum(each['rank'].get(method, 0) == 2 for each in group)}"
            for method in METHODS
        ]
        table.add_row(setup, str(len(group)), *both)
    return table


def _alarms(pairs: list[Entry]) -> Table:
    table = grid(
        "False alarms: fault-free pairs with a row over its limit (*: rounds more often than the"
        " baseline, no target)",
        "",
        "pairs",
        *METHODS,
    )
    groups = defaultdict(list)
    for pair in pairs:
        groups[
            pair["setup"] if pair["order"] in ORDERS else f"{pair['setup']}, {pair['order']} *"
        ].append(pair)
    for name, group in sorted(groups.items()):
        table.add_row(
            name,
            str(len(group)),
            *(str(sum(bool(pair["alarms"].get(method)) for pair in group)) for method in METHODS),
        )
    return table


def _size(elements: int) -> int:
    return max(size for size in _SIZES if size <= max(1, elements))


def _excesses(found: Found) -> Table:
    """What slack and floor are set by: the largest excess / limit without a fault, the smallest
    with one.
    """
    table = grid(
        "Excess and excess / limit by number of elements: the largest without a fault, the smallest"
        " with one",
        *("", "elements", "rows", "free", "/ limit", "fed", "/ limit", "fed, faulty: / limit"),
    )
    largest: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0] * 5)
    for pair in found["pairs"]:
        setup = pair["setup"] if pair["order"] in ORDERS else f"{pair['setup']} *"
        for column, method in enumerate(_QUIET):
            for elements, excess, used, _ in pair["used"].get(method, ()):
                entry = largest[setup, _size(elements)]
                entry[2 * column] = max(entry[2 * column], excess)
                entry[2 * column + 1] = max(entry[2 * column + 1], used)
                entry[4] += column
    smallest: dict[tuple[str, int], float] = {}
    for trial in _counted(found):
        if trial["used"] is not None:
            key = trial["setup"], _size(trial["elements"])
            smallest[key] = min(smallest.get(key, math.inf), trial["used"])
    for key in sorted({*largest, *smallest}):
        entry = largest[key]
        low = f"{smallest[key]:.3g}" if key in smallest else ""
        table.add_row(
            key[0],
            f"{key[1]:,} and more",
            f"{entry[4]:.0f}",
            *(f"{value:.3f}" for value in entry[:4]),
            low,
        )
    return table


def missed(found: Found, method: str) -> Iterator[str]:
    """One line for each fault that a method did not name first, with what it named instead."""
    for trial in _counted(found):
        if (rank := trial["rank"].get(method, 0)) == 1:
            continue
        instead = trial["named"].get(method) or "nothing"
        place = f"it is the {rank}. of {trial['count'][method]}" if rank else "it is not named"
        used = f", excess / limit {trial['used']:.2g}" if trial["used"] is not None else ""
        what = (
            f"{trial['architecture']}, {trial['setup']}: {trial['fault']} ({trial['rise']:.1f}"
            f" rounding errors, {trial['order']})"
        )
        yield f"{what}: {trial['error'][:200] or f'named {instead}; {place}{used}'}"


def _loudest(pairs: list[Entry]) -> Table:
    """Where false alarms are, the most frequent first."""
    table = grid(
        "Rows over their limit without a fault", "method, setup, model", "times", "such as"
    )
    places: Counter[str] = Counter()
    example: dict[str, str] = {}
    for pair in _plain(pairs):
        for method in _QUIET:
            if rows := pair["alarms"].get(method):
                key = f"{method}, {pair['setup']}, {pair['architecture']}"
                places[key] += 1
                example.setdefault(key, f"{pair['order']}: {len(rows)} rows, the first {rows[0]}")
    for key, times in places.most_common(40):
        table.add_row(key, str(times), example[key])
    return table
