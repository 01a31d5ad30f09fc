"""The graph of the page: calls as nested boxes, and the tensors that flowed between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from accucompare.bundle.format import display_name
from accucompare.compare.origins import with_producers
from accucompare.compare.result import Result
from accucompare.compare.rows import Reason, Row, Status
from accucompare.numbers import DTYPES, Kind
from accucompare.report.files import (
    ENTERS,
    CallNode,
    CallStage,
    Pass,
    WrittenMetrics,
    WrittenRow,
    WrittenSide,
    passes,
    worst,
)
from accucompare.report.page.page_data import PageData
from accucompare.report.table import COUNT, EXCESS, MOST_ROWS, SCIENTIFIC, TEXT, Column, Overview
from accucompare.text import printable

_MOST_CALLS = 200_000  # a browser walks as many in two seconds
_MOST_ROWS_OF_STEP = 5 * _MOST_CALLS
_BLOCK = 1 << 14  # rows
_MADE = (Reason.INTRODUCED, Reason.GLUE)


class GraphCall(NamedTuple):
    """A box: a call of a module or of an operator; numbers count boxes from 0."""

    of: int  # the number of its pass
    around: int | None  # the box that called it; ``None`` for the outermost
    label: str
    call: CallNode
    failing: int  # how many of its rows fail
    telling: WrittenRow | None  # its most telling row, and that row's place in the page's table
    place: int | None


class Flow(NamedTuple):
    """A tensor that one call gave and another took, known by its digest."""

    source: int
    target: int
    row: WrittenRow
    own: bool  # whether no call gave it: code of the module's own made it, after the source


@dataclass
class CallGraph:
    """All boxes and flows; ``number_of``: the box of a row, by the row's number (from 1)."""

    passes: list[Pass] = field(default_factory=list)
    calls: list[GraphCall] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    number_of: dict[int, int] = field(default_factory=dict)


def write_graph(
    comparison: Result, found: Overview, data: PageData
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Write the tables of boxes and of flows, and return their heads and what else is needed;
    ``None`` if there is no call, or too many."""
    numbers, rows = _rows(comparison, found)
    graph = _graph(rows, numbers, found)
    if not graph.calls or len(graph.calls) > _MOST_CALLS:
        return [], None
    tables = [data.table("calls", _CALLS, graph.calls), data.table("flows", _FLOWS, graph.flows)]
    starts = [
        (graph.number_of[place + 1], _enters(culprit.row))
        for culprit, place in zip(comparison.culprits, found.culprits, strict=True)
        if place is not None and place + 1 in graph.number_of
    ]
    first = comparison.first_divergence
    if not starts and first is not None and found.first is not None:
        number = graph.number_of.get(found.first + 1)
        starts = [] if number is None else [(number, _enters(first))]
    return tables, {
        "passes": [
            {"rank": each.rank, "step": each.step, "stage": each.stage.value}
            for each in graph.passes
        ],
        "starts": [
            {"box": box, "enters": enters, "culprit": bool(comparison.culprits)}
            for box, enters in starts[:20]
        ],
        "fed": comparison.fed,
        "partial": len(rows) < len(comparison.rows),
    }


def _rows(comparison: Result, found: Overview) -> tuple[list[int], list[WrittenRow]]:
    """The rows to draw, and their numbers: all, or of very many those of one step and rank."""
    if found.total <= MOST_ROWS:
        first, drawn = 0, comparison.rows
    else:
        telling = [place for place in (*found.culprits, found.first, 0) if place is not None]
        first, drawn = _step_around(comparison.rows, telling[0])
    numbers, rows = [], []
    for number, (row, producer) in enumerate(with_producers(drawn), first + 1):
        if row.record is not None:
            numbers.append(number)
            rows.append(_written(row, None if producer is None else producer + first))
    return numbers, rows


def _step_around(rows: Sequence[Row], place: int) -> tuple[int, list[Row]]:
    """The rows of the step and rank of a row, and the place of the first; none if too many."""

    def of(row: Row) -> tuple[int, int] | None:
        return None if row.record is None else (row.record.rank, row.record.step)

    here = of(rows[place])
    found: list[Row] = []
    first = last = place
    while first and len(found) <= _MOST_ROWS_OF_STEP:
        block = rows[max(0, first - _BLOCK) : first]
        own = list(takewhile(lambda row: of(row) == here, reversed(block)))
        found[:0] = reversed(own)
        first -= len(own)
        if len(own) < len(block):
            break
    while last < len(rows) and len(found) <= _MOST_ROWS_OF_STEP:
        block = rows[last : last + _BLOCK]
        own = list(takewhile(lambda row: of(row) == here, block))
        found += own
        last += len(own)
        if len(own) < len(block):
            break
    return first, found if len(found) <= _MOST_ROWS_OF_STEP else []


def _written(row: Row, producer: int | None) -> WrittenRow:
    record, metrics = row.record, row.metrics
    assert record is not None
    error = None if metrics is None else WrittenMetrics(rel_l2=metrics.rel_l2)
    return WrittenRow(
        row.module,
        row.status,
        row.reason,
        WrittenSide(row.module, record.shape, record.dtype),
        None,
        error if row.reason is not Reason.IDENTICAL else WrittenMetrics(rel_l2=0.0),
        producer,
        record.rank,
        record.step,
        record.call,
        record.role,
        record.path,
        record.type,
        record.parent,
        row.verdict.over_limit,
        row.verdict.excess,
    )


def _enters(row: Row) -> bool:
    return row.record is not None and row.record.role in ENTERS


def _graph(rows: Sequence[WrittenRow], numbers: Sequence[int], found: Overview) -> CallGraph:
    graph = CallGraph([each for each in passes(rows) if each.stage is not CallStage.UPDATE])
    for number, each in enumerate(graph.passes):
        _lay(each.calls, None, None, number, graph, numbers, found)
    boxes_in: dict[int | None, list[int]] = {}
    for number, box in enumerate(graph.calls):
        boxes_in.setdefault(box.around, []).append(number)
    for number, box in enumerate(graph.calls):
        graph.flows += _known(number, box, graph, inner=number in boxes_in)
    graph.flows += _own(graph, boxes_in)
    return graph


def _lay(
    calls: Sequence[CallNode],
    around: CallNode | None,
    outer: int | None,
    of: int,
    graph: CallGraph,
    numbers: Sequence[int],
    found: Overview,
) -> None:
    """Add the boxes of some calls, each before those inside of it."""
    for call in calls:
        compared = (each for each in call.rows.values() if each.status is not Status.NOT_COMPARED)
        telling = worst(compared) or worst(call.rows.values())
        at = next((number for number, row in call.rows.items() if row is telling), None)
        place = None if at is None else found.position(numbers[at - 1] - 1)
        failing = sum(row.status is Status.FAIL for row in call.rows.values())
        number = len(graph.calls)
        label = printable(call.title(around))
        graph.calls.append(GraphCall(of, outer, label, call, failing, telling, place))
        graph.number_of.update((numbers[own - 1], number) for own in call.rows)
        _lay(call.inside, call, number, of, graph, numbers, found)


def _known(number: int, box: GraphCall, graph: CallGraph, *, inner: bool) -> Iterator[Flow]:
    """The tensors that a box takes, by who gave them; and those that it gives, by who inside of it
    gave them."""
    sources: set[tuple[int, bool]] = set()
    for row in box.call.rows.values():
        source, enters = graph.number_of.get(row.producer or 0), row.role in ENTERS
        if source is None or source == number or (source, enters) in sources:
            continue
        if enters or (inner and _is_inside(source, number, graph)):
            sources.add((source, enters))
            yield Flow(source, number, row, own=False)


def _is_inside(box: int | None, outer: int, graph: CallGraph) -> bool:
    while box is not None and box != outer:
        box = graph.calls[box].around
    return box == outer


def _own(graph: CallGraph, boxes_in: Mapping[int | None, Sequence[int]]) -> Iterator[Flow]:
    """Where no call gave a value, a module's own code made it: from what the calls before it gave
    and no call took, or else from the call just before."""
    entered = {flow.target for flow in graph.flows if flow.row.role in ENTERS}
    left = {flow.target for flow in graph.flows if flow.row.role not in ENTERS}
    taken = {flow.source for flow in graph.flows if not _is_inside(flow.target, flow.source, graph)}
    for around, boxes in boxes_in.items():
        before: list[int] = []
        for just_before, number in zip([around, *boxes], boxes, strict=False):
            rows = graph.calls[number].call.rows.values()
            enters = worst(row for row in rows if row.role in ENTERS)
            if number not in entered and enters is not None:
                if any(row.role in ENTERS and not _are_same_integers(row) for row in rows):
                    yield from _after(before, just_before, number, enters)
                    before = []
                else:
                    yield from _after([], around, number, enters)
            if number not in taken:
                before.append(number)
        gives = None
        if around is not None and around not in left:
            rows = graph.calls[around].call.rows.values()
            gives = worst(row for row in rows if row.role not in ENTERS)
        if around is not None and gives is not None:
            yield from _after(before, boxes[-1], around, gives)


def _are_same_integers(row: WrittenRow) -> bool:
    """Whether a value is of positions, tokens and the like: no earlier call's error is in it."""
    dtype = DTYPES.get(row.golden.dtype) if row.golden else None
    return row.reason is Reason.IDENTICAL and dtype is not None and dtype.kind is not Kind.FLOAT


def _after(
    sources: Sequence[int], otherwise: int | None, target: int, row: WrittenRow
) -> Iterator[Flow]:
    """Flows from these, or from another if there are none."""
    known = sources or ([] if otherwise is None else [otherwise])
    for source in known:
        yield Flow(source, target, row, own=True)


def _name(call: CallNode) -> str:
    """``blocks.0.fc call 1``; of an operator also its own name."""
    own = f" {printable(call.operator)}" if call.operator else ""
    return f"{display_name(call.name)}{f' call {call.call}' if call.call else ''}{own}"


def _rel_l2(row: WrittenRow | None) -> float | None:
    error = None if row is None else row.rel_l2
    return None if error is None or np.isnan(error) else error


_CALLS = (
    Column("pass", lambda box: box.of, COUNT),
    Column("around", lambda box: box.around, COUNT),
    Column("label", lambda box: box.label, TEXT),
    Column("layer", lambda box: _name(box.call), TEXT),
    Column("type", lambda box: printable(box.call.type), TEXT),
    Column("failing", lambda box: box.failing, COUNT),
    Column("made", lambda box: int(box.telling is not None and box.telling.reason in _MADE), COUNT),
    Column("reason", lambda box: box.telling.reason.value if box.telling else "", TEXT),
    Column("error", lambda box: _rel_l2(box.telling), SCIENTIFIC),
    Column("x limit", lambda box: box.telling.used if box.telling else None, EXCESS),
    Column("place", lambda box: box.place, COUNT),
)
_FLOWS = (
    Column("source", lambda flow: flow.source, COUNT),
    Column("target", lambda flow: flow.target, COUNT),
    Column("error", lambda flow: _rel_l2(flow.row), SCIENTIFIC),
    Column("fails", lambda flow: int(flow.row.status is Status.FAIL), COUNT),
    Column("own", lambda flow: int(flow.own), COUNT),
)
