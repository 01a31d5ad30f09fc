"""The findings of pre-flight: what differs in how bundles were captured, and unused options.

``side`` is the bundle beside golden: the candidate, or the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from accucompare.compare.limits import OtherCode, Suggestion, Surrounding
from accucompare.places import Place
from accucompare.selection import Mode


class About(str, Enum):
    """What a finding is about, if a decision depends on it."""

    GIVEN = "given"  # weights and inputs, which alone explain any difference
    WEIGHTS = "weights"  # of these, parameters that hold other values
    STEPS = "steps"
    SEED = "seed"
    MODE = "mode"  # train mode, dropout, random numbers
    CONFIGURATION = "configuration"  # attributes of modules
    LEFT = "left"  # attributes that the steps have changed, as they are at the end
    # missing parts of the state that a capture started from; a module that feeding changed
    UNVERIFIED = "unverified"
    OTHER = "other"


class BesideGolden(str, Enum):
    """The bundle beside golden that a finding is about."""

    GOLDEN = "golden"
    CANDIDATE = "candidate"
    BASELINE = "baseline"


class CaptureSetting(Enum):
    """A setting that two captures should share: its section and key in the manifest."""

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
    """A rank's capture stopped early; ``error`` is ``None`` if it was killed, or still runs."""

    side: BesideGolden
    rank: int | None
    module: str
    step: int | None
    error: str | None


class DrawsApart(FindingFact, frozen=True):
    """Ranks drew so many random tensors of unknown layout, which another layout draws otherwise."""

    side: BesideGolden
    draws: int


class RankLacksSteps(FindingFact, frozen=True):
    """A rank recorded fewer steps than others."""

    side: BesideGolden
    rank: int
    steps: int
    of: int


class RanksMissing(FindingFact, frozen=True):
    """Ranks that a bundle lacks."""

    side: BesideGolden
    missing: tuple[int, ...]
    ranks: int


class SeveralRuns(FindingFact, frozen=True):
    """A bundle's ranks are of several runs; ``ranks``: of each."""

    side: BesideGolden
    ranks: tuple[tuple[int, ...], ...]


class HeldInMode(FindingFact, frozen=True):
    """Which bundles hold less than tensors."""

    mode: Mode
    golden: bool
    candidate: bool


class ImportedDump(FindingFact, frozen=True):
    """A bundle made of another tool's dump, which does not tell some settings."""

    side: BesideGolden
    format: str
    unknown: tuple[CaptureSetting, ...]


class OtherSteps(FindingFact, frozen=True):
    """How many steps, and of how many ranks, each side holds."""

    golden: tuple[int, int]
    other: tuple[int, int]
    side: BesideGolden


# weights and inputs


@dataclass(frozen=True)
class DigestTable:
    """What digests are of: ``parameters``, ``buffers``, or the ``inputs`` of some steps."""

    kind: str
    rank: int | None = None
    steps: tuple[int, ...] = ()


class WeightsOfSteps(FindingFact, frozen=True):
    """The two bundles hold the weights of different steps."""

    rank: int | None
    golden: int | None
    other: int | None
    side: BesideGolden


class OtherDigests(FindingFact, frozen=True):
    """The entries of a table, ``shared`` in all, that hold other values."""

    table: DigestTable
    names: tuple[str, ...]
    shared: int


class OtherTypes(FindingFact, frozen=True):
    """Entries with another type."""

    table: DigestTable
    # golden, other: the types
    golden: str
    other: str
    side: BesideGolden
    known: bool  # whether they are known to be equal after rounding; else that is unknown
    # names, shared: which, and of how many; no names if all of golden's type changed
    names: tuple[str, ...]
    shared: int


class OneSidedEntries(FindingFact, frozen=True):
    """Entries of a table on one side only."""

    table: DigestTable
    names: tuple[str, ...]


class ComputedOtherwise(FindingFact, frozen=True):
    """A buffer that the model computes itself, differently from golden's."""

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
    """Another version of a package; ``None`` if not installed."""

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


class LeftDiffers(FindingFact, frozen=True):
    """An attribute of a module as the steps leave it, as each side's ``repr``; ``None`` if they do
    not change it."""

    module: str
    attribute: str
    golden: str | None
    other: str | None
    side: BesideGolden


class OneHolds(FindingFact, frozen=True):
    """An attribute that holds a tensor at the end on one side only, and did on both."""

    name: str
    golden: bool
    side: BesideGolden


class LeftUnlooked(FindingFact, frozen=True):
    """A container that holds more than a capture looks at."""

    name: str
    side: BesideGolden


class FlagDiffers(FindingFact, frozen=True):
    """A flag that changes numbers."""

    name: str
    golden: Any
    candidate: Any


class LowerPrecision(FindingFact, frozen=True):
    """Flags that let a side compute float32 in fewer bits."""

    side: BesideGolden
    flags: tuple[str, ...]


class Saturates(FindingFact, frozen=True):
    """A flag that makes a side saturate, and its effect."""

    side: BesideGolden
    effect: str
    flag: str


class NotFedValues(FindingFact, frozen=True):
    """How many of golden's values were not fed, and some of them: module, role, and why."""

    count: int
    places: tuple[tuple[str, str, str], ...]


class ScalerDiffers(FindingFact, frozen=True):
    """Each side's loss scale; ``None`` if it has none."""

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
    """A capture started from a bundle's step without a component of its state, and why."""

    side: BesideGolden
    rank: int | None
    step: int
    like: str
    component: str
    reason: str


class FeedingChanged(FindingFact, frozen=True):
    """A module call that feeding itself changed."""

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
    """A baseline that may not judge because it did not run golden's code, or could not be captured
    here for that reason."""

    path: Place | None  # its bundle, if there is one
    why: OtherCode  # how its code differs
    cure: Suggestion  # the command that captures a proper one, to be run where golden was captured


class ProperBaseline(FindingFact, frozen=True):
    """How to capture a proper baseline."""

    cure: Suggestion


class BaselineHelps(FindingFact, frozen=True):
    """A baseline would tell rounding from a bug."""

    advice: Suggestion  # how to capture it
    then: str  # the diff that takes it
    # a package, and its version where golden was captured, if that differs
    version: tuple[str, str] | None


class ProductsRounded(FindingFact, frozen=True):
    """The candidate may round inputs of float32 products to this type, the baseline does not."""

    format: str
    cure: Suggestion


class OwnBaselineUnfit(FindingFact, frozen=True):
    """Why golden's own baseline does not judge."""

    error: str


class NotInBaseline(FindingFact, frozen=True):
    """How many compared rows the baseline lacks, and the first of them."""

    count: int
    compared: int
    first: str


# what was asked


class OtherModel(FindingFact, frozen=True):
    """Two models with less than half in common."""

    alike: int  # the number of rows with one shape on both sides
    rows: int  # the number of all rows


class MapClash(FindingFact, frozen=True):
    """Two of golden's names become one."""

    first: str
    second: str
    new: str


class MapsTaken(FindingFact, frozen=True):
    """The renamings that ``--map auto`` took."""

    maps: tuple[str, ...]


class MapsProposed(FindingFact, frozen=True):
    """Renamings that would bring layers together."""

    maps: tuple[str, ...]


class NamesPutBack(FindingFact, frozen=True):
    """Modules of ranks that are golden's under other names."""

    ranks: tuple[int, ...]  # all that call them so
    names: tuple[tuple[str, str], ...]  # the own names with golden's
    evidence: str  # how that is known, as ``NameEvidence`` calls it


class FusedNames(FindingFact, frozen=True):
    """Parameters of one side that are made up of the other's."""

    of_golden: bool  # whether golden has the fused one
    whole: str  # the first such parameter
    # each with its runs of rows: where one begins in the whole, and how many they are
    parts: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
    turned: bool
    more: int  # how many further parameters are made up so


class CarriedApart(FindingFact, frozen=True):
    """Classes of which one side's modules take or give a value as two terms of its sum."""

    of_golden: bool
    classes: tuple[str, ...]


class CallsInParts(FindingFact, frozen=True):
    """Modules of which so many calls of golden's make up so many of the candidate's."""

    names: tuple[str, ...]
    golden: int
    candidate: int


class OddMicrobatches(FindingFact, frozen=True):
    """The calls of ranks' stages did not have each microbatch once, in order."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    doubled: tuple[int, ...]
    dropped: tuple[int, ...]
    order: tuple[int, ...]  # the microbatches of the calls, if they follow in another order


class MatchesNothing(FindingFact, frozen=True):
    """An option (``map``, ``only``, ``skip``) that matches none of golden's layers."""

    option: str
    value: str


class LayoutMatchesNothing(FindingFact, frozen=True):
    """A ``[[layout]]`` of a file, by its globs, that applies to no record of several ranks."""

    layer: str
    role: str


class LeadsNowhere(FindingFact, frozen=True):
    """A map that matches layers of golden and gives none a name that the candidate has."""

    map: str


class RuleJudgesNothing(FindingFact, frozen=True):
    """A rule of a tolerance file, by its number, that applies to no record."""

    file: str
    number: int


@dataclass(frozen=True)
class PreflightFinding:
    """One thing that pre-flight found."""

    fact: FindingFact
    serious: bool = True  # whether it alone may explain differences
    of_baseline: bool = False  # whether it is about the baseline
    about: About = About.OTHER  # the field to decide by
    # whether golden was compared with the baseline, not the candidate
    beside_baseline: bool = False
