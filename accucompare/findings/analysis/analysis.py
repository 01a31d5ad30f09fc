"""What a watch wrote: one run's analysis, its loss scale's history, and the analysis of all ranks
together. Without torch."""

from __future__ import annotations

import math
import os
import re
import statistics
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from accucompare.errors import UsageError
from accucompare.findings.log import (
    Alert,
    End,
    Event,
    Finding,
    Frames,
    ScaleChange,
    Step,
    TrainingSetup,
    Vitals,
    WatchRemark,
    WatchStart,
    read_log,
    remark,
)


class Scaling:
    """What a loss scaler has done.

    A scaler starts too large and halves its scale until gradients fit; now and then it tries a
    larger one. So single skipped steps are normal, but many in a row, or a scale of 1, are not."""

    def __init__(self, scale: float | None) -> None:
        self.scale = scale  # after the last step; ``None`` without a scaler
        self.in_a_row = 0  # how many steps in a row were skipped
        # whether an update went through, so that the first scale is found; from 2**32 on, that
        # takes many steps
        self.found = False

    def end_step(
        self, step: int, scale: float | None, skipped: bool, where: str
    ) -> ScaleChange | None:
        """End a step; returns what to write down, if anything happened. ``where``: what is known of
        where gradients overflowed; may be empty."""
        before, self.scale = self.scale, scale
        self.in_a_row = self.in_a_row + 1 if skipped else 0
        self.found = self.found or not skipped or scale is None
        if not skipped and before == scale:
            return None
        lowest = skipped and scale is not None and scale <= 1
        alarm = lowest or (self.found and self.in_a_row >= MANY_IN_A_ROW)
        change = (
            None
            if scale is None or before == scale
            else remark("scale-went", before=before, after=scale)
        )
        if not skipped:
            return ScaleChange(step, scale or 0.0, False, 0, False, change or "")
        verdict = remark(
            "skip-normal" if not alarm else "scale-down-to-1" if lowest else "skipped-in-a-row",
            count=self.in_a_row,
        )
        text = remark("gradients-overflowed", where=where, change=change, verdict=verdict)
        return ScaleChange(step, scale or 0.0, True, self.in_a_row, alarm, text)


#: So many skipped steps in a row are an alarm: the loss scale was halved as often.
MANY_IN_A_ROW = 8
#: A grad_norm of so many times the median before it has jumped.
JUMP = 10.0
_BEFORE = 10  # norms in that median; there is none of fewer than _FEWEST
_FEWEST = 3


class Trail(NamedTuple):
    """An origin with the findings that passed it on; ``None`` if the log names no origin."""

    run: Analysis
    origin: Finding | None
    passed: list[Finding]

    @property
    def first(self) -> Finding:
        return self.origin or self.passed[0]


class Jump(NamedTuple):
    """A step in which grad_norm jumped: to what, and from which median of the steps before."""

    step: Step
    before: float


@dataclass(frozen=True, eq=False)
class Analysis:
    """One rank's run."""

    start: WatchStart
    findings: list[Finding]  # in execution order: by step, then by their place in it
    # warnings, frames, scaled, steps: as they were written
    warnings: list[Alert]
    frames: list[Frames]
    scaled: list[ScaleChange]
    steps: list[Step]
    end: End | None  # ``None`` if the process was killed, or the run is not over
    path: Path | None = None  # the log, if it was read from one
    # setups, vitals: what the checklist judges by
    setups: list[TrainingSetup] = field(default_factory=list)
    vitals: list[Vitals] = field(default_factory=list)
    earlier: Analysis | None = None  # the run before this one in the same log

    @cached_property
    def origins(self) -> list[Finding]:
        """The findings that began where they were found."""
        return [finding for finding in self.findings if finding.origin]

    @cached_property
    def trails(self) -> list[Trail]:
        """Each origin with the findings after it that only passed something on."""
        trails: list[Trail] = []
        for finding in self.findings:
            if finding.origin:
                trails.append(Trail(self, finding, []))
            elif trails and trails[-1].first.step == finding.step:
                trails[-1].passed.append(finding)
            else:
                trails.append(Trail(self, None, [finding]))
        return trails

    @cached_property
    def jumps(self) -> list[Jump]:
        """The steps in which grad_norm jumped: to ten times the median before, or to NaN or Inf."""
        jumps: list[Jump] = []
        before: list[float] = []
        was_finite = True
        skipped = {scaled.step for scaled in self.scaled if scaled.skipped}
        for step in self.steps:
            if step.grad_norm is None or step.step in skipped:
                continue
            norm = float(step.grad_norm)
            usual = statistics.median(before[-_BEFORE:]) if len(before) >= _FEWEST else math.inf
            if (norm > JUMP * usual) if math.isfinite(norm) else was_finite:
                jumps.append(Jump(step, usual if math.isfinite(usual) else math.nan))
            was_finite = math.isfinite(norm)
            if was_finite:
                before.append(norm)
        return jumps

    @cached_property
    def alarms(self) -> list[ScaleChange]:
        """Abnormal changes of the loss scale: many skipped steps in a row, or a scale of 1."""
        return [each for each in self.scaled if each.alarm or (each.skipped and each.scale <= 1)]

    @cached_property
    def unexplained(self) -> list[Step]:
        """Steps with something wrong but no finding, such as an overflow flag; none was skipped."""
        explained = {finding.step for finding in self.findings}
        wrong = [
            step for step in self.steps if (step.overflowed or not step.finite) and not step.skipped
        ]
        return [step for step in wrong if step.step not in explained]

    @cached_property
    def last_step(self) -> int:
        """The last step in the log; -1 if there is none."""
        return max(
            [step.step for step in self.steps[-1:]]
            + [finding.step for finding in self.findings[-1:]],
            default=-1,
        )

    @property
    def ending(self) -> WatchRemark:
        if self.end is None:
            return remark("no-end")
        steps, watched = self.end.steps, self.end.watched
        if watched == steps:
            return remark("ended-all-watched", steps=steps, reason=self.end.reason)
        return remark("ended", steps=steps, watched=watched, reason=self.end.reason)

    def scale_at(self, step: int) -> float | None:
        """The loss scale in a step, if there was one."""
        return next((each.scale for each in reversed(self.steps) if each.step == step), None)

    def frames_of(self, finding: Finding) -> Frames | None:
        """The last frames before a finding, of its step, if they were kept."""
        return next(
            (frames for frames in self.frames if frames.step == finding.step and not frames.traced),
            None,
        )


def analyse(
    run: list[Event], path: Path | None = None, earlier: Analysis | None = None
) -> Analysis:
    """Sort out a run: its events, the ``WatchStart`` first, as ``read_log`` gives them."""
    start = run[0]
    assert isinstance(start, WatchStart)
    ends = [event for event in run if isinstance(event, End)]
    findings = [event for event in run if isinstance(event, Finding)]
    return Analysis(
        start=start,
        findings=sorted(findings, key=lambda finding: (finding.step, finding.order)),
        warnings=[event for event in run if isinstance(event, Alert)],
        frames=[event for event in run if isinstance(event, Frames)],
        scaled=[event for event in run if isinstance(event, ScaleChange)],
        steps=[event for event in run if isinstance(event, Step)],
        end=ends[-1] if ends else None,
        path=path,
        setups=[event for event in run if isinstance(event, TrainingSetup)],
        vitals=[event for event in run if isinstance(event, Vitals)],
        earlier=earlier,
    )


def _last_run(log: Path) -> Analysis:
    """The last run of a log, with the one before it."""
    runs = read_log(log)
    return analyse(runs[-1], log, analyse(runs[-2], log) if len(runs) > 1 else None)


@dataclass(frozen=True, eq=False)
class Ranks:
    """The last run of every rank."""

    path: Path  # the log, or the directory of the logs
    ranks: list[Analysis]
    # what is missing or unequal: unreadable logs, ranks without one, ranks that end early
    notes: list[WatchRemark | str] = field(default_factory=list)
    incomplete: bool = False  # whether a log is missing or cannot be read

    @cached_property
    def trails(self) -> list[Trail]:
        """All ranks' trails in execution order: by step, place in the step, and rank."""
        every = (trail for run in self.ranks for trail in run.trails)
        return sorted(
            every, key=lambda trail: (trail.first.step, trail.first.order, trail.run.start.rank)
        )

    @cached_property
    def findings(self) -> list[tuple[Analysis, Finding]]:
        """All ranks' findings in execution order: by step, place in the step, and rank."""
        every = [(run, finding) for run in self.ranks for finding in run.findings]
        return sorted(every, key=lambda pair: (pair[1].step, pair[1].order, pair[0].start.rank))

    @cached_property
    def first(self) -> tuple[Analysis, Finding] | None:
        """The first origin of any rank, or else the first finding, with that rank."""
        return next(
            (pair for pair in self.findings if pair[1].origin),
            self.findings[0] if self.findings else None,
        )

    @property
    def directory(self) -> Path:
        """Where the logs and reproducers are."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def several(self) -> bool:
        """Whether ranks must be told apart."""
        return len(self.ranks) > 1 or self.ranks[0].start.ranks > 1

    @property
    def watched(self) -> int:
        """The most steps that any rank watched."""
        return max(len(run.steps) for run in self.ranks)

    @property
    def unexplained(self) -> list[tuple[Analysis, Step]]:
        """Steps with something wrong but no rank's finding."""
        explained = {finding.step for _, finding in self.findings}
        return [
            (run, step)
            for run in self.ranks
            for step in run.unexplained
            if step.step not in explained
        ]

    @property
    def trouble(self) -> WatchRemark | None:
        """Why a log proves nothing; ``None`` if it has findings, or proves that all was finite."""
        if self.findings or self.unexplained:
            return None
        if not self.watched:
            return remark("nothing-watched", ending=self.ranks[0].ending)
        if self.incomplete:
            return remark("not-every-rank", notes=self.notes)
        unseen = {
            name: what
            for run in self.ranks
            for step in run.steps
            for name, what in step.unseen.items()
        }
        if unseen:
            name, what = next(iter(unseen.items()))
            return remark("not-all-seen", what=what, module=name, more=len(unseen) - 1)
        unended = [run for run in self.ranks if run.end is None]
        unended += [run for run in self.ranks if run.end is not None and not run.end.as_meant]
        return remark("ended-otherwise", ending=unended[0].ending) if unended else None


def read_logs(path: Path) -> Ranks:
    """Read the last run of a log, or of all ranks' logs in a directory. Raises UsageError if there
    is no log, or none can be read."""
    if not os.path.isdir(path):
        return Ranks(path, [_last_run(path)])
    numbered = [
        (int(match[1]), log)
        for log in path.iterdir()
        if (match := re.fullmatch(r"rank(\d{1,9})\.jsonl", log.name))
    ]
    if not numbered:
        raise UsageError(
            f"{path}: holds no log of a watch (rank0.jsonl); name the directory that `watch` wrote,"
            " or a log in it"
        )
    runs, notes = _last_runs([log for _, log in sorted(numbered)])
    # the newest run's; logs of an earlier run with more ranks may still be there
    ranks = max(runs, key=lambda run: run.start.time).start.ranks
    earlier = [
        remark("left-out", log=str(run.path), ranks=run.start.ranks)
        for run in runs
        if run.start.ranks != ranks
    ]
    runs = [run for run in runs if run.start.ranks == ranks]
    missing = sorted(set(range(runs[0].start.ranks)) - {run.start.rank for run in runs})
    absent = [remark("no-log", missing=missing, ranks=runs[0].start.ranks)] if missing else []
    return Ranks(path, runs, [*notes, *absent, *earlier, *_shorter(runs)], bool(notes or absent))


def _last_runs(logs: list[Path]) -> tuple[list[Analysis], list[str]]:
    runs, errors = [], []
    for log in logs:
        try:
            runs.append(_last_run(log))
        except UsageError as error:
            errors.append(error)
    if not runs:
        raise errors[0]
    return runs, [str(error) for error in errors]


def _shorter(runs: list[Analysis]) -> list[WatchRemark]:
    """The ranks whose log ends before the others' do."""
    last = max(run.last_step for run in runs)
    return [
        remark(
            "rank-ends" if run.last_step >= 0 else "rank-has-no-step",
            rank=run.start.rank,
            step=run.last_step,
            last=last,
            ending=run.ending,
        )
        for run in runs
        if run.last_step < last
    ]
