"""Fixtures of the tests that record what a model computes."""

from tests.recorded import a_seed_and_a_path as a_seed_and_a_path
from tests.recorded import one_thread as one_thread
from tests.recorded import opened as opened
from tests.recorded import record as record
