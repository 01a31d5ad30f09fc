"""Run by test_simnpu in a process that has the simulated NPU: what PyTorch does with a device, one
function each.

Prints what failed, as a table of names and errors.
"""

from __future__ import annotations

import copy
import io
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.scores = nn.Linear(4, 5, bias=False)
        self.scores.weight = self.words.weight


def tied_weights() -> None:
    model = _Tied().to("npu")
    assert model.scores.weight is model.words.weight
    model = copy.deepcopy(model)
    assert model.scores.weight is model.words.weight
    assert model.words.weight.device.type == "npu"


def copies() -> None:
    values = torch.randn(4, 6)
    device = values.npu()
    assert torch.equal(device.cpu(), values)
    assert torch.equal(device.t().cpu(), values.t())
    assert torch.equal(device.to("cpu", torch.float64), values.double())
    assert torch.equal(torch.empty(6, 4).copy_(device.t()), values.t())
    assert torch.equal(torch.empty(4, 12)[:, ::2].copy_(device), values)
    assert torch.equal(torch.empty(6, 4).npu().t().copy_(values).cpu(), values)
    assert torch.equal(torch.empty(4, 6, dtype=torch.half).copy_(device), values.half())
    assert device[1, 2].item() == values[1, 2].item()


def dtypes() -> None:
    for dtype in (
        torch.int8,
        torch.int64,
        torch.bool,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.complex64,
        torch.float8_e4m3fn,
    ):
        values = torch.ones(3).to(dtype)
        assert torch.equal(values.npu().cpu().view(torch.uint8), values.view(torch.uint8)), dtype
    assert torch.ones(2).npu().double().dtype == torch.float32  # as torch_npu has it
    assert torch.isinf(torch.full((2,), 6e4, dtype=torch.half, device="npu") * 2).all()


def views() -> None:
    values = torch.arange(12.0).npu().view(3, 4)
    values.t()[1:3].mul_(2)
    assert values.cpu()[0].tolist() == [0, 2, 4, 3]
    values.unsqueeze_(0).squeeze_().transpose_(0, 1)
    assert values.shape == (4, 3)
    values[values == 0] = 7.0
    assert values[0, 0].item() == 7
    assert values.unfold(0, 2, 2).shape == (2, 3, 2)
    assert torch.view_as_real(torch.ones(2, dtype=torch.complex64).npu()).shape == (2, 2)


def autocast() -> None:
    model, values = nn.Linear(4, 4).to("npu"), torch.randn(2, 4, device="npu")
    with torch.autocast("npu", dtype=torch.bfloat16):
        output = model(values)
        assert output.dtype == torch.bfloat16
        assert output.softmax(-1).dtype == torch.float32
    scaler, optimizer = torch.amp.GradScaler("npu"), torch.optim.SGD(model.parameters(), 0.1)
    scaler.scale(output.float().sum()).backward()
    scaler.step(optimizer)
    scaler.update()


def inference_mode() -> None:
    with torch.inference_mode():
        assert nn.Linear(4, 4).to("npu")(torch.randn(2, 4, device="npu")).is_inference()


def optimizers() -> None:
    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        for options in ({}, {"foreach": True}, {"foreach": False}, {"fused": True}):
            model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
            stepped = []
            for device in ("cpu", "npu"):
                trained = copy.deepcopy(model).to(device)
                optimizer = make(
                    trained.parameters(), lr=0.01, **(options if device == "npu" else {})
                )
                for _ in range(2):
                    optimizer.zero_grad()
                    trained(torch.arange(8.0, device=device).view(2, 4)).pow(2).mean().backward()
                    optimizer.step()
                stepped.append([parameter.detach().cpu() for parameter in trained.parameters()])
            for golden, candidate in zip(*stepped, strict=True):
                assert torch.allclose(golden, candidate, atol=1e-6), (make, options)


def random_numbers() -> None:
    host = torch.get_rng_state()
    draws: list[Callable[[], torch.Tensor]] = [
        lambda: torch.randn(9, device="npu"),
        lambda: torch.randperm(99, device="npu"),
        lambda: torch.bernoulli(torch.full((99,), 0.5, device="npu")),
        lambda: torch.multinomial(torch.ones(50, device="npu"), 20),
        lambda: F.dropout(torch.ones(99, device="npu")),
        lambda: torch.empty(9, device="npu").uniform_(),
    ]
    for draw in draws:
        torch.npu.manual_seed(1)
        first, second = draw(), draw()
        torch.npu.manual_seed(1)
        assert torch.equal(first, draw())
        assert not torch.equal(first, second)
    state = torch.npu.get_rng_state()
    first = torch.rand(4, device="npu")
    torch.npu.set_rng_state(state)
    assert torch.equal(first, torch.rand(4, device="npu"))
    generator = torch.Generator("npu").manual_seed(5)
    first = torch.rand(4, device="npu", generator=generator)
    assert torch.equal(first, torch.rand(4, device="npu", generator=generator.manual_seed(5)))
    assert torch.equal(host, torch.get_rng_state())


def dropout_and_checkpoints() -> None:
    values = torch.ones(1000, device="npu", requires_grad=True)
    dropped = F.dropout(values, 0.3)
    dropped.sum().backward()
    assert torch.equal(values.grad, dropped.detach())
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).to("npu")
    for reentrant in (True, False):
        values = torch.randn(2, 4, device="npu", requires_grad=True)
        checkpoint(model, values, use_reentrant=reentrant).sum().backward()
        assert values.grad is not None


def saved_state() -> None:
    model = nn.Linear(3, 3).to("npu")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for device in ("npu", "cpu"):
        file.seek(0)
        state = torch.load(file, map_location=device)
        assert state["weight"].device.type == device
        assert torch.equal(state["weight"].cpu(), model.weight.detach().cpu())
    other = nn.Linear(3, 3).to("npu")
    other.load_state_dict(state)
    assert torch.equal(other.weight, model.weight)


def attention() -> None:
    query, key, value = (torch.randn(2, 4, 5, 8) for _ in range(3))
    keep = torch.rand(5, 5) > 0.3
    keep.fill_diagonal_(True)
    for options in ({}, {"is_causal": True}, {"attn_mask": keep}, {"attn_mask": torch.randn(5, 5)}):
        moved = {
            name: option.npu() if isinstance(option, torch.Tensor) else option
            for name, option in options.items()
        }
        golden = F.scaled_dot_product_attention(query, key, value, **options)
        candidate = F.scaled_dot_product_attention(query.npu(), key.npu(), value.npu(), **moved)
        assert torch.allclose(golden, candidate.cpu(), atol=1e-6), options
    F.scaled_dot_product_attention(
        query.npu(), key[:, :2].npu(), value[:, :2].npu(), enable_gqa=True
    )


def streams_and_memory() -> None:
    stream, start, end = (
        torch.npu.Stream(),
        torch.npu.Event(enable_timing=True),
        torch.npu.Event(enable_timing=True),
    )
    start.record()
    with torch.npu.stream(stream):
        values = torch.ones(1 << 18, device="npu") * 2
        end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    values.record_stream(stream)
    assert torch.npu.memory_allocated() >= 1 << 20
    pinned = torch.empty(4, pin_memory=True)
    assert pinned.is_pinned()
    pinned.copy_(values[:4], non_blocking=True)
    torch.npu.synchronize()
    assert pinned.tolist() == [2, 2, 2, 2]


def threads() -> None:
    sums = []
    workers = [
        threading.Thread(
            target=lambda: sums.append(
                torch.ones(4, 4, device="npu").mm(torch.ones(4, 4, device="npu")).sum().item()
            )
        )
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sums == [64] * 4


def names() -> None:
    import torch_npu

    assert torch.npu.get_device_name() == "simulated"
    assert torch_npu.npu.utils.get_cann_version("CANN") == "simulated"
    assert "npu:0" in repr(torch.ones(2, device="npu"))
    assert type(torch.ones(2, device="npu")) is torch.Tensor


def transforms() -> None:
    assert torch.func.grad(lambda values: (values**2).sum())(
        torch.ones(3, device="npu")
    ).tolist() == [2, 2, 2]
    assert torch.vmap(torch.sum)(torch.ones(3, 2, device="npu")).tolist() == [2, 2, 2]
    torch.compile(nn.Linear(4, 4).to("npu"), backend="eager")(torch.randn(2, 4, device="npu"))


CHECKS: list[Callable[[], Any]] = [
    tied_weights, copies, dtypes, views, autocast, inference_mode, optimizers, random_numbers,
    dropout_and_checkpoints, saved_state,
    attention, streams_and_memory, threads, names, transforms,
]  # fmt: skip


def main() -> None:
    assert "torch_npu" in sys.modules, "import torch has not loaded it"
    failed = {}
    for check in CHECKS:
        try:
            check()
        except Exception as error:
            failed[check.__name__] = f"{type(error).__name__}: {error}"
    print(json.dumps(failed))


if __name__ == "__main__":
    main()
