"""Digests tell equal bytes, in a tensor's own type and in narrower ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xxhash

from accucompare.live.values import tensors
from accucompare.numbers.digests import digest, fingerprint
from accucompare.numbers.dtypes import DTYPES, round_to, widen
from accucompare.numbers.sums import BLOCK, SEGMENT


def test_a_digest_is_xxh3_128_of_the_bytes() -> None:
    values = np.arange(6, dtype="<i4").reshape(2, 3)
    assert digest(values) == xxhash.xxh3_128_hexdigest(values.tobytes())


def test_the_digest_of_a_large_tensor_is_that_of_its_segments_digests() -> None:
    values = np.arange(2 * SEGMENT + 5, dtype="<u2")
    parts = [
        xxhash.xxh3_128_digest(part.tobytes())
        for part in (values[:SEGMENT], values[SEGMENT : 2 * SEGMENT], values[2 * SEGMENT :])
    ]
    assert digest(values) == xxhash.xxh3_128_hexdigest(b"".join(parts))
    assert digest(values[: SEGMENT + 1]) != digest(values[:SEGMENT])
    assert digest(values[:SEGMENT]) == parts[0].hex()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_empty_tensors_have_digests(shape: tuple[int, ...]) -> None:
    values = np.zeros(shape)
    assert digest(values) == xxhash.xxh3_128_hexdigest(values.tobytes())


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("float64", "float32"),
        ("float64", "bfloat16"),
        ("float32", "float16"),
        ("float32", "bfloat16"),
    ],
)
@pytest.mark.parametrize("count", [0, 10, BLOCK + 3])
def test_a_fingerprint_holds_the_digest_of_the_weights_rounded_by_torch(
    wide: str, narrow: str, count: int
) -> None:
    values = torch.randn(
        count, generator=torch.Generator().manual_seed(0), dtype=getattr(torch, wide)
    )
    rounded = values.to(getattr(torch, narrow))
    raw = rounded.view(torch.int16).numpy() if narrow == "bfloat16" else rounded.numpy()
    found = fingerprint(values.numpy(), DTYPES[wide])
    assert found[narrow] == digest(raw)
    assert found[wide] == digest(values.numpy())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int64", "bool", "complex64"])
def test_a_type_that_nothing_is_rounded_from_has_one_digest(dtype: str) -> None:
    assert list(fingerprint(np.zeros(3, DTYPES[dtype].storage), DTYPES[dtype])) == [dtype]


@pytest.mark.parametrize("rounded", [round_to, tensors.round_tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("narrow", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("wide", ["float64", "float32"])
def test_rounding_goes_to_nearest_even_for_any_bits_whoever_does_it(
    wide: str, narrow: str, rounded: Any
) -> None:
    if narrow == wide:
        return
    generator = np.random.default_rng(0)
    # subnormal numbers, NaN and Inf among them
    singles = generator.integers(0, 1 << 32, 100_000, np.uint32).view(np.float32)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16) | np.uint32(0x8000)).view(
        np.float32
    )
    with np.errstate(all="ignore"):
        values = np.concatenate(
            [
                singles,
                halves,
                np.nextafter(halves, np.float32(0)),
                (halves[1:] + halves[:-1]) / 2,
                ties,
            ]
        ).astype(wide)
        expected = torch.tensor(values).to(getattr(torch, narrow)).double()
        found = widen(rounded(values, DTYPES[narrow]), DTYPES[narrow]).astype(np.float64)
    np.testing.assert_array_equal(found, expected.numpy())
    assert fingerprint(values, DTYPES[wide], rounded) == fingerprint(values, DTYPES[wide])
