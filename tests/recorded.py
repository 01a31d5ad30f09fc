"""What the tests of capturing share: recording one forward, and looking at what came of it."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.reading.reader import Bundle
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session import recording

Record = Callable[..., Bundle]
Opened = Callable[[Path], Bundle]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """``opened(path)`` opens a bundle, and the test's end closes it."""
    with contextlib.ExitStack() as stack:
        yield lambda path: stack.enter_context(ac.open_bundle(path))


@pytest.fixture
def record(tmp_path: Path, opened: Opened) -> Record:
    """``record(model, x, mask=m)`` captures one call of the model and opens the bundle; ``options``
    go to the capture.
    """
    numbers = itertools.count()

    def run(
        model: nn.Module, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any
    ) -> Bundle:
        out = tmp_path / f"bundle{next(numbers)}"
        with recording(model, out, CaptureOptions(**(options or {}))):
            model(*args, **kwargs)
        return opened(out)

    return run


@pytest.fixture(autouse=True)
def a_seed_and_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(20)
    monkeypatch.setattr(sys, "path", [*sys.path])  # loading a case puts its directory there


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Small models on several threads, in several test processes, mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def places(bundle: Bundle, name: str | None = None) -> list[str]:
    """The records as ``name#call role path``, in order; of one module only, if it is named."""
    return [
        f"{record.name}#{record.call} {record.role.value} {record.path}".rstrip()
        for record in bundle.records()
        if name is None or record.name == name
    ]


class Glue(nn.Module):
    """A model whose forward is a function of the test's own: ``Glue(lambda self, x: self.fc(x) + 1,
    fc=nn.Linear(2, 2))``.
    """

    def __init__(self, forward: Callable[..., Any], **children: nn.Module) -> None:
        super().__init__()
        self._function = forward
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(self, *args, **kwargs)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
