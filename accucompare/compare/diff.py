"""Compares two bundles record by record, holding a few blocks in memory.

Seven stages, each a function of data: ``open_sides``, ``_pair``, ``_assign`` (limits, and what else
judges), ``_judge``, ``_findings``, ``_follow`` (the training), ``_culprits``."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from accucompare.bundle.format import UPDATE_ROLES, Key, Manifest, Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare import judging, pairing, runs
from accucompare.compare.across_ranks import (
    described_as_one,
    on_runs,
    on_stages,
    outputs_fed_there_alone,
    weights_in_parts_of,
    with_layouts,
)
from accucompare.compare.asked_in_vain import on_maps, unused_layouts, unused_options, unused_rules
from accucompare.compare.diff_options import DiffOptions, Work
from accucompare.compare.fusions import (
    made_like,
    on_fusions,
    with_carried_sums,
    with_sums_of_pieces,
)
from accucompare.compare.judging import Beside, DiffRows, Sides, but_plain, plain_count
from accucompare.compare.layouts import Unified, own_clipping, unify
from accucompare.compare.limits import OtherCode, Tolerance, other_optimizer
from accucompare.compare.loss_scales import (
    loss_scale_ratios,
    with_golden_scale,
    with_scaled_baseline,
)
from accucompare.compare.opened import Opened, by_key, no_progress, open_sides, records_of
from accucompare.compare.origins import (
    Culprit,
    find_culprits,
    scaled_first,
    small_changes,
    unsteady,
    vouched_for,
    where_it_begins,
    with_descriptions,
)
from accucompare.compare.pair_limits import PairLimits, limits_in_force
from accucompare.compare.pairing import Pair, Renaming
from accucompare.compare.preflight_facts import About, PreflightFinding
from accucompare.compare.result import Result, Side
from accucompare.compare.rows import (
    UNMATCHED,
    PairOutcome,
    Row,
    Status,
    Task,
    explained,
    never_called,
    other_model,
    with_options,
    with_parameters,
)
from accucompare.compare.runs import TrainingResult
from accucompare.compare.steps_at_once import JudgedStep, StepOfBundle
from accucompare.compare.task_batches import outcomes_of
from accucompare.compare.tokens import PairedSides, PairedTokens, with_tokens
from accucompare.compare.traced_rows import rows_in_order, rows_of_pairs, trace_of_sides
from accucompare.compare.trust import ChosenBaseline, preflight_findings
from accucompare.errors import BundleError
from accucompare.places import Place

if TYPE_CHECKING:
    from accucompare.compare.cluster import Cluster  # most diffs need none


_Made = TypeVar("_Made", bound=Result)


def compare(
    made: type[_Made],
    golden: Place,
    candidate: Place,
    baseline: Place | None,
    options: DiffOptions,
    cluster: Cluster | None = None,
) -> _Made:
    """Compare two bundles; ``accucompare.diff`` makes these arguments.

    Args:
        made: the class of the result.
        cluster: compares the pairs; ``None`` for threads of this process.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_without_looking_for_cycles())
        as_captured = open_sides(stack, golden, candidate, baseline, options, cluster)
        paired = _pair(as_captured, options)
        opened = described_as_one(as_captured, paired.unified)
        assigned = _assign(stack, opened, paired, options)
        rows = _judge(opened, paired, assigned, options, cluster)
        chosen = assigned.baseline
        compared = [
            row
            for row in but_plain(rows)
            if row.status is not Status.NOT_COMPARED and row.reason not in UNMATCHED
        ]
        different = other_model(*opened.models, rows, paired.renamings)
        alone = [row for row in compared if chosen.has_none_of(row)]
        number = len(compared) + plain_count(rows)
        findings = _findings(opened, paired, chosen, alone, number, options)
        findings += [PreflightFinding(different)] if different is not None else []
        training, rows = _follow(opened, assigned, rows, findings, options)
        findings += unused_rules(options.rules, opened.candidate_records, rows)
        culprits = (
            [] if different is not None else _culprits(opened, paired, chosen, rows, training)
        )
        return made(
            golden=_side(opened.golden),
            candidate=_side(opened.candidate),
            rows=rows,
            preflight=sorted(findings, key=lambda finding: not finding.serious),
            in_force=opened.in_force,
            left_out=_count(paired.pairs) - _count(paired.selected),
            # list a step that cannot be opened once, not once for each record
            damage=list(dict.fromkeys(opened.damage)),
            baseline=None if chosen.bundle is None else _side(chosen.bundle),
            culprits=culprits,
            without_baseline=len(alone),
            refused=chosen.refused,
            not_proved=judging.why_not_proved(opened.golden, chosen.bundle, assigned.beside),
            unseen=(
                OtherCode()
                if _has_updates(compared)
                else other_optimizer(opened.golden.manifest, opened.candidate.manifest)
            ),
            maps=[renaming.text for renaming in paired.renamings],
            verified=options.work.verify,
            other_model=different,
            proposed_maps=[] if options.auto else paired.proposed,
            training=training,
            acceptance=(
                None
                if options.standard is None
                else runs.accept(options.standard, training.pairs if training is not None else ())
            ),
            weights_in_parts=weights_in_parts_of(as_captured, opened, rows),
        )


@contextlib.contextmanager
def _without_looking_for_cycles() -> Iterator[None]:
    """Pause the garbage collector: it takes 10 % of a diff's time, and a diff makes no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Paired(NamedTuple):
    """The pairs, all and selected."""

    pairs: list[Pair]
    tokens: PairedTokens
    renamings: list[Renaming]
    proposed: list[str]
    parameters: Mapping[str, str]  # golden's names that the candidate ties
    # classes of which golden, or the candidate, carries a value as two terms
    carried: list[tuple[bool, str]]
    in_sums: bool  # whether gradients of several backwards may be added up

    @property
    def unified(self) -> Unified:
        return self.tokens.unified

    @property
    def selected(self) -> list[Pair]:
        return self.unified.pairs


class _Assigned(NamedTuple):
    """The work for each selected pair, the baseline, and the runs beside it."""

    tasks: list[Task]
    baseline: ChosenBaseline
    beside: Beside


def _pair(opened: Opened, options: DiffOptions) -> _Paired:
    """Pair golden's records with the candidate's."""
    renamings = [] if opened.named.names else list(options.renamings)
    proposed = [] if opened.named.names else pairing.propose(*opened.models, renamings)
    if options.auto:
        renamings += [Renaming.parse(text) for text in proposed]
    parameters = pairing.other_names(*opened.models, renamings)
    # a fed operator keeps golden's number
    align = pairing.pair_records if opened.fed else pairing.align_operators
    pairs = align(
        opened.golden_records,
        opened.candidate_records,
        renamings,
        pairing.signatures_of(*opened.models),
        parameters,
    )
    pairs, carried = with_carried_sums(pairs, opened.golden, opened.candidate)
    in_pieces = pairs
    if opened.golden_ranks is None and opened.candidate_ranks is None:
        pairs = with_sums_of_pieces(pairs, opened.golden, opened.candidate)
    in_sums = pairs is not in_pieces
    pairs = pairing.with_gradients_given_back(pairs)
    pairs = [pair for pair in pairs if not _inside_of_region(pair, opened)]
    selected = [pair for pair in pairs if options.selection.allows(pair.record.name)]
    ranks = opened.golden_ranks, opened.candidate_ranks
    unified = unify(selected, *ranks, options.layouts)
    if opened.fusions:
        settled, unknown = opened.fusions.settled(unified.pairs)
        unified = unified._replace(pairs=settled, unknown=unknown)
    tokens = with_tokens(PairedSides(opened.golden, opened.candidate, ranks, selected, unified))
    if opened.scales:
        scaled = with_golden_scale(tokens.unified.pairs, opened.scales)
        tokens = tokens._replace(unified=tokens.unified._replace(pairs=scaled))
    return _Paired(pairs, tokens, renamings, proposed, parameters, carried, in_sums)


def _inside_of_region(pair: Pair, opened: Opened) -> bool:
    """Whether a record has no partner since the other side ran the modules around it as one."""
    other = opened.candidate if pair.candidate is None else opened.golden
    compiled = other.manifest.options.compiled
    alone = pair.golden is None or pair.candidate is None
    of_call = pair.record.role not in (*UPDATE_ROLES, Role.BUFFER_BEFORE, Role.BUFFER_AFTER)
    return alone and of_call and compiled is not None and compiled.hides(pair.record.name)


def _assign(
    stack: contextlib.ExitStack, opened: Opened, paired: _Paired, options: DiffOptions
) -> _Assigned:
    """Give each pair its limits and its records of the baseline, the proof and the second runs."""
    keep_going = options.work.keep_going
    golden = opened.golden
    damage = opened.damage
    limits = PairLimits()
    tasks = [Task(pair, limits.tolerance_for(pair, opened.in_force)) for pair in paired.selected]
    of_baseline = (
        []
        if opened.baseline.bundle is None
        else records_of(opened.baseline.bundle, keep_going, damage)
    )
    records = opened.golden_records, opened.candidate_records, of_baseline
    baseline, tasks = opened.baseline.with_records(
        tasks, paired.pairs, records, opened.models[0], paired.renamings, opened.fed
    )
    if baseline.bundle is not None:
        tasks = with_scaled_baseline(
            tasks, loss_scale_ratios(golden.manifest, baseline.bundle.manifest)
        )
    beside = judging.open_beside(stack, golden, baseline.bundle)
    of_golden, own = PairLimits(), replace(limits_in_force((), Tolerance(), golden), fed=True)
    tasks = judging.with_proofs(
        tasks,
        beside,
        opened.golden_records,
        paired.renamings,
        lambda pair: of_golden.tolerance_for(pair, own),
    )
    tasks = judging.with_baseline_rows(tasks, paired.tokens, baseline.bundle, baseline.records)
    if opened.candidate_ranks is not None and opened.fed and baseline.bundle is not None:
        tasks = judging.where_fed_alike(tasks, outputs_fed_there_alone(opened, baseline.bundle))
    again, golden_again = (
        by_key(run, keep_going, damage) for run in (opened.repeat, opened.golden_repeat)
    )
    tasks = with_parameters(tasks) if opened.fed else tasks
    tasks = judging.with_given(tasks) if options.limits.has_limit or options.rules else tasks
    if opened.fed:
        golden_again = unsteady.begins(opened.golden_records, golden_again)
    tasks = with_layouts(
        _with_second_runs(tasks, again, golden_again),
        paired.unified,
        opened.candidate_ranks,
        baseline.bundle,
        opened.fed,
    )
    return _Assigned(tasks, baseline, beside)


def _judge(
    opened: Opened,
    paired: _Paired,
    assigned: _Assigned,
    options: DiffOptions,
    cluster: Cluster | None,
) -> Sequence[Row]:
    """Measure and judge each pair, and trace where its error was made."""
    tasks, baseline, beside = assigned
    sides = Sides(
        opened.golden,
        opened.candidate,
        baseline.bundle,
        opened.repeat,
        options.work.verify,
        options.work.keep_going,
        opened.golden_repeat,
        beside.proof,
        beside.again,
        beside.rounded,
    )
    several = opened.candidate_ranks is not None or opened.golden_ranks is not None
    # its workers know records as they were captured
    rewritten = opened.fusions or opened.in_parts or paired.carried or paired.in_sums
    as_captured = not (several or rewritten or opened.scales)
    on = cluster if as_captured else None
    outcomes = _outcomes(sides, tasks, options.work, on, opened.at_once)
    if several:
        judge = functools.partial(judging.judge_with, sides)
        judging.pass_used_terms(tasks, outcomes, judge, opened.fed)
        judging.judge_own_means(tasks, outcomes, judge)
        judging.fail_left_terms(tasks, outcomes, judge)
        if opened.candidate_ranks is not None:
            clipping = own_clipping(
                opened.golden.manifest, opened.candidate.manifest, opened.candidate_ranks.manifests
            )
            judging.judge_own_clipping(tasks, outcomes, clipping, judge)
    judging.settle_tokens(tasks, outcomes, paired.tokens, opened.fed)
    origins = trace_of_sides(opened, paired.pairs)
    judging.judge_handed_on(tasks, outcomes, {place[1:] for place in origins.not_fed if several})
    if baseline.bundle is not None and not opened.fed:
        outcomes = runs.by_envelope(tasks, outcomes, runs.after_updates(*opened.series))
    tasks.clear()  # of a million pairs
    origins.rewritten = bool(opened.fusions or opened.in_parts or paired.carried)
    uncalled = never_called(opened.golden, opened.candidate, options.selection)
    rows: Sequence[Row]
    if opened.at_once:  # steps without operators
        parts = rows_in_order(paired.selected, outcomes, opened, origins)
        rows = DiffRows([*parts, uncalled])
    else:
        own = with_options(rows_of_pairs(paired.selected, outcomes, opened.damage, origins))
        rows = [*own, *uncalled]
    return vouched_for(rows, paired.parameters)


def _findings(
    opened: Opened,
    paired: _Paired,
    baseline: ChosenBaseline,
    alone: list[Row],
    compared: int,
    options: DiffOptions,
) -> list[PreflightFinding]:
    """The findings of pre-flight, of maps and of the baseline, which lacks the rows ``alone``."""
    golden, candidate, renamings = opened.golden, opened.candidate, paired.renamings
    findings = preflight_findings(golden, candidate, renamings)
    findings += unused_layouts(options.layouts, opened.candidate_records)
    findings += unused_options(
        renamings,
        options.selection,
        (opened.golden_records, opened.candidate_records),
        opened.models,
    )
    findings += on_maps(renamings, paired.proposed, options.auto, opened.models)
    findings += [*on_stages(opened.named, options.renamings), *on_runs(opened)]
    findings += on_fusions(opened.fusions, paired.carried, opened.in_parts)
    return findings + baseline.findings(golden, candidate, renamings, alone, compared)


def _follow(
    opened: Opened,
    assigned: _Assigned,
    rows: Sequence[Row],
    findings: list[PreflightFinding],
    options: DiffOptions,
) -> tuple[TrainingResult | None, Sequence[Row]]:
    """Where two runs of training part; and the rows plus those of numbers of a step."""
    weights = next((finding for finding in findings if finding.about is About.WEIGHTS), None)
    baseline, repeat = _manifests(opened.baseline.bundle), _manifests(opened.golden_repeat)
    training = runs.climb(
        *opened.series,
        baseline=baseline,
        repeat=repeat,
        given=options.limits,
        rows=rows,
        weights=weights,
        by_rank={} if opened.candidate_ranks is None else opened.candidate_ranks.manifests,
    )
    if opened.imported:
        training = None  # dumps of other tools have no series
    if opened.fed and options.selection.allows(""):  # a loss is no layer's
        of_rounding = _manifests(assigned.baseline.bundle), _manifests(assigned.beside.proof)
        rows = runs.with_step_rows(list(rows), *opened.series, *of_rounding, opened.in_force)
    elif training is not None and training.parting is not None and training.parting.clips_otherwise:
        rows = runs.with_clipping(list(rows), training.parting, *opened.series, opened.in_force)
    return training, rows


def _culprits(
    opened: Opened,
    paired: _Paired,
    baseline: ChosenBaseline,
    rows: Sequence[Row],
    training: TrainingResult | None,
) -> list[Culprit]:
    """The culprits, ranked and described."""
    updated = training is not None and training.updated
    if all(row.status is not Status.FAIL for row in but_plain(rows)):
        return []
    every = judging.of_failing_steps(rows)
    found = find_culprits(every, opened.fed, baseline.bundle is not None, updated)
    found = scaled_first(found, every, opened.fed, updated)
    sides = opened.golden, opened.candidate
    found = with_descriptions(found, *sides, paired.renamings)
    return where_it_begins(found, every, sides, opened.candidate_ranks)


def _manifests(bundle: Bundle | None) -> Mapping[int, Manifest]:
    return {} if bundle is None else bundle.manifests


def _with_second_runs(
    tasks: list[Task], theirs: Mapping[Key, Record], ours: Mapping[Key, Record]
) -> list[Task]:
    """The tasks with the records of the candidate's and golden's second runs."""
    if not theirs and not ours:
        return tasks
    return [
        msgspec.structs.replace(
            task, repeat=_in(theirs, task.pair.candidate), golden_repeat=_in(ours, task.pair.golden)
        )
        for task in tasks
    ]


def _in(run: Mapping[Key, Record], record: Record | None) -> Record | None:
    return None if record is None else made_like(run.get(record.key), record, run)


def _count(pairs: list[Pair]) -> int:
    return sum((pair.golden is not None) + (pair.candidate is not None) for pair in pairs)


def _side(bundle: Bundle) -> Side:
    return Side(bundle.path, bundle.manifest, bundle.complete)


def _outcomes(
    sides: Sides,
    tasks: list[Task],
    work: Work,
    cluster: Cluster | None,
    at_once: Mapping[StepOfBundle, JudgedStep],
) -> list[PairOutcome | BundleError]:
    """The outcome of each pair, including those that one side did not run or capture."""
    show, before = work.progress or no_progress, sum(each.nbytes for each in at_once.values())

    def progress(done: int, total: int) -> None:
        show(before + done, before + total)

    outcomes = (
        outcomes_of(sides, tasks, work.workers, progress)
        if cluster is None
        else cluster.outcomes(sides, tasks, progress)
    )
    pairs = [task.pair for task in tasks]
    for explain in (explained, small_changes):
        for place, outcome in explain(sides.golden, sides.candidate, pairs).items():
            outcomes[place] = outcome
    return outcomes


def _has_updates(compared: Iterable[Row]) -> bool:
    """Whether updates were compared; then the optimizer's code need not be."""
    return any(row.golden is not None and row.golden.role is Role.PARAM_UPDATE for row in compared)
