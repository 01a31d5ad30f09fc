"""Process groups of gloo that train again and again: what costs time is to start them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from planted.rank_faults import RankFault
from planted.rank_training import train

#: Seconds that a training may take.
_PATIENCE = 300.0


@dataclass(frozen=True)
class Training:
    """What a group is asked to train.

    Attributes:
        layout: of ``fixtures.parallel``.
        fault: ``None`` for a right one.
        options: of ``planted.rank_training.train``.
    """

    layout: str
    out: Path
    fault: RankFault | None = None
    options: dict[str, Any] = field(default_factory=dict)


class Group:
    """Some ranks, forked from this process. A group that fails is started anew."""

    def __init__(self, ranks: int, catalogue: Sequence[RankFault], folder: Path) -> None:
        self._ranks, self._catalogue, self._folder = ranks, catalogue, folder
        self._starts = 0
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []

    def train(self, training: Training) -> str:
        """Train; what went wrong, or ``""``."""
        if not self._processes:
            self._start()
        number = None if training.fault is None else self._catalogue.index(training.fault)
        for pipe in self._pipes:
            pipe.send((training.layout, training.out, number, training.options))
        errors: list[str] = []
        waiting = list(self._pipes)
        while waiting:
            ready: list[Any] = wait(waiting, 3.0 if any(errors) else _PATIENCE)
            if not ready:
                errors.append("a rank does not end")
                break
            for pipe in ready:
                waiting.remove(pipe)
                try:
                    errors.append(pipe.recv())
                except EOFError:
                    errors.append("a rank has died")
        said = "; ".join(dict.fromkeys(filter(None, errors)))
        if said:
            self.stop()
        return said

    def stop(self) -> None:
        for process in self._processes:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        context = get_context("fork")
        self._starts += 1
        store = self._folder / f"store-{self._ranks}-{self._starts}"
        for rank in range(self._ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_rank, args=(rank, self._ranks, store, theirs, self._catalogue), daemon=True
            )
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)


@contextmanager
def groups(catalogue: Sequence[RankFault], folder: Path) -> Iterator[dict[int, Group]]:
    """By the number of ranks. ``folder``: where ranks find each other."""
    made = {ranks: Group(ranks, catalogue, folder) for ranks in (1, 2, 4, 8)}
    try:
        yield made
    finally:
        for group in made.values():
            group.stop()


def _rank(
    rank: int, ranks: int, store: Path, pipe: Connection, catalogue: Sequence[RankFault]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    while True:
        try:
            layout, out, number, options = pipe.recv()
        except EOFError:
            return
        fault = None if number is None else catalogue[number]
        try:
            if fault is not None and fault.built is not None:
                options["built"] = fault.built
            train(layout, out, [fault.plant] if fault else [], **options)
            pipe.send("")
        except BaseException as error:  # the parent tells
            pipe.send(f"{type(error).__name__}: {error}"[:300])
