"""What a decision rests on, typed and without words; ``report.words`` says each in a sentence."""

from __future__ import annotations

from enum import Enum, auto
from typing import TypeAlias

import msgspec

from accucompare.compare.compiled_facts import BlamedOperator, Nearer
from accucompare.compare.limits import OtherCode, Surrounding, Tolerance
from accucompare.compare.origins import Culprit
from accucompare.compare.preflight_facts import (
    BesideGolden,
    OtherModel,
    PreflightFinding,
    RefusedBaseline,
)
from accucompare.compare.rows import Reason, Row
from accucompare.compare.runs import Acceptance, Parting, TrainingResult
from accucompare.selection import Standard


class BareFact(Enum):
    """Facts with nothing to add to their names."""

    NOTHING_COMPARED = auto()
    INPUTS_DIFFER = auto()
    OVER_GIVEN = auto()  # over limits that the user gave
    # no baseline and no second golden run tells how far runs wander
    RUNS_BY_FIXED_LIMITS = auto()
    AT_PADDING = auto()  # no real token is off
    IDENTICAL = auto()
    IDENTICAL_SO_FAR = auto()  # some rows could not be compared
    ROUNDING_AT_MOST = auto()
    ROUNDING = auto()
    ROUNDING_BY_FIXED_LIMITS = auto()
    FORWARD_ONLY = auto()  # the case has a loss, and no gradient was compared
    PARTS_ALONE = auto()  # only parts of the model were called, and no gradient was compared
    NOT_COMPILED = auto()  # the candidate's compiled code ran eagerly
    BY_HASHES = auto()
    GOLDEN_MADE_HERE = auto()


class _Said(msgspec.Struct, frozen=True):
    """What makes up a fact that has values."""


# Why there is no answer to rely on.


class StandardNotJudged(_Said, frozen=True):
    """It cannot be said whether a standard is met."""

    acceptance: Acceptance
    training: TrainingResult | None
    incomplete: tuple[BesideGolden, ...]


class HashesOfOneSide(_Said, frozen=True):
    """One side holds hashes, the other values."""

    golden: bool  # whether golden holds the hashes


class NotVerified(_Said, frozen=True):
    """What the comparison depends on and could not be verified."""

    findings: tuple[PreflightFinding, ...]


class Damaged(_Said, frozen=True):
    """Records that could not be read."""

    count: int


class Unfinished(_Said, frozen=True):
    """Captures that did not run to their end."""

    sides: tuple[BesideGolden, ...]


class NotDeterministic(_Said, frozen=True):
    """Rows that differ between two runs of one side."""

    rows: tuple[Row, ...]


class PoorBaseline(_Said, frozen=True):
    """The baseline had other weights or inputs than golden, or another mode."""

    finding: PreflightFinding


class StepsProveNothing(_Said, frozen=True):
    """Steps of training are within limits that prove nothing."""

    training: TrainingResult


class Unproved(_Said, frozen=True):
    """The baseline may not judge these rows: it was made where golden's code gives other values."""

    rows: tuple[Row, ...]


class WithinFixedLimits(_Said, frozen=True):
    """Everything is within fixed limits, and nothing better may judge."""

    since: Unproved | RefusedBaseline


class JudgedByFew(_Said, frozen=True):
    """The baseline judges fewer than half of the compared rows."""

    judged: int
    compared: int


class FarBeyond(_Said, frozen=True):
    """A row is far beyond rounding, and so is the baseline."""

    row: Row
    failed: bool  # whether rows fail


class MayHide(_Said, frozen=True):
    """Rows that could not be compared, in which an error may hide."""

    first: Row
    count: int
    total: int


class WeightsNotShown(_Said, frozen=True):
    """Parameters that differ, and nothing that was compared depends on them."""

    names: tuple[str, ...]


class OtherModels(_Said, frozen=True):
    """Models of the script that might have been captured, too."""

    names: tuple[str, ...]


class NoOutput(_Said, frozen=True):
    """The model returned nothing that could be compared."""

    given: Row


class OptimizersDiffer(_Said, frozen=True):
    """The code of the optimizers differs, and no update was compared."""

    code: OtherCode


class RanEagerly(_Said, frozen=True):
    """Modules that were to be compiled and could not be: their own code ran eagerly."""

    modules: dict[str, str]  # and why


# What differs.


class StandardMissed(_Said, frozen=True):
    """The standard asked for is not met."""

    standard: Standard


class GivenDifferently(_Said, frozen=True):
    """Other weights or other inputs, which alone explain any difference."""

    finding: PreflightFinding


class NoOwnError(_Said, frozen=True):
    """Rows fail, and no place shows an error of its own."""

    counts: tuple[tuple[Reason, int], ...]


class Order(Enum):
    """Where the named place lies among those over tolerance."""

    FIRST = auto()
    MOST_STEPS = auto()
    LATER = auto()


class FirstOver(_Said, frozen=True):
    """A place is over tolerance, and nothing tells whether its error was made there."""

    culprit: Culprit
    order: Order


class OtherGlue(_Said, frozen=True):
    """Glue gives another structure, shape or type."""

    culprit: Culprit
    values_off: bool  # whether values after it are off


class Blamed(_Said, frozen=True):
    """The culprits that are named, and how many are not."""

    culprits: tuple[Culprit, ...]
    more: int


class ByFixedLimits(_Said, frozen=True):
    """Fixed limits judged: no baseline was given, or it was refused."""

    refused: RefusedBaseline | None


class OperatorBlamed(_Said, frozen=True):
    """The operator of a compiled graph in which the first culprit's error is made."""

    operator: BlamedOperator


# What an all-clear begins with.


class StandardMet(_Said, frozen=True):
    """The standard asked for is met."""

    standard: Standard


class WithinGiven(_Said, frozen=True):
    """Every row is within limits that the user gave."""

    tolerance: Tolerance


class OverPrecise(_Said, frozen=True):
    """Rows far closer to golden than the baseline."""

    rows: tuple[Row, ...]


class NearFloat64(_Said, frozen=True):
    """How near compiled values are to those in float64, beside eager ones."""

    nearer: Nearer


# What may do more than rounding, yet too little to show.


class Otherwise(Enum):
    """How the candidate was made otherwise than golden."""

    CONFIGURED = auto()
    RUN = auto()
    GIVEN = auto()


class MadeOtherwise(_Said, frozen=True):
    """Attributes, modes, weights or inputs that differ."""

    how: Otherwise
    findings: tuple[PreflightFinding, ...]


class TrainedOtherwise(_Said, frozen=True):
    """Numbers that the optimizers were given, which differ."""

    rows: tuple[Row, ...]


# What an all-clear does not cover.


class SeriesOnly(_Said, frozen=True):
    """Losses and gradient norms of steps alone were compared, no layer."""

    steps: int


class WeightsReplaced(_Said, frozen=True):
    """Weights of the candidate's case that golden's replaced."""

    names: tuple[str, ...]


class CaseOverruled(_Said, frozen=True):
    """What the candidate's case set otherwise and golden's replaced."""

    names: tuple[str, ...]


class NotFiniteFrom(_Said, frozen=True):
    """Both sides hold NaN or Inf from a step on."""

    step: int


class NanOnBoth(_Said, frozen=True):
    """Rows that hold NaN on both sides, in the same places."""

    rows: tuple[Row, ...]


class FewerSteps(_Said, frozen=True):
    """One side has more steps than the other."""

    compared: int
    total: int


class BuffersNotRecorded(_Said, frozen=True):
    """A side was captured by a version that does not record what calls write into buffers."""

    golden: bool


class CapturedInPart(_Said, frozen=True):
    """What of a model was captured, where that is not all."""

    sides: tuple[BesideGolden, ...]
    only: tuple[str, ...]
    skip: tuple[str, ...]
    roles: tuple[str, ...]


class AroundRegions(_Said, frozen=True):
    """Code around compiled regions, which ran eagerly."""

    regions: int


class RecordsLeftOut(_Said, frozen=True):
    """Records that the diff's selection left out."""

    count: int


class WeightsInParts(_Said, frozen=True):
    """Parameters of which no rank holds all, and no row compares the values."""

    names: tuple[str, ...]


class NotCompared(_Said, frozen=True):
    """Rows that could not be compared."""

    rows: tuple[Row, ...]
    total: int


class BroadcastRows(_Said, frozen=True):
    """Rows of two shapes, the same when broadcast."""

    rows: tuple[Row, ...]


class AloneRows(_Said, frozen=True):
    """Rows on one side only, around which all agrees."""

    rows: tuple[Row, ...]


class Judged(Enum):
    """How rows were judged, if by less than all their values and the baseline."""

    BY_STATISTICS = auto()
    BY_SKETCHES = auto()
    WITHOUT_BASELINE = auto()
    BY_GOLDENS_CODE = auto()  # far off, as golden's own code is on rounded values


class RowsJudged(_Said, frozen=True):
    """How many rows were judged this way."""

    how: Judged
    count: int


class BaselineNotProved(_Said, frozen=True):
    """No run proves the baseline: it failed, or was not asked for although these differ."""

    why: str | tuple[Surrounding, ...]


class BaselineNotUsed(_Said, frozen=True):
    """A baseline that may not judge; nothing needed it."""

    why: RefusedBaseline | PreflightFinding


class DigestsAlone(_Said, frozen=True):
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
    | WeightsNotShown
    | OtherModels
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
    | NanOnBoth
    | FewerSteps
    | BuffersNotRecorded
    | CapturedInPart
    | RecordsLeftOut
    | WeightsInParts
    | NotCompared
    | BroadcastRows
    | AloneRows
    | RowsJudged
    | BaselineNotProved
    | BaselineNotUsed
    | DigestsAlone
)

#: Of regions that were compiled.
OfCompiling: TypeAlias = RanEagerly | OperatorBlamed | NearFloat64 | AroundRegions

Fact: TypeAlias = BareFact | Trouble | Differs | Clear | Uncovered | OfCompiling
