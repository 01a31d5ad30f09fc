"""Models that are trained for a few steps, with and without a watch, and all that comes of it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

import accucompare as ac
from accucompare.findings.log.events import Event, Finding
from accucompare.findings.log.log import read_log
from accucompare.watcher.watch.running_watch import Watch
from tests.asked import looking
from tests.recorded import Glue as Glue


@dataclass
class Subject:
    """What is trained.

    Attributes:
        model: in train mode.
        step: of a step's number: runs the forward, the backward and the update, and gives whatever
            shall be compared.
        optimizer: that the watch is told of.
    """

    model: nn.Module
    step: Callable[[int], Any]
    optimizer: Any = None


def trained(
    model: nn.Module,
    inputs: Callable[[int], Any],
    loss: Callable[[Any], torch.Tensor] | None = None,
) -> Subject:
    """A model trained by SGD with momentum; ``inputs`` are positional arguments, or keyword
    arguments, of a step.
    """
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

    def step(number: int) -> Any:
        given = inputs(number)
        output = model(**given) if isinstance(given, dict) else model(*given)
        result = loss(output) if loss is not None else output.square().mean()
        result.backward()  # type: ignore[no-untyped-call]
        grads = [copied(parameter.grad) for parameter in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        return copied(result), copied(output), grads

    return Subject(model.train(), step, optimizer)


def run(
    make: Callable[[], Subject], out: Path | None = None, steps: int = 3, **options: Any
) -> tuple[dict[str, Any], Watch | None]:
    """Train, watched if ``out`` is given.

    Returns:
        All that came of it, by name, and the watch.
    """
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    subject = make()
    watching = (
        ac.watch(
            subject.model, **looking(optimizer=subject.optimizer, out=out, quiet=True, **options)
        )
        if out
        else contextlib.nullcontext()
    )
    came: dict[str, Any] = {}
    with watching as watch:
        for number in range(steps):
            came[f"step {number}"] = subject.step(number)
            if watch is not None:
                watch.step()
    came |= {
        "state": copied(dict(subject.model.state_dict())),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
    }
    came["numpy"] = [
        copied(torch.as_tensor(part.astype(np.int64)))
        for part in np.random.get_state()
        if isinstance(part, np.ndarray)
    ]
    return came, watch


def assert_same(make: Callable[[], Subject], out: Path, steps: int = 3, **options: Any) -> Watch:
    """Training is the same, bit for bit, with a watch and without."""
    plain, _ = run(make, steps=steps)
    watched, watch = run(make, out, steps, **options)
    assert differing(plain, watched) == []
    assert watch is not None
    assert not [event for event in events(watch) if "not looked at" in getattr(event, "text", "")]
    return watch


def copied(value: Any) -> Any:
    """A value with copies of its tensors; objects that hold tensors become lists."""
    value = dict(value) if isinstance(value, dict) else value
    return pytree.tree_map(
        lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, value
    )


def differing(one: Any, other: Any) -> list[str]:
    """Paths of what is not the same, bit for bit."""
    left, right = dict(_parts(one)), dict(_parts(other))
    return [
        path
        for path in {**left, **right}
        if path not in left or path not in right or not _same(left[path], right[path])
    ]


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in pytree.tree_leaves_with_path(value):
        yield pytree.keystr(path), leaf


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.layout == other.layout
        and _bits(one) == _bits(other)
    )


def _bits(tensor: torch.Tensor) -> bytes:
    if tensor.layout is torch.sparse_coo:
        return _bits(tensor._indices()) + _bits(tensor._values())
    return (
        tensor.resolve_conj()
        .resolve_neg()
        .contiguous()
        .flatten()
        .view(torch.uint8)
        .numpy()
        .tobytes()
        if tensor.numel()
        else b""
    )


def events(watch: Watch, kind: type[Event] | None = None) -> list[Any]:
    """The events of the log's last run; of one kind, if it is named."""
    return [
        event
        for event in read_log(watch.path / "rank0.jsonl")[-1]
        if kind is None or isinstance(event, kind)
    ]


def origins(watch: Watch) -> list[Finding]:
    return [found for found in watch.findings if found.origin]


@dataclass
class Counting(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
    """Counts what waits for a device: numbers that are brought to the host."""

    reads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op.name() in (
            "aten::_local_scalar_dense",
            "aten::is_nonzero",
            "aten::equal",
            "aten::nonzero",
        ):
            self.reads.append(op.name())
        return op(*args, **(kwargs or {}))
