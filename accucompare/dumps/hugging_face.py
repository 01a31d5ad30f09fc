"""Dumps of Hugging Face's model debugger (``transformers.model_debugging_utils``), written with
``use_repr=False``.

``<class>_debug_tree_FULL_TENSORS.json`` is the tree of calls. Each tensor is a ``.safetensors``
beside it, named after its module alone, so that only the module's last call keeps its values. The
dump has only the forward, and only outputs of innermost modules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from accucompare.bundle.format import Layout, Role
from accucompare.dumps.dump_files import (
    UnreadableError,
    as_shape,
    inside,
    is_scalar,
    leaves_in_json,
    load_safetensors,
    read_json,
    safetensors_index,
    scalar,
)
from accucompare.dumps.items import Dump, Format, Item, ItemPart, LoadedItem, Naming, NotImported
from accucompare.errors import BundleError, UsageError
from accucompare.selection import DumpFormat
from accucompare.text import printable

_INDEX = "_debug_tree_FULL_TENSORS.json"
_SHAPE = re.compile(r"torch\.Size\(\[([\d, ]{0,1000})\]\)")
_LAYER = re.compile(r"(.*)\.(\d{1,9})", re.DOTALL)
_NUMBER = re.compile(r"-?(\d{1,400}(\.\d{1,400})?(e[+-]?\d{1,4})?|inf)|nan")
_FLOAT = re.compile(r"[.en]")
_OVERWRITTEN = "a later call of the same module has overwritten its file"
_NO_TENSOR = "no tensor, of which the dump has the text only"


def _recognise(path: Path) -> bool:
    return path.name.endswith((_INDEX, "_debug_tree_SUMMARY.json")) or (
        path.is_dir() and next(path.glob(f"*{_INDEX}"), None) is not None
    )


def _open(path: Path, naming: Naming) -> Dump:
    if path.is_dir():
        indices = sorted(path.glob(f"*{_INDEX}"))
        if len(indices) > 1:
            raise UsageError(
                f"{path}: holds dumps of {len(indices)} models; import one of them:"
                f" {printable(str(indices[0]))}"
            )
        if not indices:
            raise BundleError(f"{path}: holds no *{_INDEX} of Hugging Face's model debugger")
        path = indices[0]
    if not path.name.endswith(_INDEX):
        raise UsageError(f"{path}: is the summary, without values; import its *{_INDEX}")
    tree = _Tree(path, read_json(path))
    part = ItemPart(0, 0, tree.items, lambda: tree.modules)
    pruned = tuple(tree.pruned())
    return Dump((Role.INPUT, Role.OUTPUT), parts=(part,), innermost_outputs=True, pruned=pruned)


@dataclass(frozen=True)
class _Call:
    """A call in the tree."""

    name: str
    call: int
    parent: tuple[str, int] | None
    node: dict[str, Any]


@dataclass
class _Tree:
    """The tree of calls of one forward."""

    path: Path
    root: Any
    modules: dict[str, str] = field(default_factory=dict)

    def items(self) -> Iterator[Item | NotImported]:
        """Each call's inputs, its children's items, its outputs."""
        files = Counter(
            file
            for begins, call in self.calls()
            for _, value in _values(call, begins)
            if (file := _file(value))
        )
        for begins, call in self.calls():
            place = Item(
                call.name,
                Role.INPUT if begins else Role.OUTPUT,
                call=call.call,
                type=self.modules[call.name],
                parent=call.parent,
            )
            for path, value in _values(call, begins):
                yield from self._item(replace(place, path=path), value, files)

    def calls(self) -> Iterator[tuple[bool, _Call]]:
        """Each call twice: when it began (True), and when it ended."""
        if not isinstance(self.root, dict) or not isinstance(self.root.get("module_path"), str):
            raise BundleError(f"{self.path}: is no tree of calls of Hugging Face's model debugger")
        model, counts = self.root["module_path"], Counter[str]()
        self.modules = {"": model}
        stack = [(True, _Call("", 0, None, self.root))]
        while stack:
            begins, call = stack.pop()
            yield begins, call
            if not begins:
                continue
            stack.append((False, call))
            below = []
            for child in self._children(call.node):
                name = child["module_path"].removeprefix(f"{model}.")
                self.modules[name] = ""
                below.append((True, _Call(name, counts[name], (call.name, call.call), child)))
                counts[name] += 1
            stack += reversed(below)

    def _children(self, node: dict[str, Any]) -> list[dict[str, Any]]:
        children = node.get("children", [])
        if not isinstance(children, list) or not all(
            isinstance(each, dict) and isinstance(each.get("module_path"), str) for each in children
        ):
            raise BundleError(
                f"{self.path}: is damaged; the children of {str(node.get('module_path'))[:200]!r}"
                " are no calls"
            )
        return children

    def pruned(self) -> Iterator[str]:
        """The lists of layers of which ``do_prune_layers`` kept only the first and the last."""
        layers: dict[tuple[str, int, str], list[int]] = {}
        for begins, call in self.calls():
            if begins and call.parent is not None and (match := _LAYER.fullmatch(call.name)):
                layers.setdefault((*call.parent, match[1]), []).append(int(match[2]))
        yield from (
            name
            for (_, _, name), numbers in layers.items()
            if len(numbers) == 2 and numbers[1] > numbers[0] + 1
        )

    def _item(self, place: Item, value: Any, files: Counter[str]) -> Iterator[Item | NotImported]:
        what = f"{place.name} call {place.call} {place.role.value}.{place.path}"
        if not _is_tensor(value):
            if (number := _number(value)) is not None:
                yield replace(place, layout=Layout.SCALAR, load=partial(scalar, number))
            elif value not in ("None", None):
                yield NotImported(what, _NO_TENSOR)
            return
        match = _SHAPE.fullmatch(str(value["shape"]))
        try:
            shape = as_shape(
                [int(length) for length in match[1].split(",") if length.strip()]
                if match
                else value["shape"]
            )
        except ValueError as error:
            raise BundleError(f"{self.path}: {what} has {error}") from None
        file = _file(value)
        if file is None:
            raise UsageError(
                f"{printable(str(self.path))}: holds values as text of four digits (use_repr=True);"
                " write it with use_repr=False"
            )
        files[file] -= 1
        if files[file]:
            yield NotImported(what, _OVERWRITTEN)
            return
        load = partial(_load, inside(self.path.parent, file))
        yield replace(
            place, dtype=str(value["dtype"]).removeprefix("torch."), shape=shape, load=load
        )


def _is_tensor(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("shape"), str)
        and isinstance(value.get("dtype"), str)
    )


def _number(value: Any) -> bool | int | float | None:
    """The Python number that a text stands for exactly; ``None`` for other values."""
    if value in ("True", "False"):
        return bool(value == "True")
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return None
    number = float(value) if _FLOAT.search(value) else int(value)
    return number if is_scalar(number) else None


def _file(value: Any) -> str | None:
    """The file that holds a tensor's values; ``None`` if it has none."""
    found = value.get("value") if _is_tensor(value) else None
    return found if isinstance(found, str) else None


def _values(call: _Call, inputs: bool) -> Iterator[tuple[str, Any]]:
    """The inputs or the outputs of a call, with their paths."""
    given = call.node.get("inputs")
    if not inputs:
        yield from leaves_in_json(call.node.get("outputs"), _is_tensor)
    elif isinstance(given, dict):
        yield from leaves_in_json(given.get("args"), _is_tensor)
        yield from leaves_in_json(given.get("kwargs"), _is_tensor)


def _load(path: Path) -> LoadedItem:
    index = safetensors_index(path)
    if "data" not in index:
        raise UnreadableError(f"{path}: holds no tensor 'data'")
    return load_safetensors(path, index["data"])


HUGGING_FACE_FORMAT = Format(
    DumpFormat.HUGGING_FACE.value, "Hugging Face's model debugger", _recognise, _open, f"*{_INDEX}"
)
