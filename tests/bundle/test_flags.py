"""The table of flags: what each lets a device round, and by how much."""

from __future__ import annotations

from typing import Any

import pytest

from accucompare.bundle.flags import FLAGS, MANTISSA, roundoff
from accucompare.numbers.dtypes import DTYPES
from accucompare.selection import Precision


@pytest.mark.parametrize(("name", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_a_format_that_is_a_dtype_rounds_as_that_does(name: str, dtype: str) -> None:
    assert roundoff(name) == DTYPES[dtype].rounding


def test_every_format_that_can_be_emulated_has_its_mantissa() -> None:
    assert set(MANTISSA) == {each.value for each in Precision}


@pytest.mark.parametrize("unknown", ["", "int4"])
def test_no_format_rounds_nothing(unknown: str) -> None:
    assert roundoff(unknown) == 0.0


@pytest.mark.parametrize(
    ("name", "value", "rounded"),
    [
        ("npu.matmul.allow_hf32", True, "hf32"),
        ("npu.conv.allow_hf32", False, ""),
        ("cudnn.allow_tf32", True, "tf32"),
        ("cuda.matmul.allow_tf32", None, ""),
        ("mkldnn.matmul.fp32_precision", "bf16", "bf16"),
        ("mkldnn.conv.fp32_precision", "ieee", ""),
        ("mkldnn.conv.fp32_precision", True, ""),
        ("cudnn.benchmark", True, ""),
        ("npu.inf_nan_mode", False, ""),
    ],
)
def test_a_flag_says_what_products_are_rounded_to(name: str, value: Any, rounded: str) -> None:
    (flag,) = (flag for flag in FLAGS if flag.name == name)
    assert flag.rounds_to(value) == rounded
