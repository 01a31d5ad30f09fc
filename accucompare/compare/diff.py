"""Comparing two bundles, record by record, with a few blocks in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from accucompare.bundle.dtypes import DTYPES
from accucompare.bundle.reader import Bundle, open_bundle
from accucompare.bundle.records import Key, Record, Role
from accucompare.bundle.selection import Selection
from accucompare.compare import unsteady
from accucompare.compare.align import Pair, Renaming, align, unused
from accucompare.compare.baseline import check_baseline, check_dtypes, check_feed, partners
from accucompare.compare.brought import own_baseline
from accucompare.compare.choices import Calls, given_otherwise, judged_by_limits
from accucompare.compare.comparison import UNMATCHED, Comparison, Finding, Reason, RefusedBaseline, Row, Side, Status, Verdict
from accucompare.compare.culprits import described, find_culprits
from accucompare.compare.operators import OperatorOrigins, with_options
from accucompare.compare.origins import Fed, NotFed, Origins, not_fed, operators_not_fed
from accucompare.compare.outcomes import Found, Outcome, Progress, Sides, Task, same_bits, with_baseline
from accucompare.compare.preflight import preflight, preflight_baseline
from accucompare.compare.provenance import other_code, other_optimizer
from accucompare.compare.renames import Model, advice, clashes, matches, options, propose, read_maps, signatures_of
from accucompare.compare.sequences import align_operators, numbered_as
from accucompare.compare.suggest import PRODUCT_ROUNDING, baseline_command, product_formats
from accucompare.compare.tolerance import COPIES, EXACT, Rule, Tolerance, Tolerances, read_rules
from accucompare.errors import BundleError, UsageError


def diff(
    golden: str | Path,
    candidate: str | Path,
    *,
    baseline: str | Path | None = None,
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
    workers: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two bundles.

    Args:
        golden: the trusted bundle's directory; if it was captured with ``--repeat 2``, values in which its two runs differ are told.
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
        map: ``OLD=NEW`` renamings of golden's layers, see ``accucompare.compare.align.Renaming``. ``"auto"`` takes those that would
            otherwise be proposed, by the weights' fingerprints, shapes, classes and order.
        only, skip: globs of the layers to compare and to leave out (golden's names).
        verify: read and verify tensors with equal digests too, instead of taking them for equal; what is read is always verified.
        keep_going: list records that cannot be read in ``Comparison.damage`` instead of raising at the first.
        workers: threads that read and measure, by default as many as there are processors; they change no result.
        progress: called now and then.

    Raises:
        BundleError: if a bundle is missing, damaged, or of a newer format.
        UsageError: if a limit, a renaming or the tolerance file makes no sense, or the bundles do not belong together: fed with another
            golden, or a baseline of another dtype, incomplete, or not fed as the candidate was.

    Example:
        >>> comparison = diff("golden", "npu", atol=1e-3)               # doctest: +SKIP
        >>> comparison.passed, comparison.first_divergence.place        # doctest: +SKIP
        (False, 'encoder.layers.3.fc1 output')
    """
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, but is {workers}")
    limits = Tolerance(atol, rtol, rel_l2, cosine, source="given for all layers")
    given = read_rules(tolerances) if tolerances is not None else ()
    renamings, auto = read_maps(map)
    selection = Selection.of(only, skip)
    with contextlib.ExitStack() as stack:
        golden_bundle, candidate_bundle = (stack.enter_context(open_bundle(path)) for path in (golden, candidate))
        baseline_bundle = None if baseline is None else stack.enter_context(open_bundle(baseline))
        repeat_bundle, golden_repeat = (
            stack.enter_context(open_bundle(path / REPEAT)) if (path / REPEAT / "manifest.json").is_file() else None
            for path in (Path(candidate), Path(golden))
        )
        check_feed(golden_bundle, candidate_bundle)
        refused, unfit = None, ""
        if baseline_bundle is None:
            try:
                own = own_baseline(golden_bundle, candidate_bundle)
                if own is not None:
                    baseline_bundle = stack.enter_context(open_bundle(own))
                    check_baseline(golden_bundle, candidate_bundle, baseline_bundle)
            except (BundleError, UsageError) as error:  # nobody asked for it
                baseline_bundle, unfit = None, str(error)
        else:
            check_baseline(golden_bundle, candidate_bundle, baseline_bundle)
        if baseline_bundle is not None:
            why = other_code(golden_bundle.manifest, baseline_bundle.manifest)
            if why:  # it may have the very fault that is looked for
                refused = RefusedBaseline(baseline_bundle.path, why, baseline_command(golden_bundle, candidate_bundle))
                baseline_bundle = None
        rules = _rules(given, limits, candidate_bundle)
        damage: list[str] = []
        golden_records, candidate_records = (_records(bundle, keep_going, damage) for bundle in (golden_bundle, candidate_bundle))
        models = golden_bundle.manifest.model, candidate_bundle.manifest.model
        proposed = propose(*models, renamings)
        if auto:
            renamings += [Renaming.parse(text) for text in proposed]
        free = not candidate_bundle.manifest.capture.get("feed")  # fed, an operator has the number of golden's that it is
        pairs = (align_operators if free else align)(golden_records, candidate_records, renamings, signatures_of(*models))
        chosen = [pair for pair in pairs if selection.allows(_name(pair))]
        precision = _Precision()
        tasks = [Task(pair, precision.tolerance_for(pair, rules)) for pair in chosen]
        if baseline_bundle is not None:
            baseline_records = _records(baseline_bundle, keep_going, damage)
            if free:
                baseline_records = numbered_as(golden_records, baseline_records, renamings)
            of_baseline = signatures_of(models[0], baseline_bundle.manifest.model)
            narrowed = (baseline_bundle.manifest.capture.get("fallback") or {}).get("modules") or ()
            found = partners(golden_records, baseline_records, renamings, of_baseline, narrowed)
            try:
                check_dtypes(pairs, found, baseline_bundle.path)
                tasks = [with_baseline(task, found) for task in tasks]
                calls = Calls.of(golden_records, candidate_records, baseline_records, renamings)
                tasks = [replace(task, chosen=calls.chosen(task.pair) or task.chosen) for task in tasks]
                odd = set() if free else given_otherwise(golden_records, found)
                tasks = [replace(task, chosen="") if judged_by_limits(task.pair, odd) else task for task in tasks]
            except UsageError as error:
                if baseline is not None:
                    raise
                baseline_bundle, unfit = None, str(error)
        if repeat_bundle is not None:
            again = {record.key: record for record in _records(repeat_bundle, keep_going, damage)}
            tasks = [task if task.pair.candidate is None else replace(task, repeat=again.get(task.pair.candidate.key)) for task in tasks]
        if golden_repeat is not None:
            again = {record.key: record for record in _records(golden_repeat, keep_going, damage)}
            again = again if free else unsteady.begins(golden_records, again)
            tasks = [task if task.pair.golden is None else replace(task, golden_repeat=again.get(task.pair.golden.key)) for task in tasks]
        run = {(rank, entry.step) for rank, entry in candidate_bundle.steps()}
        sides = Sides(golden_bundle, candidate_bundle, baseline_bundle, repeat_bundle, verify, keep_going, golden_repeat)
        outcomes = sides.outcomes(tasks, workers, progress or _silent)
        if not free:
            outcomes = [_not_run(pair, run) or found for pair, found in zip(chosen, outcomes, strict=True)]
        rows = _rows(chosen, outcomes, damage, _origins(golden_records, candidate_bundle, pairs))
        rows = with_options(rows) + _never_called(golden_bundle, candidate_bundle, selection)
        findings = preflight(golden_bundle, candidate_bundle, renamings) + _unused_options(renamings, selection, golden_records, models[0])
        findings += _unused_rules(given, candidate_records)
        findings += _on_maps(renamings, proposed, auto, models)
        findings += [Finding("baseline", f"golden's own baseline does not judge: {unfit}")] if unfit else []
        findings += preflight_baseline(golden_bundle, candidate_bundle, baseline_bundle, renamings, refused)
        alone, compared = _without_baseline(rows, None if baseline_bundle is None else found)
        if alone:
            what = f"{len(alone)} of {compared} compared rows (such as {alone[0].place})"
            findings.append(Finding("baseline", f"the baseline has no record of {what}, which are judged without it"))
        comparison = Comparison(
            golden=_side(golden_bundle),
            candidate=_side(candidate_bundle),
            rows=rows,
            preflight=sorted(findings, key=lambda finding: not finding.serious),
            tolerances=rules,
            left_out=sum((pair.golden is not None) + (pair.candidate is not None) for pair in pairs)
            - sum((pair.golden is not None) + (pair.candidate is not None) for pair in chosen),
            damage=list(dict.fromkeys(damage)),  # a step that cannot be opened is said once, not for each of its records
            baseline=None if baseline_bundle is None else _side(baseline_bundle),
            without_baseline=len(alone),
            refused=refused,
            unseen=other_optimizer(golden_bundle.manifest, candidate_bundle.manifest),
            maps=[renaming.text for renaming in renamings],
            proposed_maps=[] if auto else proposed,
        )
        culprits = described(find_culprits(comparison), golden_bundle, candidate_bundle, renamings)
        return replace(comparison, culprits=culprits)


#: Where the second run of a capture with ``--repeat 2`` is, inside the first one's directory.
REPEAT = "repeat1"


def _side(bundle: Bundle) -> Side:
    return Side(bundle.path, bundle.manifest, bundle.complete)


def _rules(given: tuple[Rule, ...], limits: Tolerance, candidate: Bundle) -> Tolerances:
    """The limits in force: for a fed candidate, the default depends on the format that its float32 products were rounded to."""
    matmul, conv = (PRODUCT_ROUNDING.get(name, 0.0) for name in product_formats(candidate.manifest))
    classes = candidate.manifest.model.get("classes") or {}
    copies = frozenset(name for name in COPIES if all(home.startswith("torch.nn.modules.") for home in classes.get(name) or [""]))
    fed = bool(candidate.manifest.capture.get("feed"))
    return Tolerances(given, limits, fed, rounding=matmul, conv_rounding=max(matmul, conv), copies=copies)


def _origins(golden: list[Record], candidate: Bundle, pairs: list[Pair]) -> Origins | Fed:
    if not candidate.manifest.capture.get("feed"):
        return Origins()
    recorded = {record.name for record in golden if record.role is Role.OUTPUT}  # of what was left out, the root's inputs are there
    both = [(pair.candidate.key, pair.golden.key) for pair in pairs if pair.golden is not None and pair.candidate is not None]
    places = {_place(theirs): _place(ours) for theirs, ours in both if theirs != ours}  # the candidate tells its own names and paths
    names = {theirs.name: ours.name for theirs, ours in both}
    values = {places.get(at, (*at[:2], names.get(at[2], at[2]), *at[3:])) for at in not_fed(candidate.manifests)}
    operators = frozenset((*at[:2], names.get(at[2], at[2]), *at[3:]) for at in operators_not_fed(candidate.manifests))
    return Fed(values, OperatorOrigins(fed=True, not_fed=operators), recorded)


def _place(key: Key) -> NotFed:
    return key.rank, key.step, key.name, key.call, key.role.value, key.path


def _silent(done: int, total: int) -> None:
    pass


def _records(bundle: Bundle, keep_going: bool, damage: list[str]) -> list[Record]:
    """Every record of a bundle; with ``keep_going``, steps whose list cannot be read are noted in ``damage``."""
    records = []
    for rank, entry in bundle.steps():
        try:
            records += bundle.step_records(rank, entry)
        except BundleError as error:
            if not keep_going:
                raise
            damage.append(str(error))
    return records


def _name(pair: Pair) -> str:
    record = pair.golden or pair.candidate
    assert record is not None
    return record.name


def _on_maps(renamings: list[Renaming], proposed: list[str], auto: bool, models: tuple[Model, Model]) -> list[Finding]:
    """What ``--map`` did, or would do."""
    findings = [
        Finding("map", f"--map: {old[0]} and {old[1]} of golden both become {new}; the first that runs is compared with it")
        for old, new in clashes(*models, renamings)
    ]
    if auto:
        findings.append(Finding("map", f"--map auto took {options(proposed)}" if proposed else "--map auto found nothing to rename", False))
    elif proposed:
        findings.append(Finding("map", f"the candidate calls some of golden's layers otherwise{advice(proposed)}"))
    return findings


def _unused_options(renamings: list[Renaming], selection: Selection, records: list[Record], model: Model) -> list[Finding]:
    names = {record.name for record in records}
    findings = [
        Finding("map", f"--map {renaming.text} matches none of golden's layers", serious=False)
        for renaming in unused(renamings, names)
        if not matches(renaming, model)
    ]
    for glob in selection.only:
        if not any(Selection((glob,)).allows(name) for name in names):
            findings.append(Finding("only", f"--only {glob} matches none of golden's layers", serious=False))
    for glob in selection.skip:
        if all(Selection((), (glob,)).allows(name) for name in names):
            findings.append(Finding("skip", f"--skip {glob} matches none of golden's layers", serious=False))
    return findings


def _unused_rules(rules: Iterable[Rule], records: list[Record]) -> list[Finding]:
    """Rules of a tolerance file that the user believes in force, but that judge nothing."""
    return [
        Finding("tolerances", f"{rule.tolerance.source}, applies to none of the candidate's records, so its limit judges nothing")
        for rule in rules
        if not any(rule.applies_to(record) for record in records)
    ]


def _rows(pairs: list[Pair], outcomes: list[Outcome], damage: list[str], origins: Origins | Fed) -> list[Row]:
    rows = []
    for pair, found in zip(pairs, outcomes, strict=True):
        if isinstance(found, BundleError):
            damage.append(str(found))
            found = Found(None, Verdict(Reason.NOT_COMPARABLE, detail=f"unreadable: {found}"))
        record = pair.golden or pair.candidate
        assert record is not None
        verdict = origins.trace(record, found.verdict)
        rows.append(Row(pair.golden, pair.candidate, verdict, found.metrics, pair.nearest, record.name, found.baseline, found.noise))
    return rows


def _not_run(pair: Pair, run: Collection[tuple[int, int]]) -> Found | None:
    """The outcome for a record of a step that a fed candidate did not run: of a case with an optimizer it runs the first only."""
    if pair.golden is None or (pair.golden.rank, pair.golden.step) in run:
        return None
    return Found(None, Verdict(Reason.NOT_COMPARABLE, detail="a step that was not fed"))


def _without_baseline(rows: list[Row], baselines: dict[Key, Record] | None) -> tuple[list[Row], int]:
    """The rows with both sides that a baseline has no record of, if there is one, and of how many those are."""
    compared = [row for row in rows if row.status is not Status.NOT_COMPARED and row.reason not in UNMATCHED]
    if baselines is None:
        return [], len(compared)
    return [row for row in compared if row.golden is not None and _is_alone(row, baselines)], len(compared)


def _is_alone(row: Row, baselines: dict[Key, Record]) -> bool:
    """Whether a row with both sides was judged without the baseline: it has no such record, or none that tells an error."""
    assert row.golden is not None
    if row.reason is Reason.IDENTICAL:  # which takes no judge
        return False
    if row.golden.key not in baselines:
        return True
    judged = row.baseline is not None or row.reason in (Reason.SHAPE, Reason.DTYPE, Reason.NON_FINITE)
    return not judged and row.golden.dtype in DTYPES and DTYPES[row.golden.dtype].digits > 0


@dataclass
class _Precision:
    """The coarsest floating dtype in which the two sides have differed so far, step by step.

    Values that are the same on both sides bring no rounding error into what follows, and neither do scales, which float8_e8m0fnu is for.
    """

    _coarsest: dict[tuple[int, int], str] = field(default_factory=dict)

    def tolerance_for(self, pair: Pair, rules: Tolerances) -> Tolerance:
        """The limits for the next pair in execution order."""
        records = [record for record in (pair.golden, pair.candidate) if record is not None]
        dtypes = {record.dtype for record in records if DTYPES.get(record.dtype, DTYPES["bool"]).digits}
        step = (records[0].rank, records[0].step)
        before = {self._coarsest[step]} if step in self._coarsest else set()
        if dtypes and not same_bits(pair.golden, pair.candidate):
            self._coarsest[step] = _coarsest_of(before, dtypes - {"float8_e8m0fnu"}) or "float64"
        if pair.golden is None or pair.candidate is None or pair.golden.dtype not in dtypes:
            return EXACT
        return rules.tolerance_for(pair.golden, pair.candidate, _coarsest_of(before, dtypes))


def _coarsest_of(before: set[str], own: set[str]) -> str:
    """The type with the fewest digits; of several, one of the pair's own, and the same in every run."""
    return min(before | own, key=lambda name: (DTYPES[name].digits, name not in own, name), default="")


def _never_called(golden: Bundle, candidate: Bundle, selection: Selection) -> list[Row]:
    """A row for each module that was registered but never called on both sides, or on the only side that has it."""
    sides = [bundle.manifest.model for bundle in (golden, candidate)]
    idle = [set(side.get("not_called") or ()) for side in sides]
    modules = [side.get("modules") or {} for side in sides]
    rows = []
    for name in [*modules[0], *(name for name in modules[1] if name not in modules[0])]:
        where = [side for side, names in zip(("golden", "candidate"), idle, strict=True) if name in names]
        if where and selection.allows(name):
            kind = modules[0].get(name) or modules[1].get(name)
            detail = f"{kind}, never called" if len(where) == 2 else f"{kind}, never called in {where[0]}"
            rows.append(Row(None, None, Verdict(Reason.NOT_CALLED, detail=detail), module=name))
    return rows
