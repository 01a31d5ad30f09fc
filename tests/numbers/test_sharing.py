"""Work that a second thread shares."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from accucompare.numbers import DTYPES, digest, summarize
from accucompare.numbers.sharing import shared
from accucompare.numbers.sums import SEGMENT


def test_each_piece_is_done_once_and_in_its_place() -> None:
    done: list[int] = []

    def act(place: int) -> int:
        done.append(place)
        return place * place

    assert shared(act, 100) == [place * place for place in range(100)]
    assert sorted(done) == list(range(100))


def test_a_second_thread_helps() -> None:
    both = threading.Barrier(2, timeout=60)
    assert len(set(shared(lambda place: (both.wait(), threading.get_ident())[1], 2))) == 2


def test_nobody_waits_for_a_helper_that_is_busy() -> None:
    free = threading.Event()
    waits = threading.Thread(target=shared, args=(lambda place: free.wait(60), 2))
    waits.start()
    while not [each for each in threading.enumerate() if "helper" in each.name]:
        time.sleep(0.001)
    assert shared(lambda place: place, 5) == [0, 1, 2, 3, 4]
    free.set()
    waits.join()


def test_an_error_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        shared(lambda place: 1 // (place - 1), 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
def test_a_forked_process_gets_a_helper_of_its_own() -> None:
    shared(lambda place: place, 2)
    child = os.fork()
    if not child:
        os._exit(shared(lambda place: place, 3) != [0, 1, 2])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("name", ["float32", "bfloat16", "complex64", "int32", "float64"])
def test_help_changes_no_bit(name: str) -> None:
    dtype, rng = DTYPES[name], np.random.default_rng(3)
    bits = rng.integers(0, 256, (2 * SEGMENT + 9) * dtype.storage.itemsize, np.uint8)
    for values in (bits.view(dtype.storage), bits.view(dtype.storage)[: SEGMENT + 1]):
        assert digest(values, helped=True) == digest(values)
        assert repr(summarize(values, dtype, helped=True)) == repr(summarize(values, dtype))
