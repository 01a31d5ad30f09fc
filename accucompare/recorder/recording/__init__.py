"""What is recorded of module calls, operators, backwards and updates."""

from accucompare.recorder.recording.main_grad import MAIN_GRAD
from accucompare.recorder.recording.making import RecordMaker
from accucompare.recorder.recording.recorder import Recorder

__all__ = ["MAIN_GRAD", "RecordMaker", "Recorder"]
