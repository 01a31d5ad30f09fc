"""What the manifest says of where and how a capture ran."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import nn

from accucompare import devices
from accucompare.bundle.digests import fingerprint
from accucompare.bundle.dtypes import DTYPES
from accucompare.capture.names import Modules
from accucompare.capture.tensors import round_to, to_host

_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_PACKAGES = ("accucompare", "torch", "torch_npu", "numpy", "transformers")


def describe_environment(device: torch.device, case: str | None) -> dict[str, Any]:
    """Device, versions, flags, command line, git commit, threads and time."""
    backend = devices.backend(device.type)
    description = backend.describe(device.index) if device.type in devices.TYPES else {"type": device.type}
    return {
        "command": shlex.join(sys.argv),
        "case": case,
        "git": _git(),
        "device": description,
        "versions": {
            "python": platform.python_version(),
            **{name: version for name in _PACKAGES if (version := _version(name)) is not None},
            **({"cann": description["cann"]} if "cann" in description else {}),
        },
        "platform": platform.platform(),
        "flags": backend.flags(),
        "threads": torch.get_num_threads(),
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def describe_autocast(device: torch.device) -> dict[str, Any] | None:
    """The autocast in force: device type and dtype; ``None`` if none is."""
    for kind in dict.fromkeys((device.type, "cpu")):
        if torch.is_autocast_enabled(kind):
            return {"device": kind, "dtype": str(torch.get_autocast_dtype(kind)).removeprefix("torch.")}
    return None


def describe_model(modules: Modules) -> dict[str, Any]:
    """Class, mode, modules, and a fingerprint of every parameter and buffer."""
    root = modules.named[""]
    tables: dict[str, dict[str, Any]] = {"parameters": {}, "buffers": {}}
    described: dict[int, dict[str, Any]] = {}  # tied weights have several names
    for kind, name, tensor in modules.tensors():
        if id(tensor) not in described:
            described[id(tensor)] = _describe_tensor(tensor)
        tables[kind][name] = described[id(tensor)]
    return {
        "class": f"{type(root).__module__}.{type(root).__qualname__}",
        "training": _training(root),
        "other_mode": [name for name, module in modules.named.items() if _training(module) != _training(root)],
        "active_dropout": sum(_drops_out(module) for module in modules.named.values()),
        "dtypes": sorted({entry["dtype"] for entry in tables["parameters"].values()}),
        "modules": {name: type(module).__name__ for name, module in modules.named.items()},
        "aliases": modules.aliases,
        "signatures": modules.signatures(),
        "sources": _sources(type(module) for module in modules.named.values()),
        **tables,
    }


def _sources(classes: Iterable[type]) -> dict[str, str]:
    """Digests of the files that classes come from, by module, but for those of installed packages, whose versions are told elsewhere."""
    found = {}
    for name in {cls.__module__ for cls in classes}:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and not _INSTALLED.search(file) and Path(file).is_file():
            found[name] = xxhash.xxh3_128_hexdigest(Path(file).read_bytes())
    return dict(sorted(found.items()))


def _describe_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    host = to_host(tensor)
    digests = {} if host.array is None else fingerprint(host.array, DTYPES[host.dtype], round_to)
    return {"dtype": host.dtype, "shape": list(host.shape), "digests": digests}


def _training(module: nn.Module) -> bool:
    """Whether a module is in train mode; a frozen scripted one has forgotten that there is such a thing."""
    return bool(getattr(module, "training", False))


def _drops_out(module: nn.Module) -> bool:
    return _training(module) and "Dropout" in type(module).__name__ and bool(getattr(module, "p", True))


def notes_on(modules: Modules) -> list[str]:
    """What about a model makes its capture differ from what a reader would assume."""
    notes = []
    scripted = [name or "(root)" for name, module in modules.named.items() if isinstance(module, torch.jit.ScriptModule)]
    if scripted:
        notes.append(f"{len(scripted)} scripted or traced module(s) hide what happens inside them: {', '.join(scripted[:3])}")
    fused = [name for name, module in modules.named.items() if isinstance(module, nn.TransformerEncoderLayer) and not _training(module)]
    if fused:
        notes.append(f"{len(fused)} nn.TransformerEncoderLayer(s) take their unfused path while hooked")
    return notes


def device_of(model: nn.Module) -> torch.device:
    """Where a model's first parameter or buffer is; the CPU if it has none."""
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_meta:
            return tensor.device
    return torch.device("cpu")


def _version(package: str) -> str | None:
    module = sys.modules.get(package)
    version = getattr(module, "__version__", None)
    if version is not None:
        return str(version)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Commit of the working directory, and whether it has uncommitted changes; ``None`` outside of git."""
    if shutil.which("git") is None:
        return None
    answers = []
    for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]):
        try:
            answer = subprocess.run(["git", *command], capture_output=True, text=True, timeout=5, check=True)
        except (subprocess.SubprocessError, OSError):
            return None
        answers.append(answer.stdout.strip())
    return {"commit": answers[0], "modified": bool(answers[1])}
