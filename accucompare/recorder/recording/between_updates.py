"""What changes parameters between updates: clamping, an average swapped in, a loaded checkpoint."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from accucompare.live.autograd import Parameter
from accucompare.recorder.recording.series import BitsNow, bits_now


class Between:
    """Finds the parameters that no longer hold what the last update left.

    It compares bits: PyTorch does not count writes through ``.data``.
    """

    def __init__(self) -> None:
        self._left: dict[int, tuple[Parameter, BitsNow]] = {}  # by id
        self._age = 0  # steps that have ended since this was known

    def leave(self, parameters: Iterable[Parameter]) -> None:
        """Accept these parameters: an update has ended, or they got golden's values."""
        for each in parameters:
            self._left[id(each.tensor)] = each, bits_now(each.tensor)

    def __contains__(self, parameter: Parameter) -> bool:
        """Whether an update has left it."""
        return id(parameter.tensor) in self._left

    def changed(self) -> set[int]:
        """Ids of parameters whose bits changed since they were accepted. Accepts the new bits."""
        now = {key: bits_now(each.tensor) for key, (each, _) in self._left.items()}
        pairs = {key: (before, now[key]) for key, (_, before) in self._left.items()}
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
        self._left = {key: (each, now[key]) for key, (each, _) in self._left.items()}
        self._age = 0
        return found

    def next_step(self) -> None:
        """A step is over. After an unrecorded one, with updates of its own, nothing is known."""
        self._age += 1
        if self._age > 1:
            self._left.clear()
