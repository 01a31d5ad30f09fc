"""Sound trainings that see all of their data in each step, and those on graphs, fields, tables and
matrices.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from planted.sound.catalogue import STEPS, Loop, Parts, draw, epochs, mlp, points, sound


class _GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.dropout = (
            nn.Linear(60, 16, bias=False),
            nn.Linear(16, 4, bias=False),
            nn.Dropout(0.5),
        )

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        h = self.dropout(torch.sparse.mm(adjacency, self.one(x)).relu())
        return functional.log_softmax(torch.sparse.mm(adjacency, self.other(h)), 1)


@sound("GCN: one graph in each step, a few labels")
def gcn() -> Loop:
    labels = torch.randint(0, 4, (120,))
    linked = torch.rand(120, 120) < torch.where(labels[:, None] == labels, 0.1, 0.01)
    adjacency = (linked | linked.T).float() + torch.eye(120)
    adjacency = (adjacency / adjacency.sum(1, keepdim=True)).to_sparse()
    x = (torch.rand(120, 60) < 0.05).float()
    model = _GCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    yield Parts(model, optimizer)
    for _ in range(STEPS):
        model.train()
        optimizer.zero_grad()
        functional.nll_loss(model(x, adjacency)[:40], labels[:40]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(x, adjacency)
        yield None


class _Attention(nn.Module):
    """Attention over the neighbours of each node alone: what is no neighbour is -9e15."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.w, self.a = (
            nn.Linear(inside, outside, bias=False),
            nn.Linear(2 * outside, 1, bias=False),
        )

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        h = self.w(x)
        one, other = self.a.weight[0].chunk(2)
        scores = functional.leaky_relu((h @ one)[:, None] + (h @ other)[None], 0.2)
        return torch.where(adjacency > 0, scores, -9e15).softmax(1) @ h


@sound("graph attention: -9e15 where there is no edge")
def gat() -> Loop:
    labels = torch.randint(0, 3, (90,))
    adjacency = (
        torch.rand(90, 90) < torch.where(labels[:, None] == labels, 0.15, 0.01)
    ).float() + torch.eye(90)
    x = torch.randn(90, 24) + functional.one_hot(labels, 24)

    class GAT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = _Attention(24, 16), _Attention(16, 3)

        def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.other(functional.elu(self.one(x, adjacency)), adjacency)
            return y

    model = GAT()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    yield Parts(model, optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        functional.cross_entropy(model(x, adjacency)[:45], labels[:45]).backward()
        optimizer.step()
        yield None


class _Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.head = nn.LSTMCell(1, 16), nn.LSTMCell(16, 16), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c, d = (torch.zeros(len(x), 16, dtype=x.dtype) for _ in range(4))
        found = []
        for value in x.split(1, 1):
            a, b = self.one(value, (a, b))
            c, d = self.other(a, (c, d))
            found.append(self.head(c))
        return torch.cat(found, 1)


@sound("time_sequence_prediction: all waves in float64 in each step, LBFGS")
def waves() -> Loop:
    x = torch.sin((torch.arange(16) + 10 * torch.rand(8, 1)) / 4).double()
    model = _Sequence().double()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=4)
    yield Parts(model, optimizer)
    for _ in range(25):

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x[:, :-1]), x[:, 1:])
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            model(x[:3, :-1])
        yield None


@sound("an equation of physics: second derivatives of what the model gives")
def equation() -> Loop:
    model = mlp(2, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    yield Parts(model, optimizer, scheduler)
    for _ in range(STEPS):
        inside = torch.rand(64, 2, requires_grad=True)
        u = model(inside)
        (first,) = torch.autograd.grad(u.sum(), inside, create_graph=True)
        twice = sum(
            torch.autograd.grad(first[:, axis].sum(), inside, create_graph=True)[0][:, axis]
            for axis in (0, 1)
        )
        border = torch.rand(32, 2)
        border[:, 0] = border[:, 0].round()
        loss = (
            twice + math.pi**2 * torch.sin(math.pi * inside[:, 0])
        ).square().mean() + 10 * model(border).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        yield None


@sound("one batch learnt by heart, until the loss is 0")
def overfit() -> Loop:
    x, y = points(16)
    model = mlp(16, 64, 64, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    yield Parts(model, optimizer)
    for _ in range(300):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        yield None


@sound("a line by gradient descent on all points, until nothing is left")
def line() -> Loop:
    x = torch.rand(50, 1)
    y = 2 * x + 1
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    yield Parts(model, optimizer)
    for _ in range(500):
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        optimizer.step()
        yield None


@sound("a wide network that hardly moves")
def wide() -> Loop:
    x, y = points(64)
    model = mlp(16, 2048, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    yield Parts(model, optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        yield None


@sound("prices as they are: targets in hundred thousands, a table that batch norm makes even")
def prices() -> Loop:
    x = torch.randn(640, 6) * torch.tensor([1.0, 10.0, 1e3, 5e4, 3e5, 0.01]) + torch.tensor(
        [0.0, 5.0, 2e3, 1e5, 4e5, 0.0]
    )
    y = 3e5 + 1e5 * (x[:, :1] + x[:, 1:2] / 10)
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    yield Parts(model, optimizer)
    for a, b in epochs(x, y):
        optimizer.zero_grad()
        functional.mse_loss(model(a), b).backward()
        optimizer.step()
        yield None


@sound("numbers with a normal distribution for targets, means and variances that are learnt")
def gaussian() -> Loop:
    model = mlp(8, 32, 2, act=nn.SiLU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    yield Parts(model, optimizer)
    for _ in range(STEPS):
        x = torch.randn(32, 8)
        mean, log_variance = model(x).chunk(2, 1)
        optimizer.zero_grad()
        functional.gaussian_nll_loss(
            mean, x[:, :1] + 0.1 * torch.randn(32, 1), log_variance.exp()
        ).backward()
        optimizer.step()
        yield None


@sound("images from 0 to 255 that the model scales itself")
def bytes_inside() -> Loop:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp(64, 32, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.layers(x.float().flatten(1) / 127.5 - 1)
            return y

    patterns = torch.randint(0, 256, (5, 8, 8))
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    yield Parts(model, optimizer)
    for _ in range(STEPS):
        y = torch.randint(0, 5, (16,))
        x = (patterns[y] + torch.randint(-60, 60, (16, 8, 8))).clamp(0, 255).to(torch.uint8)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        yield None


@sound("factors of a matrix: users and films, small at first")
def factors() -> Loop:
    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.films = nn.Embedding(300, 8), nn.Embedding(200, 8)
            self.user_bias, self.film_bias = nn.Embedding(300, 1), nn.Embedding(200, 1)
            for module, size in (
                (self.users, 0.01),
                (self.films, 0.01),
                (self.user_bias, 0.0),
                (self.film_bias, 0.0),
            ):
                nn.init.normal_(module.weight, 0.0, size)

        def forward(self, user: torch.Tensor, film: torch.Tensor) -> torch.Tensor:
            return (
                (self.users(user) * self.films(film)).sum(1)
                + self.user_bias(user)[:, 0]
                + self.film_bias(film)[:, 0]
                + 3.0
            )

    users, films = torch.randn(300, 4), torch.randn(200, 4)
    model = Factors()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    yield Parts(model, optimizer)
    for _ in range(STEPS):
        user, film = torch.randint(0, 300, (64,)), torch.randint(0, 200, (64,))
        rating = (3 + (users[user] * films[film]).sum(1)).clamp(1, 5).round()
        optimizer.zero_grad()
        functional.mse_loss(model(user, film), rating).backward()
        optimizer.step()
        yield None


@sound("MAML: an inner loop whose update is a part of the graph")
def maml() -> Loop:
    model = mlp(1, 32, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    yield Parts(model, optimizer)
    for _ in range(100):
        optimizer.zero_grad()
        total = torch.zeros(())
        for _ in range(4):
            size, phase = 1 + 2 * torch.rand(()), math.pi * torch.rand(())
            x = 6 * torch.rand(20, 1) - 3
            y = size * torch.sin(x + phase)
            weights: dict[str, torch.Tensor] = dict(model.named_parameters())
            loss = functional.mse_loss(
                torch.func.functional_call(model, weights, (x[:10],)), y[:10]
            )
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {
                name: value - 0.01 * grad
                for (name, value), grad in zip(weights.items(), grads, strict=True)
            }
            total = total + functional.mse_loss(
                torch.func.functional_call(model, weights, (x[10:],)), y[10:]
            )
        total.backward()
        optimizer.step()
        yield None


@sound("several tasks, of which a batch has one, and one has no data yet")
def tasks() -> Loop:
    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = mlp(16, 32, 32)
            self.heads = nn.ModuleDict(
                {"a": nn.Linear(32, 4), "b": nn.Linear(32, 1), "later": nn.Linear(32, 7)}
            )

        def forward(self, x: torch.Tensor, task: str) -> torch.Tensor:
            y: torch.Tensor = self.heads[task](self.trunk(x).relu())
            return y

    x, y = points()
    model = Tasks()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    yield Parts(model, optimizer)
    for step, (a, b) in enumerate(epochs(x, y)):
        loss = (
            functional.cross_entropy(model(a, "a"), b)
            if step % 2
            else 20 * functional.mse_loss(model(a, "b"), a[:, :1])
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield None


@sound("a curriculum: first the easy tasks, then the hard ones")
def curriculum() -> Loop:
    class Adder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(2, 32, batch_first=True), nn.Linear(32, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.head(self.rnn(x)[0][:, -1])[:, 0]
            return y

    model = Adder()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    yield Parts(model, optimizer)
    for step in range(300):
        length = 2 + 4 * (step // 75)
        value, marked = torch.rand(32, length), torch.zeros(32, length)
        marked.scatter_(1, torch.rand(32, length).argsort(1)[:, :2], 1.0)
        optimizer.zero_grad()
        functional.mse_loss(
            model(torch.stack([value, marked], 2)), (value * marked).sum(1)
        ).backward()
        optimizer.step()
        yield None


@sound("a sparse autoencoder, most of whose units are silent")
def sparse() -> Loop:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.act, self.down = nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 16)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            h = self.act(self.up(x))
            return self.down(h), h

    directions = functional.normalize(torch.randn(40, 16), dim=1)
    model = Sparse()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    yield Parts(model, optimizer)
    for _ in range(300):
        x = (torch.rand(64, 40) < 0.05).float() @ directions
        seen, h = model(x)
        optimizer.zero_grad()
        (functional.mse_loss(seen, x) + 3e-3 * h.sum(1).mean()).backward()
        optimizer.step()
        yield None


@sound("a picture as a function of its places, the same places in each step")
def field() -> Loop:
    class Sine(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(30 * x)

    axis = torch.linspace(-1, 1, 16)
    places = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).view(-1, 2)
    picture = torch.sin(5 * places[:, :1]) * torch.cos(3 * places[:, 1:])
    model = nn.Sequential(nn.Linear(2, 32), Sine(), nn.Linear(32, 32), Sine(), nn.Linear(32, 1))
    with torch.no_grad():
        for number in (0, 2, 4):
            layer = model[number]
            assert isinstance(layer, nn.Linear)
            bound = 0.5 if number == 0 else math.sqrt(6 / 32) / 30
            layer.weight.uniform_(-bound, bound)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    yield Parts(model, optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        functional.mse_loss(model(places), picture).backward()
        optimizer.step()
        yield None


@sound("counts by a Poisson regression, with missing numbers that the model fills in")
def counts() -> Loop:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filled, self.head = nn.Parameter(torch.zeros(6)), nn.Linear(6, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.head(torch.where(x.isnan(), self.filled, x))[:, 0]
            return y

    model, weights = Counts(), 0.5 * torch.randn(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    yield Parts(model, optimizer)
    for _ in range(STEPS):
        x = torch.randn(32, 6)
        y = torch.poisson((x @ weights).exp())
        x[torch.rand(32, 6) < 0.1] = math.nan
        optimizer.zero_grad()
        functional.poisson_nll_loss(model(x), y).backward()
        optimizer.step()
        yield None


@sound("Hogwild's half: a model whose rows are drawn with replacement, hinge loss, no bias")
def hinge() -> Loop:
    x, y = points(200, classes=2)
    model = nn.Linear(16, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=1e-3)
    yield Parts(model, optimizer)
    for _ in range(300):
        a, b = draw(x, y, size=4)
        optimizer.zero_grad()
        (1 - (2 * b - 1) * model(a)[:, 0]).clamp(min=0).mean().backward()
        optimizer.step()
        yield None
