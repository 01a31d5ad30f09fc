"""What users call to compare: ``diff`` and ``check_ranks``, and their results' verbs. No torch."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from accucompare.asked import whole_group
from accucompare.bundle.format import bundle_around
from accucompare.compare.decide import Answer, Decision, decide
from accucompare.compare.diff import compare
from accucompare.compare.diff_options import DiffOptions, Work
from accucompare.compare.invariants import RunChecks, check_run
from accucompare.compare.layouts import read_layouts
from accucompare.compare.limit_facts import LimitSource
from accucompare.compare.limits import Tolerance, read_rules
from accucompare.compare.pairing import read_maps
from accucompare.compare.reference import reference_of
from accucompare.compare.result import Result
from accucompare.errors import ReportError, UsageError
from accucompare.places import Place, local, place_of
from accucompare.report.words import NamedCulprit, ToldFinding
from accucompare.selection import Selection, Standard

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from accucompare.compare.cluster import Cluster

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Two bundles compared. Made by ``accucompare.diff``."""

    preflight: Sequence[ToldFinding] = field(default_factory=list)
    culprits: Sequence[NamedCulprit] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Let each culprit tell its place, and each finding its message."""
        named = [NamedCulprit.of(culprit) for culprit in self.culprits]
        object.__setattr__(self, "culprits", named)
        told = [ToldFinding.of(finding) for finding in self.preflight]
        object.__setattr__(self, "preflight", told)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {reason.value}" for reason, count in self.counts().items())
        return (
            f"<{type(self).__name__} of {self.candidate.path} with {self.golden.path}:"
            f" {self.answer.value}; {counts}>"
        )

    @cached_property
    def _decision(self) -> Decision:
        return decide(self)

    @property
    def answer(self) -> Answer:
        """The conclusion in one word, for programs; ``exit_code`` and ``passed`` follow from it."""
        return self._decision.answer

    @property
    def passed(self) -> bool:
        """Whether the answer is ``identical`` (also ``in what was compared``), ``rounding`` or
        ``within tolerance``."""
        return self._decision.passed

    @property
    def trouble(self) -> str:
        """Why the answer is ``not sure``, in a few words; ``""`` for other answers."""
        from accucompare.report.words import decision_words

        return decision_words.trouble(self._decision, self)

    @property
    def exit_code(self) -> int:
        """The commands' exit code: 0 passed, 1 a difference that fails, 2 ``not sure``."""
        return self._decision.exit_code

    @property
    def conclusion(self) -> str:
        """Rounding or a bug, and where, in one line that begins with the answer."""
        from accucompare.report.words import decision_words

        return decision_words.conclusion(self._decision, self)

    @cached_property
    def reports(self) -> list[Path]:
        """The written reports, the last one first; a notebook links to them."""
        return []

    def _repr_html_(self) -> str:
        """The verdict, the culprits, the ten worst rows, and links to the reports."""
        from accucompare.report.notebook import comparison_html

        return comparison_html(self, self.reports)

    def plot(self) -> Figure:
        """Draw the relative L2 error of every output in execution order, with limits and baseline.

        Raises:
            ReportError: if matplotlib is missing.
        """
        from accucompare.report.plot import plot_divergence

        return plot_divergence(self)

    def to_dataframe(self) -> pandas.DataFrame:
        """One line per row, with the columns of the report's sheet *Layers*."""
        from accucompare.report.table import to_dataframe

        return to_dataframe(self)

    def to_excel(self, path: str | Path) -> Path:
        """Write the Excel report and return its path.

        Raises:
            ReportError: if it lies in a bundle, has another ending, or cannot be written.
        """
        from accucompare.report.excel import write_excel

        return self._written(write_excel(self, self._place(path)))

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one HTML file that needs no network, and return its path.

        Raises:
            ReportError: if it lies in a bundle, has another ending, or cannot be written.
        """
        from accucompare.report.page import write_comparison_page

        return self._written(write_comparison_page(self, self._place(path)))

    def to_json(self, path: str | Path) -> Path:
        """Write everything as JSON (JSON lines, a row each, if the path ends in ``.jsonl`` or
        ``.ndjson``), and return its path.

        Raises:
            ReportError: if it lies in a bundle, has another ending, or cannot be written.
        """
        from accucompare.report.files import write_json

        return write_json(self, self._place(path))

    def to_parquet(self, path: str | Path) -> Path:
        """Write every row as Parquet, with the columns of the sheet *Layers*, and return its path.

        Raises:
            ReportError: if pyarrow is missing, or as ``to_json``.
        """
        from accucompare.report.files import write_parquet

        return write_parquet(self, self._place(path))

    def _place(self, given: str | Path) -> Path:
        """Where to write. ReportError if that is in one of the compared bundles, or in another."""
        path = local(given)
        sides = (self.golden, self.candidate, self.baseline, self.reference)
        bundle = bundle_around(path, [side.path for side in sides if side is not None])
        if bundle is not None:
            raise ReportError(f"{path}: lies in the bundle {bundle}; choose another path")
        return path

    def _written(self, path: Path) -> Path:
        self.reports.insert(0, path)
        return path


class RankChecks(RunChecks):
    """What must hold between the ranks of one run. Made by ``accucompare.check_ranks``."""

    def __repr__(self) -> str:
        from accucompare.report.words import rank_words

        return f"<{type(self).__name__} of {self.path}: {rank_words.in_one_line(self)}>"

    def to_json(self, path: str | Path) -> Path:
        """Write every check as JSON and return its path.

        Raises:
            ReportError: if it lies in the bundle, or cannot be written.
        """
        from accucompare.report.files import write_ranks_json

        place = local(path)
        if (bundle := bundle_around(place, [self.path])) is not None:
            raise ReportError(f"{place}: lies in the bundle {bundle}; choose another path")
        return write_ranks_json(self, place)


def check_ranks(
    path: str | Place, *, progress: Callable[[int, int], None] | None = None
) -> RankChecks:
    """Check what must hold between the ranks of one run; no golden is needed.

    Args:
        path: of a bundle that several ranks wrote.
        progress: called with the number of steps done, and of all.

    Raises:
        BundleError: if the bundle is missing, damaged, or of a newer format.
        UsageError: if it has one rank only.

    Example:
        >>> checks = check_ranks("tp2dp2")
        >>> checks.passed, checks["weights"].status.value
        (True, 'PASS')
    """
    found = check_run(place_of(path), progress)
    return RankChecks(found.path, found.ranks, found.steps, found.outcomes)


def diff(
    golden: str | Place,
    candidate: str | Place,
    *,
    baseline: str | Place | None = None,
    reference: str | Place | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    limits: Tolerance = Tolerance(),
    map: str | Iterable[str] = (),
    only: str | Iterable[str] = (),
    skip: str | Iterable[str] = (),
    accept: str | Standard | None = None,
    layout: str | Path | None = None,
    work: Work = Work(),
) -> Comparison:
    """Compare two bundles.

    Args:
        golden: the trusted bundle: its directory, or a URL such as ``s3://bucket/golden``. If it
            was captured with ``--repeat 2``, values that differ between its two runs are not
            judged.
        candidate: the bundle under test. If it was captured with ``--repeat 2``, its second run
            shows its noise.
        baseline: a bundle in the candidate's precision from a trusted device, captured with
            golden's code as the candidate was (fed or not). Errors are then judged as multiples of
            its errors. Without it, a fed candidate is judged by golden's own baseline of its
            precision (``capture --with-baseline``), if there is one. A baseline that did not run
            golden's code does not judge (``Comparison.refused``).
        reference: a third bundle, such as a GPU's, captured as the candidate was. Its errors are
            shown beside the candidate's, and which of the two is nearer to golden. It judges
            nothing.
        atol, rtol: largest elementwise difference, |candidate - golden| <= atol + rtol * |golden|;
            if only one is given, the other is 0.
        limits: these and other limits, as ``accucompare.Tolerance(rel_l2=1e-2, cosine=0.999,
            tolerances="limits.toml")``. All given limits must hold; without any, the baseline
            judges, or a table by dtype.
        map: ``OLD=NEW`` renamings of golden's layers, see
            ``accucompare.compare.pairing.renames.Renaming``. ``"auto"`` takes those that would
            otherwise be proposed, by the weights' fingerprints, shapes, classes and order.
        only, skip: globs of the layers to compare and to leave out (golden's names).
        accept: a standard for two runs of training, such as ``"mindformers"``. It judges losses and
            gradient norms of the steps (``Comparison.acceptance``) and decides in place of the
            rows.
        layout: a TOML file that says how the candidate's ranks hold some tensors, for those whose
            layout is neither recorded nor told by shapes and values: ``[[layout]]`` tables with
            globs ``layer`` and ``role``, and ``dims = "batch sequence hidden[tp]"``.
        work: how the work is done, as ``accucompare.Work(verify=True, cluster="tcp://host:8786")``.

    Raises:
        BundleError: if a bundle is missing, damaged, or of a newer format.
        ClusterError: if the cluster cannot be reached, or its workers cannot do the work.
        UsageError: if a limit, a renaming or a file of these makes no sense, or the bundles do
            not belong together: fed with another golden, or a baseline of another dtype,
            incomplete, or not fed as the candidate was.

    Example:
        >>> comparison = diff("golden", "npu", atol=1e-3)
        >>> comparison.passed, comparison.first_divergence.place
        (False, 'stem.0 output')
    """
    whole_group(Tolerance, limits, "limits")
    whole_group(Work, work, "work")
    for name, value, other in (("atol", atol, limits.atol), ("rtol", rtol, limits.rtol)):
        if value is not None and other is not None:
            raise UsageError(f"{name} is given twice: {value} by itself, and {other} in limits")
    atol, rtol = limits.atol if atol is None else atol, limits.rtol if rtol is None else rtol
    renamings, auto = read_maps(map)
    options = DiffOptions(
        limits=Tolerance(atol, rtol, limits.rel_l2, limits.cosine, source=LimitSource.GIVEN),
        rules=() if limits.tolerances is None else read_rules(limits.tolerances),
        renamings=tuple(renamings),
        auto=auto,
        selection=Selection.of(only, skip),
        standard=None if accept is None else _standard(accept),
        layouts=() if layout is None else read_layouts(layout),
        work=work,
    )
    with contextlib.ExitStack() as stack:
        on = None if work.cluster is None else stack.enter_context(_connected(work.cluster))
        places = (
            place_of(golden),
            place_of(candidate),
            None if baseline is None else place_of(baseline),
        )
        beside = None if reference is None else place_of(reference)
        comparison = compare(Comparison, *places, options, on)
        if beside is not None:
            comparison = _beside(comparison, beside, options, on)
    _LOGGER.debug(
        "compared %s with %s: %d rows, %d culprits",
        candidate,
        golden,
        len(comparison.rows),
        len(comparison.culprits),
    )
    return comparison


def _beside(
    comparison: Comparison, reference: Place, options: DiffOptions, on: Cluster | None
) -> Comparison:
    """The same with the errors of a third bundle, which is compared with the same golden."""
    alone = replace(options, standard=None, work=replace(options.work, progress=None))
    other = compare(Result, comparison.golden.path, reference, None, alone, on)
    if other.fed is not comparison.fed:
        one, beside = ("is fed", "is not") if other.fed else ("is not fed", "is")
        raise UsageError(
            f"reference (--reference) {reference}: {one}, and the candidate {beside}: their errors"
            " are of two kinds; capture both alike"
        )
    return replace(comparison, reference=reference_of(reference, other.rows))


def _connected(cluster: str) -> contextlib.AbstractContextManager[Cluster]:
    from accucompare.compare.cluster import open_cluster

    return open_cluster(cluster)


def _standard(name: str) -> Standard:
    try:
        return Standard(name)
    except ValueError:
        raise UsageError(f"accept must be one of {', '.join(Standard)}, but is {name!r}") from None
