"""Tokens' experts, as Megatron's ``RouterTracer`` writes them (``--moe-routing-trace-path``).

``router_trace_rank{R}.jsonl`` has a line per call of a router: ``{"step", "block", "layer", "rank",
"num_tokens", "topk", "top_indices"}``, for multi-token prediction also ``mtp_idx``. If asked for,
the router's input and logits lie in ``hidden_states_rank{R}.bin`` and ``logits_rank{R}.bin``, in
bfloat16, and the line says where."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from accucompare.bundle.format import Role
from accucompare.dumps.dump_files import (
    UnreadableError,
    as_shape,
    inside,
    load_safetensors,
    size_of,
)
from accucompare.dumps.folders import files_in, folders_with
from accucompare.dumps.items import Dump, Format, Item, ItemPart, LoadedItem, Naming, NotImported
from accucompare.errors import BundleError, UsageError
from accucompare.selection import DumpFormat

_NAME = re.compile(r"router_trace_rank(\d{1,9})\.jsonl")
_LONGEST = 256 << 20  # bytes of a line; 65,536 tokens with 22 experts take about 8 MiB
_MOST_STEPS = 1 << 62
_EXPERTS = "top_indices"
#: Values in other files: the file, the prefix of the keys that say where, and what it is.
_BESIDE = (("hidden_states", "hs", Role.INPUT, "0"), ("logits", "logit", Role.OUTPUT, "logits"))
_NOTE = (
    "the experts of a token are in the order of their numbers, for the tracer does not say which"
    " was first"
)


#: Role, path, shape, and where the values are.
_Beside = tuple[Role, str, tuple[int, ...], tuple[Path, tuple[int, ...], int]]


@dataclass(frozen=True)
class _Line:
    """A call of a router: where its line is in the file, and its content without the experts."""

    at: int
    module: str
    shape: tuple[int, ...]
    beside: tuple[_Beside, ...]


def _belongs(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def _open(path: Path, naming: Naming) -> Dump:
    if path.is_file():
        files = [path]
    else:
        folders = folders_with(path, _belongs)
        if len(folders) != 1:
            several = (
                f"several traces ({folders[0]}, {folders[1]}, …); import one of them"
                if folders
                else "no router_trace_rank0.jsonl"
            )
            raise UsageError(f"{path}: holds {several}")
        files = [file for file in files_in(folders[0]) if _belongs(file.name)]
    of_ranks = {
        int(match[1]): file for file in files if (match := _NAME.fullmatch(file.name)) is not None
    }
    alone = len(of_ranks) == 1
    if 0 not in of_ranks and not alone:
        raise BundleError(f"{path}: lacks rank 0; import the file of one rank by itself, or all")
    traced: dict[int, dict[int, list[_Line]]] = {}
    for rank, file in sorted(of_ranks.items()):
        try:
            traced[rank] = _steps(file, rank)
        except OSError as error:
            raise BundleError(f"{file}: cannot be read ({error.strerror})") from None
    parts = [
        ItemPart(0 if alone else rank, step, _reader(of_ranks[rank], steps[step]))
        for rank, steps in traced.items()
        for step in sorted(steps)
    ]
    lines = [line for steps in traced.values() for each in steps.values() for line in each]
    roles = {Role.OUTPUT, *(beside[0] for line in lines for beside in line.beside)}
    of_one = (
        (f"of rank {min(of_ranks)} alone, which is rank 0 here",)
        if alone and 0 not in of_ranks
        else ()
    )
    notes = (_NOTE, *of_one)
    return Dump(tuple(sorted(roles)), parts=tuple(parts), root=False, notes=notes)


def _steps(file: Path, rank: int) -> dict[int, list[_Line]]:
    """Each line's content without the experts, by step. Raises BundleError if a line is damaged, or
    of another rank."""
    steps: dict[int, list[_Line]] = defaultdict(list)
    with file.open("rb") as opened:
        at, number = 0, 0
        while content := opened.readline(_LONGEST):
            number += 1
            try:
                found = json.loads(content)
                if found["rank"] != rank:
                    raise ValueError(f"it is of rank {str(found['rank'])[:20]}")
                step = found["step"]
                if type(step) is not int or not 0 <= step < _MOST_STEPS:
                    raise ValueError(f"the step {str(step)[:20]!r}")
                steps[step].append(
                    _Line(
                        at,
                        _module(found),
                        as_shape([found["num_tokens"], found["topk"]]),
                        tuple(_beside(file, found)),
                    )
                )
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise BundleError(
                    f"{file}: line {number} is damaged, or no router's ({type(error).__name__}:"
                    f" {str(error)[:80]})"
                ) from None
            at += len(content)
    return steps


def _module(found: dict[str, Any]) -> str:
    """The router's qualified name in Megatron."""
    layer, block = found["layer"], found["block"]
    head = found.get("mtp_idx")
    if block not in ("decoder", "mtp") or any(
        type(each) is not int for each in (layer, 0 if head is None else head)
    ):
        raise ValueError(f"the layer {str(layer)[:20]!r} of {str(block)[:20]!r}")
    if block == "decoder":
        return f"decoder.layers.{layer}.mlp.router"
    return f"mtp.layers.{head}.mtp_model_layer.layers.{layer}.mlp.router"


def _beside(file: Path, found: dict[str, Any]) -> Iterator[_Beside]:
    for name, prefix, role, place in _BESIDE:
        if f"{prefix}_offset" in found:
            at = found[f"{prefix}_offset"]
            if type(at) is not int or not 0 <= at < _MOST_STEPS:
                raise ValueError(f"{prefix}_offset is {str(at)[:20]!r}")
            shape = as_shape(found[f"{prefix}_shape"])
            yield (
                role,
                place,
                shape,
                (inside(file.parent, f"{name}_rank{found['rank']}.bin"), shape, at),
            )


def _reader(file: Path, lines: list[_Line]) -> Callable[[], Iterator[Item | NotImported]]:
    def items() -> Iterator[Item | NotImported]:
        calls: Counter[str] = Counter()
        for line in lines:
            values = [
                (role, path, "bfloat16", shape, partial(_load_beside, *where))
                for role, path, shape, where in line.beside
            ]
            values.append((Role.OUTPUT, _EXPERTS, "int32", line.shape, partial(_load, file, line)))
            for role, path, dtype, shape, load in values:
                yield Item(
                    line.module,
                    role,
                    path,
                    calls[line.module],
                    dtype,
                    shape,
                    load,
                    type="TopKRouter",
                )
            calls[line.module] += 1

    return items


def _load_beside(path: Path, shape: tuple[int, ...], at: int) -> LoadedItem:
    size = size_of(path)
    if at > size:
        raise UnreadableError(f"{path}: ends early")
    return load_safetensors(path, {"dtype": "BF16", "shape": shape, "at": at})


def _load(file: Path, line: _Line) -> LoadedItem:
    """Each token's experts, in ascending order."""
    try:
        with file.open("rb") as opened:
            opened.seek(line.at)
            experts = json.loads(opened.readline(_LONGEST))[_EXPERTS]
        if experts and np.array(experts).dtype.kind != "i":
            raise ValueError("they are no integers")
        array = (
            np.sort(np.array(experts, np.int32), axis=-1)
            if experts
            else np.zeros(line.shape, np.int32)
        )
    except OSError as error:
        raise UnreadableError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UnreadableError(
            f"{file}: the experts of {line.module} are damaged ({str(error)[:80]})"
        ) from None
    return LoadedItem(array, "int32")


ROUTER_TRACE_FORMAT = Format(
    DumpFormat.MEGATRON_ROUTER.value,
    "Megatron's RouterTracer",
    lambda path: _belongs(path.name) if path.is_file() else bool(folders_with(path, _belongs)),
    _open,
    "router_trace_rank<R>.jsonl",
)
