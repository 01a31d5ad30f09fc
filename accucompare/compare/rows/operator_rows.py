"""Rows of operators, which a capture of level op records inside modules.

They show where in a module's own code an error is made. An unpaired operator fails nothing: another
device may compose the same from other operators. Nor is another number or string an error by
itself: its effect shows in the output. But if values are over their limit, the operators and
options that differ before them are the cause.

The nodes of a call's backward count as its operators: arriving gradients go in, the ones given on
come out."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TypeAlias

import msgspec

from accucompare.bundle.format import (
    GRADIENT_ROLES,
    NODE_ROLES,
    OPERATOR_ROLES,
    UPDATE_ROLES,
    Layout,
    Record,
    Role,
    same_line,
)
from accucompare.compare.remarks import BareRemark
from accucompare.compare.rows.rows import Difference, Option, Reason, Row, Status, Verdict

#: An operator of a module call: (rank, step, name, call index, operator, number).
OperatorKey = tuple[int, int, str, int, str, int]

#: What goes into an operator or a backward's node, and what comes out.
_TAKEN = (Role.OP_INPUT, Role.OP_GRAD_OUTPUT)
_GIVEN = (Role.OP_OUTPUT, Role.OP_GRAD_INPUT)


#: A module call's own code: (rank, step, name, call index, whether it is the backward).
_Code = tuple[int, int, str, int, bool]


def _code_of(record: Record) -> _Code:
    """The own code of the module call that computed or got a record's value."""
    return (
        record.rank,
        record.step,
        record.name,
        record.call,
        record.role in (*GRADIENT_ROLES, *NODE_ROLES),
    )


def _makers_of(record: Record) -> _Code | None:
    """The own code of the call that made a module's value; ``None`` if none did."""
    if record.role in UPDATE_ROLES:
        return None
    own = _code_of(record)
    if record.role not in (Role.INPUT, Role.GRAD_OUTPUT):
        return own
    return None if record.parent is None else (*own[:2], *record.parent, own[-1])


def is_operator(record: Record | None) -> bool:
    return record is not None and record.role in OPERATOR_ROLES


def operator_of(record: Record) -> OperatorKey:
    return (record.rank, record.step, record.name, record.call, *record.operator)


def without_partner(option: Option | None = None) -> Verdict:
    """The verdict on an operator's unpaired record. ``option``: its number or string, if any."""
    return Verdict(Reason.NOT_COMPARABLE, remarks=(BareRemark.ONE_RUNS_OPERATOR,), option=option)


def is_option(record: Record | None) -> bool:
    """Whether a record is of a number or string given to an operator."""
    return (
        record is not None
        and record.role is Role.OP_INPUT
        and record.layout in (Layout.SCALAR, Layout.OPAQUE)
    )


def options_differ(option: Option) -> Verdict:
    """The verdict on a number or string that differs."""
    return Verdict(Reason.NOT_COMPARABLE, remarks=(BareRemark.OTHER_OPTION,), option=option)


def with_options(rows: list[Row]) -> list[Row]:
    """The rows, with ``options_differ`` for one-sided numbers or strings of shared operators."""
    operators = [row for row in rows if is_operator(row.record)]
    if not operators:
        return rows
    partners = _partners(operators)
    shared = set(partners.values())
    return [
        msgspec.structs.replace(row, verdict=options_differ(row.verdict.option))
        if row.verdict.option is not None
        and None in (row.golden, row.candidate)
        and _giving(row, partners, shared)
        else row
        for row in rows
    ]


def _partners(rows: Iterable[Row]) -> dict[OperatorKey, OperatorKey]:
    """The candidate's paired operators, each with golden's."""
    both = ((row.golden, row.candidate) for row in rows)
    return {
        operator_of(candidate): operator_of(golden)
        for golden, candidate in both
        if golden and candidate and is_operator(golden)
    }


def _giving(
    row: Row, partners: dict[OperatorKey, OperatorKey], shared: Collection[OperatorKey]
) -> OperatorKey | None:
    """Golden's operator, if a one-sided row is of one of golden's ``shared`` operators."""
    if row.golden is not None:
        return operator_of(row.golden) if operator_of(row.golden) in shared else None
    return None if row.candidate is None else partners.get(operator_of(row.candidate))


@dataclass(frozen=True)
class OperatorPlace:
    """An operator of the candidate, or what goes into it."""

    name: str
    call: int
    source_line: str
    gradient_of: str = ""  # for a backward's node, the input that its gradient is of
    # the argument taken, ``""`` for an arriving gradient; ``None``: the operator itself
    takes: str | None = None
    golden_line: str = ""  # golden's source line, if that is another

    @classmethod
    def of(cls, record: Record, takes: str | None = None, golden_line: str = "") -> OperatorPlace:
        name, number = record.operator
        gives = record.part if record.role is Role.OP_GRAD_INPUT else ""
        short = name.removesuffix(".default")
        return cls(short, number, record.source_line, gives, takes, golden_line)


@dataclass(frozen=True)
class BeforeIt:
    """An operator before the error with other options, and an output within its limit."""

    operator: OperatorPlace
    options: tuple[Option, ...]


#: Where an error shows (what an operator takes), and what else differs before it.
OperatorHint: TypeAlias = OperatorPlace | BeforeIt


@dataclass(frozen=True)
class Blame:
    """What is to blame for a row over its limit, in a module call with recorded operators."""

    # the operator, or what it takes; ``None`` if ``difference`` says everything
    operator: OperatorPlace | None = None
    # what the two sides run or give differently, if that explains the row
    difference: Difference | None = None
    hints: tuple[OperatorHint, ...] = ()  # where the error shows, and what else differs


@dataclass(eq=False)
class _Run:
    """One-sided operators between two that both sides run."""

    # golden, candidate: one record of each
    golden: dict[OperatorKey, Record] = field(default_factory=dict)
    candidate: dict[OperatorKey, Record] = field(default_factory=dict)
    # whether their results are known to be right, or they were blamed already
    settled: bool = False

    def difference(self) -> Difference | None:
        """What one side alone runs, apart from equal operators unpaired for their values."""
        sides = list(self.golden.values()), list(self.candidate.values())
        golden, candidate = ([record.type for record in records] for records in sides)
        alone: tuple[dict[str, None], dict[str, None]] = ({}, {})
        for what, *places in SequenceMatcher(None, golden, candidate).get_opcodes():
            for own, records, first, last in zip(
                alone, sides, places[::2], places[1::2], strict=True
            ):
                own.update(
                    (_in_short(record), None) for record in records[first:last] if what != "equal"
                )
        return Difference(tuple(alone[0]), tuple(alone[1])) if any(alone) else None


@dataclass
class _Inside:
    """What the rows so far show of a module call's own code."""

    # of one-sided operators; the last one may go on
    runs: list[_Run] = field(default_factory=lambda: [_Run()])
    # the runs by their results: the side, and traits of the values
    makers: dict[tuple[bool, Hashable], _Run] = field(default_factory=dict)
    # what differs in what an operator is given, by golden's name for it
    options: dict[OperatorKey, list[Option]] = field(default_factory=dict)
    # the same for operators with an output within its limit
    passed: list[BeforeIt] = field(default_factory=list)
    failed: bool = False  # whether a value was over its limit

    def add(self, row: Row) -> None:
        """Add a one-sided operator."""
        run, record = self.runs[-1], row.golden or row.candidate
        assert record is not None
        (run.candidate if row.golden is None else run.golden).setdefault(
            operator_of(record), record
        )
        if record.role in _GIVEN:
            self.makers.update(dict.fromkeys(_traits(row), run))

    def end_run(self) -> None:
        if self.runs[-1].golden or self.runs[-1].candidate:
            self.runs.append(_Run())

    def maker(self, row: Row) -> _Run | None:
        return next((self.makers[trait] for trait in _traits(row) if trait in self.makers), None)

    def explain(self, row: Row, near: bool) -> Difference | None:
        """What one side ran to make a wrong value. ``near``: if unknown, its last unsettled run."""
        maker = self.maker(row)
        suspects = (
            [maker]
            if maker is not None
            else [run for run in reversed(self.runs) if near and not run.settled]
        )
        for run in suspects:
            run.settled = True
            if (difference := run.difference()) is not None:
                return difference
        return None


def blame(rows: list[Row]) -> dict[int, Blame]:
    """What is to blame for each row over its limit in calls with recorded operators, by row ``id``.

    For an operator's output it is the operator, or its options if they differ. Other values (inputs
    of operators and modules, and what is returned) were made by earlier one-sided operators, or
    else by views and casts, which are not recorded."""
    partners = _partners(row for row in rows if is_operator(row.record))
    shared = set(partners.values())
    calls: dict[_Code, _Inside] = {}
    by_row: dict[int, Blame] = {}
    for row in rows:
        record = row.record
        if record is None:
            continue
        if is_operator(record):
            call = calls.setdefault(_code_of(record), _Inside())
            blamed = _of_operator(row, record, call, _giving(row, partners, shared))
        else:
            made_by = _makers_of(record)
            maker = None if made_by is None else calls.get(made_by)
            blamed = None if maker is None else _of_value(row, maker)
            caller = (
                None
                if record.parent is None
                else calls.get((record.rank, record.step, *record.parent, _code_of(record)[-1]))
            )
            if caller is not None:
                caller.end_run()
        if blamed is not None:
            by_row[id(row)] = blamed
    return by_row


def _of_operator(
    row: Row, record: Record, call: _Inside, shared: OperatorKey | None
) -> Blame | None:
    """What is to blame for an operator's row. ``shared``: golden's operator, if both run it."""
    if row.golden is None or row.candidate is None:
        if shared is None:
            call.add(row)
        elif row.verdict.option is not None:
            call.options.setdefault(shared, []).append(row.verdict.option)
        return None
    operator = operator_of(row.golden)
    if row.verdict.option is not None:
        call.options.setdefault(operator, []).append(row.verdict.option)
    if record.role in _TAKEN:
        golden, own = row.golden.source_line, row.candidate.source_line
        taken = OperatorPlace.of(
            row.candidate,
            takes=record.part if record.role is Role.OP_INPUT else "",
            golden_line="" if same_line(golden, own) else golden,
        )
        return _of_value(row, call, taken)
    call.end_run()
    options = tuple(call.options.get(operator, ()))
    if row.status is Status.FAIL:
        blamed = Blame(
            OperatorPlace.of(row.candidate),
            Difference(options=options) if options else None,
            tuple(call.passed),
        )
        call.failed = True
        return blamed
    if options and row.reason is not Reason.IDENTICAL:
        call.passed.append(BeforeIt(OperatorPlace.of(row.candidate), options))
    return None


def _of_value(row: Row, call: _Inside, taken: OperatorPlace | None = None) -> Blame | None:
    """What is to blame for a value of a call's own code. ``taken``: the operator that takes it."""
    if row.golden is None or row.candidate is None:
        return None
    if row.status is not Status.FAIL:
        if row.status is Status.PASS and (maker := call.maker(row)) is not None:
            maker.settled = True
        return None
    if row.reason is Reason.INHERITED:
        return None
    difference = call.explain(row, near=taken is not None or not call.failed)
    hints: tuple[OperatorHint, ...] = tuple(call.passed)
    call.failed = True
    if difference is not None:
        return Blame(None, difference, hints if taken is None else (taken, *hints))
    return None if taken is None else Blame(taken, None, hints)


def _traits(row: Row) -> Iterator[tuple[bool, Hashable]]:
    """What identifies values: their digest; or number and extrema, which survive transposing."""
    for of_golden, record in ((True, row.golden), (False, row.candidate)):
        if record is None or record.layout is not Layout.STRIDED:
            continue
        yield of_golden, record.digest
        known = record.statistics
        if known is not None and isinstance(known.min, float) and known.min != known.max:
            yield of_golden, (math.prod(record.shape), known.min, known.max)


def _in_short(record: Record) -> str:
    """``aten.mul (lora/layer.py:1065)``."""
    return ".".join(record.type.split(".")[:2]) + (
        f" ({record.source_line})" if record.source_line else ""
    )
