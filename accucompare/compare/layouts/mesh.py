"""The ranks' places along the dimensions of parallelism."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from accucompare.bundle.format import Manifest
from accucompare.compare.layouts.batch_rows import GivenRows
from accucompare.compare.layouts.sequence_parts import Holder, Runs

#: The name of the only dimension of a mesh that no manifest describes.
UNKNOWN = "rank"
#: The dimension of those ranks, of such a mesh, that were given the same.
SAME_BATCH = "model"


@dataclass(frozen=True)
class Mesh:
    """Places along the dimensions of parallelism."""

    sizes: Mapping[str, int]  # by the dimension's name, the outermost first
    places: Mapping[Holder, tuple[int, ...]]  # of each rank's calls of the model, in that order
    batch: str = ""  # the dimension along which each has rows of its own; ``""`` if none is known
    rows: tuple[Runs, ...] = ()  # golden's rows, by the place along ``batch``
    # the dimension along which each has tokens of its own; ``""`` if there is none
    sequence: str = ""
    # the tokens of golden's sequences, by the place along ``sequence``
    columns: tuple[Runs, ...] = ()

    @classmethod
    def of(cls, manifests: Mapping[int, Manifest], ranks: int) -> Mesh:
        """The mesh of a bundle; one dimension of all ranks if its manifests tell no other."""
        meshes = {rank: manifest.mesh for rank, manifest in manifests.items()}
        first = next(iter(meshes.values()), {})
        known = all(list(mesh) == list(first) for mesh in meshes.values())
        sizes = {name: size for name, (_, size) in first.items()}
        if known:
            _leave_out_shared(sizes, [*meshes.values()], ranks)
        names = [*sizes]
        if not known or math.prod(sizes.values()) != ranks:
            return cls({UNKNOWN: ranks}, {(rank, 0): (rank,) for rank in range(ranks)})
        return cls(
            sizes,
            {(rank, 0): tuple(mesh[name][0] for name in names) for rank, mesh in meshes.items()},
        )

    def of_ranks(self, ranks: Collection[int]) -> Mesh:
        """The mesh of some of the ranks: without the dimensions along which all have one place."""
        if all(rank in ranks for rank, _ in self.places):
            return self
        places = {holder: place for holder, place in self.places.items() if holder[0] in ranks}
        along = [sorted({place[at] for place in places.values()}) for at in range(len(self.sizes))]
        kept = [at for at, each in enumerate(along) if len(each) > 1]
        if math.prod(len(along[at]) for at in kept) != len(places) or (
            not kept and len(self.sizes) == 1
        ):
            numbers = {holder: (number,) for number, holder in enumerate(sorted(places))}
            return Mesh({next(iter(self.sizes), UNKNOWN): len(places)}, numbers)
        names = [*self.sizes]
        return Mesh(
            {names[at]: len(along[at]) for at in kept},
            {
                holder: tuple(along[at].index(place[at]) for at in kept)
                for holder, place in places.items()
            },
        )

    @property
    def tokens(self) -> int:
        """How many tokens golden's sequences have; 0 if ranks have all of them."""
        return sum(count for own in self.columns for _, count in own)

    def along(self, holder: Holder, dimensions: Iterable[str]) -> tuple[int, ...]:
        """A holder's place along some dimensions."""
        place = dict(zip(self.sizes, self.places[holder], strict=True))
        return tuple(place[name] for name in dimensions)

    def named(self, name: str) -> str:
        """The dimension of this mesh that holds one of the ranks': ``dp+calls`` for ``dp``."""
        return next((each for each in self.sizes if name in each.split("+")), name)

    def without(self, dimensions: Iterable[str]) -> tuple[str, ...]:
        """The other dimensions."""
        return tuple(name for name in self.sizes if name not in set(dimensions))

    def count(self, dimensions: Iterable[str]) -> int:
        """How many places there are along some dimensions."""
        return math.prod(self.sizes[name] for name in dimensions)

    def told_apart(self, given: Mapping[int, Hashable]) -> Mesh:
        """A mesh that no manifest describes, as what ranks were given tells: along one dimension
        they were given something else, along the other the same."""
        held: dict[Hashable, list[int]] = {}
        for rank, own in sorted(given.items()):
            held.setdefault(own, []).append(rank)
        shares = {len(ranks) for ranks in held.values()}
        known = UNKNOWN not in self.sizes or len(given) < math.prod(self.sizes.values())
        if known or len(held) == 1 or shares == {1} or len(shares) > 1:
            return self
        places = {
            (rank, 0): (number, own)
            for number, ranks in enumerate(held.values())
            for own, rank in enumerate(ranks)
        }
        return Mesh({UNKNOWN: len(held), SAME_BATCH: shares.pop()}, places)

    def of_rows(self, rows: Mapping[Holder, GivenRows]) -> Mesh | None:
        """The mesh of the calls that were given these rows of one batch: one dimension for the
        rows, one for the tokens of each row if ranks have parts of them, and those along which
        ranks have equal ones. ``None`` if these tell them not apart."""
        runs = sorted({each.runs for each in rows.values()})
        columns = sorted({each.columns for each in rows.values()})
        given = {at: (each.runs, each.columns) for at, each in rows.items()}
        kept = [name for name in self.sizes if self._are_equal_along(name, given)]
        used = [name for name in self.sizes if name not in kept]
        sequence = [
            name
            for name in used
            if self._are_equal_along(name, {at: each.runs for at, each in rows.items()})
        ]
        used = [name for name in used if name not in sequence]
        several = len({call for _, call in rows}) > 1
        batch = "+".join((*used, "calls") if several or not used else used)
        # another rank may have been given another of golden's calls
        used_places = {
            name: sorted({self.along((rank, 0), [name]) for rank, _ in rows}) for name in kept
        }
        places = {
            (rank, call): (
                runs.index(each.runs),
                *(held.index(self.along((rank, 0), [name])) for name, held in used_places.items()),
            )
            for (rank, call), each in rows.items()
        }
        sizes = {batch: len(runs), **{name: len(held) for name, held in used_places.items()}}
        made = Mesh(sizes, places, batch, tuple(runs))
        if len(columns) > 1:
            name = "+".join(sequence) or "sequence"
            made = Mesh(
                {**sizes, name: len(columns)},
                {at: (*place, columns.index(rows[at].columns)) for at, place in places.items()},
                batch,
                tuple(runs),
                name,
                tuple(columns),
            )
        count = len(made.places)
        if len(set(made.places.values())) < count or count < math.prod(made.sizes.values()):
            return None
        return made

    def _are_equal_along(self, name: str, given: Mapping[Holder, Hashable]) -> bool:
        """Whether ranks that differ in one dimension alone were given the same."""
        others = self.without([name])
        calls = {(self.along((rank, 0), others), call) for rank, call in given}
        held = {(self.along((rank, 0), others), call, each) for (rank, call), each in given.items()}
        return len(held) == len(calls)


def _leave_out_shared(
    sizes: dict[str, int], meshes: Sequence[Mapping[str, tuple[int, int]]], ranks: int
) -> None:
    """Leave out the dimensions that lie along others, the last first: experts are shared out among
    ranks that the other dimensions tell apart."""
    for name in [*reversed(sizes)]:
        others = [each for each in sizes if each != name]
        places = {tuple(mesh[each][0] for each in others) for mesh in meshes}
        if math.prod(sizes.values()) > ranks and len(places) == len(meshes):
            del sizes[name]
