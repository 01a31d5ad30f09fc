"""Faults of what a module's forward leaves in its buffers, where its outputs stay as they are:
running statistics, and a codebook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from accucompare.bundle.format.records import Role
from planted.training_faults import TrainingFault, wrap

#: What may happen to what a forward leaves in a buffer: of what was there before it, and of what is
#: there after it.
_Wrong = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _other_weight(factor: float) -> _Wrong:
    """Multiplies what a moving average adds, as another momentum or decay would."""
    return lambda before, after: before + factor * (after - before)


#: By the buffer that a module has, the kinds of fault.
KINDS: dict[str, dict[str, _Wrong]] = {
    "running_mean": {
        "momentum 0.9 for 0.1": _other_weight(9.0),
        "running mean not updated": lambda before, after: before,
    },
    "running_var": {"running variance x 4": lambda before, after: 4.0 * after},
    "sums": {
        "decay 0.5 for 0.9": _other_weight(5.0),
        "codebook's sums not updated": lambda before, after: before,
    },
}


def faults_in(name: str, module: nn.Module) -> Iterator[TrainingFault]:
    """The faults that a module's own buffers can have."""
    for own, buffer in module.named_buffers(recurse=False):
        if buffer.is_floating_point():
            yield from (
                _of_buffer(name, own, kind, wrong) for kind, wrong in KINDS.get(own, {}).items()
            )


def _of_buffer(name: str, own: str, kind: str, wrong: _Wrong) -> TrainingFault:
    def plant(model: nn.Module) -> None:
        module = model.get_submodule(name)

        def around(forward: Callable[..., Any]) -> Callable[..., Any]:
            def faulty(*args: Any, **kwargs: Any) -> Any:
                buffer = module.get_buffer(own)
                before = buffer.detach().clone()
                output = forward(*args, **kwargs)
                # .data: a batch norm keeps its statistics for the backward
                buffer.data.copy_(wrong(before.double(), buffer.double()))
                return output

            return faulty

        wrap(module, around)

    return TrainingFault(name, "buffer", kind, plant, (Role.BUFFER_UPDATE,), own, certain=True)
