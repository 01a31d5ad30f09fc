"""Nested tensors (tensors of different lengths in one): joined into one tensor, and rebuilt."""

from __future__ import annotations

import math

import torch

Shapes = tuple[tuple[int, ...], ...]


def joined(tensor: torch.Tensor) -> tuple[torch.Tensor, Shapes]:
    """A nested tensor's values in one tensor, and the shapes of its components.

    The components are joined along their first dimension; flattened, if other dimensions differ.
    """
    components = tensor.detach().unbind()
    shapes = tuple(tuple(each.shape) for each in components)
    if not components:
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device), ()
    if len({(len(shape), shape[1:]) for shape in shapes}) > 1 or not shapes[0]:
        components = tuple(each.reshape(-1) for each in components)
    return torch.cat(components), shapes


def shapes_of(tensor: torch.Tensor) -> Shapes:
    return tuple(tuple(each.shape) for each in tensor.detach().unbind())


def like(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A nested tensor like another, with other values.

    Args:
        tensor: has the layout, the components' shapes, dtype and device.
        values: as ``joined`` returns them, on any device.
    """
    copy: torch.Tensor = tensor.detach().clone()
    components = copy.unbind()  # views
    pieces = torch.split(values.reshape(-1), [math.prod(each.shape) for each in components])
    for component, piece in zip(components, pieces, strict=True):
        component.copy_(piece.view(component.shape))
    return copy
