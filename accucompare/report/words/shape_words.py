"""What an error looks like, in sentences."""

from __future__ import annotations

import math

from msgspec.structs import asdict

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
from accucompare.numbers import DTYPES

CAUSES = {
    ErrorCause.SATURATED: "overflow in a narrow type, saturated in place of Inf",
    ErrorCause.SOFTMAX: "a softmax in the model and another around it",
    ErrorCause.EPS: "often: a wrong eps in a normalisation",
}

#: A slice along each dimension, singular and plural, by the number of dimensions.
_SLICES = {
    1: (("element", "elements"),),
    2: (("row", "rows"), ("channel", "channels")),
    3: (("batch entry", "batch entries"), ("token", "tokens"), ("channel", "channels")),
    4: (
        ("batch entry", "batch entries"),
        ("channel or head", "channels or heads"),
        ("row or token", "rows or tokens"),
        ("column or feature", "columns or features"),
    ),
}

_COUNTED = "at {bad.count} of {bad.elements} element(s), {where}"
_BAD = {
    BadKind.NAN: f"NaN where golden is not, {_COUNTED}",
    BadKind.INFINITE: f"infinite where golden is not, {_COUNTED}",
    BadKind.FINITE: f"finite where golden is NaN or infinite, {_COUNTED}",
    BadKind.SATURATED: "saturated at {largest}, at {bad.count} element(s)",
}

_NOISE = "no pattern was found"

#: What is true of all values looked at ends with ``there`` if they are those of a place.
_PATTERNS = {
    PatternKind.ZERO: "the candidate is exactly zero{there}",
    PatternKind.NEARLY_ZERO: "the candidate is nearly zero{there}",
    PatternKind.SOME_ZEROS: "exactly zero where golden is not, at {percent} of the elements",
    PatternKind.CONSTANT: "the candidate is constant{there}",
    PatternKind.NEARLY_CONSTANT: "the candidate is nearly constant{there}",
    PatternKind.FEW_VALUES: "the candidate has only {count} distinct values{there}",
    PatternKind.SIGN: "the sign is flipped{there}",
    PatternKind.SCALE: "the candidate is about {factors} × golden{there}",
    PatternKind.SCALES: "each {slice} is scaled by a factor of its own, {factors}",
    PatternKind.OFFSET: "a constant offset{offsets}{there}",
    PatternKind.OFFSETS: "each {slice} has a constant offset of its own{offsets}",
    PatternKind.CLIPPED: "clipped on both sides",
    PatternKind.CLIPPED_BELOW: "clipped from below{at}",
    PatternKind.CLIPPED_ABOVE: "clipped from above{at}",
    PatternKind.SOFTMAX_AGAIN: (
        "the candidate is the softmax of golden, which already is a softmax{there}"
    ),
    PatternKind.SHIFTED: "shifted by {indices[0]:+d} along the {slices} {dimension}",
    PatternKind.SWAPPED: "{slices} {indices[0]} and {indices[1]} {dimension} are swapped",
    PatternKind.REVERSED: "the {slices} {dimension} are in reverse order",
    PatternKind.MOVED: "{count} {slices} {dimension} have changed places: {listed}",
    PatternKind.TRANSPOSED: "dimensions {indices[0]} and {indices[1]} are transposed",
    PatternKind.LAID_OUT: "laid out with the dimensions in the order {indices}",
    PatternKind.NEGATIVE: "{percent} of the squared error is where golden is negative",
    PatternKind.POSITIVE: "{percent} of the squared error is where golden is positive",
    PatternKind.BY_GOLDEN: "the error depends on golden's value alone",
    PatternKind.ROWS_ALIKE: "every row of the tensor has the same error but for a factor",
    PatternKind.UNRELATED: "the candidate does not correlate with golden{there}",
    PatternKind.NOISE: _NOISE,
    PatternKind.ROUNDING: (
        f"{_NOISE}, in proportion to |golden|: about as large as rounding to {{count}} bits"
    ),
    PatternKind.RELATIVE: f"{_NOISE}, in proportion to |golden|: {{low:.1g}} of it",
    PatternKind.ABSOLUTE: f"{_NOISE}, {{low:.1e}} of golden's RMS, as large where golden is small",
    PatternKind.NEITHER: f"{_NOISE}, {{low:.1e}} of golden's RMS",
}

_MOST = 3  # statements on an error
_NEAR_ONE = 0.05  # a factor this near to 1 is printed in digits of its difference from 1


def shape_words(shape: ErrorShape) -> tuple[str, ...]:
    """At most three statements: what is not finite, where the error is, what it is."""
    there = " there" if shape.place is not None and shape.place.slices else ""
    said = [_bad(bad, shape.dtype) for bad in shape.bad]
    said += [] if shape.place is None else [_place(shape.place)]
    said += [_pattern(pattern, there) for pattern in shape.patterns]
    if shape.one_in > 1:
        said[:1] = [f"in a sample of 1 in {shape.one_in:,} elements: {each}" for each in said[:1]]
    return tuple(said[:_MOST])


def _bad(bad: BadElements, dtype: str) -> str:
    where = " and ".join(map(slices_words, bad.slices)) or f"first at index {bad.first}"
    largest = f"{dtype}'s largest value, {DTYPES[dtype].largest:.6g}"
    return _BAD[bad.kind].format(bad=bad, where=where, largest=largest)


def _place(place: ErrorPlace) -> str:
    where = " of ".join(map(slices_words, reversed(place.slices)))
    if place.rest_identical is not None:
        return f"{where} are wrong, the rest is {'identical' if place.rest_identical else 'right'}"
    where = where or f"one element, at {place.index}"
    return f"{_percent(place.share)} of the squared error is in {where}"


def _pattern(pattern: Pattern, there: str) -> str:
    axis, low, high = pattern.axis, pattern.low, pattern.high
    singular, plural = ("row", "rows") if axis is None else _names(axis)
    dimension = "of the tensor" if axis is None else f"(dimension {axis.dim})"
    to, before = ("", " of") if high is None else (f" to {high:.2g}", ",")
    more = ", …" if pattern.count > len(pattern.indices) else ""
    return _PATTERNS[pattern.kind].format(
        **asdict(pattern),
        there=there,
        percent=_percent(pattern.share),
        at=" at 0" if low == 0 else "",
        factors="" if low is None else _factors(low, high),
        offsets="" if low is None else f"{before} {low:.2g}{to} × golden's RMS",
        slice=f"{singular} {dimension}",
        slices=plural,
        dimension=dimension,
        listed=", ".join(map(str, pattern.indices)) + more,
    )


def slices_words(slices: NamedSlices) -> str:
    """``channels 17 and 700 of 768 (dimension 2)``."""
    few, last, size = list(map(str, slices.few)), slices.last, slices.size
    singular, plural = _names(slices.axis)
    looked_at = f", of which 1 in {slices.step} was looked at" if slices.step > 1 else ""
    dimension = f"(dimension {slices.axis.dim}{looked_at})"
    is_run = last - slices.few[0] == slices.count - 1
    if slices.count > len(few) and not is_run:
        return f"{slices.count} of {size} {plural} {dimension}: {', '.join(few)}, …"
    if slices.count == 1:
        end = {0: ", the first,", size - 1: ", the last,"}.get(last, "") if size > 2 else ""
        which = f"{singular} {last}{end}"
    elif slices.count > 2 and is_run:
        which = f"{plural} {few[0]} to {last}"
    else:
        which = f"{plural} {', '.join(few[:-1])} and {last}"
    return f"{which} of {size} {dimension}"


def _names(axis: Axis) -> tuple[str, str]:
    names = _SLICES.get(axis.ndim)
    return names[axis.dim] if names else ("slice", "slices")


def _factors(low: float, high: float | None) -> str:
    """Three digits; near 1, two of the difference from 1; a range in what tells its ends apart."""
    if high is not None:
        digits = max(2, math.ceil(-math.log10(high - low))) if 0 < high - low < 1 else 2
        return f"{low:.{digits}f} to {high:.{digits}f}"
    if 0 < abs(low - 1) < _NEAR_ONE:
        return str(round(low, 1 + math.ceil(-math.log10(abs(low - 1)))))
    return f"{low:.3g}"


def _percent(share: float) -> str:
    """``97 %``, or ``all``."""
    return "all" if share >= 1 - 1e-9 else f"{math.floor(100 * share)} %"
