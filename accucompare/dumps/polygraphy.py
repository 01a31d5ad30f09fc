"""Outputs that Polygraphy saved (``polygraphy run MODEL --save-outputs X.json``): JSON with each
array as a ``.npy`` in base64.

Names are ONNX's. The model says which module computes a value; without the model, the older
exporter's names do: ``/h.0/attn/MatMul_output_0``."""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from accucompare.bundle.format import Role
from accucompare.dumps.dump_files import UnreadableError, read_json, read_npy
from accucompare.dumps.items import Dump, Format, Item, ItemPart, LoadedItem, Naming, NotImported
from accucompare.dumps.name_pattern import NamePattern, PlaceInName
from accucompare.dumps.onnx_graph import FOLDED_INTO, Computed, calls_of, read_onnx
from accucompare.errors import BundleError, UsageError
from accucompare.selection import DumpFormat

_BEGINS = re.compile(rb'\s*\{\s*"lst"\s*:\s*\[')
#: torch.onnx.export's name of a value: the module's name by its parts, the operator, the output's
#: number.
_SCOPED = re.compile(r"(?P<scope>(?:/.+)?)/[^/]+_output_\d+", re.DOTALL)
_NESTING = 8  # deepest nesting of arrays
_NOTE = (
    "of the values that a module computes, the last one that Polygraphy saved stands for its"
    " output; values whose names say no module are outputs of the whole model; --onnx MODEL.onnx"
    " says which module computes what"
)


def _recognise(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError:
        return False
    return _BEGINS.match(head) is not None and b'"outputs"' in head


def _open(path: Path, naming: Naming) -> Dump:
    found = read_json(path)
    runs = found.get("lst") if isinstance(found, dict) else None
    if not isinstance(runs, list) or not all(
        isinstance(run, list) and len(run) == 2 and isinstance(run[1], list) for run in runs
    ):
        raise BundleError(f"{path}: is damaged, or not what Polygraphy's --save-outputs writes")
    if len(runs) != 1:
        names = ", ".join(str(run[0])[:80] for run in runs) or "none"
        raise UsageError(
            f"{path}: holds {len(runs)} runs ({names}); save each apart: polygraphy run MODEL"
            " --onnxrt --save-outputs onnxrt.json"
        )
    if naming.pattern is not None and naming.onnx is not None:
        raise UsageError(
            "--name-pattern: the file of --onnx says which module computes a value; leave one of"
            " the two out"
        )
    runner, iterations = runs[0]
    named: Callable[[list[str]], list[list[PlaceInName] | NotImported]] = _names
    if naming.onnx is not None:
        named = partial(_names_by_graph, read_onnx(naming.onnx))
    elif naming.pattern is not None:
        named = partial(_names_by_pattern, _pattern(naming.pattern))
    notes = (_NOTE,) if named is _names else ()
    parts = tuple(
        ItemPart(0, step, partial(_items, iteration, path, named))
        for step, iteration in enumerate(iterations)
    )
    by = {"runner": str(runner)}
    return Dump((Role.OUTPUT,), parts=parts, partial=True, environment=by, notes=notes)


def _pattern(text: str) -> NamePattern:
    pattern = NamePattern.parse(text)
    if not {"step", "rank", "role"}.isdisjoint(pattern.regex.groupindex):
        raise UsageError(
            f"--name-pattern {text!r}: Polygraphy's iterations are the steps, and all its values"
            " outputs; use {name}, {call}, {path}"
        )
    return pattern


def _items(
    iteration: Any, path: Path, named: Callable[[list[str]], list[list[PlaceInName] | NotImported]]
) -> Iterator[Item | NotImported]:
    """The outputs of an iteration, under the names that ``named`` gives them."""
    outputs = iteration.get("outputs") if isinstance(iteration, dict) else None
    if not isinstance(outputs, dict):
        raise BundleError(f"{path}: is damaged; an iteration has no outputs")
    for places, (name, value) in zip(named(list(outputs)), outputs.items(), strict=True):
        if isinstance(places, NotImported):
            yield places
            continue
        for place in places:
            yield Item(
                place.name,
                Role.OUTPUT,
                place.path,
                place.call,
                load=partial(_load, value, f"{path}: {name}"),
            )


def _names_by_pattern(
    pattern: NamePattern, names: list[str]
) -> list[list[PlaceInName] | NotImported]:
    places = [pattern.place(name) for name in names]
    return [
        (
            [place]
            if place
            else NotImported(name, f"its name does not match --name-pattern {pattern.text!r}")
        )
        for name, place in zip(names, places, strict=True)
    ]


def _names_by_graph(computed: Computed, names: list[str]) -> list[list[PlaceInName] | NotImported]:
    """Where each value belongs, by the model that computed it."""
    found: list[list[PlaceInName] | NotImported] = []
    results = [name for name in computed.results if name in names]
    for name in names:
        places = [
            PlaceInName(call.module, Role.OUTPUT, "", call.call)
            for call in computed.outputs.get(name, ())
        ]
        if name in results:
            places.append(PlaceInName("", Role.OUTPUT, "" if len(computed.results) == 1 else name))
        if places:
            found.append(places)
        elif name in computed.weights:
            found.append(NotImported(name, "a weight under another name, which is no output"))
        else:
            found.append(
                NotImported(
                    name,
                    computed.why_not.get(name, "a value inside a module, which is not its output"),
                )
            )
    return found


def _names(names: list[str]) -> list[list[PlaceInName] | NotImported]:
    """Where each output belongs, by the older exporter's names.

    A name does not say that a bias is still to be added, or a BatchNorm was folded in: a value is
    left out if that is possible."""
    scopes = {name: match["scope"] for name in names if (match := _SCOPED.fullmatch(name))}
    calls = calls_of((scope[:end] for scope in scopes.values() for end in _ends(scope)), ())
    last = {scope: name for name, scope in scopes.items()}
    weights = {
        name
        for name in names
        if name not in scopes and ("." in name or "::" in name) and "/" not in name
    }
    results = [name for name in names if name not in scopes and name not in weights]
    has_norms = any("/BatchNormalization_output_" in name for name in scopes)
    following = dict(pairwise(names))
    found: list[list[PlaceInName] | NotImported] = []
    for name in names:
        scope = scopes.get(name, "")
        operator = name.removeprefix(scope).split("_output_")[0].strip("/").split("_")[0]
        if name in weights:
            found.append(NotImported(name, "a weight, by its name, which is no output"))
        elif not scope and name in scopes:
            found.append(
                NotImported(name, "an operator's value in the whole model, which is not its output")
            )
        elif not scope:
            found.append([PlaceInName("", Role.OUTPUT, "" if len(results) == 1 else name)])
        elif last[scope] != name:
            found.append(
                NotImported(
                    name,
                    "an operator's value inside a module; the module's last one stands for its"
                    " output",
                )
            )
        elif operator == "MatMul" and following.get(name) in results:
            found.append(
                NotImported(
                    name,
                    "a Linear's bias may be in the value after it, which names no module; --onnx"
                    " MODEL.onnx tells",
                )
            )
        elif operator in FOLDED_INTO and not has_norms:
            found.append(
                NotImported(
                    name,
                    "the exporter may have folded a BatchNorm into it; --onnx MODEL.onnx tells",
                )
            )
        else:
            found.append([PlaceInName(calls[scope].module, Role.OUTPUT, "", calls[scope].call)])
    return found


def _ends(scope: str) -> Iterator[int]:
    """Where each part of ``/layers.0/fc`` ends."""
    return (at for at in range(1, len(scope) + 1) if at == len(scope) or scope[at] == "/")


def _load(value: Any, place: str) -> LoadedItem:
    """The array in ``{"values": {"array": BASE64}}``, or in the older ``{"array": BASE64}``."""
    for _ in range(_NESTING):
        if not isinstance(value, dict):
            break
        if isinstance(value.get("array"), str):
            try:
                content = base64.b64decode(value["array"], validate=True)
            except (binascii.Error, ValueError) as error:
                raise UnreadableError(f"{place}: is no base64 ({error})") from None
            return read_npy(io.BytesIO(content), len(content), place)
        value = value.get("values")
    raise UnreadableError(
        f"{place}: holds no array of NumPy's; save outputs of NumPy, as the runners of ONNX Runtime"
        " and TensorRT give"
    )


POLYGRAPHY_FORMAT = Format(
    DumpFormat.POLYGRAPHY.value,
    "Polygraphy",
    _recognise,
    _open,
    'a JSON file that begins with {"lst": [, of --save-outputs',
    takes_pattern=True,
    takes_onnx=True,
)
