"""The loss scale of a watched loop, step by step."""

from __future__ import annotations

from typing import Any

from accucompare.findings.analysis import Scaling
from accucompare.findings.log import ScaleChange


class LossScale:
    """The scale that a loop's scaler gives."""

    def __init__(self, scaler: Any) -> None:
        self.scales: list[float] = []  # after each step, if there is a scaler
        self._scaler = scaler
        self._history = Scaling(self._read())
        self.at_begin: float | None = None  # when the step began; ``None`` without a scaler

    @property
    def last(self) -> float | None:
        """What it was when last read, at a step's begin or end; ``None`` without a scaler."""
        return self._history.scale

    def set_scaler(self, scaler: Any) -> None:
        """The scaler of the running step; it becomes known before the update."""
        if scaler is not self._scaler:
            self._scaler = scaler
            self._history.scale = self.at_begin = self._read()

    def begin_step(self, watched: bool) -> None:
        if watched:
            self._history.scale = self._read()  # unwatched steps may have changed it
        self.at_begin = self._history.scale

    def end_step(self, step: int, skipped_by_hand: bool, where: str) -> ScaleChange | None:
        """What the scaler, or the loop in its place, did in this step.

        Args:
            skipped_by_hand: whether the loop skipped its update after an overflow.
            where: gradients overflowed, if known.
        """
        scale, before = self._read(), self._history.scale
        if scale is not None:
            self.scales.append(scale)
        lowered = scale is not None and before is not None and scale < before
        skipped = lowered or (scale is None and skipped_by_hand)
        return self._history.end_step(step, scale, skipped, where)

    def _read(self) -> float | None:
        if self._scaler is None or not self._scaler.is_enabled():
            return None
        return float(self._scaler.get_scale())
