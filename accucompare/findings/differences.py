"""Results of checking custom backwards by finite differences. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accucompare.findings.checklist import CheckOutcome, CheckStatus


@dataclass(frozen=True)
class FunctionGradients:
    """A custom Function in one form of its calls: the same shapes, types and other arguments."""

    name: str  # of the Function, or ``namespace::name`` of a custom operator
    modules: tuple[str, ...]  # qualified names of the modules whose code applies it so
    calls: int  # how often they do
    given: str  # its tensors: ``float32 [8, 24, 96], float32 [96]``
    # FAIL if its backward is not its forward's derivative; WARN if it is one only beside the
    # recorded inputs
    outcome: CheckOutcome


@dataclass(frozen=True)
class GradientCheck:
    """All custom Functions that a run applied, in the order of their first calls."""

    functions: Sequence[FunctionGradients]

    def of(self, status: CheckStatus) -> list[FunctionGradients]:
        return [each for each in self.functions if each.outcome.status is status]

    @property
    def status(self) -> CheckStatus:
        """FAIL where one fails; PASS only if there is one and all were checked."""
        if self.of(CheckStatus.FAIL):
            return CheckStatus.FAIL
        if self.of(CheckStatus.NOT_LOOKED_AT) or not self.functions:
            return CheckStatus.NOT_LOOKED_AT
        return CheckStatus.PASS
