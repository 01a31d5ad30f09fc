"""Calls of one module that the two sides make in another order: paired by what they are given.

A shared encoder may see the second text first; a recursion may go into its last branch first. A
module's calls change places only if each is given what another one of golden's was, as far as norms
and extrema tell. What they return is compared all the same."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

import msgspec

from accucompare.bundle.format import SERIES_ROLES, UPDATE_ROLES, Layout, Record, Role
from accucompare.compare.constants import BY_DIGITS
from accucompare.compare.pairing.renames import Renaming, own_names
from accucompare.numbers import DTYPES

#: (rank, step, name).
_Module = tuple[int, int, str]

#: By path: norm and extrema; at "/" the limit of the type.
_Sizes = dict[str, tuple[float, ...]]

#: What is numbered by other things than calls.
_OF_NO_CALL = (*UPDATE_ROLES, *SERIES_ROLES, Role.BUFFER_BEFORE, Role.BUFFER_AFTER)


def in_goldens_order(
    golden: Collection[Record], candidate: Sequence[Record], renamings: Sequence[Renaming] = ()
) -> Sequence[Record]:
    """The candidate's records, with golden's numbers of the calls that are in another order."""
    ours, theirs = _given(golden), _given(candidate)
    orders: dict[_Module, dict[int, int]] = {}
    for (rank, step, name), calls in ours.items():
        places = ((rank, step, each) for each in own_names(name, renamings))
        place = next((each for each in places if each in theirs), None)
        if place is not None and len(calls) == len(theirs[place]) > 1:
            orders[place] = _order(calls, theirs[place])
    if not any(orders.values()):
        return candidate
    return [_renumbered(record, orders) for record in candidate]


def golden_call(
    call: int, goldens: Iterable[int], taken: Container[int], is_alike: Callable[[int], bool]
) -> int | None:
    """Which of golden's calls of a module one is: that of its number if it is alike, else the first
    other one; ``None`` if all that are alike are taken."""
    numbers = itertools.chain((call,), goldens)
    return next((each for each in numbers if each not in taken and is_alike(each)), None)


def _given(records: Collection[Record]) -> dict[_Module, dict[int, _Sizes]]:
    """What each call of a module was given, if there are several."""
    found: defaultdict[_Module, dict[int, _Sizes]] = defaultdict(dict)
    called_again = {(record.rank, record.step, record.name) for record in records if record.call}
    for record in records if called_again else ():
        if (
            record.role is not Role.INPUT
            or record.layout is not Layout.STRIDED
            or (record.rank, record.step, record.name) not in called_again
        ):
            continue
        known = record.statistics
        if not record.shape or known is None or None in (known.l2, known.min, known.max):
            continue
        if digits := DTYPES[record.dtype].digits:
            sizes = found[record.rank, record.step, record.name].setdefault(record.call, {})
            sizes[record.path] = (known.l2 or 0.0, known.min or 0.0, known.max or 0.0)
            sizes["/"] = (BY_DIGITS[digits][0],)
    return found


def _order(golden: Mapping[int, _Sizes], candidate: Mapping[int, _Sizes]) -> dict[int, int]:
    """Golden's calls of the candidate's in another order; empty if they are not the same."""
    order: dict[int, int] = {}
    taken: set[int] = set()
    for call, own in candidate.items():
        found = golden_call(call, golden, taken, functools.partial(_is_alike, golden, own))
        if found is None:
            return {}
        taken.add(found)
        if found != call:
            order[call] = found
    return order


def _is_alike(calls: Mapping[int, _Sizes], candidate: _Sizes, call: int) -> bool:
    """Whether a call of golden's was given the same, within the default limit of the coarser
    type."""
    golden = calls.get(call, {})
    if golden.keys() != candidate.keys():
        return False
    within = max(golden["/"][0], candidate["/"][0])
    return all(
        abs(one - other) <= within * max(abs(golden[path][0]), abs(other))
        for path in golden
        if path != "/"
        for one, other in zip(golden[path], candidate[path], strict=True)
    )


def _renumbered(record: Record, orders: Mapping[_Module, Mapping[int, int]]) -> Record:
    call, parent = record.call, record.parent
    if record.role not in _OF_NO_CALL:
        call = orders.get((record.rank, record.step, record.name), {}).get(call, call)
    if parent is not None:
        name, index = parent
        order = orders.get((record.rank, record.step, name), {})
        parent = name, order.get(index, index)
    if (call, parent) == (record.call, record.parent):
        return record
    return msgspec.structs.replace(record, call=call, parent=parent)
