"""What Megatron's models say of their layouts: by attributes, and by ``sharded_state_dict``."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from accucompare.bundle.format import Role, Shard
from accucompare.live.around import Dimensions, silence
from accucompare.live.modules import Modules

#: The dimension along which parameters are cut.
_TENSOR = "tp"
#: Of a layer, by part of its class's name, the axis of its weight that is cut; and what is cut
#: likewise.
_LAYERS = {"ColumnParallel": 0, "RowParallel": 1}
_CUT = {0: (Role.OUTPUT, Role.GRAD_OUTPUT), 1: (Role.INPUT, Role.GRAD_INPUT)}
#: The most runs of a whole tensor that a rank's elements may be.
_MOST_RUNS = 4096

#: A run of indices: the first, and how many.
_Run = tuple[int, int]


def megatron_parts(
    modules: Modules, dimensions: Dimensions
) -> Iterator[tuple[torch.Tensor, Shard]]:
    """The parameters that are cut, each with this rank's part."""
    rank, ranks = dimensions.places.get(_TENSOR, (0, 1))
    if ranks == 1:
        return
    stated = _stated(modules.named[""])
    whole = {
        id(parameter)
        for module in modules.named.values()
        if _holds_whole(module)
        for parameter in module._parameters.values()
    }
    for _, name, tensor in modules.tensors():
        local = tuple(tensor.shape)
        found = _of_stated(stated[name], local) if name in stated else None
        cut = getattr(tensor, "tensor_model_parallel", False) and id(tensor) not in whole
        if found is None and cut:
            found = _of_attributes(tensor, rank, ranks)
        if found is not None and found.shape != local and found.holds(local):
            yield tensor, found


def _holds_whole(module: Any) -> bool:
    """Whether a layer's weight is not cut, though its class cuts weights: experts may be whole
    where other layers are not (``expert_tensor_parallel_size``)."""
    for axis in ("input", "output"):
        part = getattr(module, f"{axis}_size_per_partition", None)
        if part is not None and part == getattr(module, f"{axis}_size", None):
            return True
    return False


def _stated(model: Any) -> dict[str, Any]:
    """What a model says of its checkpoint; nothing if it has no such method, or talks to others."""
    tell = getattr(model, "sharded_state_dict", None)
    found: Any = {}
    with contextlib.suppress(Exception), silence(), torch.no_grad():
        found = {} if tell is None else tell()
    return found if isinstance(found, dict) else {}


def _of_stated(entry: Any, local: tuple[int, ...]) -> Shard | None:
    """The layout that an entry of ``sharded_state_dict`` states; fused layers are several."""
    pieces = [entry]
    if hasattr(entry, "build"):
        with contextlib.suppress(Exception):
            built = entry.build()
            pieces = [*built.values()] if isinstance(built, dict) else [*built]
    runs: list[list[_Run]] = [[] for _ in local]
    shapes = set()
    for piece in pieces:
        if not hasattr(piece, "global_offset") or getattr(piece, "flattened_range", None):
            return None
        before = int(getattr(piece, "prepend_axis_num", 0))  # layers, experts
        shapes.add(tuple(piece.global_shape[before:]))
        edges = zip(piece.global_offset[before:], piece.local_shape, strict=False)
        for axis, run in zip(runs, edges, strict=False):
            if run not in axis:
                axis.append((int(run[0]), int(run[1])))
    if len(shapes) != 1 or any(
        sum(count for _, count in axis) != length for axis, length in zip(runs, local, strict=True)
    ):
        return None
    return _shard(shapes.pop(), runs)


def _of_attributes(tensor: Any, rank: int, ranks: int) -> Shard | None:
    """The layout by ``partition_dim`` and ``partition_stride``."""
    dim, stride = getattr(tensor, "partition_dim", -1), getattr(tensor, "partition_stride", 1)
    if not 0 <= dim < tensor.dim() or tensor.shape[dim] % stride:
        return None
    each = tensor.shape[dim] // stride
    runs = [[(0, length)] for length in tensor.shape]
    runs[dim] = [((number * ranks + rank) * each, each) for number in range(stride)]
    shape = [*tensor.shape]
    shape[dim] *= ranks
    return _shard(tuple(shape), runs)


def _shard(shape: tuple[int, ...], runs: Sequence[Sequence[_Run]]) -> Shard:
    several = any(len(axis) > 1 for axis in runs)
    start = tuple(axis[0][0] for axis in runs)
    return Shard(shape, start, mesh=(_TENSOR,), runs=tuple(map(tuple, runs)) if several else ())


class CutValue(NamedTuple):
    """How a layer's value is cut."""

    path: str | None  # of the value; ``None`` for each
    length: int = 0  # of the last axis of the whole; 0 for the value's own
    runs: tuple[_Run, ...] = ()  # of that axis, that this rank has
    partial: bool = False  # whether this rank has its term of a sum instead

    def layout(self, local: tuple[int, ...]) -> Shard | None:
        """The layout of a value of this shape; ``None`` if it is not so long."""
        if self.partial:
            start = (0,) * len(local)
            return Shard(local, start, "sum", (_TENSOR,), (_TENSOR,))
        if not local or sum(count for _, count in self.runs) != local[-1]:
            return None
        edges = [[(0, length)] for length in local[:-1]]
        return _shard((*local[:-1], self.length), [*edges, self.runs])


def cut_values(
    modules: Modules, parts: Mapping[int, Shard | None]
) -> dict[tuple[Any, Role], CutValue]:
    """What layers make and take that is cut as their weight is, or is a term.

    The layers of experts leave the sum over ranks to the one that holds them all. ``parts``: of
    parameters, by their ids."""
    found: dict[tuple[Any, Role], CutValue] = {}
    for name, module in modules.named.items():
        kind, weight = type(module).__name__, module._parameters.get("weight")
        shard = parts.get(id(weight))
        axis = next((axis for part, axis in _LAYERS.items() if part in kind), None)
        if weight is None or shard is None or axis is None or weight.dim() != 2:
            continue
        length = weight.shape[axis]
        if length != shard.shape[axis]:
            runs = shard.runs[axis] if shard.runs else ((shard.start[axis], length),)
            for role in _CUT[axis]:
                found[module, role] = CutValue("0", shard.shape[axis], tuple(runs))
        if getattr(module, "explicit_expert_comm", False):
            found[module, Role.OUTPUT if axis else Role.GRAD_INPUT] = CutValue(None, partial=True)
            outer = name.rpartition(".")[0]
            while outer and not hasattr(modules.named[outer], "token_dispatcher"):
                for role in (Role.OUTPUT, Role.GRAD_INPUT):
                    found[modules.named[outer], role] = CutValue(None, partial=True)
                outer = outer.rpartition(".")[0]
    return found


def kept_parts(
    wrapper: Any, dimensions: Dimensions
) -> Iterator[tuple[torch.Tensor, int, int, tuple[str, ...]]]:
    """Parameters of Megatron's DDP under a distributed optimizer: the first element that this rank
    updates, how many, and the dimensions among which they are shared out."""
    options = getattr(wrapper, "ddp_config", None)
    if not getattr(options, "use_distributed_optimizer", False):
        return
    held: Any = vars(wrapper)
    for buffer in (*held.get("buffers", ()), *held.get("expert_parallel_buffers", ())):
        group = buffer.data_parallel_group
        name = dimensions.of_group(group, "dp")
        for bucket in buffer.buckets:
            each = bucket.grad_data.numel() // group.size()
            first = bucket.offset + group.rank() * each
            for parameter in bucket.params:
                begin, end, *_ = buffer.param_index_map[parameter]
                start, stop = max(begin, first), min(end, first + each)
                yield parameter, start - begin, max(stop - start, 0), (name,)


def flat_part(
    shard: Shard | None, local: tuple[int, ...], start: int, count: int, names: tuple[str, ...]
) -> Shard | None:
    """Where some elements of a rank's part, in row-major order, lie in the whole.

    Args:
        shard: of the rank's part, of shape ``local``; ``None`` if it is whole.
        names: of the dimensions among which the elements are shared out.
    """
    if shard is None:
        return Shard(local, (start,), mesh=names, flat=True)
    whole = shard.shape
    edges = shard.runs or tuple(
        ((first, length),) for first, length in zip(shard.start, local, strict=True)
    )
    axis = next((each for each in range(len(local)) if local[each] != whole[each]), 0)
    below = math.prod(whole[axis + 1 :])
    lines = math.prod(local[:axis])
    if lines * len(edges[axis]) > _MOST_RUNS or local[axis + 1 :] != whole[axis + 1 :]:
        return None
    runs: list[_Run] = []
    position = 0
    for line, (first, length) in itertools.product(range(lines), edges[axis]):
        size = length * below
        low, high = max(start - position, 0), min(start + count - position, size)
        if low < high:
            runs.append(((line * whole[axis] + first) * below + low, high - low))
        position += size
    return Shard(
        whole,
        (runs[0][0],) if runs else (0,),
        mesh=(*shard.mesh, *names),
        runs=(tuple(runs),) if len(runs) > 1 else (),
        flat=True,
    )
