"""Culprits: the sites where errors are made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from accucompare.bundle.format import (
    NODE_ROLES,
    SERIES_ROLES,
    TRAINING_ROLES,
    UPDATE_ROLES,
    Record,
    Role,
)
from accucompare.compare.origins.scaled import ScaledGradients
from accucompare.compare.rows import Difference, OperatorHint, OperatorPlace, Option, Reason, Row
from accucompare.compare.shape_facts import ErrorShape, OtherChoices


class Stage(str, Enum):
    """The part of a step that an error is made in."""

    BETWEEN = "between"  # after an update, before the next
    FORWARD = "forward"
    LOSS = "loss"  # what comes after the model: its value, or its backward
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Culprit:
    """Where an error is made.

    Attributes:
        name, call: the module call; for glue, the call whose own code it is.
        site: ``"module"``; ``"glue"`` for the module's own code between, before or after its
            children; ``"operator"``; or ``"buffer"`` for one that the model computes itself.
        before: for glue, the child that got the wrong value (``""`` at the module's end).
        row: the row that shows it.
        size: ranks culprits by error over what is expected: excess, or else ``over_limit``.
        jump: free-running, the excess relative to that of what went in, if there is a baseline.
        operator: the operator, or what it takes.
        difference: what the two sides run or give differently, if that explains the error.
        seen: how many calls, in all steps and ranks, show an error; ``row`` has the largest (in
            training, the first step's largest).
        shape: what the error looks like, for the first few culprits.
        seen_in: for an operator, where else to look.
        configured: the module's numbers and strings that differ from golden's (``approximate``).
        scaled: the one number, and what is known of it, if all gradients are golden's times it.
        cut: whether autograd's graph was cut there, so that only one side has ``row``'s gradient.
        whole: whether a whole update is meant; ``row`` is its first parameter's.
        wrong: of several ranks' parts, those that are over the limit by themselves.
        padding: whether this and all other culprits are off at padding alone.
    """

    name: str
    call: int
    site: str
    before: str
    row: Row
    size: float
    reason: Reason
    shape: ErrorShape | OtherChoices | None = None
    seen_in: tuple[OperatorHint, ...] = ()
    jump: float | None = None
    seen: int = 1
    operator: OperatorPlace | None = None
    difference: Difference | None = None
    configured: tuple[Option, ...] = ()
    scaled: ScaledGradients | None = None
    cut: bool = False
    whole: bool = False
    wrong: tuple[int, ...] = ()
    padding: bool = False

    @property
    def record(self) -> Record:
        """Its row's record; a culprit's row always has one."""
        record = self.row.record
        assert record is not None
        return record

    @property
    def excess(self) -> float | None:
        """The relative L2 error as a multiple of the baseline's; ``None`` without a baseline."""
        return self.row.verdict.excess

    @property
    def over_limit(self) -> float | None:
        """The error as a multiple of the limit that judged it (``row.verdict.over_limit``)."""
        return self.row.verdict.over_limit

    @property
    def stage(self) -> Stage:
        """The part of a step in which its error is made."""
        if self.scaled is not None and self.scaled.of_loss is not None:
            return Stage.LOSS if self.scaled.of_loss else Stage.UPDATE
        record = self.record
        if record.role in SERIES_ROLES:
            return Stage.LOSS if record.role is Role.LOSS else Stage.UPDATE
        if record.role is Role.BUFFER_AFTER:
            return Stage.UPDATE
        if record.role not in (*TRAINING_ROLES, *NODE_ROLES):
            return Stage.FORWARD
        if record.role is Role.PARAM_CHANGED:
            return Stage.BETWEEN
        if record.role in UPDATE_ROLES:
            return Stage.UPDATE
        if record.role is Role.GRAD_OUTPUT and record.parent is None:
            return Stage.LOSS
        return Stage.BACKWARD

    @property
    def buffer(self) -> str:
        """The qualified name of a computed buffer; ``""`` for other sites."""
        if self.site != "buffer":
            return ""
        return ".".join(part for part in (self.name, self.record.path) if part)
