"""One layer over the runs: since when does it fail, and how far did its error grow?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from accucompare.compare.trends.layer_errors import LayerError


class PlaceState(str, Enum):
    """What the newest run is for a layer, after those before it."""

    FELL_OUT = "fell out"  # was ok before, fails since
    ALWAYS = "fails from the first"  # in each run that looked at it
    CAME_BACK = "came back"  # failed, and is ok in the newest
    NOT_IN_NEWEST = "not in the newest"  # compared before, but not now
    OK = "ok"  # in each run that looked at it
    NEVER_COMPARED = "never compared"


@dataclass(frozen=True)
class PlaceTrend:
    """A layer. Runs are counted from 0, the oldest."""

    layer: str
    state: PlaceState
    # the first run of its last time of failing without a break; ``None`` if it never failed. Runs
    # that did not compare it make no break.
    since: int | None
    # the last run before ``since`` in which it was ok; ``None`` if there is none
    before: int | None
    falls: int  # how often it was ok and then failed
    errors: tuple[LayerError | None, ...]  # by run; ``None`` where the run does not have it
    # the run that it is held against; ``None`` if none was asked for, or none has it
    against: int | None = None

    @property
    def newest(self) -> LayerError | None:
        return self.errors[-1]

    @property
    def fails(self) -> bool:
        """Whether it fails in the newest run."""
        return self.state in (PlaceState.FELL_OUT, PlaceState.ALWAYS)

    @property
    def failed_last(self) -> bool:
        """Whether it failed in the last run that compared it."""
        told = [error.ok for error in self.errors if error is not None and error.ok is not None]
        return bool(told) and not told[-1]

    @property
    def first_failing(self) -> int:
        """The number of its first failing row in the run since which it fails; 0 if it never did.
        A module is called before those inside it, but fails after them."""
        error = None if self.since is None else self.errors[self.since]
        return 0 if error is None or error.first is None else error.first

    @property
    def error_before(self) -> float | None:
        """Its relative L2 error in the last run in which it was ok."""
        return self.error_in(self.before)

    @property
    def error_after(self) -> float | None:
        """Its relative L2 error in the run since which it fails."""
        return self.error_in(self.since)

    @property
    def factor(self) -> float | None:
        """The error after it fell out as a multiple of that before; infinite if that was 0."""
        return ratio(self.error_after, self.error_before)

    @property
    def error_against(self) -> float | None:
        return self.error_in(self.against)

    @property
    def factor_against(self) -> float | None:
        """The newest run's error as a multiple of that of the run it is held against."""
        return ratio(self.error_in(len(self.errors) - 1), self.error_against)

    def error_in(self, run: int | None) -> float | None:
        """Its largest relative L2 error in a run; ``None`` if there is none."""
        error = None if run is None else self.errors[run]
        return None if error is None else error.rel_l2


def ratio(after: float | None, before: float | None) -> float | None:
    """One error as a multiple of another; 0/0 and inf/inf are 1."""
    if after is None or before is None:
        return None
    if after == before:
        return 1.0
    return math.inf if before == 0 or math.isinf(after) else after / before


def places_of(layers: Sequence[dict[str, LayerError]]) -> list[PlaceTrend]:
    """The layers of some runs, oldest first: in the newest run's order, then those of others."""
    names = dict.fromkeys(name for run in reversed(layers) for name in run)
    return [_place(name, tuple(run.get(name) for run in layers)) for name in names]


def _place(name: str, errors: tuple[LayerError | None, ...]) -> PlaceTrend:
    since = before = last_ok = None
    falls = 0
    failing = False
    for run, error in enumerate(errors):
        ok = None if error is None else error.ok
        if ok is None:
            continue
        if ok:
            last_ok, failing = run, False
        elif not failing:
            since, before, failing = run, last_ok, True
            falls += last_ok is not None
    return PlaceTrend(name, _state(errors, since, before, failing), since, before, falls, errors)


def _state(
    errors: tuple[LayerError | None, ...], since: int | None, before: int | None, failing: bool
) -> PlaceState:
    if all(error is None or error.ok is None for error in errors):
        return PlaceState.NEVER_COMPARED
    if errors[-1] is None or errors[-1].ok is None:
        return PlaceState.NOT_IN_NEWEST
    if failing:
        return PlaceState.ALWAYS if before is None else PlaceState.FELL_OUT
    return PlaceState.OK if since is None else PlaceState.CAME_BACK
