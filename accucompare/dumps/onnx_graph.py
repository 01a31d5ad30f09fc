"""Which module computes which value of an ONNX model that ``torch.onnx.export`` wrote.

The default exporter (``dynamo=True``) names the modules around each node
(``pkg.torch.onnx.name_scopes``). The older one names a node by its module, ``/layers.0/fc/MatMul``,
and in a second call ``/layers.0/fc_1/MatMul``. Fields are numbered as in ``onnx.proto``."""

from __future__ import annotations

import ast
import mmap
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from accucompare.dumps.protobuf import fields
from accucompare.errors import BundleError, UsageError

_GRAPH, _NODE, _INITIALIZER, _OUTPUT = 7, 1, 5, 12  # of ModelProto and GraphProto
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _OPERATOR, _METADATA = 1, 2, 3, 4, 9  # of NodeProto
_INITIALIZER_NAME, _VALUE_NAME = 8, 1  # of TensorProto and ValueInfoProto
_SCOPES = "pkg.torch.onnx.name_scopes"
_LONGEST_TEXT = 1 << 16
_RUN = "\0"  # between a module and the number of its call
_MADE = "onnx::"  # begins the name of a weight that the exporter made
#: Operators into whose weights the older exporter folds a following BatchNorm.
FOLDED_INTO = ("Conv", "ConvTranspose")
#: The older exporter's number of a call after the first.
_NUMBERED = re.compile(r"(?P<name>.+)_(?P<call>[1-9]\d{0,8})", re.DOTALL)


@dataclass(frozen=True)
class Node:
    """An operator: its inputs and outputs; the calls of modules around it, the outermost first,
    each by a key of its own; and the PyTorch operator that it is part of (``linear_2``), where the
    model says so."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    calls: tuple[str, ...]
    origin: str


@dataclass(frozen=True)
class OnnxCall:
    """The call of a module: its qualified name, and which call of it."""

    module: str
    call: int


@dataclass(frozen=True)
class Computed:
    """What a model says of its values."""

    outputs: dict[str, list[OnnxCall]]  # the calls whose one output a value is, the innermost first
    # why a call's output cannot be told, by the last value that it computes
    why_not: dict[str, str]
    weights: set[str]  # values that are weights under another name
    results: list[str]  # the outputs of the model, in their order


def read_onnx(path: Path) -> Computed:
    """What an ``.onnx`` file says of its values; its weights are not read. Raises UsageError if
    there is no such file, or it names no node's module; BundleError if it is damaged."""
    try:
        with path.open("rb") as file:
            # closed with the last view of it
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        nodes, weights, results = _parse(content)
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        if isinstance(error, OSError):
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
        raise BundleError(f"{path}: is damaged, or no ONNX model ({error})") from None
    if not any(node.calls for node in nodes):
        raise UsageError(
            f"{path}: says of no operator in which module it lies; give the file that"
            " torch.onnx.export wrote"
        )
    return _computed(nodes, weights, results)


def _parse(content: memoryview) -> tuple[list[Node], set[str], list[str]]:
    """The nodes in their order, the names of the weights, and of the model's outputs."""
    messages: list[memoryview] = []
    weights, results = set[str](), list[str]()
    for number, graph in fields(content):
        if number != _GRAPH or not isinstance(graph, memoryview):
            continue
        for inner, message in fields(graph):
            if not isinstance(message, memoryview):
                continue
            if inner == _NODE:
                messages.append(message)
            elif inner == _INITIALIZER:
                weights.add(_text_of(message, _INITIALIZER_NAME))
            elif inner == _OUTPUT:
                results.append(_text_of(message, _VALUE_NAME))
    if not messages:
        raise ValueError("it has no operators")
    scopes = [_scopes(message) for message in messages]
    calls = (
        list(_runs(scopes))
        if any(scopes)
        else [_calls_by_name(_text_of(message, _NODE_NAME)) for message in messages]
    )
    nodes = [
        Node(
            _text_of(message, _OPERATOR),
            tuple(_texts(message, _NODE_INPUT)),
            tuple(filter(None, _texts(message, _NODE_OUTPUT))),
            around,
            scope[-1] if scope else "",
        )
        for message, around, scope in zip(messages, calls, scopes, strict=True)
    ]
    return nodes, weights, results


def _scopes(message: memoryview) -> list[str]:
    """The default exporter's ``['', 'layers.0', 'layers.0.fc', 'linear_2']``; empty without it."""
    for number, entry in fields(message):
        if number == _METADATA and isinstance(entry, memoryview) and _text_of(entry, 1) == _SCOPES:
            found = ast.literal_eval(_text_of(entry, 2))
            if isinstance(found, list) and all(isinstance(name, str) for name in found):
                return found
    return []


def _text_of(message: memoryview, number: int) -> str:
    return next(_texts(message, number), "")


def _texts(message: memoryview, number: int) -> Iterator[str]:
    for each, value in fields(message):
        if each == number and isinstance(value, memoryview):
            if len(value) > _LONGEST_TEXT:
                raise ValueError(f"a name of {len(value):,} bytes")
            yield bytes(value).decode("utf-8", "backslashreplace")


def _runs(scopes: Iterable[list[str]]) -> Iterator[tuple[str, ...]]:
    """The calls around each node. A run of nodes in a module is one call of it."""
    runs: Counter[str] = Counter()
    open_calls: list[tuple[str, str]] = []  # (module, call), from the outermost
    for scope in scopes:
        modules = [name for name in scope[:-1] if name]
        common = 0
        while (
            common < min(len(open_calls), len(modules)) and open_calls[common][0] == modules[common]
        ):
            common += 1
        del open_calls[common:]
        for module in modules[common:]:
            open_calls.append((module, f"{module}{_RUN}{runs[module]}"))
            runs[module] += 1
        yield tuple(call for _, call in open_calls)


def _calls_by_name(name: str) -> tuple[str, ...]:
    """From the older exporter's ``/layers.0/fc_1/MatMul``: ``/layers.0`` and ``/layers.0/fc_1``."""
    parts = name.split("/")[1:-1]
    return tuple("/" + "/".join(parts[:end]) for end in range(1, len(parts) + 1))


def _computed(nodes: list[Node], weights: set[str], results: list[str]) -> Computed:
    inside = defaultdict[str, list[Node]](list)
    users = defaultdict[str, list[tuple[str, ...]]](list)
    for node in nodes:
        for call in node.calls:
            inside[call].append(node)
        for value in node.inputs:
            users[value].append(node.calls)
    for value in results:
        users[value].append(())
    named = calls_of(inside, weights)
    outputs, why_not = defaultdict[str, list[OnnxCall]](list), dict[str, str]()
    # innermost calls first
    for call, within in sorted(inside.items(), key=lambda each: len(each[0]), reverse=True):
        leaving = [
            value
            for node in within
            for value in node.outputs
            if any(call not in calls for calls in users[value])
        ]
        doubt = _doubt(call, within, named[call].module)
        if doubt is None and len(leaving) == 1:
            outputs[leaving[0]].append(named[call])
        elif leaving:
            why_not[leaving[-1]] = (
                doubt
                or f"{named[call].module} gives {len(leaving)} values to others, and the model does"
                " not say which is which"
            )
    copied = {
        value
        for node in nodes
        if node.operator == "Identity" and weights.issuperset(node.inputs)
        for value in node.outputs
    }
    return Computed(dict(outputs), why_not, copied, results)


def _doubt(call: str, within: list[Node], module: str) -> str | None:
    """Why a call's result may not be its module's output; ``None`` if it is."""
    own = [node for node in within if node.calls[-1] == call]
    if any(
        node.operator in FOLDED_INTO and any(each.startswith(_MADE) for each in node.inputs[1:])
        for node in own
    ):
        return (
            f"its weights are not those of {module}: the exporter put what follows into it, as a"
            " BatchNorm"
        )
    parts = [
        (node.calls[-1].split(_RUN)[0], _base(origin))
        for origin, (node, *_) in groupby(within, key=lambda node: node.origin)
    ]
    if (
        _RUN in call
        and len(parts) > 1
        and any(
            parts == parts[:part] * (len(parts) // part) for part in range(1, len(parts) // 2 + 1)
        )
    ):
        return (
            f"{module} is called several times in a row, or does the same again; which is which,"
            " the model does not say"
        )
    return None


def _base(origin: str) -> str:
    numbered = _NUMBERED.fullmatch(origin)
    return numbered["name"] if numbered else origin


def calls_of(scopes: Iterable[str], weights: Iterable[str]) -> dict[str, OnnxCall]:
    """The module call that each key of a scope stands for.

    With the older exporter, ``/fc_1`` is the second call of ``fc`` if there is a ``/fc`` and no
    weight is called ``fc_1.…``."""
    found = dict.fromkeys(scopes)
    owners = {weight[: dot.start()] for weight in weights for dot in re.finditer(r"\.", weight)}
    calls: Counter[str] = Counter()
    named = {}
    for scope in found:
        module = scope.split(_RUN)[0] if _RUN in scope else _module(scope, found, owners)
        named[scope] = OnnxCall(module, calls[module])
        calls[module] += 1
    return named


def _module(scope: str, scopes: Container[str], owners: set[str]) -> str:
    """The qualified name in ``/layers.0/fc_1``."""
    names: list[str] = []
    parts = scope.split("/")[1:]
    for end, part in enumerate(parts):
        numbered = _NUMBERED.fullmatch(part)
        again = (
            numbered
            and "/" + "/".join([*parts[:end], numbered["name"]]) in scopes
            and ".".join([*names, part]) not in owners
        )
        names.append(numbered["name"] if numbered and again else part)
    return ".".join(names)
