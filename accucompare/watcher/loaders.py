"""Which of torch's loaders gave a batch, and how often it was begun; for the checklist."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, RandomSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from accucompare.findings.vitals import Loaded
from accucompare.live import entrances


class Loaders:
    """Notes, as long as it is installed, which loader gave the last batch.

    Attributes:
        last: that loader; ``None`` before the first batch.
    """

    def __init__(self) -> None:
        self.last: Loaded | None = None
        self._begun: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._running: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()  # by iterator, its loader
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        entrances.observe(DataLoader, "__iter__", self._begins)
        entrances.observe(_BaseDataLoaderIter, "__next__", self._gives)

    def remove(self) -> None:
        entrances.observe_no_more(DataLoader, "__iter__", self._begins)
        entrances.observe_no_more(_BaseDataLoaderIter, "__next__", self._gives)

    def _begins(self, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Any], None]:
        def begun(iterator: Any) -> None:
            self._begun[args[0]] = self._begun.get(args[0], 0) + 1
            self._running[iterator] = weakref.ref(args[0])

        return begun

    def _gives(self, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Any], None]:
        def given(batch: Any) -> None:
            reference = self._running.get(args[0])
            loader = None if reference is None else reference()
            if loader is None:  # begun before the watch
                self.last = None
                return
            number = self._numbers.setdefault(loader, len(self._numbers))
            self.last = Loaded(number, self._begun[loader], _batches_of(loader), _shuffles(loader))

        return given


def _batches_of(loader: Any) -> int:
    try:
        return len(loader)
    except Exception:  # of a data set of the user's that has no length, or refuses to tell it
        return 0


def _shuffles(loader: Any) -> bool:
    samplers = loader.sampler, getattr(loader.batch_sampler, "sampler", None)
    return any(isinstance(each, RandomSampler) or (isinstance(each, DistributedSampler) and each.shuffle) for each in samplers)
