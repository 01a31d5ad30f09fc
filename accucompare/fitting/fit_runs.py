"""Runs of a case with some modules in float32, each held against golden's outputs."""

from __future__ import annotations

import contextlib
import gc
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import torch
from torch import nn

from accucompare.bundle.format import Record, Role
from accucompare.bundle.reading import Bundle, open_bundle
from accucompare.compare.fits import FitOutput, FitRun, KeptPlaces, Switched
from accucompare.devices import explain
from accucompare.errors import CaptureError, DeviceError
from accucompare.fitting.kept_in_float32 import keep_in_float32
from accucompare.fitting.switches import Switch
from accucompare.numbers import Array
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session import (
    Built,
    Casting,
    WantedGradientsError,
    Within,
    build,
    moved,
    naming_the_model,
    recording,
)
from accucompare.recorder.state import NOTHING, run_step
from accucompare.selection import FloatType, RoundedType, Steps

_CPU = torch.device("cpu")
#: Inputs stay in float32 until the model's own door.
_AS_GOLDEN = Casting(None, FloatType.FLOAT32)


def gradients_of(bundle: Bundle) -> Array:
    """All gradients that the first update of step 0 is given, as one vector."""
    found = [
        (record.name, record.path, record)
        for record in bundle.records()
        if record.role is Role.PARAM_GRAD
        and (record.step, record.call) == (0, 0)
        and record.member is not None  # a parameter that nothing depends on has none
    ]
    parts = [
        bundle.values(record).reshape(-1) for _, _, record in sorted(found, key=itemgetter(0, 1))
    ]
    return np.concatenate(parts, dtype=np.float64) if parts else np.zeros(0)


def is_golden_output(record: Record, output: FitOutput) -> bool:
    found = record.name, record.call, record.path, record.step
    wanted = output.name, output.call, output.path, output.step
    return record.role is Role.OUTPUT and found == wanted


@dataclass
class FitRuns:
    """The runs of one case. Each builds it anew, so that one copy is in memory at a time.

    Attributes:
        target, device, seed: of the case.
        dtype: the lower type.
        rounded: what golden's weights were rounded to.
        steps: the steps to run.
        golden: the values that are right, by output.
        trains: whether the loss is sent backward, and the optimizer makes its update.
        check: looks at the model once, before the first run.
        switches: in force in every run.
        made: all runs, in order.
        grad: whether the forward asks for gradients itself, as one that returns forces.
    """

    target: str | None
    device: torch.device
    dtype: FloatType
    seed: int
    rounded: RoundedType | None
    steps: Steps
    golden: Mapping[FitOutput, Array]
    options: CaptureOptions
    check: Callable[[nn.Module], None]
    trains: bool = False
    switches: Sequence[Switch] = ()
    made: list[FitRun] = field(default_factory=list)
    name: str = ""
    grad: bool = False

    def built(self) -> Built:
        """The case in float32 with golden's weights, on the CPU; a training's on the device, where
        its optimizer holds them."""
        gc.collect()  # the model before, whose forwards refer to it
        place = self.device if self.trains else _CPU
        found = build(self.target, place, Casting(self.rounded, FloatType.FLOAT32), self.seed)
        if not self.name:
            self.check(found.model)
        self.name = found.name
        return found

    def on_device(self, model: nn.Module) -> nn.Module:
        try:
            return model.to(self.device)
        except RuntimeError as error:
            raise DeviceError(
                f"{self.name}: the model cannot be moved to {self.device}:"
                f" {explain(self.device.type, error)}"
            ) from error

    @contextlib.contextmanager
    def switched(self) -> Iterator[CaptureOptions]:
        """Within the context, the switches are in force; the options say the rest."""
        options = self.options
        with contextlib.ExitStack() as stack:
            for switch in self.switches:
                stack.enter_context(switch.context())
                if switch.what in (Switched.NO_HF32, Switched.NO_TF32):
                    options = replace(options, hf32=False, tf32=False)
            yield options

    def run(
        self, kept: KeptPlaces, flops: float, held: float, expected: float | None = None
    ) -> FitRun:
        """Run with these places in float32. A model that raises so is a run that failed.

        Args:
            flops, held: the shares of operations and of bytes that are kept.
            expected: the estimate of its error.
        """
        with tempfile.TemporaryDirectory(prefix="accucompare-fit-") as folder:
            try:
                try:
                    errors = self._errors(kept, Path(folder) / "run")
                except WantedGradientsError:
                    self.grad = True
                    errors = self._errors(kept, Path(folder) / "with-gradients")
                failed = ""
            except CaptureError as error:
                failed = str(error).partition("\n")[0]
                if not len(kept):  # the case itself does not run in this type
                    raise CaptureError(f"{failed}\n--debug shows the traceback") from error
                errors = []
            except KeyboardInterrupt:
                raise KeyboardInterrupt from None  # what it would name goes with the folder
        worst = max(errors, default=math.inf)
        told = tuple(switch.what for switch in self.switches)
        found = FitRun(kept, flops, held, worst, tuple(errors), expected, failed, told)
        self.made.append(found)
        return found

    def _errors(self, kept: KeptPlaces, out: Path) -> list[float]:
        built = self.built()
        inputs, training, loss = built.inputs, NOTHING, None
        if self.trains:
            training, loss = built.training, built.case.loss
        keep_in_float32(built.model, getattr(torch, self.dtype.value), kept.whole, kept.own)
        model = self.on_device(built.model)
        without = not self.trains and not self.grad
        within = Within(self.name, made={"dtype": self.dtype.value})
        with (
            self.switched() as options,
            naming_the_model(self.name, out, self.device.type, model, without),
            recording(model, out, options, training, device=self.device, within=within) as session,
        ):
            for step in range(self.steps.count):
                args, kwargs = moved(inputs[step % len(inputs)], self.device, _AS_GOLDEN)
                run_step(model, args, kwargs, loss, training, self.grad)
                session.step()
        del model, built, training
        with open_bundle(out) as bundle:
            return [self._error(bundle, output) for output in self.golden]

    def _error(self, bundle: Bundle, output: FitOutput) -> float:
        """The relative L2 error of one output; infinite if it is missing or not finite."""
        golden = self.golden[output]
        if output.update:
            values = gradients_of(bundle)
            return relative_l2(golden, values) if values.shape == golden.shape else math.inf
        for record in bundle.records():
            if is_golden_output(record, output):
                values = bundle.values(record)
                return relative_l2(golden, values) if values.shape == golden.shape else math.inf
        return math.inf


def relative_l2(golden: Array, values: Array) -> float:
    """‖values − golden‖ / ‖golden‖ in float64; infinite if that is no number.

    Where both have the same infinity or NaN, there is no difference."""
    exact, found = golden.astype(np.float64), values.astype(np.float64)
    same = (found == exact) | (np.isnan(found) & np.isnan(exact))
    with np.errstate(all="ignore"):
        error = float(np.linalg.norm(np.where(same, 0, found - exact).reshape(-1)))
    norm = norm_of_finite(exact)
    if error == 0:
        return 0.0
    ratio = error / norm if norm else math.inf
    return ratio if math.isfinite(ratio) else math.inf


def norm_of_finite(values: Array) -> float:
    """The L2 norm of what is finite."""
    return float(np.linalg.norm(values[np.isfinite(values)]))
