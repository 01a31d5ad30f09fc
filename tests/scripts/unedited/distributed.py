"""Two ranks train one model on data of their own."""

import torch
import torch.distributed as dist
from torch import nn

from tests.groups import leave


def train(**group):
    dist.init_process_group("gloo", **group)
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(rank)
    for _ in range(3):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{rank} {loss.item().hex()}\n", end="", flush=True)
    leave()


if __name__ == "__main__":
    train()
