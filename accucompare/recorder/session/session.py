"""A running capture: its steps, and what it writes at its end."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from accucompare.bundle.reading import bundle_html
from accucompare.bundle.writing import BundleWriter
from accucompare.devices import variables
from accucompare.errors import CaptureError
from accucompare.live.around import (
    digests_of,
    loaded_libraries,
    modules_in,
    notes_on_what_ran,
    variables_named,
    versions_of,
)
from accucompare.live.modules import NumbersKept
from accucompare.live.numerics import CompiledRegions, Numerics, eager_stance
from accucompare.live.operators import Draws
from accucompare.places import Place
from accucompare.recorder.recording import Recorder
from accucompare.recorder.session.start import Start, Subject
from accucompare.recorder.state import StateSaver, UnknownOptimizers
from accucompare.selection import Level

_LOGGER = logging.getLogger(__name__)


class Session:
    """A running capture, made by ``capture``.

    Attributes:
        path: the bundle's directory.
        step_number: of the step being recorded, from 0.
        regions: what runs as one; ``None`` if every module is seen.
    """

    def __init__(
        self,
        subject: Subject,
        start: Start,
        recorder: Recorder,
        writer: BundleWriter,
        numerics: Numerics,
        draws: Draws | None,
        saver: StateSaver | None,
        unknown: UnknownOptimizers | None,
    ) -> None:
        """
        Args:
            draws: ``None`` if random operations draw as without a capture.
            saver: of the training's state; ``None`` if that is not saved.
            unknown: optimizers that step but were not given; ``None`` if no state is kept.
        """
        self.path = writer.directory
        self._recorder = recorder
        self._writer = writer
        self._draws = draws
        self._steps = start.steps
        self._numerics = numerics
        self._subject = subject
        self._numbers = NumbersKept(subject.modules)
        self._eager = False  # compiled code was run eagerly
        self._stance = contextlib.ExitStack()
        self._start = start
        self._saver = saver
        self._unknown = unknown
        self.regions: CompiledRegions | None = None

    def _repr_html_(self) -> str:
        """What a notebook shows: the bundle as far as it is written."""
        manifest = self._writer.published
        return bundle_html(self.path, manifest, manifest.steps, manifest.complete)

    @property
    def step_number(self) -> int:
        return self._recorder.step

    def step(self) -> None:
        """End a step: its records become readable, and calls are numbered from 0 again.

        Raises:
            CaptureError: if recording failed, for example on a full disk.
        """
        failure = self._writer.failure or self._recorder.failure
        if failure is not None:
            raise failure
        recorder, steps = self._recorder, self._steps
        if steps is not None and recorder.step >= steps.count:
            recorder.idle()  # a step that is not recorded
            return
        if recorder.listening:
            self._numerics.end_step(recorder.step)
            series = recorder.end_step()
            self._note_unfed()
            self._writer.end_step(
                recorder.step, series=series, holds_records=recorder.holds_records
            )
        recorder.next_step()
        # also after steps that are not recorded: draws are numbered in all steps
        if self._draws is not None:
            self._draws.end_step()
        if self._saver is not None and recorder.step == self._start.first_recorded:
            self._saver.write(self._writer, recorder.step, self._draws)
        recorder.listening = steps is None or steps.has(recorder.step)

    def wake(self) -> None:
        """Put the hooks on, at first or after ``rest``. From now on compiled code runs eagerly.

        Not inside an optimizer's hook: PyTorch is then iterating over the hooks that this adds to.
        """
        # inner hooks of a compiled model stop firing after its first call
        if "torch._dynamo" in sys.modules:
            self._stance.enter_context(eager_stance())
            self._eager = True
        self._recorder.install(self._steps)

    def rest(self) -> None:
        """Take the hooks off until ``wake``, for unrecorded steps. Not inside a hook either."""
        self._recorder.remove()
        self._stance.close()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Do not record what runs meanwhile, such as an evaluation between two training steps."""
        listening, self._recorder.listening = self._recorder.listening, False
        try:
            with self._recorder.without_hooks():
                yield
        finally:
            self._recorder.listening = listening

    def _note_unknown_optimizers(self) -> None:
        """List as missing the state of optimizers that the saved or restored state lacks."""
        if self._unknown is None:
            return
        self._unknown.remove()
        capture = self._writer.manifest.capture
        for name in ("training_state", "started"):
            if capture[name] is not None:
                missing = msgspec.to_builtins(self._unknown.missing(capture[name]["step"]))
                capture[name] = {**capture[name], "missing": [*capture[name]["missing"], *missing]}

    def _note_unfed(self) -> None:
        if (feed := self._start.feed) is not None:
            capture = self._writer.manifest.capture
            capture["feed"] = {**capture["feed"], "not_fed": [*feed.not_fed]}

    def check_end(self, golden: str | Place | None) -> None:
        """Raise an error that the model has caught; refuse a feed in which nothing was fed."""
        recorder = self._recorder
        if recorder.failure is not None:
            raise recorder.failure
        if recorder.records:
            self._numerics.end_step(recorder.step)
        if (feed := self._start.feed) is not None:
            self._writer.manifest.notes += feed.notes()
            if not feed.fed:
                raise CaptureError(
                    f"{golden}: nothing of it was fed;"
                    f" {'; '.join(feed.notes()) or 'no module was called'}"
                )

    def end(self, error: BaseException | None) -> None:
        """Write the last step and the manifest."""
        recorder, manifest = self._recorder, self._writer.manifest
        closing = None if error is not None else recorder.closing
        manifest.capture["closing"] = closing
        series = recorder.end_step(failed=error is not None, last=closing is not None)
        manifest.capture.update(recorder.kept)
        manifest.capture["left"].update(self._numbers.left())
        manifest.mesh = self._subject.mesh
        manifest.model["not_called"] = recorder.not_called()
        optimizer = (manifest.capture.get("optimizer") or "").rpartition(".")[0]
        ran = {
            *manifest.model["sources"],
            *modules_in(recorder.functions.files),
            *self._start.sources,
            optimizer,
        } - {""}
        manifest.model["sources"] = digests_of(ran)
        manifest.model["differentiates"] = torch.autograd.__file__ in recorder.functions.files
        manifest.capture["backward"] = recorder.backwards > 0
        if self.regions is not None:
            manifest.capture["compiled"] = msgspec.to_builtins(self.regions.facts())
        if recorder.without_call_grads:
            manifest.capture["call_grads"] = False
        manifest.model["functions_seen"] = not recorder.functions.disturbed
        manifest.environment["versions"] = {**manifest.environment["versions"], **versions_of(ran)}
        manifest.environment["variables"] = variables(os.environ, variables_named(ran))
        manifest.environment["libraries"] = loaded_libraries()
        manifest.environment["random"] = (
            "drawn on the device" if self._draws is None else "drawn on the CPU"
        )
        if self._draws is not None:
            manifest.capture["unplaced_draws"] = self._draws.unplaced
            manifest.notes += [
                f"{name} drew its random numbers on the device"
                for name in sorted(self._draws.unmatched)
            ]
        self._note_unknown_optimizers()
        self._note_unfed()
        manifest.notes += self._numerics.notes()
        manifest.notes += recorder.training_notes()
        eagerly = (
            self._eager
            and recorder.functions.compiled
            and not (self.regions is not None and self.regions.run_all_own)
        )
        manifest.capture["eager"] = eagerly
        of_modules = manifest.capture["level"] == Level.MODULE and recorder.holds_records
        manifest.notes += notes_on_what_ran(
            self._subject.modules, eagerly, recorder.called if of_modules else ()
        )
        if recorder.errors:
            manifest.notes += [f"recording failed: {failure}" for failure in recorder.errors[:100]]
        if recorder.records or series is not None:
            partial = error is not None or recorder.open_call() is not None
            self._writer.end_step(recorder.step, partial, series, recorder.holds_records)
        self._writer.close(self._stopped(error), hurry=isinstance(error, KeyboardInterrupt))
        if recorder.errors:
            count, first = len(recorder.errors), recorder.errors[0]
            _LOGGER.warning(
                "could not record %d module call(s), so %s is incomplete; the first: %s",
                count,
                self.path,
                first,
            )
        _LOGGER.debug("captured %d step(s) in %s", len(self._writer.published.steps), self.path)

    def _stopped(self, error: BaseException | None) -> dict[str, Any] | None:
        """Where and why the capture ended early; ``None`` if it did not."""
        recorder = self._recorder
        if error is not None:
            stopped = isinstance(error, KeyboardInterrupt)
            reason = "interrupted" if stopped else f"{type(error).__name__}: {error}"
            return {"step": recorder.step, "module": recorder.failing_call(), "error": reason}
        if (module := recorder.open_call()) is not None:
            return {
                "step": recorder.step,
                "module": module,
                "error": "the process ended inside of the forward",
            }
        if recorder.errors:
            return {
                "error": (
                    f"{len(recorder.errors)} module call(s) could not be recorded; the first:"
                    f" {recorder.errors[0]}"
                )
            }
        return None
