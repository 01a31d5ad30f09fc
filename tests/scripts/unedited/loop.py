"""A plain training loop, with an evaluation between two steps."""

import sys

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(16, 4)

    def forward(self, *, x):
        return self.head(self.inner(x))


if __name__ == "__main__":
    torch.manual_seed(1)
    net, loss_of = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(net.parameters())
    for step in range(5):
        x, y = torch.randn(4, 8), torch.randint(4, (4,))
        loss = loss_of(net(x=x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            net(x=x[:2])
        net.train()
        print(step, loss.item().hex())
    print(sys.argv[1:], sum(each.double().sum() for each in net.parameters()).item().hex())
    from torch._dynamo.variables import nn_module  # is imported by the first optimizer

    print(nn_module.unpatched_nn_module_call is nn.Module.__call__)
    print(
        len(net._forward_hooks) + len(net.head._forward_hooks),
        nn.Module.__call__ is nn.Module._wrapped_call_impl,
    )
