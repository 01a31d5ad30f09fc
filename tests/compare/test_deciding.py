"""The numbers that decide, each from both sides: just within it something is decided one way, just
beyond it the other.

``make mutants`` changes each by a tenth, and expects that its case here fails, or the tests that it
names elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accucompare as ac
from accucompare.bundle.format.manifest import StepSeries
from accucompare.bundle.format.records import Record
from accucompare.compare.constants import SINGLE
from accucompare.compare.fusions import is_sum
from accucompare.compare.judging.judge import judge_pair, settle_noise, settle_unsteady
from accucompare.compare.layouts.layout_checks import _are_alike
from accucompare.compare.limits import LimitsInForce, Tolerance, floor, kernels_of
from accucompare.compare.limits.baseline import Expected
from accucompare.compare.measuring.masks import is_masked
from accucompare.compare.measuring.measure import Metrics
from accucompare.compare.origins.culprits import find_culprits
from accucompare.compare.origins.terms import Terms
from accucompare.compare.origins.trace import Trace
from accucompare.compare.pairing.sequences import numbered_as
from accucompare.compare.remarks import RoutedOtherwise
from accucompare.compare.rows.rows import Reason, Row, Status, Verdict
from accucompare.compare.runs.acceptance import Acceptance, accept
from accucompare.compare.runs.step_pairs import StepPair, settings_of
from accucompare.compare.runs.wander import Apart, Quantity, RunLimits, Wander, envelope
from accucompare.errors import UsageError
from accucompare.numbers.dtypes import DTYPES
from accucompare.report.words import limit_words
from accucompare.selection import Standard
from benchmarks.mutants import deciding, near
from tests.compare.builder import Item, compare, item, write
from tests.compare.test_closer import fed, gradient, updated
from tests.compare.test_sequences import operators, records

#: What is decided with a value: given the value, and a folder of its own.
Decision = Callable[[float, Path], bool]

#: By the number's name: the decision, a value just within the number, and one just beyond it.
CASES: dict[str, tuple[Decision, float, float]] = {}


def decides(name: str, within: float, beyond: float) -> Callable[[Decision], Decision]:
    """Within, the decision is False; beyond, it is True."""

    def add(decision: Decision) -> Decision:
        CASES[name] = decision, within, beyond
        return decision

    return add


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    def each() -> Iterator[Path]:
        for name in ("within", "beyond"):
            (tmp_path / name).mkdir()
            yield tmp_path / name

    return each()


# a pair alone


def judged(
    error: float,
    dtype: str = "float32",
    expected: float | None = None,
    elements: int = 10**12,
    **limits: Any,
) -> Verdict:
    """The verdict on a relative L2 error in so many elements, by a baseline's error if there is
    one; ``limits``: of ``LimitsInForce``.
    """
    record = item("fc", dtype=dtype, shape=(4,), type=limits.pop("type", "Linear")).record
    tolerance = LimitsInForce(**limits).tolerance_for(record, record)
    metrics = Metrics(rel_l2=error, compared=elements)
    return judge_pair(
        record, record, metrics, tolerance, None if expected is None else Expected(expected)
    )


def over(verdict: Verdict) -> bool:
    return verdict.reason is Reason.OVER


def of_type(dtype: str, default: float, fed: float, free: float) -> None:
    """The limits of a type: its default, and the ceilings under which another run may call an error
    rounding.
    """
    place = f"constants.BY_DIGITS[{DTYPES[dtype].digits}]"
    decides(f"{place}[0]", 0.96 * default, 1.04 * default)(
        lambda error, _: over(judged(error, dtype))
    )
    decides(f"{place}[1]", 0.96 * fed, 1.04 * fed)(
        lambda error, _: over(judged(error, dtype, error, fed=True))
    )
    decides(f"{place}[2]", 0.96 * free, 1.04 * free)(
        lambda error, _: judged(error, dtype, error).beyond
    )


of_type("float64", 1e-10, 1e-9, 1e-6)
of_type("float32", 1e-4, 1e-3, 1e-2)
of_type("float16", 1e-2, 3e-2, 0.2)
of_type("bfloat16", 5e-2, 0.125, 0.5)
of_type("float8_e4m3fn", 0.25, 0.5, 1.0)
of_type("float8_e5m2", 0.5, 1.0, 1.0)
of_type("float8_e8m0fnu", 1.0, 1.0, 1.0)

decides("constants.FED_ROUNDINGS", 3.9, 4.1)(
    lambda roundings, _: over(judged(roundings * 2.0**-11, "float16", fed=True))
)
decides("constants.FED_ROUNDINGS_OF_SUMS", 31.0, 33.0)(
    lambda roundings, _: over(judged(roundings * 2.0**-24, "float32", fed=True))
)


@pytest.mark.parametrize(("roundings", "fails"), [(3.9, False), (4.1, True)])
def test_a_module_that_only_copies_is_off_by_its_roundings_whatever_the_baseline(
    roundings: float, fails: bool
) -> None:
    error = roundings * 2.0**-24
    assert (
        over(judged(error, "float32", error, fed=True, copies=frozenset({"ReLU"}), type="ReLU"))
        is fails
    )


@pytest.mark.parametrize(("products", "fails"), [(2.0**-12, False), (2.0**-13, True)])
def test_products_as_coarse_as_hf32s_have_the_limit_of_a_coarse_type(
    products: float, fails: bool
) -> None:
    """Four of their roundings, where finer ones have the 32 of long sums."""
    assert over(judged(3.9 * 2.0**-12, "float32", fed=True, rounding=products)) is False
    assert over(judged(8.0 * products, "float32", fed=True, rounding=products)) is not fails


# Half types: half a rounding at least is expected, and twice that passes; others 2 and 4.
decides("constants.HALF.slack", 1.95, 2.05)(
    lambda times, _: over(judged(times * 0.01, "bfloat16", 0.01))
)
decides("constants.SINGLE.slack", 3.9, 4.1)(
    lambda times, _: over(judged(times * 1e-5, "float32", 1e-5))
)
decides("constants.HALF.floor", 0.98, 1.02)(
    lambda roundings, _: over(judged(roundings * 2.0**-8, "bfloat16", 0.0))
)
decides("constants.SINGLE.floor", 7.9, 8.1)(
    lambda roundings, _: over(judged(roundings * 2.0**-24, "float32", 0.0))
)


@pytest.mark.parametrize(("dtype", "fails"), [("float16", True), ("float32", False)])
def test_half_types_have_less_slack(dtype: str, fails: bool) -> None:
    assert over(judged(3e-3, dtype, 1e-3)) is fails


@decides("constants.FEW", 63, 64)
def closer_than_the_baseline(elements: float, _: Path) -> bool:
    return judged(0.0005, "bfloat16", 0.01, int(elements)).reason is Reason.OVER_PRECISE


@decides("constants.DEVIATIONS", 260, 262)
def more_choices_than_by_rounding(changed: float, _: Path) -> bool:
    """The baseline changes 200 of 1,000: 200 + 3 sqrt(400) + 1."""
    record = item("topk", dtype="int64", shape=(1000,)).record
    metrics = Metrics(compared=1000, max_abs=1.0, over_tolerance=changed / 1000)
    return over(judge_pair(record, record, metrics, Tolerance(), Expected(math.inf, different=200)))


@decides("constants.IN_PART", 3.9, 4.1)
def a_part_far_beyond_rounding(times: float, tmp_path: Path) -> bool:
    """The last 32 of 1,024 tokens are off by so many times the limit of bfloat16; those before
    are as they were, so that the whole is well within."""
    values = np.ones((1024, 512), np.float32)
    off = values.copy()
    off[-32:] *= 1 + times * 5e-2
    comparison = compare(tmp_path, [item("fc", values, "bfloat16")], [item("fc", off, "float32")])
    assert comparison.exit_code in (0, 2)
    return comparison.exit_code == 2


FAILED = Verdict(Reason.INTRODUCED)
DEFAULT = Tolerance(rel_l2=1e-4, by_default=True)


@decides("constants.RUNS", 1.95, 2.05)
def no_noise_of_two_runs(times: float, _: Path) -> bool:
    return (
        settle_noise(FAILED, DEFAULT, Metrics(rel_l2=times * 0.01), 0.01).reason
        is not Reason.NOT_DETERMINISTIC
    )


@decides("constants.UNSTEADY", 0.098, 0.102)
def no_reference(apart: float, _: Path) -> bool:
    return (
        settle_unsteady(FAILED, DEFAULT, Metrics(rel_l2=0.5), apart).reason
        is Reason.NOT_DETERMINISTIC
    )


decides("constants.NEAR", 0.49, 0.51)(lambda used, _: Verdict(Reason.OK, over_limit=used).near)
decides("constants.NEAR_LOWEST", -0.9896, -0.9904)(
    lambda times, _: bool(is_masked(np.array([times * 65504.0]), DTYPES["float16"])[0])
)


@decides("constants.SMALLEST_COSINE", 0.49, 0.51)
def a_similarity(cosine: float, _: Path) -> bool:
    try:
        return Tolerance(cosine=cosine).has_limit
    except UsageError:
        return False


def summed(terms: int, error: float) -> bool:
    record = item("norm", dtype="float32", shape=(4,)).record
    tolerance = Tolerance(rel_l2=1e-7, by_default=True).of_sums(terms, "float32")
    return over(judge_pair(record, record, Metrics(rel_l2=error, compared=10**6), tolerance))


decides("constants.ORDERS_OF_SUMS", 3.9, 4.1)(
    lambda times, _: summed(10_000, times * 100 * 2.0**-24)
)
decides("constants.MOST_OF_SUMS", 0.98e-4, 1.02e-4)(lambda error, _: summed(1 << 40, error))


def more_than_sums_of_ranks_make(ranks: int, times: float) -> bool:
    """Whether an error is too large, that is so many times that of a baseline on one device."""
    expected = Expected(0.01).of_sums_over(ranks, "bfloat16")
    return over(judged(times * 2 * 0.01, "bfloat16", expected.rel_l2))


decides("constants.SUMS_OF_RANKS[0]", 0.96 * 1.465, 1.04 * 1.465)(
    lambda times, _: more_than_sums_of_ranks_make(2, times)
)
decides("constants.SUMS_OF_RANKS[1]", 0.96 * 4.44, 1.04 * 4.44)(
    lambda times, _: more_than_sums_of_ranks_make(32, times)
)


# where an error comes from


def record(
    name: str,
    role: str,
    parent: tuple[str, int] | None = ("", 0),
    dtype: str = "float32",
    **fields: Any,
) -> Record:
    return item(name, role=role, parent=parent, dtype=dtype, shape=(1000,), **fields).record


def second_error(first: Record, second: Record, times: float) -> bool:
    """Whether a fed call's second error, so many times as far over its limit, is one of its own."""
    fed = Trace(fed=True)
    assert fed.trace(first, Verdict(Reason.OVER, over_limit=1.5)).reason is Reason.GLUE
    return fed.trace(second, Verdict(Reason.OVER, over_limit=1.5 * times)).reason is Reason.GLUE


@decides("constants.MUCH_FURTHER", 7.8, 8.2)
def another_error_of_the_same_code(times: float, _: Path) -> bool:
    forward = second_error(record("a", "input"), record("b", "input"), times)
    backward = second_error(record("b", "grad_output"), record("a", "grad_output"), times)
    assert forward is backward
    return forward


@decides("constants.FREE_GRADIENTS", 3.9, 4.1)
def a_gradient_beyond_that_of_free_runs(times: float, folder: Path) -> bool:
    x = np.linspace(-1, 1, 64)
    golden, candidate = (
        item("fc", x * factor, "float64", role="grad_input")
        for factor in (1.0, 1.0 + times * 1e-10)
    )
    return not compare(folder, [golden], [candidate]).passed


@decides("constants.CANCELS", 9.8, 10.2)
def terms_cancel(times: float, folder: Path) -> bool:
    terms, x = Terms(), np.linspace(-1, 1, 64)
    roles = {"input": x, "output": x, "grad_output": x, "grad_input": x / times}
    items = [item("n", value, role=role, type="LayerNorm") for role, value in roles.items()]
    with ac.open_bundle(write(folder / "golden", items)) as bundle:
        *before, last = bundle.records()
    for each in before:
        terms.spread(each)
        terms.widened(Tolerance(), each, "float64")
    return terms.cancelled(last) > 1.0


def row(
    where: Record,
    reason: Reason = Reason.INTRODUCED,
    metrics: Metrics | None = None,
    **verdict: Any,
) -> Row:
    return Row(where, where, Verdict(reason, **verdict), metrics)


@decides("constants.ALIKE", 1.95, 2.05)
def a_larger_error_of_glue_comes_first(times: float, _: Path) -> bool:
    """Of about equal errors, that of a module does."""
    rows = [
        row(record("a", "input"), Reason.GLUE, over_limit=100.0),
        row(record("b", "output"), over_limit=100.0 / times),
    ]
    return find_culprits(rows, fed=True, has_baseline=False)[0].site == "glue"


@decides("constants.SMALLEST_JUMP", 1.48, 1.52)
def a_jump(times: float, _: Path) -> bool:
    rows = [
        row(record("a", "input"), Reason.OK, excess=2.0),
        row(record("a", "output"), excess=2.0 * times),
    ]
    return bool(find_culprits(rows, fed=False, has_baseline=True))


@decides("constants.MANY", 0.098, 0.102)
def other_integers_come_first(share: float, _: Path) -> bool:
    integers = row(
        record("topk", "output", dtype="int64"),
        metrics=Metrics(compared=1000, over_tolerance=share),
    )
    rows = [row(record("fc", "output"), over_limit=50.0), integers]
    return find_culprits(rows, fed=True, has_baseline=False)[0].name == "topk"


@decides("constants.CLEAR", 1.95, 2.05)
def an_error_of_the_first_step_leads(times: float, _: Path) -> bool:
    rows = [
        row(record(name, "output", step=step), over_limit=used)
        for step, name, used in ((0, "a", times), (1, "b", 50.0))
    ]
    return find_culprits(rows, fed=True, has_baseline=False, updated=True)[0].name == "a"


@decides("constants.ALIKE_OPERATORS", 0.098, 0.102)
def an_operator_less_at_the_beginning(apart: float, _: Path) -> bool:
    """Of two operators of golden's, the first is missing if what the candidate's is given is not
    the first one's.
    """
    other = f"mul x{1 / (1 - apart)}"
    ours, theirs = records(operators("mul", other)), records(operators(other))
    return numbered_as(ours, theirs)[0].operator[1] == 1


# a closer look at gradients and updates

DRAW = np.random.default_rng(3)
NORMAL = DRAW.normal(size=4096)
#: Errors at right angles to it and to each other, of its norm.
SHARED, OWN = np.linalg.qr(np.stack([NORMAL, *DRAW.normal(size=(2, 4096))]).T)[0].T[
    1:
] * np.linalg.norm(NORMAL)


def off_in_common(
    folder: Path, factor: float, *, own: float = 0.0, shared: float = 0.08, baseline: float = 0.0
) -> bool:
    """Whether the elements of a gradient are off by a factor in common, in bfloat16: the
    baseline's, and so much more.
    """
    theirs = (NORMAL + shared * SHARED) * (1 + baseline)
    (found,) = fed(
        folder,
        *map(
            gradient,
            (NORMAL, (NORMAL + shared * SHARED) * (1 + baseline + factor) + own * OWN, theirs),
        ),
    )
    assert limit_words.rule(found.verdict.limit) in ("common factor", "baseline")
    return limit_words.rule(found.verdict.limit) == "common factor"


decides("constants.COMMON_ROUNDINGS", 0.0080, 0.0088)(
    lambda factor, folder: off_in_common(folder, factor)
)
decides("constants.OF_BASELINE", 0.0385, 0.0425)(
    lambda factor, folder: off_in_common(folder, factor, baseline=0.02)
)


@decides("constants.STANDARD_ERRORS", 3.85, 4.15)
def off_by_more_than_chance(errors: float, folder: Path) -> bool:
    """An error of 8 % of each run's own: its share along golden is chance, up to some standard
    errors.
    """
    standard = 0.08 * np.abs(NORMAL).max() / np.linalg.norm(NORMAL)
    return off_in_common(folder, 2 * 2.0**-8 + errors * standard, own=0.08)


@decides("constants.ROUNDINGS_OF_UPDATE", 7.8, 8.2)
def beyond_the_last_place(roundings: float, folder: Path) -> bool:
    """An update of 1 of a parameter of 0: in ten elements off by a last place, and by so many
    roundings of the largest.
    """
    nothing, ones = np.zeros(400), np.ones(400)
    off = ones + np.where(np.arange(400) < 10, 2.0**-7 + roundings * 2.0**-8, 0.0)
    candidate, baseline = (
        updated(nothing, ones, "bfloat16", stored) for stored in (off, ones * (1 + 2.0**-8))
    )
    return (
        limit_words.rule(
            fed(folder, updated(nothing, ones, "float32"), candidate, baseline)[-1].verdict.limit
        )
        == "last place"
    )


@decides("constants.ROUNDED_DECAY", 2.86e-5, 3.1e-5)
def another_mean_of_squares(off: float, folder: Path) -> bool:
    """Adam's second moment, of a kernel that rounds 1 - beta2."""
    golden, candidate, baseline = (
        [item("fc", values, role="state_after", path="weight.exp_avg_sq", parent=None)]
        for values in (np.ones(400, np.float32), np.full(400, 1 + off, np.float32), np.ones(400))
    )
    return fed(folder, golden, candidate, baseline)[-1].status is Status.FAIL


# what something other than an update changes


def changed(
    folder: Path,
    dtype: str,
    before: np.ndarray,
    update: np.ndarray,
    after: np.ndarray,
    *,
    fed: bool,
) -> bool:
    """Whether it is told that golden alone has changed a parameter between two updates."""
    given = [
        item("fc", before, dtype, role="param_before", path="w", parent=None),
        item("fc", update, dtype, role="param_update", path="w", parent=None),
    ]
    trained: dict[str, Any] = {"backward": True, "no_backward": False}
    after_both = item("fc", after, dtype, role="param_changed", path="w", parent=None, call=1)
    golden = write(folder / "golden", [*given, after_both], capture=trained)
    if fed:
        with ac.open_bundle(golden) as opened:
            trained["feed"] = {
                "identity": opened.identity(),
                "not_fed": [],
                "golden": "",
                "backward": True,
            }
    return (
        ac.diff(golden, write(folder / "candidate", given, capture=trained)).rows[-1].reason
        is not Reason.NOT_COMPARABLE
    )


@decides("constants.ROUNDINGS_OF_CHANGE", 1.92, 2.12)
def a_change_beyond_rounding(roundings: float, folder: Path) -> bool:
    """Ones in bfloat16, of which some are one or two last places larger, by so many roundings in
    the root mean square.
    """
    one = min((roundings / 2) ** 2, 1.0)
    two = max((roundings / 2) ** 2 - 1.0, 0.0) / 3
    places = np.select([np.arange(1000) < 1000 * two, np.arange(1000) < 1000 * one], [2, 1])
    return changed(
        folder, "bfloat16", np.zeros(1000), np.ones(1000), 1 + places * 2.0**-7, fed=True
    )


@decides("constants.SHARE_OF_UPDATE", 0.049, 0.051)
def a_change_beyond_a_share_of_the_update(share: float, folder: Path) -> bool:
    ones = np.ones(8)
    return changed(folder, "float64", ones, ones, 2 * ones - share, fed=False)


# gradients that are golden's times one number

#: Of one norm, and directions at right angles to them.
GRADIENTS = [each / np.linalg.norm(each) for each in DRAW.normal(size=(3, 64))]
ASIDE = [
    other - gradient * (gradient @ other)
    for gradient, other in zip(GRADIENTS, DRAW.normal(size=(3, 64)), strict=True)
]


def scaled(folder: Path, *gradients: tuple[float, float, float]) -> bool:
    """Whether gradients of a size, times a factor, and off by a share aside, are taken for golden's
    times one number.
    """
    sides: tuple[list[Item], list[Item]] = ([], [])
    for place, (size, factor, aside) in enumerate(gradients):
        off = ASIDE[place] * aside / np.linalg.norm(ASIDE[place])
        for side, values in zip(
            sides, (GRADIENTS[place], factor * (GRADIENTS[place] + off)), strict=True
        ):
            side.append(
                item(
                    f"fc{place}",
                    size * values,
                    "float64",
                    role="param_grad",
                    path="weight",
                    parent=None,
                )
            )
    return any(culprit.scaled for culprit in compare(folder, *sides).culprits)


@decides("constants.SPREAD", 0.97e-6, 1.03e-6)
def factors_too_far_apart(apart: float, folder: Path) -> bool:
    return not scaled(folder, (1.0, 0.5 * (1 + apart), 0.0), (1.0, 0.5 * (1 - apart), 0.0))


decides("constants.DISTINCT", 0.97e-5, 1.03e-5)(
    lambda off, folder: scaled(folder, (1.0, 1 + off, 0.0), (1.0, 1 + off, 0.0))
)
decides("constants.FEWEST_GRADIENTS", 1, 2)(
    lambda count, folder: scaled(folder, *[(1.0, 0.5, 1e-10)] * int(count))
)


@decides("constants.OF_REST", 2.95, 3.05)
def a_small_gradient_of_another_factor(times: float, folder: Path) -> bool:
    """Beside large ones: it may be off by so many times what is left of it."""
    return not scaled(
        folder, (1.0, 0.5, 0.0), (1.0, 0.5, 0.0), (1e-8, 0.5 * (1 + times * 1e-3), 1e-3)
    )


# two runs of training


@decides("constants.TOGETHER", 9, 10)
def a_step_apart_tells_nothing_of_the_first(step: float, _: Path) -> bool:
    golden = {(0, place): 1.0 for place in range(20)}
    other = {**golden, (0, int(step)): 1.1}
    return envelope(golden, other, "float32")[0, 0] < 0.1


decides("constants.BIASED", 3.9, 4.1)(lambda errors, _: Wander(20, errors, 1.0, 1.0).biased)
decides("constants.FEWEST_STEPS", 9, 10)(lambda steps, _: Wander(int(steps), 5.0, 1.0, 1.0).biased)


@decides("wander._WIDER[Quantity.LOSS]", 0.98e-4, 1.02e-4)
def a_loss_over_its_limit(off: float, _: Path) -> bool:
    found = RunLimits("float32", Tolerance(), {}).apart(Quantity.LOSS, (0, 0), 1.0, 1.0 + off)
    assert found is not None
    return found.over


def standard(
    count: int = 100, *, loss: float = 1.0, first: float = 0.0, mean: float = 0.0, norm: float = 0.0
) -> Acceptance:
    """MindFormers' verdict on runs of a loss whose first is off by so much, and their mean; and
    norms, relatively.
    """
    losses = [first] + [(mean * count - first) / (count - 1)] * (count - 1)
    apart = [
        (Apart(loss, loss + off, 1.0, 1.0), Apart(3.0, 3.0 * (1.0 + norm), 1.0, 1.0))
        for off in losses
    ]
    return accept(
        Standard.MINDFORMERS,
        [StepPair(0, step, None, None, *both) for step, both in enumerate(apart)],
    )


# A loss may be off by a number or by a share, whichever is the laxer: of 0.1, and of 10.
for place, which, most in ((0, "first", 0.005), (1, "mean", 0.01)):
    for limit, loss in ((1, 0.1), (2, 10.0)):
        size = most * max(loss, 1.0)
        decides(
            f"acceptance.PRESETS[Standard.MINDFORMERS].rules[{place}][{limit}]",
            0.98 * size,
            1.02 * size,
        )(lambda off, _, loss=loss, which=which: not standard(loss=loss, **{which: off}).kept)
decides("acceptance.PRESETS[Standard.MINDFORMERS].rules[2][2]", 0.099, 0.101)(
    lambda off, _: not standard(norm=off).kept
)


def composed_by(kind: str, roundings: int) -> None:
    """A recurrent module's output in bfloat16 whose baseline hardly rounds: so many roundings are
    the least that the baseline counts as.
    """

    def is_off(times: float, folder: Path) -> bool:
        signs, order = (np.random.default_rng(seed).permutation(65536) for seed in (0, 1))
        golden = write(
            folder / "golden",
            [item("rnn", np.where(signs % 2, 1.0, -1.0).astype(np.float32)[None], type=kind)],
        )
        fed_by = {"golden": "golden", "identity": ac.open_bundle(golden).identity(), "not_fed": []}
        sides = []
        for name, error in (
            ("candidate", math.sqrt(times) * 2.02 * 2.0**-9),
            ("baseline", 2.0**-12),
        ):
            # of so many values
            off_by = np.where(
                order < (error * 2**6) ** 2 * 65536, np.where(signs % 3, 1, -1) * 2.0**-6, 0
            )
            values = (np.where(signs % 2, 1.0, -1.0) * (1 + off_by)).astype(np.float32)[None]
            model = {"classes": {kind: ["torch.nn.modules.rnn"]}}
            sides.append(
                write(
                    folder / name,
                    [item("rnn", values, "bfloat16", type=kind)],
                    capture={"feed": fed_by},
                    model=model,
                )
            )
        return not ac.diff(golden, sides[0], baseline=sides[1]).passed

    decides(f"constants.RECURRENT['{kind}']", roundings - 0.2, roundings + 0.2)(is_off)


def kernel_of_a_device(kind: str, pattern: str, times: float) -> None:
    """An output in float32 against a float64 baseline without an error of its own."""

    def is_off(off: float, _: Path) -> bool:
        record = item(type=kind, dtype="float32", shape=(4,)).record
        tolerance = LimitsInForce(fed=True).tolerance_for(record, record)
        metrics = Metrics(rel_l2=off * SINGLE.slack * floor("float32"), compared=10**12)
        tolerance = tolerance.of_kernels(kernels_of(kind))
        return over(judge_pair(record, record, metrics, tolerance, Expected(0.0)))

    name = f"constants.KERNELS_OF_DEVICES[{pattern!r}]"
    decides(name, 0.96 * times, 1.04 * times)(is_off)


kernel_of_a_device("ConvTranspose2d", "Conv(Transpose)?[123]d", 3.0)
kernel_of_a_device("LSTM", "^(LSTM|GRU|RNN)$", 16.0)
kernel_of_a_device("CTCLoss", "^CTCLoss$", 8.0)


composed_by("LSTM", 6)
composed_by("GRU", 6)
composed_by("RNN", 2)


@decides("acceptance.PRESETS[Standard.MINDFORMERS].least_steps", 999, 1000)
def enough_steps(count: float, _: Path) -> bool:
    pairs = [
        StepPair(0, step, StepSeries(step), StepSeries(step), *[Apart(1.0, 1.0, 1.0, 1.0)] * 2)
        for step in range(int(count))
    ]
    return accept(Standard.MINDFORMERS, pairs).passed


@decides("constants.SAME_RATE", 0.97e-6, 1.03e-6)
def another_learning_rate(off: float, _: Path) -> bool:
    sides = (
        StepSeries(0, losses=(1.0,), lr={"SGD.0": rate}, updates=1)
        for rate in (0.1, 0.1 * (1 + off))
    )
    return bool(settings_of([StepPair(0, 0, *sides)], {}))


@decides("constants.FLIPPED", 7.8, 8.2)
def a_margin_beyond_rounding(times: float, folder: Path) -> bool:
    golden = np.tile(np.float32([3.0, 2.0, 1.0]), (4096, 1))
    golden[0] = [2.0, 2.0 - times * 1e-5, 1.0]
    candidate = golden + np.where(np.arange(3 * 4096) % 2, 1e-5, -1e-5).reshape(-1, 3)
    candidate[0] = [2.0 - times * 0.5e-5, 2.0 - times * 0.4e-5, 1.0]
    sides = [
        write(
            folder / name,
            [
                item("router", scores.astype(np.float32), path="0"),
                item("router", scores.argmax(1)[:, None], path="1"),
            ],
        )
        for name, scores in (("golden", golden), ("candidate", candidate))
    ]
    return any(
        isinstance(remark, RoutedOtherwise) and not remark.by_rounding
        for row in ac.diff(*sides).rows
        for remark in row.verdict.remarks
    )


@decides("constants.OF_CHOSEN", 1.95, 2.05)
def beyond_what_was_chosen_otherwise(times: float, folder: Path) -> bool:
    golden = np.tile(np.float32([3.0, 2.0, 1.0]), (64, 1))
    golden[0] = [2.0, 2.0 - 1e-6, 1.0]
    candidate = golden.copy()
    candidate[0] = [2.0 - 1e-6, 2.0, 1.0]
    sides = []
    for scores, off in ((golden, 0.0), (candidate, times / 8)):
        name = {"type": "aten.topk.default", "parent": ("moe", 0)}
        best, path = scores.argmax(1)[:, None], "aten.topk.default#0"
        items = [
            item("moe", scores, role="op_input", path=f"{path}.self", **name),
            item("moe", best, role="op_output", path=path, **name),
            item("moe", np.full((64, 4), 1 + off, np.float32)),
        ]
        sides.append(write(folder / str(off), items))
    return any(row.status is Status.FAIL for row in ac.diff(*sides).rows)


def another_batch(share: float) -> bool:
    """Whether a rank's tokens are none of golden's, of which such a share of neighbours are."""
    golden = np.arange(1003)[None]
    rank = np.where(golden < 3 + 1000 * share, golden, golden + 5000)
    return not _are_alike([golden], [rank], [1])


decides("layout_checks._ENOUGH", 0.252, 0.248)(lambda share, _: another_batch(share))


@decides("constants.CARRIED_APART", 0.101, 0.099)
def the_sum_of_two_terms_is_goldens(share: float, folder: Path) -> bool:
    one, other, off = np.eye(3)  # each term alone is one away
    return is_sum(one + other + share * off / math.sqrt(1 - share**2), one, other)


# the tests of all of them


@pytest.mark.parametrize("name", CASES)
def test_a_number_decides_where_it_says(name: str, folders: Iterator[Path]) -> None:
    decision, within, beyond = CASES[name]
    assert (decision(within, next(folders)), decision(beyond, next(folders))) == (False, True)


def test_every_number_that_decides_has_a_test() -> None:
    assert [each.name for each in deciding() if not near(each.name, list(CASES))] == []
