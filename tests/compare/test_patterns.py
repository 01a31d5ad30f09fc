"""What an error looks like: every pattern planted is named with its place, and noise is called
noise and nothing else.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from msgspec import structs

from accucompare.case import load_case
from accucompare.compare.shape.patterns import describe_error
from accucompare.compare.shape_facts import (
    Axis,
    BadElements,
    BadKind,
    ErrorCause,
    ErrorPlace,
    ErrorShape,
    NamedSlices,
    Pattern,
    PatternKind,
)
from accucompare.numbers.dtypes import DTYPES, round_to, widen
from accucompare.numbers.sums import Float64
from accucompare.report.words.shape_words import shape_words
from tests.conftest import ROOT

#: Of many seeds, `make test` tries each third, and `make test-all` every one.
EACH = 1 if settings().max_examples > 50 else 3
SHAPES = [(48, 96), (2, 32, 64), (1, 32, 64), (2, 12, 24, 32)]
Fault = Callable[[Float64, np.random.Generator], Float64]


def approx(value: float, **within: float) -> Any:
    """``pytest.approx`` as a field of a fact."""
    return pytest.approx(value, **within)


def rounded(values: Float64, dtype: str = "bfloat16") -> Float64:
    return widen(round_to(values, DTYPES[dtype]), DTYPES[dtype]).astype(np.float64)


def planted(
    shape: tuple[int, ...], fault: Fault, *, noise: float = 0.1, seed: int = 0
) -> tuple[Float64, Float64]:
    """Golden and a candidate with a fault, and on top bfloat16's rounding, blown up to a share of
    the fault's error.
    """
    random = np.random.default_rng(seed)
    golden = random.normal(size=shape)
    candidate = fault(golden, random)
    other = random.permutation(golden.reshape(-1)).reshape(shape)
    rounding = rounded(other) - other
    return golden, candidate + rounding * (
        noise * np.linalg.norm(candidate - golden) / np.linalg.norm(rounding)
    )


def changed(change: Callable[[Float64], None]) -> Fault:
    def fault(golden: Float64, _: np.random.Generator) -> Float64:
        candidate = golden.copy()
        change(candidate)
        return candidate

    return fault


def assigned(index: object, by: Callable[[Float64], Float64]) -> Fault:
    def change(candidate: Float64) -> None:
        candidate[index] = by(candidate[index])  # type: ignore[index]

    return changed(change)


def swapped(first: int, second: int, dim: int) -> Fault:
    def fault(golden: Float64, _: np.random.Generator) -> Float64:
        order = np.arange(golden.shape[dim])
        order[[first, second]] = second, first
        return np.take(golden, order, dim)

    return fault


CHANNELS, ROWS = -1, -2

#: The fault, where its error is (a dimension, and slices along it), and what was done to values; a
#: pattern's dimension is that of its axis.
PLANTED: dict[str, tuple[Fault, tuple[int, list[int]] | None, dict[str, Any]]] = {
    "scaled channels": (
        assigned((..., [3, 17]), lambda x: 3 * x),
        (CHANNELS, [3, 17]),
        {"kind": PatternKind.SCALE, "low": approx(3, rel=0.03)},
    ),
    "offset in one channel": (
        assigned((..., 5), lambda x: x + 0.5),
        (CHANNELS, [5]),
        {"kind": PatternKind.OFFSET, "low": approx(0.5, abs=0.1)},
    ),
    "block of channels": (
        assigned((..., slice(8, 16)), lambda x: x + 0.3),
        (CHANNELS, [*range(8, 16)]),
        {"kind": PatternKind.OFFSET},
    ),
    "last row nearly zero": (
        assigned((..., -1, slice(None)), lambda x: 0 * x),
        (ROWS, [-1]),
        {"kind": PatternKind.NEARLY_ZERO},
    ),
    "first row's sign": (
        assigned((..., 0, slice(None)), lambda x: -x),
        (ROWS, [0]),
        {"kind": PatternKind.SIGN},
    ),
    "offset": (
        lambda golden, _: golden + 0.1,
        None,
        {"kind": PatternKind.OFFSET, "low": approx(0.1, abs=0.01)},
    ),
    "bias": (
        lambda golden, random: golden + random.normal(size=golden.shape[-1]),
        None,
        {"kind": PatternKind.OFFSETS, "dim": CHANNELS},
    ),
    "scale": (
        lambda golden, _: golden * 0.5,
        None,
        {"kind": PatternKind.SCALE, "low": approx(0.5, abs=0.01)},
    ),
    "scale near 1": (
        lambda golden, _: golden * 1.001,
        None,
        {"kind": PatternKind.SCALE, "low": approx(1.001, abs=1e-5)},
    ),
    "scale of each row": (
        lambda golden, random: golden * (1 + 0.01 * random.normal(size=(*golden.shape[:-1], 1))),
        None,
        {
            "kind": PatternKind.SCALES,
            "axis": None,
            "low": approx(0.985, abs=0.01),
            "high": approx(1.015, abs=0.01),
        },
    ),
    "scale of each row about a bias": (
        lambda golden, random: (
            golden
            - random.uniform(0.01, 0.04, size=(*golden.shape[:-1], 1))
            * (golden - random.normal(size=golden.shape[-1]) / 2)
        ),
        None,
        {
            "kind": PatternKind.SCALES,
            "axis": None,
            "low": approx(0.96, abs=5e-3),
            "high": approx(0.99, abs=5e-3),
        },
    ),
    "scale of each channel": (
        lambda golden, random: golden * random.uniform(0.5, 2, size=golden.shape[-1]),
        None,
        {"kind": PatternKind.SCALES, "dim": CHANNELS},
    ),
    "sign": (lambda golden, _: -golden, None, {"kind": PatternKind.SIGN}),
    "swapped channels": (
        swapped(2, 9, -1),
        (CHANNELS, [2, 9]),
        {"kind": PatternKind.SWAPPED, "dim": CHANNELS, "indices": (2, 9)},
    ),
    "swapped rows": (
        swapped(2, 9, -2),
        (ROWS, [2, 9]),
        {"kind": PatternKind.SWAPPED, "dim": ROWS, "indices": (2, 9)},
    ),
    "rolled rows": (
        lambda golden, _: np.roll(golden, 1, -2),
        None,
        {"kind": PatternKind.SHIFTED, "dim": ROWS, "indices": (1,)},
    ),
    "rolled channels": (
        lambda golden, _: np.roll(golden, -3, -1),
        None,
        {"kind": PatternKind.SHIFTED, "dim": CHANNELS, "indices": (-3,)},
    ),
    "reversed channels": (
        lambda golden, _: golden[..., ::-1],
        None,
        {"kind": PatternKind.REVERSED, "dim": CHANNELS},
    ),
    "another layout": (
        lambda golden, _: np.ascontiguousarray(golden.swapaxes(-1, -2)).reshape(golden.shape),
        None,
        {"kind": PatternKind.LAID_OUT},
    ),
    "clipped": (lambda golden, _: np.clip(golden, -1, 1.2), None, {"kind": PatternKind.CLIPPED}),
    "another activation": (
        lambda golden, _: np.where(golden < 0, 0.9 * golden, golden),
        None,
        {"kind": PatternKind.NEGATIVE, "share": approx(0.95, abs=0.05)},
    ),
    "one column of a weight": (
        lambda golden, random: (
            golden
            + 0.1
            * random.normal(size=(*golden.shape[:-1], 1))
            * random.normal(size=golden.shape[-1])
        ),
        None,
        {"kind": PatternKind.ROWS_ALIKE},
    ),
    "values from elsewhere": (
        lambda golden, random: random.permutation(golden.reshape(-1)).reshape(golden.shape),
        None,
        {"kind": PatternKind.UNRELATED},
    ),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_pattern_is_named_with_its_place_through_rounding(
    name: str, shape: tuple[int, ...]
) -> None:
    fault, where, expected = PLANTED[name]
    shown = describe_error(*planted(shape, fault))
    assert not shown.bad
    assert not shown.causes
    (pattern,) = shown.patterns
    found = {**structs.asdict(pattern), "dim": pattern.axis and pattern.axis.dim - len(shape)}
    assert {field: found[field] for field in expected} == expected
    if where is None:
        assert shown.place is None
    else:
        dim, slices = where
        chosen = tuple(at % shape[dim] for at in slices)
        assert shown.place is not None
        assert shown.place.share == approx(0.99, abs=0.01)
        axis = Axis(len(shape) + dim, len(shape))
        assert shown.place.slices == (
            NamedSlices(axis, shape[dim], len(chosen), chosen, chosen[-1]),
        )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_element_is_named_by_its_index(shape: tuple[int, ...]) -> None:
    fault = changed(lambda candidate: candidate.reshape(-1).__setitem__(77, 9.0))
    shown = describe_error(*planted(shape, fault))
    index = tuple(map(int, np.unravel_index(77, shape)))
    assert shown == ErrorShape(place=ErrorPlace(approx(0.99, abs=0.01), index=index))


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("factor", [2.0**300, 2.0**-300, 3.0])
def test_scaling_both_changes_nothing(name: str, factor: float) -> None:
    golden, candidate = planted((2, 32, 64), PLANTED[name][0])
    shape, scaled = (describe_error(golden * by, candidate * by) for by in (1, factor))
    if factor != 3:
        assert scaled == shape
    assert shape_words(scaled) == shape_words(shape)


def test_of_many_slices_the_first_are_named() -> None:
    golden, candidate = planted((64, 96), assigned((..., slice(0, 24, 2)), lambda x: 2 * x))
    place = describe_error(golden, candidate).place
    assert place is not None
    few = (0, 2, 4, 6, 8, 10, 12, 14)
    assert place.slices == (NamedSlices(Axis(1, 2), 96, 12, few, 22),)


@pytest.mark.parametrize("seed", range(0, 140, EACH))
def test_pure_rounding_and_pure_gaussian_noise_are_called_noise_and_nothing_else(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = [(512,), (16, 32), (4, 8, 32), (2, 8, 16, 16), (128, 384), (2, 16, 64), (1, 3, 32, 32)][
        seed % 7
    ]
    golden = random.normal(size=shape)
    rounding = describe_error(golden, rounded(golden), dtype=["float32", "bfloat16"][seed % 2])
    assert rounding.place is None
    assert [(each.kind, each.count) for each in rounding.patterns] == [(PatternKind.ROUNDING, 8)]
    gaussian = describe_error(
        golden, golden + random.normal(size=shape) * 10.0 ** random.integers(-6, 0)
    )
    assert gaussian.place is None
    assert [each.kind for each in gaussian.patterns] in (
        [PatternKind.ABSOLUTE],
        [PatternKind.NEITHER],
    )


NOISE_KINDS = {
    PatternKind.NOISE,
    PatternKind.ROUNDING,
    PatternKind.RELATIVE,
    PatternKind.ABSOLUTE,
    PatternKind.NEITHER,
}


def assert_nothing_but_noise(shown: ErrorShape) -> None:
    assert not shown.bad
    assert shown.place is None
    assert {each.kind for each in shown.patterns} <= NOISE_KINDS


@pytest.mark.parametrize("seed", range(60))
def test_noise_with_outliers_dead_channels_and_padding_is_called_nothing_but_noise(
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    golden = random.normal(size=(2, 24, 48))
    golden[..., random.integers(48, size=2)] *= 300
    golden[..., random.integers(48, size=5)] = 0
    golden[1, 15:] = 0
    golden = np.maximum(golden, 0) if seed % 2 else golden
    relative = golden * (1 + 1e-3 * random.normal(size=golden.shape))
    sparse = np.where(random.random(golden.shape) < 0.003, rounded(golden), golden)
    for candidate in (rounded(golden), relative, sparse):
        assert_nothing_but_noise(describe_error(golden, candidate))


@pytest.mark.parametrize("seed", range(0, 100, EACH))
def test_nothing_false_is_said_of_heavy_tailed_noise_in_small_tensors(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = tuple(random.integers(1, 20, size=random.integers(1, 6)))
    golden = random.standard_t(3, size=shape) * np.exp(random.normal(size=shape[-1]) * (seed % 3))
    for candidate in (rounded(golden), golden + 0.01 * random.standard_t(3, size=shape)):
        assert_nothing_but_noise(describe_error(golden, candidate))


def test_a_channel_that_is_just_large_is_no_culprit() -> None:
    golden, candidate = planted((64, 96), lambda golden, _: golden * 1.5, noise=0.0)
    golden[:, 7] *= 100
    candidate[:, 7] *= 100
    assert describe_error(golden, candidate) == ErrorShape(
        patterns=(Pattern(PatternKind.SCALE, low=approx(1.5)),)
    )


@pytest.fixture(scope="module")
def layer_norms() -> list[tuple[torch.nn.LayerNorm, torch.Tensor]]:
    """MiniLM's LayerNorms after attention, with what they are given."""
    given: dict[str, torch.Tensor] = {}
    case, _ = load_case(f"{ROOT}/fixtures/minilm.py")
    norms = {
        name: module
        for name, module in case.model.named_modules()
        if name.endswith("attention.output.LayerNorm")
    }
    for name, norm in norms.items():
        norm.register_forward_pre_hook(
            lambda _, arguments, name=name: given.update({name: arguments[0]})
        )
    with torch.no_grad():
        case.model(**case.inputs)
    return [(norm, given[name]) for name, norm in norms.items()]


def test_a_wrong_eps_of_minilm_s_layer_norms_is_named_through_bfloat16(
    layer_norms: list[tuple[torch.nn.LayerNorm, torch.Tensor]],
) -> None:
    named = 0
    for norm, inputs in layer_norms:
        with torch.no_grad():
            golden = norm(inputs).double().numpy()
            norm = copy.deepcopy(norm).bfloat16()
            noise = norm(inputs.bfloat16()).double().numpy() - golden
            norm.eps = 1e-2
            candidate = norm(inputs.bfloat16()).double().numpy()
        if np.linalg.norm(candidate - golden) < 4 * np.linalg.norm(noise):
            continue
        variance = inputs.var(-1, correction=0).double().numpy()
        low, high = np.quantile(
            np.sqrt(variance / (variance + 1e-2)), (0.05, 0.95), method="nearest"
        )
        shown = describe_error(golden, candidate, dtype="bfloat16", normalised=True)
        assert shown.causes == (ErrorCause.EPS,)
        assert not describe_error(golden, candidate, dtype="bfloat16").causes  # of anything else
        assert shown.place is None
        assert shown.patterns == (
            Pattern(PatternKind.SCALES, None, approx(low, abs=5e-3), approx(high, abs=5e-3)),
        )
        named += 1
    assert named >= 5


def test_a_wrong_eps_of_an_rms_norm_is_named_despite_one_huge_channel() -> None:
    random = np.random.default_rng(0)
    given = random.normal(size=(2, 16, 128)) * np.exp(random.normal(size=(2, 16, 1)) / 2)
    weight = random.uniform(0.5, 2, size=128)
    weight[7] = 100
    square = np.mean(given**2, -1, keepdims=True)
    golden, candidate = (rounded(weight * given / np.sqrt(square + eps)) for eps in (1e-6, 0.03))
    assert describe_error(golden, candidate, dtype="bfloat16", normalised=True).causes == (
        ErrorCause.EPS,
    )


def test_a_token_that_is_scaled_is_given_no_cause() -> None:
    golden, candidate = planted((2, 32, 64), assigned((slice(None), [3, 9]), lambda x: 2 * x))
    shown = describe_error(golden, candidate)
    assert [each.kind for each in shown.patterns] == [PatternKind.SCALE]
    assert shown.causes == ()


def test_what_is_exactly_zero_is_said_to_be() -> None:
    golden = np.random.default_rng(0).normal(size=(2, 32, 64))
    token, channel, mask = golden.copy(), golden.copy(), golden.copy()
    token[:, -1], channel[..., 4] = 0, 0
    mask[np.random.default_rng(1).random(mask.shape) < 0.1] = 0
    shown = describe_error(golden, rounded(token))
    last = NamedSlices(Axis(1, 3), 32, 1, (31,), 31)
    assert shown == ErrorShape(
        place=ErrorPlace(approx(0.99, abs=0.01), (last,)), patterns=(Pattern(PatternKind.ZERO),)
    )
    assert not describe_error(golden, channel).causes
    assert describe_error(golden, rounded(mask)) == ErrorShape(
        patterns=(Pattern(PatternKind.SOME_ZEROS, share=float(np.mean(mask == 0))),)
    )


def test_a_channel_of_which_only_the_bias_is_left_is_constant() -> None:
    golden, candidate = planted(
        (64, 96), assigned((slice(None), 7), lambda x: 0 * x + 0.25), noise=0.0
    )
    assert describe_error(golden, candidate) == ErrorShape(
        place=ErrorPlace(1.0, (NamedSlices(Axis(1, 2), 96, 1, (7,), 7),)),
        patterns=(Pattern(PatternKind.CONSTANT),),
    )


def test_another_function_of_the_same_input_depends_on_golden_alone() -> None:
    golden, candidate = planted((64, 96), lambda golden, _: golden + 0.1 * np.cos(2 * golden))
    assert describe_error(golden, candidate) == ErrorShape(
        patterns=(Pattern(PatternKind.BY_GOLDEN),)
    )


def test_noise_that_fades_along_the_tokens_is_not_called_noise() -> None:
    golden, candidate = planted(
        (2, 64, 96),
        lambda golden, random: golden + random.normal(size=(64, 96)) / np.arange(2, 66)[:, None],
    )
    assert describe_error(golden, candidate) == ErrorShape()


NOISE = {"float32": 3e-8, "bfloat16": 1.7e-3, "float16": 2e-4}
FAULTS: dict[str, Callable[[Float64, np.random.Generator], Float64]] = {
    "factor": lambda golden, _: 1.05 * golden,
    "other values": lambda golden, random: random.normal(size=golden.shape),
    "relative noise": lambda golden, random: golden * (1 + 0.05 * random.normal(size=golden.shape)),
    "zeros": lambda golden, _: 0 * golden,
}


@pytest.mark.parametrize("seed", range(0, 120, EACH))
def test_a_run_of_wrong_slices_is_named_and_the_rest_said_to_be_right(seed: int) -> None:
    """A tile: the last 57 of 249 channels, the first half, the middle; through rounding everywhere,
    in any type and dimension.
    """
    random = np.random.default_rng(seed)
    dtype = list(NOISE)[seed % 3]
    shape = [(64, 249), (2, 100, 64), (4, 32, 249), (8, 16, 12, 24)][seed % 4]
    dim = int(random.integers(1, len(shape)))
    size = shape[dim]
    length = int(random.integers(max(3, size // 10), size - max(3, size // 10)))
    first = int(random.choice([0, size - length, random.integers(0, size - length + 1)]))
    golden = random.normal(size=shape)
    candidate = golden * (1 + NOISE[dtype] * random.normal(size=shape))
    tile = (*(slice(None),) * dim, slice(first, first + length))
    candidate[tile] = FAULTS[list(FAULTS)[seed % len(FAULTS)]](golden[tile], random)
    place = describe_error(golden, candidate, dtype=dtype).place
    assert place is not None
    assert place.rest_identical is False
    few = tuple(range(first, first + min(length, 8)))
    axis = Axis(dim, len(shape))
    assert place.slices == (NamedSlices(axis, size, length, few, first + length - 1),)


def test_a_tile_beside_values_that_were_not_touched_says_that_the_rest_is_identical() -> None:
    golden, candidate = planted(
        (4, 32, 249), assigned((..., slice(192, 249)), lambda x: 1.03 * x), noise=0.0
    )
    shown = describe_error(golden, candidate)
    assert shown.place is not None
    assert shown.place.rest_identical is True
    assert shown.patterns == (Pattern(PatternKind.SCALE, low=approx(1.03)),)


def test_square_dimensions_are_transposed() -> None:
    golden, candidate = planted((3, 24, 24), lambda golden, _: golden.swapaxes(1, 2))
    assert describe_error(golden, candidate).patterns == (
        Pattern(PatternKind.TRANSPOSED, indices=(1, 2)),
    )


def test_a_channel_of_one_batch_entry_is_named_by_both() -> None:
    golden, candidate = planted((4, 64, 96), assigned((2, slice(None), 11), lambda x: x + 1))
    entry, channel = (
        NamedSlices(Axis(0, 3), 4, 1, (2,), 2),
        NamedSlices(Axis(2, 3), 96, 1, (11,), 11),
    )
    assert describe_error(golden, candidate).place == ErrorPlace(
        approx(0.99, abs=0.01), (entry, channel)
    )


def test_few_distinct_values_are_counted() -> None:
    golden = np.random.default_rng(0).normal(size=(64, 96))
    candidate = np.round(golden * 2) / 2
    assert describe_error(golden, candidate).patterns == (
        Pattern(PatternKind.FEW_VALUES, count=len(np.unique(candidate))),
    )


def test_saturation_at_the_largest_value_of_float16_is_named() -> None:
    golden = np.random.default_rng(0).normal(size=(64, 96)) * 4e4
    candidate = np.clip(rounded(golden), -65504, 65504)
    count = int(np.count_nonzero(np.abs(golden) > 65504))
    shown = describe_error(golden, candidate, dtype="float16")
    assert shown == ErrorShape(
        (BadElements(BadKind.SATURATED, count, golden.size),),
        causes=(ErrorCause.SATURATED,),
        dtype="float16",
    )


def test_nan_is_told_with_its_place() -> None:
    golden = np.random.default_rng(0).normal(size=(2, 32, 64))
    candidate = golden.copy()
    candidate[..., 4] = np.nan
    channel = NamedSlices(Axis(2, 3), 64, 1, (4,), 4)
    assert describe_error(golden, candidate) == ErrorShape(
        (BadElements(BadKind.NAN, 64, 4096, (channel,)),)
    )
    candidate = golden.copy()
    candidate[1, 2, 3] = np.inf
    assert describe_error(golden, candidate) == ErrorShape(
        (BadElements(BadKind.INFINITE, 1, 4096, (), (1, 2, 3)),)
    )


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (7,), (4, 5, 6)])
def test_equal_arrays_have_no_error(shape: tuple[int, ...]) -> None:
    golden = np.random.default_rng(0).normal(size=shape)
    assert describe_error(golden, golden.copy()) == ErrorShape()
    assert describe_error(np.full(shape, np.nan), np.full(shape, np.nan)) == ErrorShape()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2), (1, 3, 2)])
def test_nothing_is_said_of_a_handful_of_elements(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    assert describe_error(random.normal(size=shape), random.normal(size=shape)) == ErrorShape()


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shapes differ: \(2,\) and \(3,\)"):
        describe_error(np.zeros(2), np.zeros(3))


@given(
    st.data(),
    arrays_of.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=9),
    st.sampled_from(list(DTYPES)),
)
def test_arbitrary_arrays_never_raise_or_warn(
    data: st.DataObject, shape: tuple[int, ...], dtype: str
) -> None:
    elements = st.floats() | st.sampled_from([0.0, 1.0, 65504.0, 1e308, 5e-324, np.nan, np.inf])
    golden = data.draw(arrays_of.arrays(np.float64, shape, elements=elements))
    candidate = data.draw(arrays_of.arrays(np.float64, shape, elements=elements))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = describe_error(golden, candidate, dtype=dtype)
        assert len(shape_words(shown)) <= 3
