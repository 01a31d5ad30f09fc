"""What a decision rests on, typed and without words; ``report.words`` says each in a sentence.

A fact that fields of the result tell is a member of ``BareFact``; one that was found by looking has
a class, with what was found."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, TypeAlias

import msgspec

from accucompare.compare.origins import Culprit
from accucompare.compare.preflight_facts import BesideGolden, OtherModel, PreflightFinding
from accucompare.compare.rows import Row
from accucompare.compare.runs import Parting


class BareFact(Enum):
    """Facts of which the result's own fields tell everything."""

    # why there is no answer to rely on
    STANDARD_NOT_JUDGED = auto()
    HASHES_OF_ONE_SIDE = auto()
    NOTHING_COMPARED = auto()
    NOT_VERIFIED = auto()  # something that the comparison depends on
    DAMAGED = auto()  # records could not be read
    UNFINISHED = auto()  # a capture did not run to its end
    POOR_BASELINE = auto()  # it had other weights or inputs than golden, or another mode
    STEPS_PROVE_NOTHING = auto()
    WITHIN_UNPROVED = auto()  # of a baseline; fixed limits alone judge
    WITHIN_REFUSED = auto()
    JUDGED_BY_FEW = auto()  # the baseline judges fewer than half of the compared rows
    FAR_BEYOND = auto()  # a row is far beyond rounding, and so is the baseline
    PART_BEYOND = auto()  # a row is within its limits, and a part of it far beyond them
    MAY_HIDE = auto()  # rows that could not be compared, in which an error may hide
    WEIGHTS_NOT_SHOWN = auto()  # they differ, and nothing that was compared depends on them
    OTHER_MODELS = auto()  # of the script, that might have been captured, too
    NO_OUTPUT = auto()  # the model returned nothing that could be compared
    OPTIMIZERS_DIFFER = auto()  # in their code, and no update was compared
    RAN_EAGERLY = auto()  # modules that were to be compiled
    # what differs, and what judged it
    STANDARD_MISSED = auto()
    INPUTS_DIFFER = auto()
    NO_OWN_ERROR = auto()  # rows fail, and no place shows an error of its own
    UNPROVED = auto()  # the baseline may not judge rows: golden's code gives other values here
    BY_FIXED_LIMITS = auto()  # no baseline was given, or it was refused
    OVER_GIVEN = auto()  # over limits that the user gave
    # no baseline and no second golden run tells how far runs wander
    RUNS_BY_FIXED_LIMITS = auto()
    AT_PADDING = auto()  # no real token is off
    OPERATOR_BLAMED = auto()  # of a compiled graph
    # what an all-clear begins with
    STANDARD_MET = auto()
    WITHIN_GIVEN = auto()
    IDENTICAL = auto()
    IDENTICAL_SO_FAR = auto()  # some rows could not be compared
    ROUNDING_AT_MOST = auto()
    ROUNDING = auto()
    ROUNDING_BY_FIXED_LIMITS = auto()
    NEAR_FLOAT64 = auto()  # how near compiled values are to it, beside eager ones
    # what an all-clear does not cover
    SERIES_ONLY = auto()  # losses and gradient norms alone were compared, no layer
    FORWARD_ONLY = auto()  # the case has a loss, and no gradient was compared
    PARTS_ALONE = auto()  # only parts of the model were called, and no gradient was compared
    NOT_COMPILED = auto()  # the candidate's compiled code ran eagerly
    WEIGHTS_REPLACED = auto()  # those of the candidate's case, by golden's
    CASE_OVERRULED = auto()  # what else it set otherwise
    BY_HASHES = auto()
    NOT_FINITE_FROM = auto()  # a step on, on both sides
    FEWER_STEPS = auto()  # one side has more
    AROUND_REGIONS = auto()  # code that ran eagerly
    RECORDS_LEFT_OUT = auto()
    WEIGHTS_IN_PARTS = auto()  # no rank holds all, and no row compares the values
    NOT_COMPARED = auto()  # rows
    NAN_ON_BOTH = auto()
    BROADCAST_ROWS = auto()  # of two shapes, the same when broadcast
    ALONE_ROWS = auto()  # on one side only, around which all agrees
    BY_STATISTICS = auto()
    BY_SKETCHES = auto()
    WITHOUT_BASELINE = auto()
    BASELINE_NOT_USED = auto()  # one that may not judge; nothing needed it
    BASELINE_NOT_PROVED = auto()
    GOLDEN_MADE_HERE = auto()
    BY_GOLDENS_CODE = auto()  # far off, as golden's own code is on rounded values
    DIGESTS_ALONE = auto()


class _Said(msgspec.Struct, frozen=True):
    """What makes up a fact that was found by looking."""


class NotDeterministic(_Said, frozen=True):
    """Rows that differ between two runs of one side."""

    rows: tuple[Row, ...]


class GivenDifferently(_Said, frozen=True):
    """Other weights or other inputs, which alone explain any difference."""

    finding: PreflightFinding


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


class NearOtherwise(_Said, frozen=True):
    """A row of a module that is configured otherwise; fixed limits pass it, though it is near."""

    row: Row
    option: tuple[str, str, Any, Any]  # module, attribute, golden's value, the candidate's


class OverPrecise(_Said, frozen=True):
    """Rows far closer to golden than the baseline."""

    rows: tuple[Row, ...]


# What may do more than rounding, yet too little to show.


class Otherwise(Enum):
    """How the candidate was made otherwise than golden."""

    CONFIGURED = auto()
    RUN = auto()
    GIVEN = auto()
    LEFT = auto()  # as it is at the end


class MadeOtherwise(_Said, frozen=True):
    """Attributes, modes, weights or inputs that differ."""

    how: Otherwise
    findings: tuple[PreflightFinding, ...]


class TrainedOtherwise(_Said, frozen=True):
    """Numbers that the optimizers were given, which differ."""

    rows: tuple[Row, ...]


# What an all-clear does not cover.


class CapturedInPart(_Said, frozen=True):
    """What of a model was captured, where that is not all."""

    sides: tuple[BesideGolden, ...]
    only: tuple[str, ...]
    skip: tuple[str, ...]
    roles: tuple[str, ...]


#: What differs.
Differs: TypeAlias = OtherModel | GivenDifferently | Parting | FirstOver | OtherGlue | Blamed

#: What qualifies another answer.
Qualifying: TypeAlias = (
    NotDeterministic
    | NearOtherwise
    | OverPrecise
    | MadeOtherwise
    | TrainedOtherwise
    | CapturedInPart
)

Fact: TypeAlias = BareFact | Differs | Qualifying
