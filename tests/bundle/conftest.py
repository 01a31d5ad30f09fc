"""Each test of a bundle begins as the first capture of a process does."""

from __future__ import annotations

import pytest

from accucompare.bundle.writing import memory


@pytest.fixture(autouse=True)
def no_earlier_capture() -> None:
    """Keep no memory of the tests before."""
    memory._between.clear()
