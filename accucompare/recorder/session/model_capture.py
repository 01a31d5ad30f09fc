"""Capturing a model that exists already, with its device, weights, mode and type."""

from __future__ import annotations

import torch

from accucompare.case import Case, steps_of
from accucompare.errors import CaseError
from accucompare.live.around import device_of
from accucompare.places import Place, place_of
from accucompare.recorder.capture_options import DEFAULTS, CaptureOptions
from accucompare.recorder.session.capture_context import recording
from accucompare.recorder.session.case_capture import Casting, moved
from accucompare.recorder.session.start import Within
from accucompare.recorder.state import Training, run_step


def capture_model(case: Case, out: str | Place, options: CaptureOptions = DEFAULTS) -> Place:
    """Run an already built case once for each of its inputs, and record it.

    The model is not moved, cast or seeded, and gradients are on or off as the caller has them. The
    inputs are copied to the model's device. With an optimizer the weights are updated. Raises
    CaseError if there are no inputs, or an optimizer without a loss; CaptureError, UsageError as
    for ``accucompare.capture``. Errors of the model are passed on."""
    steps = [] if case.inputs is None else steps_of(case.inputs)
    if not steps:
        raise CaseError("the case has no inputs; give Case(model, inputs)")
    if case.optimizer is not None and case.loss is None:
        raise CaseError(
            "the case has an optimizer but no loss to send backward; give Case(…, loss=…)"
        )
    training = Training.of(case)
    within = Within(made={"loss": case.loss is not None, "case_steps": len(steps)})
    with recording(case.model, out, options, training, within=within) as session:
        device, as_they_are = device_of(case.model), Casting(None, None)
        for arguments in steps:
            args, kwargs = moved(arguments, device, as_they_are)
            run_step(case.model, args, kwargs, case.loss, training, grad=torch.is_grad_enabled())
            session.step()
    return place_of(out)
