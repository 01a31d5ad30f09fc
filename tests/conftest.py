"""What several tests share: running the command line as users do, in a process of its own.

torch is imported as late as possible: the process that waits for those that test needs none."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.forkserver import CLI, with_torch

# A job that a script starts in the background ignores Ctrl-C, and so would all its children, whom
# some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests write to memory where there is much of it: a disk's file system would work a tenth of all
# the time.
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Property tests: so many examples in `make test`; `make test-all` passes --hypothesis-profile=all.
settings.register_profile("quick", max_examples=20, deadline=None)
settings.register_profile("all", max_examples=500, deadline=None)
settings.load_profile("quick")

ROOT = Path(__file__).parent.parent

Run = Callable[..., subprocess.CompletedProcess[str]]


def run_cli(
    *arguments: str | Path, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m accucompare`` and give its exit code, standard output and standard error."""
    return subprocess.run(
        [sys.executable, "-m", "accucompare", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "100", **environment},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def process(tmp_path: Path) -> Run:
    """As ``cli``, in a process of its own: for what a process is the point of, such as start-up,
    warnings, or its threads.
    """

    def run(
        *arguments: str | Path, cwd: Path = tmp_path, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return run_cli(*arguments, cwd=cwd, **environment)

    return run


@pytest.fixture
def forked(tmp_path: Path) -> Run:
    """As ``process``, forked from one that has imported torch: for what happens while a command
    runs, such as signals.
    """

    def run(
        *arguments: str | Path, cwd: Path = tmp_path, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return with_torch()(
            CLI, *arguments, cwd=cwd, variables={**os.environ, "COLUMNS": "100", **environment}
        )

    return run


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """``cli("diff", "golden", "npu")`` runs in the test's own directory, and in this process;
    ``environment`` is set meanwhile.
    """
    from accucompare.cli import main

    monkeypatch.setattr(sys, "path", [*sys.path])  # loading a case puts its directory there
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # an interrupt replaces it
    on_sigterm = signal.getsignal(signal.SIGTERM)

    def run(
        *arguments: str | Path, cwd: Path = tmp_path, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        with monkeypatch.context() as patched, warnings.catch_warnings():
            warnings.simplefilter("default")
            patched.chdir(cwd)
            for name, value in {"COLUMNS": "100", **environment}.items():
                patched.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main([str(argument) for argument in arguments])
        printed = capfd.readouterr()
        return subprocess.CompletedProcess(
            list(map(str, arguments)), int(ended.value.code or 0), printed.out, printed.err
        )

    yield run
    signal.signal(signal.SIGTERM, on_sigterm)


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What stands for ``python`` in a command that runs a script, without the seconds that it would
    take to import torch.
    """
    socket = tmp_path_factory.mktemp("python") / "socket"
    program = f"from tests.forked_python import listen; listen({str(socket)!r})"
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = with_torch()(program, cwd=socket.parent, variables=variables)
    assert done.returncode == 0, done.stderr
    return [sys.executable, str(ROOT / "tests" / "forked_python.py"), str(socket)]


@pytest.fixture(scope="session", autouse=True)
def git_is_asked_once() -> Iterator[None]:
    """About the folder of the tests: each capture asks, and git works longer than the capture."""
    from accucompare.live.around import environment

    ask, start = environment._git, Path.cwd()
    known = functools.cache(ask)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "_git", lambda: (known if Path.cwd() == start else ask)())
        yield


@pytest.fixture(scope="session", autouse=True)
def seeds_are_not_kept_for_a_gpu() -> Iterator[None]:
    """Until a device starts, torch keeps each seed for it, with the stack that asked for it."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        for device, seeds in (
            (torch.cuda, torch.cuda.random),
            (torch.mtia, torch.mtia),
            (torch.xpu, torch.xpu.random),
        ):
            if not device.is_available():
                patch.setattr(seeds, "_lazy_call", lambda *_, **__: None)
        yield


@functools.cache
def has_lstm_in_bfloat16() -> bool:
    """Whether this processor runs an LSTM under autocast: oneDNN has none in bfloat16 for those
    without AVX-512.
    """
    import torch

    try:
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            torch.nn.LSTM(4, 4)(torch.zeros(2, 1, 4))
    except RuntimeError:
        return False
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="there is no GPU"))


_frozen = 0


def pytest_collection_finish() -> None:
    _freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if len(sys.modules) > _frozen + 20:
        _freeze()


def _freeze() -> None:
    """What is imported by now stays: each search for garbage would go through all of it, and `fit`
    searches after each of its runs. The collector searches seldom: it would take a twelfth of all
    the time.
    """
    global _frozen
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()
    _frozen = len(sys.modules)
