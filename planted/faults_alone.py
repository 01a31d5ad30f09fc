"""One module alone on golden's inputs: how large a fault is beside the rounding of its module,
measured without accucompare.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

#: How many times as large as rounding a fault's change must be, to be counted among those that can
#: be named.
RISES = 4.0
#: The unit roundoff of a type; the relative L2 error of rounding alone is a little less than half
#: of it.
ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}


@dataclass(frozen=True)
class Call:
    """What one call of a module was given."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def calls_of(model: nn.Module, inputs: dict[str, Any]) -> dict[str, list[Call]]:
    """Every module's calls in one forward, by qualified name, with copies of what they were
    given."""
    calls: dict[str, list[Call]] = {}
    handles = []
    for name, module in model.named_modules():

        def note(module: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            calls.setdefault(name, []).append(Call(*_converted((args, kwargs))))

        handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
    with torch.no_grad():
        model(**_converted(inputs))
    for handle in handles:
        handle.remove()
    return calls


def rise(
    module: nn.Module,
    call: Call,
    plant: Callable[[nn.Module], None],
    dtype: torch.dtype,
    times: int,
) -> float:
    """A fault's change to what a module makes, as a multiple of the module's own rounding error in
    a dtype.

    The module is run alone in float64 without and with its fault, and in the dtype without. What it
    makes is what it gives to its children and what it returns; the children are not run again, but
    answer what they did at first. The change and the rounding error are relative L2 errors of one
    tensor, and the largest quotient counts.

    Args:
        module: in the dtype, without the fault; it is copied.
        call: golden's, in float64.
        plant: puts the fault into a module.
        times: how often to call it; what it makes in its last call counts.
    """
    answers: list[Any] = []
    right = _made(copy.deepcopy(module).double(), call, answers, times=1)
    rounded = _made(
        copy.deepcopy(module),
        Call(*_converted((call.args, call.kwargs), dtype)),
        answers,
        times=1,
        dtype=dtype,
    )
    faulty = copy.deepcopy(module)
    plant(faulty)
    wrong = _made(faulty.double(), call, answers, times)
    if len(wrong) != len(right):
        return float("inf")
    quotients = [
        _distance(bad, good) / max(_distance(cast, good), ROUNDOFF[dtype] / 2)
        for good, cast, bad in zip(right, rounded, wrong, strict=True)
    ]
    return max(quotients, default=0.0)


def _made(
    module: nn.Module, call: Call, answers: list[Any], times: int, dtype: torch.dtype | None = None
) -> list[torch.Tensor]:
    """The tensors that a module gives to its children and returns. Without ``answers``, the
    children run and theirs are noted there.
    """
    made: list[torch.Tensor] = []
    noting = not answers
    replies: Iterator[Any] = iter(())
    depth = 0

    def stand_in(right: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            if depth == 0:
                made.extend(_tensors((args, kwargs)))
                if not noting:
                    return _converted(next(replies), dtype)
            depth += 1
            try:
                output = right(*args, **kwargs)
            finally:
                depth -= 1
            if depth == 0:
                answers.append(_converted(output, None))
            return output

        return forward

    for child in module.modules():
        if child is not module:
            child.forward = stand_in(child.forward)
    with torch.no_grad():
        for _ in range(times):
            made.clear()
            replies = iter(answers)
            given = _converted((call.args, call.kwargs), dtype)
            output = module.forward(*given[0], **given[1])
    made.extend(_tensors(output))
    return made


def _tensors(value: Any) -> list[torch.Tensor]:
    return [
        leaf.detach().clone()
        for leaf in pytree.tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
    ]


def _converted(value: Any, dtype: torch.dtype | None = None) -> Any:
    """Copies, floating tensors cast to a dtype if one is given."""
    return pytree.tree_map_only(
        torch.Tensor,
        lambda tensor: tensor.detach().to(dtype if tensor.is_floating_point() else None, copy=True),
        value,
    )


def _distance(wrong: torch.Tensor, right: torch.Tensor) -> float:
    """Relative L2; infinite masks agree with each other where they are infinite."""
    if wrong.shape != right.shape:
        return float("inf")
    left, other = (
        tensor.double().nan_to_num(0, 1e30, -1e30).clamp(-1e30, 1e30) for tensor in (wrong, right)
    )
    norm = other.norm().item()
    distance = (left - other).norm().item()
    return distance / norm if norm else float("inf") if distance else 0.0
