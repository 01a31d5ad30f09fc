"""Compares two bundles record by record, with a few blocks in memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import msgspec

from accucompare.bundle.flags import roundoff
from accucompare.bundle.format import NODE_ROLES, SERIES_ROLES, TRAINING_ROLES, WRITTEN_ROLES, Key, Manifest, Record, Role
from accucompare.bundle.reading import Bundle, open_bundle
from accucompare.compare.batches import Progress, outcomes_of
from accucompare.compare.judging import Sides, open_beside, why_not_proved, with_given, with_proofs
from accucompare.compare.limits import (
    COPIES,
    EXACT,
    RECURRENT,
    SUMMED,
    OtherCode,
    Rule,
    Tolerance,
    Tolerances,
    check_feed,
    floor,
    is_half,
    other_optimizer,
    product_formats,
)
from accucompare.compare.origins import (
    FREE_GRADIENTS,
    PARAMETER_GRADIENTS,
    Fed,
    NotFed,
    Origins,
    Terms,
    find_culprits,
    not_fed,
    operators_not_fed,
    parameter_of,
    scaled_first,
    small_changes,
    unsteady,
    vouched_for,
    with_descriptions,
)
from accucompare.compare.pairing import (
    Model,
    Pair,
    Renaming,
    advice,
    align_operators,
    clashes,
    options,
    other_names,
    pair_records,
    propose,
    renaming_matches,
    signatures_of,
    unused,
    with_paths_of,
)
from accucompare.compare.result import Result, Side
from accucompare.compare.rows import (
    UNMATCHED,
    About,
    OperatorOrigins,
    PairOutcome,
    PreflightFinding,
    Reason,
    Row,
    Status,
    Task,
    Verdict,
    explained,
    never_called,
    other_model,
    same_bits,
    with_options,
    with_parameters,
)
from accucompare.compare.runs import accept, after_updates, by_envelope, climb, with_clipping, with_step_rows
from accucompare.compare.trust import choose_baseline, preflight_findings
from accucompare.errors import BundleError, UsageError
from accucompare.numbers import DTYPES
from accucompare.places import Place, is_file
from accucompare.selection import Selection, Standard

if TYPE_CHECKING:
    from accucompare.compare.cluster import Cluster  # which most diffs need none of


_Made = TypeVar("_Made", bound=Result)


def compare(
    made: type[_Made],
    golden: Place,
    candidate: Place,
    baseline: Place | None,
    *,
    limits: Tolerance,
    rules: tuple[Rule, ...],
    renamings: list[Renaming],
    auto: bool,
    selection: Selection,
    verify: bool,
    keep_going: bool,
    workers: int | None,
    progress: Progress | None,
    standard: Standard | None = None,
    cluster: Cluster | None = None,
) -> _Made:
    """Compare two bundles: see ``accucompare.diff``, which makes these arguments.

    Args:
        made: the class of the result.
        limits: what the user gave for all layers.
        rules: those by layer.
        renamings: of golden's layers.
        auto: whether to take the renamings that would otherwise be proposed.
        selection: the layers to compare, by golden's names.
        standard: that decides in place of the rows.
        cluster: where the pairs are compared; ``None`` for threads of this process.
    """
    with contextlib.ExitStack() as stack:
        golden_bundle, candidate_bundle = (stack.enter_context(open_bundle(path)) for path in (golden, candidate))
        repeat_bundle, golden_repeat = (_second_run(stack, path) for path in (candidate, golden))
        check_feed(golden_bundle, candidate_bundle)
        if standard is not None and candidate_bundle.manifest.fed:
            raise UsageError(f"--accept: judges free-running runs, but {candidate} was fed with golden's values; capture it without --feed")
        judge = choose_baseline(stack, golden_bundle, candidate_bundle, baseline)
        tolerances = _rules(rules, limits, candidate_bundle)
        damage: list[str] = []
        golden_records, candidate_records = (_records(bundle, keep_going, damage) for bundle in (golden_bundle, candidate_bundle))
        if golden_bundle.manifest.options.imported is not None:
            golden_records = with_paths_of(golden_records, candidate_records)
        elif candidate_bundle.manifest.options.imported is not None:
            candidate_records = with_paths_of(candidate_records, golden_records)
        models = golden_bundle.manifest.model, candidate_bundle.manifest.model
        proposed = propose(*models, renamings)
        if auto:
            renamings = [*renamings, *(Renaming.parse(text) for text in proposed)]
        parameters = other_names(*models, renamings)
        fed = candidate_bundle.manifest.fed  # then an operator has the number of golden's that it is
        pairs = (pair_records if fed else align_operators)(golden_records, candidate_records, renamings, signatures_of(*models), parameters)
        chosen = [pair for pair in pairs if selection.allows(pair.record.name)]
        precision = _Precision()
        tasks = [Task(pair, precision.tolerance_for(pair, tolerances)) for pair in chosen]
        wanders = judge.bundle
        of_all = golden_records, candidate_records, [] if judge.bundle is None else _records(judge.bundle, keep_going, damage)
        judge, tasks = judge.judging(tasks, pairs, of_all, models[0], renamings, fed)
        beside = open_beside(stack, golden_bundle, judge.bundle)
        of_golden, own = _Precision(), replace(_rules((), Tolerance(), golden_bundle), fed=True)
        tasks = with_proofs(tasks, beside, golden_records, renamings, lambda pair: of_golden.tolerance_for(pair, own))
        again, golden_again = (_by_key(run, keep_going, damage) for run in (repeat_bundle, golden_repeat))
        tasks = with_parameters(tasks) if fed else tasks
        tasks = with_given(tasks) if limits.given or rules else tasks
        tasks = _with_second_runs(tasks, again, unsteady.begins(golden_records, golden_again) if fed else golden_again)
        sides = Sides(
            golden_bundle,
            candidate_bundle,
            judge.bundle,
            repeat_bundle,
            verify,
            keep_going,
            golden_repeat,
            beside.proof,
            beside.again,
            beside.conditioned,
        )
        outcomes = _outcomes(sides, tasks, workers, progress or (lambda done, total: None), cluster)
        if judge.bundle is not None and not fed:
            outcomes = by_envelope(tasks, outcomes, after_updates(golden_bundle.manifests, candidate_bundle.manifests))
        del tasks  # of a million pairs
        rows = _rows(chosen, outcomes, damage, _origins(golden_records, golden_bundle, candidate_bundle, pairs))
        del outcomes
        rows = vouched_for(with_options(rows), parameters) + never_called(golden_bundle, candidate_bundle, selection)
        compared = [row for row in rows if row.status is not Status.NOT_COMPARED and row.reason not in UNMATCHED]
        alone = [row for row in compared if judge.has_none_of(row)]
        different = other_model(*models, rows, renamings)
        findings = preflight_findings(golden_bundle, candidate_bundle, renamings) + _unused_options(
            renamings, selection, golden_records, models[0]
        )
        findings += _on_maps(renamings, proposed, auto, models)
        findings += judge.findings(golden_bundle, candidate_bundle, renamings, alone, len(compared))
        findings += [PreflightFinding("model", str(different))] if different is not None else []
        series = golden_bundle.manifests, candidate_bundle.manifests
        weights = next((finding for finding in findings if finding.about is About.WEIGHTS), None)
        judges = _manifests(wanders), _manifests(golden_repeat)
        training = climb(*series, baseline=judges[0], repeat=judges[1], given=limits, rows=rows, weights=weights)
        if any(bundle.manifest.options.imported for bundle in (golden_bundle, candidate_bundle)):
            training = None  # dumps of other tools have no series
        if fed and selection.allows(""):  # a loss is no layer's
            rows = with_step_rows(rows, *series, _manifests(judge.bundle), _manifests(beside.proof), tolerances)
        elif training is not None and training.parting is not None and training.parting.clips_otherwise:
            rows = with_clipping(rows, training.parting, *series, tolerances)
        of_series = (row.candidate for row in rows if row.candidate is not None and row.candidate.role in SERIES_ROLES)
        findings += _unused_rules(rules, [*candidate_records, *of_series])
        culprits = []
        if different is None:
            updated = training is not None and training.updated
            culprits = scaled_first(find_culprits(rows, fed, judge.bundle is not None, updated), rows, fed, updated)
        return made(
            golden=_side(golden_bundle),
            candidate=_side(candidate_bundle),
            rows=rows,
            preflight=sorted(findings, key=lambda finding: not finding.serious),
            tolerances=tolerances,
            left_out=_count(pairs) - _count(chosen),
            damage=list(dict.fromkeys(damage)),  # a step that cannot be opened is listed once, not for each of its records
            baseline=None if judge.bundle is None else _side(judge.bundle),
            culprits=with_descriptions(culprits, golden_bundle, candidate_bundle, renamings),
            without_baseline=len(alone),
            refused=judge.refused,
            not_proved=why_not_proved(golden_bundle, judge.bundle, beside),
            unseen=OtherCode() if _has_updates(compared) else other_optimizer(golden_bundle.manifest, candidate_bundle.manifest),
            maps=[renaming.text for renaming in renamings],
            verified=verify,
            other_model=different,
            proposed_maps=[] if auto else proposed,
            training=training,
            acceptance=None if standard is None else accept(standard, training.pairs if training is not None else ()),
        )


#: Where the second run of a capture with ``--repeat 2`` is, inside the first one's directory.
REPEAT = "repeat1"


def _second_run(stack: contextlib.ExitStack, first: Place) -> Bundle | None:
    return stack.enter_context(open_bundle(first / REPEAT)) if is_file(first / REPEAT / "manifest.json") else None


def _manifests(bundle: Bundle | None) -> Mapping[int, Manifest]:
    return {} if bundle is None else bundle.manifests


def _with_second_runs(tasks: list[Task], theirs: Mapping[Key, Record], ours: Mapping[Key, Record]) -> list[Task]:
    """The tasks with the records of the candidate's and of golden's second run."""
    if not theirs and not ours:
        return tasks
    return [
        msgspec.structs.replace(
            task,
            repeat=task.pair.candidate and theirs.get(task.pair.candidate.key),
            golden_repeat=task.pair.golden and ours.get(task.pair.golden.key),
        )
        for task in tasks
    ]


def _count(pairs: list[Pair]) -> int:
    return sum((pair.golden is not None) + (pair.candidate is not None) for pair in pairs)


def _by_key(run: Bundle | None, keep_going: bool, damage: list[str]) -> dict[Key, Record]:
    """The records of a second run, if there is one."""
    return {} if run is None else {record.key: record for record in _records(run, keep_going, damage)}


def _side(bundle: Bundle) -> Side:
    return Side(bundle.path, bundle.manifest, bundle.complete)


def _rules(rules: tuple[Rule, ...], limits: Tolerance, candidate: Bundle) -> Tolerances:
    """The limits in force. A fed candidate's default depends on the format that its float32 products were rounded to."""
    matmul, conv = map(roundoff, product_formats(candidate.manifest))
    classes = candidate.manifest.code.classes or {}

    def torchs(name: str) -> bool:
        return all(home.startswith("torch.nn.modules.") for home in classes.get(name) or [""])

    copies, model = frozenset(filter(torchs, COPIES)), candidate.manifest.model
    other_mode, sums = set(model.get("other_mode") or ()), set(filter(torchs, SUMMED))
    trains = {name for name in model.get("modules") or () if bool(model.get("training")) is not (name in other_mode)}
    summing = frozenset(
        name for name, kind in (model.get("modules") or {}).items() if kind in sums and (name in trains or kind == "GroupNorm")
    )
    recurrent = frozenset(filter(torchs, RECURRENT))
    return Tolerances(rules, limits, candidate.manifest.fed, matmul, max(matmul, conv), copies, summing, recurrent)


def _origins(records: list[Record], golden: Bundle, candidate: Bundle, pairs: list[Pair]) -> Origins | Fed:
    steps = {(rank, entry.step) for rank, entry in golden.steps()} & {(rank, entry.step) for rank, entry in candidate.steps()}
    if not candidate.manifest.fed:
        return Origins(steps)
    recorded = {
        record.name for record in records if record.role in (Role.OUTPUT, *WRITTEN_ROLES)
    }  # a root that was left out still has inputs
    both = [(pair.candidate.key, pair.golden.key) for pair in pairs if pair.golden is not None and pair.candidate is not None]
    places = {_place(theirs): _place(ours) for theirs, ours in both if theirs != ours}  # its manifest has the candidate's names
    names = {theirs.name: ours.name for theirs, ours in both}
    values = {places.get(at, (*at[:2], names.get(at[2], at[2]), *at[3:])) for at in not_fed(candidate.manifests)}
    operators = frozenset((*at[:2], names.get(at[2], at[2]), *at[3:]) for at in operators_not_fed(candidate.manifests))
    return Fed(values, OperatorOrigins(fed=True, not_fed=operators), recorded, steps)


def _place(key: Key) -> NotFed:
    return key.rank, key.step, key.name, key.call, key.role.value, key.path


def _outcomes(
    sides: Sides, tasks: list[Task], workers: int | None, progress: Progress, cluster: Cluster | None
) -> list[PairOutcome | BundleError]:
    """The outcome of each pair, also of those that one side did not run or capture."""
    outcomes = outcomes_of(sides, tasks, workers, progress) if cluster is None else cluster.outcomes(sides, tasks, progress)
    pairs = [task.pair for task in tasks]
    for explain in (explained, small_changes):
        for place, outcome in explain(sides.golden, sides.candidate, pairs).items():
            outcomes[place] = outcome
    return outcomes


def _records(bundle: Bundle, keep_going: bool, damage: list[str]) -> list[Record]:
    """Every record of a bundle. With ``keep_going``, a step whose list cannot be read is added to ``damage``."""
    records = []
    for rank, entry in bundle.steps():
        try:
            records += bundle.step_records(rank, entry)
        except BundleError as error:
            if not keep_going:
                raise
            damage.append(str(error))
    return records


def _on_maps(renamings: list[Renaming], proposed: list[str], auto: bool, models: tuple[Model, Model]) -> list[PreflightFinding]:
    """Findings about what ``--map`` did, or would do."""
    findings = [
        PreflightFinding("map", f"--map: {old[0]} and {old[1]} of golden both become {new}; the first that runs is compared with it")
        for old, new in clashes(*models, renamings)
    ]
    if auto:
        findings.append(
            PreflightFinding("map", f"--map auto took {options(proposed)}" if proposed else "--map auto found nothing to rename", False)
        )
    elif proposed:
        findings.append(PreflightFinding("map", f"the candidate calls some of golden's layers otherwise{advice(proposed)}"))
    return findings


def _unused_options(renamings: list[Renaming], selection: Selection, records: list[Record], model: Model) -> list[PreflightFinding]:
    names = {record.name for record in records}
    findings = [
        PreflightFinding("map", f"--map {renaming.text} matches none of golden's layers", serious=False)
        for renaming in unused(renamings, names)
        if not renaming_matches(renaming, model)
    ]
    for glob in selection.only:
        if not any(Selection((glob,)).allows(name) for name in names):
            findings.append(PreflightFinding("only", f"--only {glob} matches none of golden's layers", serious=False))
    for glob in selection.skip:
        if all(Selection((), (glob,)).allows(name) for name in names):
            findings.append(PreflightFinding("skip", f"--skip {glob} matches none of golden's layers", serious=False))
    return findings


def _unused_rules(rules: Iterable[Rule], records: list[Record]) -> list[PreflightFinding]:
    """Findings about the rules of a tolerance file that judge nothing."""
    return [
        PreflightFinding("tolerances", f"{rule.tolerance.source}, applies to none of the candidate's records, so its limit judges nothing")
        for rule in rules
        if not any(rule.applies_to(record) for record in records)
    ]


def _rows(pairs: list[Pair], outcomes: list[PairOutcome | BundleError], damage: list[str], origins: Origins | Fed) -> list[Row]:
    rows = []
    for pair, outcome in zip(pairs, outcomes, strict=True):
        if isinstance(outcome, BundleError):
            damage.append(str(outcome))
            outcome = PairOutcome(None, Verdict(Reason.NOT_COMPARABLE, detail=f"unreadable: {outcome}"))
        record = pair.record
        verdict = origins.trace(record, outcome.verdict)
        metrics, baseline, noise = outcome.metrics, outcome.baseline, outcome.noise
        rows.append(Row(pair.golden, pair.candidate, verdict, metrics, pair.nearest, record.name, baseline, noise))
    return rows


def _has_updates(compared: Iterable[Row]) -> bool:
    """Whether updates were compared, so that the optimizer's code need not be."""
    return any(row.golden is not None and row.golden.role is Role.PARAM_UPDATE for row in compared)


@dataclass
class _Precision:
    """The coarsest floating dtype in which the two sides have differed so far, step by step.

    Values that are the same on both sides bring no rounding error into later ones. Neither do scales, for which float8_e8m0fnu is used.
    """

    _coarsest: dict[tuple[int, int], str] = field(default_factory=dict)
    _terms: Terms = field(default_factory=Terms)
    _parameters: dict[tuple[int, int, int, str], frozenset[str]] = field(default_factory=dict)  # the types of what an update adds to
    _composed: dict[tuple[int, int], float] = field(default_factory=dict)  # the largest error so far of a recurrent module's roundings

    def tolerance_for(self, pair: Pair, rules: Tolerances) -> Tolerance:
        """The limits for the next pair in execution order."""
        golden, candidate = pair.golden, pair.candidate
        dtypes = _floating(golden.dtype if golden is not None else "", candidate.dtype if candidate is not None else "")
        step = pair.record.rank, pair.record.step
        before = self._coarsest.get(step, "")
        if dtypes and not same_bits(golden, candidate):
            self._coarsest[step] = _coarsest_of(before, dtypes, but="float8_e8m0fnu") or "float64"
        if golden is None or candidate is None or golden.dtype not in dtypes:
            return EXACT
        if golden.role in (Role.PARAM_BEFORE, Role.PARAM_UPDATE):
            update = (*step, golden.call, parameter_of(golden))
            dtypes |= self._parameters.setdefault(update, dtypes)
        coarsest = _coarsest_of(before, dtypes)
        tolerance = rules.tolerance_for(golden, candidate, coarsest)
        if candidate.name in rules.sums:
            tolerance = tolerance.of_sums(self._terms.summed(golden), coarsest)
        if terms := self._terms.added(golden):  # by fixed limits alone: a baseline's own error has them
            tolerance = replace(tolerance.of_sums(terms, coarsest), summing=tolerance.summing)
        tolerance = tolerance.of_roundings(self._of_roundings(golden, candidate, rules))
        if golden.role in (Role.INPUT, Role.BUFFER_UPDATE):
            widened = self._terms.widened(tolerance, golden)
            return tolerance if golden.role is Role.INPUT else widened
        if golden.role not in (*TRAINING_ROLES, *NODE_ROLES):
            return tolerance
        return self._terms.widened(tolerance, golden).scaled(1.0 if rules.fed else FREE_GRADIENTS)

    def _of_roundings(self, golden: Record, candidate: Record, rules: Tolerances) -> float:
        """The relative L2 error that a recurrent module makes in a half type; free-running, also in what comes after it."""
        step = golden.rank, golden.step
        own = 0.0
        if golden.type in rules.recurrent and is_half(candidate.dtype):
            own = math.sqrt(self._terms.roundings(golden)) * floor(candidate.dtype)
        if rules.fed:
            return own
        if golden.role not in PARAMETER_GRADIENTS:
            self._composed[step] = max(own, self._composed.get(step, 0.0))
        return max(own, self._composed.get(step, 0.0))


@lru_cache
def _floating(*dtypes: str) -> frozenset[str]:
    """Those of some dtypes that are floating or complex."""
    return frozenset(name for name in dtypes if name in DTYPES and DTYPES[name].digits)


@lru_cache
def _coarsest_of(before: str, own: frozenset[str], but: str = "") -> str:
    """The type with the fewest digits; of several, one of the pair's own, and the same in every run."""
    names = {before} | own - {but} if before else own - {but}
    return min(names, key=lambda name: (DTYPES[name].digits, name not in own, name), default="")
