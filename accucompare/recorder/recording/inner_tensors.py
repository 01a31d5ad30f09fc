"""Recording the tensors that modules keep in containers and objects among their attributes.

They are looked at when an outermost call has ended, and between such calls. What is new, or was
written into, in the meantime, the owner's last call has left. Writes that PyTorch does not count
(``.data``, large arrays of NumPy's) are found at the capture's end."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from accucompare.bundle.format import Role
from accucompare.live.modules import AttributeWalk, Call, Inner, Modules, containers_of, is_of_torch
from accucompare.live.values import to_host, writes_into
from accucompare.numbers import DTYPES, digest
from accucompare.recorder.feeding import FedPlace, Feeding, Memory, storages

#: Called with a call, a role, a path and a value to record.
RecordBuffer = Callable[[Call, Role, str, torch.Tensor], None]

#: Items that are met in an attribute without tensors before it is looked at only at the end.
_MANY = 256
#: Bytes of an array that is always read: nobody counts the writes into it.
_SMALL = 1 << 16


@dataclass(eq=False)
class _Leaf:
    """What was found in a place, by the module's name and the path in it."""

    value: Callable[[], Any]  # the tensor or array at the last look, referred to weakly
    version: int  # its count of writes then; -1 if there is none
    digest: str | None  # of its bytes then
    moved: bool = False  # whether another place held it when it was recorded

    def holds(self, value: Any) -> bool:
        """Whether it was this value, and no write into it was counted since."""
        return self.value() is value and _version(value) == self.version

    def is_other(self, value: Any) -> bool:
        """Whether it was elsewhere, or had other bytes."""
        return self.moved or self.digest != digest_now(value)


class InnerTensors:
    """The containers' part of ``Buffers``. With a feed, golden's values replace recorded ones."""

    def __init__(
        self, modules: Modules, record: RecordBuffer, feed: Feeding | None, step: Callable[[], int]
    ) -> None:
        self._modules = modules
        self._record = record
        self._feed = feed
        self._step = step
        self._names = {id(tensor): name for _, name, tensor in modules.tensors()}
        self._leaves: dict[tuple[str, str], _Leaf] = {}
        self._ever: dict[tuple[str, str], None] = {}
        # weights in another form
        self._weights: set[tuple[str, str]] = set()
        self._watched: dict[str, list[str]] = {}
        # by module: the index of its last call
        self._last: dict[str, int] = {}
        self._times: Counter[tuple[str, int, Role, str]] = Counter()
        self.beyond: set[str] = set()  # containers with more items than are looked at
        for name, inner in self._found(everything=True):
            value = inner.value
            if isinstance(value, torch.Tensor) and value.requires_grad:
                self._weights.add((name, inner.path))
            else:
                self._know(name, inner, value)
        self._ever.clear()
        self.held = {  # at the start: digests by qualified name
            f"{name}.{path}".removeprefix("."): leaf.digest
            for (name, path), leaf in self._leaves.items()
            if leaf.digest is not None
        }

    @property
    def kept(self) -> dict[str, bool]:
        """The places that held a tensor, by qualified name: whether they still do."""
        return {
            f"{name}.{path}".removeprefix("."): (name, path) in self._leaves
            for name, path in self._ever
        }

    def next_step(self) -> None:
        self._times.clear()
        self._last.clear()

    def ended(self, call: Call) -> None:
        """Note a call that has ended."""
        if call.name in self._watched:
            self._last[call.name] = call.index

    def left_by_calls(self, outermost: Call) -> None:
        """Record what the calls inside of an outermost one have left."""
        for name, inner in self._changed():
            if name in self._last:
                call = Call(self._modules.named[name], name, self._last[name], None, None)
                self._one(call, Role.BUFFER_UPDATE, name, inner, inner.path)
            else:  # its owner was not called
                path = f"/{name}.{inner.path}".replace("/.", "/")
                self._one(outermost, Role.BUFFER_UPDATE, name, inner, path)

    def left_outside(
        self, role: Role, number: int, every: bool = False, last: bool = False
    ) -> None:
        """Record what changed outside the calls; arguments as of ``Buffers``."""
        for name, inner in self._changed(every, last):
            call = Call(self._modules.named[name], name, number, None, None)
            self._one(call, role, name, inner, inner.path)

    def learn(self, name: str) -> None:
        """A module has other attributes than before."""
        module = self._modules.named[name]
        if not is_of_torch(module):  # at the end these, too
            self._watched[name] = containers_of(module)

    def _found(self, everything: bool = False) -> Iterator[tuple[str, Inner]]:
        """What the modules hold inside of their attributes, with the owner's name."""
        inside, named, watched = AttributeWalk(self._names), self._modules.named, self._watched
        if everything:
            self._watched = {}
            watched = {name: containers_of(module) for name, module in named.items()}
        for name, attributes in watched.items():
            module = named[name]
            for attribute in attributes:
                before, found = inside.met, False
                beyond = len(inside.too_many)
                for inner in inside.of(module, attribute):
                    if _is_readable(inner.value) and id(inner.value) not in self._names:
                        found = True
                        yield name, inner
                self.beyond.update(
                    f"{name}.{path}".removeprefix(".") for path in inside.too_many[beyond:]
                )
                if everything and (found or _may_fill(module, attribute, inside.met - before)):
                    self._watched.setdefault(name, []).append(attribute)

    def _changed(self, every: bool = False, last: bool = False) -> list[tuple[str, Inner]]:
        """What is not as it was at the last look. ``every``, ``last``: as of ``Buffers``."""
        if not (self._watched or last):
            return []
        known, self._leaves = self._leaves, {}
        by_value = {
            id(value): leaf for leaf in known.values() if (value := leaf.value()) is not None
        }
        changed: list[tuple[str, Inner]] = []
        own: frozenset[int] | None = None
        for name, inner in self._found(everything=last):
            place, value = (name, inner.path), inner.value
            if place in self._weights:
                continue
            leaf = known.get(place)
            same = leaf is not None and leaf.holds(value) and not every
            looks = last or (isinstance(value, np.ndarray) and value.nbytes <= _SMALL)
            if same and leaf is not None and not (looks and leaf.is_other(value)):
                self._leaves[place] = leaf
                continue
            if own is None:
                own = storages(each for kind, _, each in self._modules.tensors() if kind[0] == "p")
            if isinstance(value, torch.Tensor) and own & storages([value]):
                continue  # a part of a parameter
            other = by_value.get(id(value))
            if not (every or last or same) and other is not None and other.holds(value):
                self._leaves[place] = replace(other, moved=True)
                continue
            changed.append((name, inner))
        return changed

    def _know(self, name: str, inner: Inner, value: Any) -> None:
        place = name, inner.path
        self._ever[place] = None
        self._leaves[place] = _Leaf(weakref.ref(value), _version(value), digest_now(value))

    def _one(self, call: Call, role: Role, name: str, inner: Inner, path: str) -> None:
        """Record what a place holds, then put golden's value there."""
        key = call.name, call.index, role, path
        times = self._times[key] = self._times[key] + 1
        path = path if times == 1 else f"{path}#{times}"
        value = inner.value
        self._record(call, role, path, _as_tensor(value))
        if self._feed is not None:
            value = self._fed(FedPlace(self._step(), call.name, call.index, role), path, inner)
        self._know(name, inner, value)

    def _fed(self, place: FedPlace, path: str, inner: Inner) -> Any:
        """What the place holds from now on: golden's value, where it can be put there."""
        feed, value, why = self._feed, inner.value, None
        assert feed is not None
        if not isinstance(value, torch.Tensor):
            why = "it is an array"
        elif value.requires_grad:
            why = "autograd follows it"
        elif inner.holder is None:
            why = "what holds it cannot hold another"
        if why is not None:
            feed.pass_on(place, path, why)
            return value
        golden = feed.value(place, path, value.detach(), Memory())
        if golden is None:
            return value
        inner.holder[inner.key] = golden
        return golden


def _may_fill(module: nn.Module, attribute: str, met: int) -> bool:
    """Whether an attribute without tensors may hold some soon."""
    is_tuple = isinstance(vars(module)[attribute], tuple)
    return met <= (0 if is_tuple else _MANY) and not is_of_torch(module)


def _is_readable(value: Any) -> bool:
    is_array = isinstance(value, np.ndarray) and value.dtype.name in DTYPES
    return is_array or isinstance(value, torch.Tensor)


def _as_tensor(value: Any) -> torch.Tensor:
    return value.detach() if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))


def _version(value: Any) -> int:
    return writes_into(value) if isinstance(value, torch.Tensor) else -1


def digest_now(value: Any) -> str | None:
    """A digest of a tensor's bytes on any device; ``None`` if it has no plain data."""
    if value is None or is_lazy(value):
        return None
    host = to_host(_as_tensor(value))
    return None if host.array is None else f"{host.dtype} {digest(host.array)}"
