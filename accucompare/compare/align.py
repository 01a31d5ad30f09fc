"""Which record of golden belongs to which of the candidate. Never raises: what finds no partner is listed with a hint."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from accucompare.bundle.records import Key, Record, Role
from accucompare.errors import UsageError

#: Seconds that a pattern may take for one name; one that goes back again and again would take years.
PATIENCE = 1.0
#: For how many unmatched names a nearest one is looked for.
HINTS = 500

#: The names of the positional parameters of each class's ``forward``, by class name; a manifest's ``model["signatures"]``.
Signatures = Mapping[str, Sequence[str]]


class Pair(NamedTuple):
    """A record of golden and its partner; one of the two may be ``None``."""

    golden: Record | None
    candidate: Record | None
    nearest: str = ""


@dataclass(frozen=True)
class Renaming:
    """One ``--map OLD=NEW``: golden's names that match OLD are looked for under NEW in the candidate.

    Attributes:
        itself: whether ``a.*=b.*`` was given, which renames ``a``, too.
    """

    text: str
    pattern: Any  # regex.Pattern, which has no types
    template: str
    itself: bool = False

    @classmethod
    def parse(cls, text: str) -> Renaming:
        """Read ``OLD=NEW``.

        OLD and NEW are globs, the n-th ``*`` of NEW standing for what the n-th ``*`` of OLD matched
        (``encoder.layers.*=blocks.*``, which renames ``encoder.layers``, too); or, with ``re:`` in front, a regular expression for
        the whole name and its replacement (``re:h\\.(\\d+)\\.(.*)=layers.\\1.\\2``). No glob renames the root.

        Raises:
            UsageError: if it is neither.
        """
        import regex  # here, for few need it; what re takes, it takes too, and it can be given a time

        old, equals, new = text.partition("=")
        if not equals or not old:
            raise UsageError(f"--map {text!r}: must be OLD=NEW, such as 'encoder.layers.*=blocks.*'")
        try:
            if old.startswith("re:"):
                re.compile(old.removeprefix("re:")).sub(new, "")  # a bad group reference shows here
                return cls(text, regex.compile(old.removeprefix("re:")), new)
            parts = [re.escape(part) for part in old.split("*")]
            if new.count("*") > len(parts) - 1:
                raise UsageError(f"--map {text!r}: {new!r} has more * than {old!r}")
            template = "".join(
                part.replace("\\", "\\\\") + (f"\\g<{number}>" if number <= new.count("*") else "")
                for number, part in enumerate(new.split("*"), 1)
            )
            itself = old.endswith(".*") and new.endswith(".*") and old.count("*") == new.count("*")
            pattern = regex.compile("(?=.)" + "(.*)".join(parts), regex.DOTALL)  # the root's name is empty
            return cls(text, pattern, template, itself)
        except (re.error, regex.error, IndexError, OverflowError, RecursionError) as error:
            raise UsageError(f"--map {text!r}: not a valid regular expression ({error})") from None

    def apply(self, name: str) -> str | None:
        """The new name, or ``None`` if the old pattern does not match."""
        import regex

        try:
            match = self.pattern.fullmatch(name, timeout=PATIENCE)
            alone = match is None and self.itself and name != ""
            if alone:
                match = self.pattern.fullmatch(f"{name}.", timeout=PATIENCE)
            new: str | None = match.expand(self.template) if match else None
            return new.removesuffix(".") if new is not None and alone else new
        except TimeoutError:
            raise UsageError(
                f"--map {self.text!r}: takes more than {PATIENCE:g} s for {name!r}; write it without repetitions in one another"
            ) from None
        except (regex.error, IndexError) as error:
            raise UsageError(f"--map {self.text!r}: cannot be applied to {name!r} ({error})") from None


def align(
    golden: Iterable[Record],
    candidate: Iterable[Record],
    renamings: Iterable[Renaming] = (),
    signatures: tuple[Signatures, Signatures] = ({}, {}),
) -> list[Pair]:
    """Pair the records of two bundles by rank, step, name, call, role and path.

    Inputs that find no partner so, because only one side is given them by position, are paired by their names in the signature.

    Args:
        golden, candidate: their records, in execution order.
        renamings: of golden's layers.
        signatures: golden's and the candidate's.

    Returns:
        One pair per record of either side, in golden's order; a candidate's record without partner follows the one that it
        came after in the candidate.
    """
    by_key, candidate, renamings = {record.key: record for record in golden}, list(candidate), list(renamings)
    unmatched = {record.key: record for record in candidate}
    partners: dict[Key, Record] = {}
    renamed = {key: _renamed(key, renamings) for key in by_key} if renamings else {}
    for key, new in [*renamed.items(), *((key, key) for key in by_key)]:  # what is renamed has the first choice
        if new is not None and key not in partners and new in unmatched:
            partners[key] = unmatched.pop(new)
    left = [record for key, record in by_key.items() if key not in partners]
    for key, found in by_argument(left, unmatched.values(), renamings, signatures).items():
        partners[key] = unmatched.pop(found.key)
    extras = _extras_by_predecessor(candidate, unmatched) if unmatched else {}
    nearest = _nearest_names({key.name for key in by_key if key not in partners}, {key.name for key in unmatched})
    pairs = [Pair(None, record, nearest.get(record.name, "")) for record in extras.get(None, ())]
    for key, record in by_key.items():
        partner = partners.get(key)
        pairs.append(Pair(record, partner, "" if partner else nearest.get(record.name, "")))
        if partner is not None and extras:
            pairs += [Pair(None, extra, nearest.get(extra.name, "")) for extra in extras.get(partner.key, ())]
    return pairs


def by_argument(
    golden: Iterable[Record], candidate: Iterable[Record], renamings: Sequence[Renaming], signatures: tuple[Signatures, Signatures]
) -> dict[Key, Record]:
    """Pair inputs of the same call that are the same argument of ``forward``: the one at ``0``, the other at ``hidden_states``.

    Args:
        golden, candidate: the records that have no partner of the same path.
        renamings, signatures: as for ``align``.

    Returns:
        The candidate's record by golden's key.
    """
    theirs = {_by_name(record, signatures[1], signatures[0]): record for record in candidate if record.role is Role.INPUT}
    found: dict[Key, Record] = {}
    for record in golden:
        if not theirs or record.role is not Role.INPUT:
            continue
        key = _by_name(record, *signatures)
        for place in (_renamed(key, renamings), key):
            if place in theirs:
                found[record.key] = theirs.pop(place)
                break
    return found


def _by_name(record: Record, own: Signatures, other: Signatures) -> Key:
    """An input's key with the argument's name in its path; by the other side's signature, if the bundle tells none."""
    return record.key._replace(path=argument_path(record.path, own.get(record.type) or other.get(record.type) or ()))


def argument_path(path: str, names: Sequence[str]) -> str:
    """The path of an input with its argument's name in place of its position: ``hidden_states.1`` for ``0.1``, if that is the first."""
    position, dot, rest = path.partition(".")
    if not position.isdecimal() or int(position) >= len(names):
        return path
    return f"{names[int(position)]}{dot}{rest}"


def unused(renamings: Iterable[Renaming], names: Iterable[str]) -> list[Renaming]:
    """The renamings that match none of the names."""
    names = set(names)
    return [renaming for renaming in renamings if not any(renaming.apply(name) is not None for name in names)]


def rename(name: str, renamings: Iterable[Renaming]) -> str | None:
    """A layer's new name by the first renaming that matches; ``None`` if none does."""
    return next((new for renaming in renamings if (new := renaming.apply(name)) is not None), None)


def rename_parameter(name: str, renamings: Iterable[Renaming]) -> str | None:
    """What becomes of a parameter or buffer: renamed with its layer, or by its own whole name; ``None`` if no renaming matches."""
    layer, _, own = name.rpartition(".")
    for renaming in renamings:
        if (new := renaming.apply(layer)) is not None:
            return f"{new}.{own}" if new else own
        if (new := renaming.apply(name)) is not None:
            return new
    return None


#: ``rename`` of layers, ``rename_parameter`` of parameters and buffers.
Rename = Callable[[str, Iterable[Renaming]], str | None]


def claims(names: Iterable[str], own: Collection[str], renamings: Sequence[Renaming], new_name: Rename = rename) -> dict[str, list[str]]:
    """Which of golden's names mean which of a model's: what is renamed to one, and then what is called so itself.

    Args:
        names: golden's.
        own: the model's; a name that would become none of these is kept.
        renamings: of golden's names.
        new_name: how they apply.

    Returns:
        Golden's names by the model's name. More than one is a clash, which the first wins.
    """
    found: dict[str, list[str]] = {}
    kept = []
    for name in names:
        new = new_name(name, renamings) if renamings else None
        if new is not None and new in own:
            found.setdefault(new, []).append(name)
        else:
            kept.append(name)
    for name in kept:
        if name in own and not (name == "" and name in found):  # a layer that was mapped to the root takes its place
            found.setdefault(name, []).append(name)
    return found


def counterparts(names: Iterable[str], own: Collection[str], renamings: Sequence[Renaming], new_name: Rename = rename) -> dict[str, str]:
    """The model's name for each of golden's that it has; arguments as for ``claims``."""
    return {claimants[0]: name for name, claimants in claims(names, own, renamings, new_name).items()}


def _renamed(key: Key, renamings: Iterable[Renaming]) -> Key | None:
    name = rename(key.name, renamings)
    return None if name is None else key._replace(name=name)


def _extras_by_predecessor(candidate: list[Record], unmatched: dict[Key, Record]) -> dict[Key | None, list[Record]]:
    extras: dict[Key | None, list[Record]] = {}
    predecessor: Key | None = None
    for record in candidate:
        if record.key in unmatched:
            extras.setdefault(predecessor, []).append(record)
        else:
            predecessor = record.key
    return extras


def _nearest_names(golden: set[str], candidate: set[str]) -> dict[str, str]:
    if not golden or not candidate:
        return {}
    from rapidfuzz import fuzz, process

    nearest: dict[str, str] = {}
    for names, others in ((sorted(golden), sorted(candidate)), (sorted(candidate), sorted(golden))):
        for name in names[:HINTS]:
            found = process.extractOne(name, others, scorer=fuzz.ratio, score_cutoff=50)
            if found is not None:
                nearest.setdefault(name, found[0])
    return nearest
