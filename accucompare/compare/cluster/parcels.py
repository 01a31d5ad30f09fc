"""What goes to a cluster's worker and comes back: packed tightly, and never a tensor.

msgpack packs ten times as fast as pickle, which would take longer for a million pairs than
measuring them. It is exact: records came from a typed decoder, and outcomes have typed fields."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from accucompare.bundle.format import Record
from accucompare.compare.limits import Tolerance
from accucompare.compare.pairing import Pair
from accucompare.compare.remarks import ByRounding
from accucompare.compare.rows import PairOutcome, Proof, Task
from accucompare.errors import BundleError


class _Sent(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A task, with a number in place of its limits: most tasks share them."""

    pair: Pair
    limits: int
    baseline: Record | None
    repeat: Record | None
    by_rounding: ByRounding | None
    golden_repeat: Record | None
    before: Pair | None
    given_to_both: bool
    proof: Proof | None
    rounded: Record | None


@dataclass(frozen=True, slots=True)
class Parcel:
    """Some packed tasks. Limits are few and pickled, so that what a user gave keeps its type."""

    limits: tuple[Tolerance, ...]
    tasks: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """The packed outcomes of a parcel, and by place the errors of unreadable tasks.

    Without ``keep_going`` the first error is the last thing in it."""

    outcomes: bytes
    errors: dict[int, BundleError] = field(default_factory=dict)


_ENCODER = msgspec.msgpack.Encoder()
_TASKS = msgspec.msgpack.Decoder(list[_Sent])
_OUTCOMES = msgspec.msgpack.Decoder(list[PairOutcome])


def pack_tasks(tasks: list[Task]) -> Parcel:
    limits: dict[Tolerance, int] = {}
    sent = [
        _Sent(
            task.pair,
            limits.setdefault(task.tolerance, len(limits)),
            task.baseline,
            task.repeat,
            task.by_rounding,
            task.golden_repeat,
            task.before,
            task.given_to_both,
            task.proof,
            task.rounded,
        )
        for task in tasks
    ]
    return Parcel(tuple(limits), _ENCODER.encode(sent))


def unpack_tasks(parcel: Parcel) -> list[Task]:
    return [
        Task(
            sent.pair,
            parcel.limits[sent.limits],
            sent.baseline,
            sent.repeat,
            sent.by_rounding,
            sent.golden_repeat,
            sent.before,
            sent.given_to_both,
            sent.proof,
            sent.rounded,
        )
        for sent in _TASKS.decode(parcel.tasks)
    ]


def pack_outcomes(outcomes: list[PairOutcome | BundleError]) -> Reply:
    found = [outcome for outcome in outcomes if not isinstance(outcome, BundleError)]
    return Reply(
        _ENCODER.encode(found),
        {place: each for place, each in enumerate(outcomes) if isinstance(each, BundleError)},
    )


def unpack_outcomes(reply: Reply) -> list[PairOutcome | BundleError]:
    outcomes: list[PairOutcome | BundleError] = [*_OUTCOMES.decode(reply.outcomes)]
    for place in sorted(reply.errors):
        outcomes.insert(place, reply.errors[place])
    return outcomes
