"""What is known of a fit: its runs, what they keep in float32, and how far off the output is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accucompare.selection import Word


class FitAnswer(Word):
    NOTHING_TO_KEEP = "nothing to keep"
    FITS = "fits"
    BEST_FOR_BUDGET = "best for the budget"
    UNREACHABLE = "out of reach"


class Switched(Word):
    """What a device was told as a whole."""

    NO_HF32 = "hf32 off"
    NO_TF32 = "tf32 off"
    WIDE_SUMS = "sums in float32"
    PLAIN_ATTENTION = "plain attention"


@dataclass(frozen=True)
class KeptPlaces:
    """Modules that are kept in float32, as globs."""

    whole: tuple[str, ...] = ()  # with all that is in them
    # their own code, without the modules that they call; ``""`` is the root
    own: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.whole) + len(self.own)

    @property
    def are_all(self) -> bool:
        """Whether the whole model is kept."""
        return self.whole == ("*",)


@dataclass(frozen=True)
class FitGoal:
    """What is asked: a relative L2 error that no output may exceed, or a share that may be kept.

    ``by``: what the share is of: ``flops`` or ``bytes``.
    """

    rel_l2: float | None = None
    budget: float | None = None
    by: str = "flops"


@dataclass(frozen=True)
class FitOutput:
    """An output that is to be right."""

    # name, call, path, step: of golden's record
    name: str
    call: int
    path: str
    step: int
    label: str  # how it is asked for
    update: bool = False  # whether it stands for all gradients that the first update is given


@dataclass(frozen=True)
class FitRun:
    """A run with some modules in float32."""

    kept: KeptPlaces  # those modules
    # flops, bytes: the share of the model's that is kept, from 0 to 1
    flops: float
    bytes: float
    error: float  # the largest relative L2 error of an output; infinite where one is not finite
    errors: Sequence[float] = ()  # of each output
    expected: float | None = None  # what the estimate was; ``None`` if there was none
    failed: str = ""  # why the model did not run so; ``""`` if it did
    switches: tuple[Switched, ...] = ()  # what the device was told beside


@dataclass(frozen=True)
class PlaceShare:
    """A block, and its share of the squared error of the output."""

    name: str
    type: str
    share: float  # of the output's squared error, by the estimate
    # flops, bytes: its share of the model's
    flops: float
    bytes: float


@dataclass(frozen=True)
class CurvePoint:
    """An estimate: with this share kept, the output is so far off."""

    flops: float
    bytes: float
    error: float


@dataclass(frozen=True)
class Fit:
    """The places to keep in float32, and the run that proves it.

    Attributes:
        case, golden, device, dtype: what was run.
        goal: what was asked.
        outputs: those that are judged.
        answer: what came of it.
        runs: all runs, in order; the first has nothing in float32.
        proof: the run that shows it: of the places to keep, or the best that can be had.
        places: the blocks by their share of the error, largest first.
        curve: the estimate, from nothing kept to everything.
        backwards: how many backwards of golden's code gave the sensitivities.
        misled: whether runs were far from their estimates.
    """

    case: str
    golden: str
    device: str
    dtype: str
    goal: FitGoal
    outputs: Sequence[FitOutput]
    answer: FitAnswer
    runs: Sequence[FitRun]
    proof: FitRun
    places: Sequence[PlaceShare] = ()
    curve: Sequence[CurvePoint] = ()
    backwards: int = 0
    misled: bool = False

    @property
    def least(self) -> FitRun:
        return self.runs[0]

    @property
    def kept(self) -> KeptPlaces:
        return self.proof.kept

    @property
    def changes_anything(self) -> bool:
        """Whether there is something to change, and it does what was asked."""
        told = len(self.kept) or self.proof.switches
        return bool(told) and self.answer is not FitAnswer.UNREACHABLE

    @property
    def exit_code(self) -> int:
        return 1 if self.answer is FitAnswer.UNREACHABLE else 0
