"""What every reader of another tool's dump gives: items in execution order, and what has no
counterpart in a bundle.

A ``Format`` (a line of ``formats.FORMATS``) recognises a path and opens it as a ``Dump``. A dump
has a part for each step of each rank. A part yields its items in execution order: a call's inputs
before its children's items, its outputs after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from accucompare.bundle.format import DumpFacts, Layout, Role
from accucompare.numbers import Array, Statistics


@dataclass(frozen=True)
class Item:
    """One tensor of a dump, under the name that a capture would give it.

    Attributes:
        name, call, role, path: as of a record. ``Role.PARAM`` is a weight: no record, but its
            digest goes into the manifest.
        dtype: PyTorch's name without ``torch.``; ``""`` if unknown before loading.
        shape: as the dump's index says; ``None`` if unknown before loading.
        load: the values; ``None`` where the dump has none. Raises ``UnreadableError``.
        statistics: without ``load``, those that the tool computed in the tensor's own precision.
            ``nan`` and ``inf`` are 1 if there are any, where the tool does not count them.
        type: the module's class, or the operator's name; ``""`` if the dump does not say.
        parent: (qualified name, call index) of the call around it; ``None`` for the root's, and
            where the dump does not say.
        layout, detail: of what is no tensor: ``Layout.OPAQUE`` and what it was, or
            ``Layout.SCALAR`` and a ``load`` of its value.
    """

    name: str
    role: Role
    path: str = ""
    call: int = 0
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    load: Callable[[], LoadedItem] | None = None
    statistics: Statistics | None = None
    type: str = ""
    parent: tuple[str, int] | None = None
    layout: Layout = Layout.STRIDED
    detail: str = ""


@dataclass(frozen=True)
class LoadedItem:
    """Values that were read: bits of ``DTYPES[dtype].storage``, C-contiguous."""

    array: Array
    dtype: str


@dataclass(frozen=True)
class NotImported:
    """Something in a dump that has no counterpart in a bundle, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class ItemPart:
    """One step of one rank."""

    rank: int
    step: int
    # yields each key once, in execution order, and what is left out; reads the part's index when
    # called. Raises ``BundleError`` if that is damaged.
    items: Callable[[], Iterator[Item | NotImported]]
    # the class of each module that the dump names, by qualified name; called after ``items`` is
    # exhausted
    modules: Callable[[], dict[str, str]] = dict


class Dump(DumpFacts, frozen=True, kw_only=True):
    """A dump that was opened."""

    parts: tuple[ItemPart, ...]  # by rank and step, each once
    # where it ran, as in a manifest: ``{"versions": {"torch": …}}``
    environment: dict[str, Any] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what a reader of the bundle is to know, one sentence each


@dataclass(frozen=True)
class Naming:
    """What the user says of a dump's names: their pattern, and the ONNX model of the values."""

    pattern: str | None = None
    onnx: Path | None = None


@dataclass(frozen=True)
class Format:
    """A format of dumps."""

    name: str
    title: str  # the tool, as messages call it
    # whether a path looks like one; cheap, and never raises for hostile content
    recognise: Callable[[Path], bool]
    # opens it, by what the user says of its names. Raises ``BundleError`` or ``UsageError``.
    open: Callable[[Path, Naming], Dump]
    looks_like: str  # what ``recognise`` looks for, in words, for messages and help
    # takes_pattern, takes_onnx: whether it uses a name pattern, and an ONNX model
    takes_pattern: bool = False
    takes_onnx: bool = False
    generic: bool = False  # whether it is taken only if no other format is recognised
