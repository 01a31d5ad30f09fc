"""The shape of an error: where it is, what was done to the values, and the usual causes.

First ``marginals`` locates the slices with nearly all of the squared error. There ``transforms``
searches the simplest description of the candidate's values; if there is none, what the error
correlates with; else no pattern was found. Every claim has to explain nearly all of the squared
error, far more than noise does by chance."""

from __future__ import annotations

import math

import numpy as np

from accucompare.compare.measuring import Sample
from accucompare.compare.shape.marginals import (
    CERTAIN,
    SHARE,
    Slices,
    SumsOfSlices,
    Tensors,
    beyond_chance,
    carriers_of,
    pair_of,
    shares,
    slices_of_error,
    sums_of,
)
from accucompare.compare.shape.transforms import Description, describe, scales_and_offsets
from accucompare.compare.shape_facts import (
    BadElements,
    BadKind,
    ErrorCause,
    ErrorPlace,
    ErrorShape,
    Pattern,
    PatternKind,
)
from accucompare.numbers import DTYPES, Float64, Kind, round_to, widen

# share of the squared error on one side of zero; activations differ a little on the other side too
SIDE = 0.95
# the largest share of the squared error that "noise" lets any description explain beyond chance
NOISE = 0.1
# log d^2 against log golden^2 has slope 0 for an absolute error, 1 for a relative one, within this
SLOPE = 0.3
# of golden's largest magnitude: a single element that differs by more is no rounding
SPIKE = 0.1
# with fewer carriers of the error, correlation is not judged: chance may make 4 / sqrt(100)
UNRELATED = 100.0
FEWEST = 32.0  # with fewer elements that carry the error, nothing is called noise
SAMPLE = 1 << 16  # elements from which a share is estimated, to 0.4 %
RIGHT = 8.0  # roundings of the candidate's type: a relative L2 error up to this is right
BINS = 64  # of golden's values, to see whether they alone decide the error
SLIP = 0.5  # a factor of each row further from 1 is no wrong eps
#: sqrt(mean d^2 / mean golden^2) of rounding to p bits is this times 2^-p, for mantissas spread
#: evenly in their logarithm.
_ROUNDING = math.sqrt(2 * math.log(2) / 9)

_CLIPPED = (PatternKind.CLIPPED, PatternKind.CLIPPED_BELOW, PatternKind.CLIPPED_ABOVE)


def describe_error(
    golden: Float64,
    candidate: Float64,
    *,
    dtype: str = "float32",
    sample: Sample | None = None,
    normalised: bool = False,
) -> ErrorShape:
    """What an error looks like. Scaling both arrays by one factor changes only saturation. Raises
    ValueError if the shapes differ.

    Args:
        golden, candidate: float64 values of one shape, of any rank; NaN and Inf are allowed.
        dtype: the candidate's type (a name in ``DTYPES``): its largest value, and its rounding.
        sample: which part of two larger tensors the arrays are.
        normalised: whether they are a normalisation's output, where eps scales rows.
    """
    if golden.shape != candidate.shape:
        raise ValueError(f"shapes differ: {golden.shape} and {candidate.shape}")
    sample = sample or Sample.whole(golden.shape)
    with np.errstate(all="ignore"):
        bad = _not_finite(golden, candidate, sample)
        saturated = _saturated(golden, candidate, dtype)
        finite = np.isfinite(golden) & np.isfinite(candidate)
        if not finite.all():
            golden, candidate = np.where(finite, golden, 0.0), np.where(finite, candidate, 0.0)
        pair = pair_of(golden, candidate, sample)
        place, patterns = _where_and_what(pair, golden.shape, dtype, sample)
    causes = [cause for each in patterns if (cause := _cause_of(each, normalised)) is not None]
    if saturated:
        patterns = [each for each in patterns if each.kind not in _CLIPPED]  # it says the same
        causes = [ErrorCause.SATURATED, *causes]
    bad += saturated
    return ErrorShape(tuple(bad), place, tuple(patterns), tuple(causes), dtype, sample.one_in)


def _cause_of(pattern: Pattern, normalised: bool) -> ErrorCause | None:
    if pattern.kind is PatternKind.SOFTMAX_AGAIN:
        return ErrorCause.SOFTMAX
    if not normalised or pattern.kind is not PatternKind.SCALES or pattern.axis is not None:
        return None
    low, high = pattern.low or 0.0, pattern.high or 0.0
    # an eps that is too large shrinks every row, one that is too small grows it
    one_sided = SLIP < low <= high < 1 or 1 < low <= high < 1 / SLIP
    return ErrorCause.EPS if one_sided else None


def _saturated(golden: Float64, candidate: Float64, dtype: str) -> list[BadElements]:
    largest = DTYPES[dtype].largest
    if not largest or not golden.size or (golden.max() <= largest and golden.min() >= -largest):
        return []
    count = np.count_nonzero((np.abs(candidate) == largest) & (np.abs(golden) > largest))
    return [BadElements(BadKind.SATURATED, int(count), golden.size)] if count else []


def _not_finite(golden: Float64, candidate: Float64, sample: Sample) -> list[BadElements]:
    """Where one side is NaN or infinite and the other is not, or differs."""
    if np.isfinite(golden).all() and np.isfinite(candidate).all():
        return []
    same = (golden == candidate) | (np.isnan(golden) & np.isnan(candidate))
    facts = []
    for kind, bad in (
        (BadKind.NAN, np.isnan(candidate) & ~same),
        (BadKind.INFINITE, np.isinf(candidate) & ~same),
        (BadKind.FINITE, np.isfinite(candidate) & ~np.isfinite(golden)),
    ):
        if count := np.count_nonzero(bad):
            counted = pair_of(np.zeros(bad.shape), bad.astype(np.float64), sample)
            found = slices_of_error(counted, sums_of(counted)) if counted.places else []
            slices = tuple(place.named() for _, place in found)
            first = () if slices else _index(int(bad.argmax()), bad.shape, sample)
            facts.append(BadElements(kind, int(count), bad.size, slices, first))
    return facts


def _index(flat: int, shape: tuple[int, ...], sample: Sample) -> tuple[int, ...]:
    """The index in the whole tensor, from a flat index into the part looked at."""
    index = np.unravel_index(flat, shape)
    return tuple(int(own[at]) for own, at in zip(sample.indices(), index, strict=True))


def _where_and_what(
    whole: Tensors, shape: tuple[int, ...], dtype: str, sample: Sample
) -> tuple[ErrorPlace | None, list[Pattern]]:
    if whole.golden.size < 2 or not (sums := sums_of(whole)).carriers:
        return None, []
    if found := slices_of_error(whole, sums):
        part = whole.part([place for _, place in found])
        return _place(whole, found, dtype), _what(part, sums_of(part), dtype)
    spike = _spike(whole, shape, sample)
    return spike, [] if spike else _what(whole, sums, dtype)


def _place(whole: Tensors, found: list[tuple[float, Slices]], dtype: str) -> ErrorPlace:
    """Which slices hold the error; for a run of them, also what the rest is."""
    chosen, rest_identical = [place for _, place in found], None
    if len(chosen) == 1 and chosen[0].is_run and (rest := whole.rest(chosen[0])) is not None:
        diff, golden = (
            float(np.linalg.norm(values)) for values in (rest.candidate - rest.golden, rest.golden)
        )
        if diff <= RIGHT * DTYPES[dtype].rounding * golden:
            rest_identical = not diff
    share, slices = min(share for share, _ in found), tuple(place.named() for place in chosen)
    return ErrorPlace(share, slices, rest_identical=rest_identical)


def _spike(pair: Tensors, shape: tuple[int, ...], sample: Sample) -> ErrorPlace | None:
    """A single element that differs by much, which chance does not explain."""
    diff = (pair.candidate - pair.golden).reshape(-1)
    np.abs(diff, out=diff)
    at, total = int(diff.argmax()), float(diff @ diff)
    share = float(diff[at]) ** 2 / total
    if share < 0.99 or diff[at] < SPIKE * np.abs(pair.golden).max() or diff.size < FEWEST:
        return None
    return ErrorPlace(share, index=_index(at, shape, sample))


def _what(pair: Tensors, sums: SumsOfSlices, dtype: str) -> list[Pattern]:
    if best := describe(pair, sums):
        return [best.pattern]
    return (
        _steps(pair, dtype) + _by_golden(pair)
        or _low_rank(pair)
        or _unrelated(sums)
        or _noise(pair, sums)
    )


def _sampled(pair: Tensors) -> tuple[Float64, Float64]:
    golden, candidate = pair.golden.reshape(-1), pair.candidate.reshape(-1)
    if golden.size <= SAMPLE:
        return golden, candidate
    some = np.random.default_rng(0).integers(golden.size, size=SAMPLE)
    return golden[some], candidate[some]


def _steps(pair: Tensors, dtype: str) -> list[Pattern]:
    """Whether there are far fewer distinct values than golden has in the candidate's type."""
    golden, candidate = _sampled(pair)
    known = DTYPES[dtype]
    if known.kind is Kind.FLOAT and known.digits <= 24:
        golden = widen(round_to(golden, known), known)
    levels = len(np.unique(candidate))
    if not 1 < levels <= min(257, len(candidate) // 16) or len(np.unique(golden)) < 4 * levels:
        return []
    return [Pattern(PatternKind.FEW_VALUES, count=levels)]


def _by_golden(pair: Tensors) -> list[Pattern]:
    """Whether the error depends on golden's sign, or on golden's value alone.

    A sign must hold a far larger share of the error than of the elements and of golden's squares.
    """
    golden, candidate = _sampled(pair)
    diff = candidate - golden
    total, carriers = float(diff @ diff), carriers_of(diff)
    if not total:
        return []
    for kind, where in ((PatternKind.NEGATIVE, golden < 0), (PatternKind.POSITIVE, golden > 0)):
        share = float(diff[where] @ diff[where]) / total
        squares = float(golden[where] @ golden[where]) / (float(golden @ golden) or 1.0)
        expected = max(float(where.mean()), squares)
        evidence = beyond_chance(np.array(share), np.array(expected), carriers)
        if share >= SIDE and expected <= SHARE and evidence >= CERTAIN:
            return [Pattern(kind, share=share)]
    one = _function_of_golden(golden, candidate)
    return [one.pattern] if carriers >= 4 * BINS and one.certain() else []


def _function_of_golden(golden: Float64, candidate: Float64) -> Description:
    """Whether d is a function of golden: d's means in bins of golden wider than rounding's steps.

    If the candidate is small beside golden, any d is about -golden, so the remainder must also be
    small beside the candidate's variance."""
    diff = candidate - golden
    ordered = diff[np.argsort(golden, kind="stable")]
    starts = np.unique(np.arange(BINS) * len(ordered) // BINS)
    counts = np.diff(np.append(starts, len(ordered)))
    total = float(ordered @ ordered)
    left = max(0.0, 1 - float(np.sum(np.add.reduceat(ordered, starts) ** 2 / counts)) / total)
    varies = float(np.var(candidate)) * len(candidate)
    left = max(left, left * total / varies if varies else 1.0)
    return Description(Pattern(PatternKind.BY_GOLDEN), left, len(starts), carriers_of(diff))


def _crop(pair: Tensors) -> Float64:
    """An even sample of d, up to 64 rows by 512 columns."""
    length = pair.golden.shape[-1]
    golden, candidate = pair.golden.reshape(-1, length), pair.candidate.reshape(-1, length)
    rows, columns = -(-len(golden) // 64), -(-length // 512)
    return candidate[::rows, ::columns] - golden[::rows, ::columns]


def _low_rank(pair: Tensors) -> list[Pattern]:
    diff = _crop(pair)
    total = float(np.vdot(diff, diff))
    if min(diff.shape) < 8 or not total:
        return []
    left = max(0.0, 1 - float(np.linalg.norm(diff, 2)) ** 2 / total)
    one = Description(Pattern(PatternKind.ROWS_ALIKE), left, sum(diff.shape), carriers_of(diff))
    return [one.pattern] if one.certain() else []


def _unrelated(sums: SumsOfSlices) -> list[Pattern]:
    """Whether the candidate correlates with golden no more than by chance."""
    _, diff, product, golden = sums.leading.reshape(4, -1).sum(1).tolist()
    candidate, both = diff + 2 * product + golden, product + golden
    if sums.carriers < UNRELATED or not golden or not candidate:
        return []
    related = abs(both) > 4 * math.sqrt(golden * candidate / sums.carriers)
    return [] if related else [Pattern(PatternKind.UNRELATED)]


def _noise(pair: Tensors, sums: SumsOfSlices) -> list[Pattern]:
    """Whether the error is noise that nothing explains; its size, and whether golden scales it."""
    if sums.carriers < FEWEST or _explained(pair, sums) or _patterned(pair) or _uneven(pair, sums):
        return []
    golden, error = float(sums.leading[3].sum()), float(sums.leading[1].sum())
    if not golden:
        return [Pattern(PatternKind.NOISE)]
    ratio, slope = math.sqrt(error / golden), _slope(pair)
    bits = round(math.log2(min(max(_ROUNDING / ratio, 1.0), 2.0**53)))
    kind = PatternKind.ABSOLUTE if abs(slope) < SLOPE else PatternKind.NEITHER
    if abs(slope - 1) < SLOPE:
        kind = PatternKind.ROUNDING if bits > 1 else PatternKind.RELATIVE
    return [Pattern(kind, low=ratio, count=bits)]


def _explained(pair: Tensors, sums: SumsOfSlices) -> bool:
    """Whether scales or offsets explain more than they would of noise.

    k free numbers explain a share of k/n of noise, give or take sqrt(2k)/n. Four deviations more
    are allowed, and 16/n, the square of four deviations of a single number."""
    return any(
        1 - one.left > NOISE + (one.numbers + 6 * math.sqrt(one.numbers) + 16) / sums.carriers
        for one in scales_and_offsets(pair, sums)
    )


def _patterned(pair: Tensors) -> bool:
    """Whether rows of d are more alike than rows of noise.

    The largest singular value of noise is at most sqrt(rows) + sqrt(columns)."""
    diff = _crop(pair)
    for axis in (1, 0):
        norms = np.linalg.norm(diff, axis=axis, keepdims=True)
        diff = diff / np.maximum(norms, np.finfo(float).tiny)
    rows, columns = diff.shape
    first = float(np.linalg.norm(diff, 2)) ** 2 / (float(np.vdot(diff, diff)) or 1.0)
    return first > 3 * (1 / math.sqrt(rows) + 1 / math.sqrt(columns)) ** 2


def _uneven(pair: Tensors, sums: SumsOfSlices) -> bool:
    """Whether half the slices along a dimension, if not thin, hold too much of the error."""
    for dim, place in enumerate(pair.places):
        over = sums.over((dim,))
        if over is None or sums.carriers < 2 * len(place.chosen):
            continue
        share, expected = shares(over)
        half = np.argsort(-share / expected, kind="stable")[: (len(share) + 1) // 2]
        if share[half].sum() >= SHARE and expected[half].sum() < 1 - 2 * NOISE:
            return True
    return False


def _slope(pair: Tensors) -> float:
    """The slope of log d^2 to log golden^2 between golden's outer thirds; NaN if near or few."""
    golden, candidate = _sampled(pair)
    size, diff = np.abs(golden), candidate - golden
    low, high = np.quantile(size, (1 / 3, 2 / 3))
    small, large = (float(np.mean(golden[third] ** 2)) for third in (size <= low, size >= high))
    small_error, large_error = (
        float(np.mean(diff[third] ** 2)) for third in (size <= low, size >= high)
    )
    if len(golden) < 256 or not small or large < 16 * small or not small_error or not large_error:
        return math.nan
    return math.log(large_error / small_error) / math.log(large / small)
