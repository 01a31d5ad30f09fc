"""An update, for the checklist: its rates, and what it did to a sample of each parameter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from accucompare.findings.log import Applied, Number, number
from accucompare.live.autograd import Parameter, stepped_by
from accucompare.numbers import Float64
from accucompare.watcher.looking import (
    Extrema,
    Meter,
    data_of,
    has_memory,
    is_small,
    known,
    sample_of,
)

#: What optimizers call the second moment.
_SECOND_MOMENT = "exp_avg_sq"


@dataclass(eq=False)
class UpdateVitals:
    """What is seen of the updates of one step."""

    count: int = 0
    updated: set[str] = field(default_factory=set)
    # by parameter group, the learning rate
    rates: dict[str, float | Extrema] = field(default_factory=dict)
    # by scheduler, what it had set when the first update began
    applied: dict[str, Applied] = field(default_factory=dict)
    # by parameter, the norm before the update
    weights: dict[str, Extrema] = field(default_factory=dict)
    # by parameter, the mean squares of a sample and of what was added to it
    sizes: dict[str, Extrema] = field(default_factory=dict)
    moved: dict[str, Extrema] = field(default_factory=dict)  # the share of that sample that changed
    # by parameter, the mean of a sample of it
    second_moments: dict[str, Extrema] = field(default_factory=dict)
    # samples of the parameters, before the running update
    before: dict[str, torch.Tensor] = field(default_factory=dict)
    # by optimizer, its small parameters and their values before, concatenated
    small: dict[int, tuple[list[Parameter], Float64]] = field(default_factory=dict)

    def begin(
        self, optimizer: Any, parameters: Sequence[Parameter], meter: Meter, closely: bool
    ) -> None:
        """An update begins. ``closely``: keep a sample of each parameter to compare with later."""
        self.count += 1
        for name, group in groups_of(optimizer):
            rate = group.get("lr")
            if isinstance(rate, torch.Tensor):
                self.rates[name] = meter.later(rate.detach().reshape(()))
            elif isinstance(rate, (int, float)):
                self.rates[name] = float(rate)
        held = stepped_by(optimizer)
        ours = [each for each in parameters if id(each.tensor) in held]
        self.updated |= {each.name for each in ours}
        if closely:
            having = [each for each in ours if has_memory(each.tensor)]
            self.weights |= dict(
                zip(
                    (each.name for each in having),
                    meter.norm([each.tensor for each in having]),
                    strict=True,
                )
            )
            small = [each for each in having if is_small(each.tensor)]
            self.small[id(optimizer)] = small, _together([each.tensor for each in small])
            with torch.no_grad():
                for each in having:
                    if not is_small(each.tensor) and (data := data_of(each.tensor)) is not None:
                        self.before[each.name] = sample_of(data).clone()

    def end(self, optimizer: Any, parameters: Sequence[Parameter], meter: Meter) -> None:
        """The update is over: compare the samples, and sample the second moment."""
        held = stepped_by(optimizer)
        self._end_small(optimizer)
        with torch.no_grad():
            for each in parameters:
                if (
                    id(each.tensor) not in held
                    or (before := self.before.pop(each.name, None)) is None
                ):
                    continue
                data = data_of(each.tensor)
                if data is None:
                    continue
                after = sample_of(data)
                moved = after != before
                # in float32, squares of small numbers are 0 and those of large ones infinite
                before = before.double()
                self.sizes[each.name] = meter.later(
                    before.square().mean(), (after.double() - before).square().mean()
                )
                self.moved[each.name] = meter.later(moved.float().mean())
                moment = _second_moment_of(optimizer, each.tensor)
                if moment is not None and (data := data_of(moment)) is not None:
                    self.second_moments[each.name] = meter.later(sample_of(data).double().mean())

    @np.errstate(all="ignore")  # what is no number, or too large for one, shows as such
    def _end_small(self, optimizer: Any) -> None:
        """The same for all small parameters at once, with all their values."""
        small, before = self.small.pop(id(optimizer), ([], np.zeros(0)))
        after = _together([each.tensor for each in small])
        if not small or before.shape != after.shape:
            return
        counts = [each.tensor.numel() for each in small]
        for each, size, added, moved in zip(
            small,
            _means(np.square(before), counts),
            _means(np.square(after - before), counts),
            _means(after != before, counts),
            strict=True,
        ):
            self.sizes[each.name], self.moved[each.name] = known(size, added), known(moved)
        moments = {each.name: _second_moment_of(optimizer, each.tensor) for each in small}
        having = {
            name: each for name, each in moments.items() if each is not None and is_small(each)
        }
        means = _means(_together(having.values()), [each.numel() for each in having.values()])
        self.second_moments |= {name: known(mean) for name, mean in zip(having, means, strict=True)}

    def lr(self) -> dict[str, Number]:
        """The learning rates, read."""
        return {
            name: number(rate.low if isinstance(rate, Extrema) else rate)
            for name, rate in self.rates.items()
        }

    def layers(self, names: Iterable[str]) -> dict[str, list[Number | None]]:
        """The columns of ``Vitals.layers`` but ``grad``, read; empty without a close look."""
        names = list(names)
        if not self.weights:
            return {}
        sizes = {
            name: (each.high / each.low) ** 0.5 for name, each in self.sizes.items() if each.low > 0
        }
        columns: dict[str, dict[str, float]] = {
            "weight": {name: each.low for name, each in self.weights.items()},
            "update": sizes,
            "moved": {name: each.low for name, each in self.moved.items()},
            "v": {name: each.low for name, each in self.second_moments.items()},
        }
        return {
            key: [number(found[name]) if name in found else None for name in names]
            for key, found in columns.items()
            if found
        }


def _together(tensors: Iterable[torch.Tensor]) -> Float64:
    """Small tensors, concatenated."""
    with torch.no_grad():
        flat = [each.reshape(-1) for each in tensors]
        return torch.cat(flat).double().numpy() if flat else np.zeros(0)


def _means(values: NDArray[Any], counts: Sequence[int]) -> list[float]:
    """The mean of each of several concatenated tensors."""
    if not counts:
        return []
    starts = np.cumsum([0, *counts[:-1]])
    sums = np.add.reduceat(values.astype(np.float64), starts)
    return (sums / counts).tolist()  # type: ignore[no-any-return]


def groups_of(optimizer: Any) -> list[tuple[str, dict[str, Any]]]:
    """An optimizer's parameter groups, by name: ``AdamW.0``."""
    return [
        (f"{type(optimizer).__name__}.{number}", group)
        for number, group in enumerate(optimizer.param_groups)
    ]


def steps_taken(optimizer: Any) -> int | None:
    """The most steps that an optimizer's state has for any parameter; ``None`` if it keeps no
    count.

    A count on a device is not read, since that would wait for it."""
    if not hasattr(optimizer, "state"):
        return None
    counts = [state.get("step") for state in optimizer.state.values() if isinstance(state, dict)]
    known = [
        int(each)
        for each in counts
        if isinstance(each, (int, float))
        or (isinstance(each, torch.Tensor) and each.device.type == "cpu")
    ]
    if known:
        return max(known)
    if not counts and type(optimizer).__name__.startswith(("Adam", "NAdam", "RAdam")):
        return 0
    return None


def _second_moment_of(optimizer: Any, parameter: torch.Tensor) -> torch.Tensor | None:
    state = optimizer.state.get(parameter, {}) if hasattr(optimizer, "state") else {}
    found = state.get(_SECOND_MOMENT)
    return found if isinstance(found, torch.Tensor) else None


def applied_by(schedulers: Iterable[tuple[str, Any]], optimizer: Any) -> dict[str, Applied]:
    """By scheduler, its number of steps and its rates; ``optimizer`` is updating."""
    found = {}
    for name, scheduler in schedulers:
        rates = getattr(scheduler, "_last_lr", None) or []
        rates = [
            number(float(rate))
            for rate in rates
            if not isinstance(rate, torch.Tensor) or rate.device.type == "cpu"
        ]
        found[name] = Applied(
            stepped(scheduler), rates, getattr(scheduler, "optimizer", optimizer) is optimizer
        )
    return found


def stepped(scheduler: Any) -> int:
    """How often a scheduler was stepped, without the step of its construction."""
    return int(getattr(scheduler, "last_epoch", 0))
