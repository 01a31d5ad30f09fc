"""Devices: how they are named, and what is said when one is not there."""

from __future__ import annotations

import contextlib
import gc
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from accucompare.devices import DeviceName, backend, open_device, opening
from accucompare.errors import DeviceError, UsageError
from tests.conftest import Run

CASE = (
    "import torch\nfrom accucompare import Case\ndef case():\n    return Case(torch.nn.Linear(2,"
    " 2), torch.ones(1, 2))\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu", DeviceName("cpu")),
        ("cuda", DeviceName("cuda")),
        ("cuda:1", DeviceName("cuda", 1)),
        ("npu:0", DeviceName("npu", 0)),
        ("npu:15", DeviceName("npu", 15)),
    ],
)
def test_names_are_read_and_written_alike(text: str, expected: DeviceName) -> None:
    assert DeviceName.parse(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text", ["", "gpu", "CPU", "cpu:0", "cuda:", "cuda:-1", "npu:x", "cuda:0:1", " cpu", "cuda:0\n"]
)
def test_names_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be cpu, cuda, cuda:N, npu or npu:N"):
        DeviceName.parse(text)


def test_the_cpu_is_always_there() -> None:
    assert open_device(DeviceName("cpu")) == torch.device("cpu")


@pytest.mark.parametrize("missing", [False, True])
def test_garbage_is_searched_for_again_once_torch_is_there_or_missing(
    monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    def imported(name: str) -> object:
        assert not gc.isenabled()
        if missing:
            raise ImportError("no torch", name=name)
        return torch

    backend("cpu")  # has been imported
    monkeypatch.setattr(opening, "sys", SimpleNamespace(modules={}, stdout=sys.stdout))
    monkeypatch.setattr(opening, "importlib", SimpleNamespace(import_module=imported))
    with pytest.raises(DeviceError) if missing else contextlib.nullcontext():
        open_device(DeviceName("cpu"))
    assert gc.isenabled()


def test_a_device_of_another_type_is_described_without_asking_it() -> None:
    assert backend("meta") is backend("cpu")


@pytest.mark.parametrize("type", ["cpu", "cuda"])
def test_only_an_npu_saturates_or_has_an_overflow_flag(type: str) -> None:
    assert backend(type).saturates() is False
    assert backend(type).overflowed(torch.device(type)) is None


@pytest.mark.parametrize("type", ["cpu", "cuda", "meta"])
def test_a_kernel_dump_is_refused_at_once_where_there_is_none(type: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^kernel_dump \(--kernel-dump\): only an NPU"):
        backend(type).kernel_dump(tmp_path / "dump")
    assert not (tmp_path / "dump").exists()


def test_cuda_without_a_cuda_build_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    with pytest.raises(
        DeviceError, match=r"this torch \(.*\) is built without CUDA; install a CUDA build of torch"
    ):
        open_device(DeviceName("cuda"))


def test_cuda_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(
        DeviceError, match="no GPU is available; see whether `nvidia-smi` lists one"
    ):
        open_device(DeviceName("cuda"))


def test_a_gpu_with_too_high_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(DeviceError, match=r"cuda:2: there are 2 GPU\(s\), numbered from 0"):
        open_device(DeviceName("cuda", 2))


def test_an_npu_with_too_high_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace())
    monkeypatch.setattr(
        torch,
        "npu",
        SimpleNamespace(is_available=lambda: True, device_count=lambda: 8),
        raising=False,
    )
    with pytest.raises(DeviceError, match=r"npu:8: there are 8 NPU\(s\), numbered from 0"):
        open_device(DeviceName("npu", 8))


# as a user meets it: in a process of its own, which imports torch itself where that matters


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a case to run, and one for packages that only this test has."""
    # set by open_device in this process
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)
    (tmp_path / "case.py").write_text(CASE)
    (tmp_path / "packages").mkdir()
    return tmp_path


def pretend(
    folder: Path, source: str, *, autoload: bool = False, version: str = torch.__version__
) -> str:
    """Install a torch_npu, as pip would; the directory to put on PYTHONPATH is returned."""
    packages = folder / "packages"
    (packages / "torch_npu").mkdir()
    (packages / "torch_npu" / "__init__.py").write_text(source)
    if autoload:
        info = packages / f"torch_npu-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: torch-npu\nVersion: {version}\n"
        )
        (info / "entry_points.txt").write_text(
            "[torch.backends]\ntorch_npu = torch_npu:_autoload\n"
        )
    return str(packages)


WITHOUT_CANN = (
    "raise ImportError('libhccl.so: cannot open shared object file: No such file or directory')\n"
)
WITHOUT_DEVICE = """
import types, torch
torch.npu = types.SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)
def _autoload():
    pass
"""
DRIVER_BROKEN = """
import types, torch

def device_count():
    raise RuntimeError(
        "Initialize:build/CMakeFiles/torch_npu NPU function error: aclInit, error code is 507008"
    )

torch.npu = types.SimpleNamespace(is_available=lambda: True, device_count=device_count)
"""


def refused(run: Run, folder: Path, packages: str = "") -> str:
    """What ``capture --device npu`` says; it must fail as every bad input fails."""
    done = run("capture", "--device", "npu", cwd=folder, PYTHONPATH=packages)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (folder / "npu").exists()
    return done.stderr


def test_npu_without_torch_npu(forked: Run, folder: Path) -> None:
    message = refused(forked, folder)
    assert (
        message
        == "accucompare: --device npu: torch_npu is not installed; pip install 'accucompare[npu]'\n"
    )


def test_npu_without_cann(forked: Run, folder: Path) -> None:
    message = refused(forked, folder, pretend(folder, WITHOUT_CANN))
    assert "libhccl.so: cannot open shared object file" in message
    assert "source /usr/local/Ascend/ascend-toolkit/set_env.sh" in message
    assert message.count("\n") == 1


def test_npu_without_a_device(forked: Run, folder: Path) -> None:
    message = refused(forked, folder, pretend(folder, WITHOUT_DEVICE))
    assert (
        message
        == "accucompare: --device npu: no NPU is available; see whether `npu-smi info` lists one\n"
    )


def test_npu_whose_driver_fails(forked: Run, folder: Path) -> None:
    message = refused(forked, folder, pretend(folder, DRIVER_BROKEN))
    assert "aclInit, error code is 507008" in message
    assert "npu-smi info" in message


@pytest.mark.parametrize("autoload", [False, True], ids=["imported by us", "imported by torch"])
def test_the_cpu_still_works_where_torch_npu_lacks_cann(
    autoload: bool, process: Run, forked: Run, folder: Path
) -> None:
    packages = pretend(folder, WITHOUT_CANN, autoload=autoload)
    done = (process if autoload else forked)(
        "capture", "--device", "cpu", "--out", "golden", cwd=folder, PYTHONPATH=packages
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "golden" / "manifest.json").is_file()


def test_a_broken_torch_is_named(process: Run, folder: Path) -> None:
    (folder / "packages" / "torch").mkdir()
    (folder / "packages" / "torch" / "__init__.py").write_text(
        "raise ImportError('libtorch.so: undefined symbol: x')"
    )
    done = process("capture", cwd=folder, PYTHONPATH=str(folder / "packages"))
    assert done.returncode == 2
    assert (
        done.stderr == "accucompare: torch cannot be imported (libtorch.so: undefined symbol: x)\n"
    )


def test_a_missing_torch_says_how_to_get_it(process: Run, folder: Path) -> None:
    (folder / "packages" / "torch").mkdir()
    (folder / "packages" / "torch" / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"
    )
    done = process("capture", cwd=folder, PYTHONPATH=str(folder / "packages"))
    assert done.returncode == 2
    assert (
        done.stderr
        == "accucompare: capturing needs PyTorch, which is not installed here: pip install torch\n"
    )


def test_cuda_where_there_is_none(forked: Run, folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = forked("capture", "--device", "cuda", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith("accucompare: --device cuda: ")
    assert "Traceback" not in done.stderr
