"""The places where errors are made, ranked, and what may be concluded from them.

**Fed.** Every call was given golden's values, so every row over its limit is an error of its own: an output of a module without
children is the module's, one with children its code's after the last child, an input the code of its parent before that child.

**Free-running, with a baseline.** An error is passed on and grows or shrinks on its way as rounding does, so its excess stays about
what it was. It was made where the excess jumps: where it is larger than that of anything that went in.

**Free-running, without one.** All that is known is where limits are first exceeded.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from accucompare.bundle.dtypes import DTYPES, Kind
from accucompare.bundle.reader import Bundle
from accucompare.bundle.records import Record, Role
from accucompare.compare.align import Renaming
from accucompare.compare.baseline import differing
from accucompare.compare.comparison import (
    BEGINS_HERE,
    NOT_ALL_FED,
    STATUS_OF,
    UNMATCHED,
    Answer,
    Comparison,
    Culprit,
    Finding,
    Option,
    Reason,
    Row,
    Status,
)
from accucompare.compare.judge import is_noise
from accucompare.compare.masks import is_masked
from accucompare.compare.operators import blame, is_operator
from accucompare.compare.origins import Call
from accucompare.compare.provenance import other_configuration

#: Excesses within this factor of each other count as equal.
ALIKE = 2.0

#: Free-running: a jump below this is no more than the way in which errors grow and shrink.
SMALLEST_JUMP = 1.5

#: Integers that differ in no more than this share may have been chosen among nearly equal values: such rows come last.
MANY = 0.1

#: Reasons that tell of another structure, not of other numbers: such culprits come after those that show an error.
STRUCTURAL = (Reason.SHAPE, Reason.DTYPE)

#: For how many culprits the error is put into words, and of how many elements at most.
DESCRIBED = 3
MOST_ELEMENTS = 16 << 20

#: The site of what is told of operators.
OPERATOR = "operator"

#: How often the first culprit was the right one among planted faults (`make bench-faults`), as the report says it.
TRUST = {
    "free": "without a baseline, the first layer over tolerance is where the error was made in about half of the cases only",
    "free baseline": "free-running, the first culprit is the right one in about 9 of 10 cases; a fed capture is surer",
}


def find_culprits(comparison: Comparison) -> list[Culprit]:
    """Where errors are made, the most certain first; each site once, with its largest error."""
    rows = [row for row in comparison.rows if not is_operator(row.record)]
    children = {_parent(row.record) for row in rows if row.record is not None and row.record.parent is not None}
    operators = _operators(comparison.rows)
    if comparison.fed:
        found = _ranked([*operators, *(_culprit(row, children) for row in rows if _own_error(row))], _off(rows))
    elif comparison.baseline is not None:
        found = [*_by_jump(rows, children), *operators]
    else:
        found = [*(_culprit(row, children) for row in rows if _own_error(row)), *operators]
        found.sort(key=lambda culprit: culprit.reason in STRUCTURAL and _is_of_glue(culprit))  # else as they come
    return _sites(_differences_first(found))


def _differences_first(culprits: list[Culprit]) -> list[Culprit]:
    """In the same order, but what the two sides run or give differently in a module call before what numbers tell of that call."""
    differences: dict[Call, list[Culprit]] = {}
    for culprit in culprits:
        if culprit.difference is not None:
            differences.setdefault(_of(culprit), []).append(culprit)
    found = []
    for culprit in culprits:
        found += differences.pop(_of(culprit), [])
        if culprit.difference is None:
            found.append(culprit)
    return found


def _of(culprit: Culprit) -> Call:
    record = culprit.row.record
    assert record is not None
    return record.rank, record.step, culprit.name, culprit.call


def _operators(rows: list[Row]) -> list[Culprit]:
    blamed = blame(rows)
    found = []
    for row in rows:
        if id(row) in blamed and _own_error(row) and row.record is not None:
            told, record = blamed[id(row)], row.record
            call = record.parent if record.role is Role.INPUT and record.parent is not None else (record.name, record.call)
            culprit = Culprit(*call, OPERATOR, "", row, _excess(row), row.reason, hints=told.hints, operator=told.operator)
            found.append(replace(culprit, difference=told.difference))
    return found


def _call(record: Record) -> Call:
    return record.rank, record.step, record.name, record.call


def _parent(record: Record) -> Call | None:
    return None if record.parent is None else (record.rank, record.step, *record.parent)


def _own_error(row: Row) -> bool:
    """Whether a row shows an error that was made where it is."""
    if not _may_be_culprit(row):
        return False
    if row.reason is Reason.NON_FINITE:
        return row.verdict.detail.endswith(BEGINS_HERE)
    return row.reason in (Reason.INTRODUCED, Reason.GLUE, Reason.SHAPE, Reason.DTYPE)


def _may_be_culprit(row: Row) -> bool:
    """Whether a row fails by what a module or glue made: not by what the model was given, nor by noise, nor for want of a partner."""
    if row.status is not Status.FAIL or row.reason in UNMATCHED or row.record is None:
        return False
    if row.record.role is Role.INPUT and row.record.parent is None:
        return False
    return row.metrics is None or not is_noise(row.metrics, row.noise)


def _culprit(row: Row, children: set[Call | None], jump: float | None = None) -> Culprit:
    record = row.record
    assert record is not None
    if record.role is Role.COMPUTED_BUFFER:
        return Culprit(record.name, record.call, "buffer", "", row, _excess(row), row.reason, jump=jump)
    if record.role is Role.INPUT:
        assert record.parent is not None
        reason = Reason.GLUE if row.reason is Reason.INHERITED else row.reason
        return Culprit(*record.parent, "glue", record.name, row, _excess(row), reason, jump=jump)
    site = "glue" if _call(record) in children else "module"
    reason = row.reason if row.reason is not Reason.INHERITED else Reason.GLUE if site == "glue" else Reason.INTRODUCED
    return Culprit(record.name, record.call, site, "", row, _excess(row), reason, jump=jump)


def _excess(row: Row) -> float:
    """How many times as large as expected an error is: as the baseline makes it, or else the limit. Other shapes come last."""
    if row.reason in (Reason.SHAPE, Reason.DTYPE):
        return 0.0
    if is_choice(row):
        return math.inf if row.metrics is None or differing(row.metrics) > MANY * row.metrics.compared else 1.0
    if row.verdict.excess is not None:
        return row.verdict.excess
    return row.verdict.used if row.verdict.used is not None else 0.0


def is_choice(row: Row) -> bool:
    """Whether a row is of integers or booleans that differ."""
    return row.status is Status.FAIL and row.golden is not None and row.golden.dtype in DTYPES and not DTYPES[row.golden.dtype].digits


def _off(rows: Iterable[Row]) -> set[Call]:
    """The calls of which an output is over its limit, whatever made it so."""
    failed = (row for row in rows if row.status is Status.FAIL and row.reason not in (*STRUCTURAL, *UNMATCHED))
    return {_call(row.record) for row in failed if row.record is not None and row.record.role is Role.OUTPUT}


def _ranked(culprits: Sequence[Culprit], off: Collection[Call]) -> list[Culprit]:
    """By excess; of about equal ones outputs come before glue, and what is inside before what it is inside of.

    A buffer that the model computes itself comes first: it is wrong before anything runs. Last come another shape or kind of number, and
    what was computed from values that were not fed, and may be wrong for that; of another shape that a call was given, those first
    whose call gives values that are ``off``. What is said of a module comes after what is said of its operators.
    """
    most = max((culprit.size for culprit in culprits if math.isfinite(culprit.size)), default=0.0)

    def key(culprit: Culprit) -> tuple[int, bool, bool, float, bool, int, float]:
        if math.isinf(culprit.size) or not culprit.size:
            apart = -math.inf if culprit.size else math.inf
        else:
            apart = math.floor(math.log(most / culprit.size, ALIKE))
        given = NOT_ALL_FED in culprit.row.verdict.detail
        record = culprit.row.record
        harmless = record is not None and record.role is Role.INPUT and _call(record) not in off
        structure = (culprit.reason in STRUCTURAL) * (1 + harmless) or culprit.row.verdict.beyond
        apart_too = int(structure), given, culprit.site != "buffer"
        return *apart_too, apart, _is_of_glue(culprit), -_depth(culprit.name), -culprit.size

    last: dict[str, tuple[int, bool, bool, float, bool, int, float]] = {}
    for culprit in culprits:
        if culprit.site == OPERATOR:
            last[culprit.name] = max(last.get(culprit.name, key(culprit)), key(culprit))

    def after_operators(culprit: Culprit) -> tuple[tuple[int, bool, bool, float, bool, int, float], bool]:
        own = key(culprit)
        return (own, False) if culprit.site == OPERATOR else (max(own, last.get(culprit.name, own)), True)

    return sorted(culprits, key=after_operators)


def _is_of_glue(culprit: Culprit) -> bool:
    record = culprit.row.record
    return culprit.site == "glue" or (record is not None and record.role is Role.OP_INPUT)


def _depth(name: str) -> int:
    return name.count(".") + bool(name)


def _by_jump(rows: Iterable[Row], children: set[Call | None]) -> list[Culprit]:
    """The rows over their limit, by how many times as large as the excess of what went in theirs is."""
    given: dict[Call, float] = {}  # by call: the largest excess of its inputs, and of its children's outputs
    found = []
    for row in rows:
        record = row.record
        if record is None:
            continue
        call, parent = _call(record), _parent(record)
        source, receiver = (parent, call) if record.role is Role.INPUT else (call, parent)  # whose code made it, and goes on with it
        jump = _jump(row, 1.0 if source is None else max(given.get(source, 0.0), 1.0))
        if _may_be_culprit(row) and jump is not None:
            found.append(_culprit(row, children, jump))
        if receiver is not None and (row.verdict.excess is not None or is_choice(row)):
            # after another choice values may be altogether different, which is no error of what computed them
            given[receiver] = math.inf if is_choice(row) else max(given.get(receiver, 0.0), _excess(row))
    return sorted(found, key=lambda culprit: (culprit.reason in STRUCTURAL, culprit.site != "buffer", -(culprit.jump or 0.0)))


def _jump(row: Row, before: float) -> float | None:
    """How many times as large as the excess of what went in a row's is; ``None`` if its error was passed on."""
    if row.reason in (Reason.SHAPE, Reason.DTYPE):
        return 0.0
    if row.reason is Reason.NON_FINITE:
        return math.inf if row.verdict.detail.endswith(BEGINS_HERE) else None
    if is_choice(row):
        return None if row.reason is Reason.INHERITED else _excess(row)
    jump = 0.0 if math.isinf(before) else _excess(row) / before
    return jump if jump >= SMALLEST_JUMP else None


def _sites(culprits: Iterable[Culprit]) -> list[Culprit]:
    """Each module or place in glue once, as it comes first, with the number of calls that show it."""
    first: dict[tuple[str, ...], Culprit] = {}
    calls: dict[tuple[str, ...], set[tuple[int, int, int]]] = {}
    for culprit in culprits:
        site = culprit.name, culprit.site, culprit.before, culprit.operator, str(culprit.difference)
        record = culprit.row.record
        assert record is not None
        first.setdefault(site, culprit)
        calls.setdefault(site, set()).add((record.rank, record.step, culprit.call))
    return [replace(culprit, seen=len(calls[site])) for site, culprit in first.items()]


def described(culprits: list[Culprit], golden: Bundle, candidate: Bundle, renamings: Sequence[Renaming] = ()) -> list[Culprit]:
    """The same, with what their modules are configured otherwise, and the shape of the first few ones' errors in words.

    Errors as ``Bundle.values``.
    """
    configured: dict[str, list[Option]] = {}
    for name, key, ours, theirs in other_configuration(golden.manifest, candidate.manifest, renamings):
        configured.setdefault(name, []).append(Option(key, repr(ours), repr(theirs)))
    told = [replace(culprit, configured=tuple(configured.get(culprit.name, ()))) for culprit in culprits]
    return [_in_words(culprit, golden, candidate) for culprit in told[:DESCRIBED]] + told[DESCRIBED:]


def _in_words(culprit: Culprit, golden: Bundle, candidate: Bundle) -> Culprit:
    ours, theirs = culprit.row.golden, culprit.row.candidate
    if different := _different(culprit.row):
        return replace(culprit, words=(different,))
    if ours is None or theirs is None or None in (ours.member, theirs.member) or ours.shape != theirs.shape:
        return culprit
    if math.prod(ours.shape) > MOST_ELEMENTS or {DTYPES[record.dtype].kind for record in (ours, theirs)} != {Kind.FLOAT}:
        return culprit
    from accucompare.compare.patterns import describe_error

    values = [bundle.values(record).astype(np.float64) for bundle, record in ((golden, ours), (candidate, theirs))]
    masked = is_masked(values[0], DTYPES[ours.dtype]) & is_masked(values[1], DTYPES[theirs.dtype])
    shape = describe_error(*(np.where(masked, -np.inf, side) for side in values), dtype=theirs.dtype)  # masks are equal
    return replace(culprit, words=shape.words, hints=(*culprit.hints, *shape.hints))


def _different(row: Row) -> str:
    """``3 of 1000 differ``, of integers and booleans; else ``""``."""
    metrics = row.metrics
    return f"{differing(metrics)} of {metrics.compared} differ" if is_choice(row) and metrics is not None and differing(metrics) else ""


def trust(comparison: Comparison) -> str:
    """How far the first culprit can be trusted, where that must be said."""
    if comparison.fed or not comparison.culprits:
        return ""
    return TRUST["free" if comparison.baseline is None else "free baseline"]


def conclude(comparison: Comparison) -> tuple[Answer, str]:
    """The answer, and the conclusion in words; see ``Comparison.conclusion``."""
    if comparison.trouble or comparison.poor_baseline:
        return Answer.NOT_SURE, comparison.trouble or comparison.poor_baseline
    if 2 * comparison.without_baseline > comparison.compared:
        judged = comparison.compared - comparison.without_baseline
        return Answer.NOT_SURE, f"the baseline judges {judged} of {comparison.compared} compared rows only"
    answer, words = _concluded(comparison)
    return answer, "; ".join([words, *_not_looked_at(comparison)]) if answer in (Answer.IDENTICAL, Answer.ROUNDING) else words


def _not_looked_at(comparison: Comparison) -> Iterator[str]:
    """What an all-clear does not cover."""
    sides = comparison.golden.manifest, comparison.candidate.manifest
    if any(manifest.capture.get("loss") for manifest in sides):
        yield "forward only: the case has a loss, of which no gradient was compared"
    if replaced := comparison.candidate.manifest.capture.get("replaced") or []:
        more = ", …" if len(replaced) > 1 else ""
        yield f"{len(replaced)} of the case's own weights were not golden's, and were replaced by them ({replaced[0]}{more})"
    if configured := [finding.message for finding in comparison.preflight if finding.topic == "configuration"]:
        yield f"configured otherwise: {configured[0]}" + (f", and {len(configured) - 1} more" if len(configured) > 1 else "")
    counts = [len(manifest.steps) for manifest in sides]
    if counts[0] != counts[1]:
        yield f"{min(counts)} of {max(counts)} steps"
    not_compared = (row.reason is Reason.NOT_COMPARABLE and not is_operator(row.record) for row in comparison.rows)
    if uncompared := sum(not_compared):
        yield f"{uncompared} of {len(comparison.rows)} rows could not be compared"
    if comparison.by_statistics and comparison.baseline is not None:
        yield f"{comparison.by_statistics} rows judged by statistics alone"
    if alone := comparison.without_baseline:
        yield f"{alone} row{'s' if alone > 1 else ''} judged without the baseline"


def _concluded(comparison: Comparison) -> tuple[Answer, str]:
    counts = comparison.counts()
    if not comparison.counts_by_status()[Status.FAIL]:
        return _without_failure(comparison)
    different = _given_differently(comparison.preflight) or (counts[Reason.INPUTS_DIFFER] and "the two models were given different inputs")
    if different:
        return Answer.NOT_SURE, different
    beyond = [row for row in comparison.rows if row.verdict.beyond]
    if beyond and all(culprit.row.verdict.beyond or culprit.reason in STRUCTURAL for culprit in comparison.culprits):
        error = "" if beyond[0].metrics is None else f" by rel_l2 {beyond[0].metrics.rel_l2:.3g}"
        where = comparison.place(beyond[0])
        return Answer.NOT_SURE, f"{where} is off{error}, far beyond rounding, and so is the baseline: it may have the fault too"
    if not comparison.culprits:
        reasons = ", ".join(f"{count} {reason.value}" for reason, count in counts.items() if STATUS_OF[reason] is Status.FAIL)
        return Answer.NOT_SURE, f"no place shows an error of its own ({reasons})"
    culprit = comparison.culprits[0]
    first = _named(comparison, culprit)
    if not comparison.fed and comparison.baseline is None:
        return Answer.NOT_SURE, f"{first} is the first over tolerance; {TRUST['free']}"
    if culprit.reason in STRUCTURAL and _is_of_glue(culprit):
        return Answer.NOT_SURE, f"{first}; no value after it shows an error of its own"
    named = "; and ".join(_named(comparison, culprit) for culprit in comparison.culprits[: 2 if comparison.fed else 1])
    more = len(comparison.culprits) - 2
    words = named + (f"; and {more} more" if comparison.fed and more > 0 else "")
    return Answer.BUG, words + (f"; by fixed limits, since {comparison.refused}" if comparison.refused is not None else "")


def _without_failure(comparison: Comparison) -> tuple[Answer, str]:
    counts = comparison.counts()
    precise = [row for row in comparison.rows if row.reason is Reason.OVER_PRECISE]
    if not comparison.compared - counts[Reason.IDENTICAL]:
        return Answer.IDENTICAL, "identical"
    words = "rounding" if comparison.baseline is not None else "rounding, as far as fixed limits tell"
    return Answer.ROUNDING, words + (f"; {len(precise)} over-precise, the first {comparison.place(precise[0])}" if precise else "")


def _given_differently(findings: Iterable[Finding]) -> str:
    """What pre-flight found of weights and inputs, which alone explains any difference."""
    topics = ("parameters", "buffers", "inputs")
    return next((each.message for each in findings if each.serious and not each.of_baseline and each.topic.startswith(topics)), "")


def _named(comparison: Comparison, culprit: Culprit) -> str:
    record = culprit.row.record
    assert record is not None
    several = any(len(side.manifest.steps) > 1 for side in (comparison.golden, comparison.candidate))
    step = f" in step {record.step}" if several else ""
    metrics = culprit.row.metrics
    if culprit.buffer and metrics is not None and metrics.max_rel is not None:
        return f"the model computes another {culprit.buffer}: max rel diff {metrics.max_rel:.3g}"
    if culprit.reason in (*STRUCTURAL, Reason.NON_FINITE):
        return f"{culprit.place}{step}, {culprit.reason.value}"
    if different := _different(culprit.row):
        return f"{culprit.place}{step}, {different}"
    beyond = "excess" if culprit.excess is not None else "times its limit:"
    return f"{culprit.place}{step}, {beyond} {culprit.size:.3g}"
