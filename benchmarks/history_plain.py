"""Computes a case by plain torch, without hooks: ``python -m benchmarks.history_plain CASE OUT
[FROM]``; and compares two such results.

This proves that a refactor is no bug, and finds the first step in which two releases differ,
without the tool that is tried.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from accucompare.case import Case, load_case, steps_of

#: How far a refactor's numbers may be apart, as relative L2 errors: in float32 sums in another
#: order make up to 2.2e-4 of a batch norm's gradient, which nearly cancels. And how far those of
#: a bug are at least in its first step: 2.5e-4 is the smallest, and before it is none.
OF_A_REFACTOR, OF_A_BUG = 1e-3, 1e-5

Steps = list[dict[str, torch.Tensor]]


def main() -> None:
    target, out, *known = sys.argv[1:]
    torch.manual_seed(0)
    case, _ = load_case(target)
    if known:
        case.model.load_state_dict(torch.load(known[0])["state"], strict=False)
    save(case, Path(out))


def save(case: Case, out: Path) -> None:
    """Compute a case and save what it starts from, and what each step gives and leaves behind."""
    state = {name: tensor.clone() for name, tensor in case.model.state_dict().items()}
    torch.save({"state": state, "steps": list(_steps(case))}, out)


def first_difference(golden: Path, candidate: Path, apart: float) -> tuple[int, str] | None:
    """The first step in which two cases are further apart than that, and in what; ``None`` if none
    is.
    """
    ours, theirs = (_load(path) for path in (golden, candidate))
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        for name in one.keys() & other.keys():
            if _error(one[name], other[name]) > apart:
                return number, name
        if missing := sorted(
            name for name in one.keys() ^ other.keys() if _is_lost(name, one, other)
        ):
            return number, missing[0]
    return None


def _load(path: Path) -> Steps:
    steps: Steps = torch.load(path)["steps"]
    return steps


def _steps(case: Case) -> Iterator[dict[str, torch.Tensor]]:
    """By step: the first tensor of the output, the loss, and each gradient, parameter, buffer and
    state of the optimizer.
    """
    for args, kwargs in steps_of(case.inputs):
        with torch.set_grad_enabled(case.loss is not None):
            output = case.model(*args, **kwargs)
        found = {
            "output": next(
                leaf
                for leaf in pytree.tree_leaves(_plain(output))
                if isinstance(leaf, torch.Tensor)
            )
        }
        if case.loss is not None:
            found["loss"] = case.loss(output)
            found["loss"].backward()  # type: ignore[no-untyped-call]
            found |= {
                f"gradient of {name}": each.grad
                for name, each in case.model.named_parameters()
                if each.grad is not None
            }
        yield {name: tensor.detach().clone() for name, tensor in {**found, **_left(case)}.items()}


def _left(case: Case) -> dict[str, torch.Tensor]:
    """What a step leaves behind."""
    found = {f"buffer {name}": each for name, each in case.model.named_buffers()}
    if case.optimizer is not None:
        case.optimizer.step()
        if case.scheduler is not None:
            case.scheduler.step()
        case.optimizer.zero_grad()
        for name, parameter in case.model.named_parameters():
            found[f"parameter {name}"] = parameter
            state = case.optimizer.state.get(parameter, {})
            found |= {
                f"state of {name}, {key}": each
                for key, each in state.items()
                if isinstance(each, torch.Tensor)
            }
    return found


def _is_lost(name: str, *sides: dict[str, torch.Tensor]) -> bool:
    """Whether a gradient is missing of a parameter that both sides have."""
    kind, _, parameter = name.partition("gradient of ")
    return not kind and all(f"parameter {parameter}" in side for side in sides)


def _plain(output: Any) -> Any:
    return (
        tuple(output.values())
        if hasattr(output, "values") and not isinstance(output, torch.Tensor)
        else output
    )


def _error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The relative L2 error; of another shape, of NaN, and of anything beside zeros, infinite."""
    if ours.shape != theirs.shape:
        return float("inf")
    one, other = ours.double(), theirs.double()
    distance, size = float((one - other).norm()), float(one.norm())
    return 0.0 if not distance else distance / size if size else float("inf")


if __name__ == "__main__":
    main()
