import logging
import warnings

import pytorch_lightning as pl
import torch
from torch import nn


class Lit(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(4, 8)

    def training_step(self, batch, batch_idx):
        (x,) = batch
        return nn.functional.mse_loss(self.decoder(self.encoder(x).relu()), x)

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        self.log("val", nn.functional.mse_loss(self.decoder(self.encoder(x).relu()), x))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    pl.seed_everything(1, verbose=False)
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(16, 8)), batch_size=4
    )
    model = Lit()
    pl.Trainer(
        max_steps=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(model, data, data)
    print(sum(p.double().sum() for p in model.parameters()).item().hex())
