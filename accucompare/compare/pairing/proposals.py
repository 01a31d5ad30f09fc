"""Which ``--map`` options pair golden's modules with those of another version of the model.

A map renames one prefix to another. A greedy search takes the map that pairs the most unmatched
modules, and so on; the shortest list found is **proposed**. Two modules are paired only if their
shared parameters agree in shape and, if fingerprints are known, in value; if their classes or their
children may be the same; and if no other module loses its partner. Among equal choices the order in
the model decides; if the names favour another one, nothing is proposed. A parameter with another
name inside its module has to be mapped by hand, by its whole name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accucompare.compare.pairing.renames import Model, Renaming, rename
from accucompare.numbers import same_fingerprint

#: The most maps proposed, maps tried for each, and equal modules or maps to choose one from.
MOST_MAPS = 16
MOST_TRIED = 100
MOST_ALIKE = 200


def propose(
    golden: Model, own: Model, renamings: Sequence[Renaming] = (), fingerprints: bool = True
) -> list[str]:
    """``OLD=NEW`` maps of golden's unmatched modules to another model's, the most exact first.

    Args:
        golden: the model that golden was captured from.
        own: the other model.
        renamings: maps that are already in force; they come first.
        fingerprints: whether parameters' known values must be equal. Otherwise only shapes and
            classes decide, and nothing is proposed unless it pairs most of golden's parameters.
    """
    if not renamings and not set(golden.get("modules") or ()) - set(own.get("modules") or ()):
        return []  # all of golden's names are there
    search = _Search(_Side.of(golden), _Side.of(own), list(renamings), fingerprints)
    maps = search.shortest()
    if (
        not fingerprints
        and maps
        and 2 * search.score(search.pairs(maps))[0] < sum(map(len, search.golden.own.values()))
    ):
        return []
    return maps


@dataclass(frozen=True)
class _Side:
    """A model's modules in order, with each one's parameters and children."""

    place: dict[str, int]  # by name, the number of the module
    classes: Mapping[str, str]
    own: dict[str, dict[str, Any]]  # by module: its parameters' entries
    children: dict[str, set[str]]

    @classmethod
    def of(cls, model: Model) -> _Side:
        names = [name for name in model.get("modules") or {} if not set("*=\n") & set(name)]
        children: dict[str, set[str]] = {name: set() for name in names}
        for name in names:
            if name:
                children.setdefault(_parent(name), set()).add(name.rpartition(".")[2])
        own: dict[str, dict[str, Any]] = {name: {} for name in names}
        for name, entry in (model.get("parameters") or {}).items():
            module, _, leaf = name.rpartition(".")
            own.setdefault(module, {})[leaf] = entry
        return cls(
            {name: number for number, name in enumerate(names)},
            model.get("modules") or {},
            own,
            children,
        )


#: The model's name for each of golden's that is paired.
_Pairs = dict[str, str]


class _Search:
    """Searches for maps. ``golden`` and ``own`` are the two sides."""

    def __init__(
        self, golden: _Side, own: _Side, renamings: list[Renaming], fingerprints: bool
    ) -> None:
        self.golden = golden
        self.own = own
        self._renamed = {
            name: new for name in golden.place if (new := rename(name, renamings)) is not None
        }
        self._fingerprints = fingerprints
        self._applied: dict[str, dict[str, str]] = {}  # by map: the new names of golden's modules
        # by side and glob: numbers of parameters and modules that it matches
        self._most: dict[tuple[bool, str], tuple[int, int]] = {}
        self._kinds: dict[tuple[bool, str], Any] = {}

    def shortest(self) -> list[str]:
        maps: list[str] = []
        refused: set[str] = set()
        for _ in range(2 * MOST_MAPS):
            before = self.pairs(maps)
            best = self._best(maps, before, refused)
            if best is None or len(maps) == MOST_MAPS:
                break
            rivals = self._rivals(best, maps, before)
            if rivals is None:
                maps = _most_exact_first([*maps, best])
            else:
                refused |= {best, *rivals}
        for text in reversed(maps.copy()):  # a later map may make an earlier one superfluous
            fewer = [each for each in maps if each != text]
            if self.score(self.pairs(fewer)) == self.score(self.pairs(maps)):
                maps = fewer
        return maps

    def pairs(self, maps: Sequence[str]) -> _Pairs:
        """The model's module for each of golden's; none if a parameter's shape differs."""
        pairs: _Pairs = {}
        taken: set[str] = set()
        for name in self.golden.place:
            new = self._new_name(name, maps)
            if new is not None and new in self.own.place and new not in taken:
                pairs[name] = new
                taken.add(new)
        for name in self.golden.place:
            if (
                name not in pairs
                and name in self.own.place
                and name not in taken
                and not self._shapes_differ(name, name)
            ):
                pairs[name] = name
        return pairs

    def _new_name(self, name: str, maps: Sequence[str]) -> str | None:
        new = self._renamed.get(name)
        return (
            next((self._apply(text)[name] for text in maps if name in self._apply(text)), None)
            if new is None
            else new
        )

    def score(self, pairs: _Pairs) -> tuple[int, int]:
        """How many parameters, and how many modules, have a partner."""
        return sum(
            len(self.golden.own[ours].keys() & self.own.own[theirs].keys())
            for ours, theirs in pairs.items()
        ), len(pairs)

    def _best(self, maps: list[str], before: _Pairs, refused: set[str]) -> str | None:
        """The map that pairs most; of several the most exact, then that of the first modules."""
        likely: Counter[str] = Counter()
        for ours, theirs in self._likely(before):
            likely.update(set(self._maps(ours, theirs)))
        reached = self.score(before)
        best: tuple[Any, ...] | None = None
        for text in sorted(likely, key=lambda text: -likely[text])[:MOST_TRIED]:
            if text in refused or (
                best is not None and self._bound(text) < _gain(reached, best[0][0])
            ):
                continue
            after = self._with(text, maps, before)
            if after is None or self.score(after) <= reached:
                continue
            ours, theirs = self._first(before, after)
            rank = (
                self.score(after),
                _exactness(text),
                -self.golden.place[ours],
                -self.own.place[theirs],
            )
            if best is None or rank > best[0]:
                best = rank, text
        return None if best is None else best[1]

    def _with(self, text: str, maps: list[str], before: _Pairs) -> _Pairs | None:
        """The pairs with one more map; ``None`` if it pairs different modules or splits a pair."""
        maps = _most_exact_first([*maps, text])
        after = self.pairs(maps)
        if not before.keys() <= after.keys():
            return None
        moved = [
            (name, new)
            for name in self._apply(text)
            if (new := self._new_name(name, maps)) in self.own.place
        ]
        # two modules would get the same name
        if any(after.get(name) != new for name, new in moved):
            return None
        wrong = any(
            before.get(ours) != theirs and not self._may_be(ours, theirs)
            for ours, theirs in after.items()
        )
        return None if wrong else after

    def _rivals(self, text: str, maps: list[str], before: _Pairs) -> set[str] | None:
        """Equally good maps, if neither order nor names decide; ``None`` if there is no doubt."""
        after = self._with(text, maps, before)
        assert after is not None
        ours, theirs = self._first(before, after)
        others = [name for name in self._alike(ours, theirs, before, False) if name != theirs]
        sources = [name for name in self._alike(ours, theirs, before, True) if name != ours]
        gain = _gain(self.score(before), self.score(after))
        rivals: dict[tuple[str, str], str] = {}
        tried = 0
        for pair in [
            *((ours, other) for other in others),
            *((source, theirs) for source in sources),
        ]:
            for rival in self._maps(*pair):
                if self._bound(rival) < gain:
                    continue
                tried += 1
                pairs = self._with(rival, maps, before) if tried <= MOST_ALIKE else None
                if (
                    pairs is not None
                    and pairs.get(pair[0]) == pair[1]
                    and self.score(pairs) >= self.score(after)
                ):
                    rivals[pair] = rival
        if tried > MOST_ALIKE:
            return set(rivals.values())
        if not rivals:
            return None
        from rapidfuzz import fuzz

        alike = fuzz.ratio(ours, theirs)
        first = sorted(
            {ours, *(source for source, _ in rivals)}, key=self.golden.place.__getitem__
        ).index(ours)
        second = sorted(
            {theirs, *(other for _, other in rivals)}, key=self.own.place.__getitem__
        ).index(theirs)
        as_many = len({source for source, _ in rivals} | {ours}) == len(
            {other for _, other in rivals} | {theirs}
        )
        if as_many and first == second and all(fuzz.ratio(*pair) <= alike for pair in rivals):
            return None
        return set(rivals.values())

    def _likely(self, pairs: _Pairs) -> Iterator[tuple[str, str]]:
        """Unpaired modules that may be the same."""
        ours = [name for name in self.golden.place if name not in pairs]
        taken = set(pairs.values())
        theirs = [name for name in self.own.place if name not in taken]
        for some, others in self._groups(ours, theirs):
            yield from zip(some, others, strict=False)
            yield from ((some[0], other) for other in others[:MOST_ALIKE])
            yield from ((one, others[0]) for one in some[:MOST_ALIKE])
        free_ours, free_theirs = set(ours), set(theirs)
        for one, other in pairs.items():
            if one and other and _parent(one) in free_ours and _parent(other) in free_theirs:
                yield _parent(one), _parent(other)
        for some, others in _by_parent(self.golden, ours, self.own, theirs, pairs):
            if len(some) == len(others):
                yield from zip(some, others, strict=True)

    def _groups(self, ours: list[str], theirs: list[str]) -> Iterator[tuple[list[str], list[str]]]:
        """Modules with parameters, and the other side's modules with the same parameters."""
        kinds: dict[Any, list[str]] = {}
        for name in theirs:
            if self.own.own[name]:
                kinds.setdefault(self._kind(self.own, name), []).append(name)
        # by digests of their first parameter; without one they may be any
        values: dict[tuple[str, str], list[str]] = {}
        for name in (name for names in kinds.values() for name in names if self._fingerprints):
            for key in _digests(self.own.own[name]) or [("", "")]:
                values.setdefault(key, []).append(name)
        groups: dict[Any, tuple[list[str], list[str]]] = {}
        for name in ours:
            kind = self._kind(self.golden, name)
            same = kinds.get(kind, []) if self.golden.own[name] else []
            keys = _digests(self.golden.own[name]) if self._fingerprints else []
            if same and keys:
                known = {
                    other
                    for key in [*keys, ("", "")]
                    for other in values.get(key, ())
                    if self._kind(self.own, other) == kind
                }
                same = sorted(
                    (other for other in known if not self._differ(name, other)),
                    key=self.own.place.__getitem__,
                )
            if same:
                groups.setdefault(tuple(same[: MOST_ALIKE + 1]) if keys else kind, ([], same))[
                    0
                ].append(name)
        yield from groups.values()

    def _kind(self, side: _Side, name: str) -> Any:
        """What two modules must share: parameters' names, shapes; the class, if no fingerprints."""
        place = side is self.golden, name
        if place not in self._kinds:
            shapes = frozenset(
                (leaf, str(entry["shape"])) for leaf, entry in side.own[name].items()
            )
            self._kinds[place] = shapes if self._fingerprints else (side.classes.get(name), shapes)
        return self._kinds[place]

    def _alike(self, ours: str, theirs: str, pairs: _Pairs, of_golden: bool) -> list[str]:
        """One side's unpaired modules that could replace this pair's."""
        side, name = (self.golden, ours) if of_golden else (self.own, theirs)
        kind = self._kind(side, name)
        taken = pairs.keys() if of_golden else set(pairs.values())
        return [
            other
            for other in side.place
            if other not in taken
            and self._kind(side, other) == kind
            and side.classes.get(other) == side.classes.get(name)
            and not (self._differ(other, theirs) if of_golden else self._differ(ours, other))
            and (side.own[name] or _parent(other) == _parent(name))
        ]

    def _shapes_differ(self, ours: str, theirs: str) -> bool:
        own, other = self.golden.own[ours], self.own.own[theirs]
        return any(own[leaf]["shape"] != other[leaf]["shape"] for leaf in own.keys() & other.keys())

    def _differ(self, ours: str, theirs: str) -> bool:
        """Whether a parameter that both modules have differs."""
        if self._shapes_differ(ours, theirs):
            return True
        own, other = self.golden.own[ours], self.own.own[theirs]
        return self._fingerprints and any(
            bool(own[leaf].get("digests") and other[leaf].get("digests"))
            and same_fingerprint(own[leaf], other[leaf]) is False
            for leaf in own.keys() & other.keys()
        )

    def _may_be(self, ours: str, theirs: str) -> bool:
        if self._differ(ours, theirs):
            return False
        if self.golden.classes.get(ours) == self.own.classes.get(theirs):
            return True
        own, other = self.golden.own[ours], self.own.own[theirs]
        if own.keys() & other.keys():
            return True
        inside = self.golden.children.get(ours, set()), self.own.children.get(theirs, set())
        return (
            not own and not other and (bool(inside[0] & inside[1]) or not (inside[0] or inside[1]))
        )

    def _first(self, before: _Pairs, after: _Pairs) -> tuple[str, str]:
        """The first new pair, with parameters if there is one."""
        new = [(ours, theirs) for ours, theirs in after.items() if before.get(ours) != theirs]
        return min(new, key=lambda pair: (not self.golden.own[pair[0]], self.golden.place[pair[0]]))

    def _apply(self, text: str) -> dict[str, str]:
        if text not in self._applied:
            renaming = Renaming.parse(text)
            new = ((name, renaming.apply(name)) for name in self.golden.place)
            self._applied[text] = {name: applied for name, applied in new if applied is not None}
        return self._applied[text]

    def _bound(self, text: str) -> tuple[int, int]:
        """The most parameters and modules that a map can pair."""
        old, _, new = text.partition("=")
        bounds = []
        for side, glob in ((self.golden, old), (self.own, new)):
            place = side is self.golden, glob
            if place not in self._most:
                same = Renaming.parse(f"{glob}={glob}")
                names = [name for name in side.place if same.apply(name) is not None]
                self._most[place] = sum(len(side.own[name]) for name in names), len(names)
            bounds.append(self._most[place])
        return min(bounds[0][0], bounds[1][0]), min(bounds[0][1], bounds[1][1])

    def _maps(self, ours: str, theirs: str) -> Iterator[str]:
        """Maps of a prefix that turn ``ours`` into ``theirs``, also with ``*`` for numbers."""
        old, new = ours.split(".") if ours else [], theirs.split(".") if theirs else []
        if not self.golden.children.get(ours):
            yield from _with_stars(old, new, [])
        while True:
            if old != new and self.golden.children.get(".".join(old)):
                yield from _with_stars(old, new, ["*"])
            if not old or not new or old[-1] != new[-1]:
                return
            old, new = old[:-1], new[:-1]


def _with_stars(old: list[str], new: list[str], end: list[str]) -> Iterator[str]:
    if old == new or (not end and not (old and new)):
        return
    yield f"{'.'.join([*old, *end])}={'.'.join([*new, *end])}"
    numbers = [[part for part in parts if part.isdecimal()] for parts in (old, new)]
    if numbers[0] and numbers[0] == numbers[1]:
        starred = [["*" if part.isdecimal() else part for part in parts] for parts in (old, new)]
        yield f"{'.'.join([*starred[0], *end])}={'.'.join([*starred[1], *end])}"


def _by_parent(
    golden: _Side, ours: list[str], own: _Side, theirs: list[str], pairs: _Pairs
) -> Iterator[tuple[list[str], list[str]]]:
    """Unpaired modules without parameters but with paired parents, each class in order."""
    groups: dict[tuple[str, str | None], tuple[list[str], list[str]]] = {}
    for name in ours:
        parent = pairs.get(_parent(name))
        if name and parent is not None and not golden.own[name]:
            groups.setdefault((parent, golden.classes.get(name)), ([], []))[0].append(name)
    for name in theirs:
        if name and not own.own[name] and (_parent(name), own.classes.get(name)) in groups:
            groups[_parent(name), own.classes.get(name)][1].append(name)
    yield from groups.values()


def _digests(parameters: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The digests of a module's first parameter, by type."""
    entry = parameters[min(parameters)] if parameters else {}
    return [(name, str(digest)) for name, digest in (entry.get("digests") or {}).items()]


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _gain(before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int]:
    return after[0] - before[0], after[1] - before[1]


def _exactness(text: str) -> int:
    """The length of a map's old name without stars."""
    return len(text.partition("=")[0].replace("*", ""))


def _most_exact_first(maps: Iterable[str]) -> list[str]:
    return sorted(maps, key=_exactness, reverse=True)
