"""The training of which the dumps beside it are: a GPT-2 of one block, of which ``lm_head`` shares
its weight with ``wte``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel


def build() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 11, "n_positions": 8}
    return GPT2LMHeadModel(
        GPT2Config(
            **sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0
        )
    )


def tokens() -> torch.Tensor:
    return torch.tensor([[1, 5, 2, 9]])


def nothing() -> None:
    pass


def train(
    model: nn.Module,
    batch: torch.Tensor,
    steps: int,
    before: Callable[[], object] = nothing,
    between: Callable[[], object] = nothing,
    after: Callable[[], object] = nothing,
) -> None:
    """Train some steps; ``before`` is called before each one's forward, ``between`` after its
    backward, ``after`` after its update.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        before()
        model(input_ids=batch, labels=batch).loss.backward()
        between()
        optimizer.step()
        optimizer.zero_grad()
        after()
