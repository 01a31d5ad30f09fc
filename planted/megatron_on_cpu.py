"""What megatron-core lacks where there is no GPU: 0.12 and 0.16, without Transformer Engine."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Norm(nn.Module):
    """RMSNorm that says whether its weight's gradient is a term, as Megatron's fused ones do."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class _Stream:
    """On a CPU, all is done when it is asked for."""


def has_megatron() -> bool:
    return importlib.util.find_spec("megatron") is not None


def on_cpu() -> None:
    """Let megatron-core compute without a GPU: it names the device ``cuda`` in places."""
    if torch.cuda.is_available() or getattr(torch.cuda, "_megatron_on_cpu", False):
        return
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    cuda: Any = torch.cuda
    cuda._megatron_on_cpu = True
    cuda.current_device = lambda: "cpu"
    cuda.synchronize = lambda *args: None
    cuda.Stream = _Stream
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]

    def without_device(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("device") == "cuda":
                kwargs["device"] = "cpu"
            kwargs.pop("pin_memory", None)
            return make(*args, **kwargs)

        return made

    torch.zeros, torch.tensor = without_device(torch.zeros), without_device(torch.tensor)
    kind = torch.Tensor.type

    def as_on_gpu(self: Any, *args: Any, **kwargs: Any) -> Any:
        found: Any = kind(self, *args, **kwargs)
        if not isinstance(found, str):
            return found
        # its optimizers would refuse float64
        return found.replace("torch.", "torch.cuda.", 1).replace("Double", "Float")

    torch.Tensor.type = as_on_gpu  # type: ignore[method-assign]
    import megatron.core.tensor_parallel.random as random
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    random.CudaRNGStatesTracker.fork = lambda self, *args, **kwargs: contextlib.nullcontext()
    if not hasattr(moe_utils, "te_general_gemm"):  # 0.16.1 asks for it without having it
        moe_utils.te_general_gemm = None
    MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = _on_host
    import megatron.core.optimizer.distrib_optimizer as sharded

    if hasattr(sharded, "quantize_param_shard"):  # it asks for Transformer Engine without need
        sharded.quantize_param_shard = lambda *args, **kwargs: None


def _on_host(dispatcher: Any, point: str, tokens_per_expert: Any = None) -> Any:
    """In place of the copies to the host, which are made of tensors on a GPU alone."""
    for name in ("input_splits", "output_splits", "output_splits_tp"):
        held = getattr(dispatcher, name, None)
        if isinstance(held, torch.Tensor):
            setattr(dispatcher, name, held.numpy())
    return tokens_per_expert


def known_options(config: type, options: dict[str, Any]) -> dict[str, Any]:
    """The options that this release of megatron-core has; what it lacks, it does not do."""
    known = getattr(config, "__dataclass_fields__", {})
    return {name: value for name, value in options.items() if name in known}


def zigzag(length: int, parts: int, rank: int) -> torch.Tensor:
    """The tokens that a rank has of a sequence: a chunk from the front, and its mirror."""
    chunks = torch.arange(length).chunk(2 * parts)
    return torch.cat([chunks[rank], chunks[2 * parts - 1 - rank]])


@functools.cache
def context_attention() -> Any:
    """A class of attention over sequences that ranks share out.

    Megatron leaves that to Transformer Engine: its own attention refuses it. This one gathers keys
    and values, as ``cp_comm_type="all_gather"`` does there.
    """
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    class ContextAttention(DotProductAttention):  # type: ignore[misc]
        #: Whether the gradients of keys and values are summed over the ranks.
        sums_gradients = True

        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            config = copy.copy(config)
            config.context_parallel_size = 1  # else it refuses
            super().__init__(config, *args, **kwargs)

        def forward(self, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            whole = [self.whole(each) for each in (key, value)]
            return super().forward(query, *whole, *args, **kwargs)

        def whole(self, part: torch.Tensor) -> torch.Tensor:
            group = parallel_state.get_context_parallel_group()
            found: torch.Tensor = gather_from_sequence_parallel_region(
                part, self.sums_gradients, group
            )
            return found[self.order(len(found), group.size())].contiguous()

        def order(self, length: int, parts: int) -> torch.Tensor:
            """Where each token of the sequence lies among the gathered ones."""
            return torch.cat([zigzag(length, parts, rank) for rank in range(parts)]).argsort()

    return ContextAttention
