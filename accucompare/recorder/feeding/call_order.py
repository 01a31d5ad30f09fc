"""Which of golden's calls of a module a call is, if both sides call it in another order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from accucompare.bundle.format import Layout, Role
from accucompare.compare.constants import TELLS_LAYOUT
from accucompare.live.values import layout_of, local_part
from accucompare.recorder.feeding.golden_values import FedPlace, GoldenValues
from accucompare.recorder.feeding.lending import is_about

#: How many of a tensor's elements are looked at.
_ELEMENTS = 1 << 16


class CallOrder:
    """The numbers of a step's calls in golden: a call that was given something other than golden's
    of its number is the one that golden gave that to, if there is one."""

    def __init__(self, golden: GoldenValues) -> None:
        self._golden = golden
        self._numbers: dict[tuple[str, int], int] = {}

    def end_step(self) -> None:
        self._numbers.clear()

    def number(self, step: int, name: str, call: int, given: Iterable[tuple[str, Any]]) -> int:
        """The number in golden of a call with these arguments.

        Args:
            call: its number here; a second run has that of the first.
        """
        if (known := self._numbers.get((name, call))) is not None:
            return known
        self._golden.load(step)
        if not self._has(step, name, 1):
            return call
        taken = {own for (other, _), own in self._numbers.items() if other == name}
        parts = [
            (path, part)
            for path, part in given
            if isinstance(part, torch.Tensor)
            and part.is_floating_point()
            and part.dim()
            and layout_of(part) is Layout.STRIDED
            and local_part(part) is part
        ]
        found = call
        if call in taken or self._is_other(step, name, call, parts):
            goldens = itertools.takewhile(
                lambda each: self._has(step, name, each), itertools.count()
            )
            like = (
                each
                for each in goldens
                if each not in taken and self._is_like(step, name, each, parts)
            )
            free = min({*range(call + 1)} - taken) if call in taken else call
            found = next(like, free)
        self._numbers[name, call] = found
        return found

    def _has(self, step: int, name: str, call: int) -> bool:
        return self._golden.has(FedPlace(step, name, call, Role.INPUT))

    def _pairs(
        self, step: int, name: str, call: int, parts: Sequence[tuple[str, torch.Tensor]]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The first elements of what was given, here and in golden's call."""
        found = []
        for path, part in parts:
            record = self._golden.record_of(FedPlace(step, name, call, Role.INPUT), path, {})
            if record is None or record.member is None or record.shape != tuple(part.shape):
                continue
            golden = self._golden.read(record).reshape(-1)[:_ELEMENTS]
            found.append((part.detach().reshape(-1)[:_ELEMENTS].cpu().to(golden.dtype), golden))
        return found

    def _is_other(
        self, step: int, name: str, call: int, parts: Sequence[tuple[str, torch.Tensor]]
    ) -> bool:
        pairs = self._pairs(step, name, call, parts)
        return len(pairs) < len(parts) or any(
            (own.double() - golden.double()).norm() > TELLS_LAYOUT * golden.double().norm()
            for own, golden in pairs
        )

    def _is_like(
        self, step: int, name: str, call: int, parts: Sequence[tuple[str, torch.Tensor]]
    ) -> bool:
        pairs = self._pairs(step, name, call, parts)
        return len(pairs) == len(parts) > 0 and all(is_about(*pair) for pair in pairs)
