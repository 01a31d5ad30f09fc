"""The operator level of a backward: which gradients of its nodes are recorded and fed, and that the
node with the fault is named.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import accucompare as ac
from accucompare.api import Comparison
from accucompare.bundle.format.records import NODE_ROLES, Record, Role
from accucompare.bundle.reading.reader import Bundle
from accucompare.compare.rows.rows import Reason
from planted.training_faults import changed
from tests.asked import grouped
from tests.conftest import Run
from tests.recorded import Opened

CASE = """
import torch
from torch import nn
from accucompare import Case

class Bend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, share):
        ctx.save_for_backward(x)
        ctx.share = share
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cos() * ctx.share, None

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.share = [1.0]

    def forward(self, x):
        y = torch.tanh(self.fc(x))
        z = Bend.apply(y, self.share[0])  # the line that is named
        return torch.softmax(z * y, -1) @ y.transpose(-1, -2) @ x

def case():
    model = nn.Sequential(nn.Linear(8, 8), Own(), nn.Linear(8, 4))
    return Case(
        model,
        torch.randn(6, 8),
        loss=lambda y: y.square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
    )

def faulty():
    made = case()
    made.model[1].share[0] = 1.02
    return made
"""
LINE = CASE[: CASE.index("  # the line that is named")].count("\n") + 1


class Own(nn.Module):
    """Several operators beside a child; ``spoil`` is called with the value of one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.eye(8) * 0.7)
        self.spoil: Any = lambda value: value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.fc(x))
        y = self.spoil(y)
        return torch.addmm(x, y, self.weight).exp()  # two uses of x


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), Own(), nn.Linear(8, 4))


def train(
    out: Path, model: nn.Module | None = None, steps: int = 1, **options: Any
) -> tuple[nn.Module, list[float]]:
    """Train the network, with the operators of its module ``1`` recorded unless said otherwise."""
    model = model or network()
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-2), []
    with ac.capture(
        model, out, **grouped(optimizer=optimizer, **{"level": "op", "only": "1", **options})
    ) as session:
        for step in range(steps):
            loss = model(torch.linspace(-1, 1, 48).reshape(6, 8) + step).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            session.step()
    return model, losses


def nodes(bundle: Bundle) -> dict[tuple[str, str], Record]:
    """The records of nodes, by role and path."""
    return {
        (record.role.value, record.path): record
        for record in bundle.records()
        if record.role in NODE_ROLES
    }


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("nodes") / "golden"
    train(out)
    return out


def compared(golden: Path, out: Path, spoil: Any, feed: bool = True) -> Comparison:
    model = network()
    model[1].spoil = spoil
    train(out, model, feed=golden if feed else None)
    return ac.diff(golden, out)


def test_each_node_has_what_autograd_gives_it_and_gets_from_it(
    golden: Path, opened: Opened
) -> None:
    bundle = opened(golden)
    found = {key: bundle.values(record) for key, record in nodes(bundle).items()}
    assert [key for key in found if key[0] == "op_grad_output"] == [
        ("op_grad_output", f"{node}#0")
        for node in ("ExpBackward0", "AddmmBackward0", "TanhBackward0")
    ]
    x, y = (
        torch.from_numpy(bundle.load(name, role=role).copy()).requires_grad_()
        for name, role in (("1", "input"), ("1.fc", "output"))
    )
    weight = (torch.eye(8) * 0.7).requires_grad_()
    bent = torch.tanh(y)
    added = torch.addmm(x, bent, weight)
    arrived = torch.from_numpy(
        next(
            bundle.values(each)
            for each in bundle.records()
            if (each.name, each.role) == ("1", Role.GRAD_OUTPUT)
        )
    )
    expected = torch.autograd.grad(added.exp(), [added, x, bent, weight, y], arrived)
    paths = (
        "ExpBackward0#0",
        *(f"AddmmBackward0#0.{part}" for part in ("self", "mat1", "mat2")),
        "TanhBackward0#0",
    )
    for path, tensor in zip(paths, expected, strict=True):
        assert np.array_equal(found["op_grad_input", path], tensor.numpy())
    lines = {record.source_line.partition(":")[0] for record in nodes(bundle).values()}
    assert lines == {"recorder/test_nodes.py"}


@pytest.mark.parametrize("feed", [True, False], ids=["fed", "free"])
def test_golden_again_agrees_in_every_node(golden: Path, tmp_path: Path, feed: bool) -> None:
    comparison = compared(golden, tmp_path / "again", lambda value: value, feed)
    rows = [
        row for row in comparison.rows if row.record is not None and row.record.role in NODE_ROLES
    ]
    assert len(rows) == 8
    assert {row.reason for row in comparison.rows} == {Reason.IDENTICAL}


def test_training_is_not_changed_and_nothing_is_left_on(tmp_path: Path) -> None:
    plain, losses = train(tmp_path / "plain", steps=4, level="module", backward=False)
    recorded, others = train(tmp_path / "ops", steps=4)
    assert losses == others
    assert all(
        torch.equal(one, other)
        for one, other in zip(plain.parameters(), recorded.parameters(), strict=True)
    )
    assert not torch.is_anomaly_enabled()
    with torch.autograd.set_detect_anomaly(True):
        train(tmp_path / "noted")
        assert torch.is_anomaly_check_nan_enabled()


@pytest.mark.parametrize("feed", [True, False], ids=["fed", "free"])
def test_a_gradient_that_goes_wrong_between_two_nodes_is_named_by_the_node_that_is_given_it(
    golden: Path, tmp_path: Path, feed: bool
) -> None:
    def spoil(value: torch.Tensor) -> torch.Tensor:
        value.register_hook(lambda grad: grad * 1.02)  # type: ignore[no-untyped-call]
        return value

    comparison = compared(golden, tmp_path / "candidate", spoil, feed)
    place = (
        r"the backward of 1: what TanhBackward0 \(recorder/test_nodes\.py:\d+\) is given as"
        r" gradient"
    )
    assert re.fullmatch(place, comparison.culprits[0].place)
    if feed:
        assert len({culprit.place for culprit in comparison.culprits}) == 1


def test_a_node_that_the_candidate_alone_runs_is_named_where_it_does_harm(
    golden: Path, tmp_path: Path
) -> None:
    comparison = compared(
        golden, tmp_path / "candidate", lambda value: changed(value, lambda grad: grad * 1.02)
    )
    place = (
        r"the backward of 1: only the candidate runs _ChangedBackward"
        r" \(planted/training_faults\.py:\d+\)"
    )
    assert [bool(re.fullmatch(place, culprit.place)) for culprit in comparison.culprits] == [True]
    (note,) = comparison.candidate.manifest.notes
    assert note.endswith(
        "golden's backward runs no such node here (such as 1 op_grad_output _ChangedBackward#0)"
    )


def test_nodes_of_two_backwards_and_of_a_checkpoint_are_recorded_once_for_each_backward(
    tmp_path: Path, opened: Opened
) -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(lambda y: y.sin().tanh(), x, use_reentrant=False).exp(), x.tanh()

    model = Twice()
    with ac.capture(model, tmp_path / "out", record=ac.Recorded(level="op", only="")):
        first, second = model(torch.ones(2, requires_grad=True))
        second.sum().backward(retain_graph=True)
        (first + second).sum().backward()
    found = [path for role, path in nodes(opened(tmp_path / "out")) if role == "op_grad_output"]
    assert found == [
        "TanhBackward0#0",
        "TanhBackward0#0#2",
        "ExpBackward0#0",
        "TanhBackward0#1",
        "SinBackward0#0",
    ]


def test_locate_goes_on_to_the_node_and_the_line_of_its_operator(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(CASE)
    assert cli("capture", "model.py", "--out", "golden", "--quiet").returncode == 0
    options = ["--golden", "golden", "--golden-case", "model.py", "--ops", "--quiet"]
    done = cli("locate", "model.py:faulty", "--device", "cpu", *options, COLUMNS="200")
    assert done.returncode == 1, done.stderr
    first, second = (line for line in done.stdout.splitlines() if "bug:" in line)
    assert "bug: the backward of 1 (glue, behind fc), excess" in first
    assert re.search(
        rf"bug: the backward of 1: BendBackward \([^/]+/model\.py:{LINE}\), excess", second
    )
