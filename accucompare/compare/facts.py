"""What a decision rests on, typed and without words; ``report.words`` says each in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from accucompare.compare.limits import OtherCode, Surrounding, Tolerance
from accucompare.compare.origins import Culprit
from accucompare.compare.rows import (
    BesideGolden,
    OtherModel,
    PreflightFinding,
    Reason,
    RefusedBaseline,
    Row,
)
from accucompare.compare.runs import Acceptance, Parting, TrainingResult
from accucompare.selection import Standard


class BareFact(Enum):
    """Facts with nothing to add to their names."""

    NOTHING_COMPARED = auto()
    INPUTS_DIFFER = auto()
    OVER_GIVEN = auto()  # over limits that the user gave
    # no baseline and no second golden run tells how far runs wander
    RUNS_BY_FIXED_LIMITS = auto()
    IDENTICAL = auto()
    IDENTICAL_SO_FAR = auto()  # some rows could not be compared
    ROUNDING_AT_MOST = auto()
    ROUNDING = auto()
    ROUNDING_BY_FIXED_LIMITS = auto()
    FORWARD_ONLY = auto()  # the case has a loss, and no gradient was compared
    BY_HASHES = auto()
    GOLDEN_MADE_HERE = auto()


# Why there is no answer to rely on.


@dataclass(frozen=True)
class StandardNotJudged:
    """It cannot be said whether a standard is met."""

    acceptance: Acceptance
    training: TrainingResult | None
    incomplete: tuple[BesideGolden, ...]


@dataclass(frozen=True)
class HashesOfOneSide:
    """One side holds hashes, the other values."""

    golden: bool  # whether golden holds the hashes


@dataclass(frozen=True)
class NotVerified:
    """What the comparison depends on and could not be verified."""

    findings: tuple[PreflightFinding, ...]


@dataclass(frozen=True)
class Damaged:
    """Records that could not be read."""

    count: int


@dataclass(frozen=True)
class Unfinished:
    """Captures that did not run to their end."""

    sides: tuple[BesideGolden, ...]


@dataclass(frozen=True)
class NotDeterministic:
    """Rows that differ between two runs of one side."""

    rows: tuple[Row, ...]


@dataclass(frozen=True)
class PoorBaseline:
    """The baseline had other weights or inputs than golden, or another mode."""

    finding: PreflightFinding


@dataclass(frozen=True)
class StepsProveNothing:
    """Steps of training are within limits that prove nothing."""

    training: TrainingResult


@dataclass(frozen=True)
class Unproved:
    """The baseline may not judge these rows: it was made where golden's code gives other values."""

    rows: tuple[Row, ...]


@dataclass(frozen=True)
class WithinFixedLimits:
    """Everything is within fixed limits, and nothing better may judge."""

    since: Unproved | RefusedBaseline


@dataclass(frozen=True)
class JudgedByFew:
    """The baseline judges fewer than half of the compared rows."""

    judged: int
    compared: int


@dataclass(frozen=True)
class FarBeyond:
    """A row is far beyond rounding, and so is the baseline."""

    row: Row
    failed: bool  # whether rows fail


@dataclass(frozen=True)
class MayHide:
    """Rows that could not be compared, in which an error may hide."""

    first: Row
    count: int
    total: int


@dataclass(frozen=True)
class NoOutput:
    """The model returned nothing that could be compared."""

    given: Row


@dataclass(frozen=True)
class OptimizersDiffer:
    """The code of the optimizers differs, and no update was compared."""

    code: OtherCode


# What differs.


@dataclass(frozen=True)
class StandardMissed:
    """The standard asked for is not met."""

    standard: Standard


@dataclass(frozen=True)
class GivenDifferently:
    """Other weights or other inputs, which alone explain any difference."""

    finding: PreflightFinding


@dataclass(frozen=True)
class NoOwnError:
    """Rows fail, and no place shows an error of its own."""

    counts: tuple[tuple[Reason, int], ...]


class Order(Enum):
    """Where the named place lies among those over tolerance."""

    FIRST = auto()
    MOST_STEPS = auto()
    LATER = auto()


@dataclass(frozen=True)
class FirstOver:
    """A place is over tolerance, and nothing tells whether its error was made there."""

    culprit: Culprit
    order: Order


@dataclass(frozen=True)
class OtherGlue:
    """Glue gives another structure, shape or type."""

    culprit: Culprit
    values_off: bool  # whether values after it are off


@dataclass(frozen=True)
class Blamed:
    """The culprits that are named, and how many are not."""

    culprits: tuple[Culprit, ...]
    more: int


@dataclass(frozen=True)
class ByFixedLimits:
    """Fixed limits judged: no baseline was given, or it was refused."""

    refused: RefusedBaseline | None


# What an all-clear begins with.


@dataclass(frozen=True)
class StandardMet:
    """The standard asked for is met."""

    standard: Standard


@dataclass(frozen=True)
class WithinGiven:
    """Every row is within limits that the user gave."""

    tolerance: Tolerance


@dataclass(frozen=True)
class OverPrecise:
    """Rows far closer to golden than the baseline."""

    rows: tuple[Row, ...]


# What may do more than rounding, yet too little to show.


class Otherwise(Enum):
    """How the candidate was made otherwise than golden."""

    CONFIGURED = auto()
    RUN = auto()
    GIVEN = auto()


@dataclass(frozen=True)
class MadeOtherwise:
    """Attributes, modes, weights or inputs that differ."""

    how: Otherwise
    findings: tuple[PreflightFinding, ...]


@dataclass(frozen=True)
class TrainedOtherwise:
    """Numbers that the optimizers were given, which differ."""

    rows: tuple[Row, ...]


# What an all-clear does not cover.


@dataclass(frozen=True)
class SeriesOnly:
    """Only losses and gradient norms of steps were compared, no layer."""

    steps: int


@dataclass(frozen=True)
class WeightsReplaced:
    """Weights of the candidate's case that golden's replaced."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class CaseOverruled:
    """What the candidate's case set otherwise and golden's replaced."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class NotFiniteFrom:
    """Both sides hold NaN or Inf from a step on."""

    step: int


@dataclass(frozen=True)
class FewerSteps:
    """One side has more steps than the other."""

    compared: int
    total: int


@dataclass(frozen=True)
class BuffersNotRecorded:
    """A side was captured by a version that does not record what calls write into buffers."""

    golden: bool


@dataclass(frozen=True)
class CapturedInPart:
    """What of a model was captured, where that is not all."""

    sides: tuple[BesideGolden, ...]
    only: tuple[str, ...]
    skip: tuple[str, ...]
    roles: tuple[str, ...]


@dataclass(frozen=True)
class RecordsLeftOut:
    """Records that the diff's selection left out."""

    count: int


@dataclass(frozen=True)
class NotCompared:
    """Rows that could not be compared."""

    rows: tuple[Row, ...]
    total: int


@dataclass(frozen=True)
class BroadcastRows:
    """Rows of two shapes, the same when broadcast."""

    rows: tuple[Row, ...]


@dataclass(frozen=True)
class AloneRows:
    """Rows on one side only, around which all agrees."""

    rows: tuple[Row, ...]


class Judged(Enum):
    """How rows were judged, if by less than all their values and the baseline."""

    BY_STATISTICS = auto()
    BY_SKETCHES = auto()
    WITHOUT_BASELINE = auto()
    BY_GOLDENS_CODE = auto()  # far off, as golden's own code is on rounded values


@dataclass(frozen=True)
class RowsJudged:
    """How many rows were judged this way."""

    how: Judged
    count: int


@dataclass(frozen=True)
class BaselineNotProved:
    """No run proves the baseline: it failed, or was not asked for although these differ."""

    why: str | tuple[Surrounding, ...]


@dataclass(frozen=True)
class DigestsAlone:
    """Only digests, and this many steps' losses and gradient norms, were compared."""

    steps: int


#: Why there is no answer to rely on.
Trouble: TypeAlias = (
    StandardNotJudged
    | HashesOfOneSide
    | NotVerified
    | Damaged
    | Unfinished
    | NotDeterministic
    | PoorBaseline
    | StepsProveNothing
    | WithinFixedLimits
    | JudgedByFew
    | FarBeyond
    | MayHide
    | NoOutput
    | OptimizersDiffer
)

#: What differs, and what judged it.
Differs: TypeAlias = (
    StandardMissed
    | OtherModel
    | GivenDifferently
    | Parting
    | NoOwnError
    | FirstOver
    | OtherGlue
    | Blamed
    | Unproved
    | ByFixedLimits
)

#: What is clear, and what was made otherwise.
Clear: TypeAlias = StandardMet | WithinGiven | OverPrecise | MadeOtherwise | TrainedOtherwise

#: What an all-clear does not cover.
Uncovered: TypeAlias = (
    SeriesOnly
    | WeightsReplaced
    | CaseOverruled
    | NotFiniteFrom
    | FewerSteps
    | BuffersNotRecorded
    | CapturedInPart
    | RecordsLeftOut
    | NotCompared
    | BroadcastRows
    | AloneRows
    | RowsJudged
    | BaselineNotProved
    | DigestsAlone
)

Fact: TypeAlias = BareFact | Trouble | Differs | Clear | Uncovered
