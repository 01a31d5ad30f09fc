"""What is kept of a step's outermost calls so that they can be run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accucompare.findings.log import WatchRemark, remark
from accucompare.live.around import collectives, has_sharded_parameters
from accucompare.live.modules import Attributes, Modules, attributes_of
from accucompare.live.numerics import autocast_now
from accucompare.live.operators import RandomState
from accucompare.live.values import is_cache, leaves, replaced, writes_into
from accucompare.reproduce import Snapshot
from accucompare.watcher.looking import WatchedCall

#: Calls kept per step.
_MOST = 16


@dataclass(eq=False, kw_only=True)
class Context(Snapshot):
    """An outermost call, whose buffers are those of the whole model, by qualified name."""

    device: torch.device
    versions: list[int]  # how often each parameter had been written into
    indices: Counter[str]  # how often each module had been called in the step
    attributes: Attributes  # of all modules, other than parameters, buffers and modules
    own: bool  # whether its parameters were the model's own, and not put in by ``functional_call``
    # why it is not kept and cannot be run again; ``None`` if it is kept
    obstacle: WatchRemark | None
    # why this rank alone cannot run it again; ``None`` if it may be tried
    talks: WatchRemark | None = None


class Contexts:
    """Keeps what is needed to run a step's outermost calls again: ``kept``, in order."""

    def __init__(self, modules: Modules, device: torch.device, ranks: int) -> None:
        self.kept: list[Context] = []
        self._modules = modules
        self._device = device
        self._copies: dict[str, tuple[int, int, torch.Tensor]] = {}  # of buffers: id, version, copy
        self._parameters = [tensor for *_, tensor in self._parameters_now()]
        self._ranks = ranks
        self._obstacle = _obstacle(modules, ranks)
        self._talks = _talks(modules) if ranks > 1 else None
        self._collectives: int | None = 0  # when the last call began

    def keep(
        self,
        call: WatchedCall,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        indices: Counter[str],
    ) -> None:
        """Keep a call that begins. ``indices``: how often each module was called, including now."""
        if len(self.kept) >= _MOST:
            return
        indices[call.name] -= 1
        obstacle = self._obstacle or _stateful(args, kwargs)
        if torch._C._functorch.peek_interpreter_stack() is not None:
            obstacle = remark("in-transform")
        own = all(
            tensor is parameter
            for (*_, tensor), parameter in zip(
                self._parameters_now(), self._parameters, strict=False
            )
        )
        if not own:
            obstacle = obstacle or remark("other-parameters")
        copied: tuple[tuple[Any, ...], dict[str, Any]] = (
            ((), {}) if obstacle else copies_of(args, kwargs)
        )
        context = Context(
            module=call.module,
            name=call.name,
            call=call.index,
            args=copied[0],
            kwargs=copied[1],
            random=RandomState.now(self._device),
            autocast=autocast_now(),
            buffers={} if obstacle else self._buffers(),
            grad_enabled=torch.is_grad_enabled(),
            device=self._device,
            versions=self.versions(),
            indices=indices,
            attributes={} if obstacle else attributes_of(self._modules),
            own=own,
            obstacle=obstacle,
            talks=self._talks,
        )
        self.kept.append(context)
        self._collectives = collectives() if self._ranks > 1 else 0

    def call_ended(self, call: WatchedCall) -> None:
        """A call is over; it may have talked to other ranks."""
        context = self.find((call.name, call.index))
        if self._ranks == 1 or context is None:
            return
        now = collectives()
        if now is None or now != self._collectives:
            context.talks = context.talks or remark("talks" if now is not None else "may-talk")

    def find(self, key: tuple[str, int] | None) -> Context | None:
        """The kept call of this name and index."""
        return next((each for each in self.kept if (each.name, each.call) == key), None)

    def _parameters_now(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        return (each for each in self._modules.tensors() if each[0] == "parameters")

    def versions(self) -> list[int]:
        return [writes_into(tensor) for tensor in self._parameters]

    def _buffers(self) -> dict[str, torch.Tensor]:
        """Copies of all buffers; a buffer is copied anew only if it was written into."""
        copies = {}
        for prefix, module in self._modules.named.items():
            for name, buffer in module._buffers.items():
                if buffer is None:
                    continue
                qualified = f"{prefix}.{name}" if prefix else name
                known = self._copies.get(qualified)
                version = writes_into(buffer)
                if known is None or known[0] != id(buffer) or known[1] != version or version < 0:
                    known = self._copies[qualified] = (id(buffer), version, buffer.detach().clone())
                copies[qualified] = known[2]
        return copies


def _obstacle(modules: Modules, ranks: int) -> WatchRemark | None:
    """Why no call of the model can be run again on this rank alone."""
    if has_sharded_parameters(modules):
        return remark("sharded")
    if ranks > 1:
        if any("DeepSpeed" in type(module).__name__ for module in modules.named.values()):
            return remark("deepspeed")
        if any(isinstance(module, nn.SyncBatchNorm) for module in modules.named.values()):
            return remark("sync-batch-norm")
    return None


def _talks(modules: Modules) -> WatchRemark | None:
    """Why the model's calls may talk to other ranks unnoticed, or hold unknown random states."""
    if any(
        type(module).__module__.startswith("transformer_engine")
        for module in modules.named.values()
    ):
        return remark("transformer-engine")
    return None


def _stateful(args: tuple[Any, ...], kwargs: dict[str, Any]) -> WatchRemark | None:
    """Why a call with these arguments cannot be run again."""
    for value in (*args, *kwargs.values()):
        if is_cache(value):
            return remark("stateful", type=type(value).__name__)
    return None


def copies_of(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with copies of all tensors; a tensor that comes twice has one copy."""
    copies: dict[int, torch.Tensor] = {}

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in copies:
            with torch.inference_mode(False), torch.no_grad():
                copies[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return copies[id(tensor)]

    def all_of(value: Any) -> Any:
        return replaced(
            value,
            {path: copied(part) for path, part in leaves(value) if isinstance(part, torch.Tensor)},
        )

    return tuple(all_of(value) for value in args), {
        name: all_of(value) for name, value in kwargs.items()
    }
