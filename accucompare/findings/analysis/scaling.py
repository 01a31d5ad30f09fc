"""The history of the loss scale: which steps were skipped, and whether that is still normal."""

from __future__ import annotations

from accucompare.findings.analysis.analysis import MANY_IN_A_ROW
from accucompare.findings.log import ScaleChange, remark


class Scaling:
    """What a loss scaler has done.

    A scaler begins with a scale that is too large and halves it until gradients fit, and tries a
    larger one now and then: a skipped step is how it finds out. Many in a row, or a scale of 1, are
    not.

    Attributes:
        scale: after the last step; ``None`` without a scaler.
        in_a_row: how many steps have been skipped without one between that was not.
        found: whether an update was let pass, so that the scale to begin with is found: from 2**32
            on, that takes many steps.
    """

    def __init__(self, scale: float | None) -> None:
        self.scale = scale
        self.in_a_row = 0
        self.found = False

    def end_step(
        self, step: int, scale: float | None, skipped: bool, where: str
    ) -> ScaleChange | None:
        """
        Args:
            step: that ends.
            scale: now; ``None`` without a scaler.
            skipped: whether the update was skipped.
            where: what is known of where gradients overflowed; may be empty.

        Returns:
            What to write down, if anything happened.
        """
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
