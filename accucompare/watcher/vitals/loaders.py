"""Which of torch's loaders gave a batch, and how often it was begun, for the checklist."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from accucompare.findings.log import LoadedBatch
from accucompare.live.operators import entrances


class Loaders:
    """While installed, notes in ``last`` which loader gave the last batch, if any."""

    def __init__(self) -> None:
        self.last: LoadedBatch | None = None
        self._begun: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        # by iterator
        self._running: weakref.WeakKeyDictionary[Any, LoadedBatch] = weakref.WeakKeyDictionary()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        entrances.observe_function(DataLoader, "__iter__", self._begins)
        entrances.observe_function(_BaseDataLoaderIter, "__next__", self._gives)

    def remove(self) -> None:
        entrances.observe_function_no_more(DataLoader, "__iter__", self._begins)
        entrances.observe_function_no_more(_BaseDataLoaderIter, "__next__", self._gives)

    def _begins(
        self, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Any], None]:
        def begun(iterator: Any) -> None:
            loader = args[0]
            number = self._numbers.setdefault(loader, len(self._numbers))
            self._begun[loader] = self._begun.get(loader, 0) + 1
            self._running[iterator] = LoadedBatch(
                number, self._begun[loader], _batches_of(loader), _shuffles(loader)
            )

        return begun

    def _gives(
        self, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Any], None]:
        def given(batch: Any) -> None:
            self.last = self._running.get(args[0])  # none for an iterator begun before the watch

        return given


def _batches_of(loader: Any) -> int:
    if isinstance(loader.dataset, IterableDataset):
        return 0  # asking its length would make its loader warn about every batch beyond it
    try:
        return len(loader)
    except Exception:  # a user's data set may have no length, or refuse to tell it
        return 0


def _shuffles(loader: Any) -> bool:
    samplers = loader.sampler, getattr(loader.batch_sampler, "sampler", None)
    return any(
        isinstance(each, RandomSampler) or (isinstance(each, DistributedSampler) and each.shuffle)
        for each in samplers
    )
