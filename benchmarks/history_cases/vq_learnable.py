"""A vector-quantised bottleneck whose codebook is a parameter that learns from the codebook's own
loss.
"""

from __future__ import annotations

import torch
from torch import nn
from vector_quantize_pytorch import VectorQuantize

from accucompare import Case


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(16, 8)
        self.quantize = VectorQuantize(
            dim=8, codebook_size=32, learnable_codebook=True, ema_update=False
        )
        self.decoder = nn.Linear(8, 16)

    def forward(self, data: torch.Tensor) -> dict[str, torch.Tensor]:
        quantized, _, commitment = self.quantize(self.encoder(data))
        return {"output": self.decoder(quantized), "commitment": commitment}


def case() -> Case:
    torch.manual_seed(0)
    model = Autoencoder()
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(4, 24, 16, generator=draw) for _ in range(2)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Case(
        model,
        batches,
        loss=lambda output: output["output"].square().mean() + output["commitment"].sum(),
        optimizer=optimizer,
    )
