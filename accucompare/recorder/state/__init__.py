"""The state that a capture starts from, and what a training step starts from."""

from accucompare.recorder.state.continuation import Continuation as Continuation
from accucompare.recorder.state.starting_state import CallArguments as CallArguments
from accucompare.recorder.state.starting_state import restore_weights as restore_weights
from accucompare.recorder.state.starting_state import saved_inputs as saved_inputs
from accucompare.recorder.state.training_loop import NOTHING as NOTHING
from accucompare.recorder.state.training_loop import Training as Training
from accucompare.recorder.state.training_loop import run_step as run_step
from accucompare.recorder.state.training_state import StateSaver as StateSaver
from accucompare.recorder.state.training_state import UnknownOptimizers as UnknownOptimizers
