"""Where a parameter's gradient is: in ``grad``, or where Megatron keeps it."""

from __future__ import annotations

import torch

#: Where Megatron keeps gradients, instead of ``grad``.
MAIN_GRAD = "main_grad"
#: Where Megatron keeps the copy of a parameter, or of a part of it, that the optimizer steps.
MAIN_PARAMETER = "main_param"


def gradient_of(parameter: torch.Tensor) -> tuple[torch.Tensor | None, str]:
    """A parameter's gradient, and the attribute that holds it unless that is ``grad``."""
    if parameter.grad is None and isinstance(getattr(parameter, MAIN_GRAD, None), torch.Tensor):
        return getattr(parameter, MAIN_GRAD), MAIN_GRAD
    return parameter.grad, ""
