"""Aligns the operators of two module calls as sequences: one more does not shift the others.

Two operators may be paired if they have the same name and take tensors of the same shapes and
kinds. The alignment with the most pairs is taken. Among those with about as many, the most pairs
with the same numbers and strings decide, then the most similar values, then the same source lines.
The calls that a module makes are aligned together with its operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from accucompare.bundle.format import OPERATOR_ROLES, Layout, Record, Role, line_in_file
from accucompare.compare.constants import ALIKE_OPERATORS
from accucompare.compare.pairing.align import Pair, pair_records
from accucompare.compare.pairing.order_of_calls import in_goldens_order
from accucompare.compare.pairing.renames import Renaming, Signatures, own_names
from accucompare.numbers import DTYPES

#: The worth of a pair, plus that of equal numbers and strings, similar values, equal lines.
_PAIR, _OPTIONS, _LIKE, _LINE = 1000, 100, 40, 10


#: Operators of a call that are aligned at a time: time and memory grow with the square. Longer
#: sequences are aligned well if one-sided runs are shorter than about half of this.
SEQUENCE_WINDOW = 1 << 12

#: (rank, step, name, call index).
_Call = tuple[int, int, str, int]
_Integers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


@dataclass(eq=False)
class _Step:
    """An operator that a module call ran, or a call that it made."""

    name: str
    number: int
    line: str = ""
    tensors: list[Record] = field(default_factory=list)  # that went in
    options: tuple[Hashable, ...] = ()  # numbers and strings, of a call its module's name

    @property
    def key(self) -> Hashable:
        """What two steps must share to be paired."""
        return self.name, tuple((each.part, each.shape, _kind(each)) for each in self.tensors)

    @property
    def sizes(self) -> list[float]:
        """Norm and extrema of each tensor; zeros if unknown."""
        known = [each.statistics for each in self.tensors]
        sizes = [(each.l2, each.min, each.max) if each else (None, None, None) for each in known]
        return [0.0 if value is None else float(value) for each in sizes for value in each]


def align_operators(
    golden: Sequence[Record],
    candidate: Sequence[Record],
    renamings: Sequence[Renaming] = (),
    signatures: tuple[Signatures, Signatures] = ({}, {}),
    parameters: Mapping[str, str] | None = None,
) -> list[Pair]:
    """``pair_records`` for free-running captures: operators pair in sequence, not by number, and
    calls of one module by what they are given."""
    ordered = in_goldens_order(golden, candidate, renamings)
    numbered = numbered_as(golden, ordered, renamings)
    own = {id(new): old for new, old in zip(numbered, candidate, strict=True) if new is not old}
    pairs = pair_records(golden, numbered, renamings, signatures, parameters)
    return (
        [
            msgspec.structs.replace(pair, candidate=own.get(id(pair.candidate), pair.candidate))
            for pair in pairs
        ]
        if own
        else pairs
    )


def numbered_as(
    golden: Iterable[Record], candidate: Iterable[Record], renamings: Sequence[Renaming] = ()
) -> list[Record]:
    """A capture's records; paired operators get golden's numbers, others higher ones.

    A fed capture numbers them so itself."""
    candidate = list(candidate)
    if not any(record.role in OPERATOR_ROLES for record in candidate):
        return candidate
    theirs = _sequences(candidate)
    numbers: dict[tuple[_Call, str, int], int] = {}
    for call, steps in _sequences(golden).items():
        rank, step, name, index = call
        places = ((rank, step, each, index) for each in own_names(name, renamings))
        other = next((each for each in places if each in theirs), None)
        if other is not None:
            numbers.update(
                {
                    (other, *operator): number
                    for operator, number in _numbers(steps, theirs[other]).items()
                }
            )
    return [
        _numbered(record, numbers) if record.role in OPERATOR_ROLES else record
        for record in candidate
    ]


def _numbered(record: Record, numbers: dict[tuple[_Call, str, int], int]) -> Record:
    name, number = record.operator
    new = numbers.get(((record.rank, record.step, record.name, record.call), name, number), number)
    if new == number:
        return record
    return msgspec.structs.replace(
        record, path=f"{name}#{new}{record.path.removeprefix(f'{name}#{number}')}"
    )


def _numbers(golden: list[_Step], candidate: list[_Step]) -> dict[tuple[str, int], int]:
    """The new number of each of the candidate's operators."""
    numbers = {
        (candidate[theirs].name, candidate[theirs].number): golden[ours].number
        for ours, theirs in aligned(golden, candidate)
    }
    after = Counter[str]()
    for each in golden:
        after[each.name] = max(after[each.name], each.number + 1)
    for each in candidate:
        if (each.name, each.number) not in numbers:
            numbers[each.name, each.number] = after[each.name]
            after[each.name] += 1
    return numbers


def numbered_nodes(
    golden: Iterable[Record], nodes: Iterable[tuple[str, int, str]]
) -> dict[tuple[str, int], int]:
    """A module call's autograd nodes, numbered among golden's as ``numbered_as`` does.

    Args:
        golden: the records of golden's nodes, in their order.
        nodes: name, number and source line of each, in their order.
    """
    theirs = {record.operator: _Step(*record.operator, record.source_line) for record in golden}
    return _numbers(list(theirs.values()), [_Step(*node) for node in nodes])


def _sequences(records: Iterable[Record]) -> dict[_Call, list[_Step]]:
    """What each module call that ran operators did, in order."""
    sequences: dict[_Call, dict[tuple[str, int], _Step]] = {}
    calls: set[_Call] = set()
    for record in records:
        place = record.rank, record.step
        if record.role in OPERATOR_ROLES:
            call = (*place, record.name, record.call)
            calls.add(call)
            step = sequences.setdefault(call, {}).setdefault(
                record.operator, _Step(*record.operator, record.source_line)
            )
            if record.role is Role.OP_INPUT and record.layout in (Layout.SCALAR, Layout.OPAQUE):
                step.options += (record.part, record.digest)
            elif record.role in (Role.OP_INPUT, Role.OP_GRAD_OUTPUT):
                step.tensors.append(record)
        elif record.parent is not None:
            made = _Step(f"call {record.type}", record.call, options=(record.name,))
            sequences.setdefault((*place, *record.parent), {}).setdefault(
                (record.name, record.call), made
            )
    return {call: list(steps.values()) for call, steps in sequences.items() if call in calls}


def aligned(golden: Sequence[_Step], candidate: Sequence[_Step]) -> list[tuple[int, int]]:
    """The places of golden's and the candidate's steps that are paired, in order."""
    first = 0
    while first < min(len(golden), len(candidate)) and _is_same(golden[first], candidate[first]):
        first += 1
    last = 0
    while last < min(len(golden), len(candidate)) - first and _is_same(
        golden[-1 - last], candidate[-1 - last]
    ):
        last += 1
    ends = len(golden) - last, len(candidate) - last
    return [
        *((place, place) for place in range(first)),
        *(
            (first + ours, first + theirs)
            for ours, theirs in _in_windows(golden[first : ends[0]], candidate[first : ends[1]])
        ),
        *((ends[0] + place, ends[1] + place) for place in range(last)),
    ]


def _is_same(golden: _Step, candidate: _Step) -> bool:
    same = (golden.options, line_in_file(golden.line)) == (
        candidate.options,
        line_in_file(candidate.line),
    ) and golden.key == candidate.key
    return same and bool(
        _distances(golden.sizes, np.array([candidate.sizes]))[0] <= ALIKE_OPERATORS
    )


def _in_windows(golden: Sequence[_Step], candidate: Sequence[_Step]) -> list[tuple[int, int]]:
    """The best pairs, window by window; each window keeps the pairs far from its end."""
    aligned_pairs: list[tuple[int, int]] = []
    ours = theirs = 0
    while ours < len(golden) and theirs < len(candidate):
        pairs = _best(
            golden[ours : ours + SEQUENCE_WINDOW], candidate[theirs : theirs + SEQUENCE_WINDOW]
        )
        if max(len(golden) - ours, len(candidate) - theirs) > SEQUENCE_WINDOW:
            pairs = [pair for pair in pairs if min(pair) < SEQUENCE_WINDOW // 2]
            after = (
                (pairs[-1][0] + 1, pairs[-1][1] + 1)
                if pairs
                else (SEQUENCE_WINDOW // 2, SEQUENCE_WINDOW // 2)
            )
        else:
            after = SEQUENCE_WINDOW, SEQUENCE_WINDOW
        aligned_pairs += [(ours + one, theirs + other) for one, other in pairs]
        ours, theirs = ours + after[0], theirs + after[1]
    return aligned_pairs


def _best(golden: Sequence[_Step], candidate: Sequence[_Step]) -> list[tuple[int, int]]:
    """The pairs of largest total worth, like a longest common subsequence; the first if equal."""
    alike = _Alike.by_key(candidate)
    # the worth of golden's steps until now and each first part of the candidate's
    best: _Integers = np.zeros(len(candidate) + 1, np.int64)
    # for each of golden's, packed: where it adds nothing; where the candidate's last adds nothing
    alone = []
    for step in golden:
        row = best.copy()
        others = alike.get(step.key)
        if others is not None:
            row[others.places + 1] = np.maximum(
                row[others.places + 1], best[others.places] + others.worth(step)
            )
        np.maximum.accumulate(row, out=row)
        alone.append((np.packbits(row == best), np.packbits(row[1:] == row[:-1])))
        best = row
    pairs = []
    ours, theirs = len(golden), len(candidate)
    while ours and theirs:
        without_golden, without_candidate = alone[ours - 1]
        if _bit(without_golden, theirs):
            ours -= 1
        elif _bit(without_candidate, theirs - 1):
            theirs -= 1
        else:
            ours, theirs = ours - 1, theirs - 1
            pairs.append((ours, theirs))
    return pairs[::-1]


def _bit(packed: npt.NDArray[np.uint8], place: int) -> bool:
    return bool(packed[place >> 3] >> (7 - (place & 7)) & 1)


@dataclass(frozen=True, eq=False)
class _Alike:
    """The candidate's steps of one key."""

    places: _Integers
    options: _Integers  # hashes
    lines: _Integers
    sizes: _Floats

    @classmethod
    def by_key(cls, steps: Sequence[_Step]) -> dict[Hashable, _Alike]:
        places: dict[Hashable, list[int]] = {}
        for place, step in enumerate(steps):
            places.setdefault(step.key, []).append(place)
        return {
            key: cls(
                np.array(own),
                np.array([hash(steps[place].options) for place in own]),
                np.array([hash(line_in_file(steps[place].line)) for place in own]),
                np.array([steps[place].sizes for place in own]),
            )
            for key, own in places.items()
        }

    def worth(self, step: _Step) -> _Integers:
        """The worth of a pair of golden's step with each of these."""
        options, lines = (
            self.options == hash(step.options),
            self.lines == hash(line_in_file(step.line)),
        )
        values = _LIKE * (1.0 - np.minimum(_distances(step.sizes, self.sizes), 1.0))
        worth: _Integers = _PAIR + _OPTIONS * options + _LINE * lines + values.astype(np.int64)
        return worth


def _distances(golden: list[float], candidates: _Floats) -> _Floats:
    """The mean relative distance of norms and extrema; 0 without tensors."""
    if not golden:
        return np.zeros(len(candidates))
    ours = np.array(golden)
    size = np.maximum(np.abs(ours), np.abs(candidates))
    apart = np.divide(
        np.abs(ours - candidates), size, out=np.zeros_like(candidates), where=size > 0.0
    )
    mean: _Floats = apart @ np.full(len(golden), 1.0 / len(golden))
    return mean


def _kind(record: Record) -> Hashable:
    return DTYPES[record.dtype].kind if record.dtype in DTYPES else record.layout
