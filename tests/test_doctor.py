"""``accucompare doctor``: what it finds, and that nothing it looks for can take it along."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accucompare import doctor
from accucompare.devices import DeviceName
from accucompare.doctor import DeviceReport, Examination, Problem, examine
from accucompare.numbers import kernel
from accucompare.report.doctor_output import print_examination
from tests.conftest import Run, run_cli
from tests.devices.test_devices import WITHOUT_CANN, WITHOUT_DEVICE, pretend

NO_TORCH = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is found of the machine that the tests run on."""
    done = run_cli(
        "doctor",
        "--timeout",
        "3600",
        "--json",
        cwd=tmp_path_factory.mktemp("doctor"),
        OMP_NUM_THREADS="1",
    )
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory, and in it one for packages that only this test has: the command finds them, and
    the processes that it starts.
    """
    # set by open_device in this process
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)
    (tmp_path / "packages").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "packages")
    return tmp_path


@pytest.fixture(scope="module")
def mismatched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is found where torch_npu is another release's, prints while it is imported, and finds no
    device.
    """
    folder = tmp_path_factory.mktemp("mismatched")
    (folder / "packages").mkdir()
    noise = (
        "import os; print('Warning: ASCEND_HOME_PATH is not set.', flush=True); os.write(1,"
        " b'noise');"
    )
    packages = pretend(folder, noise + WITHOUT_DEVICE, autoload=True, version="2.12.1")
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)
        done = run_cli(
            "doctor",
            "--timeout",
            "3600",
            "--device",
            "npu",
            "--json",
            cwd=folder,
            PYTHONPATH=packages,
        )
    assert (done.returncode, done.stderr) == (2, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def instead_of(folder: Path, package: str, source: str) -> str:
    """Put another package before the true one; the directory to put on PYTHONPATH is returned."""
    (folder / "packages" / package).mkdir()
    (folder / "packages" / package / "__init__.py").write_text(source)
    return str(folder / "packages")


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True
    ).stdout.strip()
    return bool(state) and not state.startswith("Z")


# What is found


def test_a_sound_installation_is_ok(here: dict[str, Any]) -> None:
    assert here["ok"]
    assert not [problem for problem in here["problems"] if problem["serious"]]


def test_the_machine_is_described(here: dict[str, Any]) -> None:
    assert here["python"].count(".") == 2
    assert 1 <= here["processors"] <= (os.cpu_count() or 1)
    assert here["memory"] > 1 << 28


def test_what_does_the_heavy_work_is_named_with_its_version(here: dict[str, Any]) -> None:
    assert here["kernel"] == kernel.description()
    assert here["crc"].split()[0] in ("isal", "zlib")
    assert here["digests"].startswith("xxhash ")


def test_versions_are_those_of_the_packages(here: dict[str, Any]) -> None:
    assert here["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert {"numpy", "openpyxl", "pandas", "click"} <= set(here["versions"])


def test_every_type_of_device_is_looked_for(here: dict[str, Any]) -> None:
    assert list(here["devices"]) == ["cpu", "cuda", "npu"]
    assert all(device["available"] or device["message"] for device in here["devices"].values())


def test_the_cpu_is_available_with_its_name_and_flags(here: dict[str, Any]) -> None:
    cpu = here["devices"]["cpu"]
    assert (cpu["available"], cpu["count"], cpu["message"]) == (True, 1, "")
    assert torch.backends.cpu.get_cpu_capability() in cpu["description"]["name"]
    assert cpu["flags"]["threads"] == 1
    assert cpu["flags"]["deterministic_algorithms"] is False


def test_variables_that_matter_are_listed(here: dict[str, Any]) -> None:
    assert here["environment"]["OMP_NUM_THREADS"] == "1"
    assert "PATH" not in here["environment"]


def test_text_says_the_same_in_100_columns(
    here: dict[str, Any], monkeypatch: pytest.MonkeyPatch, cli: Run
) -> None:
    found = {name: DeviceReport(**device) for name, device in here["devices"].items()}
    monkeypatch.setattr(
        doctor,
        "examine",
        lambda *_: Examination(**{**here, "devices": {"cpu": found["cpu"]}, "problems": []}),
    )
    done = cli("doctor", "--device", "cpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "OK  nothing is wrong with this installation; captures can run on cpu"
    )
    for text in (
        here["kernel"],
        here["crc"],
        here["devices"]["cpu"]["description"]["name"],
        "OMP_NUM_THREADS",
        "threads 1",
    ):
        assert text in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_help_has_examples_and_exit_codes(cli: Run) -> None:
    done = cli("doctor", "--help")
    assert "accucompare doctor --device npu" in done.stdout
    assert "Exit code: 0" in done.stdout


def test_looking_imports_nothing_heavy_into_this_process(tmp_path: Path) -> None:
    program = (
        "import sys, accucompare.report.doctor_output; print({'torch', 'numpy', 'pandas',"
        " 'openpyxl'} & set(sys.modules))"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
        == "set()\n"
    )


# One device


def test_an_absent_device_is_trouble_only_if_it_is_asked_for(
    mismatched: dict[str, Any], here: dict[str, Any]
) -> None:
    (serious,) = [problem for problem in mismatched["problems"] if problem["serious"]]
    assert (mismatched["ok"], serious["topic"]) == (False, "npu")
    assert serious["message"] == "no NPU is available; see whether `npu-smi info` lists one"
    assert here["ok"]


def test_a_device_of_no_known_type_is_refused(cli: Run) -> None:
    done = cli("doctor", "--device", "gpu")
    assert (done.returncode, done.stderr) == (
        2,
        "accucompare: device gpu (--device): must be cpu, cuda, cuda:N, npu or npu:N\n",
    )


def test_torch_npu_without_cann_hides_no_other_device(
    cli: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "TYPES", ("cpu", "npu"))
    pretend(folder, WITHOUT_CANN, autoload=True)
    done = cli("doctor", "--timeout", "3600", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["devices"]["cpu"]["available"]) == (0, True)
    assert (
        "source /usr/local/Ascend/ascend-toolkit/set_env.sh" in found["devices"]["npu"]["message"]
    )
    assert [problem["topic"] for problem in found["problems"]] == ["npu"]


def test_what_libraries_print_stays_out_of_the_output(mismatched: dict[str, Any]) -> None:
    assert mismatched["devices"]["npu"]["message"].startswith("no NPU is available")


def test_a_device_that_is_there_but_does_not_work_is_not_available(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "open_device", lambda name: torch.device("meta"))
    found = doctor._look(DeviceName("cuda"))
    assert not found.available
    assert found.message.startswith("NotImplementedError: Cannot copy out of meta tensor")
    assert found.message.endswith("; see `nvidia-smi`")


def test_a_gpu_is_described_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    used = SimpleNamespace(
        count=lambda: 8,
        describe=lambda index: {"type": "cuda", "name": "H200"},
        flags=lambda: {"cudnn.allow_tf32": True},
    )
    monkeypatch.setattr(doctor, "open_device", lambda name: torch.device("cpu"))
    monkeypatch.setattr(doctor, "backend", lambda _: used)
    found = doctor._look(DeviceName("cuda"))
    assert (
        found.available,
        found.count,
        found.description["name"],
        found.flags["cudnn.allow_tf32"],
    ) == (True, 8, "H200", True)


# Trouble


def test_a_torch_that_cannot_be_imported_is_trouble(cli: Run, folder: Path) -> None:
    instead_of(folder, "torch", "raise ImportError('libtorch.so: undefined symbol: x')")
    done = cli("doctor", "--timeout", "3600")
    assert done.returncode == 2
    assert done.stdout.startswith(
        "TROUBLE  torch: torch cannot be imported (libtorch.so: undefined symbol: x)\n"
    )
    assert "cure: pip install --force-reinstall torch" in done.stdout


def test_no_torch_at_all_is_no_trouble(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    instead_of(folder, "torch", NO_TORCH)
    version = doctor.version
    monkeypatch.setattr(
        doctor, "version", lambda package: None if package == "torch" else version(package)
    )
    found = examine()
    assert found.ok
    assert "pip install torch" in found.devices["cpu"].message
    print_examination(found, quiet=True)
    assert (
        capsys.readouterr().out
        == "OK  nothing is wrong with this installation; comparisons can run here, captures"
        " cannot\n"
    )


def test_a_crash_while_looking_is_told_with_the_last_words(cli: Run, folder: Path) -> None:
    source = (
        "import os, sys; print('dcmi model initialized failed', file=sys.stderr, flush=True);"
        " os.abort()"
    )
    instead_of(folder, "torch", source)
    done = cli("doctor", "--timeout", "3600", "--device", "npu", "-q")
    message = (
        f"looking for it ended the process (signal {signal.SIGABRT.value}: dcmi model initialized"
        " failed); see `npu-smi info`"
    )
    assert (done.returncode, done.stdout) == (2, f"TROUBLE  npu: {message}\n")


HANGS = (
    "import os, pathlib, time; pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(600)"
)


def test_a_device_that_never_answers_is_given_up_and_leaves_no_process(
    cli: Run, folder: Path
) -> None:
    instead_of(folder, "torch", HANGS)
    done = cli("doctor", "--device", "npu", "--timeout", "2", "-q")
    message = "no answer within 2 s; see `npu-smi info`, or wait longer with --timeout"
    assert (done.returncode, done.stdout) == (2, f"TROUBLE  npu: {message}\n")
    pid = folder / "pid"  # which is not there, or empty, if it did not even get so far
    assert not pid.exists() or not pid.read_text() or not alive(int(pid.read_text()))


def test_an_interrupted_search_leaves_no_process(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": instead_of(folder, "torch", HANGS)}
    process = subprocess.Popen(
        [sys.executable, "-m", "accucompare", "doctor", "--timeout", "3600", "--device", "npu"],
        cwd=folder,
        env=environment,
    )
    try:
        while process.poll() is None and not (
            (folder / "pid").exists() and (folder / "pid").read_text()
        ):
            time.sleep(0.02)
        process.terminate()
        assert process.wait() == 130
    finally:
        process.kill()
        process.wait()
    assert not alive(int((folder / "pid").read_text()))


def test_a_numpy_that_cannot_be_imported_is_trouble(process: Run, folder: Path) -> None:
    instead_of(folder, "torch", NO_TORCH)
    done = process(
        "doctor",
        "--timeout",
        "3600",
        "-q",
        PYTHONPATH=instead_of(
            folder, "numpy", "raise ImportError('numpy.core.multiarray failed to import')"
        ),
    )
    assert (done.returncode, done.stderr) == (2, "")
    assert (
        "bundle: bundles can neither be read nor written (ImportError: numpy.core.multiarray failed"
        " to import)" in done.stdout
    )


@pytest.mark.parametrize(
    ("name", "oldest", "needed", "expected"),
    [
        ("numpy", "1.0", True, []),
        ("numpy", "99.1", True, ["pip install 'numpy>=99.1'"]),
        ("no-such-package", "1.0", True, ["pip install 'no-such-package>=1.0'"]),
        ("no-such-package", "1.0", False, []),
    ],
)
def test_packages_that_are_missing_or_too_old_are_trouble(
    name: str, oldest: str, needed: bool, expected: list[str]
) -> None:
    problems = list(doctor._package_problems({name: (oldest, needed)}))
    assert [problem.cure for problem in problems] == expected
    assert all(problem.serious for problem in problems)


def test_needed_packages_are_those_of_the_installation() -> None:
    packages = doctor._requirements()
    assert packages["numpy"] == ("2.0", True)
    assert packages["torch"] == ("2.4", False)
    assert "hypothesis" not in packages


@pytest.mark.parametrize(
    ("setting", "cure"), [("numpy", "unset ACCUCOMPARE_KERNEL"), (None, "install a C compiler")]
)
def test_numpy_in_place_of_the_kernel_is_told_with_the_cure(
    setting: str | None, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_kernel", None)
    monkeypatch.delenv("ACCUCOMPARE_KERNEL", raising=False)
    if setting is not None:
        monkeypatch.setenv("ACCUCOMPARE_KERNEL", setting)
    _, (problem,) = doctor._parts()
    assert (problem.topic, problem.serious) == ("kernel", False)
    assert problem.cure.startswith(cure)


def test_a_setting_that_changes_numbers_is_told_with_the_cure() -> None:
    found = DeviceReport(
        True,
        flags={
            "npu.conv.allow_hf32": True,
            "npu.matmul.allow_hf32": False,
            "deterministic_algorithms": True,
        },
    )
    (problem,) = doctor._device_problems({"npu:1": found}, None)
    assert problem == Problem(
        "npu:1",
        "npu.conv.allow_hf32 is True: convolutions may round what goes into them to HF32: 11 of 23"
        " mantissa bits",
        "capture --no-hf32, or torch.npu.conv.allow_hf32 = False",
    )


def test_a_setting_of_another_device_is_no_problem() -> None:
    found = DeviceReport(
        True, flags={"deterministic_algorithms": False, "mkldnn.matmul.fp32_precision": "bf16"}
    )
    assert [
        problem.message.partition(" ")[0]
        for problem in doctor._device_problems({"cpu": found}, None)
    ] == ["mkldnn.matmul.fp32_precision"]


def test_versions_that_do_not_fit_are_told_with_the_cure(mismatched: dict[str, Any]) -> None:
    (problem,) = [problem for problem in mismatched["problems"] if problem["topic"] == "versions"]
    assert problem["message"].startswith("torch_npu 2.12.1 is made for torch 2.12.1, but torch 2.")
    assert problem["message"].endswith("pip install torch==2.12.1")


# Printing


EXAMINATION = Examination(
    True,
    "0.1.0",
    "/somewhere",
    "3.12.1",
    "/usr/bin/python3",
    "Linux",
    4,
    None,
    None,
    None,
    None,
    {"torch": None},
    {},
    {},
    [],
)


def printed(capsys: pytest.CaptureFixture[str], **changes: Any) -> str:
    print_examination(
        Examination(
            **{
                **{name: getattr(EXAMINATION, name) for name in EXAMINATION.__dataclass_fields__},
                **changes,
            }
        )
    )
    return capsys.readouterr().out


def test_several_devices_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    found = DeviceReport(
        True, "", 8, {"type": "npu", "name": "Ascend910B1", "cann": "8.2", "driver": None}, {}
    )
    assert "npu  8 of Ascend910B1, cann 8.2\n" in printed(capsys, devices={"npu": found})


def test_what_is_not_known_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    shown = [line.split() for line in printed(capsys).splitlines()]
    assert ["kernel", "-"] in shown
    assert ["packages", "torch", "-"] in shown


def test_markup_and_odd_bytes_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, environment={"OMP_NUM_THREADS": "[red]\udcff\x1b[31m"})
    assert r"'[red]\udcff\x1b[31m'" in shown
    assert "\x1b" not in shown


def test_a_message_that_is_no_plain_text_is_printed_as_such(cli: Run, folder: Path) -> None:
    source = "import os; os.write(2, b'\\x1b[31mred\\xff\\n'); os.abort()"
    instead_of(folder, "torch", source)
    done = cli("doctor", "--timeout", "3600", "--device", "cpu", "-q")
    assert r"signal 6: \x1b[31mred" + "\N{REPLACEMENT CHARACTER})" in done.stdout


def test_the_reader_of_a_pipe_may_leave(folder: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": instead_of(folder, "torch", "raise ImportError('x')"),
    }
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-m", "accucompare", "doctor", "--timeout", "3600", "--json"]
    done = subprocess.run(
        arguments, stdout=writer, stderr=subprocess.PIPE, text=True, env=environment
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (2, "")


def test_the_verdict_names_a_device_that_is_installed_and_does_not_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    problem = Problem("npu", "the NPU cannot be opened", "")
    found = replace(
        EXAMINATION, devices={"npu": DeviceReport(False, problem.message)}, problems=[problem]
    )
    print_examination(found, quiet=True)
    assert capsys.readouterr().out.startswith(
        "OK  accucompare can work here, but see what is said of npu; "
    )
