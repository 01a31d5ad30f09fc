"""What a case's model raises, as an error of the capture that names the module."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import nn

from accucompare.bundle.reading import open_bundle
from accucompare.bundle.writing import previous_of
from accucompare.devices import explain
from accucompare.errors import AccucompareError, CaptureError
from accucompare.live.modules import name_modules
from accucompare.places import Place


class ModuleFailedError(CaptureError):
    """The model raised in a module of this class, by name: each load of a case makes new ones."""

    def __init__(self, message: str, module: str) -> None:
        super().__init__(message)
        self.module = module


class WantedGradientsError(CaptureError):
    """The forward asked for gradients, but ran without."""


@contextlib.contextmanager
def naming_the_model(
    name: str, out: Place, device: str, model: nn.Module, without_gradients: bool
) -> Any:
    """Turn what the model raised into a CaptureError that names the module."""
    try:
        yield
    except AccucompareError:
        raise
    # a sys.exit(0) in the user's code is no success of the capture
    except (Exception, SystemExit) as error:
        stopped = _stopped(out)
        module, step = stopped.get("module"), stopped.get("step")
        what = (
            "the model raised while it was set up"
            if not stopped
            else f"the model raised in {module or '(root)'}, step {step}"
        )
        if stopped and module is None:
            what = f"the case raised outside of the model's forward, step {step}"
        hint = "; ".join([*_kept(out), "--debug shows the traceback"])
        message = f"{name}: {what}: {explain(device, error)}\n{hint[0].upper()}{hint[1:]}"
        if without_gradients and _wanted_gradients(error):
            raise WantedGradientsError(message) from error
        failing = name_modules(model).named.get(module or "")
        if failing is not None and module:
            raise ModuleFailedError(message, name_of(type(failing))) from error
        raise CaptureError(message) from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*_kept(out)) from None


@contextlib.contextmanager
def telling_exits() -> Iterator[None]:
    """Make a case's ``os._exit`` act like ``sys.exit``: its exit code, maybe 0, is not ours."""
    leave, process = os._exit, os.getpid()

    def leave_told(status: int) -> NoReturn:
        if os.getpid() != process:
            leave(status)
        # an exception would end the thread only
        if threading.current_thread() is not threading.main_thread():
            leave(status or 2)
        raise SystemExit(status)

    os._exit = leave_told
    try:
        yield
    finally:
        os._exit = leave


def _kept(out: Place) -> Iterator[str]:
    """Where a stopped capture's records are, and what it was to replace; nothing if none are."""
    with contextlib.suppress(AccucompareError), open_bundle(out) as bundle:
        if not bundle.complete:
            kept = previous_of(out)
            previous = "" if kept is None else f"; the bundle that it was to replace is in {kept}"
            yield f"what was recorded until then is in {out}, marked incomplete{previous}"


def _stopped(out: Place) -> dict[str, Any]:
    try:
        with open_bundle(out) as bundle:
            return bundle.manifest.stopped or {}
    except AccucompareError:
        return {}


def _wanted_gradients(error: BaseException) -> bool:
    """Whether a model failed because its forward asks for gradients, as force fields do."""
    place = error.__traceback__
    while place is not None:
        if place.tb_frame.f_code.co_filename == torch.autograd.__file__:
            return True
        place = place.tb_next
    return False


def name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
