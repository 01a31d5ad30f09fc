"""The state that a capture starts from, and what a training step starts from."""

from accucompare.recorder.state.continuation import Continuation
from accucompare.recorder.state.starting_state import CallArguments, restore_weights, saved_inputs
from accucompare.recorder.state.training_loop import NOTHING, Training, run_step
from accucompare.recorder.state.training_state import StateSaver, UnknownOptimizers

__all__ = [
    "NOTHING",
    "CallArguments",
    "Continuation",
    "StateSaver",
    "Training",
    "UnknownOptimizers",
    "restore_weights",
    "run_step",
    "saved_inputs",
]
