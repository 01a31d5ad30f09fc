"""The events of a watch's log, each a line of JSON. Without torch, so that a log can be read
anywhere.

A log holds runs, one after the other. Each begins with a ``WatchStart``. Then come for each step,
in this order: ``Alert``, ``Finding``, ``Frames`` and ``ScaleChange`` events, ``TrainingSetup`` (in
the first step, and where it has changed), ``Vitals`` and ``Step``. Last comes an ``End``, unless
the process was killed."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import msgspec

from accucompare.bundle.format import display_name
from accucompare.findings.log.vital_events import Number, TrainingSetup, Vitals
from accucompare.findings.log.watch_remark import WatchRemark
from accucompare.selection import Word


class Site(Word):
    """Where a value that is not finite was made; ``aside`` is what a place's name adds for it."""

    aside: str

    def __new__(cls, value: str, aside: str = "") -> Site:
        site = str.__new__(cls, value)
        site._value_, site.aside = value, aside
        return site

    MODULE = "module"  # inside this module call
    # in the module's own forward, between its children: before or after the one in `near`
    GLUE = "glue", "glue"
    # seen at a point of the user's own (`check_finite`), which `near` names
    POINT = "point", "point"
    WEIGHTS = "weights", "weights"  # it was in a parameter or buffer of this module before
    INPUT = "input"  # the model was given it
    LOSS = "loss"  # of a gradient: it came from the loss, outside of the model
    # of a gradient: a user's hook on a parameter, which `near` names
    HOOK = ("hook", "hook on")
    # in a parameter's gradient, between the backward and the update
    GRADIENTS = "gradients", "gradients before the update"
    UPDATE = "update", "weights after the update"  # in a parameter, by the optimizer's last update
    RANK = "rank"  # another rank has found it
    # of a gradient: the sum over several places, ranks, steps or micro-batches
    SUM = "sum", "sum of gradients"


class Direction(Word):
    FORWARD = "forward"
    BACKWARD = "backward"


class Cause(Word):
    """What is known of the inputs of a call whose output is not finite."""

    # its inputs were finite, but it has talked to other ranks
    RANKS = "made inside, or given by another rank"
    INSIDE = "made inside"  # its inputs were finite, or held only a legal Inf
    NEAR = "inputs near the limit"  # finite, but within a factor of their dtype's limit
    INPUTS = "inputs already bad"


class AlertKind(Word):
    """What a watch warns of before it is wrong."""

    NEAR = "near the limit"
    UNDERFLOW = "underflow"
    FLAG = "device flag"
    SCALE = "loss scale"
    NOTE = "note"


class Ending(Word):
    """How a run ended."""

    FINISHED = "finished"
    FINDING = "a finding"
    STOPPED = "stopped, as asked"
    PAUSED = "paused"
    INTERRUPTED = "interrupted"
    FAILED = "failed"  # the loop has raised an error


class TensorRange(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tensor, or one Python number, that was looked at."""

    # ``input``, ``output``, ``weight``, ``buffer`` or ``grad``; of an operator's gradients, too
    role: str
    path: str  # where in a nested value it is; of a weight, its name in the module
    dtype: str  # PyTorch's name without ``torch.``
    shape: tuple[int, ...]
    # low, high: the smallest and the largest value; ``"nan"`` if there is a NaN
    low: Number
    high: Number
    abs_min: Number | None = None  # the smallest magnitude, if it was looked for
    # nan, inf: how many NaN and Inf there are, if they were counted
    nan: int | None = None
    inf: int | None = None

    @property
    def abs_max(self) -> float:
        """The largest magnitude; NaN if there is a NaN."""
        low, high = float(self.low), float(self.high)
        return math.nan if math.isnan(low) or math.isnan(high) else max(abs(low), abs(high))

    @property
    def finite(self) -> bool:
        return math.isfinite(float(self.low)) and math.isfinite(float(self.high))


class Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    """A module call, or in the backward an operator's gradient, in the table of the last frames."""

    order: int
    # name, call, type: of the module call; the class's name
    name: str
    call: int
    type: str
    direction: Direction = Direction.FORWARD
    operator: str = ""  # an operator's name, such as ``aten.bmm.default`` or ``SqrtBackward0``
    tensors: list[TensorRange] = []  # weights, inputs, outputs; or gradients


class WatchStart(msgspec.Struct, tag="start", tag_field="event", frozen=True, omit_defaults=True):
    """The beginning of a run."""

    version: str
    time: str  # ISO 8601, in UTC
    # rank, ranks: of torch.distributed; 0 of 1 without it
    rank: int
    ranks: int
    model: str
    parameters: int  # how many elements its parameters have
    device: str  # such as ``npu:0``
    # of this rank, such as ``{"tp": 1, "pp": 0, "dp": 3}``, where they are known
    coordinates: dict[str, int] = {}
    case: str | None = None
    options: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    saturates: bool = False  # whether the device gives the largest number in place of Inf


class Finding(msgspec.Struct, tag="found", tag_field="event", frozen=True, omit_defaults=True):
    """A module call, or a gradient, that is not finite."""

    step: int
    order: int
    # name, call, type: the module call that made it, or that it passed through; its class
    name: str
    call: int
    type: str
    site: Site
    direction: Direction
    origin: bool  # whether it began here; else it came in
    cause: Cause  # what is known of the inputs
    kinds: list[str]  # of the output: ``NaN``, ``+Inf``, ``-Inf``, ``saturated``
    # beside which child: of glue, the one that it was made ``before`` or ``after``, as ``"before
    # block.2"``; of a point, its label
    near: str = ""
    operator: str = ""  # that made it, if known: ``aten.log.default``, or backward ``LogBackward0``
    line: str = ""  # the source line that called the operator, such as ``model.py:57``
    tensors: list[TensorRange] = []
    operator_tensors: list[TensorRange] = []
    weights: list[TensorRange] = []  # the module's parameters and buffers that are not finite
    # of a gradient: every parameter whose gradient is not finite, in the order of the backward
    parameters: list[str] = []
    # for the reader: paths of inputs with a legal Inf; of a loss, the model's outputs with one
    legal: list[str] = []
    # inputs that were not looked at: paths, ``weights``, or an operator's other input
    unseen: list[WatchRemark | str] = []
    second: bool = False  # whether it was in a second backward, through another one's gradients
    reproducer: str = ""  # the path of the script, from the log's directory
    # what the reproducer lacks, or why there is none
    reproducer_notes: list[WatchRemark | str] = []
    # further remarks, such as why the step could not be run again
    notes: list[WatchRemark | str] = []

    def noting(self, *notes: WatchRemark | str) -> Finding:
        """The finding with further notes."""
        return msgspec.structs.replace(self, notes=[*self.notes, *notes])

    def passing_on(self, *notes: WatchRemark | str) -> Finding:
        """The finding as one that came in and did not begin here."""
        return msgspec.structs.replace(self.noting(*notes), origin=False, cause=Cause.INPUTS)

    @property
    def place(self) -> str:
        """The place as people read it: ``encoder.layers.3.fc1``, ``encoder.layers.3 (glue, before
        norm2)``, ``fc1, backward``."""
        name = display_name(self.name) + (f" call {self.call}" if self.call else "")
        if self.site is Site.LOSS:
            return "the loss, backward" if self.direction is Direction.BACKWARD else "the loss"
        if self.site is Site.RANK:
            return "another rank"
        if self.site is Site.INPUT:
            path = self.tensors[0].path if self.tensors else ""
            return f"{name}, input {path}".rstrip()
        aside = [each for each in (self.site.aside, self.near) if each]
        direction = ", backward" if self.direction is Direction.BACKWARD else ""
        return (
            name
            + (f" ({(' ' if self.site is Site.HOOK else ', ').join(aside)})" if aside else "")
            + direction
        )


class Alert(msgspec.Struct, tag="warned", tag_field="event", frozen=True, omit_defaults=True):
    """A warning of what is not yet wrong, once per module and kind."""

    kind: AlertKind
    text: WatchRemark | str
    step: int
    # name, call, type: of the module call; empty for what concerns no module
    name: str = ""
    call: int = 0
    type: str = ""
    # the largest magnitude, or the share (0 to 1) of values that became zero or subnormal
    value: Number | None = None
    dtype: str = ""


class Frames(msgspec.Struct, tag="frames", tag_field="event", frozen=True, omit_defaults=True):
    """The last frames before a finding, or all of a traced step."""

    step: int
    frames: list[Frame]  # in the order in which they ended
    traced: bool = False  # whether they are all of the step's


class ScaleChange(msgspec.Struct, tag="scaled", tag_field="event", frozen=True, omit_defaults=True):
    """The loss scale changed, or the optimizer's step was skipped."""

    step: int
    scale: float  # after the step
    skipped: bool  # whether the step was skipped because gradients overflowed
    in_a_row: int = 0  # how many steps in a row were skipped
    alarm: bool = False  # whether this is no longer normal
    text: WatchRemark | str = ""


class Step(msgspec.Struct, tag="step", tag_field="event", frozen=True, omit_defaults=True):
    """The end of a step that was watched."""

    step: int
    finite: bool  # whether nothing was found in this step, and every gradient was finite
    # the L2 norm of all gradients together, before clipping and without the loss scale
    grad_norm: Number | None = None
    # the parameters that carry most of it, with their own norms, the largest first
    largest: list[tuple[str, Number]] = []
    scale: float | None = None  # the loss scale, if there is one
    # whether the device's overflow flag was up; ``None`` on devices without
    overflowed: bool | None = None
    loss: Number | None = None  # if it is known
    # whether the update was skipped because gradients overflowed; no finding, since a loss scaler
    # does it now and then
    skipped: bool = False
    # by module name, what could not be looked at: ``finite`` holds for the rest
    unseen: dict[str, WatchRemark | str] = {}


class End(msgspec.Struct, tag="end", tag_field="event", frozen=True, omit_defaults=True):
    """The end of a run."""

    steps: int  # how many there were; ``watched`` of them were watched
    watched: int
    # further remarks: the error that ended the loop, or where its state is
    reason: WatchRemark | str
    ending: Ending
    # the last norm of each of ``TrainingSetup.parameters``, in that order, to recognise a run that
    # goes on from here
    weights: list[Number | None] = []
    state: str = ""  # of a paused run: where the state is saved to go on from
    error: str = ""

    @property
    def as_meant(self) -> bool:
        """Whether the loop was neither interrupted nor ended by an error."""
        return self.ending in (Ending.FINISHED, Ending.FINDING, Ending.STOPPED, Ending.PAUSED)


Event: TypeAlias = (
    WatchStart | TrainingSetup | Finding | Alert | Frames | ScaleChange | Vitals | Step | End
)
