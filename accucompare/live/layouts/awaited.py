"""Tensors that an asynchronous collective is still to fill."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch.multiprocessing.reductions import StorageWeakRef

from accucompare.live.operators import entrances

#: Of ``AsyncCollectiveTensor``.
_LIBRARY = "torch.distributed._functional_collectives"


class Awaited:
    """What is put off until the model itself waits for a tensor: a hook that waits in its place
    hides that it does not."""

    def __init__(self) -> None:
        self._library: Any = sys.modules.get(_LIBRARY)
        # by the address of a storage
        self._acts: dict[int, list[Callable[[], object]]] = {}
        self._filled: dict[int, Any] = {}  # weak references

    def install(self) -> None:
        if self._library is not None:
            entrances.observe_function(self._library, "wait_tensor", self._waits)

    def remove(self) -> None:
        if self._library is not None:
            entrances.observe_function_no_more(self._library, "wait_tensor", self._waits)

    def puts_off(self, tensor: Any, act: Callable[[], object]) -> bool:
        """Whether nobody has waited for a tensor yet: then ``act`` is called when the model does,
        or at the step's end."""
        local = getattr(tensor, "_local_tensor", tensor)
        if self._library is None or not isinstance(local, self._library.AsyncCollectiveTensor):
            return False
        place = local.elem.untyped_storage()._cdata
        filled = self._filled.get(place)  # by the wait for another view of it
        if local.completed or (filled is not None and not filled.expired()):
            return False
        self._acts.setdefault(place, []).append(act)
        return True

    def end_step(self, failed: bool) -> None:
        """Do what is still put off, unless the step has failed: its collectives may never end."""
        if failed:
            self._acts.clear()
        while self._acts:
            self._act(next(iter(self._acts)))
        self._filled = {at: each for at, each in self._filled.items() if not each.expired()}

    def _waits(
        self, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Any], None]:
        """``wait_tensor`` is called."""
        tensor = args[0] if args else kwargs["tensor"]
        return functools.partial(self._waited, getattr(tensor, "elem", tensor).untyped_storage())

    def _waited(self, storage: Any, result: Any) -> None:
        self._filled[storage._cdata] = StorageWeakRef(storage)
        self._act(storage._cdata)

    def _act(self, place: int) -> None:
        for act in self._acts.pop(place, ()):
            act()
