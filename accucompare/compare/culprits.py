"""The sites where errors are made, ranked.

**Fed.** Every call was given golden's values, so every row over its limit shows an error of its own. An output of a module without
children is the module's error, an output of one with children that of its own code after the last child, and an input that of the
parent's code before the child.

**Free-running, with a baseline.** An error is passed on and grows or shrinks on its way as rounding does, so its excess stays about
the same. It was made where the excess jumps: where it is larger than that of anything that went in.

**Free-running, without a baseline.** All that is known is where limits are first exceeded.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from accucompare.bundle.reader import Bundle
from accucompare.bundle.records import GRADIENT_ROLES, SERIES_ROLES, TRAINING_ROLES, UPDATE_ROLES, Record, Role
from accucompare.compare.align import Renaming
from accucompare.compare.baseline import differing
from accucompare.compare.judge import is_noise
from accucompare.compare.masks import is_masked, may_hold_masks
from accucompare.compare.operator_rows import blame, is_operator
from accucompare.compare.provenance import other_configuration
from accucompare.compare.reasons import Call, call_of, caller_of
from accucompare.compare.rows import UNMATCHED, Option, Reason, Row, Status
from accucompare.compare.sample import Sample
from accucompare.compare.scaled import find_scaled
from accucompare.compare.sites import Culprit, Stage
from accucompare.compare.tolerance import CLEAR
from accucompare.compare.training import parameter_of
from accucompare.compare.written import is_buffer, one_sided_writes, owner_of
from accucompare.numbers.dtypes import DTYPES, Kind, widen
from accucompare.numbers.sums import Float64

#: Excesses within this factor of each other count as equal.
ALIKE = 2.0

#: Free-running: a smaller jump may come from the way in which errors grow and shrink.
SMALLEST_JUMP = 1.5

#: If a smaller share of integers differs, they may have been chosen among nearly equal values. Such rows come last.
MANY = 0.1

#: Reasons of another structure, not of other numbers. Such culprits come after those that show an error.
STRUCTURAL = (Reason.SHAPE, Reason.DTYPE)

#: The number of culprits whose error is described, the most elements that are read for that, and the size of a sample of larger tensors.
DESCRIBED = 3
MOST_ELEMENTS = 16 << 20
SAMPLED = 4 << 20

#: The site of an operator's culprit.
OPERATOR = "operator"


def find_culprits(all_rows: list[Row], fed: bool, has_baseline: bool, updated: bool = False) -> list[Culprit]:
    """Where errors are made, the most certain first; each site once, with its largest error, or where steps train its first step's.

    Args:
        all_rows: of the comparison, in execution order.
        fed: whether each module call was given golden's values.
        has_baseline: whether errors were judged by a baseline.
        updated: whether the steps made updates, so that a step goes on with what the one before it made.
    """
    rows = _with_effect([row for row in all_rows if not is_operator(row.record)])
    children = {caller_of(row.record) for row in rows if row.record is not None and row.record.parent is not None}
    operators = _operators(all_rows) if len(rows) < len(all_rows) else []
    written = {id(row) for row in one_sided_writes(rows)}
    own = [row for row in rows if id(row) in written or _own_error(row)]
    if fed:
        culprits = _ranked([*operators, *(_culprit(row, children) for row in own)], _off(rows))
    elif has_baseline:
        of_series = (_culprit(row, children) for row in own if _is_of_series(row))
        of_writes = (_culprit(row, children) for row in own if id(row) in written)
        culprits = [*of_series, *_by_jump(rows, children), *operators, *of_writes]
    else:
        culprits = [*(_culprit(row, children) for row in own), *operators]
        culprits.sort(key=lambda culprit: culprit.reason in STRUCTURAL and is_of_glue(culprit))  # otherwise in execution order
    culprits = _where_cut(_of_one_update(culprits, rows), rows, children)
    if updated and (fed or has_baseline):
        culprits = _first_in_time(culprits)
    return _sites(_differences_first(culprits))


def _of_one_update(culprits: list[Culprit], rows: Iterable[Row]) -> list[Culprit]:
    """The culprits, but one for an update that only one side has made; of one parameter's alone, what the update has made of it."""
    kept: dict[tuple[int, int, int], set[str]] = {}  # by update: the parameters that both sides, or one alone, have updated
    alone: dict[tuple[int, int, int], set[str]] = {}
    for row in rows:
        if row.record is not None and row.record.role is Role.PARAM_UPDATE:
            found = alone if row.reason in UNMATCHED else kept
            found.setdefault(_update_of(row.record), set()).add(parameter_of(row.record))
    told: set[tuple[int, int, int]] = set()
    left = []
    for culprit in culprits:
        record = culprit.row.record
        if record is None or not culprit.row.lost or record.role not in (Role.PARAM_GRAD, Role.PARAM_UPDATE):
            left.append(culprit)
            continue
        update = _update_of(record)
        none_left = update in alone and update not in kept
        if none_left and update not in told:
            told.add(update)
            left.append(replace(culprit, name="", whole=True))
        elif not none_left and not (record.role is Role.PARAM_GRAD and parameter_of(record) in alone.get(update, ())):
            left.append(culprit)
    return left


def _update_of(record: Record) -> tuple[int, int, int]:
    return record.rank, record.step, record.call


def _where_cut(culprits: list[Culprit], rows: Iterable[Row], children: set[Call | None]) -> list[Culprit]:
    """The culprits; of a gradient that is lost since autograd follows a value of the forward on one side only, where it first does not.

    A step of which autograd follows nothing, as an older bundle's, says nothing of that.
    """
    cuts: dict[tuple[int, int], Row] = {}
    followed: dict[tuple[int, int], list[bool]] = {}
    for row in rows:
        if row.golden is None or row.candidate is None or row.golden.role not in (Role.INPUT, Role.OUTPUT):
            continue
        step, sides = (row.golden.rank, row.golden.step), (row.golden.requires_grad, row.candidate.requires_grad)
        followed[step] = [before or now for before, now in zip(followed.get(step, sides), sides, strict=True)]
        if sides[0] is not sides[1]:
            cuts.setdefault(step, row)
    return [_cut(culprit, cuts, followed, children) for culprit in culprits]


def _cut(
    culprit: Culprit, cuts: dict[tuple[int, int], Row], followed: dict[tuple[int, int], list[bool]], children: set[Call | None]
) -> Culprit:
    record = culprit.row.record
    if record is None or not culprit.row.lost or record.role not in (Role.GRAD_OUTPUT, Role.GRAD_INPUT):
        return culprit
    cut = cuts.get((record.rank, record.step))
    if cut is None or cut.record is None or not all(followed[record.rank, record.step]):
        return culprit
    if cut.record.role is Role.INPUT and cut.record.parent is None:  # the model's own input
        return culprit
    place = _culprit(cut, children)
    return replace(culprit, name=place.name, call=place.call, site=place.site, before=place.before, cut=True)


def _with_effect(rows: list[Row]) -> list[Row]:
    """The rows without those of gradients that only one side has, where that does no harm: nothing else in their step is off.

    And of a tensor that a call and one inside it both return, the gradient is lost behind the outer one.
    """
    harmed: set[tuple[int, int]] = set()
    alone: set[Call | None] = set()  # calls at whose outputs a gradient arrives on one side only
    for row in rows:
        record = row.record
        if row.status is not Status.FAIL or record is None:
            continue
        if row.reason not in UNMATCHED or record.role in UPDATE_ROLES:
            harmed.add((record.rank, record.step))
        elif record.role is Role.GRAD_OUTPUT:
            alone.add(call_of(record))

    def counts(row: Row) -> bool:
        record = row.record
        if not row.lost or record is None:
            return True
        return (record.rank, record.step) in harmed and not (record.role is Role.GRAD_OUTPUT and caller_of(record) in alone)

    return [row for row in rows if counts(row)]


def _first_in_time(culprits: list[Culprit]) -> list[Culprit]:
    """The same order within each step, but the first step with a clear error comes first, and the later ones after it.

    Errors of the steps before it, none of which is clear, come last.
    """
    first = min((_step(culprit) for culprit in culprits if _is_clear(culprit)), default=0)
    return sorted(culprits, key=lambda culprit: (_step(culprit) < first, _step(culprit)))


def _is_clear(culprit: Culprit) -> bool:
    """Whether nothing but an error that was made there explains it."""
    verdict = culprit.row.verdict
    if culprit.reason in STRUCTURAL or verdict.beyond or verdict.not_all_fed:
        return False
    if is_choice(culprit.row):
        return math.isinf(culprit.size)
    return culprit.over_limit is None or culprit.over_limit >= CLEAR


def _differences_first(culprits: list[Culprit]) -> list[Culprit]:
    """The same order, but within each module call the culprits with a difference between the two sides' code come first."""
    differences: dict[Call, list[Culprit]] = {}
    for culprit in culprits:
        if culprit.difference is not None:
            differences.setdefault(_of(culprit), []).append(culprit)
    ordered = []
    for culprit in culprits:
        ordered += differences.pop(_of(culprit), [])
        if culprit.difference is None:
            ordered.append(culprit)
    return ordered


def _of(culprit: Culprit) -> Call:
    record = culprit.row.record
    assert record is not None
    return record.rank, record.step, culprit.name, culprit.call


def _operators(rows: list[Row]) -> list[Culprit]:
    by_row = blame(rows)
    culprits = []
    for row in rows:
        if id(row) in by_row and _own_error(row) and row.record is not None:
            blamed, record = by_row[id(row)], row.record
            call = record.parent if record.role is Role.INPUT and record.parent is not None else (record.name, record.call)
            culprit = Culprit(*call, OPERATOR, "", row, _excess(row), row.reason, hints=blamed.hints, operator=blamed.operator)
            culprits.append(replace(culprit, difference=blamed.difference))
    return culprits


def _own_error(row: Row) -> bool:
    """Whether a row shows an error that was made there."""
    if not _may_be_culprit(row):
        return False
    if row.reason is Reason.NON_FINITE or row.lost:
        return row.verdict.begins
    return row.reason in (Reason.INTRODUCED, Reason.GLUE, Reason.SHAPE, Reason.DTYPE)


def _may_be_culprit(row: Row) -> bool:
    """Whether a row fails because of a module or glue: not because of the model's inputs, noise, or a record that only one side made."""
    if row.status is not Status.FAIL or (row.reason in UNMATCHED and not row.lost) or row.record is None:
        return False
    if row.record.role is Role.INPUT and row.record.parent is None:
        return False
    return row.metrics is None or not is_noise(row.metrics, row.noise)


def _is_of_series(row: Row) -> bool:
    return row.record is not None and row.record.role in SERIES_ROLES


def _culprit(row: Row, children: set[Call | None], jump: float | None = None) -> Culprit:
    record = row.record
    assert record is not None
    if record.role is Role.COMPUTED_BUFFER:
        return Culprit(record.name, record.call, "buffer", "", row, _excess(row), row.reason, jump=jump)
    if is_buffer(record):
        return Culprit(record.name, record.call, "module", "", row, _excess(row), row.reason, jump=jump)
    if record.role is Role.INPUT:
        assert record.parent is not None
        reason = Reason.GLUE if row.reason is Reason.INHERITED else row.reason
        return Culprit(*record.parent, "glue", record.name, row, _excess(row), reason, jump=jump)
    if record.role is Role.GRAD_OUTPUT:
        site, parent, before = ("glue", record.parent, record.name) if record.parent is not None else ("module", ("", 0), "")
        return Culprit(*parent, site, before, row, _excess(row), row.reason, jump=jump)
    if record.role in (*UPDATE_ROLES, *SERIES_ROLES):
        return Culprit(record.name, record.call, "module", "", row, _excess(row), row.reason, jump=jump)
    site = "glue" if call_of(record) in children else "module"
    reason = row.reason if row.reason is not Reason.INHERITED else Reason.GLUE if site == "glue" else Reason.INTRODUCED
    return Culprit(record.name, record.call, site, "", row, _excess(row), reason, jump=jump)


def _excess(row: Row) -> float:
    """An error as a multiple of the baseline's, or else of its limit. Other shapes come last."""
    if row.lost:
        return math.inf
    if row.reason in (Reason.SHAPE, Reason.DTYPE):
        return 0.0
    if are_masks(row):
        return math.inf
    if is_choice(row):
        return math.inf if row.metrics is None or differing(row.metrics) > MANY * row.metrics.compared else 1.0
    if row.verdict.excess is not None:
        return row.verdict.excess
    return row.verdict.used if row.verdict.used is not None else 0.0


def is_choice(row: Row) -> bool:
    """Whether a row is of integers or booleans that differ, or of masks that let through other positions."""
    if row.status is not Status.FAIL or row.golden is None or row.golden.dtype not in DTYPES:
        return False
    return not DTYPES[row.golden.dtype].digits or are_masks(row)


def are_masks(row: Row) -> bool:
    """Whether a row is of masks of two kinds, which were measured by what they let through."""
    return row.golden is not None and row.candidate is not None and row.metrics is not None and _of_two_kinds(row.golden, row.candidate)


def _of_two_kinds(golden: Record, candidate: Record) -> bool:
    both = golden.dtype in DTYPES and candidate.dtype in DTYPES
    return both and DTYPES[golden.dtype].kind is not DTYPES[candidate.dtype].kind


def _off(rows: Iterable[Row]) -> set[Call]:
    """The calls with an output over its limit, for whatever reason."""
    failed = (row for row in rows if row.status is Status.FAIL and row.reason not in (*STRUCTURAL, *UNMATCHED))
    return {call_of(row.record) for row in failed if row.record is not None and row.record.role is Role.OUTPUT}


def _ranked(culprits: Sequence[Culprit], off: Collection[Call]) -> list[Culprit]:
    """Ranked by excess. Of about equal ones outputs come before glue, and a module before the modules that contain it.

    A buffer that the model computes itself comes first, since it is wrong before anything runs. Last come another shape or kind of
    number, and what was computed from values that were not fed, which may be the cause. Of inputs of another shape, those come first
    whose call gives values that are ``off``. A module's culprit comes after those of its operators.
    """
    most = max((culprit.size for culprit in culprits if math.isfinite(culprit.size)), default=0.0)

    def key(culprit: Culprit) -> tuple[int, bool, bool, int, float, bool, int, float]:
        if math.isinf(culprit.size) or not culprit.size:
            apart = -math.inf if culprit.size else math.inf
        else:
            apart = math.floor(math.log(most / culprit.size, ALIKE))
        not_all_fed = culprit.row.verdict.not_all_fed
        record = culprit.row.record
        harmless = record is not None and record.role is Role.INPUT and call_of(record) not in off
        structure = (culprit.reason in STRUCTURAL) * (1 + harmless) or culprit.row.verdict.beyond
        depth = culprit.name.count(".") + bool(culprit.name)
        late = (Stage.BETWEEN, Stage.FORWARD, Stage.LOSS, Stage.BACKWARD, Stage.UPDATE).index(culprit.stage)
        return int(structure), not_all_fed, culprit.site != "buffer", late, apart, is_of_glue(culprit), -depth, -culprit.size

    last: dict[str, tuple[int, bool, bool, int, float, bool, int, float]] = {}
    for culprit in culprits:
        if culprit.site == OPERATOR:
            last[culprit.name] = max(last.get(culprit.name, key(culprit)), key(culprit))

    def after_operators(culprit: Culprit) -> tuple[tuple[int, bool, bool, int, float, bool, int, float], bool]:
        own = key(culprit)
        return (own, False) if culprit.site == OPERATOR else (max(own, last.get(culprit.name, own)), True)

    return sorted(culprits, key=after_operators)


def is_of_glue(culprit: Culprit) -> bool:
    record = culprit.row.record
    return culprit.site == "glue" or (record is not None and record.role is Role.OP_INPUT)


def _by_jump(rows: Iterable[Row], children: set[Call | None]) -> list[Culprit]:
    """The rows over their limit, ranked by their excess as a multiple of that of what went in."""
    incoming: dict[Call, float] = {}  # by call: the largest excess of its inputs, and of its children's outputs
    buffers: dict[tuple[int, str], float] = {}  # by rank and module: the largest excess of its buffers until now
    culprits = []
    for row in rows:
        record = row.record
        if record is None:
            continue
        if record.role in (*TRAINING_ROLES, *SERIES_ROLES):
            continue
        if is_buffer(record):
            place = record.rank, owner_of(record)
            went_in = max(incoming.get(call_of(record), 0.0), buffers.get(place, 0.0), 1.0)
            made = _jump(row, went_in) if row.reason is not Reason.INHERITED or record.role is Role.BUFFER_UPDATE else None
            if _may_be_culprit(row) and made is not None:
                culprits.append(_culprit(row, children, made))
            buffers[place] = math.inf if is_choice(row) else max(buffers.get(place, 0.0), _excess(row))
            continue
        call, parent = call_of(record), caller_of(record)
        source, receiver = (parent, call) if record.role is Role.INPUT else (call, parent)  # whose code made it, and goes on with it
        went_in = 1.0 if source is None else max(incoming.get(source, 0.0), buffers.get((source[0], source[2]), 0.0), 1.0)
        jump = _jump(row, went_in)
        if _may_be_culprit(row) and jump is not None:
            culprits.append(_culprit(row, children, jump))
        if receiver is not None and (row.verdict.excess is not None or is_choice(row)):
            # after another choice values may be entirely different, which is no error of the code that computed them
            incoming[receiver] = math.inf if is_choice(row) else max(incoming.get(receiver, 0.0), _excess(row))
    culprits.sort(key=lambda culprit: (culprit.reason in STRUCTURAL, culprit.site != "buffer", -(culprit.jump or 0.0)))
    backward = sorted(_by_jump_backwards(rows, children), key=lambda culprit: (_step(culprit), -(culprit.jump or 0.0), _behind(culprit)))
    begun = _step(backward[0]) if backward else math.inf
    # a step after that has weights which wrong gradients made
    kept = [culprit for culprit in culprits if _step(culprit) <= begun]
    changed = [culprit for culprit in backward if culprit.stage is Stage.BETWEEN and _step(culprit) <= begun]
    return [*changed, *kept] or backward


def _step(culprit: Culprit) -> int:
    assert culprit.row.record is not None
    return culprit.row.record.step


def _behind(culprit: Culprit) -> bool:
    """Whether a backward has the loss before it: the gradient that arrives from there may be that of the last module inside, too."""
    return culprit.stage is not Stage.LOSS


def _by_jump_backwards(rows: Iterable[Row], children: set[Call | None]) -> Iterator[Culprit]:
    """The same for the backward, in which errors go from the outputs to the inputs."""
    incoming: dict[Call | None, float] = {}  # by call: the largest excess of what arrived at its outputs, and of its children's gradients
    parameters: dict[tuple[int, int, str], float] = {}
    for row in rows:
        record = row.record
        if record is None or not (record.role in (*GRADIENT_ROLES, Role.PARAM_GRAD) or row.lost):
            continue
        call, parent = call_of(record), caller_of(record)
        arrives, part = record.role is Role.GRAD_OUTPUT, (record.rank, record.step, parameter_of(record))
        before = parameters.get(part, 1.0) if record.role is Role.PARAM_GRAD else incoming.get(parent if arrives else call, 1.0)
        jump = _jump(row, max(before, 1.0))
        if _may_be_culprit(row) and jump is not None:
            yield _culprit(row, children, jump)
        if row.verdict.excess is not None:
            if record.role is Role.CALL_GRAD:
                parameters[part] = max(parameters.get(part, 0.0), _excess(row))
            elif record.role is not Role.PARAM_GRAD:
                receiver = call if arrives else parent
                incoming[receiver] = max(incoming.get(receiver, 0.0), _excess(row))


def _jump(row: Row, before: float) -> float | None:
    """A row's excess as a multiple of that of what went in; ``None`` if its error was passed on."""
    if row.reason in (Reason.SHAPE, Reason.DTYPE):
        return 0.0
    if row.reason is Reason.NON_FINITE or row.lost:
        return math.inf if row.verdict.begins else None
    if is_choice(row):
        return None if row.reason is Reason.INHERITED else _excess(row)
    jump = 0.0 if math.isinf(before) else _excess(row) / before
    return jump if jump >= SMALLEST_JUMP else None


def scaled_first(culprits: list[Culprit], rows: Iterable[Row], fed: bool, updated: bool = False) -> list[Culprit]:
    """The culprits, but if all gradients are golden's times one number, one culprit for that in place of one for each gradient.

    Free-running, what comes after that step has it from there. ``updated`` as for ``find_culprits``: it comes first in its step only.
    """
    scaled = find_scaled(rows)
    if scaled is None:
        return culprits
    row = scaled.row
    first = Culprit("", 0, "module", "", row, _excess(row), row.reason, (scaled.words,), (scaled.hint,), scaled=scaled)

    def shows_it(culprit: Culprit) -> bool:
        record = culprit.row.record
        if record is None or record.role not in TRAINING_ROLES:
            return False
        return scaled.holds(culprit.row) or (not fed and record.step >= scaled.step)

    found = [first, *(culprit for culprit in culprits if not shows_it(culprit))]
    return _first_in_time(found) if updated else found


def _sites(culprits: Iterable[Culprit]) -> list[Culprit]:
    """Each site once, with its first culprit and the number of calls that show it."""
    first: dict[tuple[str, ...], Culprit] = {}
    calls: dict[tuple[str, ...], set[tuple[int, int, int]]] = {}
    for culprit in culprits:
        record = culprit.row.record
        assert record is not None
        number = record.role.value if record.role in SERIES_ROLES else ""  # the loss's value is not its backward
        site = culprit.name, culprit.site, culprit.before, culprit.operator, str(culprit.difference), culprit.stage.value, number
        first.setdefault(site, culprit)
        calls.setdefault(site, set()).add((record.rank, record.step, culprit.call))
    return [replace(culprit, seen=len(calls[site])) for site, culprit in first.items()]


def described(culprits: list[Culprit], golden: Bundle, candidate: Bundle, renamings: Sequence[Renaming] = ()) -> list[Culprit]:
    """The same culprits, with the settings in which their modules differ, and the first few ones' errors described in words.

    Errors as ``Bundle.values``.
    """
    configured: dict[str, list[Option]] = {}
    for name, key, ours, theirs in other_configuration(golden.manifest, candidate.manifest, renamings):
        configured.setdefault(name, []).append(Option(key, repr(ours), repr(theirs)))
    culprits = [replace(culprit, configured=tuple(configured.get(culprit.name, ()))) for culprit in culprits]
    return [_in_words(culprit, golden, candidate) for culprit in culprits[:DESCRIBED]] + culprits[DESCRIBED:]


def _in_words(culprit: Culprit, golden: Bundle, candidate: Bundle) -> Culprit:
    ours, theirs = culprit.row.golden, culprit.row.candidate
    if culprit.scaled is not None:
        return culprit
    if different := different_values(culprit.row):
        return replace(culprit, words=(different,))
    if ours is None or theirs is None or None in (ours.member, theirs.member) or ours.shape != theirs.shape:
        return culprit
    if {DTYPES[record.dtype].kind for record in (ours, theirs)} != {Kind.FLOAT}:
        return culprit
    from accucompare.compare.patterns import describe_error

    sample = None
    if math.prod(ours.shape) > MOST_ELEMENTS:
        metrics = culprit.row.metrics
        worst = None if metrics is None else metrics.nonfinite_index or metrics.max_abs_index
        sample = Sample.of(ours.shape, SAMPLED, worst or (0,) * len(ours.shape))
    values = [_values(bundle, record, sample) for bundle, record in ((golden, ours), (candidate, theirs))]
    if all(may_hold_masks(DTYPES[record.dtype], record.statistics) for record in (ours, theirs)):
        masked = is_masked(values[0], DTYPES[ours.dtype]) & is_masked(values[1], DTYPES[theirs.dtype])
        for side in values:
            side[masked] = -np.inf  # masks are equal
    normalised = ours.role is Role.OUTPUT and "Norm" in ours.type
    shape = describe_error(*values, dtype=theirs.dtype, sample=sample, normalised=normalised)
    hints = shape.hints if culprit.stage is Stage.FORWARD and not is_buffer(ours) else ()  # hints are about what a forward gives
    return replace(culprit, words=shape.words, hints=(*culprit.hints, *hints))


@np.errstate(invalid="ignore")  # a signalling NaN is a value like any other here
def _values(bundle: Bundle, record: Record, sample: Sample | None) -> Float64:
    """A record's values, or those of a sample; only these are read."""
    if sample is None:
        return bundle.values(record).astype(np.float64)
    dtype = DTYPES[record.dtype]
    return widen(bundle.stored(record).part(sample.slices), dtype).astype(np.float64)  # it was verified when it was measured


def different_values(row: Row) -> str:
    """``3 of 1000 differ``, of integers, booleans and masks; else ``""``."""
    metrics = row.metrics
    if metrics is not None and differing(metrics) and are_masks(row):
        return f"a mask that lets through other positions: {differing(metrics)} of {metrics.elements} differ"
    return f"{differing(metrics)} of {metrics.compared} differ" if is_choice(row) and metrics is not None and differing(metrics) else ""
