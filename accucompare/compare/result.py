"""The result of a diff: its rows and how they add up. ``compare.decide`` concludes from it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from accucompare.bundle.format import GRADIENT_ROLES, SERIES_ROLES, Manifest, Record, Role
from accucompare.compare.compiled_facts import CompiledFound
from accucompare.compare.judging import RowsOfStep, but_plain, plain_count, reasons_of, whole_steps
from accucompare.compare.limits import LimitsInForce, OtherCode, Surrounding
from accucompare.compare.origins import (
    Culprit,
    Unseen,
    unseen_rows,
    weights_not_shown,
    without_output,
)
from accucompare.compare.preflight_facts import (
    About,
    BesideGolden,
    OtherDigests,
    OtherModel,
    PreflightFinding,
    RefusedBaseline,
)
from accucompare.compare.reference import BesideReference, Reference, beside_reference
from accucompare.compare.remarks import BeyondInPart
from accucompare.compare.rows import STATUS_OF, UNMATCHED, Reason, Row, Status, is_operator
from accucompare.compare.runs import Acceptance, Parting, TrainingResult, coarsest
from accucompare.places import Place
from accucompare.selection import Mode, Selection


@dataclass(frozen=True)
class Side:
    """One of the two bundles, as the report shows it."""

    path: Place
    manifest: Manifest
    complete: bool = True  # on every rank


@dataclass(frozen=True, repr=False)
class Result:
    """Two bundles compared.

    Attributes:
        rows: pairs and unmatched records in golden's execution order, then modules never called.
        preflight: what differs in how the two were captured, the most telling first.
        in_force: the limits that judged, of the user or by default.
        left_out: how many records ``only`` and ``skip`` left out on both sides together.
        damage: records that could not be read, with ``keep_going``.
        baseline: the bundle that shows how large an error rounding alone makes.
        culprits: where errors are made, the most certain first.
        without_baseline: how many compared rows the baseline has no record of.
        refused: a baseline given or needed that may not judge; ``baseline`` is ``None`` then.
        not_proved: why no run proves the baseline; empty if proved, golden's own, or irrelevant.
        golden_made_here: whether this call made golden too, in the candidate's environment.
        unseen: code that differs between the two optimizers, whose updates no record shows.
        maps: the renamings of golden's layers in force, as ``--map`` takes them.
        verified: whether tensors of equal digests were read too.
        other_model: what shows that the bundles are of two models; no culprit is named then.
        proposed_maps: renamings that would bring more layers together.
        training: the steps of two training runs, compared; ``None`` if neither bundle has them.
        weights_in_parts: parameters of which no rank holds all, and no row compares the values.
        compiled: what ``locate --compile`` found beside the rows; ``None`` of other comparisons.
        reference: a third bundle, whose errors stand beside the candidate's and judge nothing.
        acceptance: the result by the standard asked for, which decides in place of the rows.
    """

    golden: Side
    candidate: Side
    rows: Sequence[Row]
    preflight: Sequence[PreflightFinding] = field(default_factory=list)
    in_force: LimitsInForce = field(default_factory=LimitsInForce)
    left_out: int = 0
    damage: list[str] = field(default_factory=list)
    baseline: Side | None = None
    culprits: Sequence[Culprit] = field(default_factory=list)
    without_baseline: int = 0
    refused: RefusedBaseline | None = None
    not_proved: str | tuple[Surrounding, ...] = ()
    golden_made_here: bool = False
    unseen: OtherCode = field(default_factory=OtherCode)
    maps: list[str] = field(default_factory=list)
    verified: bool = False
    other_model: OtherModel | None = None
    proposed_maps: list[str] = field(default_factory=list)
    training: TrainingResult | None = None
    acceptance: Acceptance | None = None
    weights_in_parts: tuple[str, ...] = ()
    compiled: CompiledFound | None = None
    reference: Reference | None = None

    @cached_property
    def beside_reference(self) -> BesideReference | None:
        """Whether the candidate or the reference is nearer to golden; ``None`` without one."""
        return None if self.reference is None else beside_reference(self.rows, self.reference)

    @property
    def fed(self) -> bool:
        """Whether each module call was given golden's values, so that its error is its own."""
        return self.candidate.manifest.fed

    @cached_property
    def compared(self) -> int:
        """How many rows have a record on both sides and were compared."""
        return plain_count(self.rows) + sum(
            row.status is not Status.NOT_COMPARED and row.reason not in UNMATCHED
            for row in but_plain(self.rows)
        )

    @cached_property
    def uncompared(self) -> list[Row]:
        """The rows of modules' values that could not be compared, for whatever reason."""
        return [
            row
            for row in but_plain(self.rows)
            if row.reason in (Reason.NOT_COMPARABLE, Reason.INCOMPLETE)
            and not is_operator(row.record)
        ]

    @cached_property
    def broadcast(self) -> list[Row]:
        """The rows that agree in two shapes, once broadcast or in a row."""
        return [
            row
            for row in but_plain(self.rows)
            if row.status is Status.PASS
            and row.golden is not None
            and row.candidate is not None
            and row.golden.shape != row.candidate.shape
        ]

    @cached_property
    def by_statistics(self) -> int:
        """How many rows were judged by statistics alone."""
        return sum(row.by_statistics for row in but_plain(self.rows))

    @cached_property
    def by_sketch(self) -> int:
        """How many rows were judged by sketches."""
        plain = sum(part.by_sketch for part in whole_steps(self.rows))
        return plain + sum(row.by_sketch for row in but_plain(self.rows))

    @cached_property
    def by_digests(self) -> int:
        """How many rows are identical by digests alone, values read at capture but not now."""
        rows = (
            row
            for row in but_plain(self.rows)
            if row.reason is Reason.IDENTICAL and row.golden is not None and row.golden.dtype
        )
        plain = plain_count(self.rows, identical=True)  # none of a diff that verifies
        return plain + sum(not self.verified or not _values_kept(row) for row in rows)

    @property
    def holds_outputs(self) -> bool:
        """Whether both recorded the model's outputs; ``--only`` and ``--skip`` keep its inputs."""
        options = [side.manifest.options for side in (self.golden, self.candidate)]
        return all(
            each.imported is None and Selection(each.only or (), each.skip or ()).allows("")
            for each in options
        )

    @property
    def hashes(self) -> tuple[bool, bool]:
        """Whether golden, and the candidate, hold another tool's hashes in place of values."""
        sides = (side.manifest.options.imported for side in (self.golden, self.candidate))
        golden, candidate = (imported is not None and bool(imported.hashes) for imported in sides)
        return golden, candidate

    @property
    def without_values(self) -> bool:
        """Whether, by ``--mode``, neither side kept tensors to read."""
        return all(
            side.manifest.options.mode not in (None, Mode.TENSORS)
            for side in (self.golden, self.candidate)
        )

    @cached_property
    def nonfinite_on_both(self) -> int:
        """How many rows hold NaN or Inf on both sides, which agree if their places do."""
        return sum(
            _nonfinite(row.golden) and _nonfinite(row.candidate) for row in but_plain(self.rows)
        )

    @cached_property
    def nan_on_both(self) -> list[Row]:
        """The rows that hold NaN on both sides; equal if their places are."""
        sides = ((row, row.golden, row.candidate) for row in but_plain(self.rows))
        return [row for row, golden, candidate in sides if _nan(golden) and _nan(candidate)]

    @property
    def incomplete(self) -> list[BesideGolden]:
        """The sides whose capture did not run to its end."""
        sides = zip(BesideGolden, (self.golden, self.candidate), strict=False)
        return [name for name, side in sides if not side.complete]

    @cached_property
    def only_unfinished(self) -> bool:
        """Whether the only failures lie in steps that an incomplete capture missed or ended in."""
        if not self.incomplete or self.parting is not None:
            return False
        rows = list(but_plain(self.rows))
        both = {part.place_of() for part in whole_steps(self.rows)}
        ours = both | {(row.golden.rank, row.golden.step) for row in rows if row.golden}
        theirs = both | {(row.candidate.rank, row.candidate.step) for row in rows if row.candidate}
        for row in rows:
            if row.status is not Status.FAIL:
                continue
            if row.record is None or (row.golden and row.candidate):
                return False
            side, held = (self.golden, ours) if row.golden is None else (self.candidate, theirs)
            ended_inside = any(
                entry.partial and entry.step == row.record.step for entry in side.manifest.steps
            )
            if side.complete or ((row.record.rank, row.record.step) in held and not ended_inside):
                return False
        return True

    @property
    def step_counts(self) -> tuple[int, int]:
        """How many steps each side has: of its records, or of its numbers if these alone count."""
        golden, candidate = (
            len(side.manifest.series if self.series_only else side.manifest.run_steps)
            for side in (self.golden, self.candidate)
        )
        return golden, candidate

    @property
    def other_models(self) -> list[str]:
        """Models of the sides' scripts that might have been captured, too."""
        sides = (self.golden, self.candidate)
        return list(
            dict.fromkeys(name for side in sides for name in side.manifest.options.other_models)
        )

    @property
    def eager(self) -> Mapping[str, str]:
        """Modules that a backend was to compile and could not, and why: they ran eagerly."""
        found = self.compiled or self.candidate.manifest.options.compiled
        return {} if found is None or found.backend is None else found.eager

    @property
    def unverified(self) -> list[PreflightFinding]:
        """What the comparison depends on and could not be verified."""
        return [finding for finding in self.preflight if finding.about is About.UNVERIFIED]

    @property
    def poor_baseline(self) -> PreflightFinding | None:
        """What the baseline had otherwise than golden: weights, inputs, or the mode."""
        poor = (finding for finding in self.preflight if finding.serious and finding.of_baseline)
        return next(poor, None)

    @property
    def failed(self) -> bool:
        """Whether a row fails, or two runs of training part by more than rounding explains."""
        return bool(self.counts_by_status()[Status.FAIL]) or self.parting is not None

    @property
    def parting(self) -> Parting | None:
        """Where two runs of training part; ``None`` if they do not, or if that is unknown."""
        return None if self.training is None else self.training.parting

    @property
    def steps_judged(self) -> int:
        """How many steps of training were judged by their losses and gradient norms."""
        return 0 if self.training is None else self.training.judged

    @property
    def series_only(self) -> bool:
        """Whether losses and gradient norms were compared, and no layer."""
        return bool(self.steps_judged) and not self.compared

    @property
    def by_user(self) -> bool:
        """Whether the user's limits judge every row, so that no baseline is needed."""
        return self.in_force.otherwise.has_limit

    @cached_property
    def unproved(self) -> list[Row]:
        """Rows the baseline may not judge: where it was made, golden's code gives other values."""
        return [row for row in but_plain(self.rows) if row.verdict.unproved]

    @cached_property
    def ill_conditioned(self) -> int:
        """How many rows are far off, as golden's own code is on rounded values."""
        return sum(row.verdict.ill_conditioned for row in but_plain(self.rows))

    @cached_property
    def far_beyond(self) -> Row | None:
        """The first row that is far beyond rounding where the baseline is too."""
        return next((row for row in but_plain(self.rows) if row.verdict.beyond), None)

    @cached_property
    def part_beyond(self) -> Row | None:
        """The first row that is within its limits while a part of it is far beyond rounding."""
        return next((row for row in but_plain(self.rows) if row.verdict.says(BeyondInPart)), None)

    @cached_property
    def may_hide(self) -> Unseen | None:
        """Rows that could not be compared and may hide an error."""
        return unseen_rows(
            self.rows, self.fed, coarsest(self.golden.manifest, self.candidate.manifest)
        )

    @cached_property
    def has_gradients(self) -> bool:
        """Whether gradients are compared."""
        return any(part.has_plain(GRADIENT_ROLES) for part in whole_steps(self.rows)) or any(
            row.golden is not None
            and row.candidate is not None
            and row.golden.role in GRADIENT_ROLES
            for row in but_plain(self.rows)
        )

    @cached_property
    def weights_not_shown(self) -> tuple[str, ...]:
        """Parameters that differ from golden's, on which nothing that was compared depends."""
        names = [
            name
            for finding in self.preflight
            if finding.about is About.WEIGHTS and isinstance(finding.fact, OtherDigests)
            for name in (() if finding.of_baseline else finding.fact.names)
        ]
        return weights_not_shown(self.rows, names) if names else ()

    @cached_property
    def without_output(self) -> Row | None:
        """A step's first input, if the model's recorded outputs hold nothing comparable."""
        return without_output(self.rows) if self.holds_outputs else None

    @cached_property
    def first_divergence(self) -> Row | None:
        """The first failing row in execution order; missing and extra records do not diverge."""
        return next(
            (
                row
                for row in but_plain(self.rows)
                if row.status is Status.FAIL and row.reason not in UNMATCHED
            ),
            None,
        )

    @cached_property
    def identical_until(self) -> Row | None:
        """The first row with other bits, if all before are identical and some were computed.

        ``None`` if there is none, or if the comparison is fed: its rows stand alone. Rows without
        partner or with unknown bits are passed over."""
        if self.fed:
            return None
        computed = False
        for row in but_plain(self.rows, RowsOfStep.told_by_bits):
            if row.same_bits is False:
                return row if computed else None
            computed = computed or bool(
                row.same_bits
                and row.golden is not None
                and row.golden.role in (Role.OUTPUT, Role.OP_OUTPUT)
            )
        return None

    def place(self, row: Row) -> str:
        """Where a row is: ``encoder.0.fc1 output (step 2, rank 1)``."""
        return row.place + self.step_and_rank(row)

    def step_and_rank(self, row: Row) -> str:
        """`` (step 2, rank 1)``, where there are several of each; else ``""``."""
        manifests = (self.golden.manifest, self.candidate.manifest)
        numbers = []
        if row.record is not None and any(len(manifest.steps) > 1 for manifest in manifests):
            numbers.append(f"step {row.record.step}")
        if row.record is not None and any(manifest.ranks > 1 for manifest in manifests):
            numbers.append(f"rank {row.record.rank}")
        return f" ({', '.join(numbers)})" if numbers else ""

    @cached_property
    def _by_reason(self) -> Counter[Reason]:
        return reasons_of(self.rows)

    def counts(self) -> Counter[Reason]:
        """Number of rows by reason; they add up to ``len(rows)``."""
        return self._by_reason.copy()

    def counts_by_status(self) -> Counter[Status]:
        counts: Counter[Status] = Counter()
        for reason, count in self._by_reason.items():
            counts[STATUS_OF[reason]] += count
        return counts

    def worst(self, count: int = 10) -> list[Row]:
        """The rows furthest over tolerance, then the largest relative L2 errors above 0."""
        rows = but_plain(self.rows, lambda part: part.furthest(count))
        different = (row for row in rows if row.metrics and _badness(row)[1:] > (0.0, 0.0))
        return heapq.nlargest(count, different, key=_badness)

    def unmatched(self) -> list[Row]:
        """The rows that have only one side."""
        return [row for row in but_plain(self.rows) if row.reason in UNMATCHED]


def _values_kept(row: Row) -> bool:
    """Whether both sides have the values of a row: as a tensor, or in the manifest's series."""
    return all(
        each is not None and (each.member is not None or each.role in SERIES_ROLES)
        for each in (row.golden, row.candidate)
    )


def _nonfinite(record: Record | None) -> bool:
    return (
        record is not None
        and record.statistics is not None
        and bool(record.statistics.nan or record.statistics.inf)
    )


def _nan(record: Record | None) -> bool:
    return record is not None and record.statistics is not None and bool(record.statistics.nan)


def _badness(row: Row) -> tuple[int, float, float]:
    metrics = row.metrics
    assert metrics is not None
    return (
        (row.status is Status.FAIL) + bool(metrics.nonfinite_mismatch),
        row.verdict.over_limit or 0.0,
        metrics.rel_l2,
    )
