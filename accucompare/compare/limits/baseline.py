"""The error that rounding alone makes, as a trusted capture in the candidate's precision shows.

**Excess.** The candidate's relative L2 error as a multiple of the baseline's, or of the dtype's
floor if the baseline happens to be closer to golden than rounding usually is.

**Limit.** Rounding errors are nearly random, so the ratio of two root mean squares of n of them is
random too. For independent normal numbers its square is F-distributed with n and n degrees of
freedom. The limit is the value that such a ratio exceeds once in a thousand, times a slack, since
real errors are not independent. With equal degrees of freedom sinh(ln(F) / 2) * sqrt(n) follows
Student's t with n degrees of freedom (P. Cacoullos, "A relation between t and F-distributions",
JASA 60, 1965)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from accucompare.bundle.format import Error, Key, Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.constants import HALF, SINGLE, SUMS_OF_RANKS, PrecisionOfBaseline
from accucompare.compare.measuring import Metrics
from accucompare.compare.pairing import Pair, Renaming, Signatures, by_argument, rename
from accucompare.compare.remarks import BareRemark, BaselineDtype, BaselineShape, PairRemark
from accucompare.errors import UsageError
from accucompare.numbers import DTYPES
from accucompare.places import Place
from accucompare.selection import Mode

_HALF_DIGITS = DTYPES["float16"].digits


#: Upper 0.1 % points of Student's t with 1 to 9 degrees of freedom, and of the normal distribution.
_STUDENT = (
    318.30883899,
    22.32712477,
    10.21453185,
    7.17318222,
    5.89342953,
    5.20762624,
    4.78528963,
    4.50079093,
    4.29680566,
)
NORMAL = 3.0902323061678132


@dataclass(frozen=True, slots=True)
class Expected:
    """The baseline's distance from golden in one record."""

    rel_l2: float  # relative L2 error; inf if only golden is all zeros
    rmse: float = 0.0  # root mean square error, for golden that is all zeros
    different: int = 0  # how many integers or booleans differ
    # the baseline's type if the candidate's is wider (a missing cast?); else ``""``
    dtype: str = ""
    one_minus_cosine: float | None = None  # ``None`` if the baseline keeps its errors only
    growth: float = 1.0  # how many times larger than measured ``rel_l2`` and ``rmse`` are

    @classmethod
    def kept(cls, error: Error, candidate: Record, baseline: Record) -> Expected:
        """From a baseline that keeps its errors instead of tensors."""
        return cls(
            math.inf if error.rel_l2 is None else error.rel_l2, error.rmse, error.different
        )._cast(candidate, baseline)

    @classmethod
    def of(cls, metrics: Metrics, candidate: Record, baseline: Record) -> Expected:
        angle = metrics.one_minus_cosine
        return cls(metrics.rel_l2, metrics.rmse, differing(metrics), one_minus_cosine=angle)._cast(
            candidate, baseline
        )

    def of_sums_over(self, ranks: int, dtype: str, size: float = 1.0) -> Expected:
        """As large as where so many ranks' partial sums are rounded to a type and added up.
        ``size``: how many times as large as the sum these are."""
        if (ranks == 1 and size == 1.0) or not is_half(dtype):
            return self
        first, power = SUMS_OF_RANKS
        growth = size * (first * ranks**power if ranks > 1 else 1.0)
        return replace(self, rel_l2=self.rel_l2 * growth, rmse=self.rmse * growth, growth=growth)

    @property
    def measured(self) -> float:
        """The baseline's own relative L2 error."""
        return self.rel_l2 / self.growth

    def _cast(self, candidate: Record, baseline: Record) -> Expected:
        """The same, with ``dtype`` set if the candidate computes in a wider type."""
        return replace(self, dtype=baseline.dtype) if is_wider(candidate, baseline) else self


def differing(metrics: Metrics) -> int:
    """How many integers or booleans of a pair differ; 0 where only statistics were compared."""
    return round((metrics.over_tolerance or 0.0) * metrics.compared)


def precision_of(dtype: str) -> PrecisionOfBaseline:
    """The row of the table for a floating or complex type."""
    return HALF if DTYPES[dtype].digits <= _HALF_DIGITS else SINGLE


def is_half(dtype: str) -> bool:
    """Whether a type has so few digits that rounding to it is most of the error."""
    return 0 < DTYPES[dtype].digits <= _HALF_DIGITS


def floor(dtype: str) -> float:
    """The smallest relative L2 error expected of a type, even if the baseline's is smaller."""
    return precision_of(dtype).floor * DTYPES[dtype].rounding


def excess(metrics: Metrics, expected: Expected, dtype: str) -> float:
    """The candidate's error as a multiple of the baseline's, or of its dtype's larger floor.

    If golden is all zeros, the ratio of the two root mean square errors."""
    if math.isfinite(metrics.rel_l2) and math.isfinite(expected.rel_l2):
        return metrics.rel_l2 / max(expected.rel_l2, floor(dtype))
    if not metrics.rmse:
        return 0.0
    return metrics.rmse / expected.rmse if expected.rmse else math.inf


def excess_limit(elements: int, dtype: str) -> float:
    """The largest excess that rounding explains in so many reals of the candidate's dtype."""
    return precision_of(dtype).slack * ratio_limit(elements)


@cache
def ratio_limit(elements: int) -> float:
    """The ratio of RMS of n normal numbers exceeds this once in 1000: sqrt(F.999(n, n))."""
    n = max(elements, 1)
    return math.exp(math.asinh(_student(n) / math.sqrt(n)))


def _student(n: int) -> float:
    """Student's t, upper 0.1 % point; expanded from n = 10 (Abramowitz & Stegun, 26.7.5)."""
    if n <= len(_STUDENT):
        return _STUDENT[n - 1]
    z = NORMAL
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / float(n) ** power for power, term in enumerate(terms, 1))


def matches(golden: Record, candidate: Record, baseline: Record) -> bool:
    """Whether a baseline's dtype is the candidate's, or float64 with golden as the candidate."""
    exact = baseline.dtype in ("float64", "complex128") and golden.dtype == candidate.dtype
    return candidate.dtype == baseline.dtype or (
        exact and DTYPES[golden.dtype].kind is DTYPES[baseline.dtype].kind
    )


def is_wider(candidate: Record, baseline: Record) -> bool:
    """Whether the candidate's type holds all of the baseline's and more: a cast may be missing."""
    own, expected = DTYPES[candidate.dtype], DTYPES[baseline.dtype]
    return (
        own.kind is expected.kind
        and own.digits > expected.digits
        and own.largest >= expected.largest
    )


def why_not(golden: Record, candidate: Record, baseline: Record | None) -> PairRemark | None:
    """Why a record of the baseline cannot judge a pair; ``None`` if it can."""
    if baseline is None:
        return BareRemark.NO_BASELINE
    if not (
        golden.has_values
        and candidate.has_values
        and (baseline.has_values or baseline.error is not None)
    ):
        return BareRemark.NO_VALUES
    if (baseline.shape, baseline.components) != (golden.shape, golden.components):
        return BaselineShape(baseline.shape)
    if baseline.shard != golden.shard:
        return BareRemark.OTHER_PART
    if not matches(golden, candidate, baseline) and not is_wider(candidate, baseline):
        return BaselineDtype(baseline.dtype)
    return None


def partners(
    golden: list[Record],
    baseline: list[Record],
    renamings: list[Renaming],
    signatures: tuple[Signatures, Signatures] = ({}, {}),
    narrowed: Iterable[str] = (),
) -> dict[Key, Record]:
    """The baseline's record for each of golden's, by the same name or else by a renaming.

    Args:
        signatures: as for ``pairing.pair_records``.
        narrowed: modules that only ran in golden's type; their outputs show no rounding.
    """
    pairs: dict[Key, Record] = {}
    inside = tuple(f"{name}." for name in narrowed)
    baseline = [
        record
        for record in baseline
        if not (
            record.name.startswith(inside)
            or (record.role is Role.OUTPUT and f"{record.name}." in inside)
        )
    ]
    by_key = {record.key: record for record in baseline}
    for record in golden:
        partner = by_key.get(record.key)
        if partner is None and renamings:
            new = rename(record.name, renamings)
            partner = None if new is None else by_key.get(record.key._replace(name=new))
        if partner is not None:
            pairs[record.key] = partner
    taken = {partner.key for partner in pairs.values()}
    left = (
        [record for record in golden if record.key not in pairs],
        [record for record in baseline if record.key not in taken],
    )
    return {**pairs, **by_argument(*left, renamings, signatures)}


def check_feed(golden: Bundle, candidate: Bundle) -> None:
    """Raise UsageError if the candidate was fed with another bundle than golden."""
    if not _fed_with(golden, candidate):
        raise UsageError(
            f"{candidate.path}: was fed with another bundle than {golden.path}"
            f" ({_fed_by(candidate)}); compare it with that one"
        )


def check_baseline(golden: Bundle, candidate: Bundle, baseline: Bundle) -> None:
    """Refuse a baseline that cannot judge the candidate. Raises UsageError if it holds statistics
    only, is incomplete, was not fed as the candidate was, or is the candidate or golden itself."""
    for side in (golden, candidate):
        if baseline.path.resolve() == side.path.resolve():
            raise UsageError(f"{baseline.path}: cannot be the baseline, too; capture another")
    if (mode := baseline.manifest.options.mode) in (Mode.STATS, Mode.DIGEST):
        raise UsageError(
            f"{baseline.path}: holds no values (mode {mode}) to tell an error by; capture the"
            " baseline in mode tensors or sketch"
        )
    if baseline.manifest.options.round_feed is not None:
        raise UsageError(
            f"{baseline.path}: was fed with golden's values rounded (--round-feed), so it is no"
            " baseline; capture one without"
        )
    if not baseline.complete:
        raise UsageError(f"{baseline.path}: is incomplete, so it is no baseline; capture it again")
    if candidate.manifest.fed is not baseline.manifest.fed:
        if candidate.manifest.fed:
            raise UsageError(
                f"{baseline.path}: is a free-running baseline, but the candidate {candidate.path}"
                f" is fed; capture it with --feed {golden.path}"
            )
        raise UsageError(
            f"{baseline.path}: is a fed baseline, but the candidate {candidate.path} is"
            " free-running; capture it without --feed"
        )
    if not _fed_with(golden, baseline):
        raise UsageError(
            f"{baseline.path}: was fed with another bundle than {golden.path}"
            f" ({_fed_by(baseline)}); capture it with --feed {golden.path}"
        )


def check_beside(golden: Bundle, run: Bundle, rounded: bool) -> None:
    """Refuse a run beside a baseline unless it is in golden's precision, on golden's values. Raises
    UsageError if it is not.

    Args:
        golden: what it should have been fed with.
        rounded: whether golden's values were to be rounded before they were fed.
    """
    options = run.manifest.options
    if not run.complete:
        raise UsageError(
            f"{run.path}: is incomplete, so it proves nothing; capture it again, or remove it"
        )
    if not run.manifest.fed or not _fed_with(golden, run):
        raise UsageError(
            f"{run.path}: was not fed with {golden.path}, so it proves nothing; capture it with"
            f" --feed {golden.path}"
        )
    if (options.dtype, options.emulate) != (
        golden.manifest.options.dtype,
        golden.manifest.options.emulate,
    ):
        raise UsageError(
            f"{run.path}: is of another precision than {golden.path}, so it proves nothing; capture"
            " it with golden's"
        )
    if (options.round_feed is not None) is not rounded:
        how = "with --round-feed" if rounded else "without --round-feed"
        raise UsageError(f"{run.path}: must be captured {how}; capture it again, or remove it")


def check_dtypes(pairs: Iterable[Pair], baselines: dict[Key, Record], path: Place) -> None:
    """Refuse a baseline if most of its records have another dtype than the candidate's. Raises
    UsageError if most differ. A few are judged without it, or as ``is_wider`` says.

    Args:
        pairs: golden and the candidate.
        baselines: the baseline's record for each of golden's.
    """
    wrong: Counter[tuple[str, str, str]] = Counter()
    right = 0
    for pair in pairs:
        third = None if pair.golden is None else baselines.get(pair.golden.key)
        if (
            pair.golden is None
            or pair.candidate is None
            or third is None
            or not all(map(_floats, (pair.golden, pair.candidate, third)))
        ):
            continue
        if matches(pair.golden, pair.candidate, third):
            right += 1
        else:
            wrong[pair.golden.dtype, pair.candidate.dtype, third.dtype] += 1
    if sum(wrong.values()) > right:
        golden, candidate, baseline = max(wrong, key=wrong.__getitem__)
        raise UsageError(
            f"{path}: the baseline computes in {baseline}, but the candidate in {candidate};"
            f" capture it with --dtype {candidate}{' or float64' if golden == candidate else ''}"
        )


def _floats(record: Record) -> bool:
    return record.dtype in DTYPES and DTYPES[record.dtype].digits > 0


def _fed_by(bundle: Bundle) -> str:
    feed = bundle.manifest.feed
    return "" if feed is None else f"{feed.golden}, identity {feed.identity}"


def _fed_with(golden: Bundle, bundle: Bundle) -> bool:
    """Whether a bundle is free-running, or was fed with this golden."""
    feed = bundle.manifest.feed
    return feed is None or feed.identity == golden.identity()
