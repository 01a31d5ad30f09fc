"""Pairs golden's records with the candidate's. Never raises: unpaired ones get the nearest name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from accucompare.bundle.format import UPDATE_ROLES, Key, Layout, Record, Role
from accucompare.compare.pairing.renames import Renaming, Signatures, rename

#: The most unmatched names for which the nearest name is searched.
_NEAREST_FOR = 500
#: What is known by an argument of a call.
OF_INPUTS = (Role.INPUT, Role.GRAD_INPUT)


class Pair(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A record of golden and its partner; one of the two may be ``None``."""

    golden: Record | None
    candidate: Record | None
    nearest: str = ""

    @property
    def record(self) -> Record:
        """Golden's record, or else the candidate's."""
        record = self.golden or self.candidate
        assert record is not None
        return record


def pair_records(
    golden: Iterable[Record],
    candidate: Iterable[Record],
    renamings: Iterable[Renaming] = (),
    signatures: tuple[Signatures, Signatures] = ({}, {}),
    parameters: Mapping[str, str] | None = None,
) -> list[Pair]:
    """Pair the records of two bundles by rank, step, name, call, role and path.

    An input passed by position on one side and by name on the other is paired by its name in the
    signature. A tensor is also paired with the first of a returned tuple. Returns one pair per
    record of either side, in golden's order; the candidate's unpaired records follow the one before
    them.

    Args:
        golden, candidate: their records, in execution order.
        renamings: of golden's layers.
        signatures: golden's and the candidate's.
        parameters: golden's names to the candidate's other first names.
    """
    by_key = {record.key: record for record in golden}
    candidate = list(candidate)
    renamings = list(renamings)
    unmatched = {record.key: record for record in candidate}
    partners: dict[Key, Record] = {}
    renamed = {key: _renamed(key, renamings) for key in by_key} if renamings else {}
    if parameters:
        renamed |= {
            key: new
            for key in by_key
            if (new := with_parameter(key, parameters, renamed.get(key))) is not None
        }
    # renamed records choose first
    for key, new in [*renamed.items(), *zip(by_key, by_key, strict=True)]:
        if new in unmatched and key not in partners:
            partners[key] = unmatched.pop(new)
    left = (
        [record for key, record in by_key.items() if key not in partners]
        if len(partners) < len(by_key)
        else []
    )
    for key, argument in by_argument(left, unmatched.values(), renamings, signatures).items():
        partners[key] = unmatched.pop(argument.key)
    for key, first in _in_a_tuple(
        (record for record in left if record.key not in partners), unmatched, renamings
    ).items():
        partners[key] = unmatched.pop(first.key)
    extras = _extras_by_predecessor(candidate, unmatched) if unmatched else {}
    nearest = _nearest_names(
        {record.name for record in left if record.key not in partners},
        {key.name for key in unmatched},
    )
    pairs = [Pair(None, record, nearest.get(record.name, "")) for record in extras.get(None, ())]
    for key, record in by_key.items():
        partner = partners.get(key)
        pairs.append(Pair(record, partner, "" if partner else nearest.get(record.name, "")))
        if partner is not None and extras:
            pairs += [
                Pair(None, extra, nearest.get(extra.name, ""))
                for extra in extras.get(partner.key, ())
            ]
    return pairs


def by_argument(
    golden: Iterable[Record],
    candidate: Iterable[Record],
    renamings: Sequence[Renaming],
    signatures: tuple[Signatures, Signatures],
) -> dict[Key, Record]:
    """The candidate's inputs and their gradients, by golden's keys: the same argument of one call.

    One side has it at ``0``, the other at ``hidden_states``.

    Args:
        golden, candidate: the records that have no partner of the same path.
        renamings, signatures: as for ``pair_records``.
    """
    theirs = {
        _by_name(record, signatures[1], signatures[0]): record
        for record in candidate
        if record.role in OF_INPUTS
    }
    partners: dict[Key, Record] = {}
    for record in golden:
        if not theirs or record.role not in OF_INPUTS:
            continue
        key = _by_name(record, *signatures)
        for place in (_renamed(key, renamings), key):
            if place in theirs:
                partners[record.key] = theirs.pop(place)
                break
    return partners


#: The path of an output in a tuple of its own, and of one that is returned as it is.
_TUPLED = {"": "0", "0": ""}


def tupled(role: Role, path: str) -> str | None:
    """An output's other path: ``x`` may be ``(x,)`` after a refactoring. ``None`` for others."""
    return _TUPLED.get(path) if role in (Role.OUTPUT, Role.GRAD_OUTPUT) else None


def _in_a_tuple(
    golden: Iterable[Record], candidate: Mapping[Key, Record], renamings: Sequence[Renaming]
) -> dict[Key, Record]:
    """The candidate's record by golden's key, for outputs that only one side returns in a tuple, or
    as the only field of an object."""
    partners: dict[Key, Record] = {}
    left = [each for each in golden if each.role in (Role.OUTPUT, Role.GRAD_OUTPUT)]
    if not left or not candidate:
        return partners
    counted = Counter(each.key._replace(path="") for each in left)
    alone: dict[Key, list[Record]] = {}
    for each in candidate.values():
        if each.role in (Role.OUTPUT, Role.GRAD_OUTPUT) and each.layout is Layout.STRIDED:
            alone.setdefault(each.key._replace(path=""), []).append(each)
    for record in left:
        path = tupled(record.role, record.path)
        keys = [record.key._replace(path="" if path is None else path)]
        keys = [key for each in keys for key in (_renamed(each, renamings), each) if key]
        found = [candidate.get(key) for key in keys if path is not None]
        if counted[record.key._replace(path="")] == 1:
            calls = (alone.get(key._replace(path=""), []) for key in keys)
            found += [each[0] for each in calls if len(each) == 1 and _is_field(record, each[0])]
        other = next((each for each in found if each is not None), None)
        if other is not None and other.shape == record.shape:
            partners[record.key] = other
    return partners


def _is_field(one: Record, other: Record) -> bool:
    """Whether one side's value is a named field of what is returned, and the other's all of it."""
    first, second = sorted((one.path, other.path))
    return first == "" and second.isidentifier()


def _by_name(record: Record, own: Signatures, other: Signatures) -> Key:
    """An input's key with the argument's name in its path, by either side's signature."""
    return record.key._replace(
        path=argument_path(record.path, own.get(record.type) or other.get(record.type) or ())
    )


def argument_path(path: str, names: Sequence[str]) -> str:
    """An input's path by its argument's name: ``0.1`` becomes ``hidden_states.1``."""
    position, dot, rest = path.partition(".")
    if not position.isdecimal() or int(position) >= len(names):
        return path
    return f"{names[int(position)]}{dot}{rest}"


#: What is known by a parameter's name.
_OF_PARAMETERS = (Role.CALL_GRAD, *UPDATE_ROLES)


def with_parameter(
    key: Key, parameters: Mapping[str, str], renamed: Key | None = None
) -> Key | None:
    """The key of a parameter's record under its other first name; ``None`` if it has none.

    Args:
        key: golden's.
        parameters: other first names, by golden's.
        renamed: the key with another name of the module call.
    """
    state = key.role in (Role.STATE_BEFORE, Role.STATE_AFTER)
    own, dot, rest = key.path.partition("." if state else "#")
    name = own[1:] if own.startswith("/") else f"{key.name}.{own}" if key.name else own
    new = parameters.get(name) if key.role in _OF_PARAMETERS else None
    if new is None:
        return None
    module, _, leaf = new.rpartition(".")
    if key.role is not Role.CALL_GRAD:
        return key._replace(name=module, path=f"{leaf}{dot}{rest}")
    call = renamed or key
    return call._replace(path=leaf if module == call.name else f"/{new}")


def _renamed(key: Key, renamings: Iterable[Renaming]) -> Key | None:
    name = rename(key.name, renamings)
    return None if name is None else key._replace(name=name)


def _extras_by_predecessor(
    candidate: list[Record], unmatched: dict[Key, Record]
) -> dict[Key | None, list[Record]]:
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
        for name in names[:_NEAREST_FOR]:
            best = process.extractOne(name, others, scorer=fuzz.ratio, score_cutoff=50)
            if best is not None:
                nearest.setdefault(name, best[0])
    return nearest
