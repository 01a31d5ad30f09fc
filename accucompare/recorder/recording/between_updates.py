"""What changes parameters between updates: clamping, an average swapped in, a loaded checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.nn.parameter import is_lazy

from accucompare.live.autograd import Parameter
from accucompare.live.values import local_part
from accucompare.recorder.recording.series import BitsNow, bits_now

_Look = Callable[[torch.Tensor], BitsNow]

#: Elements, about: the most that is looked at of a parameter that nothing has trained.
_SAMPLE = 1024


class Between:
    """Finds the parameters that no longer hold what the last update left.

    It compares bits: PyTorch does not count writes through ``.data``.
    """

    def __init__(self) -> None:
        # by id: the parameter, how its bits are looked at, and what they were
        self._left: dict[int, tuple[Parameter, _Look, BitsNow]] = {}
        self._age = 0  # steps that have ended since this was known

    def leave(self, parameters: Iterable[Parameter], sampled: bool = False) -> None:
        """Accept these parameters, as when an update has ended.

        ``sampled``: look at a sample of each, because nothing has trained them."""
        look = _sample_of if sampled else bits_now
        for each in parameters:
            self._left[id(each.tensor)] = each, look, look(each.tensor)

    def __contains__(self, parameter: Parameter) -> bool:
        """Whether an update has left it."""
        return id(parameter.tensor) in self._left

    def changed(self) -> set[int]:
        """Ids of parameters whose bits changed since they were accepted. Accepts the new bits."""
        now = {key: look(each.tensor) for key, (each, look, _) in self._left.items()}
        pairs = {key: (before, now[key]) for key, (*_, before) in self._left.items()}
        found = {
            key
            for key, (before, after) in pairs.items()
            if isinstance(before, str) and isinstance(after, str) and before != after
        }
        sums = [
            (key, one, other)
            for key, (one, other) in pairs.items()
            if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        ]
        if sums:  # read together: each reading waits for the device
            differ = torch.stack([one != other.to(one.device) for _, one, other in sums]).tolist()
            found |= {key for (key, *_), other in zip(sums, differ, strict=True) if other}
        self._left = {key: (each, look, now[key]) for key, (each, look, _) in self._left.items()}
        self._age = 0
        return found

    def next_step(self) -> None:
        """A step is over. After an unrecorded one, with updates of its own, nothing is known."""
        self._age += 1
        if self._age > 1:
            self._left.clear()


def _sample_of(tensor: torch.Tensor) -> BitsNow:
    """The bits of elements all over a tensor, and the count of writes, which may be elsewhere."""
    if is_lazy(tensor) or tensor.is_meta:
        return None
    local = local_part(tensor.detach())
    if local.layout is torch.strided and local.is_contiguous():
        # an odd distance meets all columns of most matrices
        local = local.view(-1)[:: local.numel() // _SAMPLE | 1]
    bits, writes = bits_now(local), 0 if tensor.is_inference() else tensor._version
    return f"{bits} {writes}" if isinstance(bits, str) else bits if bits is None else bits + writes
