"""Ascend NPUs through torch_npu: names and behaviour of 2.13.0 (Ascend/pytorch) and older."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from accucompare.devices.software import INSTALL, loading_failed
from accucompare.devices.streams import Streams
from accucompare.errors import DeviceError, UsageError

#: Variables that torch_npu and CANN read once, and that change numbers or their order.
_ENVIRONMENT = (
    "ASCEND_LAUNCH_BLOCKING",
    "HCCL_DETERMINISTIC",
    "INF_NAN_MODE_ENABLE",
    "INF_NAN_MODE_FORCE_DISABLE",
    "TASK_QUEUE_ENABLE",
)


class Npu(Streams):
    """An NPU, by ``torch.npu``."""

    REDUCED = "hf32"
    SKETCHES_IN = "float32"  # float64 runs on the NPU's slow processor, if at all

    def open(self, index: int | None) -> torch.device:
        """Import torch_npu and check that the NPU is there. Raises DeviceError if torch_npu, CANN
        or the NPU is missing, or does not work."""
        try:
            importlib.import_module("torch_npu")
        except Exception as error:  # a bare Exception where CANN is half set up
            if isinstance(error, ModuleNotFoundError) and error.name == "torch_npu":
                raise DeviceError(
                    f"--device npu: torch_npu is not installed; {INSTALL['npu']}"
                ) from None
            raise DeviceError(loading_failed(error)) from None
        try:
            found = self.count() if _npu().is_available() else 0
            if found == 0:
                raise DeviceError(
                    "--device npu: no NPU is available; see whether `npu-smi info` lists one"
                )
            if index is not None and index >= found:
                raise DeviceError(
                    f"--device npu:{index}: there are {found} NPU(s), numbered from 0"
                )
            device = torch.device("npu", index or 0)
            _npu().set_device(device)
        except RuntimeError as error:
            cure = (
                "; see `npu-smi info` for its state and who uses it; --device npu:N takes"
                " another one"
            )
            if "INF_NAN_MODE" in str(error):  # torch_npu's message has the cure
                cure = ""
            raise DeviceError(
                f"--device npu: the NPU cannot be opened ({_cause(error)}){cure}"
            ) from None
        return device

    def count(self) -> int:
        return int(_npu().device_count())

    def describe(self, index: int | None) -> dict[str, Any]:
        return {
            "type": "npu",
            "name": _npu().get_device_name(index),
            "cann": _version("CANN") or _cann_version(),
            "driver": _version("DRIVER") or _driver_version(),
        }

    def flags(self) -> dict[str, Any]:
        deterministic_level = getattr(_npu(), "_get_deterministic_level", None)
        return {
            **super().flags(),
            "npu.matmul.allow_hf32": bool(_npu().matmul.allow_hf32),
            "npu.conv.allow_hf32": bool(_npu().conv.allow_hf32),
            "npu.jit_compile": not _npu().is_jit_compile_false(),
            "npu.deterministic_level": deterministic_level and deterministic_level(),
            "npu.inf_nan_mode": not self.saturates(),
            **{name: os.environ.get(name) for name in _ENVIRONMENT},
        }

    @contextlib.contextmanager
    def numerics(self, deterministic: bool, reduced: bool | None) -> Iterator[None]:
        """As ``Cpu.numerics``, which torch_npu follows; and HF32 in products and convolutions.

        CANN heeds only a thread's first setting of determinism: enter it before the first operator.
        """
        products = (_npu().matmul, _npu().conv)
        before = [bool(product.allow_hf32) for product in products]
        with super().numerics(deterministic, None):
            try:
                for product in products if reduced is not None else ():
                    product.allow_hf32 = reduced
                yield
            finally:
                for product, allowed in zip(products, before, strict=True):
                    if bool(product.allow_hf32) != allowed:
                        product.allow_hf32 = allowed

    def synchronize(self, device: torch.device) -> None:
        _npu().synchronize(device)

    def overflowed(self, device: torch.device) -> bool | None:
        """Reads and clears the flag of SoCs without Inf and NaN (see ``saturates``)."""
        if not self.saturates():  # get_npu_overflow_flag refuses here
            return None
        with _npu().device(device):
            overflowed = bool(_npu().get_npu_overflow_flag())
            if overflowed:
                _npu().clear_npu_overflow_flag()
        return overflowed

    def saturates(self) -> bool:
        """On a 910A and a 310P; on others if INF_NAN_MODE_ENABLE is 0 (and, from the 910B on,
        INF_NAN_MODE_FORCE_DISABLE is 1).
        """
        return not _utils().is_support_inf_nan()

    @contextlib.contextmanager
    def kernel_dump(self, directory: Path) -> Iterator[None]:
        """CANN dumps as ``acl_dump.json`` says; its ``msaccucmp.py convert`` makes NumPy files.

        Concurrent processes need a directory each. Kernels launched before are waited for, so that
        they are not dumped.

        ``init_dump``, ``set_dump`` and ``finalize_dump`` are those of ``torch_npu.npu.utils``.
        Their namesakes in ``torch.npu`` (npu_config.py) call CANN, too, but ignore its errors.
        """
        try:
            config = _write_dump_config(directory)
        except OSError as error:
            raise UsageError(
                f"--kernel-dump {directory}: cannot be written ({error.strerror or error})"
            ) from None
        with _refusals_of_dump(directory):
            _npu().synchronize()
            _utils().init_dump()
        try:
            with _refusals_of_dump(directory):
                _utils().set_dump(str(config))
            yield
        except BaseException:
            with contextlib.suppress(DeviceError):  # the first error is reported
                _finalize_dump(directory)
            raise
        _finalize_dump(directory)

    def unsupported(self) -> list[str]:
        """Operators with kernels for CPUs but none for NPUs, and not composed of others."""
        kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        composed = (
            "CompositeImplicitAutograd",
            "CompositeExplicitAutograd",
            "CompositeExplicitAutogradNonFunctional",
        )
        ours = set(torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1"))
        others = (
            name
            for name in torch._C._dispatch_get_all_op_names()
            if name.startswith("aten::") and name not in ours
        )
        return [
            name
            for name in others
            if kernel(name, "CPU") and not any(kernel(name, key) for key in composed)
        ]


def _write_dump_config(directory: Path) -> Path:
    """Configure a full dump of each single operator's inputs and outputs, in eager mode.

    Fields as in CANN's application development API, "aclmdlSetDump", "model dump and
    single-operator dump configuration" (CANN 8.0 to 9.0, document aclcppdevg_03_0315):
    ``dump_list`` is empty for single operators, which ``dump_op_switch`` includes; ``dump_mode`` is
    ``output`` if not given; the directory ``dump_path`` must exist.
    """
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    dump = {
        "dump_list": [],
        "dump_path": str(directory),
        "dump_mode": "all",
        "dump_op_switch": "on",
        "dump_data": "tensor",
    }
    config = directory / "acl_dump.json"
    config.write_text(json.dumps({"dump": dump}, indent=2) + "\n")
    return config


def _finalize_dump(directory: Path) -> None:
    """Wait for the last kernels, and end the dump in any case."""
    with _refusals_of_dump(directory):
        try:
            _npu().synchronize()
        finally:
            _utils().finalize_dump()


@contextlib.contextmanager
def _refusals_of_dump(directory: Path) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise DeviceError(
            f"--kernel-dump {directory}: refused by the NPU's software ({_cause(error)})"
        ) from None


def _cause(error: RuntimeError) -> str:
    """The important lines of a driver's message: torch_npu's error code, and CANN's own words."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    codes = re.findall(r"[\w:.()]+, error code is \d+", str(error))
    words = [line for line in lines if re.match(r"E[A-Z]\d{4}\b", line)]
    return "; ".join([*codes[:1], *words[:1]]) or (lines[0] if lines else type(error).__name__)


def _utils() -> Any:
    """Functions of torch_npu that ``torch.npu`` lacks, or has in another form."""
    return importlib.import_module("torch_npu.npu.utils")


def _npu() -> Any:
    return torch.npu  # type: ignore[attr-defined]  # torch_npu adds it


def _version(of: str) -> str | None:
    """Version of CANN or the driver, from torch_npu; ``None`` if unknown."""
    ask = getattr(_utils(), "get_cann_version", None)
    try:
        return str(ask(of)) or None if ask is not None else None
    except RuntimeError:  # that part is unknown to it
        return None


def _cann_version() -> str | None:
    home = (
        os.environ.get("ASCEND_TOOLKIT_HOME")
        or os.environ.get("ASCEND_HOME_PATH")
        or "/usr/local/Ascend/ascend-toolkit/latest"
    )
    return _last_line(Path(home) / "version.cfg") or _last_line(Path(home) / "version.info")


def _driver_version() -> str | None:
    path = Path("/usr/local/Ascend/driver/version.info")
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return next((line.partition("=")[2] for line in lines if line.startswith("Version=")), None)


def _last_line(path: Path) -> str | None:
    lines = path.read_text(errors="replace").strip().splitlines() if path.is_file() else []
    return lines[-1] if lines else None
