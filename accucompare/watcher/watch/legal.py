"""What is not finite but legal: filled-in values, and values that come to nothing."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from accucompare.findings.log import MINUS, Finding, Site, What, kinds_of
from accucompare.findings.origins import INFINITE, is_pole
from accucompare.watcher.again import Explainer
from accucompare.watcher.looking import Watcher
from accucompare.watcher.vitals import VitalSigns
from accucompare.watcher.watch.reporting import Reporter
from accucompare.watcher.watch.step_findings import StepFindings


@dataclass(eq=False)
class Legal:
    """Decides what is legal in a step, by running its calls again if needed; once per place, until
    something does harm."""

    # modules, with the Inf that each fills something with; new ones are added
    fills: set[tuple[str, str]]
    watcher: Watcher
    found: StepFindings
    explainer: Explainer
    reporter: Reporter
    vitals: VitalSigns
    # what began in this step and came to nothing
    harmless: list[Finding] = field(default_factory=list)
    _of_step: set[tuple[str, str]] = field(default_factory=set)  # fills that this step decided upon
    #: Places, and kinds, of what began at a pole.
    _poles: set[tuple[str, ...]] = field(default_factory=set)
    #: By id, this step's findings, and what running the step again has shown.
    _again: dict[int, tuple[Finding, list[Finding] | None]] = field(default_factory=dict)

    def next_step(self) -> None:
        self.harmless = []
        self._of_step.clear()
        self._again.clear()

    def leave_out(self, saturates: bool) -> None:
        """Remove legal findings from the step's; ``saturates``: the device saturates."""
        # harmless fills of earlier steps may do harm now
        if self.fills - self._of_step and self._comes_to_something():
            known = self.fills - self._of_step
            self.fills.intersection_update(self._of_step)
            self.found.refresh()
            self._find_fills(known)
        self._find_fills()
        self._find_harmless(saturates)

    def _find_fills(self, known: Collection[tuple[str, str]] = ()) -> None:
        """Remove what modules fill something with; ``known``: their fills in earlier steps."""
        while (
            filled := next(
                (each for each in self.found.findings if self._is_fill(each, known)), None
            )
        ) is not None:
            found = {(filled.name, kind) for kind in filled.kinds}
            self.fills |= found
            self._of_step |= found
            self.found.refresh()

    def _is_fill(self, finding: Finding, known: Collection[tuple[str, str]]) -> bool:
        if id(finding) in self._again or self.reporter.has_reported(finding):
            return False
        again = (
            self.explainer.origins_again(finding, self.watcher.notes)
            if set(finding.kinds) <= INFINITE
            else None
        )
        self._again[id(finding)] = finding, again
        if again is None:
            return all((finding.name, kind) in known for kind in finding.kinds)
        return not again

    def _find_harmless(self, saturates: bool) -> None:
        """Remove what comes to nothing, if that holds for everything that began in this step."""
        origins = self.found.origins
        self.harmless = []
        if (
            not origins
            or saturates
            or self._comes_to_something()
            or not all(map(self._may_be_harmless, origins))
        ):
            return
        if not self.explainer.has_spoilt_a_buffer():
            self.harmless, self.found.findings = origins, []

    def _may_be_harmless(self, finding: Finding) -> bool:
        """Whether code often removes this kind again on purpose."""
        if finding.site is Site.INPUT:
            return True
        key = finding.name, finding.near, *finding.kinds
        if key not in self._poles and not self.reporter.has_reported(finding):
            if (known := self._again.get(id(finding))) is None or known[1] is None:
                known = self._again[id(finding)] = (
                    finding,
                    self.explainer.origins_again(finding, self.watcher.notes),
                )
            if known[1] and all(map(is_pole, known[1])):
                self._poles.add(key)
        return key in self._poles

    def _comes_to_something(self) -> bool:
        """Whether a non-finite value has reached an output of the model, a gradient or the loss."""
        outputs = [
            note
            for note in self.watcher.notes
            if note.what is What.ENDED and note.place.parent is None
        ]
        given = kinds_of(tensor for note in outputs for tensor in note.observation().tensors)
        norms = self.watcher.gradients.norms.values()
        return (
            bool(given - {MINUS})
            or not all(norm.finite for norm in norms)
            or not all(map(math.isfinite, self.vitals.losses))
        )
