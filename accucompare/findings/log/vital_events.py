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
    """One parameter.

    Attributes:
        shape, dtype: of this rank's part, where it is sharded.
        owner: the class of the module that holds it.
        group: the optimizer and the number of its parameter group, such as ``AdamW.0``, if any.
        decay: the weight decay of that group.
        sharded: whether other ranks hold other parts of it.
        eps: what the optimizer adds to the root of the second moment; 0 if it has none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    owner: str
    trainable: bool
    group: str = ""
    decay: float = 0.0
    sharded: bool = False
    eps: float = 0.0


class TrainingSetup(
    msgspec.Struct, tag="setup", tag_field="event", frozen=True, omit_defaults=True
):
    """What a training consists of.

    Attributes:
        step: the first step that it holds for.
        parameters: of the model, each once.
        optimizers: classes of the known ones; empty if none is known yet.
        taken: by optimizer, how many steps its state had taken when the watch began, if it counts
            them.
        schedulers: by scheduler, how often it had been stepped when the watch began; empty if the
            watch was given none.
        scheduler_lengths: by scheduler, the number of steps that it was made for, where it says so
            (``T_max``, ``total_steps``).
        twins: pairs of names in one list that are the same module, such as ``layers.0`` and
            ``layers.1``.
        switched: how many modules behave differently in training: dropout with p > 0, batch norm.
        seeds: by generator, its last seed; ``torch`` has its own default if it was given none.
        cycle: after so many steps the same inputs are used again, by command; 0 if unknown.
        pad: the id of padding, if the model's configuration or embedding says it.
        vocabulary: how many rows the model's input embedding has; ``None`` without one.
        tokens: ids of special tokens from the model's configuration: ``begin`` and ``end`` of a
            text.
        generators: digests of the ``python`` and ``numpy`` generators' states when the watch began.
        dropouts: by module, the share that its dropout sets to zero, where there is one.
    """

    step: int
    parameters: list[ParameterFacts] = []
    optimizers: list[str] = []
    taken: dict[str, int] = {}
    schedulers: dict[str, int] = {}
    scheduler_lengths: dict[str, int] = {}
    twins: list[tuple[str, str]] = []
    switched: int = 0
    seeds: dict[str, int] = {}
    default_seed: bool = False
    cycle: int = 0
    pad: int | None = None
    vocabulary: int | None = None
    tokens: dict[str, int] = {}
    generators: dict[str, str] = {}
    dropouts: dict[str, float] = {}
    every: int = 1


class Given(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tensor that the model was given by its caller.

    Attributes:
        path, dtype, shape: which, and what.
        low, high: its smallest and its largest value; ``None`` if it has none.
        digest: of its shape and a sample of at most 4,096 of its values, at fixed places.
        constant: of a floating tensor with samples in its first axis, the share of features that
            are equal in all of them.
        whole: whether a floating tensor holds only whole numbers.
        padding_rows: the share of rows that a mask hides altogether.
        unmasked_padding: the share of padding in what the mask keeps.
        masked_content: the share of other content in what the mask hides.
        pads_left: whether padding is on the left; ``None`` without padding, or on both sides.
        first: of token ids, the smallest and the largest that a row begins with.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    low: Number | None = None
    high: Number | None = None
    digest: str = ""
    constant: float | None = None
    whole: bool | None = None
    padding_rows: float | None = None
    unmasked_padding: float | None = None
    masked_content: float | None = None
    pads_left: bool | None = None
    first: tuple[Number, Number] | None = None


class Targets(msgspec.Struct, frozen=True, omit_defaults=True):
    """The inputs of a cross entropy in the graph of the loss.

    Attributes:
        classes: how many there are: the width of the logits.
        low, high: of the labels that are not ignored; ``None`` if all are.
        ignored: the share of ignored labels.
        entropy: of the output, in nats, the mean over a sample's rows; ``None`` also if the input
            is no log-probabilities.
        smoothing: the label smoothing; 0 without.
        missed: minus the mean log-probability of the labels, over the same rows.
        padding: the share of labels that are padding after padding; ``None`` if that is unknown, or
            the mean is not taken there.
    """

    classes: int
    dtype: str
    low: Number | None = None
    high: Number | None = None
    ignored: float = 0.0
    entropy: Number | None = None
    smoothing: float = 0.0
    padding: float | None = None
    missed: Number | None = None


class LossInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """The inputs of a function near the root of the loss.

    Attributes:
        function: of PyTorch's; a hand-written difference is ``sub``.
        made_by: the function that made the prediction, such as ``softmax``, with nothing in between
            that changes values; else empty.
        shape: of the prediction.
        spread: the shape that prediction and target were broadcast to, if each value of one met
            each of the other; else empty.
    """

    function: str
    made_by: str = ""
    shape: tuple[int, ...] = ()
    spread: tuple[int, ...] = ()


class Labels(msgspec.Struct, frozen=True, omit_defaults=True):
    """The labels of one classifier in one step, all its cross entropies together.

    Attributes:
        parameter: the one whose rows are the classes.
        count: how many labels were not ignored.
        low, high: of these.
        present: of at most 24 classes, those that occur: bit *c* for class *c*; ``None`` of more.
    """

    parameter: str
    count: int
    low: Number
    high: Number
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
    """A scheduler when an update began.

    Attributes:
        stepped: how often it had been stepped.
        rates: that it had set.
        here: whether it sets the rates of an optimizer that updates in this step.
    """

    stepped: int
    rates: list[Number]
    here: bool = True


class LoadedBatch(NamedTuple):
    """The loader that gave a batch.

    Attributes:
        number: its place in the order in which loaders were first begun.
        begun: how often it had been begun, this time included.
        batches: how many it has; 0 if it does not know.
        shuffles: whether it was asked for another order in each epoch.
    """

    number: int
    begun: int
    batches: int
    shuffles: bool


class Vitals(msgspec.Struct, tag="vitals", tag_field="event", frozen=True, omit_defaults=True):
    """The numbers of one step. Norms are L2, and losses and gradients are without the loss scale.

    Attributes:
        loss: that the backward began with; the mean of several.
        norm: of the updated parameters' gradients when the backward ended.
        norm_at_update: the same when the update began.
        kept: how many parameters still had the gradient from before the last update, not zero, when
            the backward began.
        schedulers: by scheduler, what it had set when the update began.
        targets: of the cross entropy, if the loss has one.
        evaluated: how many modules that behave differently in training were in evaluation, in calls
            with gradients of a model in evaluation as a whole: the fewest of any call, without
            those beside frozen parameters.
        trained_without: how many of them were in training, in calls without gradients.
        loaded: the loader that gave the last batch before the model's call; ``None`` if none of
            torch's did.
        drawn: generators besides torch's that were drawn from inside the model's calls.
        drawn_between: those that were drawn from since the previous call.
        narrowed: positions and ids in half types, beyond what these hold exactly; the first few.
        frozen: frozen parameters in an optimizer's update that had a gradient; the first few.
        grown: smallest and largest ratio, over parameters with a gradient, of its norm at the
            update to its norm after the backward.
        layers: of a step looked at closely, by measurement, the numbers of each of
            ``TrainingSetup.parameters``, in that order:
            ``grad``: the norm of the gradient when the backward ended, if there is one;
            ``weight``: the norm of the parameter before the update;
            ``update``: of a sample, the root mean square of what the update added, over that of the
            parameter before;
            ``moved``: the share of a sample that the update changed;
            ``v``: the mean of a sample of Adam's second moment after the update.
        idle: by module, the share of its units that have given nothing above zero in any step
            looked at closely.
        buffers: by buffer, its smallest and its largest value.
        outputs: by module with parameters of its own, the extrema of its output.
        died: whether an error of the loop's ended the step.
        elsewhere: how many backwards began with a loss and reached no parameter of the model.
        losses: inputs of functions near the root of the loss, in a step looked at closely.
        labels: of each classifier whose cross entropy is near the root of a loss.
        lookups: of each embedding, the ids that it was given first.
        entered: the first called module with a matrix, and the extrema of its input.
        thrown: how many backwards' gradients were cleared unused since the previous update.
        clipped, clipped_behind: whether gradients were clipped before the update, and after it, by
            a finite limit.
        renewed: how many optimizers began without state in place of one that had some.
        strangers: how many parameters of an optimizer are not the model's and never had a gradient
            in an update.
    """

    step: int
    backwards: int = 0
    updates: int = 0
    lr: dict[str, Number] = {}
    loss: Number | None = None
    norm: Number | None = None
    norm_at_update: Number | None = None
    scale: float | None = None
    kept: int = 0
    schedulers: dict[str, Applied] = {}
    given: list[Given] = []
    targets: Targets | None = None
    evaluated: int = 0
    trained_without: int = 0
    loaded: LoadedBatch | None = None
    grown: tuple[Number, Number] | None = None
    drawn: list[str] = []
    drawn_between: list[str] = []
    narrowed: list[Narrowed] = []
    frozen: list[str] = []
    layers: dict[str, list[Number | None]] = {}
    idle: dict[str, float] = {}
    buffers: dict[str, tuple[Number, Number]] = {}
    outputs: dict[str, tuple[Number, Number]] = {}
    died: bool = False
    elsewhere: int = 0
    losses: list[LossInput] = []
    labels: list[Labels] = []
    lookups: list[Lookup] = []
    entered: tuple[str, Number, Number] | None = None
    thrown: int = 0
    clipped: bool = False
    clipped_behind: bool = False
    renewed: int = 0
    strangers: int = 0
