"""What single module calls of a step show: ids that embeddings are given, units that stay idle."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from accucompare.findings.log import Lookup, number
from accucompare.live.modules import Modules, arguments_of
from accucompare.watcher.looking import Extrema, Meter

#: Classes that cut off values below zero, or nearly.
_CUTTING = re.compile(
    r"^(ReLU6?|(New|Fast|Quick)?GELU(Activation)?|GELUTanh|SiLU(Activation)?|Swish)$"
)
#: Of an embedding, the ids of so many calls per step are looked at.
_MOST_LOOKUPS = 16


class CallVitals:
    """Looks at the calls of embeddings and of activations.

    Attributes:
        tables: the embeddings, by name.
        cutting: the names of modules that cut off values below zero.
    """

    def __init__(self, modules: Modules, meter: Meter) -> None:
        self.tables = {
            name: module
            for name, module in modules.named.items()
            if isinstance(module, nn.Embedding)
        }
        self.cutting = {
            name for name, module in modules.named.items() if _CUTTING.match(type(module).__name__)
        }
        self._meter = meter
        # by module: which of its units have given something above zero, in any step
        self._alive: dict[str, torch.Tensor] = {}
        self.next_step()

    def next_step(self) -> None:
        self._idle: dict[str, Extrema] = {}
        self._lookups: dict[str, list[Extrema]] = {}

    def given(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An embedding is called: look at its ids."""
        if len(self._lookups.get(name, ())) >= _MOST_LOOKUPS:
            return
        ids = next(
            (value for _, value in arguments_of(args, kwargs) if isinstance(value, torch.Tensor)),
            None,
        )
        if (
            type(ids) is torch.Tensor
            and not torch._C._functorch.is_functorch_wrapped_tensor(ids)
            and ids.numel()
            and not ids.is_meta
        ):
            with torch.no_grad():
                self._lookups.setdefault(name, []).append(self._meter.later(*torch.aminmax(ids)))

    def gave(self, name: str, output: Any) -> None:
        """A cutting module's call is over: note which units gave something above zero."""
        if type(output) is not torch.Tensor or output.dim() < 2 or not output.numel():
            return
        with torch.no_grad():
            axis = 1 if output.dim() > 3 else -1
            above = (output.detach() > 0).transpose(axis, -1).flatten(0, -2).any(0)
            known = self._alive.get(name)
            self._alive[name] = (
                above if known is None or known.shape != above.shape else known | above
            )

    def end_step(self) -> None:
        with torch.no_grad():
            self._idle = {
                name: self._meter.later(1 - alive.float().mean())
                for name, alive in self._alive.items()
            }

    @property
    def idle(self) -> dict[str, float]:
        """By cutting module, the share of units that have given nothing above zero so far."""
        return {name: each.low for name, each in self._idle.items()}

    @property
    def lookups(self) -> list[Lookup]:
        """The smallest and the largest id that each embedding was given."""
        return [
            Lookup(
                name,
                self.tables[name].num_embeddings,
                number(min(each.low for each in ids)),
                number(max(each.high for each in ids)),
            )
            for name, ids in self._lookups.items()
        ]
