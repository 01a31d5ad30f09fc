"""What every reader of another tool's dump gives: items in execution order, and what has no
counterpart in a bundle.

A format is one line of ``formats.FORMATS``: a ``Format`` that recognises a path and opens it as a
``Dump``. A dump has a part for each step of each rank; a part yields its items in execution order,
the inputs of a call before those of its children, its outputs after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accucompare.bundle.format import Layout, Role
from accucompare.numbers import Array, Statistics


@dataclass(frozen=True)
class Item:
    """One tensor of a dump, under the name that a capture would give it.

    Attributes:
        name, call, role, path: as of a record. ``Role.PARAM`` is a weight: its digest goes into the
            manifest, and it is no record.
        dtype: PyTorch's name without ``torch.``; ``""`` if it is not known before the values are
            loaded.
        shape: as the dump's index says; ``None`` if it is not known before the values are loaded.
        load: the values; ``None`` where the dump has none. Raises ``UnreadableError``.
        statistics: of a dump without values, as its tool computed them, in the tensor's own
            precision; ``None`` with ``load``. ``nan`` and ``inf`` are 1 where the tool says that
            there are any, for it does not count them.
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
    """Something in a dump that has no counterpart in a bundle: what, and why."""

    what: str
    why: str


class UnreadableError(Exception):
    """The values of one item cannot be read: the message says which file, and why. The item is
    listed, and the others are imported."""


@dataclass(frozen=True)
class ItemPart:
    """One step of one rank.

    Attributes:
        rank, step: which.
        items: yields its items in execution order, each key once, and what is left out; reads the
            part's index when it is called. Raises ``BundleError`` if that is damaged.
        modules: the class of each module that the dump names, by qualified name; called after
            ``items`` is exhausted.
    """

    rank: int
    step: int
    items: Callable[[], Iterator[Item | NotImported]]
    modules: Callable[[], dict[str, str]] = dict


@dataclass(frozen=True)
class Dump:
    """A dump that was opened.

    Attributes:
        parts: by rank and step, each once.
        roles: those that its tool can record. What a bundle lacks of another role is no difference.
        root: whether its tool records the root module.
        named_gradients: whether its tool records the gradients of inputs that are passed by name.
        innermost_outputs: whether it records the outputs of modules without children only.
        pruned: lists of layers, by name, of which it has left some out.
        partial: whether it holds single values, and not all calls of all layers: what has no
            partner then is no difference.
        hashes: what it holds of each tensor in place of values, by the ends of paths; none if it
            holds values.
        environment: what it says of where it ran, as in a manifest: ``{"versions": {"torch": …}}``.
        notes: what a reader of the bundle is to know, one sentence each.
    """

    parts: tuple[ItemPart, ...]
    roles: tuple[Role, ...]
    root: bool = True
    named_gradients: bool = True
    partial: bool = False
    innermost_outputs: bool = False
    pruned: tuple[str, ...] = ()
    hashes: tuple[str, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Naming:
    """What the user said of a dump's names: how they are read, and the ONNX model whose values they
    are."""

    pattern: str | None = None
    onnx: Path | None = None


@dataclass(frozen=True)
class Format:
    """A format of dumps.

    Attributes:
        name: as ``--from`` gives it.
        title: the tool, as messages call it.
        recognise: whether a path looks like one; cheap, and never raises for hostile content.
        open: opens it, by what the user said of its names. Raises ``BundleError`` or
            ``UsageError``.
        takes_pattern, takes_onnx: whether a name pattern, and an ONNX model, mean something to it.
        generic: whether it is taken only if no other format is recognised.
        looks_like: what ``recognise`` goes by, in words, for messages and help.
    """

    name: str
    title: str
    recognise: Callable[[Path], bool]
    open: Callable[[Path, Naming], Dump]
    looks_like: str
    takes_pattern: bool = False
    takes_onnx: bool = False
    generic: bool = False
