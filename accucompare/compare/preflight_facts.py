"""The findings of pre-flight: what differs in how the bundles were captured, and what was asked in
vain.

``side`` is the bundle that is beside golden: the candidate, or the baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from accucompare.compare.limits import OtherCode, Suggestion, Surrounding
from accucompare.places import Place
from accucompare.selection import Mode


class About(str, Enum):
    """What a finding is about, if a decision depends on that."""

    GIVEN = "given"  # weights and inputs, which alone explain any difference
    WEIGHTS = "weights"  # of these, parameters that hold other values
    STEPS = "steps"
    SEED = "seed"
    MODE = "mode"  # train mode, dropout, random numbers
    CONFIGURATION = "configuration"  # attributes of modules
    # a part of the state that a capture started from, which it lacked; a module that feeding has
    # changed
    UNVERIFIED = "unverified"
    OTHER = "other"


class BesideGolden(str, Enum):
    """One of the two bundles that a finding is about."""

    GOLDEN = "golden"
    CANDIDATE = "candidate"
    BASELINE = "baseline"


class CaptureSetting(Enum):
    """A setting that two captures should share: the section of the manifest, and the key in it."""

    TRAINING = ("model", "training")
    DROPOUT = ("model", "active_dropout")
    MODEL_CLASS = ("model", "class")
    SEED = ("capture", "seed")
    AUTOCAST = ("environment", "autocast")
    EMULATED = ("capture", "emulate")
    OPTIMIZER = ("capture", "optimizer")
    ONLY = ("capture", "only")
    SKIP = ("capture", "skip")
    RANDOM = ("environment", "random")
    DEVICE = ("environment", "device.type")
    COMMIT = ("environment", "git.commit")


class FindingFact(msgspec.Struct, frozen=True):
    """What there is to say of a finding."""


# how the captures ended, and what they hold


class CaptureStopped(FindingFact, frozen=True):
    """A capture of a rank did not run to its end; ``error`` is ``None`` if it was killed, or is
    still running."""

    side: BesideGolden
    rank: int | None
    module: str
    step: int | None
    error: str | None


class RanksMissing(FindingFact, frozen=True):
    """Ranks of which a bundle has nothing."""

    side: BesideGolden
    missing: tuple[int, ...]
    ranks: int


class HeldInMode(FindingFact, frozen=True):
    """Which bundles hold less than tensors."""

    mode: Mode
    golden: bool
    candidate: bool


class ImportedDump(FindingFact, frozen=True):
    """A bundle was made of another tool's dump, which does not tell some settings."""

    side: BesideGolden
    format: str
    unknown: tuple[CaptureSetting, ...]


class OtherSteps(FindingFact, frozen=True):
    """How many steps, of how many ranks, each side holds."""

    golden: tuple[int, int]
    other: tuple[int, int]
    side: BesideGolden


# weights and inputs


@dataclass(frozen=True)
class DigestTable:
    """What digests are of: ``parameters``, ``buffers`` or ``inputs``; of these the steps."""

    kind: str
    rank: int | None = None
    steps: tuple[int, ...] = ()


class WeightsOfSteps(FindingFact, frozen=True):
    """The weights of the two are those of different steps."""

    rank: int | None
    golden: int | None
    other: int | None
    side: BesideGolden


class OtherDigests(FindingFact, frozen=True):
    """Of ``shared`` entries of a table these hold other values."""

    table: DigestTable
    names: tuple[str, ...]
    shared: int


class OtherTypes(FindingFact, frozen=True):
    """Entries that have another type.

    Attributes:
        golden, other: the types.
        known: whether they are known to be the same after rounding; else they are too different to
            say.
        names, shared: which, and of how many; no names if all of golden's type have changed.
    """

    table: DigestTable
    golden: str
    other: str
    side: BesideGolden
    known: bool
    names: tuple[str, ...]
    shared: int


class OneSidedEntries(FindingFact, frozen=True):
    """Entries of a table on one side only."""

    table: DigestTable
    names: tuple[str, ...]


class ComputedOtherwise(FindingFact, frozen=True):
    """A buffer that the model computes itself, and otherwise than golden's did."""

    name: str
    rank: int | None


# settings and surroundings


class SettingDiffers(FindingFact, frozen=True):
    """A setting that the two captures do not share."""

    setting: CaptureSetting
    golden: Any
    other: Any
    side: BesideGolden

    def __hash__(self) -> int:
        return hash((self.setting, self.side))


class VersionDiffers(FindingFact, frozen=True):
    """A package of another version; ``None`` where it is not installed."""

    package: str
    golden: str | None
    other: str | None
    side: BesideGolden


class SurroundingsDiffer(FindingFact, frozen=True):
    """Environment variables and libraries that differ."""

    found: tuple[Surrounding, ...]
    side: BesideGolden


class AttributeDiffers(FindingFact, frozen=True):
    """An attribute of a module, as each side's ``repr``."""

    module: str
    attribute: str
    golden: str
    other: str
    side: BesideGolden


class MoreAttributes(FindingFact, frozen=True):
    """How many more attributes differ, and one of them."""

    count: int
    module: str
    attribute: str


class FlagDiffers(FindingFact, frozen=True):
    """A flag that changes numbers."""

    name: str
    golden: Any
    candidate: Any


class LowerPrecision(FindingFact, frozen=True):
    """Flags by which a side may compute float32 in fewer bits."""

    side: BesideGolden
    flags: tuple[str, ...]


class Saturates(FindingFact, frozen=True):
    """A flag by which a side saturates, and what it does."""

    side: BesideGolden
    effect: str
    flag: str


class NotFedValues(FindingFact, frozen=True):
    """How many values of golden were not fed, and some of them: module, role, and why."""

    count: int
    places: tuple[tuple[str, str, str], ...]


class ScalerDiffers(FindingFact, frozen=True):
    """By what each side scales its losses; ``None`` if it does not."""

    golden: float | None
    other: float | None
    side: BesideGolden


class WeightsNotRounded(FindingFact, frozen=True):
    """Golden's weights are not rounded to the candidate's type."""

    dtype: str


class CaptureNote(FindingFact, frozen=True):
    """What a capture noted."""

    side: BesideGolden
    text: str


class StateMissing(FindingFact, frozen=True):
    """A capture started from a step of a bundle without a component of its state, and why."""

    side: BesideGolden
    rank: int | None
    step: int
    like: str
    component: str
    reason: str


class FeedingChanged(FindingFact, frozen=True):
    """A module call that feeding itself has changed."""

    side: BesideGolden
    rank: int | None
    name: str
    call: int
    role: str
    path: str
    step: int
    why: str


# baselines


class RefusedBaseline(FindingFact, frozen=True):
    """A baseline that may not judge, since it did not run golden's code; or one that could not be
    captured here for that reason.

    Attributes:
        path: of its bundle; ``None`` if there is none.
        why: the differences of its code.
        cure: the command that captures a proper one, to be run where golden was captured.
    """

    path: Place | None
    why: OtherCode
    cure: Suggestion


class ProperBaseline(FindingFact, frozen=True):
    """How a proper baseline is captured."""

    cure: Suggestion


class BaselineHelps(FindingFact, frozen=True):
    """A baseline would tell rounding from a bug.

    Attributes:
        advice: how it is captured.
        then: the diff that takes it.
        version: a package, and its version where golden was captured, if that is another.
    """

    advice: Suggestion
    then: str
    version: tuple[str, str] | None


class ProductsRounded(FindingFact, frozen=True):
    """The candidate may round what goes into float32 products to this type, the baseline not."""

    format: str
    cure: Suggestion


class OwnBaselineUnfit(FindingFact, frozen=True):
    """Golden's own baseline does not judge, by this error."""

    error: str


class NotInBaseline(FindingFact, frozen=True):
    """How many compared rows the baseline has no record of, and the first of them."""

    count: int
    compared: int
    first: str


# what was asked


class OtherModel(FindingFact, frozen=True):
    """Two models that have less than half in common.

    Attributes:
        alike: the number of rows whose two sides have one shape.
        rows: the number of all rows.
    """

    alike: int
    rows: int


class MapClash(FindingFact, frozen=True):
    """Two names of golden that become one."""

    first: str
    second: str
    new: str


class MapsTaken(FindingFact, frozen=True):
    """The renamings that ``--map auto`` took."""

    maps: tuple[str, ...]


class MapsProposed(FindingFact, frozen=True):
    """Renamings that would bring layers together."""

    maps: tuple[str, ...]


class MatchesNothing(FindingFact, frozen=True):
    """An option (``map``, ``only``, ``skip``) that matches none of golden's layers."""

    option: str
    value: str


class RuleJudgesNothing(FindingFact, frozen=True):
    """A rule of a tolerance file, by its number, that applies to no record."""

    file: str
    number: int


@dataclass(frozen=True)
class PreflightFinding:
    """One thing that pre-flight found.

    Attributes:
        fact: it.
        serious: whether it alone may explain differences.
        of_baseline: whether it is about the baseline.
        about: the field to decide by.
        beside_baseline: whether golden was held against the baseline in place of the candidate.
    """

    fact: FindingFact
    serious: bool = True
    of_baseline: bool = False
    about: About = About.OTHER
    beside_baseline: bool = False
