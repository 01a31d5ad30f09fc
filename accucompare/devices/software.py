"""The software that each type of device needs, and why it cannot be loaded. Needs no torch."""

from __future__ import annotations

import re

INSTALL = {
    "cpu": "pip install torch",
    "cuda": "pip install torch",
    "npu": "pip install 'accucompare[npu]'",
}

#: The package without which a type of device is expected to be missing.
PACKAGE = {"cpu": "torch", "npu": "torch-npu"}

#: The command that shows whether a type of device is there.
SEE = {
    "cpu": "see `python -c 'import torch'`",
    "cuda": "see `nvidia-smi`",
    "npu": "see `npu-smi info`",
}

SET_ENV = (
    "run `source /usr/local/Ascend/ascend-toolkit/set_env.sh` (where CANN is installed) and try"
    " again"
)


def version(package: str) -> str | None:
    """Version of an installed package; ``None`` if it is not installed."""
    from importlib import metadata  # slow to import

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def mismatch() -> str | None:
    """What is wrong with the versions of torch and torch_npu, with the cure; ``None`` if they fit.

    A torch_npu is built for one release of torch and bears its number: 2.13.0 and 2.13.0.post1 are
    for torch 2.13.0 (Ascend/pytorch, README, "PyTorch and Python version matching table").
    """
    torch, torch_npu = version("torch"), version("torch-npu")
    if torch is None or torch_npu is None or release(torch) == release(torch_npu):
        return None
    fitting = ".".join(map(str, release(torch_npu)))
    return (
        f"torch_npu {torch_npu} is made for torch {fitting}, but torch {torch} is installed; pip"
        f" install torch=={fitting}"
    )


def release(version: str) -> list[int]:
    """The numbers of a version, at most three: ``2.13.0.post1+cpu`` is ``[2, 13, 0]``."""
    return [int(digits) for digits in re.findall(r"\d+", version.partition("+")[0])][:3]


def loading_failed(error: BaseException) -> str:
    """Why torch_npu could not be loaded, and the cure."""
    reason = str(error).strip().partition("\n")[0]
    if "Two accelerators" in reason:
        other = "GPU" if "cuda" in reason else "other accelerator"
        return (
            f"--device npu: PyTorch cannot use an NPU and a {other} in one process, and this torch"
            " sees both; install the CPU build of torch beside torch_npu for the NPU's captures,"
            " and make the others (--device cuda) in processes of their own"
        )
    if isinstance(error, ModuleNotFoundError) and error.name != "torch_npu":
        return f"torch_npu cannot be imported ({reason}); {INSTALL['npu']}"
    wrong_versions = mismatch()
    if wrong_versions is not None:
        return f"torch_npu cannot be loaded ({reason}): {wrong_versions}"
    return (
        f"torch_npu is installed but cannot be loaded ({reason}); is CANN there, and has it been"
        f" set up? If so, {SET_ENV}"
    )
