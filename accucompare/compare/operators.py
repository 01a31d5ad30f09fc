"""What is said of operators, which were recorded inside the modules that a capture of level op chose.

They say more of where in a module's own code an error is made, and never less: an operator without partner fails nothing, for another
device may compose the same of others; and a number or a string given to one is no error by itself, since what comes of it shows in
its output.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from accucompare.bundle.records import OPERATOR_ROLES, Layout, Record, Role
from accucompare.compare.comparison import BEGINS_HERE, Reason, Row, Status, Verdict

#: An operator of a module call: (rank, step, name, call index, operator, number).
Operator = tuple[int, int, str, int, str, int]

ONLY_GOLDEN = "only golden runs this operator here"
ONLY_CANDIDATE = "only the candidate runs this operator here"
_GIVES = "golden gives "


def is_operator(record: Record | None) -> bool:
    return record is not None and record.role in OPERATOR_ROLES


def operator_of(record: Record) -> Operator:
    return (record.rank, record.step, record.name, record.call, *record.operator)


def without_partner(golden: Record | None) -> Verdict:
    """The verdict on an operator's record that only one side has."""
    return Verdict(Reason.NOT_COMPARABLE, detail=ONLY_CANDIDATE if golden is None else ONLY_GOLDEN)


def is_option(golden: Record, candidate: Record) -> bool:
    """Whether a pair is of numbers or strings given to an operator."""
    layouts = {golden.layout, candidate.layout}
    return golden.role is Role.OP_INPUT and bool(layouts & {Layout.SCALAR, Layout.OPAQUE})


def options_differ(golden: str, candidate: str) -> Verdict:
    """The verdict on them, where they differ."""
    return Verdict(Reason.NOT_COMPARABLE, detail=f"{_GIVES}{golden}, the candidate {candidate}")


@dataclass
class OperatorOrigins:
    """Where the errors of operators come from, told row by row in execution order.

    Attributes:
        fed: whether every operator was given golden's values, but for what could not be fed.
        not_fed: those operators that kept what they had been given.
    """

    fed: bool
    not_fed: frozenset[Operator] = frozenset()
    _over: set[Operator] = field(default_factory=set)  # an input is over its limit
    _calls_over: set[tuple[int, int, str, int]] = field(default_factory=set)  # something that an operator gave is

    def trace(self, record: Record, verdict: Verdict, inherited: bool) -> Verdict:
        """The verdict with its reason made exact; ``inherited``: whether what went into the module call was over its limit already."""
        operator, call = operator_of(record), operator_of(record)[:4]
        if verdict.status is not Status.FAIL:
            return verdict
        unfed = not self.fed or operator in self.not_fed
        if record.role is Role.OP_INPUT:
            before = inherited or call in self._calls_over
            reason = Reason.GLUE
            if unfed:
                self._over.add(operator)
        else:
            before = operator in self._over
            reason = Reason.INTRODUCED
            if unfed:
                self._calls_over.add(call)
        if verdict.reason is Reason.INTRODUCED:
            return replace(verdict, reason=Reason.INHERITED if before else reason)
        if verdict.reason is Reason.NON_FINITE and not before:
            return replace(verdict, detail=f"{verdict.detail}; {BEGINS_HERE}" if verdict.detail else BEGINS_HERE)
        return verdict


def not_fed_operators(rank: int, entries: Iterable[dict[str, object]]) -> set[Operator]:
    """The operators of a fed capture's list of what was not fed."""
    found = set()
    for entry in entries:
        name, _, rest = str(entry.get("path", "")).partition("#")
        number = rest.partition(".")[0]
        if entry.get("role") in list(OPERATOR_ROLES) and number.isdecimal():
            found.add((rank, _number(entry.get("step")), str(entry.get("name", "")), _number(entry.get("call")), name, int(number)))
    return found


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


@dataclass(frozen=True)
class Blame:
    """Which operator an operator's row tells against.

    Attributes:
        operator: in words, with its source line.
        hints: what the two sides give it or run before it that is not the same.
    """

    operator: str
    hints: tuple[str, ...] = ()


def blame(rows: list[Row]) -> dict[int, Blame]:
    """For each failing row of an operator, by its ``id``, which operator made the error.

    An output is its operator's own. What goes into one was made by views and casts, which are not recorded, or by the operators that run
    just before on one side only.
    """
    options: dict[Operator, list[str]] = {}
    alone: dict[tuple[int, int, str, int], list[Row]] = {}  # by module call: operators without partner since the last that had one
    found: dict[int, Blame] = {}
    for row in rows:
        record = row.record
        if record is None or not is_operator(record):
            continue
        operator = operator_of(record)
        if row.golden is None or row.candidate is None:
            if record.role is Role.OP_OUTPUT:
                alone.setdefault(operator[:4], []).append(row)
            continue
        if row.verdict.detail.startswith(_GIVES):
            options.setdefault(operator, []).append(f"{_within(record)}: {row.verdict.detail}")
        if row.status is Status.FAIL:
            found[id(row)] = _of(row, options.get(operator, []), alone.get(operator[:4], []))
        if record.role is Role.OP_OUTPUT:
            alone.pop(operator[:4], None)
    return found


def _of(row: Row, options: list[str], alone: list[Row]) -> Blame:
    record = row.candidate or row.golden
    assert record is not None
    if record.role is Role.OP_OUTPUT:
        return Blame(_in_words(record), tuple(options))
    theirs = [each.candidate for each in alone if each.candidate is not None]
    hints = tuple(
        f"golden runs {_in_words(each.golden)} before, which the candidate does not run" for each in alone if each.golden is not None
    )
    if not theirs:
        return Blame(f"what {_in_words(record)} takes as {_within(record)}", hints)
    maker = next((each for each in reversed(theirs) if each.digest == record.digest), theirs[-1])
    return Blame(f"{_in_words(maker)}, which only the candidate runs", (f"seen in what {_in_words(record)} takes", *hints))


def _in_words(record: Record) -> str:
    """``aten.bmm call 1 (modeling_bert.py:187)``."""
    name, number = record.operator
    call = f" call {number}" if number else ""
    return f"{name.removesuffix('.default')}{call}" + (f" ({record.source_line})" if record.source_line else "")


def _within(record: Record) -> str:
    return record.path.partition("#")[2].partition(".")[2] or record.path
