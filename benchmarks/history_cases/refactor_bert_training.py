"""Two steps of BERT's training as a language model."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForMaskedLM

from accucompare import Case


def case() -> Case:
    config = BertConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForMaskedLM(config).train()
    tokens = [torch.arange(48).reshape(2, 24) * factor % 128 for factor in (5, 7)]
    batches = [{"input_ids": batch, "labels": batch} for batch in tokens]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Case(model, batches, loss=lambda output: output.loss, optimizer=optimizer)
