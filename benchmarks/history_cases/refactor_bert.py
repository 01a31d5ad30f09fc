"""BERT as a language model, its attention mask given as integers, with two padded tokens."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForMaskedLM

from accucompare import Case


def case() -> Case:
    config = BertConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    mask = torch.ones(2, 24, dtype=torch.long)
    mask[1, -2:] = 0
    return Case(
        BertForMaskedLM(config).eval(),
        {"input_ids": torch.arange(48).reshape(2, 24) * 7 % 128, "attention_mask": mask},
    )
