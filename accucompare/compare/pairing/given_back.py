"""Modules that give an argument back: one side's output is the argument, the other's an alias."""

from __future__ import annotations

from collections import defaultdict

from msgspec.structs import replace

from accucompare.bundle.format import Key, Record, Role
from accucompare.compare.pairing.align import Pair


def with_gradients_given_back(pairs: list[Pair]) -> list[Pair]:
    """The pairs, with the gradient of an alias beside that of the output, which is the argument.

    Eager code has one tensor, and so one gradient. Compiled code gives an alias, which has its own.
    """
    alone = {
        pair.record.key: place
        for place, pair in enumerate(pairs)
        if pair.record.role is Role.GRAD_INPUT and None in (pair.golden, pair.candidate)
    }
    if not alone:
        return pairs
    calls = {key._replace(role=Role.OUTPUT, path="") for key in alone}
    sides: tuple[dict[Key, Record], dict[Key, Record]] = ({}, {})
    outputs: dict[tuple[int, Key], list[Record]] = defaultdict(list)
    for pair in pairs:
        for side, record in enumerate((pair.golden, pair.candidate)):
            call = None if record is None else record.key._replace(role=Role.OUTPUT, path="")
            if record is not None and call in calls:
                sides[side][record.key] = record
                if record.role is Role.OUTPUT:
                    outputs[side, call].append(record)
    found = list(pairs)
    for key, place in alone.items():
        lacks_golden = pairs[place].golden is None
        side = 0 if lacks_golden else 1
        given = sides[side].get(key._replace(role=Role.INPUT))
        back = next(
            (
                each
                for each in outputs[side, key._replace(role=Role.OUTPUT, path="")]
                if given is not None and each.digest and each.digest == given.digest
            ),
            None,
        )
        gradient = back and sides[side].get(back.key._replace(role=Role.GRAD_OUTPUT))
        if gradient and gradient.shape == pairs[place].record.shape:
            same = replace(gradient, role=Role.GRAD_INPUT, path=key.path)
            found[place] = replace(
                pairs[place], **{"golden" if lacks_golden else "candidate": same}
            )
    return found
