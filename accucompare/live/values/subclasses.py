"""Tensor subclasses with plain data: MetaTensor of monai, tv_tensors of torchvision."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch


def is_plain_class(tensor: torch.Tensor) -> bool:
    """Whether a class keeps its data where torch does. DTensor does not, and has own dispatch."""
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def plainly() -> AbstractContextManager[Any]:
    """Within the context no code of a subclass runs: operators see and return plain tensors."""
    return torch._C.DisableTorchFunctionSubclass()


def dressed_as(like: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor in another's class, with its attributes. Call it inside ``plainly``."""
    if type(like) in (torch.Tensor, torch.nn.Parameter) or not is_plain_class(like):
        return tensor
    dressed = tensor.as_subclass(type(like))
    vars(dressed).update(vars(like))
    return dressed
