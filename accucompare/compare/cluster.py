"""Runs the tasks of a comparison on a Dask cluster, of the user's or of this machine, with the result of threads at home, bit for bit.

Only records go out and metrics come back: each worker reads the bundles itself. Nothing here imports Dask before a cluster is asked for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future, wait
from typing import TYPE_CHECKING, Any

from accucompare.bundle.reader import Bundle
from accucompare.compare.batches import Progress, batches_of, in_order
from accucompare.compare.outcomes import Outcome, Task, nbytes
from accucompare.compare.parcels import Reply, pack_tasks, unpack_outcomes
from accucompare.compare.sides import Sides
from accucompare.compare.worker import Job, Place, forget, introduce, judge_parcel
from accucompare.errors import BundleError, ClusterError, UsageError
from accucompare.places import Url
from accucompare.text import printable

if TYPE_CHECKING:
    from distributed import Client

_LOGGER = logging.getLogger(__name__)

#: Bytes of tensors and pairs that a worker gets at a time: Dask takes about two milliseconds for a task, whatever is in it.
BATCH = 128 << 20
PAIRS = 2000
#: The fewest tasks in flight; twice as many as threads, if that is more. A million pairs are never all packed at once.
IN_FLIGHT = 64
#: How often Dask runs a task again that has failed. A worker that dies is another matter: distributed.scheduler.allowed-failures.
RETRIES = 2
#: Seconds between two looks at the cluster while nothing arrives, and for how long it may be without any worker.
LOOK = 2.0
ALONE = 30.0
_GOODBYE = 5.0  # seconds that workers have to close their files

_LOCAL = re.compile(r"local(?::([1-9][0-9]*))?")


@contextlib.contextmanager
def open_cluster(where: str) -> Iterator[Cluster]:
    """Connect to a cluster, and check that its processes compute as this one does.

    Args:
        where: a scheduler's address as Dask has it, or ``local`` or ``local:8`` for processes on this machine, which end with this.

    Raises:
        UsageError: if ``where`` is neither, or Dask is not installed.
        ClusterError: if the scheduler does not answer, has no workers, or they run another accucompare.
    """
    local = _LOCAL.fullmatch(where)
    if local is None and "://" not in where:
        raise UsageError(f"--cluster {where}: must be a scheduler's address, such as tcp://host:8786, or local, or local:8")
    try:
        import distributed
    except ImportError:
        raise UsageError("--cluster needs Dask: pip install 'accucompare[cluster]'") from None
    with contextlib.ExitStack() as stack:
        try:
            if local is not None:
                address: Any = stack.enter_context(_processes(int(local.group(1) or os.cpu_count() or 1)))
            else:
                address = where
            client = stack.enter_context(distributed.Client(address, set_as_default=False, name="accucompare"))
        except (OSError, RuntimeError, ValueError, TypeError) as error:
            cure = "is `dask scheduler` running there?" if local is None else "see what Dask says above, or compare without --cluster"
            raise ClusterError(f"--cluster {where}: cannot be reached ({printable(str(error))}); {cure}") from None
        cluster = Cluster(client, where)
        cluster.check()
        yield cluster


@contextlib.contextmanager
def _processes(count: int) -> Iterator[Any]:
    """Workers on this machine. Ctrl-C in the terminal reaches them too, and is left to this process."""
    from distributed import LocalCluster

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        cluster = LocalCluster(n_workers=count, threads_per_worker=1, memory_limit=0, dashboard_address=":0", silence_logs=logging.CRITICAL)
    finally:
        if main:
            signal.signal(signal.SIGINT, before)
    with cluster:
        yield cluster


class Cluster:
    """A cluster that is connected. Made by ``open_cluster``."""

    def __init__(self, client: Client, where: str) -> None:
        self._client = client
        self._where = where
        self._workers: list[str] = []  # those seen last

    def check(self) -> None:
        """Raise ClusterError unless every process of the cluster can do the work as this one does it."""
        if not self._threads():
            raise ClusterError(f"--cluster {self._where}: has no workers; start some with `dask worker {self._where}`")
        ours = introduce()
        try:
            found: dict[str, Any] = {"the scheduler": self._client.run_on_scheduler(introduce)}
        except Exception as error:
            found = {"the scheduler": error}
        found.update((f"worker {address}", answer) for address, answer in self._client.run(introduce, on_error="return").items())
        for who, theirs in found.items():
            if isinstance(theirs, BaseException):
                raise ClusterError(
                    f"--cluster {self._where}: {who} cannot run accucompare ({type(theirs).__name__}: {printable(str(theirs))}); "
                    f"install it there: {_install(ours)}"
                ) from None
            self._compare(who, ours, theirs)

    def _compare(self, who: str, ours: dict[str, str], theirs: dict[str, str]) -> None:
        other = [f"{name} {theirs.get(name)} ({ours[name]} here)" for name in ours if theirs.get(name) != ours[name]]
        if theirs.get("accucompare") != ours["accucompare"]:
            raise ClusterError(f"--cluster {self._where}: {who} has {other[0]}; install the same there: {_install(ours)}")
        if who == "the scheduler":  # it measures nothing
            return
        if theirs["kernel"] != ours["kernel"]:
            raise ClusterError(
                f"--cluster {self._where}: {who} has {theirs['kernel']}, but {ours['kernel']} here, so that last digits would differ; "
                f"install accucompare there as it is here (`accucompare doctor` says why a kernel is not used)"
            )
        if other:
            _LOGGER.warning("%s has %s; the last digits of some results may differ from those of a diff at home", who, ", ".join(other))

    def outcomes(self, sides: Sides, tasks: list[Task], progress: Progress) -> list[Outcome | BundleError]:
        """The outcome of each pair, in parcels of neighbours, the large ones first, as ``compare.batches.outcomes_of`` has them at home.

        Raises:
            BundleError: of the first record that cannot be read, unless ``sides.keep_going``.
            ClusterError: if workers die, cannot read the bundles, or are all gone.
        """
        sizes = [nbytes(task) for task in tasks]
        total, done = sum(sizes), 0
        large, rest = in_order(sizes)
        batches = batches_of([*large, *rest], sizes, BATCH, PAIRS)
        job = _job(sides)
        words = {_absolute(bundle): str(bundle.path) for bundle in _bundles(sides).values()}
        outcomes: dict[int, Outcome | BundleError] = {}
        with self._executor(job) as executor:
            flight: deque[Future[Reply]] = deque()
            waiting = iter(batches)
            for batch in batches:
                while len(flight) < max(IN_FLIGHT, 2 * len(self._workers)) and (following := next(waiting, None)) is not None:
                    flight.append(executor.submit(judge_parcel, job, pack_tasks([tasks[place] for place in following])))
                own = unpack_outcomes(self._reply(flight.popleft(), tasks[batch[0]], len(batch), sides))
                own = [_as_at_home(each, words) if isinstance(each, BundleError) else each for each in own]
                if not sides.keep_going and isinstance(own[-1], BundleError):
                    raise own[-1]
                outcomes.update(zip(batch, own, strict=True))
                done += sum(sizes[place] for place in batch)
                progress(done, total)
        return [outcomes[place] for place in range(len(tasks))]

    @contextlib.contextmanager
    def _executor(self, job: Job) -> Iterator[Executor]:
        """Dask as an executor. At the end, and after Ctrl-C, what has not begun is dropped, and workers close their files."""
        self._threads()
        executor: Executor = self._client.get_executor(pure=False, retries=RETRIES)
        try:
            yield executor
        finally:
            goodbye = threading.Thread(target=self._leave, args=(executor, job.token), daemon=True)  # a worker that hangs does not answer
            goodbye.start()
            goodbye.join(_GOODBYE)

    def _leave(self, executor: Executor, token: str) -> None:
        with contextlib.suppress(Exception, CancelledError):
            executor.shutdown(wait=False)
            self._client.run(forget, token, on_error="ignore")

    def _reply(self, future: Future[Reply], first: Task, pairs: int, sides: Sides) -> Reply:
        """What a worker has answered; meanwhile looks now and then whether there still is one.

        Raises:
            ClusterError: if none can answer.
        """
        from distributed.scheduler import KilledWorker

        alone: float | None = None
        while not wait([future], LOOK).done:
            if self._threads():
                alone = None
            elif (alone := alone or time.monotonic()) < time.monotonic() - ALONE:
                raise self._lost(sides, f"has had no workers for {ALONE:.0f} s")
        try:
            return future.result()
        except CancelledError:
            raise self._lost(sides, "has lost its scheduler") from None
        except KilledWorker as error:
            raise ClusterError(
                f"--cluster {self._where}: {error.allowed_failures + 1} workers died, the last one {error.last_worker.address}, while each "
                f"compared the same {pairs} records of {sides.candidate.path} from {first.pair.record.key} on; their logs say why"
            ) from None
        except (ClusterError, BundleError) as error:
            raise ClusterError(f"--cluster {self._where}: {error}") from None
        except Exception as error:  # such as a reply that cannot be read
            raise ClusterError(f"--cluster {self._where}: {type(error).__name__}: {printable(str(error))}") from error

    def _threads(self) -> int:
        """How many threads all workers have; 0 also if the scheduler does not answer."""
        try:
            threads: dict[str, int] = self._client.nthreads()
        except (OSError, RuntimeError):
            return 0
        self._workers = list(threads) or self._workers
        return sum(threads.values())

    def _lost(self, sides: Sides, what: str) -> ClusterError:
        last = ", ".join(self._workers[:3]) + (", …" if len(self._workers) > 3 else "")
        return ClusterError(
            f"--cluster {self._where}: {what} while {sides.golden.path} and {sides.candidate.path} were compared (the last workers were "
            f"{last}); nothing was written. Look at their logs, start them again, and compare again"
        )


def _install(ours: dict[str, str]) -> str:
    return f"pip install 'accucompare[cluster]=={ours['accucompare']}'"


def _bundles(sides: Sides) -> dict[str, Bundle]:
    """The bundles of a comparison, by their names in it."""
    named = {
        "golden": sides.golden,
        "candidate": sides.candidate,
        "baseline": sides.baseline,
        "repeat": sides.repeat,
        "golden_repeat": sides.golden_repeat,
    }
    return {name: bundle for name, bundle in named.items() if bundle is not None}


def _job(sides: Sides) -> Job:
    """The comparison for workers, whose working directories are others."""
    places = {name: Place(_absolute(bundle), bundle.identity()) for name, bundle in _bundles(sides).items()}
    return Job(secrets.token_hex(8), places, sides.verify, sides.keep_going)


def _absolute(bundle: Bundle) -> str:
    return bundle.path.whole if isinstance(bundle.path, Url) else os.path.abspath(bundle.path)


def _as_at_home(error: BundleError, words: dict[str, str]) -> BundleError:
    """The error of a record with the bundle's path as the user has typed it."""
    text = str(error)
    for path in sorted(words, key=len, reverse=True):
        text = text.replace(path, words[path])
    return type(error)(text)
