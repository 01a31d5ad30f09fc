"""Parameters with several names: a tied weight, or a module under several names.

Two models may tie the same ones by other names. A manifest's ``aliases`` and ``tied`` lead from
each further name, of modules and of parameters, to the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from accucompare.compare.pairing.renames import (
    Model,
    Renaming,
    counterparts,
    rename_parameter,
    renamed_model,
)
from accucompare.numbers import same_fingerprint

#: The tables of a manifest's ``model`` with entries that may have several names.
_TABLES = ("parameters", "buffers")


def first_name(name: str, model: Model) -> str:
    """A model's first name of a parameter or buffer; the name itself if the model lacks it."""
    aliases, tied = model.get("aliases") or {}, model.get("tied") or {}
    for _ in aliases:  # a name may lead through several
        module = next((each for each in _around(name) if each in aliases), None)
        if module is None:
            break
        name = ".".join(filter(None, (aliases[module], name[len(module) + 1 :])))
    first: str = tied.get(name, name)
    return first


def _around(name: str) -> Iterator[str]:
    """The modules that a name lies in, the outermost first."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))


class SharedNames:
    """Parameters and buffers that two models share under different names."""

    def __init__(self, golden: Model, own: Model) -> None:
        """``golden``: under the other model's names (``compare.pairing.renames.renamed_model``)."""
        self._models = golden, own
        self._tables = [
            {name: entry for kind in _TABLES for name, entry in (side.get(kind) or {}).items()}
            for side in self._models
        ]
        several = any(side.get(kind) for side in self._models for kind in ("aliases", "tied"))
        names = {**self._tables[0], **self._tables[1]} if several else {}
        self._firsts = [{name: first_name(name, side) for name in names} for side in self._models]
        self._all: list[dict[str, list[str]]] = [{}, {}]  # by first name
        for firsts, of_first in zip(self._firsts, self._all, strict=True):
            for name, first in firsts.items():
                of_first.setdefault(first, []).append(name)

    def other(self, name: str, golden: bool = True) -> str | None:
        """The other model's first name of a parameter. ``golden``: whether ``name`` is golden's."""
        mine, others = (0, 1) if golden else (1, 0)
        names = self._all[mine].get(self._firsts[mine].get(name, ""), ())
        found = (
            self._firsts[others][each] for each in sorted(names, key=lambda each: each != name)
        )
        return next((first for first in found if first in self._tables[others]), None)

    def same(self, name: str, golden: bool = True) -> bool:
        """Whether the other model has a parameter by another name, with the same values."""
        mine, others = (0, 1) if golden else (1, 0)
        found = self.other(name, golden)
        return (
            found is not None
            and same_fingerprint(self._tables[mine][name], self._tables[others][found]) is True
        )

    def other_firsts(self) -> dict[str, str]:
        """Golden's first names of parameters to the other model's, where they differ."""
        firsts = (name for name in self._tables[0] if self._firsts[0].get(name) == name)
        found = {name: other for name in firsts if (other := self.other(name)) is not None}
        times = Counter(found.values())
        return {name: other for name, other in found.items() if other != name and times[other] == 1}


def other_names(golden: Model, own: Model, renamings: Sequence[Renaming] = ()) -> dict[str, str]:
    """Another model's first names by golden's parameters, where renamed or tied otherwise."""
    renamed = {}
    if renamings:
        renamed = counterparts(
            golden.get("parameters") or (), own.get("parameters") or (), renamings, rename_parameter
        )
    firsts = SharedNames(renamed_model(golden, own, renamings), own).other_firsts()
    found = {
        name: firsts.get(renamed.get(name, name), renamed.get(name, name))
        for name in golden.get("parameters") or ()
    }
    return {name: other for name, other in found.items() if other != name}
