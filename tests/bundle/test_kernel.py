"""The compiled kernel's edges; what it computes is tested with its callers, beside NumPy's form."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from accucompare.bundle import kernel
from accucompare.bundle.dtypes import DTYPES

FLOAT32, BFLOAT16 = DTYPES["float32"], DTYPES["bfloat16"]


def test_blocks_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="equally many"):
        kernel.measure_block(np.zeros(9, "f4"), np.zeros(8, "f4"), FLOAT32, FLOAT32, None, None)


def test_blocks_that_are_not_of_the_given_type_are_refused() -> None:
    with pytest.raises(ValueError, match="equally many"):
        kernel.measure_block(np.zeros(8, "f4"), np.zeros(8, "f4"), FLOAT32, BFLOAT16, None, None)
    with pytest.raises(ValueError, match="whole elements"):
        kernel.summarize_block(np.zeros(7, "u1"), FLOAT32)


def test_data_at_any_address_gives_the_same() -> None:
    rng = np.random.default_rng(0)
    golden, candidate = rng.standard_normal((2, 3000)).astype("f4")
    expected = kernel.measure_block(golden, candidate, FLOAT32, FLOAT32, 1e-3, None)
    for shift in range(1, 8):
        memory = np.empty(golden.nbytes + shift, "u1")
        memory[shift:] = golden.view("u1")
        assert kernel.measure_block(memory[shift:].view("f4"), candidate, FLOAT32, FLOAT32, 1e-3, None) == expected


def test_numpy_serves_where_the_kernel_is_switched_off() -> None:
    program = "from accucompare.bundle import kernel; print(kernel.description())"
    environment = {**os.environ, "ACCUCOMPARE_KERNEL": "numpy"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "NumPy (switched off by ACCUCOMPARE_KERNEL)\n"
