"""Running a case under capture: what ``accucompare capture`` does."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from accucompare.bundle.reader import open_bundle
from accucompare.bundle.writer import PREVIOUS, QUEUE_BYTES
from accucompare.capture.session import Mode, capture
from accucompare.capture.state import Arguments, saved_inputs
from accucompare.case import load_case, steps_of
from accucompare.devices import DeviceName, explain, open_device
from accucompare.errors import AccucompareError, CaptureError, CaseError, DeviceError, UsageError


class FloatType(str, Enum):
    """What ``--dtype`` can be."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def capture_case(
    target: str | None,
    out: str | Path,
    device: DeviceName,
    *,
    mode: str = Mode.TENSORS,
    dtype: FloatType | None = None,
    seed: int | None = None,
    steps: int | None = None,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    overwrite: bool = False,
    save_state: bool = False,
    like: str | Path | None = None,
    deterministic: bool = False,
    hf32: bool | None = None,
    tf32: bool | None = None,
    emulate: str | None = None,
    queue_bytes: int = QUEUE_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Build a case on the CPU under the seed, move it to the device, and capture its steps.

    Args:
        target: the case, see ``accucompare.case.load_case``.
        out: directory to write the bundle to.
        device: where to run.
        dtype: what to cast floating parameters, buffers and inputs to; as they are if not given.
        steps: how many; as many as the case has inputs if not given. Inputs are used again from the first if there are fewer.
        mode, seed, only, skip, overwrite, save_state, like, deterministic, hf32, tf32, emulate: as for ``accucompare.capture``.
        queue_bytes: likewise.
        progress: called with the steps done and the steps to do.

    Returns:
        The bundle's directory.

    Raises:
        CaseError: if the case cannot be found or built, or lacks inputs.
        DeviceError: if the device is not there.
        CaptureError: if the model raised, or the bundle cannot be written.
    """
    place = open_device(device)
    if like is not None:
        with open_bundle(like) as source:
            seed = source.manifest.capture.get("seed") if seed is None else seed
            steps = steps or len(source.manifest.steps) or None
    _seed_everything(seed or 0)
    case, name = load_case(target)
    if not isinstance(case.model, nn.Module):
        raise CaseError(f"{name}: the case's model must be a torch.nn.Module, but is a {type(case.model).__name__}")
    if case.optimizer is not None and case.loss is None:
        raise CaseError(f"{name}: the case has an optimizer but no loss to send backward; give Case(…, loss=…)")
    inputs = _inputs(case.inputs, like, name)
    count = steps if steps is not None else len(inputs)
    torch_dtype = None if dtype is None else getattr(torch, dtype.value)
    model = case.model
    if torch_dtype is not None:  # model.to(dtype) would also cast complex tensors, and drop their imaginary parts
        model._apply(lambda tensor: tensor.to(torch_dtype) if tensor.is_floating_point() else tensor)  # type: ignore[no-untyped-call]
    try:
        model = model.to(device=place)  # cast already: no operator runs on the device before its flags are set
    except RuntimeError as error:
        raise DeviceError(f"{name}: the model cannot be moved to {device}: {explain(device.type, error)}") from error
    options: dict[str, Any] = {
        "mode": mode,
        "seed": seed,
        "only": only,
        "skip": skip,
        "overwrite": overwrite,
        "save_state": save_state,
        "like": like,
        "deterministic": deterministic,
        "hf32": hf32,
        "tf32": tf32,
        "emulate": emulate,
    }
    with (
        _naming_the_model(name, Path(out), device.type),
        capture(model, out, queue_bytes=queue_bytes, case=name, inputs=inputs if save_state else None, **options) as session,
    ):
        for step in range(count):
            args, kwargs = _moved(inputs[step % len(inputs)], place, torch_dtype)
            _run_step(model, args, kwargs, case.loss, case.optimizer)
            session.step()
            if progress is not None:
                progress(step + 1, count)
    return Path(out)


def _run_step(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Callable[[Any], Any] | None, optimizer: Any) -> None:
    if loss is None:
        with torch.no_grad():
            model(*args, **kwargs)
        return
    value = loss(model(*args, **kwargs))
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        found = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
        raise CaseError(f"the case's loss must return a tensor of one element, but returned {found}")
    value.backward()  # type: ignore[no-untyped-call]
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


def _inputs(inputs: Any, like: str | Path | None, name: str) -> list[Arguments]:
    saved = None
    if like is not None:
        with open_bundle(like) as source:
            saved = saved_inputs(source)
    if saved is None and inputs is None:
        raise CaseError(f"{name}: the case has no inputs; give Case(model, inputs), or start from a bundle that has (--like)")
    steps = saved if saved is not None else steps_of(inputs)
    if not steps:
        raise CaseError(f"{name}: the case's list of inputs is empty")
    return steps


def _moved(arguments: Arguments, device: torch.device, dtype: torch.dtype | None) -> Arguments:
    """Fresh copies on the device, floating ones cast where they are; the model may write into what it is given."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype if tensor.is_floating_point() else None, copy=True).to(device)

    moved: Arguments = pytree.tree_map_only(torch.Tensor, move, arguments)
    return moved


def _seed_everything(seed: int) -> None:
    if not 0 <= seed < 1 << 32:
        raise UsageError(f"--seed {seed}: must be between 0 and 2**32 - 1")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextlib.contextmanager
def _naming_the_model(name: str, out: Path, device: str) -> Any:
    """Turn what the model raised into a CaptureError that names the module."""
    try:
        yield
    except AccucompareError:
        raise
    except Exception as error:
        stopped = _stopped(out)
        module, step = stopped.get("module"), stopped.get("step")
        what = "the model raised while it was set up" if not stopped else f"the model raised in {module or '(root)'}, step {step}"
        if stopped and module is None:
            what = f"the case raised outside of the model's forward, step {step}"
        kept = f"; the bundle that it was to replace is in {out / PREVIOUS}" if (out / PREVIOUS).exists() else ""
        raise CaptureError(
            f"{name}: {what}: {explain(device, error)}\n"
            f"What was recorded until then is in {out}, marked incomplete{kept}; --debug shows the traceback"
        ) from error


def _stopped(out: Path) -> dict[str, Any]:
    try:
        with open_bundle(out) as bundle:
            return bundle.manifest.stopped or {}
    except AccucompareError:
        return {}
