"""Which of golden's gradients a backward is given where a step has several."""

from __future__ import annotations

import itertools

import torch

from accucompare.bundle.format import GRADIENT_ROLES
from accucompare.compare.constants import TELLS_LAYOUT
from accucompare.recorder.feeding.golden_values import FedPlace, GoldenValues, Memory

#: The most pieces of which every sum is tried.
_MOST_TRIED = 4


class GoldenPieces:
    """Golden's gradients of a step, each given out once. A backward is of one loss or of several:
    it gets the next piece in golden's order, unless what arrives is clearly another one, or a sum.
    Once all are given out, nothing is left to add: zeros."""

    def __init__(self, golden: GoldenValues) -> None:
        self._golden = golden
        # by value: the paths of those that were not given out
        self._left: dict[tuple[FedPlace, str], list[str]] = {}
        self._met: dict[tuple[FedPlace, str], int] = {}

    def end_step(self) -> None:
        self._left.clear()
        self._met.clear()

    def give(self, place: FedPlace, path: str, grad: torch.Tensor) -> torch.Tensor | str:
        """Golden's value for a gradient that arrives, or why there is none."""
        known = place, path
        self._met[known] = number = self._met.get(known, 0) + 1
        if place.role not in GRADIENT_ROLES:
            return self._value(place, path if number == 1 else f"{path}#{number}", grad)
        if known not in self._left:
            numbered = (f"{path}#{each}" for each in itertools.count(2))
            more = itertools.takewhile(lambda each: self._golden.has_value(place, each), numbered)
            self._left[known] = [path, *more]
        left = self._left[known]
        if not left:
            return torch.zeros_like(grad)
        values = [self._value(place, each, grad) for each in left]
        pieces = [each for each in values if isinstance(each, torch.Tensor)]
        if len(pieces) < len(values):
            # golden has nothing here, or not in this form
            return values[0] if number == 1 else self._value(place, f"{path}#{number}", grad)
        taken = _taken(grad, pieces)
        self._left[known] = [each for at, each in enumerate(left) if at not in taken]
        return sum((pieces[at] for at in taken[1:]), start=pieces[taken[0]])

    def _value(self, place: FedPlace, path: str, grad: torch.Tensor) -> torch.Tensor | str:
        golden = self._golden.golden_value(place, path, grad, Memory())
        return golden if isinstance(golden, (torch.Tensor, str)) else "it is no tensor"


def _taken(grad: torch.Tensor, pieces: list[torch.Tensor]) -> tuple[int, ...]:
    """The numbers of the pieces whose sum a gradient is."""
    if len(pieces) == 1:
        return (0,)
    numbers = range(len(pieces))
    sizes = numbers if len(pieces) < _MOST_TRIED else (0, len(pieces) - 1)
    sums = [each for size in sizes for each in itertools.combinations(numbers, size + 1)]
    own, *parts = (each.detach().to("cpu", torch.float64) for each in (grad, *pieces))
    off = {each: float((own - sum(parts[at] for at in each)).norm()) for each in sums}
    nearest = min(sums, key=lambda each: off[each])
    return nearest if off[nearest] < TELLS_LAYOUT * off[0,] else (0,)
