import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn


def main():
    set_seed(5)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(16, 8), torch.randn(16, 1)),
        batch_size=2,
        shuffle=True,
        num_workers=1,
    )
    model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
    for x, y in data:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    accelerator.print(
        loss.item().hex(), sum(p.double().sum() for p in model.parameters()).item().hex()
    )


if __name__ == "__main__":
    main()
