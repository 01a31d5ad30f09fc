"""Bundles in object storage: on a real S3 server that sometimes fails, through s3fs."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare import places
from accucompare.bundle.format import byte_sources
from accucompare.bundle.format.manifest import Manifest
from accucompare.bundle.writing.writer import BundleWriter
from accucompare.errors import BundleError, CaptureError
from accucompare.places import place_of
from tests.asked import grouped
from tests.conftest import Run
from tests.storage import SECRET, Drops, Fails, Hangs, Request, Storage, served

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:(aio)?botocore.*", "ignore::DeprecationWarning:s3fs.*"
)
CASE = """
import os, signal, tempfile, time
import torch
from pathlib import Path
from torch import nn
from accucompare import Case

if "UPLOADS" in os.environ:  # of a forked process, which has looked for TMPDIR before
    tempfile.tempdir = os.environ["UPLOADS"]

class Net(nn.Sequential):
    end, sign = None, None
    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.end is not None and self.calls == 2:
            while not self.sign.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), self.end)
        return super().forward(x)

def case(end=None):
    model = Net(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model.end, model.sign = end, Path("sign")
    return Case(model, [torch.randn(5, 3), torch.randn(5, 3)])

def killed():
    return case(signal.SIGKILL)

def interrupted():
    return case(signal.SIGINT)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Storage]:
    with served() as storage:
        yield storage


@pytest.fixture
def storage(server: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Storage]:
    """The server, without faults, with a new bucket ``bucket``; the environment has its address and
    credentials.
    """
    import s3fs

    for name, value in {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "case.py").write_text(CASE)
    system = s3fs.S3FileSystem()
    if system.exists("bucket"):
        system.rm("bucket", recursive=True)
    system.mkdir("bucket")
    server.requests.clear()
    yield server
    server.fault = lambda request: None
    server.over.set()
    server.over = threading.Event()


def net(factor: float = 1.0) -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[2].weight *= factor
    return model


def capture(out: str | Path, factor: float = 1.0, steps: int = 2, **options: Any) -> None:
    model, inputs = net(factor), torch.arange(15.0).reshape(5, 3)
    with ac.capture(model, out, **grouped(**options)) as session:
        for step in range(steps):
            model(inputs + step)
            session.step()


def facts(comparison: ac.Comparison) -> Any:
    return [(row.place, row.reason, row.metrics) for row in comparison.rows]


def kept(tmp_path: Path) -> list[str]:
    """What is left of uploads."""
    return sorted(
        path.name
        for path in (tmp_path / "temporary").glob("accucompare-upload-*/**/*")
        if path.is_file()
    )


def test_a_comparison_over_s3_is_the_local_one_bit_for_bit(
    storage: Storage, tmp_path: Path
) -> None:
    for out in (tmp_path, "s3://bucket/runs"):
        capture(f"{out}/golden")
        capture(f"{out}/npu", 1.5)
    local, remote = (
        ac.diff(f"{out}/golden", f"{out}/npu", work=ac.Work(verify=True))
        for out in (tmp_path, "s3://bucket/runs")
    )
    assert not remote.passed
    assert facts(remote) == facts(local)
    assert str(remote.golden.path) == "s3://bucket/runs/golden"
    with ac.open_bundle("s3://bucket/runs/npu") as bundle:
        assert bundle.complete
        assert np.array_equal(bundle.load("2"), ac.open_bundle(tmp_path / "npu").load("2"))
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    "fault",
    [Drops(), Fails(503, "SlowDown", "Please reduce your request rate.")],
    ids=["drops", "503"],
)
def test_what_fails_twice_is_asked_for_again(storage: Storage, fault: Any) -> None:
    capture("s3://bucket/golden")
    storage.fails(fault, times=2, method="GET", path="step0.npz")
    assert ac.diff("s3://bucket/golden", "s3://bucket/golden", work=ac.Work(verify=True)).passed


def test_http_is_read_with_its_credentials_and_asked_again_when_it_fails(storage: Storage) -> None:
    capture("s3://bucket/golden")
    url = f"{storage.url.replace('://', '://user:pw@')}/bucket/golden?sig=abc"
    storage.fails(Drops(), times=1, method="GET", path="step0.npz")
    comparison = ac.diff("s3://bucket/golden", url, work=ac.Work(verify=True))
    assert comparison.passed
    assert str(comparison.candidate.path) == f"{storage.url}/bucket/golden"
    storage.fails(Fails(503), times=2, method="GET", path="sig=abc")
    with ac.open_bundle(url) as bundle:
        assert bundle.complete


def test_a_server_that_does_not_answer_ends_in_an_error(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, cli: Run
) -> None:
    capture("s3://bucket/golden")
    monkeypatch.setattr(places, "PATIENCE", 1)
    storage.fails(Hangs(), path="step0.npz")
    done = cli(
        "diff",
        "s3://bucket/golden",
        "s3://bucket/golden",
        "--verify",
        "--keep-going",
        "--report",
        "none",
    )
    assert done.returncode == 2
    assert (
        "s3://bucket/golden/rank0/step0.npz: cannot be read (no answer within 1 s)" in done.stdout
    )
    assert (
        len(
            [
                request
                for request in storage.requests
                if request.path.endswith("step0.npz") and request.method == "GET"
            ]
        )
        < 8
    )


@pytest.mark.parametrize(
    ("code", "message", "cure"),
    [
        (
            "InvalidAccessKeyId",
            "The AWS Access Key Id you provided does not exist in our records.",
            "AWS_ACCESS_KEY_ID",
        ),
        (
            "RequestTimeTooSkewed",
            "The difference between the request time and the current time is too large.",
            "set this machine's clock",
        ),
    ],
)
def test_refused_access_is_an_error_that_names_the_cure(
    storage: Storage, cli: Run, code: str, message: str, cure: str
) -> None:
    storage.fails(Fails(403, code, message))
    for command in (
        ("show", "s3://bucket/golden"),
        ("capture", "case.py", "--out", "s3://bucket/golden"),
    ):
        done = cli(*command)
        assert done.returncode == 2
        assert done.stderr.startswith("accucompare: s3://bucket/golden")
        assert message in done.stderr
        assert cure in done.stderr
        assert SECRET not in done.stderr


def test_a_bucket_that_does_not_exist_is_named(storage: Storage, cli: Run) -> None:
    done = cli("diff", "s3://no-such-bucket/golden", "s3://bucket/npu")
    assert (done.returncode, done.stderr.strip()) == (
        2,
        (
            "accucompare: s3://no-such-bucket/golden: not a bundle (its manifest.json: The"
            " specified bucket does not exist)"
        ),
    )
    done = cli("capture", "case.py", "--out", "s3://no-such-bucket/golden")
    assert done.returncode == 2
    assert (
        "s3://no-such-bucket/golden: cannot be written (The specified bucket does not exist)"
        in done.stderr
    )


def test_an_upload_that_fails_loses_nothing_and_says_how_to_finish(
    storage: Storage, tmp_path: Path, cli: Run
) -> None:
    import s3fs

    storage.fails(Fails(403, "AccessDenied", "Access Denied"), method="PUT", path="step1.npz")
    done = cli("capture", "case.py", "--out", "s3://bucket/golden", "-q")
    assert done.returncode == 2
    match = re.search(
        r"what is missing is in (\S+); to finish: aws s3 cp --recursive \1 s3://bucket/golden",
        done.stderr,
    )
    assert match is not None
    with ac.open_bundle("s3://bucket/golden") as bundle:
        assert not bundle.complete
        assert [entry.step for _, entry in bundle.steps()] == [0]
    assert kept(tmp_path) == ["manifest.json", "step1.jsonl", "step1.npz"]
    storage.fault = lambda request: None
    s3fs.S3FileSystem().put(f"{match[1]}/", "s3://bucket/golden/", recursive=True)
    assert cli("capture", "case.py", "--out", "local", "-q").returncode == 0
    assert (
        ac.diff(tmp_path / "local", "s3://bucket/golden", work=ac.Work(verify=True)).answer
        is ac.diff(tmp_path / "local", tmp_path / "local").answer
    )
    with ac.open_bundle("s3://bucket/golden") as bundle:
        assert bundle.complete


def test_a_capture_killed_in_an_upload_leaves_nothing_that_opens_as_complete(
    storage: Storage, tmp_path: Path, forked: Run
) -> None:
    storage.fails(Hangs(tmp_path / "sign"), method="PUT", path="step0.npz")
    assert (
        forked(
            "capture",
            "case.py:killed",
            "--out",
            "s3://bucket/golden",
            UPLOADS=str(tmp_path / "temporary"),
        ).returncode
        == -9
    )
    with ac.open_bundle("s3://bucket/golden") as bundle:
        assert not bundle.complete
        assert bundle.steps() == []
    assert {"manifest.json", "step0.jsonl", "step0.npz"} <= set(kept(tmp_path))


def test_ctrl_c_in_an_upload_ends_at_once_and_says_where_the_rest_is(
    storage: Storage, tmp_path: Path, forked: Run
) -> None:
    storage.fails(Hangs(tmp_path / "sign"), method="PUT", path="step0.npz")
    done = forked(
        "capture",
        "case.py:interrupted",
        "--out",
        "s3://bucket/golden",
        UPLOADS=str(tmp_path / "temporary"),
    )
    assert done.returncode == 130
    assert (
        "s3://bucket/golden: not all was uploaded (interrupted); what is missing is in"
        in done.stderr
    )
    assert "Traceback" not in done.stderr
    assert "Task" not in done.stderr
    with ac.open_bundle("s3://bucket/golden") as bundle:
        assert not bundle.complete
    assert {"manifest.json", "step0.npz", "step1.npz"} <= set(kept(tmp_path))


def test_workers_that_are_forked_while_uploads_run_do_not_disturb_them(storage: Storage) -> None:
    model = net()
    with ac.capture(model, "s3://bucket/golden") as session:
        for step in range(2):
            child = os.fork()
            if not child:
                os._exit(0 if isinstance(model(torch.ones(5, 3)), torch.Tensor) else 1)
            model(torch.ones(5, 3) * step)
            session.step()
            assert os.waitpid(child, 0)[1] == 0
    with ac.open_bundle("s3://bucket/golden") as bundle:
        assert bundle.complete
        assert len(bundle.steps()) == 2


def test_another_capture_into_the_same_url_is_noticed(storage: Storage, tmp_path: Path) -> None:
    model, x = net(), torch.ones(5, 3)

    def disturbed() -> None:
        with ac.capture(model, "s3://bucket/golden") as session:
            model(x)
            session.step()
            capture("s3://bucket/golden", 2.0, overwrite=True)
            model(x)

    with pytest.raises(
        CaptureError,
        match=r"another capture has written to it meanwhile.*capture again to another place",
    ) as raised:
        disturbed()
    assert "aws s3 cp" not in str(raised.value)  # which would mix the two
    with ac.open_bundle("s3://bucket/golden") as bundle:
        assert bundle.complete
    assert ac.diff("s3://bucket/golden", "s3://bucket/golden", work=ac.Work(verify=True)).passed


def test_a_large_tensor_is_read_in_windows_each_once(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_sources, "WINDOW", 1 << 20)
    model, x = nn.ReLU(), torch.arange(3 << 18, dtype=torch.float32)
    for factor, name in ((1.0, "golden"), (1.5, "npu")):
        with ac.capture(model, f"s3://bucket/{name}"):
            model(x * factor)
    storage.requests.clear()
    assert not ac.diff("s3://bucket/golden", "s3://bucket/npu", work=ac.Work(workers=4)).passed
    ranges = [
        request.range
        for request in storage.requests
        if request.path == "/bucket/npu/rank0/step0.npz" and request.method == "GET"
    ]
    assert len(set(ranges)) == len(ranges) == 4
    assert {"bytes=0-1048575", "bytes=1048576-2097151", "bytes=2097152-3145727"} < set(ranges)


def test_a_server_that_takes_nothing_ends_in_an_error(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "PATIENCE", 1)
    storage.fails(Hangs(), method="PUT", path="step0.npz")
    with pytest.raises(
        CaptureError, match=r"not all was uploaded \(no answer within 1 s\); what is missing is in"
    ):
        capture("s3://bucket/golden")


def test_the_manifests_of_ranks_are_asked_for_together(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(4):
        BundleWriter(place_of("s3://bucket/golden"), Manifest(ranks=4, complete=True), rank).close()
    together = threading.Barrier(3)

    def wait_for_the_others(request: Request) -> None:
        if request.method == "HEAD" and "/rank" in request.path:
            together.wait(20)

    storage.fault = wait_for_the_others
    with ac.open_bundle("s3://bucket/golden") as bundle:
        assert bundle.complete
        assert sorted(bundle.manifests) == [0, 1, 2, 3]


def test_what_is_replaced_while_it_is_read_is_named(storage: Storage) -> None:
    capture("s3://bucket/golden")
    with ac.open_bundle("s3://bucket/golden") as bundle:
        record = bundle.find("2")
        bundle.locate(record)
        capture("s3://bucket/golden", 2.0, overwrite=True)
        bundle.give_up()  # what was read before is forgotten
        with pytest.raises(BundleError, match="changed while it was read"):
            bundle.raw(record)


def test_ctrl_c_does_not_wait_for_a_server_that_does_not_answer(
    storage: Storage, tmp_path: Path
) -> None:
    model, x = nn.ReLU(), torch.zeros(9 << 20)
    for factor, name in ((1.0, "golden"), (1.5, "npu")):
        with ac.capture(model, f"s3://bucket/{name}"):
            model(x + factor)
    storage.fails(Hangs(tmp_path / "sign"), method="GET", path="npu/rank0/step0.npz")

    def interrupt() -> None:
        while not (tmp_path / "sign").exists():
            storage.over.wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        ac.diff("s3://bucket/golden", "s3://bucket/npu", work=ac.Work(workers=2))
    assert time.monotonic() - began < places.PATIENCE / 2
