"""Fixtures of the tests of a watch."""

from tests.recorded import one_thread as one_thread
