"""``trend``: runs of one model, each against golden, held against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from accucompare.bundle.format import bundle_around
from accucompare.compare.trends import BEST, FIRST, TrendFacts, TrendRun, of_other_models
from accucompare.errors import ReportError, UsageError
from accucompare.places import Place, Url, local, place_of
from accucompare.report.words import trend_words
from accucompare.trending.trend_runs import given_runs, opened_runs


class Trend(TrendFacts):
    """Runs of one model, the oldest first. Made by ``accucompare.trend``."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {trend_words.trend_headline(self)}>"

    def to_html(self, path: str | Path) -> Path:
        """Write the heat maps and tables as one HTML file, and return its path.

        Raises:
            ReportError: if it lies in a bundle, has another ending, or cannot be written.
        """
        from accucompare.report.page import write_trend_page

        return write_trend_page(self, self._place(path))

    def to_excel(self, path: str | Path) -> Path:
        """Write the workbook, and return its path. Errors as ``to_html``."""
        from accucompare.report.excel import write_trend_workbook

        return write_trend_workbook(self, self._place(path))

    def to_json(self, path: str | Path) -> Path:
        """Write everything as JSON, and return its path. Errors as ``to_html``."""
        from accucompare.report.files import write_trend_json

        return write_trend_json(self, self._place(path))

    def _place(self, given: str | Path) -> Path:
        path = local(given)
        bundle = bundle_around(path, [place_of(run.path) for run in self.runs])
        if bundle is not None:
            raise ReportError(f"{path}: lies in the bundle {bundle}; choose another path")
        return path


def trend(
    runs: str | Place | Iterable[str | Place],
    *,
    golden: str | Place | None = None,
    against: str | Place | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Trend:
    """Put runs of one model in a row: since when does each layer fail?

    A run that cannot be read, or is of another model, is left out and named; the answer is then
    ``not sure``.

    Args:
        runs: bundles, JSON files that a comparison wrote, or folders of these; the oldest first.
            A folder's runs are ordered by the time of their capture.
        golden: what bundles are compared with; by default the first of them.
        against: what the newest run's errors are held against: ``"best"``, ``"first"`` or a run.
        progress: called with the runs done, and all.
        options: of ``accucompare.diff``, for the bundles.

    Raises:
        BundleError: if golden cannot be opened.
        UsageError: if there is nothing to put in a row, or an option makes no sense.

    Example:
        >>> found = trend(["golden", "npu"], atol=1e-3)
        >>> found.passed, found.failing[0].layer, found.failing[0].state.value
        (False, 'stem.0', 'fails from the first')
    """
    listed = [runs] if isinstance(runs, (str, Path, Url)) else [*runs]
    given = given_runs(listed)
    trusted = None if golden is None else place_of(golden)
    options = {name: value for name, value in options.items() if value not in (None, (), "")}
    found = opened_runs(given, trusted, options, progress)
    others = of_other_models(found.runs)
    strange = {each.path for each in others}
    kept = [run for run in found.runs if run.path not in strange]
    left_out = [*found.left_out, *others]
    if not kept:
        told = (
            "; ".join(map(trend_words.left_out_run_words, left_out))
            or "there is no run beside golden"
        )
        raise UsageError(f"trend: {told}")
    return Trend(tuple(kept), tuple(left_out), _against(against, kept))


def _against(given: str | Place | None, runs: list[TrendRun]) -> str | None:
    """``best``, ``first``, or the name of the run that is meant."""
    if given is None or given in (BEST, FIRST):
        return None if given is None else str(given)
    wanted = str(place_of(given))
    for run in runs:
        if wanted in (run.name, run.path) or wanted.rstrip("/") == run.path.rstrip("/"):
            return run.name
    names = ", ".join(run.name for run in runs[:10])
    raise UsageError(
        f"against (--against): must be best, first or one of {names}, but is {given!s}"
    )
