"""Calls that one side makes in parts: compared with the whole, free-running and fed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.compare.fusions import rows, starts_of
from accucompare.compare.preflight_facts import CallsInParts
from accucompare.report.words.layout_words import layout, wrong_on

#: How a model calls its parts, and what of it is wrong.
Way = tuple[str, str]


class Feeding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, start: int = 0) -> torch.Tensor:
        place = torch.arange(start, start + x.shape[1])[None, :, None]
        return self.down(torch.relu(self.up(x))) + 0.01 * place


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.soft = nn.Softmax(-1)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.soft(q @ k.transpose(-1, -2)) @ v


class Model(nn.Module):
    """One block: attention, feed-forward, a loss head over tokens in a row."""

    def __init__(self, way: str = "", fault: str = "") -> None:
        super().__init__()
        self.attend, self.feed, self.head = Attending(), Feeding(), nn.Linear(8, 5)
        self.loss = nn.CrossEntropyLoss()
        self.way, self.fault = way, fault

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        many = 3 if self.way == "in parts" else 1
        keys = [x * 1.01 if self.fault == "keys" and at else x for at in range(many)]
        parts = zip(x.chunk(many, 1), keys, strict=True)
        x = x + torch.cat([self.attend(part, own, x) for part, own in parts], 1)
        fed, start = [], 0
        for at, part in enumerate(x.chunk(many, 1)):
            wrong = self.fault == "a number" and at == 1
            fed.append(self.feed(part, start + wrong))
            start += part.shape[1]
        if self.fault == "a part":
            fed[1] = fed[1] * 1.01
        x = torch.cat(fed[::-1] if self.fault == "order" else fed, 1)
        if self.fault == "a call more":
            self.feed(x[:, :2])
        if self.way != "in parts":
            return self.loss(self.head(x).flatten(0, 1), labels.flatten())
        tokens = zip(x.flatten(0, 1).split(6), labels.flatten().split(6), strict=True)
        return sum(self.loss(self.head(own), label) for own, label in tokens) / 2  # type: ignore


def capture(out: Path, way: Way, feed: Path | None = None) -> Path:
    torch.manual_seed(0)
    model = Model(*way)
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(12).reshape(2, 6) % 5
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    # whole batches, or two micro-batches
    many = 2 if way[0] == "micro-batches" else 1
    with ac.capture(model, out, seed=0, feed=feed) as session:
        for own, label in zip(x.chunk(many), labels.chunk(many), strict=True):
            (model(own, label) / many).backward()
        optimizer.step()
        session.step()
    return out


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A capture of a way, fed by another one's if that is named; each is made once."""
    made: dict[Any, Path] = {}
    place = tmp_path_factory.mktemp("parts")

    def of(way: Way, feed: Way | None = None) -> Path:
        if (way, feed) not in made:
            golden = None if feed is None else of(feed)
            made[way, feed] = capture(place / f"{len(made)}", way, golden)
        return made[way, feed]

    return of


WHOLE, IN_PARTS, BATCHES = ("", ""), ("in parts", ""), ("micro-batches", "")


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize(
    ("golden", "candidate"),
    [(WHOLE, IN_PARTS), (IN_PARTS, WHOLE), (WHOLE, BATCHES), (BATCHES, WHOLE)],
)
def test_calls_in_parts_are_compared_with_the_whole(
    captured: Callable[..., Path], golden: Way, candidate: Way, fed: bool
) -> None:
    own = captured(candidate, golden if fed else None)
    comparison = ac.diff(captured(golden), own)
    assert comparison.exit_code == 0, comparison.conclusion
    one_sided = [row for row in comparison.rows if row.golden is None or row.candidate is None]
    assert all(row.record is not None and not row.record.shape for row in one_sided)
    assert any(isinstance(each.fact, CallsInParts) for each in comparison.preflight)


@pytest.mark.parametrize(
    ("fault", "name"), [("keys", ""), ("a number", "feed"), ("a part", ""), ("order", "")]
)
def test_a_fault_in_one_part_is_named(captured: Callable[..., Path], fault: str, name: str) -> None:
    way = "in parts", fault
    assert ac.diff(captured(WHOLE), captured(way)).exit_code == 1
    comparison = ac.diff(captured(WHOLE), captured(way, WHOLE))
    assert comparison.exit_code == 1
    culprit = comparison.culprits[0]
    assert (culprit.name, culprit.site) == (name, "glue")


def test_the_call_with_the_largest_error_is_named(captured: Callable[..., Path]) -> None:
    comparison = ac.diff(captured(WHOLE), captured(("in parts", "keys"), WHOLE))
    culprit = comparison.culprits[0]
    assert wrong_on(culprit.row) == ("the largest error is in its call 1",)
    assert layout(culprit.row) == "calls 0 to 2 side by side; by the shapes of the calls"


def test_a_call_too_many_is_no_part(captured: Callable[..., Path]) -> None:
    assert ac.diff(captured(WHOLE), captured(("in parts", "a call more"))).exit_code == 1


def test_parts_begin_where_those_before_end() -> None:
    assert starts_of((4, 6), [(4, 2), (4, 3), (4, 1)]) == [(0, 0), (0, 2), (0, 5)]
    tiles = [(2, 4), (2, 2), (2, 4), (2, 2)]
    assert starts_of((4, 6), tiles) == [(0, 0), (0, 4), (2, 0), (2, 4)]
    assert starts_of((2, 3, 5), [(4, 5), (2, 5)]) == [(0, 0), (4, 0)]  # tokens in a row
    assert starts_of((4, 6), [(4, 2), (4, 3)]) is None
    assert starts_of((4, 6), [(4, 4), (4, 4)]) is None  # they overlap
    assert rows((2, 3, 5), 2) == (6, 5)
