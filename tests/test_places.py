"""Directories and URLs: what is which, what of a URL is shown, and bundles in fsspec's memory."""

from __future__ import annotations

import errno
import json
import pickle
import sys
from collections.abc import Iterator
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.format.manifest import Manifest
from accucompare.bundle.writing.record_file import RecordFile
from accucompare.bundle.writing.writer import BundleWriter
from accucompare.errors import BundleError, CaptureError, UsageError
from accucompare.places import Url, place_of, whole
from accucompare.storage_errors import as_os_error
from accucompare.text import without_credentials
from tests.asked import grouped
from tests.conftest import Run

CASE = """
import torch
from torch import nn
from accucompare import Case

def case():
    return Case(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), [torch.ones(5, 3)] * 2)
"""


@pytest.fixture(autouse=True)
def memory() -> Iterator[Any]:
    """fsspec's memory, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


@pytest.fixture
def case(tmp_path: Path) -> None:
    (tmp_path / "case.py").write_text(CASE)


def capture(out: str | Path, factor: float = 1.0, **options: Any) -> None:
    model = nn.ReLU()
    with ac.capture(model, out, **grouped(**options)):
        model(torch.ones(5, 3) * factor)


@pytest.mark.parametrize(
    "given",
    ["golden", "./a::b", "c:golden", "/x/y:z", "a:/b", "file:///x/golden", "local:///x/golden"],
)
def test_what_has_no_scheme_of_storage_is_a_directory(given: str) -> None:
    assert place_of(given) == Path(given.removeprefix("file://").removeprefix("local://"))


@pytest.mark.parametrize(
    ("given", "shown", "below"),
    [
        ("s3://bucket/a/golden/", "s3://bucket/a/golden", "s3://bucket/a/golden/manifest.json"),
        ("memory://golden", "memory://golden", "memory://golden/manifest.json"),
        (
            "https://me:pw@host:8/golden?sig=abc",
            "https://host:8/golden",
            "https://me:pw@host:8/golden/manifest.json?sig=abc",
        ),
        (
            "https://me:p@w@host/golden",
            "https://host/golden",
            "https://me:p@w@host/golden/manifest.json",
        ),
    ],
)
def test_a_url_is_shown_without_credentials_and_goes_to_storage_with_them(
    given: str, shown: str, below: str
) -> None:
    place = place_of(given)
    assert isinstance(place, Url)
    assert str(place) == f"{place}" == shown
    assert "pw" not in repr(place)
    assert "sig" not in repr(place)
    assert whole(place / "manifest.json") == below
    assert pickle.loads(pickle.dumps(place)) == place


@pytest.mark.parametrize(
    "given",
    ["simplecache::s3://b/golden", "zip://x::https://me:pw@host/a.zip?sig=abc", "s3://", "s3:///"],
)
def test_a_url_that_cannot_be_taken_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match=r"chained URLs|names no place") as refused:
        place_of(given)
    assert "pw" not in str(refused.value)
    assert "sig" not in str(refused.value)


def test_command_lines_lose_the_credentials_of_their_urls() -> None:
    told = without_credentials(
        "accucompare diff 'https://me:p@w@h/a?sig=x&t=1' s3://b/c --map 'a?=b@c' --out x"
    )
    assert told == "accucompare diff 'https://h/a' s3://b/c --map 'a?=b@c' --out x"


def test_commands_take_urls_wherever_they_take_bundles(
    case: None, cli: Run, tmp_path: Path
) -> None:
    done = cli(
        "capture",
        "--out",
        "memory://m/golden",
        "--save-state",
        "--with-baseline",
        "bfloat16",
        "--repeat",
        "2",
    )
    assert done.returncode == 0, done.stderr
    done = cli(
        "capture",
        "--out",
        "memory://m/npu",
        "--dtype",
        "bfloat16",
        "--feed",
        "memory://m/golden",
        "--like",
        "memory://m/golden",
    )
    assert done.returncode == 0, done.stderr
    done = cli(
        "diff", "memory://m/golden", "memory://m/npu", "--report", "x.xlsx", "--json", "x.json"
    )
    assert done.returncode == 0, done.stderr
    assert (
        json.loads((tmp_path / "x.json").read_text())["baseline"]
        == "memory://m/golden/baselines/bfloat16"
    )
    assert cli("verify", "memory://m/golden").stdout.startswith(
        "OK  memory://m/golden: every record is as it was written"
    )
    assert "[5, 4]" in cli("show", "memory://m/golden", "0").stdout
    done = cli(
        "locate",
        "--device",
        "cpu",
        "--dtype",
        "bfloat16",
        "--golden",
        "memory://m/golden",
        "--out",
        "memory://m/found",
    )
    assert done.returncode == 0, done.stderr
    assert "memory://m/found/candidate against memory://m/golden" in done.stdout
    assert (tmp_path / "reports" / "found.xlsx").exists()
    assert not list(tmp_path.glob("memory*"))


def test_an_earlier_bundle_is_refused_and_with_overwrite_removed_and_nothing_else(
    case: None, cli: Run, memory: Any
) -> None:
    assert cli("capture", "--out", "memory://m/golden", "--repeat", "2").returncode == 0
    memory.pipe("/m/golden/notes.txt", b"mine")
    done = cli("capture", "--out", "memory://m/golden")
    assert done.returncode == 2
    assert "memory://m/golden: already holds a bundle; overwrite it (--overwrite" in done.stderr
    assert (
        cli("capture", "--out", "memory://m/golden", "--steps", "1", "--overwrite").returncode == 0
    )
    assert sorted(memory.find("/m/golden")) == [
        f"/m/golden/{name}"
        for name in ("manifest.json", "notes.txt", "rank0/step0.jsonl", "rank0/step0.npz")
    ]
    memory.pipe("/m/other/data.bin", b"1")
    assert "is not empty and holds no bundle" in cli("capture", "--out", "memory://m/other").stderr


def test_nothing_that_is_written_holds_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: Any
) -> None:
    monkeypatch.setattr(sys, "argv", ["accucompare", "--feed", "memory://me:s3cret@m/golden"])
    capture("memory://me:s3cret@m/golden")
    model = nn.ReLU()
    with ac.capture(model, "memory://me:s3cret@m/npu", feed="memory://me:s3cret@m/golden"):
        model(torch.zeros(5, 3))
    comparison = ac.diff("memory://me:s3cret@m/golden", "memory://me:s3cret@m/npu")
    comparison.to_json(tmp_path / "x.json")
    comparison.to_html(tmp_path / "x.html")
    for content in (
        (tmp_path / "x.json").read_bytes(),
        (tmp_path / "x.html").read_bytes(),
        *(memory.cat(name) for name in memory.find("/")),
    ):
        assert b"s3cret" not in content
        assert content
    assert "s3cret" not in repr(ac.open_bundle("memory://me:s3cret@m/golden"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("unknown://b/golden", r"unknown:// is no storage that is known; these are: s3://, gs://"),
        (
            "memory://none/golden",
            r"memory://none/golden: not a bundle \(its manifest.json: there is no such object\)",
        ),
        ("s3://b/golden", r"pip install 'accucompare\[s3\]'"),
        ("gs://b/golden", r"pip install 'accucompare\[gs\]'"),
        (
            "az://b/golden",
            (
                r"cannot be read \(Install adlfs to access Azure Datalake Gen2 and Azure Blob"
                r" Storage\)"
            ),
        ),
    ],
)
def test_what_cannot_be_opened_says_why(
    url: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accucompare.places._systems", {})
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.setitem(sys.modules, "adlfs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(BundleError, match=message):
        ac.open_bundle(url)


def test_a_bucket_that_can_be_none_is_named_without_regular_expressions() -> None:
    error = ValueError(
        'Invalid bucket name "a b": Bucket name must match the regex "^[a-z]{1,255}$" or be an ARN'
        ' matching the regex "^arn"'
    )
    assert as_os_error(error, "s3://a b/golden", str).strerror == 'Invalid bucket name "a b"'


def test_user_and_password_of_a_storage_that_takes_none_are_refused_and_not_shown() -> None:
    with pytest.raises(
        UsageError,
        match="s3://b/golden: user:password@ is not for s3://; give credentials by the environment",
    ) as raised:
        ac.open_bundle("s3://me:s3cret@b/golden")
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("option", ["--report", "--json"])
def test_reports_are_local_and_say_so(option: str, cli: Run) -> None:
    done = cli("diff", "a", "b", option, "s3://b/x.xlsx")
    assert done.returncode == 2
    assert (
        f"'{option}': s3://b/x.xlsx: is a URL, and only bundles may be; name a local path"
        in done.stderr
    )


def test_a_log_is_local_and_a_url_that_became_a_path_is_told(cli: Run) -> None:
    with (
        pytest.raises(UsageError, match="s3://b/watch: is a URL, and only bundles may be"),
        ac.watch(nn.ReLU(), out="s3://b/watch"),
    ):
        pass
    assert "is a URL, and only bundles may be" in cli("overflow", "s3://b/watch").stderr
    for given in (Path("s3://b/golden"), "s3:/b/golden"):
        with pytest.raises(
            UsageError,
            match=(
                "s3://b/golden: was given with one slash, and a URL has two; in Python give it as"
                " text"
            ),
        ):
            ac.open_bundle(given)


def test_a_rank_that_has_written_nothing_is_missing_at_a_url_too() -> None:
    for rank in (0, 1):
        BundleWriter(place_of("memory://m/golden"), Manifest(ranks=3, complete=True), rank).close()
    with ac.open_bundle("memory://m/golden") as bundle:
        assert sorted(bundle.manifests) == [0, 1]
        assert bundle.missing_ranks == [2]


def test_a_full_disk_where_files_wait_for_a_url_is_told_with_tmpdir(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(self: RecordFile) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RecordFile, "finish", full)
    with pytest.raises(
        CaptureError,
        match=r"No space left on device.*; files for a URL wait in TMPDIR: set it to a larger disk",
    ):
        capture("memory://m/golden")


def test_https_is_for_reading_only() -> None:
    with pytest.raises(CaptureError, match="https:// is for reading only"):
        capture("https://host/golden")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


def test_a_server_of_whole_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accucompare.bundle.format.byte_sources.WINDOW", 64)
    capture(tmp_path / "golden")
    with HTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with (
            pytest.raises(BundleError, match="copy the bundle"),
            ac.open_bundle(f"http://127.0.0.1:{server.server_address[1]}/golden") as bundle,
        ):
            bundle.load("")
        server.shutdown()
