"""Which of golden's calls of a module a call is, if both sides call it in another order."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from accucompare.bundle.format import Role
from accucompare.compare.pairing import golden_call
from accucompare.recorder.feeding.golden_values import FedPlace, GoldenValues
from accucompare.recorder.feeding.lending import is_about, may_be
from accucompare.recorder.feeding.misfits import is_all_here

#: How many of a tensor's elements are looked at.
_ELEMENTS = 1 << 16


class CallOrder:
    """The numbers of a step's calls in golden: a call that was given something other than golden's
    of its number is the one that golden gave that to, if there is one."""

    def __init__(self, golden: GoldenValues) -> None:
        self._golden = golden
        self._numbers: defaultdict[str, dict[int, int]] = defaultdict(dict)  # by module

    def end_step(self) -> None:
        self._numbers.clear()

    def number(self, step: int, name: str, call: int, given: Iterable[tuple[str, Any]]) -> int:
        """The number in golden of a call with these arguments.

        Args:
            call: its number here; a second run has that of the first.
        """
        numbers = self._numbers[name]
        if call in numbers:
            return numbers[call]
        self._golden.load(step)
        if not self._has(step, name, 1):
            return call
        taken = {*numbers.values()}
        parts = {
            path: part
            for path, part in given
            if is_all_here(part) and part.is_floating_point() and part.dim()
        }

        def is_alike(other: int) -> bool:
            pairs = [*self._pairs(FedPlace(step, name, other, Role.INPUT), parts)]
            if len(pairs) < len(parts):
                return False
            if other != call:
                return bool(parts) and all(is_about(*pair) for pair in pairs)
            return all(may_be(*pair) for pair in pairs)  # a fault makes no other call of it

        goldens = itertools.takewhile(lambda each: self._has(step, name, each), itertools.count())
        found = golden_call(call, goldens, taken, is_alike)
        if found is None:
            found = min({*range(call + 1)} - taken) if call in taken else call
        numbers[call] = found
        return found

    def _has(self, step: int, name: str, call: int) -> bool:
        return self._golden.has(FedPlace(step, name, call, Role.INPUT))

    def _pairs(
        self, place: FedPlace, parts: Mapping[str, torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The first elements of what was given, here and in golden's call."""
        for path, part in parts.items():
            record = self._golden.record_of(place, path, {})
            if record is not None and record.member and record.shape == tuple(part.shape):
                golden = self._golden.read(record).reshape(-1)[:_ELEMENTS]
                yield part.detach().reshape(-1)[:_ELEMENTS].cpu().to(golden.dtype), golden
