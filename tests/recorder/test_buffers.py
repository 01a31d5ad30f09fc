"""What calls and steps write into buffers and arguments: recorded where it is written, and each
error its writer's own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import accucompare as ac
from accucompare.bundle.format.records import WRITTEN_ROLES, Record, Role
from accucompare.compare.decide import Answer
from accucompare.compare.rows.rows import Reason, Status
from accucompare.live.values import tensors
from accucompare.recorder.recording import inner_tensors, making
from tests.asked import grouped
from tests.recorded import Opened


class Writer(nn.Module):
    """Returns the same whatever it writes, which ``scale`` makes wrong."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("kept", torch.zeros(8))

    def write(self, x: torch.Tensor) -> None:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.write(x)
        return x * 2


class Lerp(Writer):
    def write(self, x: torch.Tensor) -> None:
        self.kept.lerp_(x.mean(0), 0.1 * self.scale)


class ByData(Writer):
    """As a codebook does, so that no write is counted."""

    def write(self, x: torch.Tensor) -> None:
        self.kept.data.lerp_(x.mean(0), 0.1 * self.scale)


class Cache(Writer):
    """As a cache of keys does, which later calls read."""

    def write(self, x: torch.Tensor) -> None:
        self.kept.index_copy_(0, torch.arange(4), x[0, :4] * self.scale)


class Assigned(Writer):
    def write(self, x: torch.Tensor) -> None:
        self.kept = x[0] * self.scale


class Registered(Writer):
    def write(self, x: torch.Tensor) -> None:
        self.register_buffer("late", x[0] * self.scale, persistent=False)


class Plain(Writer):
    """Keeps what it writes in an attribute that is no buffer."""

    def __init__(self, scale: float) -> None:
        super().__init__(scale)
        self.plain = torch.zeros(8)

    def write(self, x: torch.Tensor) -> None:
        self.plain.copy_(x[0] * self.scale)


class SetLater(Writer):
    """Keeps it in attributes that hold nothing, or are not there, before."""

    def __init__(self, scale: float) -> None:
        super().__init__(scale)
        self.later: torch.Tensor | None = None

    def write(self, x: torch.Tensor) -> None:
        self.later = x[0] * self.scale
        self.last = x[1:] * self.scale


class Inside(Writer):
    """Keeps it in what it has among its attributes: containers, objects, an array."""

    def __init__(self, scale: float) -> None:
        super().__init__(scale)
        self.cache: dict[Any, Any] = {"k": torch.zeros(8), "other": self.kept}
        self.history: deque[torch.Tensor] = deque(maxlen=3)
        self.state: Any = SimpleNamespace(pair=(), around=self, rows=[{}])
        self.array = np.zeros(8)

    def write(self, x: torch.Tensor) -> None:
        # writes that are not counted are no step's
        self.cache["k"].data.copy_(x[0])
        self.array[:] = x[0].float().numpy()
        found = x[0] * self.scale
        self.cache[8, x.dtype, x.device] = found + 1
        self.history.append(found)
        self.state.pair = (found + 2, found + 3)
        self.state.rows[0]["of.it"] = found + 4


class Counter(Writer):
    def __init__(self, scale: float) -> None:
        super().__init__(scale)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def write(self, x: torch.Tensor) -> None:
        self.count += int(self.scale)


class Norm(nn.BatchNorm1d):
    """Whose running statistics are written without a count."""

    def __init__(self, scale: float) -> None:
        super().__init__(8, momentum=0.1 * scale)


class Uncounted(Norm):
    """The same without the counter beside them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            True,
            self.momentum,
            self.eps,
        )


class Fills(nn.Module):
    """Writes into what it is given, and returns nothing."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor, out: torch.Tensor, found: dict[str, torch.Tensor]) -> None:
        out.copy_(x * self.scale)
        found["mean"] = x.mean(0) * self.scale


class Caller(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.fills = Fills(scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, found = torch.zeros_like(x), {"mean": x[0]}
        self.fills(x, out, found)
        return out + found["mean"]


BUFFERS: dict[str, Callable[[float], nn.Module]] = {
    kind.__name__.lower(): kind
    for kind in (
        Lerp,
        ByData,
        Cache,
        Assigned,
        Registered,
        Plain,
        SetLater,
        Inside,
        Counter,
        Norm,
        Uncounted,
    )
}


def net(kind: str, scale: float = 1.0) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 8), {**BUFFERS, "caller": Caller}[kind](scale), nn.Linear(8, 4)
    )


def train(
    model: nn.Module,
    out: Path,
    *,
    loop: Callable[[nn.Module], None] | None = None,
    between: Callable[[nn.Module], None] | None = None,
    steps: int = 2,
    calls: int = 1,
    **options: Any,
) -> Path:
    """Train with plain SGD. ``loop`` is called after each update, ``between`` when the step is
    over; ``calls`` micro-batches.
    """
    dtype = next(model.parameters()).dtype
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.capture(model, out, **grouped(**options)) as session:
        for step in range(steps):
            for call in range(calls):
                x = torch.randn(16, 8, generator=torch.Generator().manual_seed(10 * step + call))
                model(x.to(dtype)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if loop is not None:
                loop(model)
            session.step()
            if between is not None:
                between(model)
    return out


def failing(comparison: ac.Comparison) -> Iterator[Record]:
    return (
        row.record
        for row in comparison.rows
        if row.status is Status.FAIL and row.record is not None
    )


@pytest.mark.parametrize("kind", BUFFERS)
def test_a_wrong_write_into_a_buffer_is_its_modules_culprit_and_nothing_elses(
    kind: str, tmp_path: Path
) -> None:
    golden = train(net(kind), tmp_path / "golden")
    for options in ({}, {"feed": golden, "force": True}):
        comparison = ac.diff(
            golden, train(net(kind, 3.0), tmp_path / "candidate", overwrite=True, **options)
        )
        assert not comparison.passed
        assert [culprit.name for culprit in comparison.culprits] == ["1"]
        assert {record.name for record in failing(comparison)} == {"1"}
        assert next(failing(comparison)).step == 0
        if options:  # each step began with golden's
            assert {row.reason for row in comparison.rows if row.status is Status.FAIL} == {
                Reason.INTRODUCED
            }


@pytest.mark.parametrize("kind", [*BUFFERS, "caller"])
def test_the_same_writes_are_identical_and_rounded_ones_pass(kind: str, tmp_path: Path) -> None:
    golden = train(net(kind), tmp_path / "golden", calls=2)
    assert any(record.role in WRITTEN_ROLES for record in ac.open_bundle(golden).records())
    assert (
        ac.diff(golden, train(net(kind), tmp_path / "fed", calls=2, feed=golden)).answer
        is Answer.IDENTICAL
    )
    rounded = train(net(kind).bfloat16(), tmp_path / "candidate", calls=2, feed=golden, force=True)
    assert ac.diff(golden, rounded).answer is Answer.ROUNDING


@pytest.mark.parametrize("kind", ["fed", "free"])
def test_a_wrong_write_into_an_argument_is_its_writers(kind: str, tmp_path: Path) -> None:
    golden = train(net("caller"), tmp_path / "golden")
    fed = {"feed": golden, "force": True} if kind == "fed" else {}
    comparison = ac.diff(golden, train(net("caller", 3.0), tmp_path / "candidate", **fed))
    first = next(failing(comparison))
    assert (first.name, first.role, first.path) == ("1.fills", Role.ARGUMENT_UPDATE, "1")
    assert comparison.culprits[0].place in (
        "1.fills (written into argument 1)",
        "1.fills (written into argument 2.mean)",
    )
    if fed:
        wrong = {
            (record.name, record.path)
            for record in failing(comparison)
            if record.role is Role.ARGUMENT_UPDATE
        }
        assert wrong == {("1.fills", "1"), ("1.fills", "2.mean")}
        assert not any(record.role in (Role.INPUT, Role.OUTPUT) for record in failing(comparison))


def test_a_tensor_that_is_given_twice_or_returned_is_recorded_once(
    tmp_path: Path, opened: Opened
) -> None:
    class Writes(nn.Module):
        def forward(
            self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
        ) -> torch.Tensor:
            a.copy_(x)
            return out.copy_(x)

    model, both = Writes(), torch.zeros(2)
    with torch.no_grad(), ac.capture(model, tmp_path / "golden"):
        model(torch.ones(2), both, both, torch.zeros(2))
    found = [
        record.path
        for record in opened(tmp_path / "golden").records()
        if record.role is Role.ARGUMENT_UPDATE
    ]
    assert found == ["1"]


def test_a_model_that_returns_nothing_is_judged_by_what_it_writes(tmp_path: Path) -> None:
    def fill(scale: float, out: Path) -> Path:
        model = Fills(scale)
        with torch.no_grad(), ac.capture(model, out):
            model(torch.ones(2, 3), torch.zeros(2, 3), {})
        return out

    golden = fill(1.0, tmp_path / "golden")
    assert ac.diff(golden, fill(1.0, tmp_path / "same")).answer is Answer.IDENTICAL
    assert not ac.diff(golden, fill(2.0, tmp_path / "other")).passed


@pytest.mark.parametrize("fed", [False, True])
def test_a_write_that_is_missing_is_told_at_its_module(fed: bool, tmp_path: Path) -> None:
    golden = train(net("lerp"), tmp_path / "golden")
    model = net("lerp")
    model[1].write = lambda x: None  # type: ignore[assignment, method-assign]
    comparison = ac.diff(
        golden, train(model, tmp_path / "candidate", **({"feed": golden} if fed else {}))
    )
    assert not comparison.passed
    assert comparison.culprits[0].place == "1.kept (buffer update)"
    assert "1.kept (buffer update)" in comparison.conclusion


def test_what_is_inside_of_attributes_has_its_place_as_name(tmp_path: Path, opened: Opened) -> None:
    found = opened(train(net("inside"), tmp_path / "golden", steps=4)).records()
    written = {(each.step, each.role, each.path) for each in found if each.role in WRITTEN_ROLES}
    names = "cache.k", "cache.(8,dtype,device)", "state.pair.1", "state.rows.0.of.it", "array"
    assert {(0, Role.BUFFER_UPDATE, name) for name in names[1:]} < written
    # a queue's items move on; each is a write once, and where it is at the end
    for step, item in ((0, 0), (1, 1), (2, 2), (3, 2)):
        assert (step, Role.BUFFER_UPDATE, f"history.{item}") in written
    assert {(4, Role.BUFFER_BEFORE, name) for name in ("cache.k", "history.0")} < written
    assert not [path for *_, path in written if "other" in path or "around" in path]


@pytest.mark.parametrize("fed", [False, True])
def test_an_attribute_in_which_one_side_keeps_nothing_is_no_bug(fed: bool, tmp_path: Path) -> None:
    keeps, lacks = tmp_path / "keeps", tmp_path / "lacks"
    for kind, golden, candidate, answer in (
        ("setlater", keeps, lacks, Answer.NOT_SURE),
        ("setlater", lacks, keeps, Answer.IDENTICAL_SO_FAR),
        ("inside", keeps, lacks, Answer.NOT_SURE),
    ):
        for out in (golden, candidate):
            model = net(kind)
            if kind == "inside":
                model[1].cache.clear()
                model[1].write = lambda x, own=model[1]: own.cache.setdefault("k", x[0])
            if out is lacks:
                model[1].write = lambda x: None  # type: ignore[assignment, method-assign]
            feed = {"feed": golden} if fed and out is candidate else {}
            train(model, out, overwrite=True, **feed)
        assert ac.diff(golden, candidate).answer is answer


class Counts(nn.Module):
    """Changes numbers of its own; ``wrong`` names the one that it changes otherwise."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.calls, self._hidden, self.mean, self.when = 0, 0, 0.0, 0.0
        self.forward_ms = 0.0
        self.sums = {"n": 0, "time": 0.0}
        self.state = SimpleNamespace(held={})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1 + (self.wrong == "calls")
        self._hidden += self.wrong != "_hidden"
        self.mean = 0.5 * self.mean + x.abs().mean().item() * (1 + (self.wrong == "mean"))
        self.sums["n"] += 1 + (self.wrong == "sums.n")
        self.when = time.time()
        self.forward_ms += time.thread_time()
        self.sums["time"] = self.forward_ms
        self.state.held = {"x": x.detach()}
        self.training = self.wrong != "training"
        return x * 2

    def forget(self) -> None:
        if self.wrong != "state.held.x":
            self.state.held.clear()


def test_numbers_that_the_steps_leave_are_compared(tmp_path: Path) -> None:
    def run(wrong: str, out: str, dtype: torch.dtype = torch.float32, **options: Any) -> Path:
        model = net("lerp")
        model[1] = Counts(wrong)
        return train(
            model.to(dtype), tmp_path / out, loop=lambda model: model[1].forget(), **options
        )

    golden = run("", "golden")
    assert ac.diff(golden, run("", "same")).answer is Answer.IDENTICAL
    for options in ({}, {"feed": golden, "force": True}):  # a mean is rounded, too
        found = ac.diff(golden, run("", "rounded", torch.bfloat16, overwrite=True, **options))
        assert "left otherwise" not in found.conclusion
    for wrong in ("calls", "_hidden", "mean", "sums.n", "state.held.x", "training"):
        found = ac.diff(golden, run(wrong, "wrong", overwrite=True))
        assert found.answer is Answer.NOT_SURE
        assert f"left otherwise: 1.{wrong}" in found.conclusion


@pytest.mark.parametrize("when", ["loop", "between"])
@pytest.mark.parametrize("fed", [False, True])
def test_what_a_loop_does_to_a_buffer_is_told_with_when_it_did(
    when: str, fed: bool, tmp_path: Path
) -> None:
    def add(amount: float) -> dict[str, Any]:
        def act(model: nn.Module) -> None:
            with torch.no_grad():
                model[1].kept.add_(amount)  # type: ignore[index]

        return {when: act}

    golden = train(net("cache"), tmp_path / "golden", **add(0.1))
    feed = {"feed": golden} if fed else {}
    assert (
        ac.diff(golden, train(net("cache"), tmp_path / "same", **feed, **add(0.1))).answer
        is Answer.IDENTICAL
    )
    comparison = ac.diff(golden, train(net("cache"), tmp_path / "candidate", **feed, **add(0.3)))
    role, words = (
        (Role.BUFFER_AFTER, "changed in the step")
        if when == "loop"
        else (Role.BUFFER_BEFORE, "changed between steps")
    )
    first = next(failing(comparison))
    assert (first.role, first.name, first.step) == (role, "1", when == "between")
    assert words in comparison.culprits[0].place


@pytest.mark.parametrize("fed", [False, True])
def test_a_write_into_a_frozen_part_of_a_model_that_trains_is_seen_though_it_is_not_counted(
    fed: bool, tmp_path: Path
) -> None:
    def frozen() -> nn.Module:
        model = net("norm")
        model[1].eval()
        return model

    def unseen(model: nn.Module) -> None:
        model.get_submodule("1").get_buffer("running_var").data.mul_(2)

    golden = train(frozen(), tmp_path / "golden", steps=1)
    candidate = train(
        frozen(), tmp_path / "candidate", steps=1, loop=unseen, **({"feed": golden} if fed else {})
    )
    comparison = ac.diff(golden, candidate)
    assert [culprit.name for culprit in comparison.culprits] == ["1"]
    assert ac.diff(golden, train(frozen(), tmp_path / "same", steps=1)).answer is Answer.IDENTICAL


def _often(model: nn.Module) -> None:
    model.get_submodule("1").get_buffer("running_var").mul_(1.5)


def _hardly(model: nn.Module) -> None:
    model.get_submodule("1").get_buffer("running_var").mul_(1 + 1e-3)


@pytest.mark.parametrize(("loop", "passed"), [(_often, False), (_hardly, True)])
def test_a_half_type_hides_a_change_that_its_rounding_may_and_no_larger_one(
    loop: Callable[[nn.Module], None], passed: bool, tmp_path: Path
) -> None:
    golden = train(net("norm").eval(), tmp_path / "golden", loop=loop)
    candidate = train(net("norm").eval().bfloat16(), tmp_path / "candidate")
    assert ac.diff(golden, candidate, atol=0.3).passed is passed


def test_a_parent_that_writes_into_its_childs_buffer_is_the_writer(
    tmp_path: Path, opened: Opened
) -> None:
    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = Lerp(1.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.child.kept.add_(1)
            return self.child(x)

    model = nn.Sequential(Parent())
    with ac.capture(model, tmp_path / "golden"):
        model(torch.ones(2, 8))
    found = [
        (record.name, record.path)
        for record in opened(tmp_path / "golden").records()
        if record.role is Role.BUFFER_UPDATE
    ]
    assert found == [("0", "/0.child.kept"), ("0.child", "kept")]


def test_a_buffer_of_two_modules_is_recorded_once_for_each_write(
    tmp_path: Path, opened: Opened
) -> None:
    model = nn.Sequential(Lerp(1.0), Lerp(1.0))
    model[1].kept = model[0].kept
    with ac.capture(model, tmp_path / "golden"):
        model(torch.ones(2, 8))
    found = [
        (record.name, record.path)
        for record in opened(tmp_path / "golden").records()
        if record.role in WRITTEN_ROLES
    ]
    assert found == [("0", "kept"), ("1", "kept")]


def test_what_checkpointing_writes_again_is_the_steps(tmp_path: Path) -> None:
    class Checkpointed(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self[2](checkpoint(self[1], self[0](x), use_reentrant=False))

    golden = train(Checkpointed(*net("norm")), tmp_path / "golden")
    assert [
        record.call
        for record in ac.open_bundle(golden).records()
        if record.role is Role.BUFFER_AFTER and record.step == 0
    ] == [0] * 3
    assert (
        ac.diff(golden, train(Checkpointed(*net("norm")), tmp_path / "fed", feed=golden)).answer
        is Answer.IDENTICAL
    )
    plain = ac.diff(golden, train(net("norm"), tmp_path / "plain", feed=golden, force=True))
    assert {record.role for record in failing(plain) if record.step == 0} == {Role.BUFFER_AFTER}


def test_a_step_that_is_not_recorded_makes_no_alarm_and_hides_none_after_it(tmp_path: Path) -> None:
    def run(model: nn.Module, out: Path, **options: Any) -> Path:
        with ac.capture(model, out, **grouped(steps="1,3", **options)) as session:
            for step in range(4):
                model(torch.randn(16, 8, generator=torch.Generator().manual_seed(step)))
                session.step()
        return out

    golden = run(net("norm"), tmp_path / "golden")
    comparison = ac.diff(
        golden, run(net("norm", 3.0), tmp_path / "candidate", feed=golden, force=True)
    )
    before = {
        row.reason
        for row in comparison.rows
        if row.record is not None and row.record.role is Role.BUFFER_BEFORE
    }
    # what the steps between made of statistics, and of the counter
    assert before == {Reason.NOT_COMPARABLE, Reason.IDENTICAL}
    assert {record.role for record in failing(comparison)} == {Role.BUFFER_UPDATE}
    assert comparison.culprits[0].name == "1"


def test_a_statistic_that_is_zero_but_for_rounding_makes_no_alarm(tmp_path: Path) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(8, 8),
            nn.BatchNorm1d(8),
            nn.Linear(8, 8, bias=False),
            nn.BatchNorm1d(8),
            nn.Linear(8, 4),
        )

    golden = train(model(), tmp_path / "golden", steps=1)
    rounded = model().double()
    assert ac.diff(
        golden, train(rounded, tmp_path / "candidate", steps=1, feed=golden, force=True)
    ).passed


@pytest.mark.parametrize("mode", ["sketch", "stats", "digest"])
def test_every_mode_tells_a_wrong_write(mode: str, tmp_path: Path) -> None:
    golden = train(net("lerp"), tmp_path / "golden", mode=mode)
    assert (
        ac.diff(golden, train(net("lerp"), tmp_path / "same", mode=mode)).answer is Answer.IDENTICAL
    )
    comparison = ac.diff(golden, train(net("lerp", 3.0), tmp_path / "candidate", mode=mode))
    assert next(failing(comparison)).role is Role.BUFFER_UPDATE


def test_only_the_layers_that_were_asked_for(tmp_path: Path, opened: Opened) -> None:
    model = nn.Sequential(Lerp(1.0), Lerp(1.0))
    with ac.capture(model, tmp_path / "golden", record=ac.Recorded(only="1")):
        model(torch.ones(2, 8))
    assert [
        record.name
        for record in opened(tmp_path / "golden").records()
        if record.role in WRITTEN_ROLES
    ] == ["1"]


def test_where_nothing_is_written_no_call_reads_a_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = net("norm").eval()
    read: list[Any] = []
    own = model[1].running_mean
    to_host = tensors.to_host

    with torch.no_grad(), ac.capture(model, tmp_path / "golden") as session:

        def noted(tensor: torch.Tensor, *more: Any) -> Any:
            read.append(tensor.data_ptr())
            return to_host(tensor, *more)

        for room in (inner_tensors, making):
            monkeypatch.setattr(room, "to_host", noted)
        for _ in range(3):
            model(torch.ones(4, 8))
        session.step()
        assert own.data_ptr() not in read
    assert not any(
        record.role in WRITTEN_ROLES for record in ac.open_bundle(tmp_path / "golden").records()
    )


def test_views_in_place_of_parameters_are_no_buffers(tmp_path: Path, opened: Opened) -> None:
    """As FSDP1 puts plain tensors there while a module runs."""
    model = nn.Linear(2, 2)
    weight = model.weight

    def unshard(*_: Any) -> None:
        del model._parameters["weight"]
        vars(model)["weight"] = weight.view(2, 2)

    def reshard(*_: Any) -> None:
        del vars(model)["weight"]
        model._parameters["weight"] = weight

    model.register_forward_pre_hook(unshard, prepend=True)
    model.register_forward_hook(reshard)
    with ac.capture(model, tmp_path / "out", **grouped(steps="1,2")) as session:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            session.step()
    assert not [each for each in opened(tmp_path / "out").records() if "buffer" in each.role.value]
