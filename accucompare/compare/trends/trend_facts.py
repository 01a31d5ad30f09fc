"""The runs of a trend, and what it concludes of the newest one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from accucompare.compare.rows import less_than_half
from accucompare.compare.trends.layer_errors import LayerError
from accucompare.compare.trends.place_trends import PlaceState, PlaceTrend, places_of

#: What a trend can be held against, besides a run's name.
BEST, FIRST = "best", "first"


class TrendAnswer(str, Enum):
    """What a trend concludes. It decides the exit code."""

    WITHIN = "within"  # the newest run, everywhere
    FAILS = "fails"  # the newest run, somewhere
    NOT_SURE = "not sure"


TREND_EXIT_CODES = {TrendAnswer.WITHIN: 0, TrendAnswer.FAILS: 1, TrendAnswer.NOT_SURE: 2}


@dataclass(frozen=True)
class TrendRun:
    """One comparison."""

    name: str  # short, and of no other run
    path: str  # of the candidate's bundle, or of the JSON
    golden: str  # the path of golden
    # when the candidate was captured, in UTC seconds; or, if nothing tells, when its file was
    # written
    captured: float
    dated: bool  # whether the capture itself told that
    # answer, exit_code, conclusion: those of its comparison
    answer: str
    exit_code: int
    conclusion: str
    culprits: tuple[str, ...]  # where errors are made, in words, the most certain first
    limits: str  # the limits in force, in words
    fed: bool  # whether each layer was given golden's values
    rows_left_out: int  # how many records ``--only`` and ``--skip`` left out
    layers: dict[str, LayerError]  # the worst of each, in execution order

    @property
    def failing(self) -> int:
        """In how many layers a row fails."""
        return sum(error.failing > 0 for error in self.layers.values())


class NotInTrendWhy(str, Enum):
    """Why a run is left out of a trend."""

    UNREADABLE = "unreadable"
    OTHER_MODEL = "other model"
    NO_COMPARISON = "no comparison"  # a JSON of something else, in a folder; no trouble


@dataclass(frozen=True)
class LeftOutRun:
    """A run that is not in the trend."""

    path: str
    why: NotInTrendWhy
    told: str = ""  # the error's message, if it is unreadable
    # alike, layers: of another model: how many layers have the same name and shape, and of how many
    alike: int = 0
    layers: int = 0


@dataclass(frozen=True, repr=False)
class TrendFacts:
    """Several comparisons of one model.

    Attributes:
        runs: the oldest first.
        left_out: runs that could not be read, or are of another model.
        against: what the newest run is held against: ``best``, ``first``, or a run's name; ``None``
            if nothing was asked for.
    """

    runs: tuple[TrendRun, ...]
    left_out: tuple[LeftOutRun, ...] = ()
    against: str | None = None

    @property
    def newest(self) -> TrendRun:
        return self.runs[-1]

    @cached_property
    def places(self) -> list[PlaceTrend]:
        """The layers, in the newest run's execution order."""
        found = places_of([run.layers for run in self.runs])
        return [replace(place, against=self._against(place)) for place in found]

    def _against(self, place: PlaceTrend) -> int | None:
        earlier = [run for run in range(len(self.runs) - 1) if place.error_in(run) is not None]
        if self.against is None or not earlier:
            return None
        if self.against == BEST:
            return min(earlier, key=lambda run: (place.error_in(run), -run))
        named = 0 if self.against == FIRST else [run.name for run in self.runs].index(self.against)
        return named if named in earlier else None

    @cached_property
    def failing(self) -> list[PlaceTrend]:
        """The layers that fail in the newest run, in the order in which rows fail there."""
        found = [place for place in self.places if place.fails]
        return sorted(found, key=lambda place: (place.newest and place.newest.first) or 0)

    def in_state(self, state: PlaceState) -> list[PlaceTrend]:
        return [place for place in self.places if place.state is state]

    @cached_property
    def falls(self) -> dict[int, list[PlaceTrend]]:
        """The layers that fell out and still fail, by the run since which they do; the newest of
        these runs first, and of its layers the first that failed."""
        fallen = self.in_state(PlaceState.FELL_OUT)
        since = sorted({place.since for place in fallen if place.since is not None}, reverse=True)
        fallen.sort(key=lambda place: place.first_failing)
        return {run: [place for place in fallen if place.since == run] for run in since}

    @cached_property
    def lost(self) -> list[PlaceTrend]:
        """The layers that the newest run did not compare, if it left records out; or else those
        of them that failed when they were last compared."""
        gone = self.in_state(PlaceState.NOT_IN_NEWEST)
        return [place for place in gone if self.newest.rows_left_out or place.failed_last]

    @property
    def troubles(self) -> list[LeftOutRun]:
        """The runs that should be in the trend and are not."""
        return [each for each in self.left_out if each.why is not NotInTrendWhy.NO_COMPARISON]

    @property
    def answer(self) -> TrendAnswer:
        """The conclusion in one word; ``exit_code`` and ``passed`` follow from it."""
        if self.troubles or self.newest.exit_code not in (0, 1):
            return TrendAnswer.NOT_SURE
        if self.newest.exit_code or self.failing:
            return TrendAnswer.FAILS
        return TrendAnswer.NOT_SURE if self.lost else TrendAnswer.WITHIN

    @property
    def exit_code(self) -> int:
        """0: the newest run is within its limits everywhere; 1: a layer fails in it; 2: trouble."""
        return TREND_EXIT_CODES[self.answer]

    @property
    def passed(self) -> bool:
        return not self.exit_code


def of_other_models(runs: Sequence[TrendRun]) -> list[LeftOutRun]:
    """The runs whose model is not that of most; of two models as often, the newest run's counts.

    Two runs are of one model if at least half of the layers of the smaller one have the same name
    and shape in the other: a run may be of a few layers. What one side of a run lacks counts as
    another layer: its candidate may be of another model than its golden."""
    alike = [[not less_than_half(*_alike(one, other)) for other in runs] for one in runs]
    most = max(range(len(runs)), key=lambda run: (sum(alike[run]), run), default=0)
    return [
        LeftOutRun(run.path, NotInTrendWhy.OTHER_MODEL, "", *_alike(run, runs[most]))
        for number, run in enumerate(runs)
        if not alike[most][number]
    ]


def _alike(one: TrendRun, other: TrendRun) -> tuple[int, int]:
    """How many layers have the same name and shape, of how many of the smaller one."""
    ours, theirs = (
        {name: error.shape for name, error in run.layers.items() if error.called}
        for run in (one, other)
    )
    same = sum(shape is not None and theirs.get(name) == shape for name, shape in ours.items())
    return same, min(len(ours), len(theirs))
