"""Runs a comparison's tasks on a Dask cluster, with the results of local threads, bit for bit.

Only records go out and metrics come back: each worker reads the bundles itself. Dask is not
imported before a cluster is asked for."""

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
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, wait
from concurrent.futures import TimeoutError as TimedOutError
from enum import Enum
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, TypeVar

from accucompare.bundle.reading import Bundle
from accucompare.compare.cluster.worker import (
    Job,
    Located,
    Reply,
    check_same,
    forget,
    introduce,
    judge_parcel,
    pack_tasks,
    unpack_outcomes,
)
from accucompare.compare.judging import Sides
from accucompare.compare.rows import PairOutcome, Task, nbytes
from accucompare.compare.task_batches import Progress, batches_of, in_order
from accucompare.errors import BundleError, ClusterError, UsageError
from accucompare.places import Url
from accucompare.text import printable

if TYPE_CHECKING:
    from distributed import Client

_T = TypeVar("_T")

_LOGGER = logging.getLogger(__name__)

#: Bytes of tensors, and pairs, in a parcel: Dask takes about 2 ms for a task, whatever its size.
PARCEL_BYTES = 128 << 20
PAIRS = 2000
#: The fewest tasks in flight (or twice the threads): a million pairs are never all packed at once.
IN_FLIGHT = 64
#: Reruns of a failed task; dying workers count in distributed.scheduler.allowed-failures.
RETRIES = 2
#: How often a parcel is resent if its answer is lost with its worker; then something else is wrong.
ASKED_AGAIN = 3
#: Seconds between two looks at an idle cluster, and seconds that it may be without any worker.
LOOK = 2.0
ALONE_SECONDS = 30.0
# seconds beyond Dask's own patience to connect, and for workers to close their files at the end
_GRACE = 5.0

#: Dask's loggers that print a traceback for each closed connection; the comparison reports it once.
_TALKATIVE = "distributed", "distributed.client", "tornado.application"

#: Dask's profiler samples workers 100 times a second, which costs on few processors.
UNPROFILED = {"distributed.worker.profile.enabled": False}

_LOCAL = re.compile(r"local(?::([1-9][0-9]*))?")


class _Who(Enum):
    """A process of a cluster, as errors name it."""

    SCHEDULER = "the scheduler"
    A_WORKER = "one of its workers"


@contextlib.contextmanager
def open_cluster(where: str) -> Iterator[Cluster]:
    """Connect to a cluster, and check that its processes compute as this one does. Raises
    UsageError if ``where`` is neither, or Dask is not installed; ClusterError if no scheduler
    answers, or it has no workers, or another accucompare. ``where``: a scheduler's address, or
    ``local`` or ``local:8`` for processes on this machine."""
    local = _LOCAL.fullmatch(where)
    if local is None and "://" not in where:
        raise UsageError(
            f"--cluster {where}: must be a scheduler's address, such as tcp://host:8786, or local,"
            " or local:8"
        )
    try:
        from distributed import utils
    except ImportError:
        raise UsageError("--cluster needs Dask: pip install 'accucompare[cluster]'") from None
    with contextlib.ExitStack() as stack:
        for logger in _TALKATIVE:
            stack.enter_context(utils.silence_logging_cmgr(logging.CRITICAL, logger))
        try:
            if local is not None:
                address: Any = stack.enter_context(
                    _processes(int(local.group(1) or os.cpu_count() or 1))
                )
            else:
                address = where
            client = stack.enter_context(_client(address))
        except Exception as error:  # a wrong address fails in many ways
            why = printable(str(error))
            if local is not None:
                raise ClusterError(
                    f"--cluster {where}: its processes could not be started ({why}); in a script,"
                    ' compare under `if __name__ == "__main__":`, because each of them imports the'
                    " script first"
                ) from None
            raise ClusterError(
                f"--cluster {where}: cannot be reached ({why}); is `dask scheduler` running there,"
                " at this port?"
            ) from None
        cluster = Cluster(client, where)
        cluster.check()
        yield cluster


def _client(address: Any) -> Client:
    import dask
    from distributed import Client

    class OwnClient(Client):
        """Drop a client that could not connect at once; Dask would wait a minute."""

        def __del__(self) -> None:
            if self.status == "running":
                super().__del__()  # type: ignore[no-untyped-call]

    seconds: float = (
        dask.utils.parse_timedelta(dask.config.get("distributed.comm.timeouts.connect")) + _GRACE
    )
    try:
        client: Client = _in_time(
            seconds,
            lambda: OwnClient(  # type: ignore[no-untyped-call]
                address, set_as_default=False, name="accucompare"
            ),
        )
    except TimedOutError:
        raise OSError(
            f"what is there did not answer as a scheduler within {seconds:.0f} s"
        ) from None
    return client


def _in_time(seconds: float, call: Callable[[], _T]) -> _T:
    """The function's result. On time-out its thread is abandoned, for some Dask calls never end.
    Raises TimedOutError if it takes longer; else what the function raises."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(seconds)


@contextlib.contextmanager
def _processes(count: int) -> Iterator[Any]:
    """Workers on this machine. They inherit a blocked SIGINT, so that Ctrl-C does not kill them."""
    import dask
    from distributed import LocalCluster

    resource_tracker.ensure_running()  # starting it would unblock the signal again
    # for this thread, and those that it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    small = {"memory_limit": 0, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    try:
        with (
            dask.config.set(UNPROFILED),
            LocalCluster(n_workers=count, threads_per_worker=1, **small) as cluster,
        ):
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield cluster
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Cluster:
    """A connected cluster. Made by ``open_cluster``."""

    def __init__(self, client: Client, where: str) -> None:
        self._client = client
        self._where = where
        self._workers: list[str] = []  # those seen last

    def check(self) -> None:
        """Raise ClusterError unless every process of the cluster computes as this one does."""
        if not self._threads() and self._connected:
            raise ClusterError(
                f"--cluster {self._where}: has no workers; start some with `dask worker"
                f" {self._where}`"
            )
        ours, theirs_of = introduce(), self._introductions()
        if not self._connected:
            raise ClusterError(
                f"--cluster {self._where}: has lost its scheduler before anything was compared;"
                " look at its log, start it again, with its workers, and compare again"
            )
        for who, theirs in theirs_of.items():
            if isinstance(theirs, BaseException):
                raise ClusterError(
                    f"--cluster {self._where}: {who} cannot run accucompare"
                    f" ({type(theirs).__name__}: {printable(str(theirs))}); install it there: pip"
                    f" install 'accucompare[cluster]=={ours['accucompare']}'"
                ) from None
            if who == _Who.SCHEDULER.value:  # it measures nothing
                theirs = {**ours, "accucompare": theirs["accucompare"]}
            check_same(f"--cluster {self._where}: {who}", theirs, ours)
            other = [
                f"{name} {theirs[name]} ({ours[name]} here)"
                for name in ours
                if theirs[name] != ours[name]
            ]
            if other:
                _LOGGER.warning(
                    "%s has %s; the last digits of some results may differ from those of a diff at"
                    " home",
                    who,
                    ", ".join(other),
                )

    def _introductions(self) -> dict[str, Any]:
        """What each process computes with, or the error of asking it."""
        found: dict[str, Any] = {}
        try:
            found[_Who.SCHEDULER.value] = self._client.run_on_scheduler(introduce)
            found |= {
                f"worker {address}": answer
                for address, answer in self._client.run(introduce, on_error="return").items()
            }
        except Exception as error:
            found[(_Who.A_WORKER if found else _Who.SCHEDULER).value] = error
        return found

    def outcomes(
        self, sides: Sides, tasks: list[Task], progress: Progress
    ) -> list[PairOutcome | BundleError]:
        """The outcome of each pair, as by ``task_batches.outcomes_of``, in parcels of neighbours.

        Raises:
            BundleError: of the first record that cannot be read, unless ``sides.keep_going``.
            ClusterError: if workers die, cannot read the bundles, or are all gone.
        """
        sizes = [nbytes(task) for task in tasks]
        total, done = sum(sizes), 0
        large, rest = in_order(sizes)
        batches = batches_of([*large, *rest], sizes, PARCEL_BYTES, PAIRS)
        job = _job(sides)
        words = {_absolute(bundle): str(bundle.path) for bundle in sides.bundles().values()}
        outcomes: dict[int, PairOutcome | BundleError] = {}
        with self._executor(job) as executor:

            def send(places: list[int]) -> Future[Reply]:
                parcel = pack_tasks([tasks[place] for place in places])
                try:
                    return executor.submit(judge_parcel, job, parcel)
                except Exception:
                    if self._connected:
                        raise
                    raise self._lost(sides, "has lost its scheduler") from None

            flight: deque[Future[Reply]] = deque()
            waiting = iter(batches)
            for batch in batches:
                while (
                    len(flight) < max(IN_FLIGHT, 2 * len(self._workers))
                    and (following := next(waiting, None)) is not None
                ):
                    flight.append(send(following))
                reply = self._reply(flight.popleft(), tasks[batch[0]], len(batch), sides)
                for _ in range(ASKED_AGAIN):
                    if reply is None:
                        reply = self._reply(send(batch), tasks[batch[0]], len(batch), sides)
                if reply is None:
                    raise self._lost(
                        sides,
                        f"has lost the answer to the same {len(batch)} pairs {1 + ASKED_AGAIN}"
                        " times",
                    )
                own = unpack_outcomes(reply)
                own = [
                    _as_at_home(each, words) if isinstance(each, BundleError) else each
                    for each in own
                ]
                if not sides.keep_going and isinstance(own[-1], BundleError):
                    raise own[-1]
                outcomes.update(zip(batch, own, strict=True))
                done += sum(sizes[place] for place in batch)
                progress(done, total)
        return [outcomes[place] for place in range(len(tasks))]

    @contextlib.contextmanager
    def _executor(self, job: Job) -> Iterator[Executor]:
        """Dask as an executor. At the end or on Ctrl-C, drop pending work and close files."""
        self._threads()
        executor: Executor = self._client.get_executor(pure=False, retries=RETRIES)
        try:
            yield executor
        finally:
            # a worker may hang and not answer
            with contextlib.suppress(Exception, CancelledError):
                _in_time(_GRACE, lambda: self._leave(executor, job.token))

    def _leave(self, executor: Executor, token: str) -> None:
        executor.shutdown(wait=False)
        self._client.run(forget, token, on_error="ignore")

    def _reply(self, future: Future[Reply], first: Task, pairs: int, sides: Sides) -> Reply | None:
        """A worker's answer. While waiting, checks now and then that workers are left.

        ``None`` if the worker died just then, which Dask's executor mistakes for the task's error.
        Raises ClusterError if no worker can answer."""
        from distributed.scheduler import KilledWorker

        alone: float | None = None
        while not wait([future], LOOK).done:
            # Dask does so after distributed.comm.timeouts.connect without a scheduler
            if self._client.status == "closed":
                raise self._lost(sides, "has lost its scheduler")
            if self._threads():
                alone = None
            elif (alone := alone or time.monotonic()) < time.monotonic() - ALONE_SECONDS:
                raise self._lost(sides, f"has had no workers for {ALONE_SECONDS:.0f} s")
        try:
            return future.result()
        except CancelledError:
            raise self._lost(sides, "has lost its scheduler") from None
        except KilledWorker as error:
            raise ClusterError(
                f"--cluster {self._where}: {error.allowed_failures + 1} workers died, the last one"
                f" {error.last_worker.address}, while each compared the same {pairs} records of"
                f" {sides.candidate.path} from {first.pair.record.key} on; their logs say why"
            ) from None
        except ClusterError as error:
            raise ClusterError(f"--cluster {self._where}: {error}") from None
        except TypeError:
            # "cannot unpack …", of distributed.cfexecutor; the task's own is a ClusterError
            return None
        except Exception as error:  # such as a reply that cannot be read
            if not self._connected:
                raise self._lost(sides, "has lost its scheduler") from None
            raise ClusterError(
                f"--cluster {self._where}: {type(error).__name__}: {printable(str(error))}"
            ) from error

    @property
    def _connected(self) -> bool:
        """Whether there is a scheduler, as far as this process knows."""
        return str(self._client.status) == "running"

    def _threads(self) -> int:
        """How many threads all workers have; 0 if the scheduler does not answer."""
        try:
            threads: dict[str, int] = self._client.nthreads()
        except Exception:  # a closing client fails in many ways
            return 0
        self._workers = list(threads) or self._workers
        return sum(threads.values())

    def _lost(self, sides: Sides, what: str) -> ClusterError:
        last = ", ".join(self._workers[:3]) + (", …" if len(self._workers) > 3 else "")
        return ClusterError(
            f"--cluster {self._where}: {what} while {sides.golden.path} and {sides.candidate.path}"
            f" were compared (the last workers were {last}); nothing was written. Look at their"
            " logs, start them again, and compare again"
        )


def _job(sides: Sides) -> Job:
    """The comparison as workers need it: their working directories are others."""
    places = {
        name: Located(_absolute(bundle), bundle.identity())
        for name, bundle in sides.bundles().items()
    }
    return Job(secrets.token_hex(8), places, introduce(), sides.verify, sides.keep_going)


def _absolute(bundle: Bundle) -> str:
    return bundle.path.whole if isinstance(bundle.path, Url) else os.path.abspath(bundle.path)


def _as_at_home(error: BundleError, words: dict[str, str]) -> BundleError:
    """The error of a record, with the bundle's path as the user typed it."""
    text = str(error)
    for path in sorted(words, key=len, reverse=True):
        text = text.replace(path, words[path])
    return type(error)(text)
