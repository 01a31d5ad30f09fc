"""Megatron's optimizers: they step copies or parts of parameters, and order their groups."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from accucompare.bundle.format import WAYS_OF_UPDATING
from accucompare.live.autograd import Parameter, stepped_by
from accucompare.live.values import Scalar, leaves
from accucompare.recorder.recording.main_grad import MAIN_PARAMETER

#: What tells Megatron's groups of parameters apart.
_OF_MEGATRON = ("wd_mult", "lr_mult", "is_expert_parallel", "is_decoupled_lr")


def stepped_instead(optimizer: Any, parameters: Mapping[int, Parameter]) -> dict[int, torch.Tensor]:
    """What an optimizer that steps none of the parameters steps in their place, by their ids."""
    given = stepped_by(optimizer)
    if given.keys() & parameters.keys():
        return {}
    found: dict[int, torch.Tensor] = {}
    copies = {
        id(copied): key
        for key, each in parameters.items()
        if (copied := getattr(each.tensor, MAIN_PARAMETER, None)) is not None
    }
    starts = sorted((each.tensor.data_ptr(), key) for key, each in parameters.items())
    for copied, tensor in given.items():
        at = bisect.bisect(starts, (tensor.data_ptr(), math.inf)) - 1
        key = copies.get(copied, starts[at][1] if at >= 0 else 0)
        own = parameters.get(key)
        if own is not None and (copied in copies or _shares(tensor, own.tensor)):
            found[key] = tensor
    return found


def numbers_of_groups(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """The numbers of an optimizer's parameter groups, by path: learning rates, betas and others."""
    for number, group in enumerate(_in_order(optimizer.param_groups)):
        options = {
            name: value
            for name, value in group.items()
            if name not in ("params", *WAYS_OF_UPDATING)
        }
        for path, value in leaves(options):
            if isinstance(value, (torch.Tensor, *Scalar)):
                yield f"{type(optimizer).__name__}.{number}.{path}", value


def _in_order(groups: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """An optimizer's groups; Megatron's ranks have theirs in orders of their own."""
    if not all(_OF_MEGATRON[0] in group for group in groups):
        return groups
    return sorted(groups, key=lambda group: [repr(group.get(name)) for name in _OF_MEGATRON])


def _shares(part: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether a flat tensor is part of a parameter's memory."""
    start = part.data_ptr() - whole.data_ptr()
    size = part.numel() * part.element_size()
    return part.dtype == whole.dtype and 0 <= start <= whole.nbytes - size
