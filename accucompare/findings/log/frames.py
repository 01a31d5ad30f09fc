"""The table of the last calls of a step. Without torch.

A watch keeps all that it saw in a step, and ``watcher.watch.reporting`` shows the last calls."""

from __future__ import annotations

from collections.abc import Iterable

from accucompare.findings.log.events import Direction, Frame
from accucompare.findings.log.observations import StepObservation, What


def frames_of(observations: Iterable[StepObservation], until: int | None = None) -> list[Frame]:
    """A frame for each ended module call and each operator's gradient, in the order in which they
    ended. ``until``: the last place in the step; a call still running there is shown as far as it
    has come."""
    running: dict[tuple[str, int], StepObservation] = {}
    frames = []
    for each in observations:
        if until is not None and each.order > until:
            break
        if each.what is What.BEGAN:
            running[each.place.key] = each
        elif each.what is What.ENDED:
            began = running.pop(each.place.key, None)
            frames.append(_frame(each, began))
        elif (each.what is What.GRADIENT and each.tensors) or each.order == until:
            frames.append(_frame(each, None))
    if until is not None and (not frames or frames[-1].order != until):
        frames += [_frame(began, began) for began in running.values() if began.order == until]
    return frames


def _frame(each: StepObservation, began: StepObservation | None) -> Frame:
    given = [] if began is None else began.tensors
    return Frame(
        each.order,
        each.place.name,
        each.place.call,
        each.place.type,
        Direction.BACKWARD
        if each.what in (What.GRADIENT, What.ARRIVED, What.PARAMETER)
        else Direction.FORWARD,
        each.operator or each.parameter_name or each.near,
        [*given, *(each.tensors if each is not began else [])],
    )
