"""Where and how a capture ran, for the manifest."""

from __future__ import annotations

import datetime
import itertools
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from accucompare import devices
from accucompare.bundle.format import Shard
from accucompare.devices import variables
from accucompare.live.around.sources import (
    class_sources,
    digests_of,
    homes_of_classes,
    source_configuration,
    version_of,
)
from accucompare.live.modules import Modules, class_of, name_modules
from accucompare.live.values import round_tensor, to_host
from accucompare.numbers import DTYPES, Array, RowHashes, fingerprint
from accucompare.text import without_credentials

_PACKAGES = ("accucompare", "torch", "torch_npu", "numpy", "transformers")


def describe_environment(device: torch.device, case: str | None) -> dict[str, Any]:
    """Device, versions, flags, command line, git commit, threads and time."""
    backend = devices.backend(device.type)
    description = (
        backend.describe(device.index) if device.type in devices.TYPES else {"type": device.type}
    )
    return {
        "command": without_credentials(shlex.join(sys.argv)),
        "case": case,
        "git": _git(),
        "device": description,
        "versions": {
            "python": platform.python_version(),
            **{name: version for name in _PACKAGES if (version := version_of(name)) is not None},
            **({"cann": description["cann"]} if "cann" in description else {}),
        },
        "platform": platform.platform(),
        "flags": backend.flags(),
        "threads": torch.get_num_threads(),
        "variables": variables(os.environ),
        "libraries": {},
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


#: Gives the layout of this rank's part of a model's tensor, where it is one.
ShardOf = Callable[[torch.Tensor], Shard | None]


def describe_tensors(
    modules: Modules, shard_of: ShardOf | None = None
) -> dict[str, dict[str, Any]]:
    """The tables ``parameters`` and ``buffers`` of a manifest: a fingerprint of each tensor, or of
    this rank's part with its layout, if ``shard_of`` knows one."""
    tables: dict[str, dict[str, Any]] = {"parameters": {}, "buffers": {}}
    described: dict[int, dict[str, Any]] = {}  # tied weights have several names
    for kind, name, tensor in modules.tensors():
        if id(tensor) not in described:
            holder = modules.named[name.rpartition(".")[0]] if kind == "parameters" else None
            entry = described[id(tensor)] = _describe_tensor(tensor, holder)
            shard = None if shard_of is None else shard_of(tensor)
            if shard is not None and shard.holds(tuple(entry["shape"])):
                entry["shard"] = msgspec.to_builtins(shard)
        tables[kind][name] = described[id(tensor)]
    for module, buffer, _ in modules.computed():
        name = f"{module}.{buffer}" if module else buffer
        tables["buffers"][name] = {**tables["buffers"][name], "computed": True}
    return tables


def describe_model(modules: Modules, shard_of: ShardOf | None = None) -> dict[str, Any]:
    """Class, mode, modules with code and configuration, fingerprints of parameters and buffers."""
    tables = describe_tensors(modules, shard_of)
    return {
        **describe_classes(modules),
        "active_dropout": sum(_drops_out(module) for module in modules.named.values()),
        "dtypes": sorted({entry["dtype"] for entry in tables["parameters"].values()}),
        "classes": homes_of_classes(modules.named),
        "class_sources": class_sources(modules.named),
        "sources": digests_of(class_sources(modules.named)),
        "configuration": source_configuration(modules.named),
        "signatures": modules.signatures(),
        **tables,
    }


def describe_classes(modules: Modules) -> dict[str, Any]:
    """Class, mode, modules and what has several names."""
    root = modules.named[""]
    return {
        "class": f"{class_of(root).__module__}.{class_of(root).__qualname__}",
        "training": _training(root),
        "other_mode": [
            name for name, module in modules.named.items() if _training(module) != _training(root)
        ],
        "modules": {name: class_of(module).__name__ for name, module in modules.named.items()},
        "aliases": modules.aliases,
        "tied": modules.tied(),
    }


def _describe_tensor(tensor: torch.Tensor, holder: nn.Module | None) -> dict[str, Any]:
    """A tensor's entry; ``holder``: the module that has it as a parameter, if it may be fused."""
    host = to_host(tensor)
    entry: dict[str, Any] = {"dtype": host.dtype, "shape": list(host.shape), "digests": {}}
    if host.array is None:
        return entry
    along = _hashed_along(tensor, holder) if host.array.size else ()
    entry["digests"], rows = _digested(host.array, host.dtype, "rows" in along)
    if rows is not None:
        entry["rows"] = rows.to_json()
    if "columns" in along:
        turned = np.ascontiguousarray(host.array.swapaxes(-1, -2))
        _, columns = _digested(turned, host.dtype, True)
        if columns is not None:
            entry["columns"] = columns.to_json()
    return entry


def _digested(array: Array, dtype: str, by_rows: bool) -> tuple[dict[str, str], RowHashes | None]:
    """A tensor's fingerprint, and its rows' digests if these are asked for."""
    width = array.shape[-1] if array.ndim > 1 else 1
    rows = RowHashes(array.size // width, width) if by_rows else None
    if rows is not None and not rows.are_few:
        rows = None
    return fingerprint(array, DTYPES[dtype], round_tensor, rows), rows


def _hashed_along(tensor: torch.Tensor, holder: nn.Module | None) -> tuple[str, ...]:
    """Along what a parameter may be made up of other ones: a linear layer along its rows; what may
    be held transposed, as by GPT-2's Conv1D or stacked experts, along its columns, too."""
    if holder is None or "Embedding" in class_of(holder).__name__ or not 0 < tensor.dim() < 4:
        return ()
    if tensor.dim() == 1:  # a bias; a norm's weight stands alone
        several = any(each is not None and each.dim() > 1 for each in holder._parameters.values())
        return ("rows",) if several else ()
    return ("rows",) if isinstance(holder, nn.Linear) else ("rows", "columns")


def _training(module: nn.Module) -> bool:
    """Whether a module is in train mode; a frozen scripted one has no mode."""
    return bool(getattr(module, "training", False))


def _drops_out(module: nn.Module) -> bool:
    return (
        _training(module)
        and "Dropout" in type(module).__name__
        and bool(getattr(module, "p", True))
    )


def notes_on(modules: Modules) -> list[str]:
    """What about a model makes its capture differ from what a reader would assume."""
    notes = []
    scripted = [
        name or "(root)"
        for name, module in modules.named.items()
        if isinstance(module, torch.jit.ScriptModule)
    ]
    if scripted:
        notes.append(
            f"{len(scripted)} scripted or traced module(s) hide what happens inside them:"
            f" {', '.join(scripted[:3])}"
        )
    lazy = [
        name
        for name, module in modules.named.items()
        if any(is_lazy(each) for each in module._parameters.values() if each is not None)
    ]
    if lazy:
        notes.append(
            f"{len(lazy)} lazy module(s) draw their weights in their first call, inside the"
            f" capture, so not those of a plain run: {', '.join(lazy[:3])}; call the model once"
            " before the capture"
        )
    fused = [
        name
        for name, module in modules.named.items()
        if isinstance(module, nn.TransformerEncoderLayer) and not _training(module)
    ]
    if fused:
        notes.append(
            f"{len(fused)} nn.TransformerEncoderLayer(s) take their unfused path while hooked"
        )
    return notes


def notes_on_what_ran(before: Modules, compiled: bool, called: Collection[str]) -> list[str]:
    """What a capture has changed in a model, or has not seen of it.

    Args:
        before: its modules when the capture began.
        compiled: whether compiled code was called, and ran eagerly.
        called: the names of the modules that were called; empty if it does not matter.
    """
    notes = (
        [
            "compiled code (torch.compile) was called in the forward; it ran eagerly (--compile own"
            " captures compiled modules as they run)"
        ]
        if compiled
        else []
    )
    new = [name for name in name_modules(before.named[""]).named if name not in before.named]
    if new:
        notes.append(
            f"{len(new)} module(s) were added to the model while it ran, so nothing of them is"
            " recorded, and weights that they drew are not those of a plain run:"
            f" {', '.join(new[:3])}; call the model once before the capture"
        )
    # a Keras model, or one of plain objects
    elif {*called} == {""} and _has_parts(before.named[""]):
        notes.append(
            f"only the whole {type(before.named['']).__name__} was recorded, for its parts are not"
            " called as modules of PyTorch are; record its operators to look inside: --level op"
            " --only '(root)'"
        )
    return notes


def _has_parts(model: nn.Module) -> bool:
    """Whether a model that is not torch's has modules, or anything else that may be a layer."""
    own = vars(model).keys() - vars(nn.Module()).keys()
    plain = (
        torch.Tensor,
        torch.dtype,
        torch.device,
        torch.Size,
        str,
        int,
        float,
        complex,
        type(None),
    )
    held = bool(model._modules) or any(not isinstance(vars(model)[name], plain) for name in own)
    return held and not type(model).__module__.startswith("torch.nn.")


def device_of(model: nn.Module) -> torch.device:
    """Where a model's first parameter or buffer is; the CPU if it has none."""
    # Megatron's DDP has an attribute of the name ``buffers``
    for tensor in itertools.chain(model.parameters(), torch.nn.Module.buffers(model)):
        if not tensor.is_meta:
            return tensor.device
    return torch.device("cpu")


def _git() -> dict[str, Any] | None:
    """The working directory's commit, and whether it has changes; ``None`` without git."""
    if shutil.which("git") is None:
        return None
    command = ["git", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    about = [line for line in answer.stdout.splitlines() if line.startswith("# ")]
    commit = next((line.split()[2] for line in about if line.startswith("# branch.oid ")), "(")
    if commit.startswith("("):  # "(initial)": no commit yet
        return None
    return {"commit": commit, "modified": len(about) < len(answer.stdout.splitlines())}
