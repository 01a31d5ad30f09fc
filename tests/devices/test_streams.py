"""Copies beside the host, on a stand-in for a device whose copies are filled in when their event is
waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from accucompare.bundle.format import Layout
from accucompare.devices import backend
from accucompare.devices.cpu import Cpu
from accucompare.devices.streams import Streams
from accucompare.live.values import to_host


class Device:
    """A device whose memory is the host's, but whose copies take until their event is waited
    for."""

    def __init__(self) -> None:
        self.pending: list[Callable[[], Any]] = []
        self.streams: list[torch.device] = []
        self.capturing = False

    def copy_(
        self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
    ) -> torch.Tensor:
        if not non_blocking:
            return torch.Tensor.copy_(target, source)
        assert source.is_contiguous()
        assert not source.is_conj()
        assert not source.is_neg()
        self.pending.append(lambda: torch.Tensor.copy_(target, source))
        return target.fill_(float("nan"))

    def current_stream(self, device: torch.device) -> str:
        self.streams.append(device)
        return f"stream of {device}"

    def event(self) -> Any:
        recorded: list[Callable[[], Any]] = []

        def record(stream: str) -> None:
            assert stream == "stream of cpu"
            recorded.extend(self.pending)

        return SimpleNamespace(record=record, synchronize=lambda: [copy() for copy in recorded])


class Pinned(torch.Tensor):
    """Memory that the stand-in takes for pinned."""

    device_: Device

    def is_pinned(self, *_: Any) -> bool:
        return True

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        return self.device_.copy_(self.as_subclass(torch.Tensor), source, non_blocking)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    module = SimpleNamespace(
        Event=made.event,
        current_stream=made.current_stream,
        is_current_stream_capturing=lambda: made.capturing,
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    return made


def pinned(device: Device, like: torch.Tensor) -> torch.Tensor:
    target = torch.empty(like.shape, dtype=like.dtype).as_subclass(Pinned)
    target.device_ = device
    return target


@pytest.mark.parametrize(
    "source",
    [
        torch.randn(3, 4).t(),
        torch.randn(2, 3, dtype=torch.complex64).conj(),
        torch._neg_view(torch.randn(3)),
        torch.randn(4),
    ],
    ids=["transposed", "conj", "neg", "plain"],
)
def test_a_copy_is_there_when_it_was_waited_for(source: torch.Tensor, device: Device) -> None:
    target = pinned(device, source)
    wait = Streams().copy_to_host(source, target)
    assert wait is not None
    assert target.as_subclass(torch.Tensor).isnan().all()
    wait()
    np.testing.assert_array_equal(
        target.as_subclass(torch.Tensor).numpy(), source.resolve_conj().resolve_neg().numpy()
    )
    assert device.streams == [source.device]


def test_a_tensor_of_a_graph_that_is_being_captured_is_unreadable(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accucompare.devices.backend", lambda kind: Streams())
    there = torch.randn(3, 4).t()  # not contiguous: it is copied as one of a device would be
    assert to_host(there).layout is Layout.STRIDED
    device.capturing = True
    told = to_host(there)
    assert told.layout is Layout.UNREADABLE
    assert "a graph is being captured" in str(told.detail)


def test_without_pinned_memory_the_copy_is_done_at_once(device: Device) -> None:
    source, target = torch.randn(3, 4).t(), torch.empty(4, 3)
    assert Streams().copy_to_host(source, target) is None
    assert torch.equal(target, source)


def test_where_nothing_can_be_pinned_ordinary_memory_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = torch.empty

    def empty(*arguments: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if pin_memory:
            raise RuntimeError("Cannot access accelerator device when none is available.")
        return plain(*arguments, **options)

    monkeypatch.setattr(torch, "empty", empty)
    assert Streams().host_memory(12).nbytes == 12


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_host_memory_can_be_written_in_any_mode(mode: Any) -> None:
    with mode():
        memory = Cpu().host_memory(8)
    assert memory.fill_(1).tolist() == [1] * 8


@pytest.mark.parametrize("type", ["cpu", "cuda", "npu", "xpu"])
def test_every_type_of_device_has_memory_and_a_way_to_copy(type: str) -> None:
    found = backend(type)
    memory = found.host_memory(12)
    wait = found.copy_to_host(torch.arange(3.0), memory.view(torch.float32))
    if wait is not None:
        wait()
    assert memory.view(torch.float32).tolist() == [0, 1, 2]
