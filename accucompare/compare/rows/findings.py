"""The findings of pre-flight: what differs in how bundles were captured, and unused options.

``side`` is the bundle beside golden: the candidate, or the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

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


# how the captures ended, and what they hold


@dataclass(frozen=True)
class CaptureStopped:
    """A rank's capture stopped early; ``error`` is ``None`` if it was killed, or still runs."""

    side: BesideGolden
    rank: int | None
    module: str
    step: int | None
    error: str | None


@dataclass(frozen=True)
class RanksMissing:
    """Ranks that a bundle lacks."""

    side: BesideGolden
    missing: tuple[int, ...]
    ranks: int


@dataclass(frozen=True)
class HeldInMode:
    """Which bundles hold less than tensors."""

    mode: Mode
    golden: bool
    candidate: bool


@dataclass(frozen=True)
class ImportedDump:
    """A bundle made of another tool's dump, which does not tell some settings."""

    side: BesideGolden
    format: str
    unknown: tuple[CaptureSetting, ...]


@dataclass(frozen=True)
class OtherSteps:
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


@dataclass(frozen=True)
class WeightsOfSteps:
    """The two bundles hold the weights of different steps."""

    rank: int | None
    golden: int | None
    other: int | None
    side: BesideGolden


@dataclass(frozen=True)
class OtherDigests:
    """The entries of a table, ``shared`` in all, that hold other values."""

    table: DigestTable
    names: tuple[str, ...]
    shared: int


@dataclass(frozen=True)
class OtherTypes:
    """Entries with another type.

    Attributes:
        golden, other: the types.
        known: whether they are known to be equal after rounding; else that is unknown.
        names, shared: which, and of how many; no names if all of golden's type changed.
    """

    table: DigestTable
    golden: str
    other: str
    side: BesideGolden
    known: bool
    names: tuple[str, ...]
    shared: int


@dataclass(frozen=True)
class OneSidedEntries:
    """Entries of a table on one side only."""

    table: DigestTable
    names: tuple[str, ...]


@dataclass(frozen=True)
class ComputedOtherwise:
    """A buffer that the model computes itself, differently from golden's."""

    name: str
    rank: int | None


# settings and surroundings


@dataclass(frozen=True)
class SettingDiffers:
    """A setting that the two captures do not share."""

    setting: CaptureSetting
    golden: Any
    other: Any
    side: BesideGolden

    def __hash__(self) -> int:
        return hash((self.setting, self.side))


@dataclass(frozen=True)
class VersionDiffers:
    """Another version of a package; ``None`` if not installed."""

    package: str
    golden: str | None
    other: str | None
    side: BesideGolden


@dataclass(frozen=True)
class SurroundingsDiffer:
    """Environment variables and libraries that differ."""

    found: tuple[Surrounding, ...]
    side: BesideGolden


@dataclass(frozen=True)
class AttributeDiffers:
    """An attribute of a module, as each side's ``repr``."""

    module: str
    attribute: str
    golden: str
    other: str
    side: BesideGolden


@dataclass(frozen=True)
class MoreAttributes:
    """How many more attributes differ, and one of them."""

    count: int
    module: str
    attribute: str


@dataclass(frozen=True)
class FlagDiffers:
    """A flag that changes numbers."""

    name: str
    golden: Any
    candidate: Any


@dataclass(frozen=True)
class LowerPrecision:
    """Flags that let a side compute float32 in fewer bits."""

    side: BesideGolden
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Saturates:
    """A flag that makes a side saturate, and its effect."""

    side: BesideGolden
    effect: str
    flag: str


@dataclass(frozen=True)
class NotFedValues:
    """How many of golden's values were not fed, and some of them: module, role, and why."""

    count: int
    places: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class ScalerDiffers:
    """Each side's loss scale; ``None`` if it has none."""

    golden: float | None
    other: float | None
    side: BesideGolden


@dataclass(frozen=True)
class WeightsNotRounded:
    """Golden's weights are not rounded to the candidate's type."""

    dtype: str


@dataclass(frozen=True)
class CaptureNote:
    """What a capture noted."""

    side: BesideGolden
    text: str


@dataclass(frozen=True)
class StateMissing:
    """A capture started from a bundle's step without a component of its state, and why."""

    side: BesideGolden
    rank: int | None
    step: int
    like: str
    component: str
    reason: str


@dataclass(frozen=True)
class FeedingChanged:
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


@dataclass(frozen=True)
class RefusedBaseline:
    """A baseline that may not judge, or could not be captured here: it is not golden's code.

    Attributes:
        path: its bundle, if there is one.
        why: how its code differs.
        cure: the command that captures a proper one, to be run where golden was captured.
    """

    path: Place | None
    why: OtherCode
    cure: Suggestion


@dataclass(frozen=True)
class ProperBaseline:
    """How to capture a proper baseline."""

    cure: Suggestion


@dataclass(frozen=True)
class BaselineHelps:
    """A baseline would tell rounding from a bug.

    Attributes:
        advice: how to capture it.
        then: the diff that takes it.
        version: a package, and its version where golden was captured, if that differs.
    """

    advice: Suggestion
    then: str
    version: tuple[str, str] | None


@dataclass(frozen=True)
class ProductsRounded:
    """The candidate may round inputs of float32 products to this type, the baseline does not."""

    format: str
    cure: Suggestion


@dataclass(frozen=True)
class OwnBaselineUnfit:
    """Why golden's own baseline does not judge."""

    error: str


@dataclass(frozen=True)
class NotInBaseline:
    """How many compared rows the baseline lacks, and the first of them."""

    count: int
    compared: int
    first: str


# what was asked


@dataclass(frozen=True)
class OtherModel:
    """Two models with less than half in common: of ``rows``, ``alike`` have one shape on both."""

    alike: int
    rows: int


@dataclass(frozen=True)
class MapClash:
    """Two of golden's names become one."""

    first: str
    second: str
    new: str


@dataclass(frozen=True)
class MapsTaken:
    """The renamings that ``--map auto`` took."""

    maps: tuple[str, ...]


@dataclass(frozen=True)
class MapsProposed:
    """Renamings that would bring layers together."""

    maps: tuple[str, ...]


@dataclass(frozen=True)
class MatchesNothing:
    """An option (``map``, ``only``, ``skip``) that matches none of golden's layers."""

    option: str
    value: str


@dataclass(frozen=True)
class RuleJudgesNothing:
    """A rule of a tolerance file, by its number, that applies to no record."""

    file: str
    number: int


FindingFact: TypeAlias = (
    CaptureStopped
    | RanksMissing
    | HeldInMode
    | ImportedDump
    | OtherSteps
    | WeightsOfSteps
    | OtherDigests
    | OtherTypes
    | OneSidedEntries
    | ComputedOtherwise
    | SettingDiffers
    | VersionDiffers
    | SurroundingsDiffer
    | AttributeDiffers
    | MoreAttributes
    | FlagDiffers
    | LowerPrecision
    | Saturates
    | NotFedValues
    | ScalerDiffers
    | WeightsNotRounded
    | CaptureNote
    | StateMissing
    | FeedingChanged
    | RefusedBaseline
    | ProperBaseline
    | BaselineHelps
    | ProductsRounded
    | OwnBaselineUnfit
    | NotInBaseline
    | OtherModel
    | MapClash
    | MapsTaken
    | MapsProposed
    | MatchesNothing
    | RuleJudgesNothing
)


@dataclass(frozen=True)
class PreflightFinding:
    """One thing that pre-flight found.

    Attributes:
        serious: whether it alone may explain differences.
        of_baseline: whether it is about the baseline.
        about: the field to decide by.
        beside_baseline: whether golden was compared with the baseline, not the candidate.
    """

    fact: FindingFact
    serious: bool = True
    of_baseline: bool = False
    about: About = About.OTHER
    beside_baseline: bool = False
