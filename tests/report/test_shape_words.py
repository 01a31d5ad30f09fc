"""What an error looks like, in sentences."""

from __future__ import annotations

import pytest

from accucompare.compare.shape_facts import (
    Axis,
    BadElements,
    BadKind,
    ErrorPlace,
    ErrorShape,
    NamedSlices,
    Pattern,
    PatternKind,
)
from accucompare.report.words.shape_words import shape_words

CHANNELS = Axis(2, 3)


def slices(*chosen: int, axis: Axis = CHANNELS, size: int = 64, step: int = 1) -> NamedSlices:
    return NamedSlices(axis, size, len(chosen), chosen[:8], chosen[-1], step)


PATTERNS = [
    (Pattern(PatternKind.ZERO), "the candidate is exactly zero"),
    (Pattern(PatternKind.NEARLY_ZERO), "the candidate is nearly zero"),
    (
        Pattern(PatternKind.SOME_ZEROS, share=0.109),
        "exactly zero where golden is not, at 10 % of the elements",
    ),
    (Pattern(PatternKind.CONSTANT), "the candidate is constant"),
    (Pattern(PatternKind.NEARLY_CONSTANT), "the candidate is nearly constant"),
    (Pattern(PatternKind.FEW_VALUES, count=13), "the candidate has only 13 distinct values"),
    (Pattern(PatternKind.SIGN), "the sign is flipped"),
    (Pattern(PatternKind.SCALE, low=2.9994), "the candidate is about 3 × golden"),
    (Pattern(PatternKind.SCALE, low=1.000992), "the candidate is about 1.00099 × golden"),
    (
        Pattern(PatternKind.SCALES, None, 0.96, 0.9912),
        "each row of the tensor is scaled by a factor of its own, 0.96 to 0.99",
    ),
    (
        Pattern(PatternKind.SCALES, CHANNELS, 0.99961, 1.0),
        "each channel (dimension 2) is scaled by a factor of its own, 0.9996 to 1.0000",
    ),
    (Pattern(PatternKind.OFFSET, low=0.104), "a constant offset of 0.1 × golden's RMS"),
    (Pattern(PatternKind.OFFSET), "a constant offset"),
    (
        Pattern(PatternKind.OFFSETS, CHANNELS, -1.0, 2.0),
        "each channel (dimension 2) has a constant offset of its own, -1 to 2 × golden's RMS",
    ),
    (Pattern(PatternKind.OFFSETS), "each row of the tensor has a constant offset of its own"),
    (Pattern(PatternKind.CLIPPED), "clipped on both sides"),
    (Pattern(PatternKind.CLIPPED_BELOW, low=0.0), "clipped from below at 0"),
    (Pattern(PatternKind.CLIPPED_ABOVE), "clipped from above"),
    (
        Pattern(PatternKind.SOFTMAX_AGAIN),
        "the candidate is the softmax of golden, which already is a softmax",
    ),
    (
        Pattern(PatternKind.SHIFTED, CHANNELS, indices=(1,)),
        "shifted by +1 along the channels (dimension 2)",
    ),
    (
        Pattern(PatternKind.SWAPPED, Axis(0, 5), indices=(2, 9)),
        "slices 2 and 9 (dimension 0) are swapped",
    ),
    (
        Pattern(PatternKind.REVERSED, Axis(2, 4)),
        "the rows or tokens (dimension 2) are in reverse order",
    ),
    (
        Pattern(PatternKind.MOVED, Axis(0, 3), count=9, indices=(1, 2)),
        "9 batch entries (dimension 0) have changed places: 1, 2, …",
    ),
    (
        Pattern(PatternKind.MOVED, Axis(0, 3), count=3, indices=(1, 2, 4)),
        "3 batch entries (dimension 0) have changed places: 1, 2, 4",
    ),
    (Pattern(PatternKind.TRANSPOSED, indices=(1, 2)), "dimensions 1 and 2 are transposed"),
    (
        Pattern(PatternKind.LAID_OUT, indices=(0, 2, 1)),
        "laid out with the dimensions in the order (0, 2, 1)",
    ),
    (
        Pattern(PatternKind.NEGATIVE, share=0.97),
        "97 % of the squared error is where golden is negative",
    ),
    (
        Pattern(PatternKind.POSITIVE, share=1.0),
        "all of the squared error is where golden is positive",
    ),
    (Pattern(PatternKind.BY_GOLDEN), "the error depends on golden's value alone"),
    (
        Pattern(PatternKind.ROWS_ALIKE),
        "every row of the tensor has the same error but for a factor",
    ),
    (Pattern(PatternKind.UNRELATED), "the candidate does not correlate with golden"),
    (Pattern(PatternKind.NOISE), "no pattern was found"),
    (
        Pattern(PatternKind.ROUNDING, low=0.002, count=8),
        "no pattern was found, in proportion to |golden|: about as large as rounding to 8 bits",
    ),
    (
        Pattern(PatternKind.RELATIVE, low=0.32),
        "no pattern was found, in proportion to |golden|: 0.3 of it",
    ),
    (
        Pattern(PatternKind.ABSOLUTE, low=0.0123),
        "no pattern was found, 1.2e-02 of golden's RMS, as large where golden is small",
    ),
    (Pattern(PatternKind.NEITHER, low=0.0123), "no pattern was found, 1.2e-02 of golden's RMS"),
]


@pytest.mark.parametrize(("pattern", "words"), PATTERNS)
def test_a_pattern_is_said(pattern: Pattern, words: str) -> None:
    assert shape_words(ErrorShape(patterns=(pattern,))) == (words,)


def test_every_pattern_is_said() -> None:
    assert {pattern.kind for pattern, _ in PATTERNS} == {*PatternKind}


BAD = [
    (
        BadElements(BadKind.NAN, 64, 4096, (slices(4),)),
        "NaN where golden is not, at 64 of 4096 element(s), channel 4 of 64 (dimension 2)",
    ),
    (
        BadElements(BadKind.INFINITE, 1, 4096, (), (1, 2, 3)),
        "infinite where golden is not, at 1 of 4096 element(s), first at index (1, 2, 3)",
    ),
    (
        BadElements(BadKind.FINITE, 1, 4096, (), (1, 2, 3)),
        "finite where golden is NaN or infinite, at 1 of 4096 element(s), first at index (1, 2, 3)",
    ),
    (
        BadElements(BadKind.SATURATED, 7, 4096),
        "saturated at float16's largest value, 65504, at 7 element(s)",
    ),
]


@pytest.mark.parametrize(("bad", "words"), BAD)
def test_bad_elements_are_said(bad: BadElements, words: str) -> None:
    assert shape_words(ErrorShape((bad,), dtype="float16")) == (words,)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (slices(17), "channel 17 of 64 (dimension 2)"),
        (slices(0), "channel 0, the first, of 64 (dimension 2)"),
        (slices(63), "channel 63, the last, of 64 (dimension 2)"),
        (slices(0, size=2), "channel 0 of 2 (dimension 2)"),
        (slices(3, 4), "channels 3 and 4 of 64 (dimension 2)"),
        (slices(3, 4, 5), "channels 3 to 5 of 64 (dimension 2)"),
        (slices(3, 4, 7), "channels 3, 4 and 7 of 64 (dimension 2)"),
        (slices(*range(0, 20, 2)), "10 of 64 channels (dimension 2): 0, 2, 4, 6, 8, 10, 12, 14, …"),
        (slices(*range(8, 40)), "channels 8 to 39 of 64 (dimension 2)"),
        (
            slices(16, axis=Axis(1, 3), step=8),
            "token 16 of 64 (dimension 1, of which 1 in 8 was looked at)",
        ),
    ],
)
def test_slices_are_said(named: NamedSlices, words: str) -> None:
    shape = ErrorShape(place=ErrorPlace(0.991, (named,)))
    assert shape_words(shape) == (f"99 % of the squared error is in {words}",)


def test_an_error_s_place_is_said_first_and_what_it_is_there() -> None:
    entry = slices(2, axis=Axis(0, 3), size=4)
    place, doubled = ErrorPlace(1.0, (entry, slices(3))), Pattern(PatternKind.SCALE, low=2.0)
    assert shape_words(ErrorShape(place=place, patterns=(doubled,), one_in=8)) == (
        "in a sample of 1 in 8 elements: all of the squared error is in"
        " channel 3 of 64 (dimension 2) of batch entry 2 of 4 (dimension 0)",
        "the candidate is about 2 × golden there",
    )
    assert shape_words(ErrorShape(place=ErrorPlace(0.995, index=(1, 2)))) == (
        "99 % of the squared error is in one element, at (1, 2)",
    )


@pytest.mark.parametrize(("identical", "rest"), [(True, "identical"), (False, "right")])
def test_of_a_run_it_is_said_what_the_rest_is(identical: bool, rest: str) -> None:
    place = ErrorPlace(1.0, (slices(3, 4, 5),), rest_identical=identical)
    assert shape_words(ErrorShape(place=place)) == (
        f"channels 3 to 5 of 64 (dimension 2) are wrong, the rest is {rest}",
    )


def test_three_statements_are_made_at_most() -> None:
    bad, place = tuple(each for each, _ in BAD[:2]), ErrorPlace(1.0, (slices(3),))
    shape = ErrorShape(bad, place, (Pattern(PatternKind.SIGN),))
    assert len(shape_words(shape)) == 3
