"""The outcome of running a module again: its tensors, and each in words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from accucompare.live.modules import arguments_of, points
from accucompare.live.values import dtype_name, leaves

#: (what it is, its name or path, the value): a row of a run's table.
TableRow = tuple[str, str, Any]


@dataclass
class RunOutcome:
    """The tensors of one run of a module."""

    device: torch.device
    # inputs, outputs: every tensor and number, by path
    inputs: list[TableRow] = field(default_factory=list)
    outputs: list[TableRow] = field(default_factory=list)
    # for a finding in the backward, of the inputs and the parameters
    gradients: list[TableRow] = field(default_factory=list)
    # the first tensor that was not finite among its children's inputs and outputs
    inside: TableRow | None = None
    # inputs that had not been saved and got None
    stand_ins: list[str] = field(default_factory=list)


@contextlib.contextmanager
def looking_inside(module: nn.Module, outcome: RunOutcome) -> Iterator[None]:
    """Note the first non-finite tensor among the children's inputs and outputs, and at points."""

    def look(name: str, what: str, parts: Iterable[tuple[str, Any]]) -> None:
        for path, part in parts:
            if outcome.inside is None and isinstance(part, torch.Tensor) and is_bad(part):
                outcome.inside = (
                    f"{what} {path}".rstrip() + ("" if what == "point" else " of"),
                    name,
                    part.detach().clone(),
                )

    hooks = []
    for name, child in module.named_modules():
        if child is not module and not isinstance(child, torch.jit.ScriptModule):

            def before(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                look(name, "input", arguments_of(args, kwargs))

            def after(_: nn.Module, args: Any, output: Any, name: str = name) -> None:
                look(name, "output", leaves(output))

            hooks += [
                child.register_forward_pre_hook(before, with_kwargs=True),
                child.register_forward_hook(after),
            ]
    seen = points.PointReader(lambda tensor, label: look(label, "point", [("", tensor)]))
    points.active.append(seen)
    try:
        yield
    finally:
        points.active.remove(seen)
        for hook in hooks:
            hook.remove()


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the CPU in a type to compute in: NPUs lack float64, float8 cannot compute."""
    host = tensor.detach()
    host = (
        host.to_padded_tensor(0.0)
        if host.is_nested
        else host.to_dense()
        if host.layout is not torch.strided
        else host
    ).to("cpu")
    if host.dtype in (torch.float32, torch.float64):
        return host
    return host.to(
        torch.complex128
        if host.is_complex()
        else torch.float32
        if host.is_floating_point()
        else torch.float64
    )


def counts(value: Any) -> str:
    """The numbers of NaN and Inf, such as ``3 NaN and 1 +Inf of 128 values``."""
    if not isinstance(value, torch.Tensor):
        return str(value)
    values = torch.view_as_real(wide(value)) if value.is_complex() else wide(value)
    kinds = (
        ("NaN", values.isnan()),
        ("+Inf", values == float("inf")),
        ("-Inf", values == -float("inf")),
    )
    counted = " and ".join(
        f"{int(found.sum())} {kind}" for kind, found in kinds if bool(found.any())
    )
    return f"{counted or 'the largest number'} of {values.numel()} values"


def cells(what: str, path: str, value: Any) -> list[str]:
    """A row's cells: what, path, dtype, shape, finite magnitudes, how many are not finite."""
    if not isinstance(value, torch.Tensor):
        return [what, path, type(value).__name__, "", repr(value)[:60]]
    cells = [what, path, dtype_name(value.dtype), f"[{', '.join(map(str, value.shape))}]"]
    if value.is_meta or value.is_nested or value.is_quantized:
        return cells
    values = wide(value).abs()
    finite = values[torch.isfinite(values)]
    sizes = (
        f"|x| {finite.min():.3g} … {finite.max():.3g}"
        if finite.numel()
        else "|x| none finite"
        if values.numel()
        else "empty"
    )
    nan, inf = int(values.isnan().sum()), int(values.isinf().sum())
    return [*cells, f"{sizes:<28}", f"{nan} NaN", f"{inf} Inf"]


def is_bad(value: Any, saturated: bool = False) -> bool:
    """Whether a value holds NaN or Inf; with ``saturated``, also its type's largest number."""
    if not isinstance(value, torch.Tensor):
        return isinstance(value, (float, complex)) and not abs(value) < float("inf")
    if not (value.is_floating_point() or value.is_complex()) or value.is_meta:
        return False
    values = wide(value)
    if not bool(torch.isfinite(values).all()):
        return True
    return (
        saturated
        and value.is_floating_point()
        and bool((values.abs() == torch.finfo(value.dtype).max).any())
    )
