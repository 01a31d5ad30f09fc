"""megatron-core's own GPT on gloo and CPU, built, spread and trained as Megatron's scripts do."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from fixtures.parallel import GROUPS, HEADS, LENGTH, VOCABULARY, WIDTH, Layout, whole_batch
from planted.megatron_on_cpu import Norm, context_attention, known_options, on_cpu, zigzag

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
        one: the layout on one device.
        sequence: whether what is outside of attention and MLP is cut along the sequence.
        experts: of each layer's mixture; a plain MLP if 0.
        expert_ranks: among how many ranks, of those with other tokens, experts are shared out.
        expert_parts: into how many parts each expert is cut; if 0, as the other layers are.
        sharded: whether the optimizer is the distributed one.
        changes: to the model's configuration.
        per_token: whether the loss is the mean over all tokens, or that of the microbatches' means.
        micro_rows: rows of one microbatch.
        length: of a sequence; what the batch lacks is padding.
    """

    one: str = "megatron_one"
    sequence: bool = False
    experts: int = 0
    expert_ranks: int = 1
    expert_parts: int = 0
    sharded: bool = False
    changes: dict[str, Any] = field(default_factory=dict)
    per_token: bool = True
    micro_rows: int = _MICRO
    length: int = LENGTH

    @property
    def padded(self) -> int:
        """The rows of the embedding."""
        each = _MULTIPLE * self.size("tp")
        return -(-VOCABULARY // each) * each

    def size(self, name: str) -> int:
        return self.mesh.get(name, 1)

    def whole_batch(self, step: int) -> Any:
        tokens, labels = whole_batch(step)
        more = self.length - tokens.shape[1]
        return functional.pad(tokens, (0, more)), functional.pad(labels, (0, more), value=-100)


def leave_groups() -> None:
    """End Megatron's process groups: what trains next in this process knows nothing of them."""
    from megatron.core import parallel_state

    groups = dist.distributed_c10d._world.pg_map
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    for group in _GROUPS:  # else their threads stay, some forty of each training
        if group in groups:
            dist.destroy_process_group(group)
    _GROUPS.clear()
    gc.collect()  # the last model has them, too


def _initialized(layout: MegatronLayout) -> None:
    """Megatron's process groups of a layout, in place of the last one's."""
    from megatron.core import parallel_state

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    leave_groups()
    groups = dist.distributed_c10d._world.pg_map
    before = set(groups)
    parallel_state.initialize_model_parallel(
        layout.size("tp"),
        layout.size("pp"),
        context_parallel_size=layout.size("cp"),
        expert_model_parallel_size=layout.expert_ranks,
        expert_tensor_parallel_size=layout.expert_parts or layout.size("tp"),
    )
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
        "context_parallel_size": layout.size("cp"),
        "expert_model_parallel_size": layout.expert_ranks,
        "expert_tensor_parallel_size": layout.expert_parts or layout.size("tp"),
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
    config = TransformerConfig(**known_options(TransformerConfig, options))
    config.finalize_model_grads_func = finalize_model_grads
    spec = get_gpt_layer_local_spec(
        layout.experts or None, normalization="RMSNorm", qk_layernorm=True
    )
    inner = spec.submodules
    inner.input_layernorm = inner.pre_mlp_layernorm = Norm
    inner.self_attention.submodules.q_layernorm = Norm
    inner.self_attention.submodules.k_layernorm = Norm
    if layout.size("cp") > 1:
        inner.self_attention.submodules.core_attention = context_attention()
    model: Any = GPTModel(
        config,
        TransformerBlockSubmodules([spec] * (_LAYERS // layout.size("pp")), Norm),
        vocab_size=layout.padded,
        max_sequence_length=layout.length,
        position_embedding_type="rope",
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=True,
    )
    _load(model, layout, dtypes, seed)
    for module in model.modules():
        if type(module).__name__ == "TopKRouter":
            count_all_tokens(module)
        if layout.changes.get("attention_output_gate") and type(module).__name__ == "SelfAttention":
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
    """Mend Megatron's auxiliary loss: it takes a rank's share of the tokens for all of them."""
    if hasattr(router, "attach_and_log_load_balancing_loss"):
        attach = router.attach_and_log_load_balancing_loss

        def mended(activation: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            count = activation.shape[0] * router.tp_cp_group.size()
            kwargs["valid_token_count"] = count
            return attach(activation, *args, **kwargs)

        router.attach_and_log_load_balancing_loss = mended
        return
    from megatron.core import parallel_state  # before 0.14

    apply = router.apply_load_balancing_loss

    def of_all_tokens(activation: torch.Tensor, load_balancing_loss_func: Any) -> Any:
        ranks = parallel_state.get_tensor_and_context_parallel_world_size()
        return apply(activation, lambda **given: load_balancing_loss_func(**given) * ranks)

    router.apply_load_balancing_loss = of_all_tokens


def _load(model: Any, layout: MegatronLayout, dtypes: Any, seed: int) -> None:
    """Give a model its parts of weights that are drawn for the whole one."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes

    first = parallel_state.get_pipeline_model_parallel_rank() * (_LAYERS // layout.size("pp"))
    first_expert = layout.experts // layout.expert_ranks * _expert_rank(layout)
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            rank = parallel_state.get_expert_tensor_parallel_rank()
            ranks = layout.expert_parts or layout.size("tp")
        else:
            rank, ranks = parallel_state.get_tensor_model_parallel_rank(), layout.size("tp")
        if name.endswith("softmax_offset"):
            # of each head; megatron-core 0.16.1 forgets it, so its norm counts one rank's
            set_tensor_model_parallel_attributes(parameter, ranks > 1, 0, 1)
        shape = list(parameter.shape)
        cut = getattr(parameter, "tensor_model_parallel", False)
        if cut:
            shape[parameter.partition_dim] *= ranks
        whole = drawn(_of_whole_model(name, first, first_expert), tuple(shape), seed)
        for dtype in dtypes:
            whole = whole.to(dtype)
        if cut:
            # gate and up; 0.12 does not say so
            stride = 2 if name.endswith("linear_fc1.weight") else 1
            chunks = whole.chunk(ranks * stride, parameter.partition_dim)
            whole = torch.cat(chunks[rank::ranks], parameter.partition_dim)
        parameter.data = whole.clone()


def _expert_rank(layout: MegatronLayout) -> int:
    from megatron.core import parallel_state

    alone = layout.expert_ranks == 1
    return 0 if alone else int(parallel_state.get_expert_model_parallel_rank())


def _of_whole_model(name: str, first: int, first_expert: int) -> str:
    """A parameter's name in a model of one stage, with all experts."""
    if name == "output_layer.weight":
        return "embedding.word_embeddings.weight"
    parts = name.split(".")
    for own, before in (("layers", first), ("local_experts", first_expert)):
        if own in parts:
            number = parts.index(own) + 1
            parts[number] = str(int(parts[number]) + before)
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
    tokens: torch.Tensor,
    labels: torch.Tensor,
    rows: int = _MICRO,
    places: torch.Tensor | None = None,
) -> Iterator[SimpleNamespace]:
    """What Megatron's data loader gives: the label of padding is any, its mask is 0.

    Args:
        places: the tokens of each sequence that this rank has; all by default.
    """
    length = tokens.shape[1]
    places = torch.arange(length) if places is None else places
    for given, wanted in zip(tokens.split(rows), labels.split(rows), strict=True):
        given, wanted = given[:, places], wanted[:, places]
        yield SimpleNamespace(
            tokens=given,
            labels=wanted.clamp(min=0),
            loss_mask=(wanted >= 0).float(),
            position_ids=places.expand(len(given), -1),
            attention_mask=torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)[:, :, places],
        )


def forward_step(batches: Iterator[SimpleNamespace], model: Any) -> Any:
    """As in Megatron's ``pretrain_gpt.py``, or as in older ones: the mean of the microbatch."""
    batch = next(batches)

    def loss_func(output: torch.Tensor) -> Any:
        mask = batch.loss_mask.view(-1)
        total, count = (output.float().view(-1) * mask).sum(), mask.sum()
        told = {"lm loss": total.detach()}
        if model.config.calculate_per_token_loss:
            return total, count.int(), told
        from megatron.core import parallel_state

        dist.all_reduce(count, group=parallel_state.get_context_parallel_group())
        return total / count, told

    output = model(batch.tokens, batch.position_ids, batch.attention_mask, labels=batch.labels)
    return output, loss_func


def tokens_of_rank(layout: MegatronLayout) -> torch.Tensor | None:
    """Those that this rank has of each sequence; ``None`` for all."""
    from megatron.core import parallel_state

    parts = layout.size("cp")
    rank = parallel_state.get_context_parallel_rank() if parts > 1 else 0
    return None if parts == 1 else zigzag(layout.length, parts, rank)


def megatron_step(run: Any, batch: Any) -> None:
    """The forwards and backwards of a step, and all that Megatron does with its gradients."""
    from megatron.core.pipeline_parallel import get_forward_backward_func

    run.model.zero_grad_buffer()
    run.optimizer.zero_grad()
    tokens, labels = batch
    layout: MegatronLayout = run.layout
    get_forward_backward_func()(
        forward_step_func=getattr(run, "forward_step", forward_step),
        data_iterator=microbatches(tokens, labels, layout.micro_rows, tokens_of_rank(layout)),
        model=[run.model],
        num_microbatches=len(tokens) // layout.micro_rows,
        seq_length=layout.length,
        micro_batch_size=layout.micro_rows,
        forward_only=False,
    )


#: A loss of each sequence, which does not depend on what else is in its microbatch.
_OF_SEQUENCES = {"moe_router_load_balancing_type": "seq_aux_loss"}
_ALL_TO_ALL = {"moe_token_dispatcher_type": "alltoall"}
_GATED = {"attention_output_gate": True}
_TP2 = MegatronLayout({"tp": 2})
_MIXTURE = MegatronLayout(one="megatron_moe_one", experts=4)
_CONTEXT = MegatronLayout(one="megatron_long_one", length=8)
#: Experts of ranks that have rows of their own; on one device all rows are one microbatch.
_SPREAD = MegatronLayout(
    one="megatron_ep_one", experts=4, changes=_OF_SEQUENCES, micro_rows=2 * _MICRO
)
_EP2 = replace(_SPREAD, mesh={"dp": 2}, expert_ranks=2, micro_rows=_MICRO)
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
    "megatron_gate_one": MegatronLayout(one="megatron_gate_one", changes=_GATED),
    "megatron_gate_tp4": MegatronLayout({"tp": 4}, one="megatron_gate_one", changes=_GATED),
    "megatron_moe_one": _MIXTURE,
    "megatron_moe_sp2": replace(_MIXTURE, mesh={"tp": 2}, sequence=True),
    "megatron_tp2ep2": replace(
        _MIXTURE, mesh={"tp": 2}, sequence=True, expert_ranks=2, expert_parts=1, changes=_ALL_TO_ALL
    ),
    "megatron_ep_one": _SPREAD,
    "megatron_ep2": replace(_EP2, changes={**_OF_SEQUENCES, **_ALL_TO_ALL}),
    "megatron_gathered_ep2": _EP2,
    "megatron_long_one": _CONTEXT,
    "megatron_cp2": replace(_CONTEXT, mesh={"cp": 2}),
    "megatron_mean_one": replace(_CONTEXT, one="megatron_mean_one", per_token=False),
    "megatron_mean_cp2": replace(
        _CONTEXT, mesh={"cp": 2}, one="megatron_mean_one", per_token=False
    ),
    "megatron_long_moe_one": replace(_CONTEXT, one="megatron_long_moe_one", experts=4),
    "megatron_moe_cp2": replace(_CONTEXT, mesh={"cp": 2}, one="megatron_long_moe_one", experts=4),
}
