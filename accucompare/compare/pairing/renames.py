"""Modules with other names in another version of a model: what ``--map`` does to golden's names."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from accucompare.compare.pairing.align import (
    Rename,
    Renaming,
    Signatures,
    claims,
    counterparts,
    rename,
    rename_parameter,
)
from accucompare.errors import UsageError

AUTO = "auto"

#: A manifest's ``model``, as far as it is known: modules, parameters, buffers.
Model = Mapping[str, Any]

#: The tables that a map renames, and how.
_KINDS: dict[str, Rename] = {
    "modules": rename,
    "parameters": rename_parameter,
    "buffers": rename_parameter,
}


def read_maps(maps: str | Iterable[str]) -> tuple[list[Renaming], bool]:
    """The renamings of ``--map`` options, and whether ``auto`` is among them.

    Raises:
        UsageError: if one is neither ``auto`` nor OLD=NEW.
    """
    texts = [maps] if isinstance(maps, str) else list(maps)
    return [Renaming.parse(text) for text in texts if text != AUTO], AUTO in texts


def options(maps: Iterable[str]) -> str:
    """Maps as options of the command line."""
    return " ".join(f"--map {shlex.quote(text)}" for text in maps)


def advice(maps: Sequence[str]) -> str:
    """The words that suggest maps; ``""`` if there are none."""
    return f"; try {options(maps)}, or --map auto" if maps else ""


def signatures_of(golden: Model, own: Model) -> tuple[Signatures, Signatures]:
    """The positional parameters of each class's ``forward``, as far as the manifests have them."""
    return golden.get("signatures") or {}, own.get("signatures") or {}


def renamed_model(golden: Model, own: Model, renamings: Sequence[Renaming]) -> dict[str, Any]:
    """Golden's tables under another model's names; what the model lacks keeps golden's name."""
    tables = {kind: _renamed_table(golden, own, renamings, kind) for kind in _KINDS}
    if renamings:
        for kind, new_name in (("aliases", rename), ("tied", rename_parameter)):
            new = {
                name: new_name(name, renamings) or name
                for each in (golden.get(kind) or {}).items()
                for name in each
            }
            tables[kind] = {
                new[name]: new[first] for name, first in (golden.get(kind) or {}).items()
            }
    return {**golden, **tables}


def _renamed_table(
    golden: Model, own: Model, renamings: Sequence[Renaming], kind: str
) -> dict[str, Any]:
    """One of these tables: ``modules``, ``parameters`` or ``buffers``."""
    table = golden.get(kind) or {}
    names = counterparts(table, own.get(kind) or {}, renamings, _KINDS[kind])
    alone = {name: entry for name, entry in table.items() if name not in names}
    return {**alone, **{new: table[name] for name, new in names.items()}}


def check_maps(renamings: Sequence[Renaming], sides: Sequence[tuple[Model, Model]]) -> None:
    """Refuse maps that have no effect or are ambiguous.

    Args:
        sides: pairs of golden's model and the model that it is fed to or that takes over its state.

    Raises:
        UsageError: if one matches no name, leads to none, or gives two of golden's names one.
    """
    for renaming in renamings:
        targets = [
            (new, new in (own.get(kind) or {}))
            for golden, own in sides
            for kind, new in _targets(renaming, golden)
        ]
        if not targets:
            names = ", ".join(
                [name for golden, _ in sides for name in golden.get("modules") or {} if name][:3]
            )
            raise UsageError(
                f"map {shlex.quote(renaming.text)} (--map): matches none of golden's layers"
                " (such as"
                f" {names})"
            )
        if not any(there for _, there in targets):
            raise UsageError(
                f"map {shlex.quote(renaming.text)} (--map): leads to no layer that the model has"
                f" ({targets[0][0]!r}, for one)"
            )
    for golden, own in sides:
        for old, new in clashes(golden, own, renamings):
            raise UsageError(
                f"map (--map): {old[0]!r} and {old[1]!r} of golden both become {new!r}; the"
                " first map"
                " that matches a name counts"
            )


def clashes(
    golden: Model, own: Model, renamings: Sequence[Renaming]
) -> Iterator[tuple[list[str], str]]:
    """Golden's names that become the same name of the model, and that name."""
    for kind, new_name in _KINDS.items():
        for new, old in claims(
            golden.get(kind) or {}, own.get(kind) or {}, renamings, new_name
        ).items():
            if len(old) > 1:
                yield old, new


def renaming_matches(renaming: Renaming, model: Model) -> bool:
    """Whether a map matches a module, a parameter or a buffer of golden's."""
    return next(_targets(renaming, model), None) is not None


def renaming_leads(renaming: Renaming, golden: Model, own: Model) -> bool:
    """Whether a map leads to a module, a parameter or a buffer that the other model has."""
    return any(new in (own.get(kind) or {}) for kind, new in _targets(renaming, golden))


def _targets(renaming: Renaming, golden: Model) -> Iterator[tuple[str, str]]:
    """A map's new names of golden's modules, parameters and buffers, each with its table's name."""
    for kind, new_name in _KINDS.items():
        for name in golden.get(kind) or {}:
            new = new_name(name, [renaming])
            if new is not None:
                yield kind, new
