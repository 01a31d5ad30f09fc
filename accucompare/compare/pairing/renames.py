"""Names of another version of a model: ``--map OLD=NEW``, and what it does to golden's names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accucompare.errors import UsageError

AUTO = "auto"

#: A manifest's ``model``, as far as it is known: modules, parameters, buffers.
Model = Mapping[str, Any]

#: ``forward``'s positional parameters by class: a manifest's ``model["signatures"]``.
Signatures = Mapping[str, Sequence[str]]


#: Seconds that a pattern may take for one name; backtracking could take years.
PATTERN_PATIENCE = 1.0


@dataclass(frozen=True)
class Renaming:
    """One ``--map OLD=NEW``: golden's names that match OLD have NEW's names in the candidate."""

    text: str
    pattern: Any  # regex.Pattern, which has no types
    template: str
    itself: bool = False  # whether ``a.*=b.*`` was given, which renames ``a`` too

    @classmethod
    def parse(cls, text: str) -> Renaming:
        """Read ``OLD=NEW``.

        OLD and NEW are globs; the n-th ``*`` of NEW stands for what the n-th ``*`` of OLD matched
        (``encoder.layers.*=blocks.*``, which renames ``encoder.layers`` too). With ``re:`` in
        front, OLD is a regular expression for the whole name and NEW its replacement
        (``re:h\\.(\\d+)\\.(.*)=layers.\\1.\\2``). No glob renames the root. Raises UsageError if it
        is neither."""
        import regex  # here, since few need it; it accepts all that re does, and has a time limit

        old, equals, new = text.partition("=")
        if not equals or not old:
            raise UsageError(
                f"map {text!r} (--map): must be OLD=NEW, such as 'encoder.layers.*=blocks.*'"
            )
        try:
            if old.startswith("re:"):
                re.compile(old.removeprefix("re:")).sub(new, "")  # a bad group reference shows here
                return cls(text, regex.compile(old.removeprefix("re:")), new)
            parts = [re.escape(part) for part in old.split("*")]
            if new.count("*") > len(parts) - 1:
                raise UsageError(f"map {text!r} (--map): {new!r} has more * than {old!r}")
            template = "".join(
                part.replace("\\", "\\\\") + (f"\\g<{number}>" if number <= new.count("*") else "")
                for number, part in enumerate(new.split("*"), 1)
            )
            itself = old.endswith(".*") and new.endswith(".*") and old.count("*") == new.count("*")
            # the root's name is empty
            pattern = regex.compile("(?=.)" + "(.*)".join(parts), regex.DOTALL)
            return cls(text, pattern, template, itself)
        except (re.error, regex.error, IndexError, OverflowError, RecursionError) as error:
            raise UsageError(
                f"map {text!r} (--map): not a valid regular expression ({error})"
            ) from None

    def apply(self, name: str) -> str | None:
        """The new name, or ``None`` if the old pattern does not match."""
        import regex

        try:
            match = self.pattern.fullmatch(name, timeout=PATTERN_PATIENCE)
            alone = match is None and self.itself and name != ""
            if alone:
                match = self.pattern.fullmatch(f"{name}.", timeout=PATTERN_PATIENCE)
            new: str | None = match.expand(self.template) if match else None
            return new.removesuffix(".") if new is not None and alone else new
        except TimeoutError:
            raise UsageError(
                f"map {self.text!r} (--map): takes more than {PATTERN_PATIENCE:g} s for"
                f" {name!r}; write"
                " it without repetitions in one another"
            ) from None
        except (regex.error, IndexError) as error:
            raise UsageError(
                f"map {self.text!r} (--map): cannot be applied to {name!r} ({error})"
            ) from None


def rename(name: str, renamings: Iterable[Renaming]) -> str | None:
    """A layer's new name by the first renaming that matches; ``None`` if none does."""
    return next((new for renaming in renamings if (new := renaming.apply(name)) is not None), None)


def own_names(name: str, renamings: Iterable[Renaming]) -> list[str]:
    """What a layer of golden's may be called in a model: by its new name, or else as it is."""
    return [each for each in (rename(name, renamings), name) if each is not None]


def rename_parameter(name: str, renamings: Iterable[Renaming]) -> str | None:
    """A parameter's or buffer's new name, by its layer's renaming or its own."""
    layer, _, own = name.rpartition(".")
    for renaming in renamings:
        if (new := renaming.apply(layer)) is not None:
            return f"{new}.{own}" if new else own
        if (new := renaming.apply(name)) is not None:
            return new
    return None


#: ``rename`` of layers, ``rename_parameter`` of parameters and buffers.
Rename = Callable[[str, Iterable[Renaming]], str | None]


def claims(
    names: Iterable[str],
    own: Collection[str],
    renamings: Sequence[Renaming],
    new_name: Rename = rename,
) -> dict[str, list[str]]:
    """Golden's names by each name of a model: those renamed to it first, then the equal one.

    Several are a clash; the first wins.

    Args:
        own: the model's names. A renaming that leads to none of these is not applied.
        new_name: how the renamings apply.
    """
    claimants: dict[str, list[str]] = {}
    kept = []
    for name in names:
        new = new_name(name, renamings) if renamings else None
        if new is not None and new in own:
            claimants.setdefault(new, []).append(name)
        else:
            kept.append(name)
    for name in kept:
        # a layer mapped to the root takes its place
        if name in own and not (name == "" and name in claimants):
            claimants.setdefault(name, []).append(name)
    return claimants


def counterparts(
    names: Iterable[str],
    own: Collection[str],
    renamings: Sequence[Renaming],
    new_name: Rename = rename,
) -> dict[str, str]:
    """The model's name for each of golden's that it has. Arguments as for ``claims``."""
    return {
        claimants[0]: name for name, claimants in claims(names, own, renamings, new_name).items()
    }


#: The tables that a map renames, and how.
_KINDS: dict[str, Rename] = {
    "modules": rename,
    "parameters": rename_parameter,
    "buffers": rename_parameter,
}


def read_maps(maps: str | Iterable[str]) -> tuple[list[Renaming], bool]:
    """The renamings of ``--map`` options, and whether ``auto`` is among them. Raises UsageError if
    one is neither ``auto`` nor OLD=NEW."""
    texts = [maps] if isinstance(maps, str) else list(maps)
    return [Renaming.parse(text) for text in texts if text != AUTO], AUTO in texts


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
    """Refuse maps that have no effect or are ambiguous. Raises UsageError if one matches no name,
    leads to none, or gives two of golden's names one. ``sides``: pairs of golden's model and the
    model that it is fed to or that takes over its state."""
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
