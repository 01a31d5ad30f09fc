"""What is known of a sequence that was computed with a cache; facts, without words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from accucompare.selection import Word


class DecodeWay(Word):
    """How the tokens were given to the model, in the order in which it is shown."""

    TOKENS = "token by token"
    CHUNKED = "prefill in chunks"
    STATIC = "static cache"
    LEFT = "padded left"
    UNEQUAL = "unequal lengths"
    RIGHT = "padded right"
    GENERATE = "by generate()"
    GENERATE_UNEQUAL = "by generate(), unequal lengths"


class NotDecodedWhy(Word):
    """Why a way was not looked at."""

    NO_MASK = "no mask"
    NO_POSITIONS = "no positions"
    OWN_PROTOCOL = "own protocol"
    ENCODER_DECODER = "encoder-decoder"
    STATE = "state"
    NO_CACHE = "no cache returned"
    NO_STATIC = "no static cache"
    NO_GAPS = "no gaps"
    SHORT = "short"
    NO_GENERATE = "no generate"
    QUANTIZED = "quantized"


@dataclass(frozen=True)
class TokenDifference:
    """A value of one token that is off by more than rounding."""

    token: int  # its index in the sequence, from 0, without padding
    sample: int  # the row of the batch
    # name, type, call, role, path: of the module call
    name: str
    type: str
    call: int
    role: str
    path: str
    parent: str | None  # the name of the module that made an input; ``None`` for an output
    argument: str  # of an input that is not the module's first: its name
    # relative L2 error; ``rounding``: that of the whole run in the same type, if known
    rel_l2: float
    rounding: float | None
    over_limit: float  # the error as a multiple of its limit
    # of a mask: how many keys the token may see here, and in golden
    keys: tuple[int, int] | None = None

    @property
    def maker(self) -> str:
        """The module whose code made the value, or was given it as an argument."""
        return self.name if self.parent is None or self.argument else self.parent


@dataclass(frozen=True)
class LayerDecoded:
    """A module whose values are off: the first one and the worst, and of how many tokens."""

    first: TokenDifference
    worst: TokenDifference
    tokens: int


@dataclass(frozen=True)
class DecodeOutcome:
    """What differs in one run with a cache."""

    way: DecodeWay
    dtype: str  # what it computed in
    calls: Sequence[int]  # how many tokens each call of the model had
    # looked, left: how many values were compared, and how many could not be
    looked: int = 0
    left: int = 0
    # tokens given after the first call of which no output of the model was compared
    unseen: Sequence[int] = ()
    nearest: float = 0.0  # the largest error that passed, as a multiple of its limit
    # the first token's first value that is off, in execution order
    first: TokenDifference | None = None
    # the modules whose values are off
    layers: Mapping[str, LayerDecoded] = field(default_factory=dict)
    choices: int = 0  # how many tokens went to another expert, or the like, by rounding
    raised: str = ""  # what the model raised, if it did

    @property
    def fails(self) -> bool:
        return self.first is not None

    @property
    def sure(self) -> bool:
        """Whether all that it was asked was seen."""
        return not self.raised and not self.unseen and self.looked > 0


class DecodeAnswer(Word):
    """What all runs together say."""

    ROUNDING = "rounding"
    BROKEN = "more than rounding"
    NOT_SURE = "not sure"


@dataclass(frozen=True)
class Decoded:
    """A sequence as a whole, and again with the model's cache.

    Attributes:
        case, device, dtype: what was run, where, and the type it computed in.
        tokens: how long the sequence is; ``steps``: how many of its last tokens came one by one.
        samples: in the batch.
        golden: the type in which golden, the whole sequence, was computed.
        anticipates: the first module whose values change with later tokens, if the model's outputs
            do: then a cache cannot give them.
        outcomes: of each run.
        not_looked_at: the ways that were left out, and why.
    """

    case: str
    device: str
    dtype: str
    tokens: int
    steps: int
    samples: int
    golden: str
    anticipates: str | None
    outcomes: Sequence[DecodeOutcome]
    not_looked_at: Mapping[DecodeWay, NotDecodedWhy]

    @property
    def failing(self) -> list[DecodeOutcome]:
        """In the order of ways; of one way, that with the earliest token first: in a half type
        rounding hides more."""
        ways = [*DecodeWay]
        found = [(each.first.token, each) for each in self.outcomes if each.first is not None]
        found.sort(key=lambda entry: (ways.index(entry[1].way), entry[0]))
        return [each for _, each in found]

    @property
    def unsure(self) -> list[DecodeOutcome]:
        return [each for each in self.outcomes if not each.sure]

    @property
    def first(self) -> TokenDifference | None:
        """Where it begins, in the first run that fails."""
        return self.failing[0].first if self.failing else None

    @property
    def answer(self) -> DecodeAnswer:
        """The first rule that holds decides."""
        if self.failing:
            return DecodeAnswer.BROKEN
        if self.anticipates is not None or self.unsure or not self.outcomes:
            return DecodeAnswer.NOT_SURE
        return DecodeAnswer.ROUNDING

    @property
    def passed(self) -> bool:
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """0: rounding; 1: more; 2: not sure."""
        return [*DecodeAnswer].index(self.answer)
