"""What is known of a model's samples in other batches; facts, without words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from accucompare.selection import Word


class Variation(Word):
    """How a run differs from that of the whole batch, in the order in which it is shown."""

    AGAIN = "again"
    LATER = "after another batch"
    ALONE = "alone"
    MOVED = "at other places"
    FEWER = "smaller batch"
    MORE = "larger batch"
    RIGHT = "padded right"
    LEFT = "padded left"
    UNPADDED = "without padding"
    THREADS = "threads"


class NotVariedWhy(Word):
    """Why a variation was not looked at."""

    NO_MASK = "no mask"
    NO_POSITIONS = "no positions"
    OWN_POSITIONS = "own positions"
    FIRST_TOKEN = "first token"
    NO_PADDING = "no padding"
    NOT_ON_CPU = "not on the cpu"
    TWO_SAMPLES = "two samples"


@dataclass(frozen=True)
class Variant:
    """One run beside that of the whole batch."""

    kind: Variation
    rows: tuple[int, ...]  # for each of its samples, which of golden's it is
    # how many tokens of padding it has before golden's first; negative if golden has more
    before: int = 0
    length: int = 0  # of its sequences; 0 where it is golden's
    # whether the model may count positions from another token than in golden. Then the model's
    # outputs decide, and layers inside of it are only shown.
    shifted: bool = False
    threads: int = 0  # that it computes on; 0 for golden's


@dataclass(frozen=True)
class LayerChange:
    """A tensor whose bits changed."""

    name: str
    type: str
    call: int
    role: str
    path: str
    more: bool  # whether by more than rounding
    ulp: int | None  # most units in the last place
    rel_l2: float  # relative L2 error; ``rounding``: the same of golden against float64, if known
    over_limit: float  # the error as a multiple of its limit; ``limit`` is that on ``rel_l2``
    rounding: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class VariantOutcome:
    """What changed in one run."""

    variant: Variant
    # looked, left: how many tensors were compared, and how many could not be
    looked: int
    left: int
    outputs: int  # how many of those compared are the model's outputs
    # first, first_more: the first tensor in execution order that changed; by more than rounding
    first: LayerChange | None = None
    first_more: LayerChange | None = None
    at_outputs: LayerChange | None = None  # the worst of the model's outputs, if one changed
    # changed, more: how many tensors did
    changed: int = 0
    more: int = 0
    # by module, the worst of its outputs that changed
    layers: Mapping[str, LayerChange] = field(default_factory=dict)
    # of a half type: the same run in float64, where rounding hides less; ``None`` if it was not
    # needed, or not possible
    exact: VariantOutcome | None = None

    @property
    def fails(self) -> bool:
        """Whether the samples change by more than rounding."""
        return self.fails_itself or (self.exact is not None and self.exact.fails_itself)

    @property
    def fails_itself(self) -> bool:
        """Whether they do so in this type."""
        if self.variant.shifted:
            return self.at_outputs is not None and self.at_outputs.more
        return self.more > 0


class InvarianceAnswer(Word):
    """What all runs together say."""

    INVARIANT = "invariant"
    ROUNDING = "rounding"
    BROKEN = "more than rounding"
    NOT_SURE = "not sure"


@dataclass(frozen=True)
class LayerVariation:
    """A module over all runs: the worst change, the run it was in, and how many runs changed it."""

    worst: LayerChange
    variant: Variant
    runs: int


@dataclass(frozen=True)
class Invariance:
    """A batch's samples, computed in other batches.

    Attributes:
        case, device, dtype: what was run, where, and the type it computed in.
        samples: in the case's batch.
        baseline: whether a run in float64 says how large rounding is.
        outcomes: of each run.
        not_looked_at: the variations that were left out, and why.
        bitwise: whether changed bits fail, too.
    """

    case: str
    device: str
    dtype: str
    samples: int
    baseline: bool
    outcomes: Sequence[VariantOutcome]
    not_looked_at: Mapping[Variation, NotVariedWhy]
    bitwise: bool = False

    @property
    def changed(self) -> list[VariantOutcome]:
        return [each for each in self.outcomes if each.changed]

    @property
    def failing(self) -> list[VariantOutcome]:
        return [each for each in self.outcomes if each.fails]

    @property
    def unseen(self) -> list[VariantOutcome]:
        """The runs in which no output of the model could be compared."""
        return [each for each in self.outcomes if not each.outputs]

    @property
    def answer(self) -> InvarianceAnswer:
        """The first rule that holds decides."""
        if self.failing:
            return InvarianceAnswer.BROKEN
        if self.unseen or not self.outcomes:
            return InvarianceAnswer.NOT_SURE
        return InvarianceAnswer.ROUNDING if self.changed else InvarianceAnswer.INVARIANT

    @property
    def passed(self) -> bool:
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """0: invariant, or by rounding; 1: by more, or ``bitwise`` and not invariant; 2: not
        sure."""
        if self.answer is InvarianceAnswer.BROKEN or (self.bitwise and self.changed):
            return 1
        return 2 if self.answer is InvarianceAnswer.NOT_SURE else 0

    @property
    def layers(self) -> list[LayerVariation]:
        """Each module that changed in some run, in execution order."""
        found: dict[str, LayerVariation] = {}
        for outcome in self.outcomes:
            for name, change in outcome.layers.items():
                seen = found.get(name)
                runs = 1 if seen is None else seen.runs + 1
                if seen is None or change.over_limit > seen.worst.over_limit:
                    found[name] = LayerVariation(change, outcome.variant, runs)
                else:
                    found[name] = LayerVariation(seen.worst, seen.variant, runs)
        order = {
            name: place for outcome in self.outcomes for place, name in enumerate(outcome.layers)
        }
        return [found[name] for name in sorted(found, key=lambda name: order[name])]
