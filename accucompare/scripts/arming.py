"""From when on steps are observed: at once, or when a file appears."""

from __future__ import annotations

import os
import time

from accucompare.scripts.plan import Plan
from accucompare.selection import Steps

#: Seconds between two looks for the file.
_BETWEEN_LOOKS = 1.0
#: With several ranks, steps between seeing the file and observing, so that all ranks know in time.
_AHEAD = 3


class Arming:
    """The steps to observe, counted from the one where the file of ``--arm`` appears, if given."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._looked = 0.0
        self._file = None if plan.arm is None else plan.arm
        self._agreed = os.path.join(plan.folder, "armed")
        self._several = int(os.environ.get("WORLD_SIZE", "1") or 1) > 1
        self.armed = self._file is None  # whether the first step is known

    def steps(self, step: int) -> Steps | None:
        """The steps to observe; ``None`` for all, or while not ``armed``: ask before each step."""
        asked = self._plan.chosen
        if self._file is None:
            return asked
        first = self._first(step)
        if first is None:
            return None
        self.armed = True
        if asked is None:
            return None
        return Steps.of([first + number for number in asked.numbers])

    def _first(self, step: int) -> int | None:
        if (now := time.monotonic()) - self._looked < _BETWEEN_LOOKS and not self._several:
            return None
        self._looked = now
        if self._several and os.path.exists(self._agreed):
            with open(self._agreed) as file:
                return int(file.read())
        if self._file is None or not os.path.exists(self._file):
            return None
        if not self._several:
            return step
        return self._agree(step + _AHEAD)

    def _agree(self, first: int) -> int:
        """The first step as written, whole, by the first process to see the file."""
        part = f"{self._agreed}.{os.getpid()}"
        with open(part, "w") as file:
            file.write(str(first))
        try:
            os.link(part, self._agreed)
        except FileExistsError:
            with open(self._agreed) as file:
                first = int(file.read())
        os.unlink(part)
        return first
