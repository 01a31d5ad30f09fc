"""A fed update gets golden's gradients, parameters and state; the model then its parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from accucompare.bundle.format import Role
from accucompare.live.values import local_part
from accucompare.recorder.feeding.feeding import Feeding
from accucompare.recorder.feeding.golden_values import FedPlace, Memory

#: How near a gradient's size must be to that of a clipped one.
_AS_LARGE = 0.01


@dataclass(frozen=True)
class FedUpdates:
    """Golden's parameters, gradients and state, for updates (``recording.guard.GoldenUpdates``)."""

    feed: Feeding
    step: Callable[[], int]

    def start(self, name: str, update: int, path: str, tensor: torch.Tensor) -> None:
        """Write golden's parameter, as its next update recorded it, into the candidate's.

        PyTorch does not count the write: graphs made before go on with golden's value.
        """
        local = local_part(tensor.detach())
        golden = self.feed.parameter(self.step(), name, update, path, local)
        if golden is not None and not torch.equal(golden, local):
            local.data.copy_(golden)

    def has_changed(self, name: str, update: int, path: str) -> bool:
        """Whether anything but updates changed golden's parameter. Raises as ``Feeding.inputs``."""
        self.feed.load(self.step())
        return self.feed.has_value(FedPlace(self.step(), name, update, Role.PARAM_CHANGED), path)

    def put(self, name: str, update: int, role: Role, path: str, tensor: torch.Tensor) -> None:
        """Write golden's value; note a missing one. Raises as ``Feeding.inputs``."""
        place = FedPlace(self.step(), name, update, role)
        self.feed.load(place.step)
        golden = self.feed.golden_value(place, path, tensor.detach(), Memory())
        if isinstance(golden, torch.Tensor):
            with torch.no_grad():
                own, theirs = local_part(tensor), local_part(golden)
                factor = self.feed.clipping(place.step) if role is Role.PARAM_GRAD else None
                if factor is not None and not _is_times(own, factor, theirs):
                    factor = None
                own.copy_(theirs)
                if factor is not None:  # clipped by code of its own, and golden's is from before
                    own.mul_(factor)
            self.feed.fed += 1
        elif isinstance(golden, str) and self.feed.has(place):
            self.feed.pass_on(place, path, golden)

    def leave(self, name: str, update: int, role: Role, path: str, why: str) -> None:
        self.feed.pass_on(FedPlace(self.step(), name, update, role), path, why)


def _is_times(own: torch.Tensor, factor: float, golden: torch.Tensor) -> bool:
    """Whether a gradient is as large as golden's times a factor, and not as golden's."""
    size, theirs = (
        float(torch.linalg.vector_norm(each.detach().double())) for each in (own, golden)
    )
    return abs(size - factor * theirs) < theirs * min(factor, 1 - factor) * _AS_LARGE
