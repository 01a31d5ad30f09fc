"""Which process of a distributed run this is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accucompare.live.modules import Modules

#: The ends of the names of Megatron's functions for a rank's coordinates and their number, where
#: ``megatron.core`` is loaded.
_MEGATRON = {
    "tp": "tensor_model_parallel",
    "pp": "pipeline_model_parallel",
    "dp": "data_parallel",
    "cp": "context_parallel",
    "ep": "expert_model_parallel",
}
#: Namespaces of the operators that talk to other ranks.
_TALKING = ("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd")


class Dimensions:
    """The dimensions of parallelism by name: this rank's index along each, and how many ranks lie
    along it.

    ``unnamed``: what the only dimension of a mesh without names is called.
    """

    def __init__(self, unnamed: str = "dim 0") -> None:
        self._unnamed = unnamed
        self._names: dict[Any, tuple[str, ...]] = {}
        self._ranks: dict[str, Any] = {}  # what tells two dimensions of one name apart
        self._places: dict[str, tuple[int, int]] = {}

    @property
    def places(self) -> dict[str, tuple[int, int]]:
        """(index, number of ranks) of each, such as ``{"dp": (1, 2), "tp": (0, 2)}``."""
        return {**self._places}

    def names(self, mesh: Any) -> tuple[str, ...]:
        """The names of a ``DeviceMesh``'s dimensions, which are added if this rank is in it."""
        if mesh not in self._names:
            place, sizes = mesh.get_coordinate(), tuple(mesh.shape)
            plain = self._unnamed if len(sizes) == 1 else ""
            names = mesh.mesh_dim_names or tuple(
                plain or f"dim {number}" for number in range(len(sizes))
            )
            self._names[mesh] = tuple(
                str(name)
                if place is None
                else self.add(str(name), place[number], sizes[number], _along(mesh, number, place))
                for number, name in enumerate(names)
            )
        return self._names[mesh]

    def of_group(self, group: Any, name: str) -> str:
        """The name of the dimension along which a process group lies; ``name`` if it is new."""
        distributed = torch.distributed
        ranks = tuple(distributed.get_process_group_ranks(group))
        known = next((each for each, along in self._ranks.items() if along == ranks), None)
        return known or self.add(
            name, distributed.get_rank(group), distributed.get_world_size(group), ranks
        )

    def add(self, name: str, index: int, size: int, ranks: Any) -> str:
        """Add a dimension; returns its name, with a number if another one has that name."""
        number, free = 1, name
        while self._ranks.setdefault(free, ranks) != ranks:
            number += 1
            free = f"{name}#{number}"
        self._places[free] = int(index), int(size)
        return free


def _along(mesh: Any, dimension: int, place: Any) -> tuple[int, ...]:
    """The ranks along a mesh's dimension, of which this one is one."""
    where = tuple(
        slice(None) if number == dimension else index for number, index in enumerate(place)
    )
    return tuple(mesh.mesh[where].tolist())


def dimensions_of(modules: Modules, mesh: Any = None) -> Dimensions:
    """The dimensions of parallelism of a model, as far as its tensors or Megatron tell.

    Args:
        modules: if their parameters are DTensors, these know their meshes.
        mesh: a ``torch.distributed.device_mesh.DeviceMesh``, if the user has given one.
    """
    sharded = any(
        base.__name__ == "FSDPModule"
        for module in modules.named.values()
        for base in type(module).__mro__
    )
    found = Dimensions("fsdp" if sharded else "dim 0")
    for each in [mesh] if mesh is not None else _meshes(modules):
        found.names(each)
    state = sys.modules.get("megatron.core.parallel_state")
    if state is not None and not found.places:
        for name, function in _MEGATRON.items():
            index, size, group = (
                _ask(getattr(state, f"get_{function}_{what}", None))
                for what in ("rank", "world_size", "group")
            )
            if index is not None:
                # groups of one rank alone are all alike
                ranks = _ranks_of(group) if size != 1 else function
                found.add(name, index, index + 1 if size is None else size, ranks or function)
    return found


def coordinates(modules: Modules, mesh: Any = None) -> dict[str, int]:
    """This rank's place along each dimension, as ``dimensions_of`` finds them: ``{"dp": 1, "tp":
    0}``; empty without parallelism."""
    return {name: index for name, (index, _) in dimensions_of(modules, mesh).places.items()}


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


def is_of_mesh(tensor: Any) -> bool:
    """Whether a value is a ``DTensor``, which knows its layout."""
    known = ("device_mesh", "placements", "_local_tensor")
    return isinstance(tensor, torch.Tensor) and all(hasattr(tensor, name) for name in known)


def _meshes(modules: Modules) -> Any:
    tensors: Any = (tensor for *_, tensor in modules.tensors() if is_of_mesh(tensor))
    return (tensor.device_mesh for tensor in tensors)


def _ask(question: Callable[[], Any] | None) -> Any:
    """Megatron's answer; ``None`` if it is not initialised, or too old to know the axis."""
    try:
        return None if question is None else question()
    except (AssertionError, RuntimeError, TypeError):
        return None


def _ranks_of(group: Any) -> tuple[int, ...]:
    """The ranks of a process group; nothing where that is not known."""
    try:
        return tuple(torch.distributed.get_process_group_ranks(group))
    except (AttributeError, RuntimeError, TypeError, ValueError, KeyError):
        return ()
