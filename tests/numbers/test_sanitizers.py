"""The compiled kernel reads nothing beyond its arrays and does nothing undefined: tried with GCC's
sanitizers, and before a guard page.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from accucompare.numbers import kernel

PROGRAM = Path(__file__).with_name("kernel_at_the_edge.py")
SOURCE = Path(kernel.__file__).with_name("_kernel.c")


def sanitizer(gcc: str, name: str) -> str:
    """The path of a sanitizer's library, which GCC names alone where it does not have it."""
    path = subprocess.run(
        [gcc, f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(path):
        pytest.skip(f"{gcc} has no {name}")
    return path


def build(gcc: str, source: Path, to: Path, *flags: str) -> None:
    shared = ("-g", "-O0", "-shared", "-fPIC", "-ffp-contract=off", "-DACCUCOMPARE_NO_CLONES")
    include = f"-I{sysconfig.get_paths()['include']}"
    subprocess.run([gcc, *shared, *flags, include, str(source), "-o", str(to)], check=True)


def run_sanitized(gcc: str, built: Path) -> subprocess.CompletedProcess[str]:
    libraries = " ".join(sanitizer(gcc, name) for name in ("libasan.so", "libubsan.so"))
    environment = {
        **os.environ,
        "LD_PRELOAD": libraries,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
    }
    return subprocess.run(
        [sys.executable, str(PROGRAM), str(built), "malloc"],
        env=environment,
        capture_output=True,
        text=True,
    )


def run_before_guard_page(built: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), str(built), "guard"]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def gcc() -> str:
    found = shutil.which("gcc")
    if found is None or not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        pytest.skip("no gcc, or no headers of Python, to build the kernel with")
    for name in ("libasan.so", "libubsan.so"):
        sanitizer(found, name)
    return found


def test_the_sanitizers_find_nothing(gcc: str, tmp_path: Path) -> None:
    built = tmp_path / "_kernel.so"
    build(gcc, SOURCE, built, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    done = run_sanitized(gcc, built)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("calls: ")


@pytest.mark.skipif(sys.platform != "linux", reason="guard pages are set the way Linux sets them")
def test_a_planted_fault_runs_into_the_guard_page(gcc: str, tmp_path: Path) -> None:
    """Without the copy that pads a strip to whole vectors, the last ones reach beyond the array."""
    source, guarded = SOURCE.read_text(), "if (careful || m < whole) {"
    assert guarded in source
    planted, built = tmp_path / "_kernel.c", tmp_path / "_kernel.so"
    planted.write_text(source.replace(guarded, "if (careful) {"))
    build(gcc, planted, built)
    assert run_before_guard_page(built).returncode == -signal.SIGSEGV


@pytest.mark.skipif(sys.platform != "linux", reason="guard pages are set the way Linux sets them")
def test_the_build_in_use_stays_off_a_guard_page_after_its_arrays() -> None:
    if kernel._kernel is None:
        pytest.skip(kernel.description())
    done = run_before_guard_page(Path(kernel._kernel.__file__))
    assert done.returncode == 0, done.stderr[-3000:]
