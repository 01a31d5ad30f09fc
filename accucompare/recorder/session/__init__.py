"""A capture from beginning to end."""

from accucompare.recorder.session.baselines import capture_baselines
from accucompare.recorder.session.capture_context import capture, recording
from accucompare.recorder.session.case_capture import (
    Built,
    Casting,
    build,
    capture_case,
    moved,
    repeat_of,
)
from accucompare.recorder.session.failures import (
    WantedGradientsError,
    naming_the_model,
    telling_exits,
)
from accucompare.recorder.session.model_capture import capture_model
from accucompare.recorder.session.session import Session
from accucompare.recorder.session.start import Start, Within, rank_and_ranks

__all__ = [
    "Built",
    "Casting",
    "Session",
    "Start",
    "WantedGradientsError",
    "Within",
    "build",
    "capture",
    "capture_baselines",
    "capture_case",
    "capture_model",
    "moved",
    "naming_the_model",
    "rank_and_ranks",
    "recording",
    "repeat_of",
    "telling_exits",
]
