"""The events of a watch's log that the checklist judges by. Without torch.

``TrainingSetup`` says what a training consists of, in the first step and after each change.
``Vitals`` are the numbers of one step."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

import msgspec

#: JSON has no NaN and no Infinity: these are written as words.
Number: TypeAlias = float | Literal["nan", "inf", "-inf"]


def number(value: float) -> Number:
    """A number as JSON can hold it."""
    if math.isnan(value):
        return "nan"
    return float(value) if math.isfinite(value) else "inf" if value > 0 else "-inf"


class ParameterFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """One parameter."""

    name: str
    # shape, dtype: of this rank's part, where it is sharded
    shape: tuple[int, ...]
    dtype: str
    owner: str  # the class of the module that holds it
    trainable: bool
    # the optimizer and the number of its parameter group, such as ``AdamW.0``, if any
    group: str = ""
    decay: float = 0.0  # the weight decay of that group
    sharded: bool = False  # whether other ranks hold other parts of it
    eps: float = 0.0  # what the optimizer adds to the root of the second moment; 0 if it has none


class TrainingSetup(
    msgspec.Struct, tag="setup", tag_field="event", frozen=True, omit_defaults=True
):
    """What a training consists of."""

    step: int  # the first step that it holds for
    parameters: list[ParameterFacts] = []  # of the model, each once
    optimizers: list[str] = []  # classes of the known ones; empty if none is known yet
    # by optimizer, how many steps its state had taken when the watch began, if it counts them
    taken: dict[str, int] = {}
    # by scheduler, how often it had been stepped when the watch began; empty if the watch was given
    # none
    schedulers: dict[str, int] = {}
    # by scheduler, the number of steps that it was made for, where it says so (``T_max``,
    # ``total_steps``)
    scheduler_lengths: dict[str, int] = {}
    # pairs of names in one list that are the same module, such as ``layers.0`` and ``layers.1``
    twins: list[tuple[str, str]] = []
    # how many modules behave differently in training: dropout with p > 0, batch norm
    switched: int = 0
    # by generator, its last seed; ``torch`` has its own default if it was given none
    seeds: dict[str, int] = {}
    default_seed: bool = False
    cycle: int = 0  # after so many steps the same inputs are used again, by command; 0 if unknown
    pad: int | None = None  # the id of padding, if the model's configuration or embedding says it
    # how many rows the model's input embedding has; ``None`` without one
    vocabulary: int | None = None
    # ids of special tokens from the model's configuration: ``begin`` and ``end`` of a text
    tokens: dict[str, int] = {}
    # digests of the ``python`` and ``numpy`` generators' states when the watch began
    generators: dict[str, str] = {}
    # by module, the share that its dropout sets to zero, where there is one
    dropouts: dict[str, float] = {}
    every: int = 1


class Given(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tensor that the model was given by its caller."""

    # path, dtype, shape: which, and what
    path: str
    dtype: str
    shape: tuple[int, ...]
    # low, high: its smallest and its largest value; ``None`` if it has none
    low: Number | None = None
    high: Number | None = None
    digest: str = ""  # of its shape and a sample of at most 4,096 of its values, at fixed places
    # of a floating tensor with samples in its first axis, the share of features that are equal in
    # all of them
    constant: float | None = None
    whole: bool | None = None  # whether a floating tensor holds only whole numbers
    padding_rows: float | None = None  # the share of rows that a mask hides altogether
    unmasked_padding: float | None = None  # the share of padding in what the mask keeps
    masked_content: float | None = None  # the share of other content in what the mask hides
    # whether padding is on the left; ``None`` without padding, or on both sides
    pads_left: bool | None = None
    # of token ids, the smallest and the largest that a row begins with
    first: tuple[Number, Number] | None = None


class Targets(msgspec.Struct, frozen=True, omit_defaults=True):
    """The inputs of a cross entropy in the graph of the loss."""

    classes: int  # how many there are: the width of the logits
    dtype: str
    # low, high: of the labels that are not ignored; ``None`` if all are
    low: Number | None = None
    high: Number | None = None
    ignored: float = 0.0  # the share of ignored labels
    # of the output, in nats, the mean over a sample's rows; ``None`` also if the input is no
    # log-probabilities
    entropy: Number | None = None
    smoothing: float = 0.0  # the label smoothing; 0 without
    # the share of labels that are padding after padding; ``None`` if that is unknown, or the mean
    # is not taken there
    padding: float | None = None
    missed: Number | None = None  # minus the mean log-probability of the labels, over the same rows


class LossInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """The inputs of a function near the root of the loss."""

    function: str  # of PyTorch's; a hand-written difference is ``sub``
    # the function that made the prediction, such as ``softmax``, with nothing in between that
    # changes values; else empty
    made_by: str = ""
    shape: tuple[int, ...] = ()  # of the prediction
    # the shape that prediction and target were broadcast to, if each value of one met each of the
    # other; else empty
    spread: tuple[int, ...] = ()


class Labels(msgspec.Struct, frozen=True, omit_defaults=True):
    """The labels of one classifier in one step, all its cross entropies together."""

    parameter: str  # the one whose rows are the classes
    count: int  # how many labels were not ignored
    # low, high: of these
    low: Number
    high: Number
    # of at most 24 classes, those that occur: bit *c* for class *c*; ``None`` of more
    present: int | None = None


class Lookup(NamedTuple):
    """Ids that an embedding was given, and its number of rows."""

    name: str
    rows: int
    low: Number
    high: Number


class Narrowed(NamedTuple):
    """Whole numbers, such as positions, in a half type that cannot hold all of their size."""

    name: str
    path: str
    dtype: str
    high: Number


class Applied(NamedTuple):
    """A scheduler when an update began."""

    stepped: int  # how often it had been stepped
    rates: list[Number]  # that it had set
    here: bool = True  # whether it sets the rates of an optimizer that updates in this step


class LoadedBatch(NamedTuple):
    """The loader that gave a batch."""

    number: int  # its place in the order in which loaders were first begun
    begun: int  # how often it had been begun, this time included
    batches: int  # how many it has; 0 if it does not know
    shuffles: bool  # whether it was asked for another order in each epoch


class Vitals(msgspec.Struct, tag="vitals", tag_field="event", frozen=True, omit_defaults=True):
    """The numbers of one step. Norms are L2; losses and gradients are without the loss scale."""

    step: int
    backwards: int = 0
    updates: int = 0
    lr: dict[str, Number] = {}
    loss: Number | None = None  # that the backward began with; the mean of several
    norm: Number | None = None  # of the updated parameters' gradients when the backward ended
    norm_at_update: Number | None = None  # the same when the update began
    scale: float | None = None
    # how many parameters still had the gradient from before the last update, not zero, when the
    # backward began
    kept: int = 0
    schedulers: dict[str, Applied] = {}  # by scheduler, what it had set when the update began
    given: list[Given] = []
    targets: Targets | None = None  # of the cross entropy, if the loss has one
    # how many modules that behave differently in training were in evaluation, in calls with
    # gradients of a model in evaluation as a whole: the fewest of any call, without those beside
    # frozen parameters
    evaluated: int = 0
    trained_without: int = 0  # how many of them were in training, in calls without gradients
    # the loader that gave the last batch before the model's call; ``None`` if none of torch's did
    loaded: LoadedBatch | None = None
    # smallest and largest ratio, over parameters with a gradient, of its norm at the update to its
    # norm after the backward
    grown: tuple[Number, Number] | None = None
    # generators besides torch's that were drawn from inside the model's calls
    drawn: list[str] = []
    drawn_between: list[str] = []  # those that were drawn from since the previous call
    # positions and ids in half types, beyond what these hold exactly; the first few
    narrowed: list[Narrowed] = []
    # frozen parameters in an optimizer's update that had a gradient; the first few
    frozen: list[str] = []
    # of a step looked at closely, by measurement, the numbers of each of
    # ``TrainingSetup.parameters``, in that order: ``grad``: the norm of the gradient when the
    # backward ended, if there is one; ``weight``: the norm of the parameter before the update;
    # ``update``: of a sample, the root mean square of what the update added, over that of the
    # parameter before; ``moved``: the share of a sample that the update changed; ``v``: the mean of
    # a sample of Adam's second moment after the update
    layers: dict[str, list[Number | None]] = {}
    # by module, the share of its units that have given nothing above zero in any step looked at
    # closely
    idle: dict[str, float] = {}
    buffers: dict[str, tuple[Number, Number]] = {}  # by buffer, its smallest and its largest value
    # by module with parameters of its own, the extrema of its output
    outputs: dict[str, tuple[Number, Number]] = {}
    died: bool = False  # whether an error of the loop's ended the step
    elsewhere: int = 0  # how many backwards began with a loss and reached no parameter of the model
    # inputs of functions near the root of the loss, in a step looked at closely
    losses: list[LossInput] = []
    labels: list[Labels] = []  # of each classifier whose cross entropy is near the root of a loss
    lookups: list[Lookup] = []  # of each embedding, the ids that it was given first
    # the first called module with a matrix, and the extrema of its input
    entered: tuple[str, Number, Number] | None = None
    thrown: int = 0  # how many backwards' gradients were cleared unused since the previous update
    # clipped, clipped_behind: whether gradients were clipped before the update, and after it, by a
    # finite limit
    clipped: bool = False
    clipped_behind: bool = False
    renewed: int = 0  # how many optimizers began without state in place of one that had some
    # how many parameters of an optimizer are not the model's and never had a gradient in an update
    strangers: int = 0
