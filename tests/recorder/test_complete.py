"""A bundle is complete when its last byte is there: what a kill leaves at any moment, in every
mode.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.format.manifest import Manifest
from accucompare.bundle.reading.verification import verify
from accucompare.bundle.writing.record_file import RecordFile
from accucompare.bundle.writing.writer import BundleWriter
from accucompare.devices import DeviceName
from accucompare.errors import AccucompareError, CaptureError
from accucompare.files import replace_whole
from accucompare.places import Url
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session.baselines import capture_baselines
from accucompare.recorder.session.case_capture import capture_case
from tests.asked import grouped
from tests.compare.builder import edit_manifest, item, write
from tests.conftest import Run
from tests.recorded import Opened

STEPS = 3
CASE = """
import torch
from torch import nn
from accucompare import Case

def case():
    return Case(
        nn.Sequential(nn.Linear(3, 4), nn.Tanh()).eval(), [torch.randn(5, 3) for _ in range(3)]
    )
"""


class Kills:
    """Copies of what a kill would leave, on a disk so slow that the model has ended before the
    first step is written.

    Attributes:
        made: where a test writes.
        left: the copies: before and after each manifest takes its place.
    """

    def __init__(self, folder: Path) -> None:
        self.made = folder / "made"
        self.left: list[Path] = []
        self._ended = threading.Event()
        # while one rank's thread copies, no other's gives a file its name
        self._one = threading.Lock()
        self._folder = folder
        self._numbers = count()

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        begin, finish, close = BundleWriter.__init__, RecordFile.finish, BundleWriter.close

        def begins(writer: BundleWriter, *given: Any, **options: Any) -> None:
            self._ended.clear()
            begin(writer, *given, **options)

        def finishes(file: RecordFile) -> str:
            if threading.current_thread().name == "accucompare-writer":
                assert self._ended.wait(60)
            with self._one:
                return finish(file)

        def closes(writer: BundleWriter, *given: Any, **options: Any) -> None:
            self._ended.set()
            close(writer, *given, **options)

        def publishes(*given: Any) -> None:
            with self._one:
                self.copy()
                replace_whole(*given)
                self.copy()

        monkeypatch.setattr(BundleWriter, "__init__", begins)
        monkeypatch.setattr(BundleWriter, "close", closes)
        monkeypatch.setattr(RecordFile, "finish", finishes)
        monkeypatch.setattr("accucompare.bundle.format.manifest.replace_whole", publishes)

    def copy(self) -> None:
        self.left.append(self._folder / f"left{next(self._numbers)}")
        shutil.copytree(self.made, self.left[-1])

    def complete(self, bundle: str = "golden", steps: int = STEPS) -> list[int]:
        """In which copies a bundle says that it is complete; of each it is checked that it is, and
        that no other passes for it.
        """
        return [
            number
            for number, folder in enumerate(self.left)
            if _is_complete(folder / bundle, steps)
        ]


def _is_complete(path: Path, steps: int) -> bool:
    try:
        with ac.open_bundle(path) as bundle:
            if bundle.complete:
                manifests = bundle.manifests.values()
                assert all(
                    len({entry.step for entry in (*each.steps, *each.series)}) == steps
                    for each in manifests
                )
                assert not verify(bundle).damage
        assert ac.diff(path, path).passed is bundle.complete
        return bundle.complete
    except AccucompareError:
        return False


@pytest.fixture
def kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kills]:
    found = Kills(tmp_path)
    found.watch(monkeypatch)
    return found


def capture(out: Path | str, made: int = STEPS, **options: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    with ac.capture(model, out, **grouped(**options)) as session:
        for step in range(made):
            model(torch.ones(5, 3) * step)
            session.step()


def trained(out: Path, **options: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.capture(model, out, **grouped(**options)) as session:
        for step in range(STEPS):
            model(torch.ones(5, 3) * step).sum().backward()
            optimizer.step()
            session.step()


MODES: dict[str, Callable[[Path], None]] = {
    **{
        mode: lambda out, mode=mode: capture(out, mode=mode)
        for mode in ("tensors", "sketch", "stats", "digest")
    },  # type: ignore[misc]
    "state": lambda out: capture(out, save_state=True),
    "of a number of steps": lambda out: capture(out, steps=STEPS),
    "training": trained,
    "series": lambda out: trained(out, roles="series"),
    "case": lambda out: _case(out),
}


def _case(out: Path, **options: Any) -> None:
    (out.parent / "case.py").write_text(CASE)
    capture_case(f"{out.parent}/case.py", out, DeviceName("cpu"), CaptureOptions(**options))


@pytest.mark.parametrize("mode", MODES)
def test_what_a_kill_leaves_is_incomplete_until_the_last_manifest(mode: str, kills: Kills) -> None:
    kills.made.mkdir()
    MODES[mode](kills.made / "golden")
    assert len(kills.left) >= 2 * 3
    assert kills.complete() == [len(kills.left) - 1]


def test_what_a_kill_leaves_of_an_overwriting_is_incomplete(kills: Kills) -> None:
    capture(kills.made / "golden", 1)
    kills.left.clear()
    capture(kills.made / "golden", overwrite=True)
    assert kills.complete() == [len(kills.left) - 1]


def test_several_ranks_are_complete_with_the_last_of_them(kills: Kills) -> None:
    record, array, _ = item("a", [1.0])
    writers = [
        BundleWriter(kills.made / "golden", Manifest(ranks=2, model={"sources": {}}), rank)
        for rank in range(2)
    ]
    for writer in writers:
        writer.add(record, array)
        writer.end_step(0)
    for writer in writers:
        writer.close()
    assert kills.complete(steps=1) == [len(kills.left) - 1]
    shutil.rmtree(kills.made / "golden" / "rank1")
    assert not ac.open_bundle(kills.made / "golden").complete


def test_a_baseline_that_golden_brings_is_complete_with_its_last_step(kills: Kills) -> None:
    kills.made.mkdir()
    golden = kills.made / "golden"
    _case(golden, save_state=True)
    kills.left.clear()
    capture_baselines(f"{kills.made}/case.py", golden, DeviceName("cpu"), ["bfloat16"])
    brought = [folder / "golden" / "baselines" / "bfloat16" for folder in kills.left]
    steps = [
        [entry for _, entry in ac.open_bundle(path).steps()]
        for path in brought
        if (path / "manifest.json").exists()
    ]
    complete = [
        ac.open_bundle(path).complete for path in brought if (path / "manifest.json").exists()
    ]
    assert complete == [False] * (len(complete) - 1) + [True]
    assert len(steps[-1]) == STEPS
    assert kills.complete() == list(range(len(kills.left)))  # golden itself is


def test_a_baseline_of_an_incomplete_capture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "case.py").write_text(CASE)
    _case(tmp_path / "golden", save_state=True)
    edit_manifest(tmp_path / "golden", lambda manifest: manifest.update(complete=False))
    with pytest.raises(
        CaptureError, match="golden: is incomplete, so there is no baseline by it; capture it again"
    ):
        capture_baselines(
            f"{tmp_path}/case.py", tmp_path / "golden", DeviceName("cpu"), ["bfloat16"]
        )
    assert not (tmp_path / "golden" / "baselines").exists()


def test_verify_diff_and_locate_of_what_a_kill_leaves_end_with_2(kills: Kills, cli: Run) -> None:
    kills.made.mkdir()
    _case(kills.made / "golden", save_state=True)
    *killed, whole = (folder / "golden" for folder in kills.left)
    half = [path for path in killed if (path / "rank0/step0.npz").exists()]
    assert len(half) >= STEPS
    for path in half:
        assert cli("verify", path).returncode == 2
        for sides in ((path, path), (path, whole), (whole, path)):
            assert cli("diff", *sides, "--report", "none").returncode in (1, 2)
        assert cli("diff", path, path, "--report", "none").returncode == 2
    found = cli(
        "locate",
        whole.parent / "case.py",
        "--device",
        "cpu",
        "--golden",
        half[-1],
        "--out",
        "found",
        "--report",
        "none",
    )
    assert found.returncode == 2
    assert "golden is incomplete: stopped: it was killed, or is still running" in found.stdout
    assert cli("verify", whole).returncode == 0
    assert cli("diff", whole, whole, "--report", "none").returncode == 0


@pytest.mark.parametrize("fails", [None, "step0.npz", "step2.npz", "step2.jsonl"])
def test_at_a_url_a_bundle_is_complete_when_the_last_upload_is_there(
    kills: Kills, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str | None
) -> None:
    system, there = fsspec.filesystem("memory"), tmp_path / "there"
    system.store.clear()
    left: list[Path] = []

    def copy() -> None:
        left.append(there / str(len(left)))
        for name, file in list(system.store.items()):
            path = left[-1] / name.removeprefix("/m/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.getvalue())

    kills.made.mkdir()
    begin = Url.begin

    def begins(url: Url, name: str, **options: Any) -> Any:
        if name in ("pipe_file", "put_file"):
            copy()
            if fails is not None and str(url).endswith(fails):
                raise OSError(errno.EACCES, "Access Denied")
        return begin(url, name, **options)

    monkeypatch.setattr(Url, "begin", begins)
    if fails is None:
        capture("memory://m/golden")
    else:
        with pytest.raises(CaptureError, match="Access Denied"):
            capture("memory://m/golden")
    copy()
    system.store.clear()
    complete = [
        number for number, folder in enumerate(left) if _is_complete(folder / "golden", STEPS)
    ]
    assert complete == ([len(left) - 1] if fails is None else [])


@pytest.mark.parametrize("stop", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_signal_while_the_last_steps_are_written_leaves_an_incomplete_bundle(
    stop: str, forked: Run, tmp_path: Path, cli: Run
) -> None:
    (tmp_path / "slow_disk.py").write_text(
        f"{CASE}\nimport os, signal, threading\nfrom accucompare.bundle.writing.record_file import"
        " RecordFile\nfrom accucompare.bundle.writing.writer import BundleWriter\nclose, finish,"
        " ended, finished = BundleWriter.close, RecordFile.finish, threading.Event(), []\ndef"
        " closes(*given, **options):\n    ended.set()\n    close(*given, **options)\ndef"
        " finishes(file):\n    ended.wait(60)\n    finished.append(file)\n    if len(finished) =="
        f" 3:\n        os.kill(os.getpid(), signal.{stop})\n        threading.Event().wait(60)\n   "
        " return finish(file)\nBundleWriter.close, RecordFile.finish = closes, finishes\n"
    )
    done = forked("capture", "slow_disk.py", "--device", "cpu", "--out", "golden", "-q")
    assert done.returncode == {"SIGINT": 130, "SIGTERM": 130, "SIGKILL": -9}[stop], done.stderr
    with ac.open_bundle(tmp_path / "golden") as bundle:
        assert not bundle.complete
        assert len(bundle.steps()) == STEPS - 1
        told = (
            None
            if stop == "SIGKILL"
            else {"error": "interrupted while the last steps were written"}
        )
        assert bundle.manifest.stopped == told
    assert cli("diff", "golden", "golden", "--report", "none").returncode == 2


def test_a_full_disk_at_the_last_manifest_leaves_an_incomplete_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Manifest.write

    def full(manifest: Manifest, path: Path) -> None:
        if manifest.complete:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(manifest, path)

    monkeypatch.setattr(Manifest, "write", full)
    with pytest.raises(CaptureError, match="No space left on device"):
        capture(tmp_path / "golden")
    with ac.open_bundle(tmp_path / "golden") as bundle:
        assert not bundle.complete
        assert len(bundle.steps()) == STEPS


def test_a_process_that_was_forked_from_a_capture_writes_nothing_into_its_bundle(
    tmp_path: Path,
) -> None:
    model = nn.Linear(3, 4)
    with ac.capture(model, tmp_path / "golden") as session:
        model(torch.ones(5, 3))
        session.step()
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
            before = (tmp_path / "golden" / "manifest.json").read_bytes()
        else:
            try:
                session.end(None)
            except CaptureError:
                os._exit(0)
            os._exit(1)
        model(torch.ones(5, 3))
        session.step()
    assert before
    with ac.open_bundle(tmp_path / "golden") as bundle:
        assert bundle.complete
        assert len(bundle.steps()) == 2
        assert not verify(bundle).damage


def test_a_writer_gives_its_word_once(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest())
    writer.close({"error": "the model raised"})
    writer.close()
    assert Manifest.read(tmp_path / "b/manifest.json").stopped == {"error": "the model raised"}


def test_an_error_that_leaves_the_context_of_a_writer_is_why_the_bundle_is_incomplete(
    tmp_path: Path,
) -> None:
    with pytest.raises(RuntimeError), BundleWriter(tmp_path / "b", Manifest()):
        raise RuntimeError("no")
    assert Manifest.read(tmp_path / "b/manifest.json").stopped == {"error": "RuntimeError: no"}


def test_what_the_capture_says_later_is_not_in_the_manifest_of_an_earlier_step(
    tmp_path: Path,
) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest(complete=True, notes=["one"]))
    published = writer.published
    writer.manifest.notes.append("two")
    writer.manifest.capture["seed"] = 1
    assert (published.complete, published.notes, published.capture) == (False, ["one"], {})
    writer.close()
    assert (writer.published.complete, writer.published.notes, writer.published.capture) == (
        True,
        ["one", "two"],
        {"seed": 1},
    )


@pytest.mark.parametrize(("steps", "made"), [(STEPS, 2), (2, 1), ("0,2", 1)])
@pytest.mark.parametrize("mode", ["tensors", "stats", "digest"])
def test_two_bundles_that_lack_the_same_steps_are_not_identical(
    steps: int | str, made: int, mode: str, tmp_path: Path
) -> None:
    for name in ("golden", "npu"):
        capture(tmp_path / name, made, steps=steps, mode=mode)
    comparison = ac.diff(tmp_path / "golden", tmp_path / "npu")
    assert not comparison.passed
    assert (
        comparison.trouble
        == "what was recorded agrees, but the capture of golden and of the candidate did not run to"
        " its end"
    )


def test_a_step_of_which_only_a_part_is_there_makes_the_bundle_incomplete(
    tmp_path: Path, opened: Opened
) -> None:
    write(tmp_path / "b", [item("a", [1.0])])
    edit_manifest(tmp_path / "b", lambda manifest: manifest["steps"][0].update(partial=True))
    assert not opened(tmp_path / "b").complete


@pytest.mark.parametrize("steps", [None, "0,2"])
def test_a_capture_like_an_incomplete_bundle_runs_the_steps_that_that_set_out_to_record(
    steps: str | None, tmp_path: Path
) -> None:
    golden = tmp_path / "golden"
    _case(golden, seed=0, save_state=True, steps=steps)
    edit_manifest(
        golden, lambda manifest: manifest.update(steps=manifest["steps"][:-1], complete=False)
    )
    for name, feed, most in (("like", None, 3), ("fed", golden, 2)):
        _case(tmp_path / name, like=golden, feed=feed)
        with ac.open_bundle(tmp_path / name) as bundle:
            assert len(bundle.steps()) == (most if steps is None else most - 1)
