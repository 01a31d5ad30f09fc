"""What a check of the checklist is, and what it is given. Without torch; ``checks_*.py`` have the
checks.

A check is a pure function from a log's content to an outcome. It states what was measured, never a
mechanism that nobody saw."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from accucompare.findings.analysis import Analysis
from accucompare.findings.log import Number, ParameterFacts, TrainingSetup, Vitals, WatchRemark
from accucompare.selection import Word


class CheckStatus(Word):
    """A check's result, the worst first."""

    FAIL = "FAIL"
    WARN = "WARN"
    NOT_LOOKED_AT = "NOT LOOKED AT"
    PASS = "PASS"


class Layer(Word):
    """What a check is about."""

    DATA = "data"
    RANDOMNESS = "randomness"
    MODEL = "model"
    LOSS = "loss"
    PRECISION = "precision"
    OPTIMIZER = "optimizer"
    SCHEDULE = "schedule and clipping"
    RUN = "run"


@dataclass(frozen=True)
class CheckOutcome:
    """What one check has seen in one run."""

    status: CheckStatus
    measured: WatchRemark  # what was measured; if it was not looked at, why not
    value: float | None = None  # the number that was judged, if there is one
    step: int | None = None  # where it was so first, or worst
    place: str = ""  # the parameter, module or input


def passed(measured: WatchRemark, value: float | None = None) -> CheckOutcome:
    return CheckOutcome(CheckStatus.PASS, measured, value)


def warned(
    measured: WatchRemark, value: float | None = None, step: int | None = None, place: str = ""
) -> CheckOutcome:
    return CheckOutcome(CheckStatus.WARN, measured, value, step, place)


def failed(
    measured: WatchRemark, value: float | None = None, step: int | None = None, place: str = ""
) -> CheckOutcome:
    return CheckOutcome(CheckStatus.FAIL, measured, value, step, place)


def warned_if(
    over: bool,
    measured: WatchRemark,
    value: float | None = None,
    step: int | None = None,
    place: str = "",
) -> CheckOutcome:
    return warned(measured, value, step, place) if over else passed(measured, value)


def not_looked_at(because: WatchRemark) -> CheckOutcome:
    return CheckOutcome(CheckStatus.NOT_LOOKED_AT, because)


class Point(NamedTuple):
    """A number of a step."""

    step: int
    value: float


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a check is given."""

    run: Analysis  # one rank's run
    limits: Mapping[str, float]  # by name, the check's thresholds in force
    ranks: Sequence[Analysis] = ()  # the runs of all ranks, this one included

    @cached_property
    def setup(self) -> TrainingSetup:
        """The last one of the run; an empty one if the log has none."""
        return self.run.setups[-1] if self.run.setups else TrainingSetup(0)

    @cached_property
    def vitals(self) -> Sequence[Vitals]:
        """Of each step that came to its end."""
        return [each for each in self.run.vitals if not each.died]

    @cached_property
    def updates(self) -> list[Vitals]:
        """The steps in which parameters were updated."""
        return [each for each in self.vitals if each.updates]

    @cached_property
    def losses(self) -> list[Point]:
        """Each step's loss: the one that the loop told, or else the backward's root."""
        seen = {each.step: each.loss for each in self.vitals}
        every = [
            (step.step, step.loss if step.loss is not None else seen.get(step.step))
            for step in self.run.steps
        ]
        return [Point(step, float(loss)) for step, loss in every if loss is not None]

    @cached_property
    def norms(self) -> list[Point]:
        """The gradient norm of each step whose update was not skipped."""
        skipped = {each.step for each in self.run.scaled if each.skipped}
        return [
            Point(step.step, float(step.grad_norm))
            for step in self.run.steps
            if step.grad_norm is not None and step.step not in skipped
        ]

    @cached_property
    def looked(self) -> list[Vitals]:
        """The steps that were looked at closely."""
        return [each for each in self.vitals if each.layers]

    def of_layers(
        self, *measurements: str
    ) -> Iterator[tuple[ParameterFacts, list[tuple[int, list[float]]]]]:
        """For each parameter, the steps in which all of these were measured, with the numbers."""
        for index, parameter in enumerate(self.setup.parameters):
            series: list[tuple[int, list[float]]] = []
            for each in self.looked:
                found = [_at(each.layers.get(name), index) for name in measurements]
                if None not in found:
                    series.append(
                        (each.step, [float(value) for value in found if value is not None])
                    )
            if series:
                yield parameter, series


def _at(values: list[Number | None] | None, index: int) -> Number | None:
    return values[index] if values is not None and index < len(values) else None


Judge = Callable[[Evidence], CheckOutcome]


class Need(Word):
    """What a run must have for a check; the value is the remark if it is missing."""

    VITALS = "no-vitals"
    BEGUN = "not-begun"
    UPDATES = "no-update"
    LOSSES = "no-losses"
    NORMS = "no-norms"
    CLOSE = "no-close-look"
    SCALER = "no-scaler"
    SCHEDULER = "no-scheduler"
    CALLED = "not-called"
    GIVEN = "called-without-gradients"
    TARGETS = "no-targets"
    ADAM = "no-adam"
    EARLIER = "no-earlier-run"
    RANKS = "one-rank"

    def missing(self, evidence: Evidence) -> bool:
        return not _HAS[self](evidence)


_HAS: dict[Need, Callable[[Evidence], object]] = {
    Need.VITALS: lambda seen: seen.vitals and seen.run.setups,
    Need.BEGUN: lambda seen: seen.run.vitals and seen.run.setups,
    Need.UPDATES: lambda seen: seen.updates,
    Need.LOSSES: lambda seen: seen.losses,
    Need.NORMS: lambda seen: seen.norms,
    Need.CLOSE: lambda seen: any("update" in each.layers for each in seen.looked),
    Need.SCALER: lambda seen: any(step.scale is not None for step in seen.run.steps),
    Need.SCHEDULER: lambda seen: seen.setup.schedulers,
    Need.CALLED: lambda seen: any(
        each.given or each.outputs or each.entered for each in seen.run.vitals
    ),
    Need.GIVEN: lambda seen: any(each.given for each in seen.run.vitals),
    Need.TARGETS: lambda seen: any(each.targets is not None for each in seen.vitals),
    Need.ADAM: lambda seen: any(
        value is not None for each in seen.looked for value in each.layers.get("v", ())
    ),
    Need.EARLIER: lambda seen: seen.run.earlier is not None and seen.run.earlier.vitals,
    Need.RANKS: lambda seen: len(seen.ranks) > 1,
}


@dataclass(frozen=True)
class Check:
    """A line of the checklist. ``report.words`` says what it looks at, why, and what to do."""

    id: str  # its name for options and programs
    judge: Judge | None = None  # decides; ``None`` for what nothing here looks at
    # the defaults of what it judges by
    thresholds: Mapping[str, float] = field(default_factory=dict)
    needs: tuple[Need, ...] = (Need.VITALS,)
    across: bool = False  # whether it compares ranks, and so judges all of them once
    layer: Layer = Layer.RUN


def of_layer(layer: Layer, *checks: Check) -> tuple[Check, ...]:
    return tuple(replace(check, layer=layer) for check in checks)


def median(values: Iterable[float]) -> float:
    """The median without NaN; NaN of nothing."""
    known = sorted(value for value in values if not math.isnan(value))
    if not known:
        return math.nan
    middle = len(known) // 2
    return known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2


#: The standard deviation of a normal distribution over its median absolute deviation.
_NORMAL = 1.4826
#: How many values before a spike are its surroundings.
_RECENT = 10
#: So many values before count for the spread; with fewer than the second, nothing is a spike.
_WINDOW, _FEWEST = 100, 20


class Spike(NamedTuple):
    """A value far above those before it, their median, and the distance in spreads."""

    point: Point
    usual: float
    spreads: float


def spikes(series: Sequence[Point], times: float, *, floor: float = 0.1) -> list[Spike]:
    """The values of a positive series that lie more than ``times`` spreads above the median of the
    ten before.

    Measured in logarithms. The spread is a value's deviation from its neighbours: the standard
    deviation of a normal distribution with the same median absolute deviation as the series' steps,
    over the square root of two. So a slow fall over decades adds no spread. ``floor`` is its
    minimum (0.1: a tenth of the value), since a smooth series would have none.

    Args:
        series: by step; values that are not finite or not positive are left to other checks.
        times: how many spreads.
    """
    found: list[Spike] = []
    before: list[float] = []
    for point in series:
        if not (math.isfinite(point.value) and point.value > 0):
            continue
        value = math.log(point.value)
        if len(before) >= _FEWEST:
            usual = median(before[-_RECENT:])
            steps = [after - earlier for earlier, after in itertools.pairwise(before[-_WINDOW:])]
            middle = median(steps)
            spread = max(
                _NORMAL * median(abs(each - middle) for each in steps) / math.sqrt(2), floor
            )
            if value - usual > times * spread:
                found.append(Spike(point, math.exp(usual), (value - usual) / spread))
        before.append(value)
    return found
