"""The history of the loss scale: which steps were skipped, and whether that is still normal."""

from __future__ import annotations

from accucompare.findings.analysis.analysis import MANY_IN_A_ROW
from accucompare.findings.log import ScaleChange, remark


class Scaling:
    """What a loss scaler has done.

    A scaler starts too large and halves its scale until gradients fit; now and then it tries a
    larger one. So single skipped steps are normal, but many in a row, or a scale of 1, are not.

    Attributes:
        scale: after the last step; ``None`` without a scaler.
        in_a_row: how many steps in a row were skipped.
        found: whether an update went through, so that the first scale is found; from 2**32 on, that
            takes many steps.
    """

    def __init__(self, scale: float | None) -> None:
        self.scale = scale
        self.in_a_row = 0
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
