"""A watch's log as rows and columns, for every report: findings, tensors, steps, warnings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from accucompare.bundle.format import display_name
from accucompare.findings.analysis import Analysis, Ranks
from accucompare.findings.log import (
    Alert,
    AlertKind,
    Finding,
    Frame,
    Frames,
    Number,
    Step,
    TensorRange,
    TrainingSetup,
)
from accucompare.report.table import COUNT, GENERAL, NUMBER, TEXT, Column, Value, bracketed
from accucompare.report.watch_words import answer, called, described, hints_for, said, smallest

_RANK = Column("rank", lambda row: row.run.start.rank, COUNT, 7)


def main_run(ranks: Ranks) -> Analysis:
    """The run shown in full, since all are too many: that of the first origin, or the first."""
    return ranks.first[0] if ranks.first is not None else ranks.ranks[0]


def main_answer(ranks: Ranks) -> str:
    """The answer to the first finding, in lines; empty without findings."""
    if ranks.first is None:
        return ""
    run, finding = ranks.first
    return answer(finding, run.start, ranks.directory, run.scale_at(finding.step))


def _number(value: Number | None) -> Value:
    return None if value is None else float(value)


# Findings


class FindingRow(NamedTuple):
    """A finding; the last one shown of an origin counts how many more it passed through."""

    run: Analysis
    finding: Finding
    more: int = 0


_INPUT_ROLES = ("input", "weight", "buffer")


def _tensors(row: FindingRow, inputs: bool) -> list[TensorRange]:
    tensors = row.finding.operator_tensors or row.finding.tensors
    return [tensor for tensor in tensors if (tensor.role in _INPUT_ROLES) is inputs]


def _largest_input(row: FindingRow) -> Value:
    """The largest magnitude that went in; a NaN, if there is one."""
    sizes = [tensor.abs_max for tensor in _tensors(row, True)]
    return math.nan if any(map(math.isnan, sizes)) else max(sizes, default=None)


def _described(tensors: Sequence[TensorRange]) -> str:
    return "; ".join(map(described, tensors[:20]))


def _output_count(kind: str) -> Callable[[FindingRow], Value]:
    def get(row: FindingRow) -> Value:
        counts = [
            count for tensor in _tensors(row, False) if (count := getattr(tensor, kind)) is not None
        ]
        return sum(counts) if counts else None

    return get


def _joined(name: str) -> Callable[[FindingRow], str]:
    return lambda row: ", ".join(getattr(row.finding, name))


def _hints(row: FindingRow) -> str:
    return "; ".join(hints_for(row.finding, row.run.start, row.run.scale_at(row.finding.step)))


def _notes(row: FindingRow) -> str:
    return "; ".join(
        [
            *map(said, row.finding.notes),
            *(f"reproducer: {said(note)}" for note in row.finding.reproducer_notes),
        ]
    )


FINDINGS = (
    Column("#", None, COUNT, 8),
    Column("step", lambda row: row.finding.step, COUNT, 9),
    _RANK,
    Column("place", lambda row: row.finding.place, TEXT, 52, least=24),
    Column(
        "begins here",
        lambda row: "origin" if row.finding.origin else "passed on",
        TEXT,
        13,
        "verdict",
    ),
    Column("what", _joined("kinds"), TEXT, 15, "verdict"),
    Column("cause", lambda row: row.finding.cause.value, TEXT, 22, "verdict"),
    Column("class", lambda row: row.finding.type, TEXT, 22, least=12),
    Column("call", lambda row: row.finding.call, COUNT, 7),
    Column("direction", lambda row: row.finding.direction.value, TEXT, 11),
    Column("made in", lambda row: row.finding.site.value, TEXT, 11),
    Column("order in step", lambda row: row.finding.order, COUNT, 9),
    Column(
        "coordinates",
        lambda row: ", ".join(
            f"{axis} {index}" for axis, index in row.run.start.coordinates.items()
        ),
        TEXT,
        18,
    ),
    Column("operator", lambda row: row.finding.operator, TEXT, 24, "difference"),
    Column("source line", lambda row: row.finding.line, TEXT, 28, "difference"),
    Column("largest that went in", _largest_input, NUMBER, 15, "golden"),
    Column("NaN that came out", _output_count("nan"), COUNT, 12, "not finite"),
    Column("Inf that came out", _output_count("inf"), COUNT, 12, "not finite"),
    Column("what went in", lambda row: _described(_tensors(row, True)), TEXT, 60, "golden"),
    Column("what came out", lambda row: _described(_tensors(row, False)), TEXT, 60, "not finite"),
    Column(
        "weights not finite", lambda row: _described(row.finding.weights), TEXT, 40, "not finite"
    ),
    Column("gradients not finite", _joined("parameters"), TEXT, 40, "not finite"),
    Column("legal Inf in", _joined("legal"), TEXT, 18),
    Column("what to try", _hints, TEXT, 90, "judgement"),
    Column("reproducer", lambda row: row.finding.reproducer, TEXT, 44, "judgement"),
    Column("notes", _notes, TEXT, 60, "judgement"),
)


# Frames


class TensorRow(NamedTuple):
    """A tensor of a frame; ``first`` in the frame; ``origin``: whether the frame is one."""

    run: Analysis | None
    frames: Frames
    frame: Frame
    tensor: TensorRange | None
    first: bool
    origin: bool = False


def tensor_rows(frames: Frames, run: Analysis | None = None) -> Iterator[TensorRow]:
    """A row for each tensor of each frame; one for a frame without any."""
    origins = {
        (origin.step, origin.name, origin.call, origin.direction)
        for origin in (run.origins if run else [])
    }
    for frame in frames.frames:
        is_origin = (frames.step, frame.name, frame.call, frame.direction) in origins
        tensors: Sequence[TensorRange | None] = frame.tensors or [None]
        for number, tensor in enumerate(tensors):
            yield TensorRow(run, frames, frame, tensor, not number, is_origin)


def _of_tensor(get: Callable[[TensorRange], Value]) -> Callable[[TensorRow], Value]:
    return lambda row: None if row.tensor is None else get(row.tensor)


FRAMES = (
    Column("step", lambda row: row.frames.step, COUNT, 9),
    _RANK,
    Column("order in step", lambda row: row.frame.order, COUNT, 9),
    Column("module", lambda row: display_name(row.frame.name), TEXT, 48),
    Column("tensor", _of_tensor(called), TEXT, 22),
    Column("class", lambda row: row.frame.type, TEXT, 22),
    Column("call", lambda row: row.frame.call, COUNT, 7),
    Column("direction", lambda row: row.frame.direction.value, TEXT, 11),
    Column("operator", lambda row: row.frame.operator, TEXT, 24),
    Column("dtype", _of_tensor(lambda tensor: tensor.dtype), TEXT, 11),
    Column("shape", _of_tensor(lambda tensor: bracketed(tensor.shape)), TEXT, 20),
    Column("abs min", _of_tensor(smallest), NUMBER, 14, "difference"),
    Column("abs max", _of_tensor(lambda tensor: tensor.abs_max), NUMBER, 14, "difference"),
    Column("min", _of_tensor(lambda tensor: _number(tensor.low)), NUMBER, 14, "difference"),
    Column("max", _of_tensor(lambda tensor: _number(tensor.high)), NUMBER, 14, "difference"),
    Column("NaN", _of_tensor(lambda tensor: tensor.nan or None), COUNT, 11, "not finite"),
    Column("Inf", _of_tensor(lambda tensor: tensor.inf or None), COUNT, 11, "not finite"),
    Column(
        "kept because",
        lambda row: "traced" if row.frames.traced else "before a finding",
        TEXT,
        16,
        "judgement",
    ),
)


# Steps and warnings


class StepRow(NamedTuple):
    run: Analysis
    step: Step
    skipped: bool
    alarm: bool
    jumped: bool


def step_rows(run: Analysis) -> Iterator[StepRow]:
    skipped = {each.step for each in run.scaled if each.skipped}
    alarms = {each.step for each in run.alarms}
    jumps = {jump.step.step for jump in run.jumps}
    for step in run.steps:
        yield StepRow(run, step, step.step in skipped, step.step in alarms, step.step in jumps)


def _yes(value: bool | None) -> str:
    return "yes" if value else ""


def _largest(row: StepRow) -> str:
    return ", ".join(f"{name} {float(norm):.4g}" for name, norm in row.step.largest[:5])


STEPS = (
    Column("step", lambda row: row.step.step, COUNT, 10),
    _RANK,
    Column("finite", lambda row: "yes" if row.step.finite else "no", TEXT, 8, "verdict"),
    Column("grad_norm", lambda row: _number(row.step.grad_norm), NUMBER, 15, "difference"),
    Column("jumped", lambda row: _yes(row.jumped), TEXT, 9, "difference"),
    Column("loss", lambda row: _number(row.step.loss), NUMBER, 15, "difference"),
    Column("loss scale", lambda row: row.step.scale, GENERAL, 13, "baseline"),
    Column("skipped", lambda row: _yes(row.skipped), TEXT, 9, "baseline"),
    Column("alarm", lambda row: _yes(row.alarm), TEXT, 8, "baseline"),
    Column("overflow flag", lambda row: _yes(row.step.overflowed), TEXT, 10, "not finite"),
    Column("most of grad_norm", _largest, TEXT, 70, "judgement"),
)


class WarningRow(NamedTuple):
    run: Analysis
    alert: Alert
    alarm: bool


def warning_rows(run: Analysis) -> Iterator[WarningRow]:
    """The warnings and, among them, the changes of the loss scale."""
    alarms = {id(each) for each in run.alarms}
    for alert in run.warnings:
        yield WarningRow(run, alert, False)
    for each in run.scaled:
        words = said(each.text) or f"the loss scale is {each.scale:g} now" + (
            ", the step was skipped" if each.skipped else ""
        )
        yield WarningRow(
            run, Alert(AlertKind.SCALE, words, each.step, value=each.scale), id(each) in alarms
        )


WARNINGS = (
    Column("step", lambda row: row.alert.step, COUNT, 10),
    _RANK,
    Column("kind", lambda row: row.alert.kind.value, TEXT, 18, "verdict"),
    Column(
        "module",
        lambda row: display_name(row.alert.name) if row.alert.type else row.alert.name,
        TEXT,
        44,
    ),
    Column("class", lambda row: row.alert.type, TEXT, 22),
    Column("value", lambda row: _number(row.alert.value), NUMBER, 15, "difference"),
    Column("dtype", lambda row: row.alert.dtype, TEXT, 11),
    Column("what is said", lambda row: said(row.alert.text), TEXT, 110, "judgement"),
)


class WatchMeasure(NamedTuple):
    """A number of each parameter in each step that was looked at closely."""

    name: str  # in ``Vitals.layers``
    title: str  # of a heat map
    sheet: str  # of a workbook


MEASURES = (
    WatchMeasure("grad", "gradient norm of each parameter", "Gradient norms"),
    WatchMeasure("weight", "norm of each parameter before the update", "Weight norms"),
    WatchMeasure("update", "size of each update, relative to its parameter", "Update sizes"),
)


class LayerStep(NamedTuple):
    """One measurement in one step, by the parameters' names."""

    step: int
    numbers: dict[str, float | None]


def layer_steps(run: Analysis, measure: WatchMeasure) -> tuple[list[str], list[LayerStep]]:
    """The names of all parameters, and their measurement in each step that has it."""
    names = list(dict.fromkeys(fact.name for setup in run.setups for fact in setup.parameters))
    of_steps = [vitals for vitals in run.vitals if measure.name in vitals.layers]
    return names, [
        LayerStep(vitals.step, _by_name(run.setups, vitals.step, vitals.layers[measure.name]))
        for vitals in of_steps
    ]


def _by_name(
    setups: Sequence[TrainingSetup], step: int, numbers: Sequence[Number | None]
) -> dict[str, float | None]:
    """A step's numbers by the parameters' names, from the setup valid at that step."""
    setup = [each for each in setups if each.step <= step][-1:] or setups[:1]
    names = [fact.name for each in setup for fact in each.parameters]
    return {
        name: None if number is None else float(number)
        for name, number in zip(names, numbers, strict=False)
    }
