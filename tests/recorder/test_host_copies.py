"""What a hook copies, and when: nothing that the step has already, nothing that a device has not
finished, nothing over the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn

import accucompare as ac
from accucompare.bundle.format.records import Layout, Role
from accucompare.bundle.writing.writer import BundleWriter
from accucompare.devices.cpu import Cpu
from accucompare.live.values.tensors import added, from_bits
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session import recording
from tests.recorded import Glue, Opened, Record


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each tensor that was copied."""
    sizes: list[int] = []
    plain = BundleWriter.take

    def take(self: BundleWriter, nbytes: int, allocate: Callable[[int], Any]) -> Any:
        sizes.append(nbytes)
        return plain(self, nbytes, allocate)

    monkeypatch.setattr(BundleWriter, "take", take)
    # none is too small for a block of memory
    monkeypatch.setattr("accucompare.live.values.tensors._SMALL", -1)
    return sizes


# what the step has already


def test_a_tensor_that_is_passed_on_is_copied_once(record: Record, taken: list[int]) -> None:
    bundle = record(
        nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity(), nn.Identity())), torch.randn(5)
    )
    assert taken == [20]
    assert len(list(bundle.records())) == 10


def test_equal_content_is_copied_once_whichever_tensor_holds_it(
    record: Record, taken: list[int]
) -> None:
    record(Glue(lambda self, x: (x.clone(), x + 0)), torch.ones(5))
    assert taken == [20]


def test_a_tensor_changed_behind_autograds_back_is_copied_again(
    record: Record, taken: list[int]
) -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        version = y._version
        y.data.mul_(2)
        assert y._version == version
        return self.second(y)

    bundle = record(Glue(forward, first=nn.Identity(), second=nn.Identity()), torch.ones(3))
    assert taken == [12, 12]
    assert bundle.load("first").tolist() == [1, 1, 1]
    assert bundle.load("second").tolist() == [2, 2, 2]


def _masked(y: torch.Tensor) -> None:
    y.data[7, 5] = 0


def _masked_in_numpy(y: torch.Tensor) -> None:
    y.detach().numpy()[1::2, 1] = 0


@pytest.mark.parametrize("mode", ["tensors", "stats", "digest"])
@pytest.mark.parametrize("write", [_masked, _masked_in_numpy])
def test_a_large_tensor_of_which_little_changed_uncounted_is_another_record(
    record: Record, write: Callable[[torch.Tensor], None], mode: str
) -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x + 1)
        version = y._version
        write(y)
        assert y._version == version
        return self.second(y)

    parts = {name: nn.Identity() for name in ("first", "second")}
    bundle = record(Glue(forward, **parts), torch.ones(512, 512), options={"mode": mode})
    found = {(each.name, each.role): each.digest for each in bundle.records()}
    assert None not in found.values()
    assert found["first", Role.OUTPUT] != found["second", Role.INPUT]


def test_a_large_cache_that_a_call_writes_into_uncounted_is_another_record(record: Record) -> None:
    def attend(self: nn.Module, cache: torch.Tensor) -> torch.Tensor:
        cache.data[:, 9] += 1
        return cache.sum()

    def forward(self: nn.Module, cache: torch.Tensor) -> torch.Tensor:
        self.first(cache)
        return self.second(cache)

    parts = {name: Glue(attend) for name in ("first", "second")}
    bundle = record(Glue(forward, **parts), torch.zeros(4, 256, 64))
    assert [float(bundle.load(name, role=Role.INPUT, path="0").sum()) for name in parts] == [
        0,
        4 * 64,
    ]


def test_each_step_copies_anew(tmp_path: Path, taken: list[int], opened: Opened) -> None:
    model = nn.Identity()
    with ac.capture(model, tmp_path / "out") as session:
        for _ in range(2):
            model(torch.ones(5))
            session.step()
    assert taken == [20, 20]
    assert [opened(tmp_path / "out").load("", step=step).tolist() for step in range(2)] == [
        [1] * 5
    ] * 2


@pytest.mark.parametrize("mode", ["tensors", "stats", "digest"])
def test_what_is_written_in_place_between_two_calls_is_another_record(
    record: Record, mode: str
) -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x + 1)
        self.same(y)
        return self.second(y.add_(1))

    parts = {name: nn.Identity() for name in ("first", "same", "second")}
    bundle = record(Glue(forward, **parts), torch.ones(3), options={"mode": mode})
    found = {(each.name, each.role): each.digest for each in bundle.records() if each.name in parts}
    assert len(set(found.values())) == 2
    assert found["same", Role.OUTPUT] == found["first", Role.OUTPUT] is not None
    assert found["second", Role.INPUT] == found["second", Role.OUTPUT] != found["first", Role.INPUT]


def test_memory_that_another_tensor_gets_is_read_again(record: Record) -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for number in range(8):
            self.part(torch.full((50_000,), float(number)))  # malloc gives the same place again
        return x

    bundle = record(Glue(forward, part=nn.Identity()), torch.ones(1))
    assert [bundle.load("part", call=call)[0] for call in range(8)] == [*range(8)]


@pytest.mark.parametrize("part", [slice(None), slice(2, None), slice(1, None, 2)])
def test_memory_that_was_given_back_is_not_read(record: Record, part: slice) -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = (x + 1)[part]
        y.untyped_storage().resize_(0)
        self.part(y)
        return x

    bundle = record(Glue(forward, part=nn.Identity()), torch.ones(5))
    found = [each for each in bundle.records() if each.name == "part"]
    assert {(each.layout, each.digest) for each in found} == {(Layout.UNREADABLE, None)}


@pytest.mark.parametrize("transform", ["functionalize", "grad"])
def test_a_tensor_that_a_transform_has_wrapped_is_not_read(record: Record, transform: str) -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        run = getattr(torch.func, transform)(lambda x: self.part(x).sum())
        result: torch.Tensor = run(x)
        return result

    bundle = record(Glue(forward, part=nn.Identity()), torch.ones(5))
    found = [each for each in bundle.records() if each.name == "part"]
    assert {(each.layout, each.digest) for each in found} == {(Layout.UNREADABLE, None)}
    assert "torch.func" in found[0].detail


@pytest.mark.parametrize("transform", ["functionalize", "grad", "vmap"])
def test_a_plain_tensor_is_read_inside_a_transform(record: Record, transform: str) -> None:
    matrix = torch.randn(90, 90)
    parts = [nn.Parameter(matrix), matrix.t(), matrix[:3, :3]]

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        def function(x: torch.Tensor) -> torch.Tensor:
            for part in parts:
                self.part(part)
            return x.sum()

        result: torch.Tensor = getattr(torch.func, transform)(function)(x)
        return result

    bundle = record(Glue(forward, part=nn.Identity()), torch.ones(5))
    for call, part in enumerate(parts):
        found = bundle.load("part", call=call, role=Role.INPUT, path="0")
        assert np.array_equal(found, part.detach().numpy())


def test_types_stored_alike_share_a_member_but_not_statistics(record: Record) -> None:
    bits = torch.tensor([0x3F80, 0x4000], dtype=torch.int32).to(torch.uint16)
    bundle = record(Glue(lambda self, x: x.view(torch.bfloat16)), bits)
    given_, found = bundle.records()
    assert given_.member == found.member
    assert given_.statistics is not None
    assert found.statistics is not None
    assert (given_.statistics.max, found.statistics.max) == (0x4000, 2.0)


def test_a_tensor_that_is_not_contiguous_shares_the_member_of_its_contiguous_copy(
    record: Record,
) -> None:
    x = torch.randn(3, 4)
    bundle = record(Glue(lambda self, x: (x.t(), x.t().contiguous())), x)
    assert bundle.find("", path="0").member == bundle.find("", path="1").member


def test_equal_inputs_each_have_a_fingerprint(record: Record) -> None:
    inputs = record(Glue(lambda self, x, y: x), torch.ones(2), torch.ones(2)).manifest.inputs["0"]
    assert list(inputs) == ["0", "1"]


# memory used again


def test_a_block_used_again_holds_nothing_of_its_last_tensor(record: Record) -> None:
    layers = [nn.Linear(8, 8) for _ in range(12)]
    bundle = record(nn.Sequential(*layers), torch.randn(4, 8), options={"queue_bytes": 300})
    x = torch.from_numpy(bundle.load("", role="input"))
    for number, layer in enumerate(layers):
        x = layer(x).detach()
        np.testing.assert_array_equal(bundle.load(str(number)), x.numpy())


def test_memory_taken_in_inference_mode_is_used_again_outside_of_it(
    tmp_path: Path, opened: Opened
) -> None:
    model = Glue(lambda self, x: x.t())
    with recording(model, tmp_path / "out", CaptureOptions(queue_bytes=64)) as session:
        for mode in (torch.inference_mode, torch.no_grad):
            with mode():
                model(torch.arange(6.0).reshape(2, 3))
            session.step()
    assert [opened(tmp_path / "out").load("", step=step).shape for step in range(2)] == [(3, 2)] * 2
    assert opened(tmp_path / "out").complete


def test_what_waits_stays_within_the_bound_while_a_model_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, most = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))), []
    plain = BundleWriter.take

    def take(self: BundleWriter, nbytes: int, allocate: Callable[[int], Any]) -> Any:
        lease = plain(self, nbytes, allocate)
        most.append(self.memory.kept)
        return lease

    monkeypatch.setattr(BundleWriter, "take", take)
    # none is too small for a block of memory
    monkeypatch.setattr("accucompare.live.values.tensors._SMALL", -1)
    with recording(model, tmp_path / "out", CaptureOptions(queue_bytes=5000)):
        model(torch.randn(8, 64))
    assert len(most) == 9
    assert max(most) <= 5000


def test_a_large_tensor_is_copied_whole(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accucompare.live.values.tensors._LARGE", 1)  # from here on by two threads
    for count in (1, 2, 1001):
        x = torch.randn(count)
        np.testing.assert_array_equal(record(nn.Identity(), x).load(""), x.numpy())


# devices that copy beside the host


@pytest.fixture
def lazily(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Copies of tensors that are not contiguous are filled in when they are waited for, as a
    device's are; gives their sizes.
    """
    begun: list[int] = []

    def copy_to_host(self: Cpu, source: torch.Tensor, target: torch.Tensor) -> Callable[[], None]:
        values = source.clone()
        target.view(torch.uint8).fill_(0xFF)
        begun.append(target.nbytes)

        def wait() -> None:
            target.copy_(values)

        return wait

    monkeypatch.setattr(Cpu, "copy_to_host", copy_to_host)
    return begun


def test_a_devices_tensor_is_read_when_its_copy_is_there(record: Record, lazily: list[int]) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    bundle = record(nn.Sequential(nn.ReLU(inplace=True), nn.Identity()), x.t())
    assert lazily == [24] * 6
    np.testing.assert_array_equal(bundle.load("0"), x.t())
    assert len({entry.member for entry in bundle.records()}) == 1
    assert bundle.manifest.inputs["0"]["0"]["digests"]["float32"] == bundle.find("1").digest


def test_a_devices_parameters_and_state_are_read_when_their_copies_are_there(
    record: Record, lazily: list[int]
) -> None:
    model = nn.Module()
    model.register_parameter("w", nn.Parameter(torch.arange(6.0).reshape(2, 3).t()))
    model.forward = lambda x: x  # type: ignore[method-assign]
    bundle = record(model, torch.ones(1), options={"save_state": True})
    (saved,) = [entry for entry in bundle.state() if entry.role is Role.PARAM]
    np.testing.assert_array_equal(from_bits(bundle.raw(saved), saved.dtype), model.w.detach())
    assert bundle.manifest.model["parameters"]["w"]["digests"]["float32"] == saved.digest


def test_memory_of_a_copy_that_fails_is_given_back(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Cpu, source: torch.Tensor, target: torch.Tensor) -> None:
        raise RuntimeError("device lost")

    monkeypatch.setattr(Cpu, "copy_to_host", fails)
    # the copy would wait for ever
    bundle = record(Glue(lambda self, x: x.t()), torch.ones(2, 3), options={"queue_bytes": 24})
    assert bundle.find("").detail == "RuntimeError: device lost"
    assert bundle.load("", role="input").shape == (2, 3)


# any model


class Step(nn.Module):
    """One thing that a model may do with a tensor."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.leaf = nn.ReLU(inplace=kind == "inplace")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.leaf(x.t().contiguous().t() if self.kind == "strided" else x)
        if self.kind == "data":
            y.data.add_(1)
        elif self.kind == "version":
            y += 1
        elif self.kind == "after":
            x.neg_()
        elif self.kind == "half":
            y = y.bfloat16()
        elif self.kind == "bits":
            y = y.view(torch.int32 if y.dtype == torch.float32 else torch.int16).view(y.dtype)
        elif self.kind == "transposed":
            y = y.t()
        return y


def naively(model: nn.Module, run: Callable[[], Any]) -> list[tuple[str, str, torch.Tensor]]:
    """What plain hooks see that clone everything."""
    seen: list[tuple[str, str, torch.Tensor]] = []
    for name, module in model.named_modules():
        module.register_forward_pre_hook(
            lambda module, args, name=name: seen.append((name, "input", args[0].clone())) and None
        )
        module.register_forward_hook(
            lambda module, args, output, name=name: (
                seen.append((name, "output", output.clone())) and None
            )
        )
    run()
    return seen


KINDS = ["plain", "inplace", "strided", "data", "version", "after", "half", "bits", "transposed"]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), min_size=1, max_size=4),
    st.sampled_from([1, 100, 1 << 20]),
)
@pytest.mark.parametrize("mode", ["tensors", "stats"])
def test_any_model_is_recorded_as_plain_hooks_that_clone_everything_see_it(
    mode: str, tmp_path: Path, kinds: list[list[str]], queue_bytes: int
) -> None:
    model = nn.Sequential(*(nn.Sequential(*map(Step, inner)) for inner in kinds))
    x = torch.randn(3, 5)
    with (
        torch.no_grad(),
        recording(
            model,
            tmp_path / "out",
            CaptureOptions(overwrite=True, queue_bytes=queue_bytes, mode=mode),
        ),
    ):
        model(x.clone())
    with torch.no_grad():
        expected = naively(model, lambda: model(x.clone()))
    with ac.open_bundle(tmp_path / "out") as bundle, torch.no_grad():
        records = [entry for entry in bundle.records() if entry.role is not Role.ARGUMENT_UPDATE]
        assert [(entry.name, entry.role) for entry in records] == [
            (name, role) for name, role, _ in expected
        ]
        for entry, (_, _, tensor) in zip(records, expected, strict=True):
            assert (entry.shape, f"torch.{entry.dtype}") == (tensor.shape, str(tensor.dtype))
            assert entry.statistics is not None
            assert entry.statistics.max == tensor.max().item()
            if mode == "tensors":
                assert torch.equal(from_bits(bundle.raw(entry), entry.dtype), tensor)


@given(st.integers(1, 40), st.sampled_from([torch.float32, torch.bfloat16]), st.booleans())
@settings(max_examples=20, deadline=None)
def test_a_sum_in_lent_memory_has_the_bits_of_any_other(
    rows: int, dtype: torch.dtype, transposed: bool
) -> None:
    one, other = torch.randn(2, rows, 512).to(dtype).unbind()
    other = other.t().contiguous().t() if transposed else other
    lent: list[int] = []

    def lend(nbytes: int) -> Any:
        lent.append(nbytes)
        return np.empty(nbytes, np.uint8)

    total = added(one, other, lend)
    assert torch.equal(total, one + other)
    assert (total.dtype, total.shape) == (dtype, one.shape)
    in_place = one.nbytes > 16 << 10 and other.is_contiguous()
    assert lent == ([one.nbytes] if in_place else [])


def test_the_gradient_at_a_residual_is_the_sum_of_its_parts(tmp_path: Path, opened: Opened) -> None:
    inner = Glue(lambda self, x: x * x)
    outer = Glue(lambda self, x: self.inner(x) + x, inner=inner)
    model = Glue(lambda self, x: self.outer(x * 1), outer=outer)
    x = torch.randn(80, 80, requires_grad=True)
    with ac.capture(model, tmp_path / "golden"):
        model(x).sum().backward()
    bundle = opened(tmp_path / "golden")
    (found,) = (
        bundle.values(each)
        for each in bundle.records()
        if (each.name, each.role) == ("outer", Role.GRAD_INPUT)
    )
    assert np.allclose(found, (2 * x + 1).detach().numpy(), rtol=1e-6, atol=1e-6)
