"""What a comparison was asked, beside the bundles."""

from __future__ import annotations

from dataclasses import dataclass

from accucompare.compare.layouts import GivenLayout
from accucompare.compare.limits import Rule, Tolerance
from accucompare.compare.pairing import Renaming
from accucompare.compare.task_batches import Progress
from accucompare.errors import UsageError
from accucompare.selection import Selection, Standard


@dataclass(frozen=True)
class Work:
    """How a comparison is done. Only ``verify`` and ``keep_going`` change what it says.

    Attributes:
        verify: read and verify tensors with equal digests too. What is read is always verified.
        keep_going: list unreadable records in ``Comparison.damage`` instead of raising.
        workers: threads that read and measure; by default one per processor.
        cluster: a Dask scheduler's address, such as ``"tcp://host:8786"``, or ``"local"`` or
            ``"local:8"`` for that many processes here. They replace this process's threads; each
            reads the bundles itself.
        progress: called now and then with the bytes compared and their total.

    Raises:
        UsageError: if ``workers`` is not positive, or given with ``cluster``.
    """

    verify: bool = False
    keep_going: bool = False
    workers: int | None = None
    cluster: str | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"workers must be at least 1, but is {self.workers}")
        if self.workers is not None and self.cluster is not None:
            raise UsageError(
                "--workers: sets the threads of this process; with --cluster the cluster compares,"
                " so leave it out"
            )


@dataclass(frozen=True)
class DiffOptions:
    """The options of ``accucompare.diff``, parsed."""

    limits: Tolerance = Tolerance()  # what the user gave for all layers
    rules: tuple[Rule, ...] = ()  # limits by layer
    renamings: tuple[Renaming, ...] = ()
    auto: bool = False  # whether to apply the renamings that would otherwise be proposed
    selection: Selection = Selection()  # the layers to compare, by golden's names
    standard: Standard | None = None  # decides in place of the rows
    layouts: tuple[GivenLayout, ...] = ()  # how the candidate's ranks hold some tensors
    work: Work = Work()
