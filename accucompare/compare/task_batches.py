"""Runs the tasks of a comparison batch by batch, in several threads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

from accucompare.bundle.format import GlobalRecord
from accucompare.compare.judging import Sides, judge_task, judge_tasks
from accucompare.compare.measuring import Run
from accucompare.compare.rows import PairOutcome, Task, nbytes
from accucompare.errors import BundleError

#: Called with the bytes compared so far and the bytes to compare.
Progress = Callable[[int, int], None]

#: Bytes worth one more thread (with small tensors Python takes most of the time); bytes, and pairs,
#: of a thread's batch; bytes above which threads share a pair.
WORTH_A_WORKER = 64 << 20
BATCH_BYTES = 8 << 20
NEIGHBOURS = 2000
SPLIT = 64 << 20


def outcomes_of(
    sides: Sides, tasks: list[Task], workers: int | None, progress: Progress
) -> list[PairOutcome | BundleError]:
    """The outcome of each pair; large tensors first, split among threads, then batches, those of
    large tensors of ranks first.

    The number of threads changes no result."""
    sizes = [nbytes(task) for task in tasks]
    total, done = sum(sizes), 0
    outcomes: list[PairOutcome | BundleError | None] = [None] * len(tasks)
    large, rest = in_order(sizes)
    # the parts of ranks are read in one go, by one thread
    of_ranks = [isinstance(task.pair.candidate, GlobalRecord) for task in tasks]
    rest = [*(place for place in large if of_ranks[place]), *rest]
    large = [place for place in large if not of_ranks[place]]
    batches = batches_of(rest, sizes, BATCH_BYTES, NEIGHBOURS)
    with (
        _threads(min(workers or os.cpu_count() or 1, 1 + total // WORTH_A_WORKER)) as run,
        sides.given_up_on_error(),
    ):
        for place in large:
            outcomes[place] = judge_task(replace(sides, run=run), tasks[place])
            done += sizes[place]
            progress(done, total)
        for batch, own in zip(
            batches,
            run(lambda batch: list(judge_tasks(sides, [tasks[each] for each in batch])), batches),
            strict=True,
        ):
            for place, outcome in zip(batch, own, strict=True):
                outcomes[place] = outcome
            done += sum(sizes[place] for place in batch)
            progress(done, total)
    return [outcome for outcome in outcomes if outcome is not None]


@contextlib.contextmanager
def _threads(workers: int) -> Iterator[Run]:
    """A ``map`` over threads. At the end, or on Ctrl-C, drops pending work and awaits the rest."""
    if workers == 1:
        yield map
        return
    from concurrent.futures import ThreadPoolExecutor  # here, for a small diff needs none

    pool = ThreadPoolExecutor(workers, "accucompare-diff")
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


def in_order(sizes: list[int]) -> tuple[list[int], list[int]]:
    """The tasks' places in order of execution: large tensors, the largest first, and the others."""
    large = sorted(
        (place for place, size in enumerate(sizes) if size > SPLIT),
        key=sizes.__getitem__,
        reverse=True,
    )
    return large, [place for place, size in enumerate(sizes) if size <= SPLIT]


def batches_of(
    places: list[int], sizes: list[int], room: int, most: int | None = None
) -> list[list[int]]:
    """Places of tasks in batches of neighbours, so that handing them on costs little.

    Args:
        sizes: of all tasks, in bytes.
        room: bytes that fill a batch.
        most: tasks in a batch.
    """
    batches: list[list[int]] = []
    left = 0
    for place in places:
        if left <= 0 or (most is not None and len(batches[-1]) == most):
            batches.append([])
            left = room
        batches[-1].append(place)
        left -= sizes[place]
    return batches
