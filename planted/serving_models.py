"""Models of transformers, and the same ones as serving engines write them: layers fused, the
residual carried apart, weights loaded by a mapping of stacked parameters, as vLLM does."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import silu

from accucompare import Case


class Faults(NamedTuple):
    """What is wrong, by name, and in which layer; empty for a sound model."""

    name: str = ""
    layer: int = 1

    def at(self, name: str, layer: int) -> bool:
        return self.name == name and self.layer == layer


class QKVParallelLinear(nn.Linear):
    """Queries, keys and values in one layer."""


class MergedColumnParallelLinear(nn.Linear):
    """Gate and up in one layer."""


class RowParallelLinear(nn.Linear):
    """Returns a bias to be added later, too, as the engine's layers do."""

    def forward(self, input: torch.Tensor) -> Any:
        return super().forward(input), None


class VocabParallelEmbedding(nn.Embedding):
    """The same, under the engine's name."""


class SiluAndMul(nn.Module):
    """SiLU of the first half, times the second."""

    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self.swapped = swapped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        if self.swapped:
            gate, up = up, gate
        return silu(gate) * up


class RMSNorm(nn.Module):
    """With a residual, adds it first and returns the sum, too."""

    def __init__(self, size: int, eps: float, fault: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps
        self.fault = fault

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        kind = x.dtype
        if residual is not None:
            x = x + residual
            residual = residual if self.fault == "residual_lost" else x
            if self.fault == "residual_twice":
                x = residual = x + residual
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        normed = self.weight * wide.to(kind)
        return normed if residual is None else (normed, residual)


class RotaryEmbedding(nn.Module):
    """Turns queries and keys by their tokens' positions."""

    def __init__(self, size: int, base: float, gptj: bool) -> None:
        super().__init__()
        self.size, self.base, self.gptj = size, base, gptj

    def forward(self, positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> Any:
        half = torch.arange(0, self.size, 2, dtype=torch.float32) / self.size
        angles = positions[..., None].float() / self.base**half
        cos, sin = angles.cos()[:, :, None].to(q.dtype), angles.sin()[:, :, None].to(q.dtype)

        def turned(x: torch.Tensor) -> torch.Tensor:
            heads = x.view(*x.shape[:-1], -1, self.size)
            if self.gptj:
                one, other = heads[..., ::2], heads[..., 1::2]
                both = torch.stack((one * cos - other * sin, other * cos + one * sin), -1)
                return both.flatten(-2).flatten(-2)
            one, other = heads.chunk(2, dim=-1)
            return torch.cat((one * cos - other * sin, other * cos + one * sin), -1).flatten(-2)

        return turned(q), turned(k)


class Attention(nn.Module):
    """Causal attention of grouped heads."""

    def __init__(self, heads: int, groups: int, size: int, fault: str) -> None:
        super().__init__()
        self.heads, self.groups, self.size, self.fault = heads, groups, size, fault

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.view(*x.shape[:2], -1, self.size).transpose(1, 2) for x in (q, k, v))
        times = self.heads // self.groups
        if self.fault == "kv_repeat":
            k, v = k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)
        else:
            k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        scale = (self.size * (self.heads if self.fault == "scale" else 1)) ** -0.5
        scores = q @ k.transpose(-1, -2) * scale
        later = 2 if self.fault == "mask" else 1
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(later)
        weights = scores.masked_fill(mask, torch.finfo(q.dtype).min).float().softmax(-1)
        mixed = (weights.to(q.dtype) @ v).transpose(1, 2)
        if self.fault == "head_order":
            mixed = mixed.flip(2)
        attended: torch.Tensor = mixed.flatten(2)
        return attended


#: How queries, keys and values lie in one weight.
LAYOUTS = ("concatenated", "by head", "by group")


def qkv_order(layout: str, heads: int, groups: int, size: int) -> torch.Tensor:
    """The rows of ``cat(q, k, v)`` in the order of a layout."""
    q, k, v = torch.split(
        torch.arange((heads + 2 * groups) * size), [heads * size, groups * size, groups * size]
    )
    if layout == "concatenated":
        return torch.cat((q, k, v))
    each = (x.view(groups, -1) for x in (q, k, v))
    return torch.cat([part for rows in zip(*each, strict=True) for part in rows])


class LlamaAttention(nn.Module):
    def __init__(self, config: Any, layout: str, fault: str) -> None:
        super().__init__()
        size = config.hidden_size // config.num_attention_heads
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.size, self.layout, self.fault = size, layout, fault
        width = (self.heads + 2 * self.groups) * size
        self.qkv_proj = QKVParallelLinear(config.hidden_size, width, bias=config.attention_bias)
        self.o_proj = RowParallelLinear(
            self.heads * size, config.hidden_size, bias=config.attention_bias
        )
        base = config.rope_parameters["rope_theta"] * (3 if fault == "rotary_base" else 1)
        self.rotary_emb = RotaryEmbedding(size, base, gptj=fault == "rotary_gptj")
        self.attn = Attention(self.heads, self.groups, size, fault)

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv_proj(hidden_states)
        in_a_row = qkv.dim() == 2  # the tokens of one sequence
        if in_a_row:
            qkv, positions = qkv[None], positions[None]
        order = qkv_order(self.layout, self.heads, self.groups, self.size)
        if self.fault == "head_interleave":
            order = qkv_order("by head", self.heads, self.groups, self.size)
        qkv = qkv[..., order.argsort()]
        sizes = [each * self.size for each in (self.heads, self.groups, self.groups)]
        q, k, v = qkv.split(sizes, -1)
        if self.fault == "k_v_swapped":
            k, v = v, k
        if self.fault == "positions":
            positions = positions.clamp(min=1) - 1
        q, k = self.rotary_emb(positions, q, k)
        if self.fault == "v_turned":
            v = self.rotary_emb(positions, v, v)[0]
        mixed = self.attn(q, k, v)
        output: torch.Tensor = self.o_proj(mixed[0] if in_a_row else mixed)[0]
        return output


class LlamaMLP(nn.Module):
    def __init__(self, config: Any, fault: str) -> None:
        super().__init__()
        inner = config.intermediate_size
        self.gate_up_proj = MergedColumnParallelLinear(config.hidden_size, 2 * inner, bias=False)
        self.down_proj = RowParallelLinear(inner, config.hidden_size, bias=False)
        self.act_fn = SiluAndMul(swapped=fault == "gate_up_swapped")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down_proj(self.act_fn(self.gate_up_proj(x)))[0]
        return output


class LlamaDecoderLayer(nn.Module):
    def __init__(self, config: Any, layout: str, fault: str) -> None:
        super().__init__()
        eps = config.rms_norm_eps
        in_norm = fault if fault in ("residual_twice", "residual_lost") else ""
        self.self_attn = LlamaAttention(config, layout, fault)
        self.mlp = LlamaMLP(config, fault)
        self.input_layernorm = RMSNorm(config.hidden_size, eps)
        self.post_attention_layernorm = RMSNorm(
            config.hidden_size, 0.5 if fault == "norm_eps" else eps, in_norm
        )
        self.fault = fault

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(positions, hidden_states)
        if self.fault == "residual_doubled":
            residual = residual + residual
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        hidden_states = self.mlp(hidden_states)
        if self.fault == "mlp_scaled":
            hidden_states = hidden_states * 1.05
        return hidden_states, residual


class LlamaModel(nn.Module):
    def __init__(self, config: Any, layout: str, faults: Faults) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            LlamaDecoderLayer(config, layout, faults.name if faults.layer == number else "")
            for number in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.faults = faults

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden_states, residual = self.embed_tokens(input_ids), None
        if self.faults.name == "embedding_scaled":
            hidden_states = hidden_states * self.norm.weight.shape[0] ** 0.5
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        with_residual = self.faults.name != "last_residual"
        normed = self.norm(hidden_states, residual) if with_residual else [self.norm(hidden_states)]
        last: torch.Tensor = normed[0]
        return last


class LlamaForCausalLM(nn.Module):
    """A Llama as a serving engine writes it."""

    def __init__(self, config: Any, layout: str = LAYOUTS[0], faults: Faults | None = None) -> None:
        super().__init__()
        faults = faults or Faults()
        self.model = LlamaModel(config, layout, faults)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.layout, self.faults, self.config = layout, faults, config

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        positions = torch.arange(input_ids.shape[1])[None]
        return {"logits": self.lm_head(self.model(input_ids, positions))}

    def load_weights(self, trained: nn.Module) -> None:
        """Take a transformers model's weights, by the usual mapping of stacked parameters."""
        theirs = trained.state_dict()
        own = dict(self.named_parameters())
        for name, value in own.items():
            if ".qkv_proj." in name:
                parts = [theirs[name.replace("qkv_proj", f"{each}_proj")] for each in "qkv"]
                layer = int(name.split(".")[2])
                if self.faults.at("loaded_v_k", layer):
                    parts = [parts[0], parts[2], parts[1]]
                heads = self.config.num_attention_heads
                size = self.config.hidden_size // heads
                order = qkv_order(self.layout, heads, self.config.num_key_value_heads, size)
                loaded = torch.cat(parts)[order]
            elif ".gate_up_proj." in name:
                both = [
                    theirs[name.replace("gate_up_proj", f"{each}_proj")] for each in ("gate", "up")
                ]
                if self.faults.at("loaded_up_gate", int(name.split(".")[2])):
                    both.reverse()
                loaded = torch.cat(both)
            elif name == "lm_head.weight" and self.faults.name == "head_not_tied":
                continue
            else:
                loaded = theirs[name]
            with torch.no_grad():
                value.copy_(loaded)


def config(**changes: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        **{
            "vocab_size": 97,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "initializer_range": 0.15,
            "tie_word_embeddings": True,
            "use_cache": False,
            **changes,
        }
    )


def trained(**changes: Any) -> nn.Module:
    """transformers' Llama; the same one every time."""
    import transformers

    torch.manual_seed(7)
    model: nn.Module = transformers.LlamaForCausalLM(config(**changes))
    model.eval()
    with torch.no_grad():  # norms and biases are not all alike
        for name, value in model.named_parameters():
            if "norm" in name:
                value.add_(torch.randn_like(value) * 0.1)
            if name.endswith("bias"):
                value.add_(torch.randn_like(value) * 0.3)
    return model


def serving(
    layout: str = LAYOUTS[0], faults: Faults | None = None, **changes: Any
) -> LlamaForCausalLM:
    """The same Llama as an engine has it."""
    model = trained(**changes)
    torch.manual_seed(8)
    found = LlamaForCausalLM(model.config, layout, faults)
    found.load_weights(model)
    return found.eval()


def tokens() -> dict[str, torch.Tensor]:
    torch.manual_seed(9)
    return {"input_ids": torch.randint(0, 97, (2, 11))}


def golden() -> Case:
    return Case(trained(), tokens())


def candidate() -> Case:
    return Case(serving(), tokens())
