"""Which process of a distributed run this is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accucompare.live.modules import Modules

#: Megatron's functions for a rank's coordinates, where ``megatron.core`` is loaded.
_MEGATRON = {
    "tp": "get_tensor_model_parallel_rank",
    "pp": "get_pipeline_model_parallel_rank",
    "dp": "get_data_parallel_rank",
    "cp": "get_context_parallel_rank",
    "ep": "get_expert_model_parallel_rank",
}
#: Namespaces of the operators that talk to other ranks.
_TALKING = ("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd")


def coordinates(modules: Modules, mesh: Any = None) -> dict[str, int]:
    """This rank's place along each axis of parallelism, as far as it is known.

    Args:
        modules: if their parameters are DTensors, these know their mesh.
        mesh: a ``torch.distributed.device_mesh.DeviceMesh``, if the user has given one.

    Returns:
        For example ``{"dp": 1, "tp": 0}``; empty without parallelism.
    """
    mesh = mesh if mesh is not None else next(_meshes(modules), None)
    if mesh is not None:
        place = mesh.get_coordinate() or ()
        names = mesh.mesh_dim_names or tuple(f"axis {axis}" for axis in range(len(place)))
        return {str(name): int(index) for name, index in zip(names, place, strict=True)}
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None:
        return {}
    found = {axis: _ask(getattr(state, name, None)) for axis, name in _MEGATRON.items()}
    return {axis: rank for axis, rank in found.items() if rank is not None}


def has_sharded_parameters(modules: Modules) -> bool:
    """Whether a forward gathers parameters from other ranks."""
    wrapped = any(
        type(wrapper).__name__ == "FullyShardedDataParallel" for wrapper in modules.wrappers
    )
    return wrapped or next(_meshes(modules), None) is not None


def any_has(found: bool, device: torch.device) -> bool:
    """Whether any rank has found something: one reduction of one number, which waits for all ranks.

    Args:
        found: whether this rank has.
        device: where the model computes; the number goes there if the ranks cannot communicate on
            the CPU.
    """
    distributed = torch.distributed
    flag = torch.tensor(
        [int(found)], device="cpu" if "gloo" in distributed.get_backend() else device
    )
    distributed.all_reduce(flag, distributed.ReduceOp.MAX)
    return bool(flag.item())


def collectives() -> int | None:
    """How many collectives this process has begun with others; ``None`` if a group does not count.

    Costs a microsecond, and waits for no rank.
    """
    from torch.distributed import distributed_c10d

    try:
        groups: list[Any] = list(distributed_c10d._world.pg_map)
        return int(
            sum(group._get_sequence_number_for_group() for group in groups if group.size() > 1)
        )
    except (AttributeError, RuntimeError):
        return None


class TalksError(Exception):
    """An operator would have talked to other ranks, which may not answer."""


class _Silence(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(op, "namespace", "") in _TALKING and not _is_alone(args):
            raise TalksError(str(op))
        return op(*args, **(kwargs or {}))


def _is_alone(args: Any) -> bool:
    """Whether the group among these arguments has this rank alone."""
    from torch.distributed import distributed_c10d

    for each in args:
        if isinstance(each, torch.ScriptObject):
            return bool(torch.distributed.ProcessGroup.unbox(each).size() == 1)
        if isinstance(each, str) and (
            group := next(
                (one for one in distributed_c10d._world.pg_map if one.group_name == each), None
            )
        ):
            return bool(group.size() == 1)
    return False


def silence() -> contextlib.AbstractContextManager[Any]:
    """Within the context, operators that would wait for other ranks raise TalksError."""
    several = (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    )
    return _Silence() if several else contextlib.nullcontext()  # type: ignore[no-untyped-call]


def _meshes(modules: Modules) -> Any:
    return (
        tensor.device_mesh
        for *_, tensor in modules.tensors()
        if hasattr(tensor, "device_mesh") and isinstance(tensor, torch.Tensor)
    )


def _ask(question: Callable[[], int] | None) -> int | None:
    """Megatron's answer; ``None`` if it is not initialised, or too old to know the axis."""
    try:
        return None if question is None else int(question())
    except (AssertionError, RuntimeError, TypeError):
        return None
