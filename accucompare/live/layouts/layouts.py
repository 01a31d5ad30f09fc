"""How a model's tensors lie on its ranks, as far as one rank can see without asking the others."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from accucompare.bundle.format import Role, Shard
from accucompare.errors import UsageError
from accucompare.live.around import Dimensions, dimensions_of, is_of_mesh
from accucompare.live.layouts.awaited import Awaited
from accucompare.live.layouts.megatron import cut_values, flat_part, kept_parts, megatron_parts
from accucompare.live.modules import Modules
from accucompare.live.operators import entrances
from accucompare.live.values import local_part

_PLAIN = (torch.Tensor, torch.nn.Parameter)

#: A run of indices along one dimension: the first, and how many.
_Run = tuple[int, int]


class Layouts:
    """The layouts of one rank's tensors, by what PyTorch knows of them.

    A ``DTensor`` has its own. A plain tensor that ``to_local`` has made of one is known as long as
    it lives. The parameters of FSDP1 are parts of a flat one. Megatron's say how they are cut.

    Attributes:
        dimensions: of parallelism.
        has_placements: whether calls may take or give tensors that know their layout.
        notes: sentences for the manifest, on parameters whose layout cannot be known.
        awaited: the tensors that an asynchronous collective is still to fill.
    """

    def __init__(self, modules: Modules) -> None:
        self.awaited = Awaited()
        self.dimensions = dimensions_of(modules)
        self.has_placements = any(is_of_mesh(tensor) for *_, tensor in modules.tensors())
        self._known: dict[Any, Shard | None] = {}
        # plain tensors: what gives the layouts of their values, and of their gradients
        self._local: Any = WeakTensorKeyDictionary()
        # of plain parameters, by their ids
        self._parts: dict[int, Shard | None] = {
            id(parameter): shard
            for wrapper in modules.wrappers
            for parameter, shard in _parts_of_flat(wrapper, _groups_of(wrapper, self.dimensions))
        }
        self._parts |= {
            id(parameter): shard for parameter, shard in megatron_parts(modules, self.dimensions)
        }
        self._cut = cut_values(modules, self._parts)
        # what a distributed optimizer of Megatron's steps here of a parameter, by its id
        self._kept = {
            id(parameter): (start, count, names)
            for wrapper in modules.wrappers
            for parameter, start, count, names in kept_parts(wrapper, self.dimensions)
        }
        self._library = _library()
        flattened = sum(_is_flattened(wrapper) for wrapper in modules.wrappers)
        self.notes = (
            [
                f"{flattened} module(s) have their parameters as one flat tensor (FSDP with"
                " use_orig_params=False): they are recorded so, and cannot be compared with those"
                " of another layout; give use_orig_params=True"
            ]
            if flattened
            else []
        )

    @classmethod
    def of_model(cls, modules: Modules) -> Layouts | None:
        """``None`` if this process computes alone. UsageError if it computes for all ranks."""
        local = sys.modules.get("torch.distributed._local_tensor")  # torch imports it at need
        if local is not None and local.local_tensor_mode() is not None:
            raise UsageError(
                "LocalTensorMode computes for several ranks in one process, and a capture writes"
                " what one rank computes: start a process for each rank (torchrun"
                " --nproc-per-node N; gloo needs no GPU)"
            )
        distributed = torch.distributed
        several = distributed.is_available() and distributed.is_initialized()
        return cls(modules) if several else None

    def install(self) -> None:
        self.awaited.install()
        if self._library is not None:
            entrances.observe_function(self._library.DTensor, "to_local", self._localizes)

    def remove(self) -> None:
        self.awaited.remove()
        if self._library is not None:
            entrances.observe_function_no_more(self._library.DTensor, "to_local", self._localizes)

    def of(self, tensor: Any) -> Shard | None:
        """The layout of a tensor's part on this rank; ``None`` where it cannot be known."""
        if type(tensor) not in _PLAIN and is_of_mesh(tensor):
            return self._of(
                tensor.shape, tensor.device_mesh, tensor.placements, tensor._local_tensor.shape
            )
        known = self._local.get(tensor)
        return None if known is None else known[0]()

    def of_value(self, module: Any, role: Role, path: str, value: torch.Tensor) -> Shard | None:
        """The layout of what one of Megatron's layers takes or makes."""
        cut = self._cut.get((module, role))
        if cut is None or (cut.path is not None and path not in ("", cut.path)):
            return None
        return cut.layout(tuple(value.shape))

    def of_gradient(self, tensor: torch.Tensor) -> Shard | None:
        """How a plain gradient of this plain tensor lies, as the backward of ``to_local`` takes it;
        ``None`` where it cannot be known."""
        known = self._local.get(tensor)
        return None if known is None else known[1]()

    def of_parameter(self, parameter: torch.Tensor, value: torch.Tensor) -> Shard | None:
        """The layout of a value that an update takes or makes of a parameter: of its gradient, its
        state, its difference."""
        found = self.of(value)
        if found is None and (part := self._parts.get(id(parameter))) is not None:
            return part if value.shape == parameter.shape else None
        return found

    def has_none_of(self, parameter: torch.Tensor) -> bool:
        """Whether all of a parameter is on other ranks; FSDP1 gives such a part no gradient."""
        return id(parameter) in self._parts and not parameter.numel()

    def stepped(self, parameter: torch.Tensor) -> int | None:
        """How many elements of a parameter an optimizer steps on this rank, if not all of them."""
        return self._kept[id(parameter)][1] if id(parameter) in self._kept else None

    def steps_instead(self, tensor: torch.Tensor, parameter: torch.Tensor) -> None:
        """An optimizer steps a tensor in place of a parameter, or of those elements of it."""
        part, local = self._parts.get(id(parameter)), tuple(parameter.shape)
        kept = self._kept.get(id(parameter))
        if kept is not None:
            part = flat_part(part, local, *kept)
        elif tensor.shape != local:
            part = None
        self._parts[id(tensor)] = part

    def of_weight(self, tensor: torch.Tensor) -> Shard | None:
        """The layout of a parameter or buffer."""
        return self.of_parameter(tensor, tensor)

    def keep(self, tensor: torch.Tensor, like: torch.Tensor) -> None:
        """Note that a plain tensor is the local part of ``like``, if it is and nobody noted it."""
        if type(tensor) is not torch.Tensor or tensor in self._local:
            return
        local = local_part(like)
        if (tensor.data_ptr(), tensor.shape, tensor.stride()) == (
            local.data_ptr(),
            local.shape,
            local.stride(),
        ):
            self._note(tensor, like, None)

    def _localizes(
        self, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Any], None]:
        """``to_local`` is called."""
        gradient = args[1] if len(args) > 1 else kwargs.get("grad_placements")
        return functools.partial(self._note, like=args[0], gradient=gradient)

    def _note(self, tensor: Any, like: Any, gradient: Sequence[Any] | None) -> None:
        if not isinstance(tensor, torch.Tensor):
            return
        shape, mesh, placements = like.shape, like.device_mesh, like.placements
        taken = tuple(
            self._library.Replicate() if each.is_partial() and gradient is None else each
            for each in (placements if gradient is None else gradient)
        )
        self._local[tensor] = tuple(
            functools.partial(self._of, shape, mesh, each, tensor.shape)
            for each in (placements, taken)
        )

    def _of(self, shape: torch.Size, mesh: Any, placements: Any, part: torch.Size) -> Shard | None:
        """The layout, unless this rank's part has another shape than it should have."""
        key = shape, mesh, placements, part
        if key not in self._known:
            self._known[key] = placed_part(
                shape, mesh, placements, self.dimensions.names(mesh), part
            )
        return self._known[key]


def _library() -> Any:
    """PyTorch's module of distributed tensors, if it is loaded."""
    for name in ("torch.distributed.tensor", "torch.distributed._tensor"):
        if hasattr(sys.modules.get(name), "DTensor"):
            return sys.modules[name]
    return None


def placed_part(
    shape: torch.Size,
    mesh: Any,
    placements: Iterable[Any],
    names: tuple[str, ...],
    part: torch.Size,
) -> Shard | None:
    """The layout of this rank's part; ``None`` if the rank is outside the mesh, the layout is of a
    kind that no record can hold, or the part has another shape."""
    place = mesh.get_coordinate()
    if place is None:
        return None
    runs: list[list[_Run]] = [[(0, length)] for length in shape]
    partial, over = "", []
    for name, index, count, placement in zip(names, place, mesh.shape, placements, strict=True):
        if placement.is_partial():
            kind = _reduction(placement)
            if partial not in ("", kind):
                return None
            partial = kind
            over.append(name)
        elif not placement.is_replicate():
            runs[placement.dim] = _cut(
                runs[placement.dim], int(getattr(placement, "split_factor", 1)), count, index
            )
    if tuple(sum(count for _, count in each) for each in runs) != tuple(part):
        return None
    return Shard(
        tuple(shape),
        tuple(each[0][0] if each else 0 for each in runs),
        partial,
        tuple(over),
        names,
        tuple(map(tuple, runs)) if any(len(each) > 1 for each in runs) else (),
    )


def _cut(runs: list[_Run], factor: int, count: int, index: int) -> list[_Run]:
    """What one of ``count`` ranks gets of some runs of indices, as ``torch.chunk`` shares them out;
    of each of ``factor`` chunks, if that is not 1."""
    found: list[_Run] = []
    for piece in _chunks(runs, factor) if factor > 1 else [runs]:
        chunks = _chunks(piece, count)
        found += chunks[index] if index < len(chunks) else []
    return _joined(found)


def _chunks(runs: list[_Run], count: int) -> list[list[_Run]]:
    total = sum(length for _, length in runs)
    each = -(-total // count)
    return [_between(runs, start, start + each) for start in range(0, total, max(each, 1))]


def _between(runs: list[_Run], start: int, end: int) -> list[_Run]:
    """The indices from the ``start``-th to the ``end``-th of some runs."""
    found, position = [], 0
    for first, length in runs:
        low, high = max(start - position, 0), min(end - position, length)
        if low < high:
            found.append((first + low, high - low))
        position += length
    return found


def _joined(runs: list[_Run]) -> list[_Run]:
    """Runs of which none begins where the last one ends."""
    found: list[_Run] = []
    for first, length in runs:
        if found and sum(found[-1]) == first:
            found[-1] = found[-1][0], found[-1][1] + length
        else:
            found.append((first, length))
    return found


def _reduction(placement: Any) -> str:
    """A partial placement's reduction; the class's name where the terms are not its values."""
    plain = type(placement).__name__ == "Partial"
    return str(placement.reduce_op) if plain else type(placement).__name__


def _groups_of(wrapper: Any, dimensions: Dimensions) -> tuple[str, ...]:
    """The dimensions along which DDP or FSDP1 shares out rows and parameters."""
    group = getattr(wrapper, "process_group", None)
    if group is None:
        return ()
    replicas = getattr(wrapper, "_inter_node_pg", None)  # of FSDP1's hybrid strategies
    if replicas is None:
        return (dimensions.of_group(group, "dp"),)
    return (dimensions.of_group(replicas, "dp_replicate"), dimensions.of_group(group, "dp_shard"))


def _parts_of_flat(wrapper: Any, names: tuple[str, ...]) -> Iterable[tuple[torch.Tensor, Shard]]:
    """FSDP1's parameters (``use_orig_params``), each with its place: they are cut as one flat
    tensor; else that tensor."""
    flat = getattr(wrapper, "_flat_param", None)
    parameters = getattr(flat, "_params", None)
    infos = getattr(flat, "_shard_param_infos", None)
    whole = getattr(getattr(wrapper, "sharding_strategy", None), "name", "") == "NO_SHARD"
    if flat is None or infos is None or whole:
        return
    if parameters is None:
        each, handle = flat.numel(), wrapper._handle
        yield flat, Shard((each * handle.world_size,), (each * handle.rank,), mesh=names)
        return
    for parameter, shape, info in zip(parameters, flat._shapes, infos, strict=True):
        if parameter.dim() == 1 and parameter.numel() == (info.numel_in_shard or 0):
            start = int(info.intra_param_start_idx or 0)
            yield parameter, Shard(tuple(shape), (start,), mesh=names, flat=True)


def _is_flattened(wrapper: Any) -> bool:
    """Whether FSDP1 keeps a module's parameters as one flat tensor, and as nothing else."""
    flat = getattr(wrapper, "_flat_param", None)
    return flat is not None and getattr(flat, "_params", None) is None
