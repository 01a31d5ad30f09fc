"""A running watch: what each step does with what was seen."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from accucompare import devices
from accucompare.errors import NonFiniteError, WatchEndedError
from accucompare.findings.log import (
    Alert,
    AlertKind,
    Direction,
    End,
    Ending,
    Finding,
    Log,
    Number,
    WatchLimits,
    WatchRemark,
    WatchStart,
    What,
    log_path,
    remark,
)
from accucompare.live.autograd import stepped_by
from accucompare.live.modules import Modules, points
from accucompare.recorder.state import CallArguments
from accucompare.report.watch_words import said
from accucompare.selection import Level
from accucompare.text import uncoloured
from accucompare.watcher.again import Contexts, Explainer
from accucompare.watcher.looking import Meter, Scope
from accucompare.watcher.vitals import VitalSigns
from accucompare.watcher.watch.early_warnings import EarlyWarnings
from accucompare.watcher.watch.legal import Legal
from accucompare.watcher.watch.loss_scale import LossScale
from accucompare.watcher.watch.pausing import Pausing
from accucompare.watcher.watch.reporting import Reporter
from accucompare.watcher.watch.step_findings import StepFindings
from accucompare.watcher.watch.step_watcher import StepWatcher
from accucompare.watcher.watch_options import WatchOptions

#: From so many outermost calls per step on, flags are read early, and clean calls are forgotten.
_READ_EARLY = 4
#: Observations kept of a step without an end, before they are dropped if nothing was found.
_MOST_NOTED = 100_000
#: Look for underflow in every n-th watched step.
_UNDERFLOW_EVERY = 10


class Watch:
    """A running watch. Made by ``accucompare.watch``.

    Attributes:
        path: the directory of the log and of reproducers.
        grad_norms: per step with a backward, the L2 norm of all gradients (this rank's part, if
            sharded), before clipping and without the loss scale.
    """

    def __init__(
        self,
        modules: Modules,
        device: torch.device,
        out: Path,
        start: WatchStart,
        options: WatchOptions,
        pausing: Pausing | None = None,
    ) -> None:
        """``pausing``: saves the state of a run whose loss is not finite, if asked to."""
        self.path = out
        self.grad_norms: list[float] = []
        self._options = options
        self._start = start
        self._device = device
        self._backend = devices.backend(device.type)
        fills: set[tuple[str, str]] = set()
        limits = WatchLimits(
            options.allows, start.saturates, options.near, lambda name, kind: (name, kind) in fills
        )
        flag = self._device_flag if options.flag_per_module and start.saturates else None
        self._watcher = StepWatcher(modules, Meter(), flag, distributed=start.ranks > 1)
        self._pausing = self._watcher.pausing = pausing
        self._watcher.make_room = self._make_room
        self._watcher.gradients.lines.always = options.level == Level.OP
        self._vitals = self._watcher.vitals = VitalSigns(
            modules, self._watcher, options.optimizers, options.schedulers, options.checks_every
        )
        self._found = StepFindings(self._watcher, limits, start.ranks)
        self._found.scaled = options.loop.scaler is not None
        self._contexts = self._watcher.contexts = Contexts(modules, device, start.ranks)
        self._explainer = Explainer(modules, self._contexts, limits)
        self._log = Log(log_path(out, start.rank))
        self._reporter = Reporter(
            out, start, options, self._log, self._watcher, self._found, self._explainer
        )
        self._legal = Legal(
            fills, self._watcher, self._found, self._explainer, self._reporter, self._vitals
        )
        self._warnings = EarlyWarnings(self._log, options.near, options.allows, options.quiet)
        self._scale = LossScale(options.loop.scaler)
        self._flag: bool | None = None  # the device's overflow flag in this step
        self._asked = False  # whether the loop has asked in this step about overflow
        # by id, how often each optimizer began an update in this step
        self._updated: Counter[int] = Counter()
        self._backwards = 0
        self._watched_steps = 0
        self._written = False  # whether this step is in the log
        self._ended = False
        self._bad_at_first: set[str] = set()  # parameters that were not finite when the watch began
        self.dump: contextlib.ExitStack | None = None  # of kernels; ends with the first step
        self._log.write(start)

    @property
    def scales(self) -> list[float]:
        """The loss scale after each step, if there is a scaler."""
        return self._scale.scales

    @property
    def findings(self) -> list[Finding]:
        """All findings in execution order: origins, and calls that passed on what began there."""
        return self._reporter.findings

    @property
    def log_failure(self) -> str | None:
        """Why the log ends early, as on a full disk, and what to do; ``None`` if it does not."""
        return self._log.failure

    @property
    def step_number(self) -> int:
        """The number of the watched step, from 0."""
        return self._watcher.step

    @property
    def overflowed(self) -> bool:
        """Whether a gradient of this step is not finite, or the device's overflow flag went up in
        it.

        Ask between the backward and the update, and skip the update, as a loss scaler does: bad
        gradients are then no finding. It waits for the device."""
        self._asked = True
        self._read()
        backward = any(finding.direction is Direction.BACKWARD for finding in self._found.findings)
        return (
            bool(self._flag)
            or backward
            or not all(norm.finite for norm in self._watcher.gradients.norms.values())
        )

    def step(self, loss: Any = None) -> None:
        """End a step: read what was looked at, and report findings.

        Args:
            loss: of the step, a number or a tensor of one element, for the log. A loss computed
                outside of the model is seen no other way, and may be NaN although every gradient is
                finite.

        Raises:
            NonFiniteError: if something was found, with ``on_finding="raise"``.
            WatchEndedError: after the step that ``abort_after_step`` names.
        """
        if self._ended:
            return
        step = self._watcher.step
        if self._watcher.listening:
            self._end_watched_step(
                None
                if loss is None
                else float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
            )
        self._next_step()
        if self._options.abort_after_step is not None and step >= self._options.abort_after_step:
            self._check_parameters(step)
            self._end(Ending.STOPPED, remark("stopped-as-asked", step=step))
            raise WatchEndedError(
                f"the watch ends after step {step}, as asked (abort_after_step); its log is"
                f" {self._log.path}"
            )

    def say(self, text: WatchRemark) -> None:
        self._log.write(Alert(AlertKind.NOTE, text, self._watcher.step))

    def begin_with(self, step: int) -> None:
        """The next step has this number: the run continues from a saved state."""
        self._watcher.step = step
        self._set_scope()

    def is_given(self, inputs: list[CallArguments]) -> None:
        """The inputs of the run, one entry per step, for a saved state."""
        if self._pausing is not None:
            self._pausing.inputs = inputs

    def reuses(self, inputs: int) -> None:
        """The loop reuses so many inputs on purpose: their return is no fault."""
        self._vitals.cycle = inputs

    def scaled_by(self, scaler: Any) -> None:
        """The scaler of this step's losses, or ``None``; known before its update."""
        self._found.scaled = scaler is not None
        self._scale.set_scaler(scaler)

    def _make_room(self) -> None:
        """An outermost call begins: keep no more of those before it than is needed."""
        if len(self._watcher.notes) > _MOST_NOTED:
            self._forget()
        kept = self._contexts.kept
        if len(kept) >= _READ_EARLY:
            self._read()
            if not self._found.findings:
                # whose backward is to come
                kept[:] = [each for each in kept if each.grad_enabled and not each.grads]

    def _forget(self) -> None:
        """Drop what was seen in a step without an end, if nothing was found in it."""
        self._read()
        if not self._found.findings:
            self._watcher.forget()
            self._found.next_step()
            self._contexts.kept.clear()
            self._warnings.warn(AlertKind.NOTE, remark("step-without-end"), self._watcher.step)

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Meanwhile watch nothing, without hooks; for use between two calls of the model."""
        return self._watcher.without_hooks()

    def _device_flag(self) -> bool:
        return bool(self._backend.overflowed(self._device))

    def _read(self) -> None:
        if not self._watcher.listening:
            return
        with self._watcher.paused():
            self._found.refresh()
            self._legal.leave_out(saturates=self._start.saturates)
            if self._start.saturates:
                flagged = any(note.what is What.FLAG for note in self._watcher.notes)
                self._flag = bool(self._flag) or flagged or self._device_flag()

    def before_update(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The optimizer is about to change the parameters: the last moment to run a step again.

        Returns:
            ``None``; or, for a closure that computes the gradients, the arguments with a checked
            closure.
        """
        if self._ended or not self._watcher.listening:
            return None
        ours = {id(parameter.tensor) for parameter in self._watcher.gradients.parameters}
        if not ours & stepped_by(optimizer).keys():
            return None
        self._updated[id(optimizer)] += 1
        if self._updated[id(optimizer)] == 2:
            self._warnings.warn(AlertKind.NOTE, remark("several-updates"), self._watcher.step)
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if callable(closure):

            def checked() -> Any:
                loss = closure()
                if not self._ended and self._watcher.listening:
                    self._check(optimizer)
                return loss

            return (args[0], *args[2:]), {**kwargs, "closure": checked}
        self._check(optimizer)
        return None

    def _check(self, optimizer: Any) -> None:
        # otherwise the loss scaler has set it, and the optimizer skips the update itself
        if getattr(optimizer, "found_inf", None) is None:
            with self._watcher.paused():
                self._watcher.gradients.look_again(stepped_by(optimizer).values())
        self._vitals.before_update(optimizer)
        self._read()
        # a second optimizer comes after the first one's update
        if self._pausing is not None and len(self._updated) == 1:
            with self._watcher.paused():
                self._pausing.look(self._vitals.losses, self._watcher.step)
        self._found.add_loss(self._bad_loss())
        # with a loss scale, a fused optimizer skips a bad update itself
        error = self._report(forward_only=self._scale.last is not None)
        gradients = self._watcher.gradients
        spoilt = not all(
            norm.finite for norm in (*gradients.norms.values(), *gradients.late.values())
        )
        others = self._reporter.error_of_others(
            self._device, self._scale.last is None and spoilt, own=error is not None
        )
        if error or others:
            self._write_step()
        self._end_by(error or others)

    def _bad_loss(self) -> float | None:
        """A loss of this step that is not finite, and not because of a loss scale."""
        if self._scale.last is None:
            return next((loss for loss in self._vitals.losses if not math.isfinite(loss)), None)
        return None

    def _end_watched_step(self, loss: float | None) -> None:
        self._vitals.end_step()
        self._read()
        step = self._watcher.step
        # before the end of the step forgets them
        losses = [*self._vitals.losses, *([] if loss is None else [loss])]
        self._found.add_loss(self._bad_loss() if loss is None else loss)
        self._look_out()
        self._reporter.trace()
        by_hand = self._asked and not self._updated and bool(self._found.findings or self._flag)
        where = next((finding.place for finding in self._found.origins), "")
        scaled = self._scale.end_step(step, by_hand, where)
        handled = scaled is not None and scaled.skipped and not scaled.alarm
        error = self._report(forward_only=handled)
        others = (
            self._reporter.error_of_others(self._device, own=error is not None)
            if not self._updated
            else None
        )
        if scaled is not None:
            self._log.write(scaled)
            if scaled.alarm:
                self._warnings.log(step, scaled.text)
        self._write_step(handled, loss)
        self._end_by(error or others)
        if self._pausing is not None and self._pausing.end_step(losses, step, bool(self._updated)):
            self._pause(self._pausing)

    def _pause(self, pausing: Pausing) -> None:
        step = self._watcher.step
        state = str(pausing.state or "")
        saved = remark("state-saved", state=state) if state else remark("no-state-saved")
        self._end(Ending.PAUSED, remark("paused", step=step, saved=saved), state=state)
        cure = f"; go on from there with like={state!r} (--like {state})" if state else ""
        raise WatchEndedError(
            f"the loss was NaN or Inf in {self._options.pause_after} steps running, up to step"
            f" {step}; {said(saved)}{cure}"
        )

    def _write_step(self, handled: bool = False, loss: float | None = None) -> None:
        """The step's line in the log; ``handled``: somebody handled the backward's overflow."""
        self._written = True
        self._backwards += self._watcher.gradients.backwards
        self._watched_steps += bool(self._watcher.notes)
        if not self._watcher.notes:
            self._warnings.warn(AlertKind.NOTE, remark("no-call-seen"), self._watcher.step)
        norms = {
            name: norm.low / (self._scale.at_begin or 1.0)
            for name, norm in self._watcher.gradients.norms.items()
        }
        total = math.hypot(*norms.values()) if norms else None
        if total is not None:
            self.grad_norms.append(total)
        for event in self._vitals.events(self._scale.at_begin):
            self._log.write(event)
        self._log.write(
            self._found.event(
                norms, loss, scale=self._scale.last, overflowed=self._flag, skipped=handled
            )
        )

    def _next_step(self) -> None:
        if self.dump is not None:
            self.dump.close()
            self.dump = None
        self._found.next_step()
        self._written = False
        self._reporter.next_step()
        self._legal.next_step()
        self._updated.clear()
        self._flag, self._asked = None, False
        self._watcher.next_step()
        idle = self._watcher.step % self._options.every != 0
        if idle and self._watcher.listening:
            self._watcher.remove()
            self._vitals.remove()
        elif not idle and not self._watcher.listening:
            self._watcher.install()
            self._vitals.install()
        self._set_scope()
        if self._pausing is not None:
            self._pausing.begin_step()

    def _set_scope(self) -> None:
        """Choose what is looked at in the step that begins."""
        step, options = self._watcher.step, self._options
        self._watcher.scope = Scope(
            frames=options.frames > 0 or step in options.trace_steps,
            underflow=(step // options.every) % _UNDERFLOW_EVERY == 0,
            operators=options.level == Level.OP,
        )
        self._scale.begin_step(self._watcher.listening)
        if self._start.saturates and self._watcher.listening:
            self._device_flag()  # overflow in between is not this step's

    def _report(self, forward_only: bool = False, may_raise: bool = True) -> NonFiniteError | None:
        return self._reporter.report(
            self._scale.at_begin, bool(self._updated), forward_only, may_raise
        )

    def _look_out(self) -> None:
        step, masked = self._watcher.step, self._found.masked
        self._warnings.look(self._watcher.notes, step, scaled=self._scale.at_begin is not None)
        self._warnings.look_at_harmless(masked, self._legal.harmless)
        if self._flag and not self._found.findings:
            self._warnings.warn(AlertKind.FLAG, remark("flag-unexplained"), step)
        if (
            self._start.ranks > 1
            and not self._found.findings
            and self._warnings.look_at_sums(self._watcher.gradients.norms, step)
        ):
            self._reporter.spoilt_by_others(step)

    def begin(self) -> None:
        self._bad_at_first = {parameter.name for parameter, _ in self._found.bad_parameters()}
        self._watcher.install()
        self._vitals.install()
        points.active.append(self._watcher)
        self._set_scope()
        if self._pausing is not None:
            self._pausing.begin_step()

    def finish(self) -> None:
        """The loop is over. What came after the last ``step()`` is a step, unless it only
        evaluates."""
        trains = (
            self._updated
            or self._watcher.gradients.backwards > 0
            or self._watcher.trained_calls > 0
        )
        if self._watcher.notes and self._backwards and not trains:
            self._read()
            error = self._report()
            if self._found.findings:
                self._write_step()
            self._end_by(error)
        elif self._watcher.notes:
            self.step()
        self._check_parameters(max(0, self._watcher.step - 1))
        self._end(Ending.FINISHED)

    def _check_parameters(self, step: int) -> None:
        """Check the parameters after the last update, which no forward will show."""
        if self._ended or self.findings or self._reporter.is_spoilt_by_others:
            return
        bad = [
            (parameter, extrema)
            for parameter, extrema in self._found.bad_parameters()
            if parameter.name not in self._bad_at_first
        ]
        if bad:
            self._found.add_update(bad, step)
            self._end_by(self._report())

    def fail(self, error: BaseException) -> None:
        """The loop has raised: report what was found until then, and end."""
        if not self._ended:
            with contextlib.suppress(Exception):  # the loop's own error matters more
                self._read()
                self._report(may_raise=False)
                if self._found.findings:
                    self._write_step()
                elif self._watcher.notes and not isinstance(error, KeyboardInterrupt):
                    for event in self._vitals.events(self._scale.at_begin, died=True):
                        self._log.write(event)
        if isinstance(error, KeyboardInterrupt):
            self._end(Ending.INTERRUPTED)
        else:
            name = type(error).__name__
            what = [name, *uncoloured(str(error)).strip().splitlines()[:1]]
            self._end(Ending.FAILED, ": ".join(what), error=name)

    def _end_by(self, error: NonFiniteError | None) -> None:
        if error is not None:
            self._end(Ending.FINDING)
            raise error

    def _end(
        self, ending: Ending, reason: WatchRemark | str = "", state: str = "", error: str = ""
    ) -> None:
        if self._ended:
            return
        self._ended = True
        self._vitals.remove()
        self._watcher.remove()
        if self._watcher in points.active:
            points.active.remove(self._watcher)
        for failure in self._watcher.errors[:20]:
            self.say(remark("not-looked-at", failure=failure))
        if (
            self._options.optimizers
            and self._watcher.trainings
            and self._watched_steps
            and not self._backwards
        ):
            self._warnings.warn(AlertKind.NOTE, remark("no-backward-reached"), self._watcher.step)
        weights: list[Number | None] = []
        # a failed device may raise; the loop's own error matters more
        with contextlib.suppress(Exception):
            weights = self._vitals.final_weights()
        self._log.write(
            End(
                self._watcher.step + self._written,  # the step in hand counts, once it is written
                self._watched_steps,
                reason or ending.value,
                ending,
                weights,
                state,
                error,
            )
        )
        self._log.close()
