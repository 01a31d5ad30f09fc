"""Golden's names for the modules of ranks that hold other modules: stages, chunks, experts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from accucompare.compare.layouts.rank_names import NameEvidence, PutBack, RankNames, StageOf
from accucompare.compare.pairing import Model, Renaming, rename
from accucompare.numbers import same_fingerprint

#: A manifest's mesh: the index and the number of ranks along each dimension.
RankMesh = Mapping[str, tuple[int, int]]


def names_of_ranks(
    golden: Model,
    ranks: Mapping[int, Model],
    meshes: Mapping[int, RankMesh] | None = None,
    renamings: Sequence[Renaming] = (),
) -> dict[int, RankNames]:
    """Golden's names for the modules of each rank, by the fingerprints of their weights; where
    these tell nothing, by the order of the ranks' layers. Empty if all ranks have golden's names.

    Args:
        golden: a manifest's ``model``, of one rank.
        ranks: those of the ranks; of a live one, its outline with fingerprints.
        meshes: the ranks' places, if they are known; those along ``pp`` and ``ep`` are used.
        renamings: what the user gave: ``golden's=own``, or ``golden's=rank1:own`` for one rank.
    """
    names = set(golden.get("modules") or ())
    if all(set(each.get("modules") or ()) == names for each in ranks.values()):
        return {}
    side = _Golden(golden)
    if len(ranks) > 1 and not any(map(_rank_of, renamings)) and _are_alike(side, [*ranks.values()]):
        return {}  # one model under other names
    found = {
        rank: _Own(
            side, own, [each for each in renamings if _rank_of(each) in ("", f"rank{rank}")], rank
        )
        for rank, own in ranks.items()
    }
    for each in sorted(side.lists, key=lambda name: name.count(".")):  # those around others first
        _put_in_order(each, side, found, meshes or {})
    if not any(own.prefixes or names.issuperset(own.modules) for own in found.values()):
        return {}  # nothing tells what they are
    held = {rank: own.held() for rank, own in found.items()}
    anywhere = {name for each in held.values() for name in each.values()}
    if len(ranks) == 1:
        anywhere = names  # as far as one rank can tell
    return {rank: own.names(held[rank], anywhere) for rank, own in found.items()}


def _are_alike(golden: _Golden, models: Sequence[Model]) -> bool:
    """Whether all ranks have the same modules, no fewer than golden, with the same weights as far
    as they are whole."""
    first, *others = models
    own = first.get("parameters") or {}
    return len(_own_entries(first)) >= len(golden.weighted) and all(
        other.get("modules") == first.get("modules")
        and all(
            "shard" in entry or same_fingerprint(entry, own[name]) is not False
            for name, entry in (other.get("parameters") or {}).items()
            if name in own
        )
        for other in others
    )


def _rank_of(renaming: Renaming) -> str:
    """The rank that a map is for, such as ``rank1``; ``""`` for one that is for all."""
    before, colon, _ = renaming.template.partition(":")
    return before if colon and before.startswith("rank") and before[4:].isdecimal() else ""


def _split(name: str) -> list[str]:
    return name.split(".") if name else []


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _number(name: str) -> int | None:
    """A name's number in its list; ``None`` for one that ends in no number."""
    last = name.rpartition(".")[2]
    return int(last) if last.isdecimal() else None


def _joined(prefix: str, rest: str) -> str:
    return f"{prefix}.{rest}" if prefix and rest else prefix or rest


def _around(name: str) -> Iterator[str]:
    """A name and those of the modules around it, the innermost first, the root last."""
    while name:
        yield name
        name = _parent(name)
    yield ""


def _own_entries(model: Model) -> dict[str, dict[str, Any]]:
    """The entries of parameters and buffers by module and by their names there."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for kind in ("parameters", "buffers"):
        for name, entry in (model.get(kind) or {}).items():
            module, _, leaf = name.rpartition(".")
            found[module][leaf] = entry
    return dict(found)


#: Classes of modules that are never called.
_HOLDERS = ("ModuleList", "ModuleDict")


class _Golden:
    """Golden's modules, and what finds them."""

    def __init__(self, model: Model) -> None:
        self.modules: Mapping[str, str] = model.get("modules") or {}
        self.tied: Mapping[str, str] = model.get("tied") or {}
        self.entries = _own_entries(model)
        self.holders = {name for name, kind in self.modules.items() if kind in _HOLDERS}
        self.weighted = [name for name in self.modules if self.entries.get(name)]
        self._by_digest: dict[tuple[str, str], list[str]] = defaultdict(list)
        for module, entries in self.entries.items():
            for leaf, entry in entries.items():
                for digest in entry["digests"].values():
                    self._by_digest[leaf, digest].append(module)
        self.lists: dict[str, list[int]] = defaultdict(list)  # the numbers in each list
        for name in self.modules:
            if (number := _number(name)) is not None:
                self.lists[_parent(name)].append(number)

    def like(self, kind: str | None, entries: Mapping[str, Any]) -> list[str]:
        """The modules with the same weights as a rank's module, of its class if there are some."""
        leaf, first = next(iter(entries.items()))
        near = dict.fromkeys(
            name for digest in first["digests"].values() for name in self._by_digest[leaf, digest]
        )
        same = [
            name
            for name in near
            if self.entries[name].keys() == entries.keys()
            and all(
                same_fingerprint(self.entries[name][leaf], entry) is True
                for leaf, entry in entries.items()
            )
        ]
        return [name for name in same if self.modules.get(name) == kind] or same


class _Part(NamedTuple):
    """A rank's list of modules that is a part of golden's; ``known``: which one."""

    own: str
    size: int
    known: bool


class _Own:
    """A rank's modules, and the prefixes that are found for them."""

    def __init__(
        self, golden: _Golden, model: Model, renamings: Sequence[Renaming], rank: int
    ) -> None:
        self.golden, self.rank = golden, rank
        self.modules: Mapping[str, str] = model.get("modules") or {}
        self.entries = _own_entries(model)
        self.prefixes: dict[str, tuple[str, NameEvidence]] = {}
        self.copies: dict[str, str] = {}  # modules whose weight is another one's of golden's
        self._by_weights()
        for old in golden.modules if renamings else ():
            new = (rename(old, renamings) or "").removeprefix(f"rank{rank}:")
            if new in self.modules and (new or not old):
                self.prefixes[new] = old, NameEvidence.GIVEN

    def _copy_of(self, module: str, entries: Mapping[str, Any]) -> str | None:
        """The embedding of golden's whose weight a rank's last layer has a copy of: golden's own
        last layer has no weight, but is given that one."""
        same_class = self.golden.modules.get(module) == self.modules.get(module)
        if not same_class or self.golden.entries.get(module) or list(entries) != ["weight"]:
            return None
        rows, *width = (entries["weight"].get("shard") or entries["weight"])["shape"]
        found = [
            name
            for name, held in self.golden.entries.items()
            if "Embedding" in self.golden.modules.get(name, "")
            and [leaf for leaf, each in held.items() if each["shape"][1:] == width] == ["weight"]
            and held["weight"]["shape"][0] <= rows
        ]
        return found[0] if len(found) == 1 else None

    def _by_weights(self) -> None:
        votes: dict[str, Counter[str]] = defaultdict(Counter)
        for module, entries in self.entries.items():
            if copied := self._copy_of(module, entries):
                self.copies[module] = copied
                continue
            if any("shard" in entry for entry in entries.values()):
                continue
            same = self.golden.like(self.modules.get(module), entries)
            if len(same) == 1:
                own, theirs = _split(module), _split(same[0])
                while own and theirs and own[-1] == theirs[-1] and not own[-1].isdecimal():
                    own.pop()
                    theirs.pop()
                votes[".".join(own)][".".join(theirs)] += 1
        found = {own: counted.most_common(1)[0][0] for own, counted in votes.items()}
        found = {**found, **self._in_order(found)}
        self.prefixes |= {own: (name, NameEvidence.WEIGHTS) for own, name in found.items()}

    def _in_order(self, found: Mapping[str, str]) -> dict[str, str]:
        """The elements of each list in golden's order; those between known ones, too.

        Which of golden's layers a rank has is told by weights, their order is not: a layer that has
        another one's weights is a fault to be seen."""
        lists: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        for own, name in found.items():
            mine, theirs = _number(own), _number(name)
            if mine is not None and theirs is not None:
                lists[_parent(own), _parent(name)][mine] = theirs
        elements = {}
        for (own, name), pairs in lists.items():
            ordered = dict(zip(sorted(pairs), sorted(pairs.values()), strict=False))
            if len(ordered) < len(set(pairs.values())) or len(set(pairs.values())) < len(pairs):
                ordered = pairs
            for number in self.numbers(own):
                near = min(ordered, key=lambda each: abs(each - number))
                place = ordered.get(number, ordered[near] + number - near)
                if number in ordered or (
                    place in self.golden.lists[name] and place not in ordered.values()
                ):
                    elements[_joined(own, str(number))] = _joined(name, str(place))
        return elements

    def parts_of(self, name: str) -> Iterator[_Part]:
        """The lists that hold a part of golden's list, in this model's order."""
        count = len(self.golden.lists[name])
        for own in dict.fromkeys(
            _parent(each) for each in self.modules if _number(each) is not None
        ):
            numbers = self.numbers(own)
            placed = [
                self.prefixes[each][0]
                for number in numbers
                if (each := _joined(own, str(number))) in self.prefixes
            ]
            if placed:
                if any(_parent(each) == name for each in placed):
                    yield _Part(own, len(numbers), True)
            elif self._may_be(own, name):
                # a list that does not begin with 0 keeps golden's numbers
                kept = sorted(numbers) != [*range(len(numbers))] or len(numbers) == count
                yield _Part(own, len(numbers), kept)

    def _may_be(self, own: str, name: str) -> bool:
        """Whether a list's modules have parameters like those of golden's list."""
        if (known := self.golden_name(own)) is not None and known != name:
            return False
        theirs = self._shapes(self.golden.entries, f"{name}.{self.golden.lists[name][0]}")
        mine = self._shapes(self.entries, _joined(own, str(self.numbers(own)[0])))
        return mine.keys() == theirs.keys() and all(
            len(shape) == len(theirs[leaf])
            and all(
                length and not whole % length
                for length, whole in zip(shape, theirs[leaf], strict=True)
            )
            for leaf, shape in mine.items()
        )

    @staticmethod
    def _shapes(entries: Mapping[str, Mapping[str, Any]], module: str) -> dict[str, list[int]]:
        """The shapes of the parameters below a module."""
        return {
            _joined(name[len(module) :], leaf): (entry.get("shard") or entry)["shape"]
            for name, held in entries.items()
            if _is_in(name, module)
            for leaf, entry in held.items()
        }

    def place(self, own: str, name: str, first: int | None) -> None:
        """Put a list's modules into golden's list; ``None``: nothing tells where."""
        for number in self.numbers(own):
            each = _joined(own, str(number))
            place = f"rank{self.rank}:{each}" if first is None else f"{name}.{first + number}"
            self.prefixes[each] = place, NameEvidence.ORDER

    def place_around(self, own: str, name: str) -> None:
        """Put what lies beside a list where golden has it beside its own list."""
        mine, theirs = _parent(own), _parent(name)
        beside = [each for each in self.modules if each and _parent(each) == mine and each != own]
        known = (_joined(theirs, each.rpartition(".")[2]) for each in beside)
        if mine not in self.prefixes and any(each in self.golden.modules for each in known):
            self.prefixes[mine] = theirs, NameEvidence.ORDER

    def numbers(self, parent: str) -> list[int]:
        """The numbers of the modules in a list."""
        before = f"{parent}." if parent else ""
        return [
            number
            for name in self.modules
            if name.startswith(before) and _parent(name) == parent
            for number in [_number(name)]
            if number is not None
        ]

    def golden_name(self, own: str) -> str | None:
        """Golden's name by the innermost known prefix, or else the own one; ``None`` if golden has
        no such module."""
        for prefix in _around(own):
            if prefix in self.prefixes:
                own = _joined(self.prefixes[prefix][0], own[len(prefix) :].removeprefix("."))
                break
        return own if own in self.golden.modules else None

    def held(self) -> dict[str, str]:
        """Golden's modules that the rank has, by their own names."""
        return {own: name for own in self.modules if (name := self.golden_name(own)) is not None}

    def names(self, held: Mapping[str, str], anywhere: Collection[str]) -> RankNames:
        """What has been found.

        Args:
            held: as this object's ``held`` gives it.
            anywhere: those of golden's modules that any rank has.
        """
        here = set(held.values())
        weighted = {name for own, name in held.items() if self.entries.get(own)}
        modules: dict[str, str] = {}
        stages: dict[str, StageOf] = {}
        taken: set[str] = set()
        callable_ = [own for own in self.modules if self.modules[own] not in _HOLDERS]
        for own in sorted(callable_, key=lambda each: each not in self.prefixes):
            name = held.get(own)
            inside = [held[each] for each in held if each != own and _is_in(each, own)]
            if name is None and inside:  # it holds layers, but golden has no such module
                name = _module_around(inside, self.golden)
            if name in self.golden.holders:
                name = None
            elif name is not None and inside and self._lacks_layers(name, here, anywhere):
                whole = [each for each in self.golden.weighted if _is_in(each, name)]
                begins, ends = whole[0] in weighted, whole[-1] in weighted
                stages[own] = StageOf(name, *((False, False) if name in taken else (begins, ends)))
            elif name in taken:
                name = None
            if name is None and own in self.golden.modules and own not in self.golden.holders:
                name = f"rank{self.rank}:{own}"
            if name is not None:
                taken.add(name)
                modules[own] = name
        changed = {own: name for own, name in modules.items() if own != name}
        return RankNames(changed, self._parameters(modules), stages, self._shown())

    def _shown(self) -> tuple[PutBack, ...]:
        """The names that do not follow from that of the module around."""
        return tuple(
            PutBack(own, name, how)
            for own, (name, how) in self.prefixes.items()
            if own != name
            and (
                self.prefixes.get(_parent(own)) != (_parent(name), how)
                or own.rpartition(".")[2] != name.rpartition(".")[2]
            )
        )

    def _lacks_layers(self, name: str, here: Collection[str], anywhere: Collection[str]) -> bool:
        """Whether this rank has a stage of a module of golden's. Of experts that other ranks have,
        the layer around them is here."""
        if any(part.isdecimal() for part in _split(name)):
            return False
        return any(
            each not in here
            and not any(_number(around) is not None and around in here for around in _around(each))
            for each in self.golden.weighted
            if _is_in(each, name) and each in anywhere
        )

    def _parameters(self, modules: Mapping[str, str]) -> dict[str, str]:
        """Golden's first names of parameters and buffers, where they differ."""
        found = {}
        for module, entries in self.entries.items():
            for leaf in entries:
                own = _joined(module, leaf)
                new = _joined(self.copies.get(module, modules.get(module, module)), leaf)
                if (first := self.golden.tied.get(new, new)) != own:
                    found[own] = first
        return found


def _is_in(name: str, module: str) -> bool:
    """Whether a module is another one or lies in it."""
    return not module or name == module or name.startswith(f"{module}.")


def _module_around(names: Iterable[str], golden: _Golden) -> str:
    """Golden's innermost module around all of these that is no list and no element of one."""
    common = _split(min(names))
    for name in names:
        own = _split(_parent(name))
        common = common[: sum(1 for _ in _while_equal(common, own))]
    around = ".".join(common)
    return next(
        each
        for each in _around(around)
        if not each or (each not in golden.holders and _number(each) is None)
    )


def _while_equal(one: Sequence[str], other: Sequence[str]) -> Iterator[str]:
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            return
        yield mine


def _put_in_order(
    name: str, golden: _Golden, ranks: Mapping[int, _Own], meshes: Mapping[int, RankMesh]
) -> None:
    """Put the ranks' parts of a list one after the other, where their weights do not tell.

    If they do not fill the list, nothing tells what they are."""
    parts = {rank: [*own.parts_of(name)] for rank, own in ranks.items()}
    for rank, own in ranks.items():
        for part in parts[rank]:
            own.place_around(part.own, name)
    if all(part.known for each in parts.values() for part in each):
        return
    total = len(golden.lists[name])
    firsts: dict[int, list[int]] = {}
    for stages in _stages(name, [*ranks], meshes):
        sizes = {tuple(part.size for part in parts[rank]) for stage in stages for rank in stage}
        alike = all(
            len({tuple(part.size for part in parts[rank]) for rank in stage}) == 1
            for stage in stages
        )
        if alike and len({len(each) for each in sizes}) == 1:
            first = 0
            for chunk in range(len(next(iter(sizes)))):
                for stage in stages:
                    for rank in stage:
                        firsts.setdefault(rank, []).append(first)
                    first += parts[stage[0]][chunk].size
            if first == total:
                break
        firsts.clear()
    for rank, own in ranks.items():
        for number, part in enumerate(parts[rank]):
            if not part.known:
                own.place(part.own, name, firsts[rank][number] if firsts else None)


def _stages(
    name: str, ranks: Sequence[int], meshes: Mapping[int, RankMesh]
) -> Iterator[list[list[int]]]:
    """The ways in which ranks may share a list: those that have the same part of it, in order."""
    experts = any(part.isdecimal() for part in _split(name))
    along = "ep" if experts else "pp"
    if all(along in meshes.get(rank, ()) for rank in ranks):
        places: dict[int, list[int]] = defaultdict(list)
        for rank in ranks:
            places[meshes[rank][along][0]].append(rank)
        yield [stage for _, stage in sorted(places.items())]
        return
    for count in range(len(ranks), 1, -1):
        each, rest = divmod(len(ranks), count)
        if not rest:  # ranks with the same layers are neighbours, those with the same experts not
            yield [
                [*ranks[number::count]] if experts else [*ranks[number * each :][:each]]
                for number in range(count)
            ]
