"""Hashes of operators, as torch's ``DebugMode`` logs them: the text of ``debug_string()`` under
``DebugMode.log_tensor_hashes()``.

Each operator that ran is a line that ends in ``# {'hash': …}``: each tensor's L1 norm in float64
(``norm``), the XOR of its values' bits (``hash_tensor``), or a tuple of both. The indentation of
lines ``[nn.Mod] Root.layers.0`` says which module called."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from accucompare.bundle.format import Layout, Role
from accucompare.dumps.dump_files import UnreadableError, size_of
from accucompare.dumps.items import Dump, Format, Item, ItemPart, LoadedItem, Naming, NotImported
from accucompare.errors import BundleError
from accucompare.selection import DumpFormat

_MOST = 256 << 20  # bytes of a log
_LONGEST = 1 << 20  # characters of a line; an operator on lists of tensors takes some thousands
_LOOKED_AT = 64 << 10  # bytes read to recognise a log
_MODULE = re.compile(r"(?P<indent> *)\[nn\.Mod\] (?P<name>\S.*)")
_CALL = re.compile(r"(?P<indent> *)(?P<operator>\w+::\w+(?:\.\w+)?)\(")
_LOGGED = "  # {"
#: ``nan`` and ``inf`` as Python prints them, which are no literals.
_NO_LITERAL = re.compile(r"(?<![\w'\"])(nan|inf)(?![\w'\"])")
# a stack trace, or anything else between operators
_OTHER = re.compile(r"\s*(?:#.*|\[(?!triton\]).*)?")
#: The kind of a hash, by its type.
_KINDS = {float: "norm", int: "hash_tensor"}


def _recognise(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_LOOKED_AT).decode("utf-8", "replace")
    except OSError:
        return False
    lines = head.splitlines()
    return any(_CALL.match(line) and "  ->  " in line for line in lines) and any(
        _MODULE.match(line) or _LOGGED in line for line in lines
    )


def _open(path: Path, naming: Naming) -> Dump:
    try:
        if size_of(path) > _MOST:
            raise BundleError(f"{path}: is larger than {_MOST >> 20} MiB; refused")
        items = list(_items(path))
    except UnreadableError as error:
        raise BundleError(str(error)) from None
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise BundleError(f"{path}: is no text ({error})") from None
    hashed = [item for item in items if isinstance(item, Item)]
    if not hashed:
        raise BundleError(
            f"{path}: holds no hash; log them: with DebugMode(record_nn_module=True),"
            " DebugMode.log_tensor_hashes(): …"
        )
    kinds = {item.path.rpartition(".")[2] for item in hashed}
    roles = {item.role for item in hashed}
    note = (
        "hashes of what operators give, and no values: they say which is the first that differs;"
        " compare it with another such log"
    )
    part = ItemPart(0, 0, lambda: iter(items))
    return Dump(tuple(sorted(roles)), parts=(part,), hashes=tuple(sorted(kinds)), notes=(note,))


def _items(path: Path) -> Iterator[Item | NotImported]:
    """The hashes of each call of an operator, in execution order."""
    modules: list[tuple[int, str]] = []
    calls: Counter[str] = Counter()
    for number, line in enumerate(_lines(path), 1):
        if (match := _MODULE.fullmatch(line)) is not None:
            _leave(modules, len(match["indent"]))
            modules.append((len(match["indent"]), match["name"]))
            continue
        match = _CALL.match(line)
        if match is None:
            if _OTHER.fullmatch(line) is None:
                yield NotImported(f"line {number}, {line.strip()[:80]}", "it is no operator's")
            continue
        _leave(modules, len(match["indent"]))
        operator = match["operator"].partition("::")[2]
        name = ".".join(
            filter(None, (modules[-1][1].partition(".")[2] if modules else "", operator))
        )
        call = calls[name]
        calls[name] += 1
        try:
            hashes = list(_hashes(line))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            raise BundleError(
                f"{path}: line {number} is damaged, or hashed otherwise ({str(error)[:80]})"
            ) from None
        if not hashes:
            yield NotImported(f"{name} call {call}", "it has no hash")
        for role, place, value in hashes:
            yield Item(
                name,
                role,
                place,
                call,
                load=partial(_load, value),
                type=match["operator"],
                layout=Layout.SCALAR,
            )


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        while line := file.readline(_LONGEST + 1):
            if len(line) > _LONGEST:
                raise BundleError(
                    f"{path}: has a line of more than {_LONGEST:,} characters; refused"
                )
            yield line.rstrip("\n")


def _leave(modules: list[tuple[int, str]], indent: int) -> None:
    """Drop the modules that ended before a line with this indentation."""
    while modules and modules[-1][0] >= indent:
        modules.pop()


def _hashes(line: str) -> Iterator[tuple[Role, str, float | int]]:
    """The hashes at the end of a line: role, path and value, inputs first. Raises ValueError,
    SyntaxError, TypeError, RecursionError, MemoryError if it is no table of plain values."""
    at = line.rfind(_LOGGED)
    if at < 0:
        return
    logged = ast.literal_eval(_NO_LITERAL.sub(r"'\1'", line[at + len(_LOGGED) - 1 :]))
    if not isinstance(logged, dict):
        raise ValueError("it is no table")
    inputs = logged.get("input_hash", ())
    if inputs:
        positional, named = inputs
        yield from _leaves(Role.INPUT, positional, ())
        yield from _leaves(Role.INPUT, named, ())
    yield from _leaves(Role.OUTPUT, logged.get("hash"), ())


def _leaves(
    role: Role, value: Any, place: tuple[str, ...]
) -> Iterator[tuple[Role, str, float | int]]:
    if value in ("nan", "inf"):
        value = float(value)
    if type(value) in _KINDS:
        if type(value) is int and not 0 <= value < 1 << 64:
            raise ValueError(f"{value} is no number of 64 bits")
        yield role, ".".join((*place, _KINDS[type(value)])), value
    elif isinstance(value, tuple) and len(value) == 2 and _is_both(value):
        for each in value:
            yield from _leaves(role, each, place)
    elif isinstance(value, (tuple, list, dict)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(role, each, (*place, str(key)))
    elif value is not None:
        raise ValueError(f"{str(value)[:40]!r} is no hash")


def _is_both(value: tuple[Any, Any]) -> bool:
    """Whether a tuple is both hashes of one tensor; hashes of two tensors have one kind."""
    return {
        float if each in ("nan", "inf") else type(each)
        for each in value
        if not isinstance(each, (tuple, list, dict))
    } == {float, int}


def _load(value: float | int) -> LoadedItem:
    """A norm as float64; an XOR of bits as uint64, which must be equal."""
    if isinstance(value, float):
        return LoadedItem(np.array(value, np.float64), "float64")
    return LoadedItem(np.array(value, np.uint64), "uint64")


DEBUG_MODE_FORMAT = Format(
    DumpFormat.DEBUG_MODE.value,
    "DebugMode",
    _recognise,
    _open,
    "the text of debug_string(), with log_tensor_hashes()",
)
