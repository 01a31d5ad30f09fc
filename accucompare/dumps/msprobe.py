"""msprobe's dumps (``mindstudio-probe``): ``step<N>/rank<R>/dump.json`` and a ``.pt`` per tensor,
or statistics alone.

``dump.json`` lists the calls as they ended; ``construct.json`` says which call made each. Together
they give the execution order. A call is ``Module.<qualified name>.<class>.forward.<call>``; in its
``backward``, ``input`` holds the gradients of its outputs, ``output`` those of its inputs. Calls of
functions (``Functional.linear.0.forward``, levels L1 and mix) are numbered through the whole model
and have no counterpart: they are not the operators that a capture records."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from accucompare.bundle.format import WRAPPER_NAMES, Layout, Role
from accucompare.dumps.dump_files import (
    as_shape,
    inside,
    is_scalar,
    leaves_in_json,
    load_npy,
    load_pt,
    of_tensor,
    read_json,
    scalar,
)
from accucompare.dumps.items import Dump, Format, Item, ItemPart, LoadedItem, Naming, NotImported
from accucompare.errors import BundleError, UsageError
from accucompare.numbers import Statistics
from accucompare.selection import DumpFormat

INDEX = "dump.json"
_STEP = re.compile(r"step(\d{1,18})")
_RANK = re.compile(r"rank(\d{1,9})")
_PROCESS = re.compile(r"proc\d+")
_OF_MODULE = re.compile(
    r"(?:Module|Cell)\.(?P<name>.+)\.(?P<type>[^.]+)"
    r"\.(?P<kind>forward|backward|parameters_grad)\.(?P<call>\d{1,18})",
    re.DOTALL,
)
_ROLES = (Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.PARAM_GRAD)
_OF_FUNCTION = (
    "a call of a function, which msprobe numbers through the whole model; a bundle holds calls of"
    " modules (levels L0 and mix)"
)
#: The whole model's call, around the outermost ones; msprobe does not record it.
_ROOT = ("", 0)
_ROOT_NOTE = "msprobe does not record the call of the whole model, nor what the optimizer does"


def _recognise(path: Path) -> bool:
    return bool(_folders(path))


def _folders(path: Path) -> list[tuple[int | None, int | None, Path]]:
    """Step, rank and folder of each ``dump.json`` below a path; ``None`` where it names none."""
    if path.name == INDEX:
        path = path.parent
    if (path / INDEX).is_file():
        return [(None, None, path)]
    steps: list[tuple[int | None, Path]]
    steps = [
        (int(found[1]), each) for each in _entries(path) if (found := _STEP.fullmatch(each.name))
    ] or [(None, path)]
    return [
        (step, int(found[1]) if (found := _RANK.fullmatch(each.name)) else None, each)
        for step, folder in sorted(steps, key=lambda each: each[0] or 0)
        for each in ([folder] if (folder / INDEX).is_file() else _entries(folder))
        if (each / INDEX).is_file()
        and (each == folder or _RANK.fullmatch(each.name) or _PROCESS.fullmatch(each.name))
    ]


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _open(path: Path, naming: Naming) -> Dump:
    folders = _folders(path)
    if not folders:
        raise BundleError(
            f"{path}: holds no {INDEX} of msprobe's, neither there nor in step<N>/rank<R> or"
            " step<N>/proc<PID>"
        )
    places: dict[tuple[int, int], Path] = {}
    for step, rank, folder in folders:
        place = rank or 0, step or 0
        if place in places:
            raise UsageError(
                f"{path}: holds two dumps of step {place[1]}, {places[place]} and {folder}; import"
                f" one of them: {folder}"
            )
        places[place] = folder
    ranks = {rank for rank, _ in places}
    if 0 not in ranks:
        raise BundleError(
            f"{path}: lacks rank 0 of its dump; import a rank by itself, such as {folders[0][2]}"
        )
    parts = tuple(_part(*place, folder) for place, folder in sorted(places.items()))
    return Dump(_ROLES, parts=parts, root=False, named_gradients=False, notes=(_ROOT_NOTE,))


def _part(rank: int, step: int, folder: Path) -> ItemPart:
    index = _Index(folder)
    return ItemPart(rank, step, index.items, lambda: index.modules)


@dataclass
class _Entry:
    """A line of ``dump.json`` about a module."""

    key: str
    name: str
    type: str
    call: int
    content: dict[str, Any]


@dataclass
class _Index:
    """The ``dump.json`` of one step of one rank."""

    folder: Path
    modules: dict[str, str] = field(default_factory=dict)

    def items(self) -> Iterator[Item | NotImported]:
        found = read_json(self.folder / INDEX)
        data = found.get("data") if isinstance(found, dict) else None
        if not isinstance(data, dict):
            raise BundleError(
                f"{self.folder / INDEX}: is no index of msprobe's (it has no table 'data')"
            )
        parents = self._parents()
        entries: dict[str, dict[str, _Entry]] = {
            "forward": {},
            "backward": {},
            "parameters_grad": {},
        }
        for key, content in data.items():
            match = _OF_MODULE.fullmatch(key)
            if match is None:
                yield NotImported(key, _OF_FUNCTION)
            elif not isinstance(content, dict):
                raise BundleError(f"{self.folder / INDEX}: {key[:200]!r} is no table")
            else:
                entries[match["kind"]][key] = _Entry(
                    key, match["name"], match["type"], int(match["call"]), content
                )
        self._rename(entries)
        if (self.folder / "dump_error_info.log").exists():
            yield NotImported("what dump_error_info.log lists", "msprobe could not dump it")
        forward = _ended(entries["forward"])
        inside_of = around(forward, parents)
        weights: set[tuple[str, str]] = set()
        by_key = entries["forward"]
        parent_of = {
            key: _ROOT if above is None else (by_key[above].name, by_key[above].call)
            for key, above in inside_of.items()
        }
        for begins, entry in self._in_order(forward, inside_of):
            yield from self._forward(entry, parent_of[entry.key], begins, weights)
        backward = _ended(entries["backward"])
        for begins, entry in self._in_order(backward, around(backward, parents)):
            key = ".forward.".join(entry.key.rsplit(".backward.", 1))
            yield from self._backward(entry, by_key.get(key), parent_of.get(key), begins)
        yield from self._gradients(entries["parameters_grad"])

    def _in_order(
        self, ended: list[EndedCall[_Entry]], parents: dict[str, str | None]
    ) -> Iterator[tuple[bool, _Entry]]:
        try:
            yield from order_of_calls(ended, parents)
        except ValueError as error:
            raise BundleError(f"{self.folder / 'construct.json'}: is damaged ({error})") from None

    def _parents(self) -> dict[str, str | None]:
        """The call that made each call; empty without ``construct.json``."""
        path = self.folder / "construct.json"
        found = read_json(path) if path.is_file() else {}
        if not isinstance(found, dict):
            raise BundleError(f"{path}: is no table of calls")
        # Megatron's are in a list
        under = {
            key: each[0] if isinstance(each, list) and each else each for key, each in found.items()
        }
        return {key: each if isinstance(each, str) else None for key, each in under.items()}

    def _rename(self, entries: dict[str, dict[str, _Entry]]) -> None:
        """Take off wrappers' names as a capture does, and ``module.`` if every name has it."""
        every = [entry for table in entries.values() for entry in table.values()]
        for entry in every:
            entry.name = ".".join(
                part for part in entry.name.split(".") if part not in WRAPPER_NAMES
            )
        while every and all(
            entry.name == "module" or entry.name.startswith("module.") for entry in every
        ):
            for entry in every:
                entry.name = entry.name.removeprefix("module").removeprefix(".")
        self.modules = {entry.name: entry.type for entry in every}

    def _forward(
        self, entry: _Entry, parent: tuple[str, int], begins: bool, weights: set[tuple[str, str]]
    ) -> Iterator[Item | NotImported]:
        """The inputs of a call and the weights of its module, or its outputs."""
        place = Item(entry.name, Role.INPUT, call=entry.call, type=entry.type, parent=parent)
        if not begins:
            for path, value in _outputs(entry):
                yield from self._value(replace(place, role=Role.OUTPUT, path=path), value)
            return
        for name, value in _table(entry, "parameters").items():
            if _is_tensor(value) and (entry.name, name) not in weights:
                weights.add((entry.name, name))
                yield from self._value(replace(place, role=Role.PARAM, path=name), value)
        for path, value in (
            *_leaves(_list(entry, "input_args")),
            *_leaves(_table(entry, "input_kwargs")),
        ):
            yield from self._value(replace(place, path=path), value)

    def _backward(
        self, entry: _Entry, forward: _Entry | None, parent: tuple[str, int] | None, begins: bool
    ) -> Iterator[Item | NotImported]:
        """The gradients that arrive at a call's outputs, or those that it gives to its inputs."""
        role, what = (Role.GRAD_OUTPUT, "input") if begins else (Role.GRAD_INPUT, "output")
        gradients = [value for _, value in _leaves(_list(entry, what)) if _is_tensor(value)]
        if forward is None:
            paths = _paths(_list(entry, what), unpacked=begins)
        else:
            paths = _differentiated(
                _outputs(forward) if begins else list(_leaves(_list(forward, "input_args")))
            )
        if len(paths) != len(gradients) and gradients:
            yield NotImported(
                f"{entry.key} {what}",
                "its gradients cannot be told apart: another number of tensors of the call"
                " requires one",
            )
            return
        place = Item(entry.name, role, call=entry.call, type=entry.type, parent=parent or _ROOT)
        for path, value in zip(paths, gradients, strict=bool(gradients)):
            yield from self._value(replace(place, path=path), value)

    def _gradients(self, entries: dict[str, _Entry]) -> Iterator[Item | NotImported]:
        """The gradients of parameters, unless several backwards of one step added to them."""
        several = {entry.name for entry in entries.values() if entry.call}
        for entry in entries.values():
            if entry.name in several:
                yield NotImported(
                    entry.key,
                    "one of several backwards in a step; a bundle holds the sum of their gradients",
                )
                continue
            for name, values in entry.content.items():
                for value in values if isinstance(values, list) else [values]:
                    if _is_tensor(value):
                        yield from self._value(
                            Item(entry.name, Role.PARAM_GRAD, name, type=entry.type, parent=_ROOT),
                            value,
                        )

    def _value(self, place: Item, value: Any) -> Iterator[Item | NotImported]:
        """What the index says of one value, as an item."""
        # None is no value; a text stands for what msprobe could not look into
        if not isinstance(value, dict):
            return
        what = f"{place.name} call {place.call} {place.role.value}.{place.path}"
        if not _is_tensor(value):
            number = value.get("value")
            if is_scalar(number) and value.get("type") in ("bool", "int", "float"):
                yield replace(place, layout=Layout.SCALAR, load=partial(scalar, number))
            else:
                yield NotImported(what, "neither a tensor nor a number")
            return
        dtype = str(value["dtype"]).rpartition(".")[2].lower()
        try:
            shape = as_shape(value["shape"])
        except ValueError as error:
            raise BundleError(f"{self.folder / INDEX}: {what} has {error}") from None
        name = value.get("data_name")
        if isinstance(name, str) and name not in ("", "-1"):
            load = _loader(inside(self.folder / "dump_tensor_data", name))
            yield replace(place, dtype=dtype, shape=shape, load=load)
        else:
            yield replace(place, dtype=dtype, shape=shape, statistics=_statistics(value))


def _ended(entries: dict[str, _Entry]) -> list[EndedCall[_Entry]]:
    return [EndedCall(key, entry.name, entry) for key, entry in entries.items()]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and "dtype" in value and "shape" in value


def _list(entry: _Entry, name: str) -> list[Any]:
    found = entry.content.get(name)
    return found if isinstance(found, list) else []


def _table(entry: _Entry, name: str) -> dict[str, Any]:
    found = entry.content.get(name)
    return found if isinstance(found, dict) else {}


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """The tensors and other values in nested lists and tables, with their paths."""
    return leaves_in_json(value, lambda each: _is_tensor(each) or {"type", "value"} <= each.keys())


def _outputs(entry: _Entry) -> list[tuple[str, Any]]:
    """What a call returned. A single value is a list of one, and so is a tuple of one."""
    found = _list(entry, "output")
    return list(_leaves(found[0] if len(found) == 1 else found))


def _paths(values: list[Any], unpacked: bool) -> list[str]:
    """The paths of some gradients, without a forward. ``unpacked``: a single one has no path."""
    return [
        path
        for path, value in _leaves(values[0] if unpacked and len(values) == 1 else values)
        if _is_tensor(value)
    ]


def _differentiated(values: list[tuple[str, Any]]) -> list[str]:
    """The paths of the tensors that a backward goes to."""
    return [path for path, value in values if _is_tensor(value) and value.get("requires_grad")]


def _loader(path: Path) -> Callable[[], LoadedItem]:
    return (
        partial(load_npy, path) if path.suffix == ".npy" else lambda: of_tensor(load_pt(path), path)
    )


def _number(value: Any) -> int | float | None:
    """A number of the index; ``None`` for anything else, and for integers beyond any tensor."""
    held = isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 64)
    return value if held else None


def _statistics(value: dict[str, Any]) -> Statistics | None:
    """What msprobe computed, in the tensor's type. NaN and Inf show in the extrema, uncounted."""
    most, least, mean, norm = (
        _number(each) for each in map(value.get, ("Max", "Min", "Mean", "Norm"))
    )
    if most is None or least is None:
        return None
    if math.isnan(most) or math.isnan(least):
        return Statistics(None, None, None, None, nan=1, inf=0)
    if math.isinf(most) or math.isinf(least):
        return Statistics(None, None, None, None, nan=0, inf=1)
    mean, norm = (
        None if each is None or not math.isfinite(each) else float(each) for each in (mean, norm)
    )
    return Statistics(least, most, mean, norm, nan=0, inf=0)


MSPROBE_FORMAT = Format(
    DumpFormat.MSPROBE.value,
    "msprobe",
    _recognise,
    _open,
    "dump.json, in step<N>/rank<R> or step<N>/proc<PID>",
)


_T = TypeVar("_T")


@dataclass(frozen=True)
class EndedCall(Generic[_T]):
    """A call: its key, its qualified name, and the caller's own object for it."""

    key: str
    name: str
    entry: _T


def around(
    ended: Sequence[EndedCall[_T]], parents: Mapping[str, str | None]
) -> dict[str, str | None]:
    """The call that made each of these calls; ``None`` for the outermost.

    Args:
        ended: calls in the order in which they ended.
        parents: the call that made each, as the dump says. It may name calls that are not among
            these, and lack some: a missing parent is the next call to end whose name begins the
            call's name.
    """
    keys = {call.key for call in ended}
    found: dict[str, str | None] = {}
    pending: list[EndedCall[_T]] = []
    for call in ended:
        while pending and pending[-1].name.startswith(f"{call.name}."):
            found[pending.pop().key] = call.key
        if call.key not in parents:
            pending.append(call)
            continue
        above, seen = parents[call.key], {call.key}
        while above is not None and above not in keys and above not in seen:
            seen.add(above)
            above = parents.get(above)
        found[call.key] = above if above in keys else None
    return {**found, **{call.key: None for call in pending}}


def order_of_calls(
    ended: Sequence[EndedCall[_T]], parents: Mapping[str, str | None]
) -> Iterator[tuple[bool, _T]]:
    """Each call twice: when it began (True), and when it ended. Calls in one call come in the order
    in which they ended. Raises ValueError if the parents form a circle.

    Args:
        ended: calls in the order in which they ended.
        parents: as ``around`` gives them.
    """
    children: dict[str | None, list[EndedCall[_T]]] = {}
    for call in ended:
        children.setdefault(parents[call.key], []).append(call)
    stack = [(True, call) for call in reversed(children.get(None, []))]
    begun = 0
    while stack:
        begins, call = stack.pop()
        yield begins, call.entry
        if begins:
            begun += 1
            stack.append((False, call))
            stack += [(True, child) for child in reversed(children.get(call.key, []))]
    if begun != len(ended):
        raise ValueError(f"{len(ended) - begun} calls are in one another")
