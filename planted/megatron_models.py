"""megatron-core's own GPT on gloo and CPU, built, spread and trained as Megatron's scripts do."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from fixtures.parallel import GROUPS, HEADS, LENGTH, VOCABULARY, WIDTH, Layout

#: Of one layer of the MLP; gate and up are fused, and have twice as many.
_INNER = 24
#: Rows of the embedding: the vocabulary, padded to a multiple of 2 for each rank; 32 on 2 ranks.
_MULTIPLE = 2
#: Rows of one microbatch.
_MICRO = 2
_LAYERS = 2

#: Those that Megatron has made for the training that runs.
_GROUPS: list[Any] = []


@dataclass(frozen=True)
class MegatronLayout(Layout):
    """How Megatron's training is spread; its mesh has ``tp``, ``pp`` and ``dp``.

    Attributes:
        sequence: whether what is outside of attention and MLP is cut along the sequence.
        experts: of each layer's mixture; a plain MLP if 0.
        sharded: whether the optimizer is the distributed one.
        changes: to the model's configuration.
        per_token: whether the loss is the mean over all tokens, or that of the microbatches' means.
    """

    sequence: bool = False
    experts: int = 0
    sharded: bool = False
    changes: dict[str, Any] = field(default_factory=dict)
    per_token: bool = True

    @property
    def one(self) -> str:
        """The layout on one device."""
        if self.changes:
            return "megatron_gate_one"
        return "megatron_moe_one" if self.experts else "megatron_one"

    @property
    def padded(self) -> int:
        """The rows of the embedding."""
        each = _MULTIPLE * self.size("tp")
        return -(-VOCABULARY // each) * each

    def size(self, name: str) -> int:
        return self.mesh.get(name, 1)


class Norm(nn.Module):
    """RMSNorm that says whether its weight's gradient is a term, as Megatron's fused ones do."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


def on_cpu() -> None:
    """Let megatron-core compute without a GPU: it names the device ``cuda`` in places."""
    if torch.cuda.is_available() or getattr(torch.cuda, "_megatron_on_cpu", False):
        return
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    cuda: Any = torch.cuda
    cuda._megatron_on_cpu = True
    cuda.current_device = lambda: "cpu"
    cuda.synchronize = lambda *args: None
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]

    def without_device(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("device") == "cuda":
                kwargs["device"] = "cpu"
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

    random.CudaRNGStatesTracker.fork = lambda self, *args, **kwargs: contextlib.nullcontext()
    if not hasattr(moe_utils, "te_general_gemm"):  # 0.16.1 asks for it without having it
        moe_utils.te_general_gemm = None


def has_megatron() -> bool:
    import importlib.util

    return importlib.util.find_spec("megatron") is not None


def _initialized(layout: MegatronLayout) -> None:
    """Megatron's process groups of a layout, in place of the last one's."""
    from megatron.core import parallel_state

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    groups = dist.distributed_c10d._world.pg_map
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
        for group in _GROUPS:  # else their threads stay, some forty of each training
            if group in groups:
                dist.destroy_process_group(group)
        _GROUPS.clear()
        gc.collect()  # the last model has them, too
    before = set(groups)
    parallel_state.initialize_model_parallel(layout.size("tp"), layout.size("pp"))
    _GROUPS[:] = [group for group in groups if group not in before]


def megatron_model(layout: MegatronLayout, dtypes: Any, seed: int) -> Any:
    """This rank's part of the model, in Megatron's DDP; whole, it is the same in every layout.

    Args:
        dtypes: to which the weights are rounded in turn.
    """
    on_cpu()
    _initialized(layout)
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

    dtype = dtypes[-1]
    mixture: dict[str, Any] = {
        "num_moe_experts": layout.experts,
        "moe_router_topk": 2,
        "moe_aux_loss_coeff": 0.1,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_token_dispatcher_type": "allgather",
    }
    options: dict[str, Any] = {
        "num_layers": _LAYERS,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_query_groups": GROUPS,
        "ffn_hidden_size": _INNER,
        "gated_linear_unit": True,
        "activation_func": functional.silu,
        "add_bias_linear": False,
        "normalization": "RMSNorm",
        "qk_layernorm": True,
        "softmax_type": "learnable",
        "use_cpu_initialization": True,
        "params_dtype": dtype,
        "bf16": dtype is torch.bfloat16,
        "tensor_model_parallel_size": layout.size("tp"),
        "pipeline_model_parallel_size": layout.size("pp"),
        "sequence_parallel": layout.sequence,
        "pipeline_dtype": dtype,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "bias_dropout_fusion": False,
        "bias_activation_fusion": False,
        "masked_softmax_fusion": False,
        "gradient_accumulation_fusion": False,
        "apply_rope_fusion": False,
        "deallocate_pipeline_outputs": False,
        "calculate_per_token_loss": layout.per_token,
        **(mixture if layout.experts else {}),
        **layout.changes,
    }
    config = TransformerConfig(**options)
    config.finalize_model_grads_func = finalize_model_grads
    spec = get_gpt_layer_local_spec(
        layout.experts or None, normalization="RMSNorm", qk_layernorm=True
    )
    inner = spec.submodules
    inner.input_layernorm = inner.pre_mlp_layernorm = Norm
    inner.self_attention.submodules.q_layernorm = Norm
    inner.self_attention.submodules.k_layernorm = Norm
    model: Any = GPTModel(
        config,
        TransformerBlockSubmodules([spec] * (_LAYERS // layout.size("pp")), Norm),
        vocab_size=layout.padded,
        max_sequence_length=LENGTH,
        position_embedding_type="rope",
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=True,
    )
    _load(model, layout, dtypes, seed)
    for module in model.modules():
        if type(module).__name__ == "TopKRouter":
            count_all_tokens(module)
        if config.attention_output_gate and type(module).__name__ == "SelfAttention":
            _slice_gate(module, model)
    if model.post_process:
        _mask_padding(model.output_layer)
    if dtype is torch.bfloat16:
        model = Float16Module(config, model)
    grads = DistributedDataParallelConfig(
        grad_reduce_in_fp32=dtype is torch.bfloat16, use_distributed_optimizer=layout.sharded
    )
    return DistributedDataParallel(config, grads, model)


def _mask_padding(layer: Any) -> None:
    """No word of the padding has a probability: it is no part of the loss."""
    forward = layer.forward

    def masked(*args: Any, **kwargs: Any) -> Any:
        from megatron.core import parallel_state

        logits, bias = forward(*args, **kwargs)
        first = parallel_state.get_tensor_model_parallel_rank() * logits.shape[-1]
        padding = torch.arange(first, first + logits.shape[-1]) >= VOCABULARY
        return logits.masked_fill(padding, -1e4), bias

    layer.forward = masked


def _slice_gate(attention: Any, model: Any) -> None:
    """Where ranks share a group of heads, a rank's gate is that of its own heads: megatron-core
    0.16.1 takes all."""
    parts = max(attention.world_size // GROUPS, 1)
    model.gate_part = lambda rank: rank % parts
    make = attention.get_query_key_value_tensors

    def sliced(*args: Any, **kwargs: Any) -> Any:
        from megatron.core import parallel_state

        query, key, value, gate = make(*args, **kwargs)
        rank = parallel_state.get_tensor_model_parallel_rank()
        return query, key, value, gate.chunk(parts, 2)[model.gate_part(rank)]

    attention.get_query_key_value_tensors = sliced


def count_all_tokens(router: Any) -> None:
    """Mend Megatron's auxiliary loss: 0.16.1 takes a rank's share of the tokens for all of them."""
    attach = router.attach_and_log_load_balancing_loss

    def mended(activation: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        count = activation.shape[0] * router.tp_cp_group.size()
        kwargs["valid_token_count"] = count
        return attach(activation, *args, **kwargs)

    router.attach_and_log_load_balancing_loss = mended


def _load(model: Any, layout: MegatronLayout, dtypes: Any, seed: int) -> None:
    """Give a model its parts of weights that are drawn for the whole one."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes

    rank, ranks = parallel_state.get_tensor_model_parallel_rank(), layout.size("tp")
    first = parallel_state.get_pipeline_model_parallel_rank() * (_LAYERS // layout.size("pp"))
    for name, parameter in model.named_parameters():
        if name.endswith("softmax_offset"):
            # of each head; megatron-core 0.16.1 forgets it, so its norm counts one rank's
            set_tensor_model_parallel_attributes(parameter, ranks > 1, 0, 1)
        shape = list(parameter.shape)
        cut = getattr(parameter, "tensor_model_parallel", False)
        if cut:
            shape[parameter.partition_dim] *= ranks
        whole = drawn(_of_whole_model(name, first), tuple(shape), seed)
        for dtype in dtypes:
            whole = whole.to(dtype)
        if cut:
            chunks = whole.chunk(ranks * parameter.partition_stride, parameter.partition_dim)
            whole = torch.cat(chunks[rank::ranks], parameter.partition_dim)
        parameter.data = whole.clone()


def _of_whole_model(name: str, first: int) -> str:
    """A parameter's name in a model of one stage."""
    if name == "output_layer.weight":
        return "embedding.word_embeddings.weight"
    parts = name.split(".")
    if parts[:2] == ["decoder", "layers"]:
        parts[2] = str(int(parts[2]) + first)
    return ".".join(parts)


def drawn(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """The whole weight of a name; of a padded vocabulary, the padding is zero."""
    number = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:6], "little")
    made = torch.Generator().manual_seed(number)
    if "word_embeddings" in name:
        real = torch.randn(VOCABULARY, *shape[1:], generator=made) * 0.3
        return torch.cat([real, torch.zeros(shape[0] - VOCABULARY, *shape[1:])])
    if name.endswith("norm.weight"):
        return 1 + 0.1 * torch.randn(shape, generator=made)
    return torch.randn(shape, generator=made) * 0.3


def megatron_optimizer(layout: MegatronLayout, clip: float | None) -> Any:
    """Makes Megatron's optimizer of a model that its DDP has wrapped."""

    def make(model: Any) -> Any:
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        config = OptimizerConfig(
            optimizer="adam",
            lr=0.01,
            weight_decay=0.01,
            clip_grad=clip or 0.0,
            bf16=model.config.bf16,
            params_dtype=model.config.params_dtype,
            use_distributed_optimizer=layout.sharded,
        )
        return get_megatron_optimizer(config, [model])

    return make


def microbatches(
    tokens: torch.Tensor, labels: torch.Tensor, rows: int = _MICRO
) -> Iterator[SimpleNamespace]:
    """What Megatron's data loader gives: the label of padding is any, its mask is 0."""
    places = torch.arange(LENGTH)
    for given, wanted in zip(tokens.split(rows), labels.split(rows), strict=True):
        yield SimpleNamespace(
            tokens=given,
            labels=wanted.clamp(min=0),
            loss_mask=(wanted >= 0).float(),
            position_ids=places.expand(len(given), -1),
            attention_mask=torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1),
        )


def forward_step(batches: Iterator[SimpleNamespace], model: Any) -> Any:
    """As in Megatron's ``pretrain_gpt.py``."""
    batch = next(batches)

    def loss_func(output: torch.Tensor) -> Any:
        mask = batch.loss_mask.view(-1)
        total = (output.float().view(-1) * mask).sum()
        return total, mask.sum().int(), {"lm loss": total.detach()}

    output = model(batch.tokens, batch.position_ids, batch.attention_mask, labels=batch.labels)
    return output, loss_func


def megatron_step(run: Any, batch: Any) -> None:
    """The forwards and backwards of a step, and all that Megatron does with its gradients."""
    from megatron.core.pipeline_parallel import get_forward_backward_func

    run.model.zero_grad_buffer()
    run.optimizer.zero_grad()
    tokens, labels = batch
    get_forward_backward_func()(
        forward_step_func=getattr(run, "forward_step", forward_step),
        data_iterator=microbatches(tokens, labels),
        model=[run.model],
        num_microbatches=len(tokens) // _MICRO,
        seq_length=LENGTH,
        micro_batch_size=_MICRO,
        forward_only=False,
    )


_GATED = {"attention_output_gate": True}
_TP2 = MegatronLayout({"tp": 2})
#: By the name of each.
MEGATRON_LAYOUTS: dict[str, MegatronLayout] = {
    "megatron_one": MegatronLayout(),
    "megatron_tp2": _TP2,
    "megatron_sp2": replace(_TP2, sequence=True),
    "megatron_tp4": MegatronLayout({"tp": 4}),
    "megatron_dp2": MegatronLayout({"dp": 2}, sharded=True),
    "megatron_tp2dp2": MegatronLayout({"dp": 2, "tp": 2}, sharded=True),
    "megatron_pp2": MegatronLayout({"pp": 2}),
    "megatron_tp2pp2": MegatronLayout({"pp": 2, "tp": 2}, sequence=True),
    "megatron_moe_one": MegatronLayout(experts=4),
    "megatron_gate_one": MegatronLayout(changes=_GATED),
    "megatron_gate_tp4": MegatronLayout({"tp": 4}, changes=_GATED),
    "megatron_moe_sp2": replace(_TP2, sequence=True, experts=4),
}
