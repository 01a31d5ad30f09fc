"""What is recorded of module calls, operators, backwards and updates."""

from accucompare.recorder.recording.making import RecordMaker
from accucompare.recorder.recording.recorder import Recorder
from accucompare.recorder.recording.updates import MAIN_GRAD

__all__ = ["MAIN_GRAD", "RecordMaker", "Recorder"]
