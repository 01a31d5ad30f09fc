"""Recording what is written into buffers, and giving them golden's values.

PyTorch counts the writes into a tensor (``_version``). A call's buffers are checked when it ends
and when it calls a child: what changed since the last check, the call's own code has written. Two
kinds of writes are not counted: ``batch_norm`` into running statistics, and ``.data``. So if a call
has written into a buffer, the floating buffers beside it are recorded too. Before a step and at its
end, digests find the uncounted writes in modules in train mode, at the capture's end in all.

A tensor in a plain attribute is taken as a buffer, unless autograd follows it from the start: that
is a weight in another form (old ``weight_norm``, FSDP). Of those in containers,
``inner_tensors`` takes care."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from accucompare.bundle.format import Role
from accucompare.live.modules import OF_EVERY_MODULE, Call, Modules
from accucompare.live.values import writes_into
from accucompare.recorder.feeding import FedPlace, Feeding, Memory
from accucompare.recorder.recording.inner_tensors import InnerTensors, RecordBuffer, digest_now


@dataclass(eq=False)
class _Slot:
    """Where a module keeps a tensor: a buffer, or a plain attribute, perhaps set later."""

    module: nn.Module
    # owner, own: the module's name, and the attribute's
    owner: str
    own: str
    table: dict[str, Any]  # the dictionary that holds it
    registered: bool = True  # whether it is a buffer
    # seen, version: the tensor at the last look, and its count of writes (-1: not counted)
    seen: Callable[[], torch.Tensor | None] = lambda: None
    version: int = -1
    # of the bytes at the last look between calls; ``None`` if a call has written since
    digest: str | None = None
    held: bool = False  # whether it held a tensor at some look
    # slots that held the same tensor when the capture began
    shared: list[_Slot] = field(default_factory=list)

    @property
    def now(self) -> torch.Tensor | None:
        value = self.table.get(self.own)
        return value if isinstance(value, torch.Tensor) else None

    @property
    def changed(self) -> bool:
        """Whether it holds another tensor than at the last look, or a write into it was counted."""
        tensor = self.now
        return tensor is not self.seen() or (
            tensor is not None and self.version >= 0 and tensor._version != self.version
        )

    def looked_at(self) -> None:
        tensor = self.now
        self.held = self.held or tensor is not None
        # autograd's graph lives as long as without us
        self.seen = weakref.ref(tensor) if tensor is not None else lambda: None
        self.version = -1 if tensor is None else writes_into(tensor)

    def path_of(self, name: str) -> str:
        """Its path in the records of the module ``name``."""
        return self.own if self.owner == name else f"/{self.owner}.{self.own}".replace("/.", "/")


class Buffers:
    """The buffers' part of a recorder. With a feed, golden's values replace what was recorded."""

    def __init__(
        self, modules: Modules, record: RecordBuffer, feed: Feeding | None, step: Callable[[], int]
    ) -> None:
        """``step`` returns the number of the step."""
        self._modules = modules
        self._record = record
        self._feed = feed if feed is not None and feed.written else None
        self._step = step
        self._slots: list[_Slot] = []
        # by module: its own and those of the modules inside
        self._inside: dict[str, list[_Slot]] = {}
        # by module: its own, without plain attributes
        self._buffers_of: dict[str, list[_Slot]] = {}
        # by module: the names of all that it keeps
        self._known: dict[str, set[str]] = {}
        # FSDP1 puts plain tensors in place of these in a forward
        self._parameters = {
            name: {*each._parameters.keys()} for name, each in modules.named.items()
        }
        by_tensor: dict[int, list[_Slot]] = {}
        for name in modules.named:
            self._learn(name)
        for slot in self._slots:
            if slot.now is not None:
                slot.shared = by_tensor.setdefault(id(slot.now), [])
                slot.shared.append(slot)
        self._inner = InnerTensors(modules, record, self._feed, step)
        self._lazy: list[_Slot] = []
        # written into by calls since the last look between calls
        self._dirty: dict[_Slot, None] = {}
        # how often a call of this step has written into a buffer
        self._times: Counter[tuple[str, int, str]] = Counter()
        self._outermost = 0  # calls in this step
        self._starts = True  # the model was not called yet
        for slot in self._slots:
            slot.looked_at()
            slot.digest = digest_now(slot.now)
            if slot.now is not None and is_lazy(slot.now):
                self._lazy.append(slot)
        self._held = {
            f"{slot.owner}.{slot.own}".removeprefix("."): slot.digest
            for slot in self._slots
            if slot.digest is not None and not slot.registered
        }

    @property
    def kept(self) -> dict[str, bool]:
        """The plain attributes that hold a tensor or did, themselves or in a container: by
        qualified name, whether they still do."""
        plain = {
            f"{slot.owner}.{slot.own}".removeprefix("."): slot.now is not None
            for slot in self._slots
            if not slot.registered and (slot.held or slot.now is not None)
        }
        return plain | self._inner.kept

    @property
    def held(self) -> dict[str, str]:
        """What these held at the start: digests, by qualified name."""
        return self._held | self._inner.held

    @property
    def beyond(self) -> list[str]:
        """Containers with more items than are looked at."""
        return sorted(self._inner.beyond)

    def next_step(self) -> None:
        self._times.clear()
        self._inner.next_step()
        self._outermost = 0

    def model_is_called(self) -> None:
        """An outermost call begins. What changed since the last one was written by no call."""
        self._settle()
        if self._outermost:
            self._outside(Role.BUFFER_AFTER, self._outermost - 1, counted=True)
        else:
            self._outside(Role.BUFFER_BEFORE, 0, every=self._starts and self._step() > 0)
        self._starts = False
        self._outermost += 1

    def end_step(self, last: bool) -> None:
        """A step ends, ``last`` with the capture. In that one the model may not have been called,
        and what changed is what changed since the step before.
        """
        if self._outermost:
            self._outside(Role.BUFFER_AFTER, self._outermost - 1, last=last)
        elif last:
            self._outside(Role.BUFFER_BEFORE, 0, last=True)

    def calls(self, caller: Call, name: str) -> None:
        """A call's own code calls ``name``, and has written what changed in it since last time."""
        self._settle()
        changed = [slot for slot in self._inside.get(name, ()) if slot.changed]
        if changed:
            self._written(caller, changed)

    def call_ended(self, call: Call) -> None:
        """A call ends. Its own code has written what changed since the last look."""
        self._learn(call.name)
        slots = self._inside.get(call.name, ())
        changed = [slot for slot in slots if slot.changed]
        if changed or self._feed is not None:
            self._written(call, changed, ends=True)
        self._inner.ended(call)
        if call.parent is None:
            for slot in self._dirty:
                slot.digest = digest_now(slot.now)
            self._dirty.clear()
            self._inner.left_by_calls(call)

    def _learn(self, name: str) -> None:
        """Learn what a module keeps: its buffers and its plain attributes that hold a tensor, or
        nothing yet."""
        module = self._modules.named[name]  # itself, not a replica
        known, buffers, plain = self._known.get(name, set()), module._buffers, vars(module)
        if len(known) == len(buffers) + len(plain):
            return
        # a scripted module makes a new table at each access
        tables = (buffers if isinstance(buffers, dict) else dict(buffers.items()), plain)
        self._known[name] = known.union(*tables)
        if known:
            self._inner.learn(name)
        for table in tables:
            for own in table.keys() - known - self._parameters[name]:
                value, registered = table[own], table is not plain
                kept = isinstance(value, torch.Tensor) and (known or not value.requires_grad)
                if registered or kept or (value is None and own not in OF_EVERY_MODULE):
                    self._hold(_Slot(module, name, own, table, registered))

    def _hold(self, slot: _Slot) -> None:
        self._slots.append(slot)
        if slot.registered:
            self._buffers_of.setdefault(slot.owner, []).append(slot)
        parts = slot.owner.split(".") if slot.owner else []
        for depth in range(len(parts) + 1):
            self._inside.setdefault(".".join(parts[:depth]), []).append(slot)

    def _settle(self) -> None:
        """Learn the buffers that got their first values only now: that is no write."""
        if not self._lazy:
            return
        for slot in [slot for slot in self._lazy if slot.now is None or not is_lazy(slot.now)]:
            self._lazy.remove(slot)
            slot.looked_at()

    def _written(self, call: Call, changed: list[_Slot], ends: bool = False) -> None:
        """Record what a call's own code has written, and the floating buffers beside it."""
        owners = dict.fromkeys(slot.owner for slot in changed if slot.registered)
        beside = [
            slot for owner in owners for slot in self._buffers_of[owner] if _is_floating(slot.now)
        ]
        found = {slot.path_of(call.name): slot for slot in _once([*changed, *beside])}
        place = FedPlace(self._step(), call.name, call.index, Role.BUFFER_UPDATE)
        for path, slot in found.items():
            times = self._times[call.name, call.index, path] = (
                self._times[call.name, call.index, path] + 1
            )
            self._one(call, place, path if times == 1 else f"{path}#{times}", slot)
        for path in self._golden_paths(place) if ends else ():
            own, _, number = path.partition("#")
            times, unwritten = self._times[call.name, call.index, own], self._at(call.name, own)
            # golden's call wrote there, this one did not
            if unwritten is not None and times < int(number or 1):
                self._times[call.name, call.index, own] += 1
                self._one(call, place, path, unwritten)
        for slot in (*changed, *beside):
            self._know(slot)

    def _know(self, slot: _Slot) -> None:
        """Note what a buffer holds now, under each of its names."""
        for each in slot.shared or [slot]:
            if each.now is slot.now:
                each.looked_at()
                self._dirty[each] = None

    def _outside(
        self,
        role: Role,
        number: int,
        counted: bool = False,
        every: bool = False,
        last: bool = False,
    ) -> None:
        """Record what changed outside the calls of the model.

        Args:
            role, number: the record's role and call index.
            counted: check only the buffers with a counted write.
            every: treat all as changed, because unrecorded steps came before.
            last: check all, also in eval mode, because nothing comes after.
        """
        for name in self._modules.named:
            self._learn(name)
        self._inner.left_outside(role, number, every, last)
        changed = []
        # a part in eval mode may be written into, too
        trains = getattr(self._modules.named[""], "training", False)
        for slot in self._slots:
            looks = last or ((trains or slot.module.training) and not counted)
            if every or slot.changed or looks:
                before, slot.digest = slot.digest, digest_now(slot.now)
                if (every or slot.digest != before) and slot.digest is not None:
                    changed.append(slot)
                else:
                    slot.looked_at()
        found = {(slot.owner, slot.own): slot for slot in _once(changed)}
        for slot in self._slots if self._feed is not None else ():
            if slot.own in self._golden_paths(FedPlace(self._step(), slot.owner, number, role)):
                found.setdefault((slot.owner, slot.own), slot)
        for slot in found.values():
            self._one(
                Call(slot.module, slot.owner, number, None, None),
                FedPlace(self._step(), slot.owner, number, role),
                slot.own,
                slot,
            )
            slot.digest = digest_now(slot.now)
        for slot in changed:
            slot.looked_at()

    def _one(self, call: Call, place: FedPlace, path: str, slot: _Slot) -> None:
        """Record what a buffer holds, then put golden's value there."""
        tensor = slot.now
        if tensor is None:
            return
        self._record(call, place.role, path, tensor.detach())
        if self._feed is None:
            return
        replaced = tensor is not slot.seen()
        if replaced and tensor.requires_grad:
            self._feed.pass_on(place, path, "autograd follows it")
            return
        golden = self._feed.value(place, path, tensor.detach(), Memory())
        if golden is None:
            return
        if replaced:  # others may hold the same tensor
            for each in [each for each in self._slots if each.now is tensor]:
                each.table[each.own] = golden
                self._know(each)
        else:
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                # .data: this write is not counted, and graphs made before go on with golden's value
                tensor.data.copy_(golden)
        self._know(slot)

    def _golden_paths(self, place: FedPlace) -> Iterable[str]:
        return () if self._feed is None else self._feed.paths(place)

    def _at(self, name: str, path: str) -> _Slot | None:
        """The buffer with this path in the records of a module."""
        return next((slot for slot in self._slots if slot.path_of(name) == path), None)


def _is_floating(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and (tensor.is_floating_point() or tensor.is_complex())


def _once(slots: Iterable[_Slot]) -> list[_Slot]:
    """The slots that hold a tensor; the first of those that hold the same one."""
    return list(
        {id(slot.now): slot for slot in reversed(list(slots)) if slot.now is not None}.values()
    )[::-1]
