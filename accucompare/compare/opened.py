"""The bundles of a diff, opened, and their records."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accucompare.bundle.format import Key, Manifest, Record
from accucompare.bundle.reading import Bundle, open_bundle
from accucompare.compare.diff_options import DiffOptions
from accucompare.compare.fusions import Fusions, as_golden_calls, given_as_golden
from accucompare.compare.judging import Sides
from accucompare.compare.layouts import (
    RankRecords,
    UnderGoldenNames,
    given_to_none,
    of_first_stages,
    rows_of_ranks,
)
from accucompare.compare.limits import LimitsInForce, check_feed
from accucompare.compare.loss_scales import loss_scale_ratios
from accucompare.compare.pair_limits import limits_in_force
from accucompare.compare.pairing import Model, with_paths_of
from accucompare.compare.steps_at_once import (
    ColumnsOfSteps,
    JudgedStep,
    StepOfBundle,
    columns_of,
    judge_steps,
    may_judge_at_once,
)
from accucompare.compare.trust import ChosenBaseline, choose_baseline
from accucompare.errors import BundleError, UsageError
from accucompare.places import Place, Url, is_file
from accucompare.selection import Selection

if TYPE_CHECKING:
    from accucompare.compare.cluster import Cluster  # most diffs need none


@dataclass(frozen=True)
class Opened:
    """The bundles of a diff, and their records."""

    golden: Bundle
    candidate: Bundle
    # repeat, golden_repeat: the second runs of the candidate and of golden
    repeat: Bundle | None
    golden_repeat: Bundle | None
    baseline: ChosenBaseline  # the one that decides, if any may
    in_force: LimitsInForce
    # golden_records, candidate_records: of the steps that are judged pair by pair
    golden_records: list[Record]
    candidate_records: list[Record]
    damage: list[str]  # records and steps that could not be read; later stages add theirs
    at_once: Mapping[StepOfBundle, JudgedStep]  # the other steps
    golden_ranks: RankRecords | None
    candidate_ranks: RankRecords | None
    named: UnderGoldenNames  # the candidate's ranks under golden's names
    # what one side has fused and the other in parts; the candidate is as golden is
    fusions: Fusions
    # how many calls of golden's and of the candidate's make up the same, by the candidate's names
    in_parts: Mapping[str, tuple[int, int]]
    # golden's loss scale over the candidate's, by step, where they differ
    scales: Mapping[int, float]

    @property
    def fed(self) -> bool:
        return self.candidate.manifest.fed

    @property
    def models(self) -> tuple[Model, Model]:
        return self.golden.manifest.model, self.candidate.manifest.model

    @property
    def series(self) -> tuple[Mapping[int, Manifest], Mapping[int, Manifest]]:
        return self.golden.manifests, self.candidate.manifests

    @property
    def imported(self) -> bool:
        """Whether one side is a dump of another tool."""
        return any(
            bundle.manifest.options.imported is not None for bundle in (self.golden, self.candidate)
        )


def open_sides(
    stack: contextlib.ExitStack,
    golden: Place,
    candidate: Place,
    baseline: Place | None,
    options: DiffOptions,
    cluster: Cluster | None,
) -> Opened:
    """Open the bundles, list their records, and judge the steps that can be judged at once."""
    ours, theirs = (stack.enter_context(open_bundle(path)) for path in (golden, candidate))
    repeat, golden_repeat = (_second_run(stack, path) for path in (candidate, golden))
    check_feed(ours, theirs)
    if options.standard is not None and theirs.manifest.fed:
        raise UsageError(
            f"accept (--accept): judges free-running runs, but {candidate} was fed with golden's"
            " values;"
            " capture it without feeding (--feed)"
        )
    chosen, damage = choose_baseline(stack, ours, theirs, baseline), list[str]()
    in_force = limits_in_force(options.rules, options.limits, theirs)
    models = ours.manifest.model, theirs.manifest.model
    alone = ours.manifest.ranks == theirs.manifest.ranks == 1
    fusions = Fusions(*models, options.renamings) if alone else Fusions({}, {})
    scales = loss_scale_ratios(ours.manifest, theirs.manifest) if alone else {}
    free = not any((repeat, golden_repeat, chosen.bundle, cluster, fusions, scales))
    columns, at_once = _at_once(ours, theirs, in_force, options) if free else ({}, {})
    golden_records, candidate_records = (
        records_of(bundle, options.work.keep_going, damage, columns.get(bundle, {}), at_once)
        for bundle in (ours, theirs)
    )
    ranks: list[RankRecords | None] = [None, None]
    named = UnderGoldenNames(theirs, candidate_records)
    if _spread_otherwise(ours, theirs, golden_records, candidate_records):
        chosen = chosen.on_one_device()
        named = UnderGoldenNames.of(ours, theirs, candidate_records, options.renamings)
        theirs, candidate_records = named.bundle, named.records
        sides = (ours, golden_records), (theirs, candidate_records)
        rows, later = rows_of_ranks(*sides, microbatches=bool(named.schedule.first))
        named.schedule.odd += of_first_stages(candidate_records, later, named.schedule)
        if not named.names and ours.manifest.ranks == 1:
            named.schedule.odd += given_to_none(golden_records, candidate_records, later)
        later = named.with_later_stages(later)
        ranks = [
            RankRecords.of(*side, own, holders) if side[0].manifest.ranks > 1 else None
            for side, own, holders in ((sides[0], rows, None), (sides[1], later, named.holders))
        ]
        golden_records, candidate_records = (
            records if own is None else own.first()
            for own, records in zip(ranks, (golden_records, candidate_records), strict=True)
        )
    if fusions:
        theirs, candidate_records = fusions.under_golden_names(
            theirs, candidate_records, ours.manifest
        )
    in_parts: dict[str, tuple[int, int]] = {}
    if alone:
        golden_records, candidate_records, in_parts, batches = as_golden_calls(
            golden_records, candidate_records, options.renamings
        )
        if batches:
            theirs = given_as_golden(theirs, ours.manifest, batches)
    if ours.manifest.options.imported is not None:
        golden_records = with_paths_of(golden_records, candidate_records)
    elif theirs.manifest.options.imported is not None:
        candidate_records = with_paths_of(candidate_records, golden_records)
    return Opened(
        ours,
        theirs,
        repeat,
        golden_repeat,
        chosen,
        in_force,
        golden_records,
        candidate_records,
        damage,
        at_once,
        ranks[0],
        ranks[1],
        named,
        fusions,
        in_parts,
        scales,
    )


def _at_once(
    golden: Bundle, candidate: Bundle, in_force: LimitsInForce, options: DiffOptions
) -> tuple[dict[Bundle, ColumnsOfSteps], Mapping[StepOfBundle, JudgedStep]]:
    """Every step as columns, if that could be useful; and those that can be judged at once."""
    imported = [each.manifest.options.imported for each in (golden, candidate)]
    if (
        options.renamings
        or options.auto
        or options.rules
        or options.selection != Selection()
        or options.work.verify
        or candidate.manifest.fed
        or imported != [None, None]
        or _on_other_ranks(golden, candidate)
        # threads wait for storage
        or any(isinstance(bundle.path, Url) for bundle in (golden, candidate))
    ):
        return {}, {}
    columns = {bundle: columns_of(bundle) for bundle in (golden, candidate)}
    if not all(may_judge_at_once(bundle, columns[bundle]) for bundle in columns):
        return columns, {}
    sides = Sides(golden, candidate, None, None, False, options.work.keep_going)
    progress = options.work.progress or no_progress
    return columns, judge_steps(sides, columns[golden], columns[candidate], in_force, progress)


def no_progress(done: int, total: int) -> None:
    """What is called with progress where nobody looks."""


def _spread_otherwise(
    golden: Bundle, candidate: Bundle, ours: Iterable[Record], theirs: Iterable[Record]
) -> bool:
    """Whether the model is spread over the ranks of the two sides in different ways."""
    if golden.manifest.ranks == candidate.manifest.ranks == 1:
        return False
    if _on_other_ranks(golden, candidate):
        return True
    shards = {record.key: record.shard for record in theirs}
    return any(shards.get(record.key, record.shard) != record.shard for record in ours)


def _on_other_ranks(golden: Bundle, candidate: Bundle) -> bool:
    """Whether the sides have other ranks, or these were given other parts of a batch."""
    several = golden.manifest.ranks > 1
    return golden.manifest.ranks != candidate.manifest.ranks or any(
        manifest.mesh != candidate.manifests[rank].mesh
        or (several and manifest.inputs != candidate.manifests[rank].inputs)
        for rank, manifest in golden.manifests.items()
        if rank in candidate.manifests
    )


#: The second run of a capture with ``--repeat 2``, inside the first one's directory.
REPEAT = "repeat1"


def _second_run(stack: contextlib.ExitStack, first: Place) -> Bundle | None:
    if is_file(first / REPEAT / "manifest.json"):
        return stack.enter_context(open_bundle(first / REPEAT))
    return None


def records_of(
    bundle: Bundle,
    keep_going: bool,
    damage: list[str],
    columns: ColumnsOfSteps | None = None,
    but: Collection[StepOfBundle] = (),
) -> list[Record]:
    """Every record of a bundle. With ``keep_going``, unreadable lists are added to ``damage``.

    Args:
        columns: steps that were read already.
        but: steps that are left out.
    """
    records: list[Record] = []
    for rank, entry in bundle.steps():
        place = rank, entry.step
        if place in but:
            continue
        try:
            known = None if columns is None else columns.get(place)
            records += bundle.step_records(rank, entry) if known is None else known
        except BundleError as error:
            if not keep_going:
                raise
            damage.append(str(error))
    return records


def by_key(run: Bundle | None, keep_going: bool, damage: list[str]) -> dict[Key, Record]:
    if run is None:
        return {}
    return {record.key: record for record in records_of(run, keep_going, damage)}
