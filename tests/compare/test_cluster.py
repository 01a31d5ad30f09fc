"""A diff on a cluster: real processes of Dask, which give what a diff at home gives, or say which
worker could not.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.cfexecutor import ClientExecutor

import accucompare as ac
from accucompare.bundle.format.manifest import Manifest
from accucompare.bundle.reading.reader import Bundle
from accucompare.bundle.writing.writer import BundleWriter
from accucompare.compare.cluster import cluster as running
from accucompare.compare.cluster import worker
from accucompare.compare.cluster.cluster import open_cluster
from accucompare.compare.cluster.worker import Job, Located, Parcel, judge_parcel
from accucompare.errors import ClusterError, RecordError, UsageError
from accucompare.numbers import kernel
from accucompare.numbers.dtypes import DTYPES
from accucompare.selection import Mode
from tests.compare.builder import Item, item, random_bits, write
from tests.compare.test_diff import flip_bit

COUNT = 24
SMALL = {
    "n_workers": 2,
    "threads_per_worker": 1,
    "memory_limit": 0,
    "dashboard_address": ":0",
    "silence_logs": 60,
}
# which is enough to lose it
IN_THIS_PROCESS = {**SMALL, "n_workers": 1, "processes": False, "protocol": "tcp"}


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    """Two workers of one thread each, shared by all tests here; one that dies is started again."""
    with LocalCluster(**SMALL) as cluster:
        yield cluster


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that stays to the end: workers may still read what a test has cancelled."""
    return tmp_path_factory.mktemp("bundles")


@pytest.fixture
def address(local: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> str:
    """The scheduler's, when both workers are there; with parcels so small that each comparison has
    many.
    """
    with quiet_client(local) as client:
        client.wait_for_workers(2)
    monkeypatch.setattr(running, "PARCEL_BYTES", 2000)
    monkeypatch.setattr(running, "LOOK", 0.05)
    return str(local.scheduler_address)


def quiet_client(local: LocalCluster) -> Client:
    return Client(local.scheduler_address, set_as_default=False)


def in_worker(what: str) -> Callable[[str], Any]:
    """What tests let a worker do. Functions made here are sent whole, so that no worker imports the
    tests.
    """

    def die_once(marker: str) -> None:
        """End the process in the middle, if no other has ended for this marker."""
        judge = worker.judge_task

        def judge_or_die(sides: Any, task: Any) -> Any:
            if task.pair.record.name == "layer3":
                with contextlib.suppress(FileExistsError), open(marker, "x"):
                    os._exit(9)
            return judge(sides, task)

        worker.judge_task = judge_or_die

    def open_files(folder: str) -> list[str]:
        """Which files it holds open there."""
        links = (f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd"))
        return [
            os.readlink(link)
            for link in links
            if os.path.exists(link) and os.readlink(link).startswith(folder)
        ]

    return {"die once": die_once, "open files": open_files}[what]


def layers(seed: int = 0, error: float = 0.0, count: int = COUNT) -> list[Item]:
    rng, other = np.random.default_rng(0), np.random.default_rng(seed)
    values = [rng.normal(size=rng.integers(1, 900)) for _ in range(count)]
    return [
        item(f"layer{number}", (each * (1 + error * other.normal(size=each.size))).astype("f4"))
        for number, each in enumerate(values)
    ]


@pytest.fixture
def sides(tmp_path: Path) -> list[Path]:
    return [write(tmp_path / "golden", layers()), write(tmp_path / "candidate", layers(1, 1e-3))]


def whole(comparison: ac.Comparison, path: Path) -> str:
    """Everything of a comparison as text, each number with its type and all of its digits."""
    rows = [
        (row.place, row.verdict, row.metrics, row.baseline_error, row.noise)
        for row in comparison.rows
    ]
    return comparison.to_json(path).read_text() + "\n".join(
        map(repr, [*rows, *comparison.damage, *comparison.culprits])
    )


def assert_same(
    sides: list[Path], address: str, tmp_path: Path, work: ac.Work | None = None, **options: Any
) -> ac.Comparison:
    work = work or ac.Work()
    at_home = ac.diff(*sides, work=work, **options)
    there = ac.diff(*sides, work=replace(work, cluster=address), **options)
    assert whole(there, tmp_path / "there.json") == whole(at_home, tmp_path / "home.json")
    return there


# The same result


def test_a_cluster_gives_every_bit_of_the_result_at_home(address: str, tmp_path: Path) -> None:
    kinds = [dtype for dtype in DTYPES.values() if dtype.storage.itemsize]
    golden, candidate = (
        [
            item(f"{dtype.name}.{count}", random_bits(dtype, count, seed), dtype.name)
            for dtype in kinds
            for count in (1, 700)
        ]
        for seed in (0, 1)
    )
    numbers = np.arange(50, dtype="u8") + (1 << 63)  # which float64 cannot hold
    golden += [
        *layers(),
        item("ids", numbers),
        item("shape", np.ones((2, 3), "f4")),
        item("only golden", np.ones(3, "f4")),
    ]
    candidate += [
        *layers(1, 1e-3),
        item("ids", numbers + 1),
        item("shape", np.ones((3, 2), "f4")),
        item("opaque", layout="opaque"),
    ]
    bundles = [
        write(tmp_path / str(number), side) for number, side in enumerate((golden, candidate))
    ]
    assert len(assert_same(bundles, address, tmp_path).rows) > COUNT
    assert_same(bundles, address, tmp_path, atol=1e-3, rtol=1, work=ac.Work(verify=True))


def test_a_baseline_and_second_runs_judge_on_a_cluster_as_at_home(
    address: str, tmp_path: Path
) -> None:
    bundles = [
        write(tmp_path / name, layers(seed, error))
        for name, seed, error in (("g", 0, 0), ("c", 1, 1e-3), ("b", 2, 1e-4))
    ]
    write(tmp_path / "c" / "repeat1", layers(3, 1e-3))
    write(tmp_path / "g" / "repeat1", layers(4, 1e-5))
    found = assert_same(bundles[:2], address, tmp_path, baseline=bundles[2])
    assert (
        {row.noise is None for row in found.rows}
        == {row.baseline_error is None for row in found.rows}
        == {False}
    )


def test_sketches_are_compared_on_a_cluster_as_at_home(address: str, tmp_path: Path) -> None:
    bundles = []
    for name, each in (("golden", layers()), ("candidate", layers(1, 1e-3))):
        capture = {"mode": "sketch", "sketch": {"version": 1, "size": 64}}
        writer = BundleWriter(
            tmp_path / name,
            Manifest(complete=True, capture=capture, model={"sources": {}}),
            mode=Mode.SKETCH,
            sketch_size=64,
        )
        for record, array, _ in each:
            writer.add(record, array)
        writer.end_step(0)
        writer.close()
        bundles.append(tmp_path / name)
    assert assert_same(bundles, address, tmp_path).by_sketch


def test_paths_may_be_relative_to_where_the_client_is(
    sides: list[Path], address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_same([Path(side.name) for side in sides], address, tmp_path)


# What travels


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Parcel]:
    """The parcels that go out."""
    found: list[Parcel] = []

    def remembering(tasks: list[Any]) -> Parcel:
        found.append(worker.pack_tasks(tasks))
        return found[-1]

    monkeypatch.setattr(running, "pack_tasks", remembering)
    return found


def test_no_tensor_travels_and_each_record_once(
    sides: list[Path], address: str, sent: list[Parcel]
) -> None:
    ac.diff(*sides, work=ac.Work(cluster=address))
    stored = sum(each.array.nbytes for each in layers() if each.array is not None)
    assert sum(len(parcel.tasks) for parcel in sent) < COUNT * 600 < stored
    names = [task.pair.record.name for parcel in sent for task in worker.unpack_tasks(parcel)]
    assert names == [each.record.name for each in layers()]


def test_few_parcels_are_in_flight_at_a_time(
    sides: list[Path], address: str, sent: list[Parcel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "PARCEL_BYTES", 1)
    monkeypatch.setattr(running, "IN_FLIGHT", 3)
    ahead = []
    ac.diff(
        *sides,
        work=ac.Work(
            cluster=address, progress=lambda done, total: ahead.append(len(sent) - len(ahead))
        ),
    )
    assert (len(sent), max(ahead)) == (COUNT, 4)  # two workers


def test_pairs_without_tensors_are_parted_too(
    address: str, tmp_path: Path, sent: list[Parcel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "PAIRS", 5)
    bundles = [
        write(tmp_path / name, [item(str(number), layout="opaque") for number in range(12)])
        for name in "gc"
    ]
    with pytest.raises(ac.AccucompareError, match="nothing"):
        raise (
            ac.AccucompareError("nothing")
            if ac.diff(*bundles, work=ac.Work(cluster=address)).compared == 0
            else AssertionError
        )
    assert [len(worker.unpack_tasks(parcel)) for parcel in sent] == [5, 5, 2]


def test_progress_is_told_as_at_home(sides: list[Path], address: str) -> None:
    there: list[tuple[int, int]] = []
    at_home: list[tuple[int, int]] = []
    ac.diff(*sides, work=ac.Work(cluster=address, progress=lambda *so_far: there.append(so_far)))
    ac.diff(*sides, work=ac.Work(progress=lambda *so_far: at_home.append(so_far)))
    assert there == sorted(there)
    assert len(there) > 1
    assert there[-1] == at_home[-1]


# Records that cannot be read


def test_a_damaged_record_is_told_as_at_home(
    sides: list[Path], address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (5, 17):
        flip_bit(Path("candidate/rank0/step0.npz"), layers(1, 1e-3)[number].array.tobytes())
    with pytest.raises(RecordError) as at_home:
        ac.diff("golden", "candidate")
    with pytest.raises(RecordError) as there:
        ac.diff("golden", "candidate", work=ac.Work(cluster=address))
    assert str(there.value) == str(at_home.value)
    assert (
        len(
            assert_same(
                [Path("golden"), Path("candidate")],
                address,
                tmp_path,
                work=ac.Work(keep_going=True),
            ).damage
        )
        == 2
    )


# Workers that cannot


def test_a_worker_that_dies_in_the_middle_costs_nothing(
    sides: list[Path], address: str, tmp_path: Path, local: LocalCluster
) -> None:
    at_home = ac.diff(*sides)
    with quiet_client(local) as client:
        client.run(in_worker("die once"), str(tmp_path / "died"))
    there = ac.diff(*sides, work=ac.Work(cluster=address))
    assert (tmp_path / "died").exists()
    assert whole(there, tmp_path / "there.json") == whole(at_home, tmp_path / "home.json")


def test_work_that_kills_its_workers_ends_with_the_names_of_bundle_and_worker(
    sides: list[Path], address: str, local: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local.scheduler, "allowed_failures", 0)
    with quiet_client(local) as client:
        client.run(in_worker("die once"), str(sides[0].with_name("died")))
        with pytest.raises(
            ClusterError,
            match=r"1 workers? died, the last one tcp://.* records of .*/candidate from layer",
        ) as error:
            ac.diff(*sides, work=ac.Work(cluster=address))
    assert address in str(error.value)


def test_a_worker_that_lacks_the_file_system_is_named_with_the_bundle(
    sides: list[Path], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers here have the same files, so that golden goes away when the client has opened it."""

    def without_golden(tasks: list[Any]) -> Parcel:
        with contextlib.suppress(FileNotFoundError):
            sides[0].rename(sides[0].with_name("away"))
        return worker.pack_tasks(tasks)

    monkeypatch.setattr(running, "pack_tasks", without_golden)
    with pytest.raises(
        ClusterError,
        match=rf"worker tcp://\S+: {sides[0]}.*\n.*mount them there under the same path",
    ) as error:
        ac.diff(*sides, work=ac.Work(cluster=address))
    assert address in str(error.value)


def test_a_worker_that_sees_another_bundle_under_the_path_is_refused(
    sides: list[Path], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = Bundle.identity
    monkeypatch.setattr(
        Bundle, "identity", lambda self: "0" * 32 if self.path == sides[1] else identity(self)
    )
    with pytest.raises(
        ClusterError, match=rf"worker tcp://\S+: {sides[1]}: is another bundle there than here"
    ):
        ac.diff(*sides, work=ac.Work(cluster=address))


def test_the_error_of_a_worker_names_it(
    sides: list[Path], address: str, local: LocalCluster
) -> None:
    def forget_how() -> Callable[..., Any]:
        judge, worker.judge_task = worker.judge_task, None
        return judge

    with quiet_client(local) as client:
        before = client.run(forget_how)
        try:
            with pytest.raises(
                ClusterError,
                match=r"worker tcp://\S+: TypeError: 'NoneType' object is not callable, while",
            ):
                ac.diff(*sides, work=ac.Work(cluster=address))
        finally:
            for each, judge in before.items():
                client.run(setattr, worker, "judge_task", judge, workers=[each])


# What a cluster computes with


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        (
            worker,
            "__version__",
            r"worker tcp://\S+ has accucompare \S+, but x compares here; .*: pip install '.*==x'",
        ),
        (
            kernel,
            "KERNEL_VERSION",
            (
                r"worker tcp://\S+ has compiled kernel \d+, but compiled kernel x is in use here,"
                r" so that last digits"
            ),
        ),
    ],
)
def test_workers_that_compute_with_other_code_are_refused(
    sides: list[Path],
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    message: str,
) -> None:
    monkeypatch.setattr(module, name, "x")
    with pytest.raises(ClusterError, match=message):
        ac.diff(*sides, work=ac.Work(cluster=address))


def test_a_worker_that_comes_later_with_other_code_is_refused_too(sides: list[Path]) -> None:
    with pytest.raises(ClusterError, match=r"worker .* has accucompare .*, but x compares here"):
        judge_parcel(
            Job("later", {}, {**worker.introduce(), "accucompare": "x"}, False, False),
            Parcel((), b""),
        )


def test_what_dask_logs_of_a_parcel_that_fails_names_no_credentials() -> None:
    assert "secret" not in repr(
        Job("token", {"golden": Located("s3://key:secret@bucket/golden", "1")}, {}, False, False)
    )


def test_other_versions_of_python_and_numpy_are_warned_of(
    sides: list[Path],
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(np, "__version__", "1.0")
    monkeypatch.setattr("platform.python_version_tuple", lambda: ("3", "0", "0"))
    with caplog.at_level("WARNING"):
        ac.diff(*sides, work=ac.Work(cluster=address))
    assert [record.name for record in caplog.records if record.levelname == "WARNING"] == [
        "accucompare.compare.cluster.cluster"
    ] * 2
    assert "(1.0 here), Python 3." in caplog.text
    assert "(3.0 here); the last digits of some results may differ" in caplog.text


def test_workers_that_cannot_be_asked_are_no_workers_that_agree() -> None:
    class Deaf:
        """A client whose scheduler answers, and whose workers do not."""

        status = "running"

        def nthreads(self) -> dict[str, int]:
            return {"tcp://w:1": 1}

        def run_on_scheduler(self, function: Callable[[], Any]) -> Any:
            return function()

        def run(self, *_: Any, **__: Any) -> Any:
            raise OSError("connection lost")

    with pytest.raises(
        ClusterError,
        match=(
            r"--cluster x: one of its workers cannot run accucompare \(OSError: connection lost\)"
        ),
    ):
        running.Cluster(Deaf(), "x").check()  # type: ignore[arg-type]


def test_workers_without_accucompare_are_told_what_to_install(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def introduce() -> dict[str, str]:
        if multiprocessing.parent_process() is not None:
            raise ModuleNotFoundError("No module named 'accucompare'")
        return worker.introduce()

    monkeypatch.setattr(running, "introduce", introduce)
    with (
        pytest.raises(
            ClusterError,
            match=(
                r"worker tcp://\S+ cannot run accucompare .*No module .*pip install"
                r" 'accucompare\[cluster\]=="
            ),
        ),
        open_cluster(address),
    ):
        pass


# Clusters that are not there


@pytest.mark.parametrize(
    ("where", "why", "grace"),  # a busy machine may be slow to say why
    [
        ("tcp://127.0.0.1:9", "Timed out", 60.0),
        ("tcp://127.0.0.1", "missing port", 60.0),
        ("gopher://host:1", "gopher", 60.0),
        ("tls://127.0.0.1:9", "TLS", 60.0),
        (
            "tcp://127.0.0.1:{port}",
            "what is there did not answer as a scheduler within 0 s",
            0.1,
        ),  # of what listens there, but answers otherwise
    ],
)
def test_a_scheduler_that_is_not_there_is_named(
    where: str, why: str, grace: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_GRACE", grace)
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        dask.config.set({"distributed.comm.timeouts.connect": "100ms"}),
    ):
        where = where.format(port=listening.getsockname()[1])
        with (
            pytest.raises(
                ClusterError,
                match=(
                    rf"--cluster {where}: cannot be reached \(.*{why}.*\); is `dask scheduler`"
                    r" running there"
                ),
            ),
            open_cluster(where),
        ):
            pass


@pytest.mark.parametrize("where", ["locals", "local:0", "local:", "host:8786", ""])
def test_what_is_no_cluster_is_refused(where: str) -> None:
    with (
        pytest.raises(
            UsageError, match="must be a scheduler's address, such as tcp://host:8786, or local"
        ),
        open_cluster(where),
    ):
        pass


def test_without_dask_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("distributed", "distributed.utils"):
        monkeypatch.setitem(sys.modules, name, None)
    with (
        pytest.raises(UsageError, match=r"pip install 'accucompare\[cluster\]'"),
        open_cluster("local"),
    ):
        pass


def test_threads_and_a_cluster_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--workers"):
        ac.diff(tmp_path, tmp_path, work=ac.Work(workers=2, cluster="local"))


# What is left behind


def test_workers_open_each_file_once_and_close_it_at_the_end(
    sides: list[Path], address: str, local: LocalCluster
) -> None:
    folder = str(sides[0].parent)
    meanwhile: list[dict[str, list[str]]] = []
    with quiet_client(local) as client:
        ac.diff(
            *sides,
            work=ac.Work(
                cluster=address,
                progress=lambda done, total: meanwhile.append(
                    client.run(in_worker("open files"), folder)
                ),
            ),
        )
        assert {len(files) for files in meanwhile[-1].values()} == {2}
        assert [*client.run(in_worker("open files"), folder).values()] == [[], []]


def test_an_interrupt_leaves_the_cluster_running_without_our_work(
    sides: list[Path], address: str, local: LocalCluster
) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ac.diff(*sides, work=ac.Work(cluster=address, progress=interrupt))
    assert ac.diff(*sides, work=ac.Work(cluster=address)).rows == ac.diff(*sides).rows
    assert not local.scheduler.tasks
    names = {thread.name for thread in threading.enumerate() if "accucompare" in thread.name}
    assert names <= {"accucompare-helper_0"}  # which waits for work that others share with it


def test_an_interrupt_ends_the_processes_of_a_local_cluster(sides: list[Path]) -> None:
    before = set(multiprocessing.active_children())

    def interrupt(done: int, total: int) -> None:
        (process,) = set(multiprocessing.active_children()) - before
        (blocked,) = (
            line
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
            if line.startswith("SigBlk")
        )
        # Ctrl-C in a terminal reaches it, too, and is not its own
        assert int(blocked.split()[1], 16) & 1 << (signal.SIGINT - 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ac.diff(*sides, work=ac.Work(cluster="local:1", progress=interrupt))
    assert set(multiprocessing.active_children()) == before


def test_an_answer_that_was_lost_with_its_worker_is_asked_for_again(
    sides: list[Path], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed.cfexecutor import ClientExecutor

    submit, lost = ClientExecutor.submit, []

    def losing(self: Any, *task: Any) -> Any:
        if lost:
            return submit(self, *task)
        lost.append(Future())
        # as Dask 2026.8 has it
        lost[0].set_exception(TypeError("cannot unpack non-iterable Reply object"))
        return lost[0]

    monkeypatch.setattr(ClientExecutor, "submit", losing)
    assert repr(ac.diff(*sides, work=ac.Work(cluster=address)).rows) == repr(ac.diff(*sides).rows)
    assert lost


def test_answers_that_are_always_lost_end_the_comparison(
    sides: list[Path], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed.cfexecutor import ClientExecutor

    sent: list[Any] = []

    def losing(self: Any, *task: Any) -> Any:
        assert len(sent) < 500, "it is asked for without end"
        sent.append(Future())
        sent[-1].set_exception(TypeError("cannot unpack non-iterable Reply object"))
        return sent[-1]

    monkeypatch.setattr(ClientExecutor, "submit", losing)
    with pytest.raises(
        ClusterError,
        match=r"has lost the answer to the same \d+ pairs 4 times while .* were compared .*tcp://",
    ):
        ac.diff(*sides, work=ac.Work(cluster=address))


@pytest.mark.parametrize("what", ["workers", "scheduler"])
def test_a_cluster_that_goes_away_is_told_and_nothing_is_written(
    what: str, sides: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("PARCEL_BYTES", 1),
        ("IN_FLIGHT", 2),
        ("LOOK", 0.05),
        ("ALONE_SECONDS", 0.1),
    ):
        monkeypatch.setattr(running, name, value)
    why = {"workers": "has had no workers for 0 s", "scheduler": "has lost its scheduler"}[what]
    # to connect again to a scheduler that has gone
    patience = {"distributed.comm.timeouts.connect": "1s"}
    with dask.config.set(patience), LocalCluster(**IN_THIS_PROCESS) as cluster:
        going = [*cluster.workers.values()] if what == "workers" else [cluster.scheduler]

        def lose(done: int, total: int) -> None:
            while going:  # a second close would wait for the first
                cluster.sync(going.pop().close)

        with pytest.raises(
            ClusterError,
            match=(
                rf"{why} while {sides[0]} and {sides[1]} were compared .*tcp://.*; nothing was"
                r" written"
            ),
        ):
            ac.diff(*sides, work=ac.Work(cluster=cluster.scheduler_address, progress=lose))
        if what == "workers":
            with pytest.raises(
                ClusterError, match="has no workers; start some with `dask worker tcp://"
            ):
                ac.diff(*sides, work=ac.Work(cluster=cluster.scheduler_address))


#: What the client asks of Dask in a comparison, in this order, and which of these calls the loss
# comes before.
_STAGES = {
    "it is connected": (Client, "nthreads", 1),
    "the scheduler is asked": (Client, "run_on_scheduler", 1),
    "workers are asked": (Client, "run", 1),
    "the comparison begins": (Client, "get_executor", 1),
    "the first parcel is sent": (ClientExecutor, "submit", 1),
    "a later parcel is sent": (ClientExecutor, "submit", 4),
}


@pytest.mark.parametrize("lost", ["scheduler", "client"])
@pytest.mark.parametrize("stage", _STAGES)
def test_a_connection_that_is_lost_before_any_stage_is_told_with_what_to_do(
    stage: str, lost: str, sides: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("PARCEL_BYTES", 1), ("IN_FLIGHT", 2), ("LOOK", 0.05)):
        monkeypatch.setattr(running, name, value)
    owner, method, nth = _STAGES[stage]
    ask, asked = getattr(owner, method), []
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "0.2s"}),
        LocalCluster(**IN_THIS_PROCESS) as cluster,
    ):

        def ask_too_late(self: Any, *arguments: Any, **options: Any) -> Any:
            asked.append(method)
            if len(asked) == nth:
                client = self if owner is Client else self._client
                cluster.sync(cluster.scheduler.close) if lost == "scheduler" else client.close()
                while client.status != "closed":  # after its patience
                    threading.Event().wait(0.01)
            return ask(self, *arguments, **options)

        monkeypatch.setattr(owner, method, ask_too_late)
        with pytest.raises(
            ClusterError,
            match=r"tcp://.*: has lost its scheduler (before|while) .* compared.* compare again$",
        ):
            ac.diff(*sides, work=ac.Work(cluster=cluster.scheduler_address))
