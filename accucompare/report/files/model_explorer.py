"""The comparison for Model Explorer: a graph of the calls, and values for its nodes.

A stage of a step is a graph, a call a node, a module that calls others a group with two nodes: its
inputs and its outputs. The field names are those of model_explorer/graph_builder.py and
node_data_builder.py (ai-edge-model-explorer 0.1.34)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from accucompare.compare.constants import NEAR
from accucompare.compare.rows import Reason, Status
from accucompare.files import is_stream
from accucompare.report.files.call_tree import ENTERS, CallNode, Pass, passes, worst
from accucompare.report.files.exported import facts, log_of, write_text
from accucompare.report.files.written_comparison import Written, WrittenRow
from accucompare.report.table import looks
from accucompare.text import printable

JSON = dict[str, Any]
_Rows = dict[int, WrittenRow]


#: Where an error is made: darker than where it has only arrived.
_MADE = {Reason.INTRODUCED: "FFEF7B7B", Reason.GLUE: "FFEF7B7B"}


def _css(color: str) -> str:
    return f"#{color[2:]}"


def _color(row: WrittenRow) -> str:
    return _css(_MADE.get(row.reason, looks.REASON_LOOK[row.reason].fill))


class NodeData(NamedTuple):
    """One file of values for the nodes."""

    suffix: str  # of the file's name
    title: str
    get: Callable[[WrittenRow], float | None]  # a row's value, of which log10 is shown
    thresholds: tuple[tuple[float, str], ...]  # upper bounds with their colours


#: More than half of a limit is amber, as in the Excel report.
NODE_DATA = (
    NodeData(
        "limit",
        "log10 of x limit",
        lambda row: row.used,
        (
            (round(math.log10(NEAR), 5), looks.PALE_GREEN),
            (0.0, looks.AMBER),
            (20.0, looks.PALE_RED),
        ),
    ),
    NodeData(
        "rel-l2",
        "log10 of relative L2",
        lambda row: row.rel_l2,
        (
            (-7.0, looks.PALE_GREEN),
            (-4.0, "FFF0F4C3"),
            (-2.0, looks.AMBER),
            (0.0, "FFFFCC80"),
            (20.0, looks.PALE_RED),
        ),
    ),
)


@dataclass
class _Node:
    """A node, and its rows by their numbers."""

    id: str
    label: str
    namespace: str
    call: CallNode
    rows: _Rows
    before: _Node | None  # in execution order, within the same module


def write_model_explorer(written: Written, path: Path) -> list[Path]:
    """Write the graph and, beside it, a file for each kind of node data; return their paths. Raises
    ReportError if one cannot be written."""
    graphs, results = [], []
    for each in passes(written.rows):
        nodes = _nodes(each)
        node_of = {number: node for node in nodes for number in node.rows}
        graphs.append({"id": _title(each), "nodes": [_node(node, node_of) for node in nodes]})
        results.append((_title(each), nodes))
    label = printable(
        f"{Path(written.golden).name} and {Path(written.candidate).name}: {written.conclusion}"
    )
    files = [write_text({"label": label, "graphs": graphs}, path)]
    if not is_stream(path):
        for kind in NODE_DATA:
            content = {title: _node_data(kind, nodes) for title, nodes in results}
            files.append(write_text(content, path.with_name(f"{path.stem}-{kind.suffix}.json")))
    return files


def _title(each: Pass) -> str:
    return f"rank {each.rank}, step {each.step}, {each.stage}"


def _part(name: str) -> str:
    """A part of a namespace, whose separator is a slash."""
    return printable(name).replace("/", "∕") or "(empty)"


def _nodes(each: Pass) -> list[_Node]:
    nodes: list[_Node] = []

    def add(
        call: CallNode, label: str, space: tuple[str, ...], rows: _Rows, before: _Node | None
    ) -> _Node:
        place = printable(f"{call.name or '(root)'} {call.operator}".rstrip())
        nodes.append(_Node(f"{len(nodes)} {place}", label, "/".join(space), call, rows, before))
        return nodes[-1]

    def lay(
        calls: Sequence[CallNode],
        around: CallNode | None,
        space: tuple[str, ...],
        before: _Node | None,
    ) -> _Node | None:
        for call in calls:
            *groups, last = (
                call.title(around).split(".") if not call.operator else [call.title(around)]
            )
            within = (*space, *map(_part, groups))
            if not call.inside:
                before = add(call, printable(last), within, call.rows, before)
                continue
            inner = within if not call.name and not call.call else (*within, _part(last))
            going_in, coming_out = _sides(call.rows)
            first = (
                add(call, f"into {printable(last)}", inner, going_in, before)
                if going_in
                else before
            )
            before = lay(call.inside, call, inner, first)
            if coming_out:
                before = add(call, f"out of {printable(last)}", inner, coming_out, before)
        return before

    lay(each.calls, None, (), None)
    return nodes


def _sides(rows: _Rows) -> tuple[_Rows, _Rows]:
    """The rows of a call's inputs, and the others."""
    entering = {number: row for number, row in rows.items() if row.role in ENTERS}
    return entering, {number: row for number, row in rows.items() if number not in entering}


def _node(node: _Node, node_of: dict[int, _Node]) -> JSON:
    entering, leaving = _sides(node.rows)
    telling = worst(node.rows.values())
    shown = {
        "layer": printable(node.call.name or "(root)"),
        "call": str(node.call.call),
        "class": printable(node.call.type),
    }
    if telling is not None:
        shown |= _told(telling)
    return {
        "id": node.id,
        "label": node.label,
        "namespace": node.namespace,
        "attrs": _pairs(shown),
        "incomingEdges": _edges(node, entering or leaving, node_of),
        "inputsMetadata": [
            {"id": str(number), "attrs": _pairs(_told(row))} for number, row in entering.items()
        ],
        "outputsMetadata": [
            {"id": str(number), "attrs": _pairs(_told(row))} for number, row in leaving.items()
        ],
        **({} if telling is None else {"style": {"backgroundColor": _color(telling)}}),
    }


def _edges(node: _Node, takes: _Rows, node_of: dict[int, _Node]) -> list[JSON]:
    """Edges from the producers of a node's inputs, or else from the node before it."""
    edges = []
    for number, row in takes.items():
        source = node_of.get(row.producer or 0)
        if source is not None and source is not node:
            edges.append(
                {
                    "sourceNodeId": source.id,
                    "sourceNodeOutputId": str(row.producer),
                    "targetNodeInputId": str(number),
                }
            )
    if not edges and node.before is not None:
        edges.append(
            {"sourceNodeId": node.before.id, "sourceNodeOutputId": "0", "targetNodeInputId": "0"}
        )
    return edges


def _node_data(kind: NodeData, nodes: Sequence[_Node]) -> JSON:
    """A node shows its most telling row; a failure without a number shows its reason's colour."""
    results: JSON = {}
    for node in nodes:
        row = worst(node.rows.values())
        if row is None:
            continue
        value = log_of(kind.get(row))
        look = {"bgColor": _color(row)} if row.status is not Status.PASS else {}
        if value is not None or look:
            results[node.id] = {"value": row.reason.value if value is None else value, **look}
    return {
        "name": kind.title,
        "results": results,
        "thresholds": [
            {"value": value, "bgColor": _css(color)} for value, color in kind.thresholds
        ],
    }


def _told(row: WrittenRow) -> dict[str, str]:
    return {"row": row.value, **facts(row)}


def _pairs(shown: dict[str, str]) -> list[JSON]:
    return [{"key": key, "value": value} for key, value in shown.items()]
