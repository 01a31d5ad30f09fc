"""What came of checking gradients against finite differences: a module each. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accucompare.findings.checks import Outcome, Status


@dataclass(frozen=True)
class ModuleGradients:
    """A module whose gradients were checked, or could not be.

    Attributes:
        name: qualified.
        type: its class.
        outcome: FAIL where gradients differ from finite differences; WARN where they do at the recorded inputs, and not beside them.
        functions: custom autograd Functions that its own code calls.
        inside: the modules in it that fail as well; the fault is then theirs first.
    """

    name: str
    type: str
    outcome: Outcome
    functions: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()


@dataclass(frozen=True)
class GradientCheck:
    """All modules, in the order in which their first calls ended: what is inside comes before what holds it."""

    modules: Sequence[ModuleGradients]

    def of(self, status: Status) -> list[ModuleGradients]:
        return [each for each in self.modules if each.outcome.status is status]

    @property
    def origins(self) -> list[ModuleGradients]:
        """The modules that fail, and in which none fails."""
        return [each for each in self.of(Status.FAIL) if not each.inside]
