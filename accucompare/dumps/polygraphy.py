"""Outputs that Polygraphy saved (``polygraphy run MODEL --save-outputs X.json``): JSON with each array as a ``.npy`` in base64.

Names are those of ONNX. ``/h.0/attn/MatMul_output_0``, as torch.onnx.export names what a module computes, says the module.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from accucompare.bundle.records import Role
from accucompare.dumps.files import read_json, read_npy
from accucompare.dumps.items import Dump, Format, Item, LeftOut, Loaded, Part, UnreadableError
from accucompare.dumps.name_pattern import NamePattern, Place
from accucompare.errors import BundleError, UsageError
from accucompare.selection import DumpFormat

_BEGINS = re.compile(rb'\s*\{\s*"lst"\s*:\s*\[')
#: What torch.onnx.export calls a value: the module's name by its parts, the operator, and the number of its output.
_SCOPED = re.compile(r"/(?P<module>.+)/(?P<operator>[^/]+)_output_\d+", re.DOTALL)
_NESTING = 8  # arrays lie so deep at most
_NOTE = (
    "of the values that a module computes, the last one that Polygraphy saved stands for its output; values whose names say no module "
    "are outputs of the whole model"
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


def _open(path: Path, name_pattern: str | None) -> Dump:
    found = read_json(path)
    runs = found.get("lst") if isinstance(found, dict) else None
    if not isinstance(runs, list) or not all(isinstance(run, list) and len(run) == 2 and isinstance(run[1], list) for run in runs):
        raise BundleError(f"{path}: is damaged, or not what Polygraphy's --save-outputs writes")
    if len(runs) != 1:
        names = ", ".join(str(run[0])[:80] for run in runs) or "none"
        raise UsageError(
            f"{path}: holds {len(runs)} runs ({names}); save each apart: polygraphy run MODEL --onnxrt --save-outputs onnxrt.json"
        )
    runner, iterations = runs[0]
    named = _names if name_pattern is None else partial(_names_by_pattern, _pattern(name_pattern))
    parts = tuple(Part(0, step, partial(_items, iteration, path, named)) for step, iteration in enumerate(iterations))
    notes = () if name_pattern is not None else (_NOTE,)
    return Dump(parts, (Role.OUTPUT,), partial=True, environment={"runner": str(runner)}, notes=notes)


def _pattern(text: str) -> NamePattern:
    pattern = NamePattern.parse(text)
    if not {"step", "rank", "role"}.isdisjoint(pattern.regex.groupindex):
        raise UsageError(
            f"--name-pattern {text!r}: Polygraphy's iterations are the steps, and all its values outputs; use {{name}}, {{call}}, {{path}}"
        )
    return pattern


def _items(iteration: Any, path: Path, named: Callable[[list[str]], list[Place | LeftOut]]) -> Iterator[Item | LeftOut]:
    """The outputs of an iteration, under the names that ``named`` gives them."""
    outputs = iteration.get("outputs") if isinstance(iteration, dict) else None
    if not isinstance(outputs, dict):
        raise BundleError(f"{path}: is damaged; an iteration has no outputs")
    for place, (name, value) in zip(named(list(outputs)), outputs.items(), strict=True):
        if isinstance(place, LeftOut):
            yield place
        else:
            yield Item(place.name, Role.OUTPUT, place.path, place.call, load=partial(_load, value, f"{path}: {name}"))


def _names_by_pattern(pattern: NamePattern, names: list[str]) -> list[Place | LeftOut]:
    return [pattern.place(name) or LeftOut(name, f"its name does not match --name-pattern {pattern.text!r}") for name in names]


def _names(names: list[str]) -> list[Place | LeftOut]:
    """Where each output belongs, by what ONNX calls it."""
    modules = {name: _module(name) for name in names}
    last = {module: name for name, module in modules.items() if module}
    weights = {name for name in names if "." in name and "/" not in name}
    alone = len([name for name, module in modules.items() if not module and name not in weights]) == 1
    found: list[Place | LeftOut] = []
    for name, module in modules.items():
        if name in weights:
            found.append(LeftOut(name, "a weight, by its name, which is no output"))
        elif module and last[module] != name:
            found.append(LeftOut(name, "an operator's value inside a module; the module's last one stands for its output"))
        else:
            found.append(Place(module, Role.OUTPUT, "" if module or alone else name))
    return found


def _module(name: str) -> str:
    """The qualified name of the module in a name of ONNX; ``""`` if there is none."""
    match = _SCOPED.fullmatch(name)
    return match["module"].replace("/", ".") if match else ""


def _load(value: Any, place: str) -> Loaded:
    """The array in what stands for one: ``{"values": {"array": BASE64}}``, of older releases ``{"array": BASE64}``."""
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
    raise UnreadableError(f"{place}: holds no array of NumPy's; save outputs of NumPy, as the runners of ONNX Runtime and TensorRT give")


FORMAT = Format(
    DumpFormat.POLYGRAPHY.value,
    "Polygraphy",
    _recognise,
    _open,
    'a JSON file that begins with {"lst": [, of --save-outputs',
    takes_pattern=True,
)
