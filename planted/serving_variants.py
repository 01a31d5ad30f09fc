"""Other models in two ways, each with faults: GPT-2 with its layers apart and not transposed, and
experts in one tensor or in a list."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, silu

_PARTS = ("q_proj", "k_proj", "v_proj")


class GPT2Attention(nn.Module):
    """Three layers in place of one."""

    def __init__(self, width: int, heads: int, fault: str) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.c_proj = nn.Linear(width, width)
        self.heads, self.fault = heads, fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.fault == "q_k_swapped":
            q, k = k, q
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (q, k, v))
        if self.fault == "heads_first":
            q, k, v = (each.flip(1) if each is v else each for each in (q, k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if self.fault == "scale_by_layer":
            scores = scores / 2
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(mask, torch.finfo(scores.dtype).min).softmax(-1)
        mixed: torch.Tensor = self.c_proj((weights @ v).transpose(1, 2).flatten(2))
        return mixed


class GPT2MLP(nn.Module):
    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        exact = "none" if self.fault == "exact_gelu" else "tanh"
        made: torch.Tensor = self.c_proj(gelu(self.c_fc(x), approximate=exact))
        return made * 1.1 if self.fault == "mlp_times" else made


class GPT2Block(nn.Module):
    def __init__(self, width: int, heads: int, fault: str) -> None:
        super().__init__()
        eps = 0.1 if fault == "norm_eps" else 1e-5
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width, eps)
        self.attn, self.mlp = GPT2Attention(width, heads, fault), GPT2MLP(width, fault)
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        normed = self.ln_2(x)
        made: torch.Tensor = (normed if self.fault == "normed_residual" else x) + self.mlp(normed)
        return made


class GPT2Model(nn.Module):
    def __init__(self, config: Any, fault: str) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList(
            GPT2Block(config.n_embd, config.n_head, fault if number == 1 else "")
            for number in range(config.n_layer)
        )
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.first = 1 if fault == "positions" else 0

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(input_ids.shape[1])[None] + self.first
        x = self.wte(input_ids) + self.wpe(positions)
        for block in self.h:
            x = block(x)
        made: torch.Tensor = self.ln_f(x)
        return made


class GPT2LMHeadModel(nn.Module):
    """A GPT-2 of plain layers."""

    def __init__(self, config: Any, fault: str = "") -> None:
        super().__init__()
        self.transformer = GPT2Model(config, fault)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.fault = fault

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.lm_head(self.transformer(input_ids))}

    def load_weights(self, trained: nn.Module) -> None:
        theirs = trained.state_dict()
        for name, value in self.named_parameters():
            part = name.split(".")[-2]
            whole = name.replace(part, "c_attn") if part in _PARTS else name
            loaded = theirs[whole]
            if loaded.dim() == 2 and any(each in whole for each in ("c_attn", "c_proj", "c_fc")):
                loaded = loaded.T
            if whole != name:
                if self.fault == "bias_of_k" and name.endswith("1.attn.q_proj.bias"):
                    part = "k_proj"
                loaded = loaded.chunk(3)[_PARTS.index(part)]
            with torch.no_grad():
                value.copy_(loaded)


def gpt2() -> nn.Module:
    """transformers' GPT-2; the same one every time."""
    import transformers

    torch.manual_seed(7)
    config = transformers.GPT2Config(
        vocab_size=97,
        n_positions=32,
        n_embd=40,
        n_layer=3,
        n_head=5,
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    model.eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("bias") or "ln_" in name:
                value.add_(torch.randn_like(value) * 0.2)
    return model


def gpt2_apart(fault: str = "") -> nn.Module:
    model = gpt2()
    torch.manual_seed(8)
    found = GPT2LMHeadModel(model.config, fault)
    found.load_weights(model)
    return found.eval()


class Expert(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return made


class StackedExperts(nn.Module):
    """All experts in two tensors."""

    def __init__(self, number: int, width: int, inner: int, fault: str) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(number, 2 * inner, width))
        self.down_proj = nn.Parameter(torch.empty(number, width, inner))
        self.fault = fault

    def forward(self, x: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        both = torch.einsum("bth,efh->betf", x, self.gate_up_proj)
        gate, up = both.chunk(2, -1)
        if self.fault == "gate_up_swapped":
            gate, up = up, gate
        down = self.down_proj.roll(1, 0) if self.fault == "other_down" else self.down_proj
        made = torch.einsum("betf,ehf->beth", silu(gate) * up, down)
        return torch.einsum("beth,bte->bth", made, shares)


class Mixture(nn.Module):
    """A dense mixture between two norms; its experts in a list or stacked."""

    def __init__(self, stacked: bool, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(3)
        width, inner, number = 24, 20, 4
        self.embed = nn.Embedding(97, width)
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.gate = nn.Linear(width, number, bias=False)
        experts = [Expert(width, inner) for _ in range(number)]
        self.head = nn.Linear(width, 97)
        self.stacked, self.fault = stacked, fault
        if not stacked:
            self.experts: nn.Module = nn.ModuleList(experts)
            return
        self.experts = StackedExperts(number, width, inner, fault)
        with torch.no_grad():
            for place, each in enumerate(experts):
                both = torch.cat((each.gate_proj.weight, each.up_proj.weight))
                self.experts.gate_up_proj[place] = both
                self.experts.down_proj[place] = each.down_proj.weight

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(input_ids))
        shares = self.gate(x).softmax(-1)
        if self.fault == "shares_twice":
            shares = shares.softmax(-1)
        if isinstance(self.experts, nn.ModuleList):
            made = sum(
                each(x) * share[..., None]
                for each, share in zip(self.experts, shares.unbind(-1), strict=True)
            )
        else:
            made = self.experts(x, shares)
        logits: torch.Tensor = self.head(self.last(x + 20 * made))
        return logits
