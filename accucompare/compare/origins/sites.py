"""Culprits: the sites where errors are made, and how each is called."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from accucompare.bundle.format import (
    AT_THE_END,
    NODE_ROLES,
    SERIES_ROLES,
    TRAINING_ROLES,
    UPDATE_ROLES,
    WRITTEN_ROLES,
    Record,
    Role,
)
from accucompare.compare.origins.scaled import ScaledGradients
from accucompare.compare.rows import Difference, Option, Reason, Row, buffer_of, owner_of
from accucompare.markup import line


class Stage(str, Enum):
    """The part of a step that an error is made in."""

    BETWEEN = "between"  # after an update, before the next
    FORWARD = "forward"
    LOSS = "loss"  # what comes after the model: its value, or its backward
    BACKWARD = "backward"
    UPDATE = "update"


#: What an update's culprit shows, by the role of its row; for all other roles the update itself.
_UPDATE_WORDS = {
    Role.PARAM_GRAD: "the sum of the gradients",
    Role.STATE_BEFORE: "what the update is given",
}

#: What changed a buffer that no call of the model has written into.
_CHANGED = {
    Role.BUFFER_BEFORE: "changed between steps",
    Role.BUFFER_AFTER: "changed in the step, outside of the model",
}


@dataclass(frozen=True, slots=True)
class Culprit:
    """Where an error is made.

    Attributes:
        name, call: the module call; of glue, the call in whose own code it is.
        site: ``"module"``, or ``"glue"`` for code of the module's own between, before or after its
            children; ``"operator"``; or ``"buffer"`` for one that the model computes itself.
        before: for glue, the child that got the wrong value (``""`` at the module's end).
        row: the row that shows it.
        size: how many times as large as expected the error is, by which culprits are ranked: its
            excess, or else its ``over_limit``.
        reason: why it is a culprit.
        jump: free-running, the excess as a multiple of that of what went in; ``None`` if there is
            no baseline.
        operator: for an operator: ``aten.bmm call 1 (bert/modeling_bert.py:187)``; of a backward
            ``BmmBackward0 (…)``.
        difference: what the two sides run or give differently there, if that explains the error.
        seen: the number of calls, in all steps and ranks, in which the site shows an error; ``row``
            is of the largest, and where steps train, of the first step's largest.
        words: the shape of its error, one statement each: "concentrated in channels 17 and 700 of
            dimension -1".
        hints: what such an error often comes from.
        configured: the module's own numbers and strings that differ from golden's, such as
            ``approximate``.
        scaled: if all gradients are golden's times one number: that number and what is known of it.
        cut: whether autograd's graph was cut there in the forward, so that only one side has the
            gradient that ``row`` is of.
        whole: whether an update is meant as a whole, of which ``row`` is the first parameter's.
    """

    name: str
    call: int
    site: str
    before: str
    row: Row
    size: float
    reason: Reason
    words: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    jump: float | None = None
    seen: int = 1
    operator: str = ""
    difference: Difference | None = None
    configured: tuple[Option, ...] = ()
    scaled: ScaledGradients | None = None
    cut: bool = False
    whole: bool = False

    def _repr_html_(self) -> str:
        """What a notebook shows: the place, how large its error is, and what that looks like."""
        sizes = {"excess": self.excess, "x limit": self.over_limit}
        size = ", ".join(f"{name} {value:.3g}" for name, value in sizes.items() if value)
        about = [*self.words, *(f"hint, {hint}" for hint in self.hints)]
        kind = ", ".join(dict.fromkeys((self.site, self.reason.value)))  # both may be glue
        return f"<div>{line(size, strong=self.place)}{line(kind)}{''.join(map(line, about))}</div>"

    @property
    def excess(self) -> float | None:
        """The relative L2 error as a multiple of the baseline's; ``None`` without a baseline."""
        return self.row.verdict.excess

    @property
    def over_limit(self) -> float | None:
        """The error as a multiple of the limit that judged it (``row.verdict.used``); ``None`` if
        there is none.
        """
        return self.row.verdict.used

    @property
    def stage(self) -> Stage:
        """The part of a step that its error is made in."""
        if self.scaled is not None and self.scaled.of_loss is not None:
            return Stage.LOSS if self.scaled.of_loss else Stage.UPDATE
        record = self.row.record
        if record is not None and record.role in SERIES_ROLES:
            return Stage.LOSS if record.role is Role.LOSS else Stage.UPDATE
        if record is not None and record.role is Role.BUFFER_AFTER:
            return Stage.UPDATE
        if record is None or record.role not in (*TRAINING_ROLES, *NODE_ROLES):
            return Stage.FORWARD
        if record.role is Role.PARAM_CHANGED:
            return Stage.BETWEEN
        if record.role in UPDATE_ROLES:
            return Stage.UPDATE
        return (
            Stage.LOSS
            if record.role is Role.GRAD_OUTPUT and record.parent is None
            else Stage.BACKWARD
        )

    @property
    def buffer(self) -> str:
        """The qualified name of a computed buffer; ``""`` for any other site."""
        if self.site != "buffer" or self.row.record is None:
            return ""
        return ".".join(part for part in (self.name, self.row.record.path) if part)

    @property
    def place(self) -> str:
        """``encoder.layers.5.attention.self call 1 (glue, before output.dense)``."""
        if self.scaled is not None:
            return self.scaled.place
        call = f" call {self.call}" if self.call else ""
        if self.site == "operator":
            parts = [part for part in (self.operator, str(self.difference or "")) if part]
            of = "the backward of " if self.stage is Stage.BACKWARD else ""
            return f"{of}{self.name or '(root)'}{call}: {': '.join(parts)}"
        if self.buffer:
            return f"{self.buffer} (computed buffer)"
        if self.row.record is not None and self.row.record.role in WRITTEN_ROLES:
            return self._place_written(self.row.record, call)
        if self.whole:
            return "the whole update"
        if self.stage is not Stage.FORWARD and not self.cut:
            return self._place_in_training
        own = self.before.removeprefix(f"{self.name}.") if self.name else self.before
        behind = (
            None if self.cut else self.row.record
        )  # which may be of another call than the one that the cut is before
        own += f" call {behind.call}" if own and behind is not None and behind.call else ""
        where = {"module": "", "glue": f" (glue, before {own})" if own else " (glue, at its end)"}[
            self.site
        ]
        return f"{self.name or '(root)'}{call}{where}"

    def _place_written(self, record: Record, call: str) -> str:
        if record.role is Role.ARGUMENT_UPDATE and self.site == "glue":
            return f"{self.name or '(root)'}{call} (glue, written into argument {record.path})"
        if record.role is Role.ARGUMENT_UPDATE:
            return f"{self.name or '(root)'}{call} (written into argument {record.path})"
        if record.role is not Role.BUFFER_UPDATE:
            return f"{buffer_of(record)} ({_CHANGED[record.role]})"
        by = "" if owner_of(record) == self.name else f" by {self.name or '(root)'}"
        return f"{buffer_of(record)}{call} (buffer update{by})"

    @property
    def _place_in_training(self) -> str:
        record = self.row.record
        assert record is not None
        if record.role is Role.LOSS:
            return "the loss" + (f" of backward {record.call}" if record.call else "")
        if record.role is Role.CLIPPED_NORM:
            return "the clipping of the gradients"
        if self.stage is Stage.LOSS:
            return f"the backward of the loss, gradient of {record.path or 'the output'}"
        call = f" call {self.call}" if self.call else ""
        owner = f"{self.name}." if self.name else ""
        if self.stage is Stage.BETWEEN:  # the call is the number of updates of the step before
            update = "the update" if self.call == 1 else f"update {self.call}"
            when = (
                f"after {update} of step {record.step}"
                if self.call
                else f"between step {record.step - 1} and {record.step}"
            )
            if record.path.endswith(AT_THE_END) and not self.call:
                return (
                    f"in step {record.step} something other than an optimizer changed"
                    f" {owner}{record.path.removesuffix(AT_THE_END)}"
                )
            return f"{when} something else changed {owner}{record.path.removesuffix(AT_THE_END)}"
        if self.stage is Stage.UPDATE:
            what = _UPDATE_WORDS.get(record.role, "the update")
            if record.role is Role.STATE_AFTER:
                parameter, _, state = record.path.partition(".")
                return f"{what} of {owner}{parameter}, {state}"
            return f"{what} of {owner}{record.path}"
        name = self.name or "(root)"
        if record.role is Role.CALL_GRAD:
            own = " (glue)" if self.site == "glue" else ""
            return f"the backward of {name}{call}{own}, gradient of {record.path.removeprefix('/')}"
        if self.site == "glue":
            behind = self.before.removeprefix(f"{self.name}.") if self.name else self.before
            return (
                f"the backward of {name}{call} (glue,"
                f" {f'behind {behind}' if behind else 'at its beginning'})"
            )
        return f"the backward of {name}{call}, gradient of input {record.path or '0'}"
