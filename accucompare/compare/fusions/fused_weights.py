"""Which rows of one side's weight are which rows of the other side's, by their digests alone."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from accucompare.compare.pairing import Model, Renaming, counterparts, rename, rename_parameter
from accucompare.numbers import merged, read_rows, same_fingerprint

#: A parameter's entry in a manifest.
_Entry = Mapping[str, Any]


class RowRun(NamedTuple):
    """So many rows that follow each other: where they begin in the whole, and in the part."""

    at: int
    own: int
    rows: int


class WeightPart(NamedTuple):
    """A parameter that is a part of another one."""

    name: str
    runs: tuple[RowRun, ...]
    turned: bool  # as a ``FusedWeight``'s


class FusedWeight(NamedTuple):
    """A parameter of one side that is made up of others of the other side."""

    whole: str
    of_golden: bool  # whether golden has it
    parts: tuple[WeightPart, ...]
    rows: int  # how many it has; of a transposed one, its columns
    turned: bool  # whether these rows are columns of its values, as of GPT-2's Conv1D

    @property
    def module(self) -> str:
        return self.whole.rpartition(".")[0]


def find_fused(golden: Model, own: Model, renamings: Sequence[Renaming] = ()) -> list[FusedWeight]:
    """The parameters that are made up of others, with each of their rows once.

    One that is another's equal under another name is left to ``--map``; what a map names is not
    looked at.
    """
    sides = [_Weights.of(golden, own, renamings, True), _Weights.of(golden, own, renamings, False)]
    if not all(side.entries for side in sides):
        return []
    found: list[FusedWeight] = []
    for mine, others, of_golden in ((0, 1, True), (1, 0, False)):
        taken = {part.name for each in found for part in each.parts}
        for name in sides[mine].matrices:
            if name not in taken:
                found += _made_up(name, sides[mine], sides[others], of_golden)
    once: dict[str, FusedWeight] = {}
    for each in found:
        names = {each.whole, *(part.name for part in each.parts)}
        if not names & once.keys():
            once |= dict.fromkeys(names, each)
    fused = list(dict.fromkeys(once.values()))
    return fused + [bias for each in fused for bias in _biases(each, sides)]


@dataclass(frozen=True, eq=False)
class _View:
    """A parameter by its rows, or by its columns."""

    name: str
    turned: bool
    rows: int
    entry: _Entry  # of its rows' digests


class _Weights:
    """The parameters of a side that the other does not have alike under the same name."""

    def __init__(self, entries: Mapping[str, _Entry], own: Collection[tuple[str, str]]) -> None:
        self.entries = entries
        # names of golden's and of the candidate's that stand for one parameter, of one shape. Its
        # values may be those of a fresh model.
        self._own = own
        self._named = {name for names in own for name in names}
        self.views: dict[int, list[_View]] = defaultdict(list)  # by width
        self.types: dict[int, set[str]] = defaultdict(set)  # by width
        for name in entries:
            for view, width in self._views(name):
                self.views[width].append(view)
                self.types[width].add(entries[name]["dtype"])
        self._indices: dict[tuple[int, str, int], dict[int, list[tuple[_View, int]]]] = {}

    @classmethod
    def of(
        cls, golden: Model, own: Model, renamings: Sequence[Renaming], of_golden: bool
    ) -> _Weights:
        sides = golden.get("parameters") or {}, own.get("parameters") or {}
        pairs = counterparts(*sides, renamings, rename_parameter)
        same = {
            (ours, theirs)
            for ours, theirs in pairs.items()
            if same_fingerprint(sides[0][ours], sides[1][theirs]) is not False
        }
        table = sides[0] if of_golden else sides[1]
        alike = {each[0] if of_golden else each[1] for each in same}
        modules = own.get("modules") or {}
        mapped = {
            (name if of_golden else new)
            for name in golden.get("modules") or ()
            if renamings and (new := rename(name, renamings)) in modules and new is not None
        }
        tied = (golden if of_golden else own).get("tied") or {}
        of_one_shape = {
            (ours, theirs)
            for ours, theirs in pairs.items()
            if sides[0][ours]["shape"] == sides[1][theirs]["shape"]
        }
        return cls(
            {
                name: entry
                for name, entry in table.items()
                if name not in alike
                and name not in tied
                and name.rpartition(".")[0] not in mapped
                and ("rows" in entry or "columns" in entry)
            },
            of_one_shape,
        )

    def may_be(self, whole: str, parts: Sequence[WeightPart]) -> bool:
        """Whether a parameter may be made up of the other side's. One that has a counterpart of its
        shape is no part of another: fresh models of one seed have each other's rows."""
        return self._named.isdisjoint((whole, *(part.name for part in parts)))

    def is_own(self, whole: str, part: str, of_golden: bool) -> bool:
        """Whether two names stand for one parameter, of one shape."""
        return ((whole, part) if of_golden else (part, whole)) in self._own

    @property
    def matrices(self) -> list[str]:
        return [name for name, entry in self.entries.items() if len(entry["shape"]) > 1]

    def _views(self, name: str) -> Iterator[tuple[_View, int]]:
        entry = self.entries[name]
        shape = entry["shape"]
        if len(shape) > 1:
            for kind, width in (("rows", shape[-1]), ("columns", shape[-2])):
                if kind in entry and width:
                    rows = math.prod(shape) // width
                    yield _View(name, kind == "columns", rows, entry[kind]), width

    def views_of(self, name: str) -> list[tuple[_View, int]]:
        return list(self._views(name))

    def index(self, width: int, dtype: str, block: int) -> dict[int, list[tuple[_View, int]]]:
        """Where runs of ``block`` rows are, by their numbers."""
        key = width, dtype, block
        if key not in self._indices:
            index: dict[int, list[tuple[_View, int]]] = defaultdict(list)
            for view in self.views[width]:
                for place, number in enumerate(_numbers(view, dtype, block)):
                    index[number].append((view, place))
            self._indices[key] = dict(index)
        return self._indices[key]


def _numbers(view: _View, dtype: str, block: int) -> list[int]:
    """The numbers of a view's runs of ``block`` rows; none if it has only those of others."""
    words, own = read_rows(view.entry, dtype), view.entry.get("block")
    if words is None or not isinstance(own, int) or own < 1 or block % own or view.rows % block:
        return []
    if len(words) * own != view.rows:
        return []
    found: list[int] = merged(words, own, block).tolist()
    return found


def _made_up(name: str, mine: _Weights, others: _Weights, of_golden: bool) -> Iterator[FusedWeight]:
    """A parameter as made up of the other side's, in the first way that uses all rows once."""
    for view, width in mine.views_of(name):
        block = view.entry.get("block")
        if not isinstance(block, int):
            continue
        # of one type, or the finer one rounded to the coarser
        types = {mine.entries[name]["dtype"], *others.types[width]}
        for dtype in [each for each in view.entry.get("digests", ()) if each in types]:
            runs = _walk(view, _numbers(view, dtype, block), others.index(width, dtype, block))
            if runs is None:
                continue
            parts = tuple(
                WeightPart(part.name, tuple(own), part.turned) for part, own in runs.items()
            )
            several = len(parts) > 1 or len(parts[0].runs) > 1
            turned = len(parts) == 1 and parts[0].turned is not view.turned
            # its own rows in another order are another weight, not another layout
            own = turned and mine.is_own(name, parts[0].name, of_golden)
            if own or ((several or turned) and mine.may_be(name, parts)):
                yield FusedWeight(name, of_golden, parts, view.rows, view.turned)
                return


def _walk(
    whole: _View, numbers: Iterable[int], index: Mapping[int, Sequence[tuple[_View, int]]]
) -> dict[_View, list[RowRun]] | None:
    """The runs that make up a whole, by part; ``None`` unless all rows of each are used once."""
    block = whole.entry["block"]
    used: dict[_View, set[int]] = defaultdict(set)
    runs: dict[_View, list[RowRun]] = defaultdict(list)
    last: tuple[_View, int] | None = None
    at = -1
    for at, number in enumerate(numbers):
        places = [each for each in index.get(number, ()) if each[1] not in used.get(each[0], ())]
        if not places:
            return None
        following = None if last is None else (last[0], last[1] + 1)
        if following in places:
            view, place = following
            run = runs[view][-1]
            runs[view][-1] = run._replace(rows=run.rows + block)
        else:
            view, place = max(places, key=lambda each: _near(each[0], whole))
            runs[view].append(RowRun(at * block, place * block, block))
        used[view].add(place)
        last = view, place
    whole_used = all(len(places) * block == view.rows for view, places in used.items())
    return dict(runs) if at >= 0 and whole_used else None


def _near(part: _View, whole: _View) -> int:
    """How much of its name a part has in common with the whole: equal weights are told apart."""
    names = zip(part.name, whole.name, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda both: both[0] == both[1], names))


def _biases(weight: FusedWeight, sides: Sequence[_Weights]) -> Iterator[FusedWeight]:
    """The other parameters of a fused weight's module, made up in the same way: equal biases would
    not tell."""
    mine, others = sides if weight.of_golden else sides[::-1]
    for name, entry in mine.entries.items():
        module, _, leaf = name.rpartition(".")
        if module != weight.module or len(entry["shape"]) != 1:
            continue
        whole = _View(name, False, entry["shape"][0], entry["rows"])
        parts = [
            part._replace(name=f"{part.name.rpartition('.')[0]}.{leaf}", turned=False)
            for part in weight.parts
        ]
        if whole.rows == weight.rows and all(part.name in others.entries for part in parts):
            entries = {part.name: others.entries[part.name] for part in parts}
            if _same_runs(whole, parts, entries):
                yield FusedWeight(name, weight.of_golden, tuple(parts), whole.rows, False)


def _same_runs(whole: _View, parts: Sequence[WeightPart], entries: Mapping[str, _Entry]) -> bool:
    """Whether a whole has each part's rows where they should be."""
    for dtype in whole.entry.get("digests", ()):
        block = whole.entry["block"]
        numbers = _numbers(whole, dtype, block)
        held = {
            name: _numbers(_View(name, False, each["shape"][0], each["rows"]), dtype, block)
            for name, each in entries.items()
        }
        if numbers and all(
            held[part.name][run.own // block : (run.own + run.rows) // block]
            == numbers[run.at // block : (run.at + run.rows) // block]
            for part in parts
            for run in part.runs
        ):
            return True
    return False
