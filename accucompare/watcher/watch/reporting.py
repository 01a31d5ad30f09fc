"""Reporting findings: explained, in the log, on the terminal, with a reproducer, as an error."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch
from msgspec.structs import replace

from accucompare.errors import AccucompareError, NonFiniteError, NonFiniteWarning
from accucompare.findings.log import (
    Direction,
    Finding,
    Frames,
    Log,
    Site,
    WatchStart,
    frames_of,
    remark,
)
from accucompare.live.around import any_has
from accucompare.report.watch_words import answer
from accucompare.reproduce import Snapshot, save_reproducer
from accucompare.selection import OnFinding
from accucompare.watcher.again import Explainer
from accucompare.watcher.looking import Watcher
from accucompare.watcher.watch.step_findings import StepFindings
from accucompare.watcher.watch_options import WatchOptions


@dataclass(eq=False)
class Reporter:
    """Reports each finding of a watch once; ``findings`` has all, in execution order."""

    path: Path
    start: WatchStart
    options: WatchOptions
    log: Log
    watcher: Watcher
    found: StepFindings
    explainer: Explainer
    findings: list[Finding] = field(default_factory=list)
    #: By id, this step's reported findings, before and after they were explained.
    _reported: dict[int, Finding] = field(default_factory=dict)
    _reported_places: set[str] = field(default_factory=set)  # places that were reported in any step
    #: The step in which another rank spoilt gradients that updated parameters.
    _others: int | None = None
    #: The last step in which parameters were updated in spite of a finding.
    _spoilt_update: int | None = None
    _reproduced: bool = False

    def next_step(self) -> None:
        self._reported.clear()

    def has_reported(self, finding: Finding) -> bool:
        """Whether a finding of this step was reported, explained or not."""
        return id(finding) in self._reported

    def spoilt_by_others(self, step: int) -> None:
        """Another rank has spoilt this step's gradients: later effects did not begin here."""
        self._others = step if self._others is None else self._others

    @property
    def is_spoilt_by_others(self) -> bool:
        return self._others is not None

    def report(
        self, scale: float | None, updated: bool, forward_only: bool, may_raise: bool
    ) -> NonFiniteError | None:
        """Explain, log and report this step's new findings. Returns what is to be raised, if
        anything.

        Args:
            forward_only: leave the backward's findings to the loss scaler.
            may_raise: whether the error, if any, will be raised.
        """
        new = [finding for finding in self.found.findings if id(finding) not in self._reported]
        if forward_only:
            new = [finding for finding in new if finding.direction is Direction.FORWARD]
        self._reported |= {id(finding): finding for finding in new}
        judged, new = new, [self._passed_on_of_others(finding) for finding in new]
        origins = [finding for finding in new if finding.origin]
        frames = self._frames_until(origins[0]) if origins and not self._reported_places else None
        new = [self._explained(finding) if finding.origin else finding for finding in new]
        self._reported |= {id(finding): finding for finding in new}
        self.found.settle(list(zip(judged, new, strict=True)))
        origins = [finding for finding in new if finding.origin]
        if origins and updated:
            self._spoilt_update = self.watcher.step
        self.findings += new
        if frames is not None:
            self.log.write(frames)
        for finding in new:
            self.log.write(finding)
        if not origins:
            return None
        first = origins[0]
        message = answer(first, self.start, self.path, scale)
        again = first.place in self._reported_places
        self._reported_places |= {finding.place for finding in origins}
        raises = self.options.on_finding == OnFinding.RAISE and may_raise
        if frames is not None and not self.options.quiet:
            from accucompare.report.watched import print_finding

            print_finding(first, self.start, frames, self.path, scale=scale, with_answer=not raises)
        elif not again and not raises and not self.options.quiet:
            warnings.warn(f"accucompare: {message}", NonFiniteWarning, stacklevel=4)
        return NonFiniteError(message, first) if raises else None

    def _passed_on_of_others(self, finding: Finding) -> Finding:
        """What follows from gradients that another rank spoilt did not begin here."""
        if self._others is None or not finding.origin:
            return finding
        return finding.passing_on(remark("updated-by-others", step=self._others))

    def _passed_on_of_update(self, finding: Finding) -> Finding:
        """Nor did weights that an earlier finding's update spoilt."""
        if (
            self._spoilt_update is None
            or self._spoilt_update >= finding.step
            or finding.site is not Site.WEIGHTS
        ):
            return finding
        return finding.passing_on(remark("updated-in-spite", step=self._spoilt_update))

    def _explained(self, finding: Finding) -> Finding:
        with self.watcher.paused():
            finding = self._with_reproducer(*self.explainer.explain(finding, self.watcher.notes))
        return self._passed_on_of_update(finding)

    def _with_reproducer(self, finding: Finding, snapshot: Snapshot | None) -> Finding:
        if snapshot is None or self.options.on_finding == OnFinding.WARN or self._reproduced:
            return finding
        self._reproduced = True
        try:
            script = save_reproducer(
                self.path / f"rank{self.start.rank}-step{finding.step}",
                finding,
                snapshot,
                self.options.case,
            )
        except AccucompareError as error:
            return finding.noting(remark("reproducer-not-written", error=str(error)))
        notes = [*finding.reproducer_notes, *script.notes]
        return replace(
            finding,
            reproducer=script.path.relative_to(self.path).as_posix(),
            reproducer_notes=notes,
        )

    def _frames_until(self, finding: Finding) -> Frames | None:
        if not self.options.frames:
            return None
        observations = (note.observation() for note in self.watcher.notes)
        return Frames(finding.step, frames_of(observations, finding.order)[-self.options.frames :])

    def error_of_others(
        self, device: torch.device, known: bool = False, own: bool = False
    ) -> NonFiniteError | None:
        """The error to raise because another rank has found something, so that none updates and
        then waits for a stopped one.

        Args:
            known: known without asking: finite gradients here are not finite after the sum over
                ranks.
            own: whether this rank raises anyway, and only the others need to know.
        """
        if self.start.ranks == 1 or self.options.on_finding != OnFinding.RAISE:
            return None
        asked = self.options.agree and any_has(known or own, device)
        if own or not (known or asked):
            return None
        found = self.found.add_of_others()
        finding = self._with_reproducer(*self.explainer.part_of_this_rank(found))
        self.found.settle([(found, finding)])
        self._reported[id(finding)] = finding
        self.findings.append(finding)
        self.log.write(finding)
        return NonFiniteError(answer(finding, self.start, self.path), finding)

    def trace(self) -> None:
        """Log and show all calls of the step, if that was asked for."""
        if self.watcher.step not in self.options.trace_steps:
            return
        frames = Frames(
            self.watcher.step,
            frames_of(note.observation() for note in self.watcher.notes),
            traced=True,
        )
        self.log.write(frames)
        if not self.options.quiet:
            from accucompare.report.watched import print_frames

            print_frames(frames)
