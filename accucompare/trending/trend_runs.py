"""Opens what a trend is given, bundles and JSON results, and takes from each what it needs."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from accucompare.api import Comparison, diff
from accucompare.bundle.format import display_name, holds_bundle
from accucompare.bundle.reading import open_bundle
from accucompare.compare.measuring import Metrics
from accucompare.compare.rows import Row
from accucompare.compare.trends import LeftOutRun, NotInTrendWhy, SeenRow, TrendRun, errors_by_layer
from accucompare.errors import AccucompareError, UsageError
from accucompare.files import COMPARISON_FILE, same_place
from accucompare.places import Place, Url, place_of
from accucompare.report.files import Written, WrittenMetrics, WrittenRow, read_written
from accucompare.report.table import layer
from accucompare.report.words import culprit_words, limit_words
from accucompare.text import printable

_OUTPUT = "output"


@dataclass(frozen=True)
class GivenRun:
    """A bundle, or the JSON of a comparison."""

    place: Place
    is_bundle: bool
    group: int  # the number of the argument that it comes from
    inside: bool = False  # whether that is a folder, which holds it


@dataclass
class OpenedRuns:
    """The runs of a trend, in order."""

    runs: list[TrendRun] = field(default_factory=list)
    left_out: list[LeftOutRun] = field(default_factory=list)  # what cannot be part of it


def given_runs(runs: Iterable[str | Place]) -> list[GivenRun]:
    """The bundles and JSON results that are meant. Raises UsageError if one is neither, or a folder
    holds none."""
    places = enumerate(map(place_of, runs))
    return [given for number, place in places for given in _given(place, number)]


def _given(place: Place, group: int) -> list[GivenRun]:
    if isinstance(place, Url):
        return [GivenRun(place, is_bundle=True, group=group)]
    if not os.path.exists(place):
        raise UsageError(f"{place}: does not exist; give a bundle, a JSON of diff, or a folder")
    if not place.is_dir() or holds_bundle(place):
        return [GivenRun(place, place.is_dir(), group)]
    found = [
        GivenRun(child, child.is_dir(), group, inside=True)
        for child in sorted(place.iterdir())
        if not child.name.startswith(".") and _may_be_run(child)
    ]
    if not found:
        raise UsageError(
            f"{place}: holds no bundle and no JSON of a comparison; write one with"
            f" `accucompare diff GOLDEN CANDIDATE --json {place}/NAME.json`"
        )
    return found


def _may_be_run(child: Path) -> bool:
    if child.is_dir():
        return (child / "manifest.json").exists()
    return child.suffix.lower() in COMPARISON_FILE.known and child.is_file()


def _time(told: str, place: Place) -> tuple[float, bool]:
    """The seconds of an ISO time, and whether it is one; or else those of a file."""
    try:
        when = datetime.fromisoformat(told.replace("Z", "+00:00"))  # before Python 3.11
        return when.replace(tzinfo=when.tzinfo or timezone.utc).timestamp(), True
    except ValueError:
        pass
    if isinstance(place, Url):
        return 0.0, False
    file = place / "manifest.json" if place.is_dir() else place
    return (file.stat().st_mtime if file.exists() else 0.0), False


def _oldest(bundles: Sequence[GivenRun]) -> Place:
    """The bundle that was given first; of a folder, that which was captured first."""

    def when(each: GivenRun) -> tuple[int, float]:
        if not each.inside:
            return each.group, 0.0
        told = ""
        # an unreadable one is named when it is compared
        with contextlib.suppress(AccucompareError), open_bundle(each.place) as bundle:
            told = bundle.manifest.created
        return each.group, _time(told, each.place)[0]

    return min(bundles, key=when).place


def opened_runs(
    given: Sequence[GivenRun],
    golden: Place | None,
    options: dict[str, Any],
    progress: Callable[[int, int], None] | None,
) -> OpenedRuns:
    """Read the JSON results, and compare the bundles with golden, or with the first of them. Raises
    BundleError if golden cannot be opened; UsageError if bundles have nothing to be compared with,
    or options would judge nothing."""
    bundles = [each for each in given if each.is_bundle]
    if golden is None and len(bundles) == 1:
        raise UsageError(
            f"{bundles[0].place}: is the only bundle; give the trusted one with --golden BUNDLE"
        )
    if not bundles and (golden is not None or options):
        unused = [*(["golden"] if golden is not None else []), *options]
        raise UsageError(
            f"{', '.join(unused)}: for bundles only, but all runs are JSON results, which are"
            " judged already"
        )
    trusted = golden if golden is not None or not bundles else _oldest(bundles)
    if trusted is not None:
        open_bundle(trusted).close()  # one error, not one for each run
    runs = [each for each in given if not _is(each.place, trusted)]
    found = OpenedRuns()
    made: list[tuple[int, float, TrendRun]] = []
    for number, (each, name) in enumerate(zip(runs, _names(runs), strict=True), 1):
        try:
            run = (
                _of_comparison(name, diff(trusted, each.place, **options))
                if trusted is not None and each.is_bundle
                else _of_written(name, Path(str(each.place)))
            )
            made.append((each.group, run.captured if each.inside else 0.0, run))
        except AccucompareError as error:
            found.left_out.append(_left_out(each, error))
        if progress is not None:
            progress(number, len(runs))
    found.runs += [run for _, _, run in sorted(made, key=lambda each: each[:2])]
    return found


def _is(place: Place, other: Place | None) -> bool:
    if isinstance(place, Url) or isinstance(other, Url) or other is None:
        return place == other
    return same_place(place, other)


def _names(runs: Sequence[GivenRun]) -> list[str]:
    """A short name of each: its own, and as much of the path as tells them apart."""
    parts = [str(each.place.resolve()).rstrip("/").split("/") for each in runs]
    for each, own in zip(runs, parts, strict=True):
        if not each.is_bundle:
            own[-1] = Path(own[-1]).stem or own[-1]
    names: list[str] = []
    for depth in range(1, 1 + max(map(len, parts), default=0)):
        names = ["/".join(own[-depth:]) for own in parts]
        if len(set(names)) == len(names):
            break
    times: Counter[str] = Counter()
    for at, name in enumerate(names):
        times[name] += 1
        names[at] = printable(f"{name} ({times[name]})" if times[name] > 1 else name)
    return names


def _left_out(given: GivenRun, error: AccucompareError) -> LeftOutRun:
    other = given.inside and not given.is_bundle and _is_something_else(Path(str(given.place)))
    why = NotInTrendWhy.NO_COMPARISON if other else NotInTrendWhy.UNREADABLE
    return LeftOutRun(str(given.place), why, str(error))


def _is_something_else(path: Path) -> bool:
    """Whether a JSON is whole, and none of a comparison: a folder may hold others."""
    try:
        text = path.read_bytes()
        content = json.loads(text.partition(b"\n")[0] if path.suffix != ".json" else text)
    except (OSError, ValueError, RecursionError):
        return False
    return not (isinstance(content, dict) and "candidate" in content and "conclusion" in content)


def _of_comparison(name: str, found: Comparison) -> TrendRun:
    manifest = found.candidate.manifest
    captured, dated = _time(manifest.created, found.candidate.path)
    return TrendRun(
        name,
        str(found.candidate.path),
        str(found.golden.path),
        captured,
        dated,
        found.answer.value,
        found.exit_code,
        found.conclusion,
        tuple(culprit_words.place_words(found, each) for each in found.culprits),
        limit_words.tolerances(found.in_force),
        found.fed,
        found.left_out,
        errors_by_layer(map(_seen, found.rows)),
    )


def _error(metrics: Metrics | WrittenMetrics | None) -> float | None:
    """The relative L2 error; infinite where NaN or Inf stand on one side only."""
    if metrics is None:
        return None
    if metrics.nonfinite_mismatch:
        return math.inf
    return None if isinstance(metrics, Metrics) and metrics.nothing_finite else metrics.rel_l2


def _seen(row: Row) -> SeenRow:
    record = row.record
    role = "" if record is None else record.role.value
    path = "" if record is None or not record.path else f".{record.path}"
    return SeenRow(
        layer(row),
        f"{role}{path}",
        row.status,
        row.verdict.over_limit,
        _error(row.metrics),
        row.verdict.excess,
        None if row.golden is None or row.candidate is None else row.golden.shape,
        record is not None,
        role == _OUTPUT,
    )


def _of_written(name: str, path: Path) -> TrendRun:
    found: Written = read_written(path)
    captured, dated = _time(found.captured, path)
    return TrendRun(
        name,
        str(path),
        found.golden,
        captured,
        dated,
        found.answer,
        found.exit_code,
        found.conclusion,
        tuple(each.place for each in found.culprits),
        found.tolerance,
        found.fed,
        found.left_out,
        errors_by_layer(_seen_written(found.rows)),
    )


def _seen_written(rows: Sequence[WrittenRow]) -> Iterator[SeenRow]:
    for row in rows:
        role = "" if row.role is None else row.role.value
        yield SeenRow(
            display_name(row.name),
            row.value,
            row.status,
            row.used,
            _error(row.metrics),
            row.excess,
            None if row.golden is None or row.candidate is None else row.golden.shape,
            row.golden is not None or row.candidate is not None,
            role == _OUTPUT,
        )
