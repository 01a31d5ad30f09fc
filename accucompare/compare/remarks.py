"""What there is to say of a pair, typed and without words: ``report.words`` makes the sentences.

No remark repeats what the row itself tells (shapes, types). ``golden`` of a remark: whether it is
about golden, not the candidate.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, TypeAlias, Union

import msgspec


class BareRemark(str, Enum):
    """Remarks with nothing to add to their names."""

    # the two records
    BOTH_KINDS = "kinds"
    ALL_THERE_IS = "known"  # what is known of values without data
    GOLDENS_KIND = "golden"
    OTHER_COMPONENTS = "components"
    OTHER_SHAPES = "shapes"
    OTHER_PARTS = "parts"
    OTHER_BITS = "bits"
    DIGESTS_TELL_NOTHING = "digests"
    OTHER_OPTION = "option"
    BROADCAST = "broadcast"
    NOT_BROADCAST = "not broadcast"
    RESHAPED = "reshaped"
    GIVEN_ROUNDED = "rounded"
    SAME_MASKS = "masks"
    ALL_OF_IT_AGREES = "agrees"  # all that is computed of it
    # what was measured
    NON_FINITE_COUNTS = "counts"
    NON_FINITE_BY_STATISTICS = "counts by statistics"
    NON_FINITE_AT_LEAST = "counts at least"
    NON_FINITE_UNCOUNTED = "uncounted"
    NON_FINITE_SOMEWHERE = "somewhere"
    NON_FINITE_BEHIND_SKETCH = "sketch"
    MAY_BE_MASKS = "may be masks"
    LOWER_BOUNDS = "bounds"
    # why one side alone has it
    HANDED_ON = "handed on"
    STEP_NOT_FED = "step not fed"
    WAY_OF_UPDATING = "way of updating"
    ONE_COMPUTES_BUFFER = "one computes"
    ONE_RUNS_OPERATOR = "one runs"
    # why it is not judged
    OTHER_STEPS = "other steps"
    WANDERED = "wandered"  # made of other gradients or weights
    WANDERED_FED = "wandered, fed"
    NOT_PROVEN = "no step judged"
    NORM_UNKNOWN = "norm unknown"
    # why no baseline judges it
    NO_BASELINE = "no baseline"
    NO_VALUES = "no values"
    OTHER_PART = "other part"
    BASELINE_NON_FINITE = "baseline not finite"


class _Fact(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A remark whose class a cluster's worker sends along."""


class DumpGap(str, Enum):
    """Why a dump of another tool, or the side opposite it, lacks a record."""

    NAME_ALONE = "name alone"
    HASH_KIND = "kind of hash"
    ROLE = "role"
    ROOT = "root"
    OPAQUE = "no tensor"
    NAME = "name"
    NAMED_GRADIENT = "named gradient"
    HAS_CHILDREN = "has children"
    PRUNED = "pruned"


class NotInDump(_Fact, frozen=True):
    """``tool`` is the format's name, ``kind`` the hash that it lacks."""

    gap: DumpGap
    tool: str
    kind: str = ""


class SameParameter(_Fact, frozen=True):
    """A capture records it under this name."""

    first: str


class NotAsked(_Fact, frozen=True):
    """A side was captured with an option that leaves it out."""

    golden: bool
    option: str
    value: str


class ByRounding(_Fact, frozen=True):
    """Rounding alone changes a shape, or the number of ``calls``, as the baseline shows."""

    calls: bool
    golden: tuple[int, ...]
    candidate: tuple[int, ...]
    baseline: tuple[int, ...]


class OneSideWhy(str, Enum):
    """Why a side has no record."""

    RAN_ON = "ran on"  # it did not look at what its last step left behind
    NO_UPDATE = "no update"  # it records gradients that an update takes
    WITHOUT_GRADIENTS = "no gradients"
    FLAT_PARAMETERS = "flat parameters"  # FSDP1's, whose gradients cannot be told apart
    IN_FLAT = "in flat"  # FSDP1 has one tensor of all parameters of a module
    ADDS_NO_ZEROS = "zeros"  # the other's is zero everywhere
    HELD_SAME = "held the same"  # what the other's steps made, as its model had run before
    HELD_OTHER = "held another"  # likewise, but other values
    KEPT_NOTHING = "kept nothing"  # its module has no tensor in this attribute
    PASSES_BY = "passes by"  # the call gave its own input back, which was written into later
    NO_UPDATE_TELLS = "no update tells"  # no update in these steps tells whether it is used
    CAST = "cast"  # the argument has another type there, so that a cast of it makes a copy


class NotOnSide(_Fact, frozen=True):
    """Why golden, or the candidate, has no such record."""

    why: OneSideWhy
    golden: bool


class OtherOptimizerState(_Fact, frozen=True):
    """The classes of the two optimizers."""

    golden: str
    candidate: str


class PartsMissing(_Fact, frozen=True):
    """Parts of the global tensor are missing, or overlap; these ``ranks`` have a record."""

    ranks: tuple[int, ...]
    lacking: tuple[int, ...] = ()  # ranks that finished the step and should have one


class NotRecordedOn(_Fact, frozen=True):
    """Of all ranks these alone have what it is of, and they did not record it."""

    ranks: tuple[int, ...]


class UnknownLayout(_Fact, frozen=True):
    """The ranks' tensors, of these shapes, fill golden's in no way that is known."""

    shapes: tuple[tuple[int, ...], ...]


class TokensElsewhere(_Fact, frozen=True):
    """Rows of an expert without a partner, or of tokens that it is not known for."""

    golden: int  # how many of golden's tokens the candidate has elsewhere
    candidate: int  # how many of the candidate's golden has elsewhere
    of: int  # how many golden has
    by_rounding: bool  # whether the router sent them elsewhere, within its rounding
    ranks: tuple[int, ...] = ()  # those that hold such rows of the candidate


class RowsAlike(_Fact, frozen=True):
    """So many rows of a gradient are left out: their calls were given values too near each other
    to tell the rows apart."""

    rows: int
    of: int


class RoutedOtherwise(_Fact, frozen=True):
    """A router, or an operator in a module's own code, chose otherwise than golden's."""

    # tokens, of: for how many tokens, of how many; 0 if it only chose in another order
    tokens: int
    of: int
    # the largest, in golden's scores, between what was chosen and what was not; ``None`` if the
    # scores are not known
    margin: float | None
    apart: float | None  # how far the two sides' scores are apart there
    by_rounding: bool  # whether that explains it
    of_operator: str = ""  # the operator's name; ``""`` for a router


class UsedToChoose(_Fact, frozen=True):
    """An operator chose by it, compared with this number if not 0; ``same``: as in golden."""

    number: float
    same: bool


class AfterRouting(_Fact, frozen=True):
    """It was computed after so many tokens were routed otherwise by the module ``router``; or, if
    it is of that module's own backward, of them, too. ``of_operator``: in its own code, by that."""

    tokens: int
    of: int
    router: str
    own: bool = False
    of_operator: str = ""


class CalledInParts(_Fact, frozen=True):
    """Ranks with a part of the sequence call a module so many times for golden's ``golden``."""

    golden: int
    candidate: int
    of_experts: bool = False


class RanksDiffer(_Fact, frozen=True):
    """``wrong`` of the ranks that hold one value are off; none, if they differ by rounding."""

    ranks: tuple[int, ...]
    wrong: tuple[int, ...] = ()


class ReducedHere(_Fact, frozen=True):
    """The ranks' values are terms of a ``sum``, or of an ``avg``, that equals golden."""

    how: str
    ranks: tuple[int, ...]


class SumUnknown(_Fact, frozen=True):
    """The ranks hold other values. If they are terms of a sum, nothing kept of them tells it."""

    ranks: tuple[int, ...]


class Swapped(_Fact, frozen=True):
    """The parts equal golden's in another order of the ranks."""

    ranks: tuple[int, ...]


class Interleaved(_Fact, frozen=True):
    """Each rank has a part of each of so many layers that are fused."""

    layers: int


class ShareOfSum(_Fact, frozen=True):
    """A gradient of the input of layers that one side has fused: ``whole`` of the fused one, or
    one layer's share. Their sum is compared where it arrives."""

    whole: bool


class OtherFunction(_Fact, frozen=True):
    """Golden's module of this name takes the output of ``taken``; the candidate's that of a layer
    which is fused, or a part of it."""

    taken: str


class TimesRanks(_Fact, frozen=True):
    """Each rank's gradient is of its own mean loss: so many times golden's."""

    times: float


class OwnClipping(_Fact, frozen=True):
    """A loop has clipped the gradient by itself, by this factor; it is judged without. The ranks'
    loop has; golden's, if the factor is over 1: its inverse."""

    factor: float


class NeverCalled(_Fact, frozen=True):
    """A module that golden, the candidate, or both never called."""

    class_name: str | None
    golden: bool
    candidate: bool


class Saturated(_Fact, frozen=True):
    """How many of the candidate's values are its type's largest while golden's are larger."""

    count: int


class NoneMayDiffer(_Fact, frozen=True):
    """How many integers or booleans differ."""

    different: int
    elements: int


class OtherMasks(_Fact, frozen=True):
    """How many positions two masks of different kinds treat differently."""

    different: int
    elements: int


class NoRelativeLimit(_Fact, frozen=True):
    """Golden is all zeros; the candidate's largest magnitude."""

    max_abs: float


class BeyondLikeBaseline(_Fact, frozen=True):
    """The error is far beyond rounding, and so is the baseline's.

    ``alone``: whether golden's own code on rounded values is known not to be."""

    rel_l2: float | None = None
    alone: bool = False


class TermsCancel(_Fact, frozen=True):
    """A gradient's terms cancel, here or behind: their rounding may make this relative error."""

    rel_l2: float


class BeyondInPart(_Fact, frozen=True):
    """A part of the tensor is off by this, far beyond rounding, though the whole is not."""

    rel_l2: float


class MissingCast(_Fact, frozen=True):
    """The candidate computes in a wider type than the baseline's, this one."""

    dtype: str


class ChoicesApart(_Fact, frozen=True):
    """How many integers differ, and the L2 distances of candidate and baseline."""

    different: int
    elements: int
    apart: float
    baseline: float


class ChoicesChanged(_Fact, frozen=True):
    """How many integers differ, in the candidate and in the baseline."""

    different: int
    elements: int
    baseline: int


class RunsApart(_Fact, frozen=True):
    """Two runs of one side are this far apart, relative to golden's norm."""

    golden: bool
    apart: float


class FewCarryNorm(_Fact, frozen=True):
    """Few elements carry golden's norm, so the limit is that of so few."""

    few: float
    elements: int


class BeyondLastPlace(_Fact, frozen=True):
    """How many elements of an update are off by more than rounding to the parameter's type."""

    different: int
    elements: int
    dtype: str
    baseline: int


class OneFactor(_Fact, frozen=True):
    """The candidate's and the baseline's factors on golden's gradient."""

    candidate: float
    baseline: float


class NoReference(_Fact, frozen=True):
    """Two runs of golden's own code are too far apart."""

    apart: float


class NotReproduced(_Fact, frozen=True):
    """How far golden's own code in golden's precision is from golden."""

    rel_l2: float


class FreeUpdates(_Fact, frozen=True):
    """The baseline's largest error in so many steps whose weights came from free updates."""

    most: float
    steps: int


class LeavesAsItIs(_Fact, frozen=True):
    """A side's type may round a change this small to nothing."""

    golden: bool
    dtype: str


class RoundedAway(_Fact, frozen=True):
    """A one-sided change between two updates, no larger than rounding."""

    rel_l2: float


class Unreadable(_Fact, frozen=True):
    """The error of a record that could not be read."""

    error: str


class BaselineShape(_Fact, frozen=True):
    """The baseline's record has another shape."""

    shape: tuple[int, ...]


class BaselineDtype(_Fact, frozen=True):
    """The baseline's record has another type."""

    dtype: str


if TYPE_CHECKING:
    PairRemark: TypeAlias = BareRemark | _Fact
else:  # msgspec reads the tags of all classes
    PairRemark = Union[(BareRemark, *_Fact.__subclasses__())]
