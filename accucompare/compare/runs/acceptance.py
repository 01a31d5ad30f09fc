"""Others' standards that a run of training must meet: ``diff --accept``.

A standard judges only losses and gradient norms of two free-running runs, not their layers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from accucompare.compare.preflight_facts import BesideGolden
from accucompare.compare.runs.step_pairs import StepPair
from accucompare.compare.runs.training_result import TrainingResult
from accucompare.compare.runs.wander import Apart
from accucompare.selection import Standard


class StandardTrouble(Enum):
    """Why it is unknown whether a standard is met."""

    NO_LOSSES = auto()
    UNFINISHED = auto()  # a capture did not run to its end
    STEPS_LACKING = auto()  # the candidate lacks some of golden's
    NOT_MEASURED = auto()  # something that a rule is about
    TOO_FEW_STEPS = auto()


class StandardMeasure(str, Enum):
    """What a rule measures in a run."""

    FIRST_LOSS = "first loss"
    MEAN_LOSS = "mean loss"
    MEAN_NORM = "mean gradient norm"


@dataclass(frozen=True)
class StandardRule:
    """A limit of a standard, met if one of its two limits is kept; ``None`` is no limit."""

    measure: StandardMeasure  # of what; a mean is of the absolute differences of all steps
    absolute: float | None  # the largest |candidate - golden|
    relative: float | None  # the largest |candidate - golden| / |golden|
    strict: bool = True  # whether a difference must be below its limit, not at it


@dataclass(frozen=True)
class Preset:
    """A standard; all ``rules`` must be met."""

    rules: tuple[StandardRule, ...]
    least_steps: int


PRESETS = {
    Standard.MINDFORMERS: Preset(
        rules=(
            StandardRule(StandardMeasure.FIRST_LOSS, 0.005, 0.005),
            StandardRule(StandardMeasure.MEAN_LOSS, 0.01, 0.01),
            StandardRule(StandardMeasure.MEAN_NORM, None, 0.10, strict=False),
        ),
        least_steps=1_000,
    )
}


@dataclass(frozen=True)
class Met:
    """What came of a rule."""

    rule: StandardRule
    # absolute, relative: what was measured; NaN if a side is not finite, ``None`` if nothing was
    absolute: float | None = None
    relative: float | None = None
    judged: bool = True  # whether anything was measured

    @property
    def passed(self) -> bool:
        """Whether it was measured, and one of its limits is kept; NaN keeps none."""
        return self._kept(self.absolute, self.rule.absolute) or self._kept(
            self.relative, self.rule.relative
        )

    def _kept(self, measured: float | None, limit: float | None) -> bool:
        if measured is None or limit is None:
            return False
        return measured < limit if self.rule.strict else measured <= limit


@dataclass(frozen=True)
class Acceptance:
    """Whether a standard is met, by what came of each of its rules in so many steps."""

    standard: Standard
    rules: tuple[Met, ...]
    steps: int

    @property
    def preset(self) -> Preset:
        return PRESETS[self.standard]

    @property
    def kept(self) -> bool:
        """Whether the available steps meet all rules."""
        return all(rule.passed for rule in self.rules)

    @property
    def passed(self) -> bool:
        """Whether all rules are met over as many steps as the standard asks for."""
        return self.kept and not self.too_few

    @property
    def failed(self) -> bool:
        return any(rule.judged and not rule.passed for rule in self.rules)

    def trouble_of(
        self, training: TrainingResult | None, incomplete: Sequence[BesideGolden]
    ) -> StandardTrouble | None:
        """Why it is unknown whether the standard is met; ``None`` if it is known.

        Args:
            training: the steps that were judged.
            incomplete: the sides whose capture did not run to its end.
        """
        if training is None or not training.compared:
            return StandardTrouble.NO_LOSSES
        if incomplete and not self.failed:
            return StandardTrouble.UNFINISHED
        if training.alone[0] and not self.failed:
            return StandardTrouble.STEPS_LACKING
        return self.trouble

    @property
    def trouble(self) -> StandardTrouble | None:
        """What its rules or steps lack; a failure fails all the same."""
        if self.failed:
            return None
        if not all(rule.judged for rule in self.rules):
            return StandardTrouble.NOT_MEASURED
        return StandardTrouble.TOO_FEW_STEPS if self.too_few else None

    @property
    def too_few(self) -> bool:
        """Whether the standard asks for more steps."""
        return self.steps < self.preset.least_steps


def accept(standard: Standard, pairs: Sequence[StepPair]) -> Acceptance:
    """Judge the steps of two runs, by rank and step, by a standard."""
    measured = tuple(_measured(rule, pairs) for rule in PRESETS[standard].rules)
    compared = {
        pair.step for pair in pairs if pair.golden is not None and pair.candidate is not None
    }
    return Acceptance(standard, measured, len(compared))


def _measured(rule: StandardRule, pairs: Sequence[StepPair]) -> Met:
    if rule.measure is StandardMeasure.MEAN_NORM:
        found = [pair.norm for pair in pairs if pair.norm is not None]
        return _mean(rule, found)
    losses = [pair.loss for pair in pairs if pair.loss is not None]
    if rule.measure is StandardMeasure.MEAN_LOSS:
        return _mean(rule, losses)
    first = [pair.loss for pair in pairs if pair.step == 0 and pair.loss is not None]
    return _mean(rule, first)


def _mean(rule: StandardRule, numbers: Sequence[Apart]) -> Met:
    """Mean absolute and relative differences; for one step, the differences themselves."""
    if not numbers:
        return Met(rule, judged=False)
    if not all(number.finite for number in numbers):
        return Met(rule, math.nan, math.nan)
    absolute = statistics.fmean(abs(number.candidate - number.golden) for number in numbers)
    return Met(rule, absolute, statistics.fmean(abs(number.relative) for number in numbers))
