"""From when on steps are observed: at once, or when a file appears."""

from __future__ import annotations

import os
import time

from accucompare.scripts.plan import Plan
from accucompare.selection import Steps

#: Seconds between two looks for the file.
_BETWEEN_LOOKS = 1.0
#: With several ranks, so many steps lie between the one in which the file is seen and the first
# that is observed, so that all know in time.
_AHEAD = 3


class Arming:
    """Which steps are observed, counted from the one where the file of ``--arm`` appears, if that
    was given.

    Attributes:
        armed: whether that is known.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._looked = 0.0
        self._file = None if plan.arm is None else plan.arm
        self._agreed = os.path.join(plan.folder, "armed")
        self._several = int(os.environ.get("WORLD_SIZE", "1") or 1) > 1
        self.armed = self._file is None

    def steps(self, step: int) -> Steps | None:
        """Those to observe, asked before ``step`` as long as it is not ``armed``; ``None`` if that
        is not known yet, or it is all."""
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
        """The first step to observe; ``None`` if the file is not there."""
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
        """The step that the first process to see the file has said; it is written whole."""
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
