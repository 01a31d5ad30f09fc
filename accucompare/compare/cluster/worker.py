"""What runs in a cluster's worker: it opens bundles by path, and measures and judges its tasks."""

from __future__ import annotations

import platform
import threading
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import astuple

from accucompare.bundle.format import Record
from accucompare.bundle.reading import Bundle, open_bundle
from accucompare.compare.judging import Sides, judge_task, with_small_pairs
from accucompare.compare.limits import Tolerance
from accucompare.compare.pairing import Pair
from accucompare.compare.remarks import ByRounding
from accucompare.compare.rows import PairOutcome, Proof, Task
from accucompare.errors import BundleError, ClusterError
from accucompare.numbers import DTYPES, kernel
from accucompare.places import place_of
from accucompare.version import __version__


class _Sent(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A task's first fields, with a number in place of its limits: most tasks share them."""

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
        _Sent(task.pair, limits.setdefault(task.tolerance, len(limits)), *astuple(task)[2:10])
        for task in tasks
    ]
    return Parcel(tuple(limits), _ENCODER.encode(sent))


def unpack_tasks(parcel: Parcel) -> list[Task]:
    return [
        Task(sent.pair, parcel.limits[sent.limits], *astuple(sent)[2:])
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


#: Of clients that are at work, or that were killed before they could say that they are done.
_JOBS_HELD = 4


@dataclass(frozen=True, slots=True)
class Located:
    """A bundle as a worker finds it."""

    # absolute, or a URL with credentials; not in the repr, which Dask logs on failure
    path: str = field(repr=False)
    identity: str  # what ``Bundle.identity`` must be there, as it is at the client's


@dataclass(frozen=True, slots=True)
class Job:
    """A comparison, as each of its parcels names it."""

    token: str
    bundles: dict[str, Located]  # by their names in ``compare.judging.sides.Sides``
    client: dict[str, str]  # what the client computes with (``introduce``)
    verify: bool
    keep_going: bool


_sides: dict[str, Sides] = {}  # by the job's token, the oldest first
_opening = threading.Lock()


def introduce() -> dict[str, str]:
    """What this process computes with that may change a result, even its last bits."""
    float32 = DTYPES["float32"]
    compiled = kernel.can_measure(float32, float32)
    return {
        "accucompare": __version__,
        "kernel": str(kernel.KERNEL_VERSION) if compiled else "none",
        "NumPy": np.__version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "processor": platform.machine(),
    }


def check_same(who: str, theirs: dict[str, str], ours: dict[str, str]) -> None:
    """Raise ClusterError if a process's results may differ from the client's."""
    if theirs["accucompare"] != ours["accucompare"]:
        raise ClusterError(
            f"{who} has accucompare {theirs['accucompare']}, but {ours['accucompare']} compares"
            " here; install the same there:"
            f" pip install 'accucompare[cluster]=={ours['accucompare']}'"
        )
    if theirs["kernel"] != ours["kernel"]:
        raise ClusterError(
            f"{who} has compiled kernel {theirs['kernel']}, but compiled kernel {ours['kernel']} is"
            " in use here, so that last digits would differ; install accucompare there as it is"
            " here (`accucompare doctor` says why a kernel is not used)"
        )


def judge_parcel(job: Job, parcel: Parcel) -> Reply:
    """The outcomes of a parcel's tasks, or errors of unreadable records: retrying would not help.
    Raises ClusterError if this worker cannot do the work; Dask then retries, maybe on another one.
    """
    outcomes: list[PairOutcome | BundleError] = []
    try:
        sides, tasks = _opened(job), unpack_tasks(parcel)
        sides = with_small_pairs(sides, tasks)
        for task in tasks:
            try:
                outcomes.append(judge_task(sides, task))
            except BundleError as error:
                outcomes.append(error)
                break
        return pack_outcomes(outcomes)
    except ClusterError:
        raise
    except Exception as error:
        candidate = place_of(job.bundles["candidate"].path)
        raise ClusterError(
            f"worker {_own_address()}: {type(error).__name__}: {error}, while it compared"
            f" {candidate}"
        ) from error


def forget(token: str) -> None:
    """Let go of a job's bundles; the last task that still reads them closes their files."""
    with _opening:
        _sides.pop(token, None)


def _opened(job: Job) -> Sides:
    """The job's bundles, opened once in each process. Raises ClusterError if one is not the
    client's, or a late worker has another accucompare."""
    with _opening:
        if job.token not in _sides:
            check_same(f"worker {_own_address()}", introduce(), job.client)
            opened: dict[str, Any] = {"baseline": None, "repeat": None}
            opened |= {name: _open(place) for name, place in job.bundles.items()}
            while len(_sides) >= _JOBS_HELD:
                del _sides[next(iter(_sides))]
            _sides[job.token] = Sides(**opened, verify=job.verify, keep_going=job.keep_going)
        return _sides[job.token]


def _open(place: Located) -> Bundle:
    try:
        bundle = open_bundle(place.path)
    except (BundleError, OSError) as error:
        raise ClusterError(
            f"worker {_own_address()}: {error}\nEvery worker reads the bundles itself: mount them"
            " there under the same path, or give URLs."
        ) from None
    if bundle.identity() != place.identity:
        raise ClusterError(
            f"worker {_own_address()}: {place_of(place.path)}: is another bundle there than here; "
            "give a path that is the same directory everywhere"
        )
    return bundle


def _own_address() -> str:
    from distributed import get_worker

    try:
        return str(get_worker().address)
    except ValueError:  # not in a worker
        return f"on {platform.node()}"
