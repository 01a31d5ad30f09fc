"""What users call to compare: ``diff``, and the verbs of its result. Nothing here needs torch."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from accucompare.compare.batches import Progress
from accucompare.compare.decide import Answer, Decision, decide
from accucompare.compare.diff import compare
from accucompare.compare.limits import Tolerance, read_rules
from accucompare.compare.pairing import read_maps
from accucompare.compare.result import Result
from accucompare.errors import UsageError
from accucompare.places import Place, local, place_of
from accucompare.selection import Selection, Standard

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from accucompare.compare.cluster import Cluster

_LOGGER = logging.getLogger(__name__)


class Comparison(Result):
    """Two bundles compared. Made by ``accucompare.diff``."""

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {reason.value}" for reason, count in self.counts().items())
        return f"<{type(self).__name__} of {self.candidate.path} with {self.golden.path}: {self.answer.value}; {counts}>"

    @cached_property
    def _decision(self) -> Decision:
        return decide(self)

    @property
    def answer(self) -> Answer:
        """The conclusion in one word, to decide by; ``exit_code`` and ``passed`` follow from it."""
        return self._decision.answer

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong: the answer is ``identical`` (also ``in what was compared``), ``rounding`` or ``within tolerance``."""
        return self._decision.passed

    @property
    def trouble(self) -> str:
        """Why the answer is ``not sure``, in a few words; ``""`` if it is another."""
        from accucompare.report.words import decision_words

        return decision_words.trouble(self._decision, self)

    @property
    def exit_code(self) -> int:
        """The commands' exit code: 0 if it passed, 1 for a difference that fails, 2 if the answer is ``not sure``."""
        return self._decision.exit_code

    @property
    def conclusion(self) -> str:
        """Rounding or a bug, and where, in one line that begins with the answer."""
        from accucompare.report.words import decision_words

        return decision_words.conclusion(self._decision, self)

    @cached_property
    def reports(self) -> list[Path]:
        """The reports that were written of it, the last one first; a notebook links to them."""
        return []

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict, the culprits, the ten worst rows, and links to the reports."""
        from accucompare.report.notebook import comparison_html

        return comparison_html(self, self.reports)

    def plot(self) -> Figure:
        """The relative L2 error of every output in execution order, with limits and baseline, as a matplotlib figure.

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
            ReportError: if it cannot be written.
        """
        from accucompare.report.excel import write_excel

        return self._written(write_excel(self, local(path)))

    def to_html(self, path: str | Path) -> Path:
        """Write the page: one file that any browser opens, without network; and return its path.

        Raises:
            ReportError: if it cannot be written.
        """
        from accucompare.report.page import write_comparison_page

        return self._written(write_comparison_page(self, local(path)))

    def to_json(self, path: str | Path) -> Path:
        """Write everything as JSON and return its path; one that ends in ``.jsonl`` or ``.ndjson`` gets JSON lines, a row each.

        Raises:
            ReportError: if it cannot be written.
        """
        from accucompare.report.files import write_json

        return write_json(self, local(path))

    def to_parquet(self, path: str | Path) -> Path:
        """Write every row as a Parquet file, with the columns of the report's sheet *Layers*, and return its path.

        Raises:
            ReportError: if pyarrow is missing, or it cannot be written.
        """
        from accucompare.report.files import write_parquet

        return write_parquet(self, local(path))

    def _written(self, path: Path) -> Path:
        """Remember a report, for notebooks."""
        self.reports.insert(0, path)
        return path


def diff(
    golden: str | Place,
    candidate: str | Place,
    *,
    baseline: str | Place | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    rel_l2: float | None = None,
    cosine: float | None = None,
    tolerances: str | Path | None = None,
    map: str | Iterable[str] = (),
    only: str | Iterable[str] = (),
    skip: str | Iterable[str] = (),
    verify: bool = False,
    keep_going: bool = False,
    accept: str | Standard | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two bundles.

    Args:
        golden: the trusted bundle: its directory, or its URL such as ``s3://bucket/golden``; if captured with ``--repeat 2``, values that
            differ between its two runs judge nothing.
        candidate: the directory of the bundle under test; if it was captured with ``--repeat 2``, its second run shows its noise.
        baseline: the directory of a bundle in the candidate's precision from a device that is trusted, captured as the candidate was
            (fed or not) with golden's code: errors are then judged by how many times as large they are as the baseline's. Without it,
            a fed candidate is judged by the baseline that golden brings along (``capture --with-baseline``), if there is one of its
            precision. One that did not run golden's code is refused as a judge (``Comparison.refused``).
        atol, rtol: largest elementwise difference, |candidate - golden| <= atol + rtol * |golden|; one given alone takes the
            other as 0.
        rel_l2: largest relative L2 error.
        cosine: smallest cosine similarity. Of several limits, all must be kept; with none, the baseline judges, or a table by dtype.
        tolerances: a TOML file of limits by layer; the first rule that applies wins, the limits above judge the rest.
        map: ``OLD=NEW`` renamings of golden's layers, see ``accucompare.compare.pairing.align.Renaming``. ``"auto"`` takes those that would
            otherwise be proposed, by the weights' fingerprints, shapes, classes and order.
        only, skip: globs of the layers to compare and to leave out (golden's names).
        verify: read and verify tensors with equal digests too, instead of taking them for equal; what is read is always verified.
        keep_going: list records that cannot be read in ``Comparison.damage`` instead of raising at the first.
        accept: a standard that two runs of training must meet, such as ``"mindformers"``: it decides, in place of the rows, by the losses
            and gradient norms of the steps (``Comparison.acceptance``).
        workers: threads that read and measure, by default as many as there are processors; they change no result.
        cluster: a Dask scheduler's address, such as ``"tcp://host:8786"``, or ``"local"`` or ``"local:8"`` for so many processes here:
            they compare in place of this process's threads, and change no result. Each reads the bundles itself.
        progress: called now and then.

    Raises:
        BundleError: if a bundle is missing, damaged, or of a newer format.
        ClusterError: if the cluster cannot be reached, or its workers cannot do the work.
        UsageError: if a limit, a renaming or the tolerance file makes no sense, or the bundles do not belong together: fed with another
            golden, or a baseline of another dtype, incomplete, or not fed as the candidate was.

    Example:
        >>> comparison = diff("golden", "npu", atol=1e-3)               # doctest: +SKIP
        >>> comparison.passed, comparison.first_divergence.place        # doctest: +SKIP
        (False, 'encoder.layers.3.fc1 output')
    """
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, but is {workers}")
    if workers is not None and cluster is not None:
        raise UsageError("--workers: is of threads of this process; with --cluster its workers compare, so leave it out")
    renamings, auto = read_maps(map)
    with contextlib.ExitStack() as stack:
        on = None if cluster is None else stack.enter_context(_connected(cluster))
        comparison = compare(
            Comparison,
            place_of(golden),
            place_of(candidate),
            None if baseline is None else place_of(baseline),
            limits=Tolerance(atol, rtol, rel_l2, cosine, source="given for all layers"),
            rules=read_rules(tolerances) if tolerances is not None else (),
            renamings=renamings,
            auto=auto,
            selection=Selection.of(only, skip),
            verify=verify,
            keep_going=keep_going,
            workers=workers,
            progress=progress,
            standard=None if accept is None else _standard(accept),
            cluster=on,
        )
    _LOGGER.debug("compared %s with %s: %d rows, %d culprits", candidate, golden, len(comparison.rows), len(comparison.culprits))
    return comparison


def _connected(cluster: str) -> contextlib.AbstractContextManager[Cluster]:
    from accucompare.compare.cluster import open_cluster

    return open_cluster(cluster)


def _standard(name: str) -> Standard:
    try:
        return Standard(name)
    except ValueError:
        raise UsageError(f"accept must be one of {', '.join(Standard)}, but is {name!r}") from None
