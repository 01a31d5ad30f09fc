"""Modules that another version of a model calls otherwise: what ``--map`` options make of golden's names."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from accucompare.compare.align import Rename, Renaming, Signatures, claims, counterparts, rename, rename_parameter
from accucompare.errors import UsageError

AUTO = "auto"

#: A manifest's ``model``, or as much of it as is known: modules, parameters, buffers.
Model = Mapping[str, Any]

#: What a map renames, and how.
_KINDS: dict[str, Rename] = {"modules": rename, "parameters": rename_parameter, "buffers": rename_parameter}


def read_maps(given: str | Iterable[str]) -> tuple[list[Renaming], bool]:
    """The renamings of ``--map`` options, and whether ``auto`` is among them.

    Raises:
        UsageError: if one is neither ``auto`` nor OLD=NEW.
    """
    texts = [given] if isinstance(given, str) else list(given)
    return [Renaming.parse(text) for text in texts if text != AUTO], AUTO in texts


def options(maps: Iterable[str]) -> str:
    """Maps as one types them."""
    return " ".join(f"--map {shlex.quote(text)}" for text in maps)


def advice(maps: Sequence[str]) -> str:
    """What to do with a proposal; ``""`` if there is none."""
    return f"; try {options(maps)}, or --map auto" if maps else ""


def signatures_of(golden: Model, own: Model) -> tuple[Signatures, Signatures]:
    """The positional parameters of each class's ``forward``, as far as the two tell them."""
    return golden.get("signatures") or {}, own.get("signatures") or {}


def renamed_model(golden: Model, own: Model, renamings: Sequence[Renaming]) -> dict[str, Any]:
    """Golden's table of a model under the names that another model has; what that one has not keeps golden's name."""
    model = dict(golden)
    for kind, new_name in _KINDS.items():
        table = golden.get(kind) or {}
        found = counterparts(table, own.get(kind) or {}, renamings, new_name)
        alone = {name: entry for name, entry in table.items() if name not in found}
        model[kind] = {**alone, **{new: table[name] for name, new in found.items()}}
    return model


def check_maps(renamings: Sequence[Renaming], sides: Sequence[tuple[Model, Model]]) -> None:
    """Refuse maps that do nothing, or what nobody can mean.

    Args:
        renamings: the maps.
        sides: golden's model and the model that it is taken over to, or fed to; one or two such.

    Raises:
        UsageError: if one matches none of golden's names, or leads to none of the model's, or if two of golden's names become one.
    """
    for renaming in renamings:
        led = [(new, new in (own.get(kind) or {})) for golden, own in sides for kind, new in _led(renaming, golden)]
        if not led:
            names = ", ".join([name for golden, _ in sides for name in golden.get("modules") or {} if name][:3])
            raise UsageError(f"--map {shlex.quote(renaming.text)}: matches none of golden's layers (such as {names})")
        if not any(there for _, there in led):
            raise UsageError(f"--map {shlex.quote(renaming.text)}: leads to no layer that the model has ({led[0][0]!r}, for one)")
    for golden, own in sides:
        for old, new in clashes(golden, own, renamings):
            raise UsageError(f"--map: {old[0]!r} and {old[1]!r} of golden both become {new!r}; the first map that matches a name counts")


def clashes(golden: Model, own: Model, renamings: Sequence[Renaming]) -> Iterator[tuple[list[str], str]]:
    """Names of golden's that become the same name of the model's, with that."""
    for kind, new_name in _KINDS.items():
        for new, old in claims(golden.get(kind) or {}, own.get(kind) or {}, renamings, new_name).items():
            if len(old) > 1:
                yield old, new


def matches(renaming: Renaming, model: Model) -> bool:
    """Whether a map matches a module, a parameter or a buffer of golden's."""
    return next(_led(renaming, model), None) is not None


def _led(renaming: Renaming, golden: Model) -> Iterator[tuple[str, str]]:
    """What a map makes of golden's names: the kind of what is called so, and the new name."""
    for kind, new_name in _KINDS.items():
        for name in golden.get(kind) or {}:
            new = new_name(name, [renaming])
            if new is not None:
                yield kind, new
