"""Which record of golden belongs to which of the candidate. Never raises: what finds no partner is listed with a hint."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from accucompare.bundle.records import Key, Record
from accucompare.errors import UsageError

#: Seconds that a pattern may take for one name; one that goes back again and again would take years.
PATIENCE = 1.0
#: For how many unmatched names a nearest one is looked for.
HINTS = 500


@dataclass(frozen=True, slots=True)
class Pair:
    """A record of golden and its partner; one of the two may be ``None``."""

    golden: Record | None
    candidate: Record | None
    nearest: str = ""


@dataclass(frozen=True)
class Renaming:
    """One ``--map OLD=NEW``: golden's names that match OLD are looked for under NEW in the candidate."""

    text: str
    pattern: Any  # regex.Pattern, which has no types
    template: str

    @classmethod
    def parse(cls, text: str) -> Renaming:
        """Read ``OLD=NEW``.

        OLD and NEW are globs, the n-th ``*`` of NEW standing for what the n-th ``*`` of OLD matched
        (``encoder.layers.*=blocks.*``); or, with ``re:`` in front, a regular expression for the whole name and its
        replacement (``re:h\\.(\\d+)\\.(.*)=layers.\\1.\\2``).

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
            return cls(text, regex.compile("(.*)".join(parts), regex.DOTALL), template)
        except (re.error, regex.error, IndexError, OverflowError, RecursionError) as error:
            raise UsageError(f"--map {text!r}: not a valid regular expression ({error})") from None

    def apply(self, name: str) -> str | None:
        """The new name, or ``None`` if the old pattern does not match."""
        import regex

        try:
            match = self.pattern.fullmatch(name, timeout=PATIENCE)
            return match.expand(self.template) if match else None
        except TimeoutError:
            raise UsageError(
                f"--map {self.text!r}: takes more than {PATIENCE:g} s for {name!r}; write it without repetitions in one another"
            ) from None
        except (regex.error, IndexError) as error:
            raise UsageError(f"--map {self.text!r}: cannot be applied to {name!r} ({error})") from None


def align(golden: Iterable[Record], candidate: Iterable[Record], renamings: Iterable[Renaming] = ()) -> list[Pair]:
    """Pair the records of two bundles by rank, step, name, call, role and path.

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
    extras = _extras_by_predecessor(candidate, unmatched) if unmatched else {}
    nearest = _nearest_names({key.name for key in by_key if key not in partners}, {key.name for key in unmatched})
    pairs = [Pair(None, record, nearest.get(record.name, "")) for record in extras.get(None, ())]
    for key, record in by_key.items():
        partner = partners.get(key)
        pairs.append(Pair(record, partner, "" if partner else nearest.get(record.name, "")))
        if partner is not None and extras:
            pairs += [Pair(None, extra, nearest.get(extra.name, "")) for extra in extras.get(partner.key, ())]
    return pairs


def unused(renamings: Iterable[Renaming], names: Iterable[str]) -> list[Renaming]:
    """The renamings that match none of the names."""
    names = set(names)
    return [renaming for renaming in renamings if not any(renaming.apply(name) is not None for name in names)]


def rename(name: str, renamings: Iterable[Renaming]) -> str | None:
    """A layer's new name by the first renaming that matches; ``None`` if none does."""
    return next((new for renaming in renamings if (new := renaming.apply(name)) is not None), None)


def _renamed(key: Key, renamings: list[Renaming]) -> Key | None:
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
