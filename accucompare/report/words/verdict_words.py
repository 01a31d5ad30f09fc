"""A row's verdict in every report: what each reason means, and the text of the detail cell."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import ROUND_FLOOR, Context, Decimal

from accucompare.bundle.format import Layout, Record, display_name
from accucompare.compare import remarks
from accucompare.compare.limits import SmallestLimit
from accucompare.compare.measuring import Metrics
from accucompare.compare.remarks import BareRemark, DumpGap, OneSideWhy, PairRemark
from accucompare.compare.rows import Difference, Option, Reason, Row
from accucompare.numbers import DTYPES
from accucompare.report.words.layout_words import ranks_in_words
from accucompare.report.words.token_words import token_words
from accucompare.text import printable, with_article

#: The meaning of each reason that a result's row may have.
MEANING = {
    Reason.IDENTICAL: "bit for bit the same",
    Reason.OK: "within tolerance",
    Reason.INHERITED: "over tolerance, and so was something that went into it",
    Reason.INTRODUCED: "over tolerance although everything that went into the module was within",
    Reason.GLUE: "over tolerance, made by the parent's own code from values that were within",
    Reason.INPUTS_DIFFER: "the two models were given different data",
    Reason.NON_FINITE: "NaN or Inf on one side only",
    Reason.SHAPE: "the shapes differ",
    Reason.DTYPE: "different kinds of numbers (float, int, bool)",
    Reason.MISSING: "only golden has it",
    Reason.EXTRA: "only the candidate has it",
    Reason.ONE_SIDED: "only one side has it, and all that both compute around it agrees",
    Reason.NOT_CALLED: "a registered module that no forward called",
    Reason.NOT_COMPARABLE: "a value without data, or one that only a fed capture can judge",
    Reason.OVER_PRECISE: (
        "much closer to golden than the baseline, which computes in the same precision: usually a"
        " cast is missing"
    ),
    Reason.NOT_DETERMINISTIC: (
        "over its limit, but no more than two runs of the candidate differ from each other"
    ),
    Reason.RANKS_DISAGREE: "ranks that should hold the same values do not; some are right",
    Reason.UNREDUCED: "each rank has its term of a sum or a mean that is golden's value",
    Reason.INCOMPLETE: "parts of the global tensor are missing",
}

#: Follows "judged", for a row without recorded values.
BY_STATISTICS = (
    "by statistics alone, which show neither values in another order nor most small differences"
)

#: The same for a row whose errors were estimated.
BY_SKETCH = "by sketches, whose estimates are right to some percent"


_SIDE = {True: "golden", False: "the candidate"}


def detail(row: Row) -> str:
    """Details beyond a row's reason; ``""`` if there are none."""
    verdict = row.verdict
    if not (verdict.remarks or verdict.not_all_fed or verdict.begins):
        return ""
    # what is known of a value may be nothing
    parts = [said for remark in verdict.remarks if (said := _of_row(remark, row))]
    parts += ["not all that went in was fed"] if verdict.not_all_fed else []
    parts += ["begins here"] if verdict.begins else []
    return "; ".join(parts)


def option_words(option: Option) -> str:
    """``golden gives eps 1e-05, the candidate none``."""
    return (
        f"golden gives {option.name} {option.golden or 'none'}, the candidate"
        f" {option.candidate or 'none'}"
    )


def difference_words(difference: Difference) -> str:
    """Operators that only one side runs, and options that differ."""
    sides = (
        ("golden runs", difference.only_golden),
        ("the candidate runs", difference.only_candidate),
    )
    alone = [f"only {who} {_listed(operators)}" for who, operators in sides if operators]
    return "; ".join([*alone, *map(option_words, difference.options)])


#: The most operators of one side alone that are named.
_NAMED = 3


def _listed(operators: tuple[str, ...]) -> str:
    more = len(operators) - _NAMED
    return ", ".join(operators[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _of_row(remark: PairRemark, row: Row) -> str:
    """A remark that needs its row to be said, or any other."""
    golden, candidate, metrics = row.golden, row.candidate, row.metrics
    only = _SIDE[golden is not None]
    if remark is BareRemark.ONE_RUNS_OPERATOR:
        return f"only {only} runs this operator here"
    if remark is BareRemark.ONE_COMPUTES_BUFFER:
        return f"only {only} computes this buffer"
    if remark is BareRemark.OTHER_OPTION and row.verdict.option is not None:
        return option_words(row.verdict.option)
    if metrics is not None:
        if remark is BareRemark.LOWER_BOUNDS:
            return _lower_bounds(metrics)
        if remark is BareRemark.NON_FINITE_COUNTS:
            return _non_finite(metrics)
        if remark in (BareRemark.NON_FINITE_BY_STATISTICS, BareRemark.NON_FINITE_AT_LEAST):
            uncounted = remark is BareRemark.NON_FINITE_AT_LEAST
            return "; ".join(_counts(metrics, "at least " if uncounted else ""))
    if golden is not None and candidate is not None:
        said = [*_of_pair(remark, golden, candidate)]
        return "".join(said) if said else remark_words(remark)
    return remark_words(remark)


#: What is said of two shapes.
_OF_SHAPES = {
    BareRemark.OTHER_SHAPES: "",
    BareRemark.BROADCAST: ", which is the same when it is broadcast",
    BareRemark.NOT_BROADCAST: ", with other values when it is broadcast",
    BareRemark.RESHAPED: ", compared element by element in a row",
}


def _of_pair(remark: PairRemark, golden: Record, candidate: Record) -> Iterator[str]:
    """Remarks that need the pair's records."""
    both = f"golden is {_described(golden)}, the candidate {_described(candidate)}"
    known = _described(golden) if _described(golden) == _described(candidate) else both
    shapes = f"golden is {list(golden.shape)}, the candidate {list(candidate.shape)}"
    match remark:
        case BareRemark.BOTH_KINDS:
            yield both
        case BareRemark.GOLDENS_KIND:
            yield _described(golden)
        case BareRemark.ALL_THERE_IS:
            yield known
        case BareRemark.DIGESTS_TELL_NOTHING:
            yield f"{known}, of which digests tell nothing"
        case BareRemark.OTHER_BITS:
            yield f"other bits ({known}); how far apart they are was not recorded"
        case BareRemark() if remark in _OF_SHAPES:
            yield shapes + _OF_SHAPES[remark]
        case BareRemark.OTHER_PARTS:
            yield f"golden is {_part(golden)}, the candidate {_part(candidate)}"
        case BareRemark.OTHER_COMPONENTS:
            components = " and ".join(
                str([list(shape) for shape in (record.components or ())[:5]])
                for record in (golden, candidate)
            )
            yield f"the tensors nested in it have other shapes: {components}"
        case BareRemark.GIVEN_ROUNDED:
            finer = DTYPES[golden.dtype].digits > DTYPES[candidate.dtype].digits
            yield "given to both: "
            yield (
                f"the candidate's is golden's, rounded to {candidate.dtype}"
                if finer
                else f"golden's is the candidate's, rounded to {golden.dtype}"
            )
        case BareRemark.SAME_MASKS:
            yield f"{golden.dtype} and {candidate.dtype} masks that say the same"
        case remarks.OtherMasks(different, elements):
            yield f"{golden.dtype} and {candidate.dtype} masks that let through other positions: "
            yield f"{different} of {elements} differ"
        case remarks.Saturated(count):
            yield f"{count} value(s) saturated at {candidate.dtype}'s largest, "
            yield f"{DTYPES[candidate.dtype].largest:g}, where golden is larger"
        case remarks.MissingCast(dtype):
            yield f"{candidate.dtype}, where the baseline computes in {dtype}"


def _described(record: Record) -> str:
    """A value without its data: ``float32``, ``a sparse_coo float32 tensor``."""
    if record.layout is Layout.OPAQUE:
        return record.detail_and_line
    if record.layout is Layout.STRIDED:
        return record.dtype
    kind = (
        f"{record.layout.value} {record.dtype} tensor"
        if record.dtype
        else f"{record.layout.value} value"
    )
    said = with_article(kind)
    return f"{said} ({record.detail_and_line})" if record.detail_and_line else said


def _part(record: Record) -> str:
    """Which part of a tensor a record is: ``[0:4, 8:16] of [4, 32]``."""
    shard = record.shard
    if shard is None:
        return f"the whole of {list(record.shape)}"
    places = ", ".join(
        f"{first}:{first + count}" for first, count in zip(shard.start, record.shape, strict=True)
    )
    return f"[{places}] of {list(shard.shape)}"


def _counts(metrics: Metrics, at_least: str = "") -> Iterator[str]:
    """How many values are not finite on each side, where the numbers differ."""
    for name, ours, theirs in (
        ("NaN", metrics.golden_nan, metrics.candidate_nan),
        ("Inf", metrics.golden_inf, metrics.candidate_inf),
    ):
        if ours != theirs:
            counts = [f"{at_least if count else ''}{count}" for count in (ours, theirs)]
            yield f"golden has {counts[0]} {name}, the candidate {counts[1]}"


def _non_finite(metrics: Metrics) -> str:
    parts = [*_counts(metrics)]
    if metrics.saturated:
        parts.append(f"{metrics.saturated} saturated in the candidate")
    if metrics.masked and parts:
        parts.append(f"{metrics.masked} masked on both sides are equal")
    counts = "; ".join(parts) or f"NaN or Inf in {metrics.nonfinite_mismatch} different places"
    return f"{counts}; the first at {list(metrics.nonfinite_index or ())}"


def _lower_bounds(metrics: Metrics) -> str:
    error = (
        "golden is all zeros"
        if math.isinf(metrics.rel_l2)
        else f"relative L2 error at least {_down(metrics.rel_l2)}"
    )
    places = (
        ", if NaN and Inf are in the same places"
        if metrics.golden_nan or metrics.golden_inf
        else ""
    )
    largest = f"largest difference at least {_down(metrics.max_abs)}"
    return f"by statistics alone: {error}, {largest}{places}"


def _down(value: float) -> str:
    """Three digits, rounded down."""
    if not value:
        return "0"
    return f"{Context(prec=3, rounding=ROUND_FLOOR).create_decimal(Decimal(value)):.2e}"


_BARE = {
    BareRemark.ALL_OF_IT_AGREES: "everything computed from it agrees",
    BareRemark.NON_FINITE_UNCOUNTED: (
        "both hold NaN or Inf, which statistics of another tool do not count"
    ),
    BareRemark.NON_FINITE_SOMEWHERE: (
        "both hold NaN or Inf, and statistics do not tell in which places"
    ),
    BareRemark.NON_FINITE_BEHIND_SKETCH: (
        "both hold NaN or Inf, and a sketch does not tell in which places"
    ),
    BareRemark.MAY_BE_MASKS: "statistics alone cannot judge values that may be masks",
    BareRemark.HANDED_ON: (
        "the call hands its input on, so a capture records no gradient of its own for it"
    ),
    BareRemark.STEP_NOT_FED: "a step that was not fed",
    BareRemark.WAY_OF_UPDATING: (
        "it says how an update is computed, not what it gives; newer captures do not record it"
    ),
    BareRemark.OTHER_STEPS: "made by steps that were not recorded",
    BareRemark.WANDERED: (
        "made from gradients or weights that are not golden's; a fed capture judges it"
    ),
    BareRemark.WANDERED_FED: (
        "over its limit, but made of gradients or weights that could not be replaced by golden's,"
        " so not judged"
    ),
    BareRemark.NOT_PROVEN: (
        "the weights were made by updates of other gradients, and no step before the first update"
        " was captured; a fed capture judges it"
    ),
    BareRemark.NORM_UNKNOWN: "the norm of a side's gradients is not known",
    BareRemark.NO_BASELINE: "the baseline has no such record",
    BareRemark.NO_VALUES: "values to compare with the baseline were not recorded",
    BareRemark.OTHER_PART: "the baseline has another part of the tensor",
    BareRemark.BASELINE_NON_FINITE: (
        "the baseline has NaN or Inf where golden has not, or the other way round"
    ),
}

_NOT_IN_DUMP = {
    DumpGap.NAME_ALONE: (
        "{tool} holds this value, but the other side has none of this name; --map pairs two names"
    ),
    DumpGap.HASH_KIND: "this log of {tool} has no {kind}",
    DumpGap.ROLE: "{tool} does not record this role",
    DumpGap.ROOT: "{tool} does not record the call of the whole model",
    DumpGap.OPAQUE: "no tensor, and {tool} records tensors and numbers only",
    DumpGap.NAME: "{tool} holds single values, but none of this name; --map pairs two names",
    DumpGap.NAMED_GRADIENT: "{tool} does not record gradients of inputs that are passed by name",
    DumpGap.HAS_CHILDREN: "{tool} records outputs only of modules without children",
    DumpGap.PRUNED: "{tool} has left this layer out (do_prune_layers)",
}

_NOT_ON_SIDE = {
    OneSideWhy.RAN_ON: (
        "{side} ran on after its last recorded step: what that step left behind was not looked at"
    ),
    OneSideWhy.NO_UPDATE: "{side} has gradients only where an optimizer steps, as of several ranks",
    OneSideWhy.FLAT_PARAMETERS: (
        "{side} has flat parameters (FSDP1), so that gradients of single calls are not recorded"
    ),
    OneSideWhy.IN_FLAT: (
        "one side has its parameters in flat tensors (FSDP1): give use_orig_params=True"
    ),
    OneSideWhy.WITHOUT_GRADIENTS: "{side} was captured without gradients",
    OneSideWhy.CAST: "{side}'s argument has another type: the call writes into a cast copy of it",
    OneSideWhy.HELD_SAME: "{side} held the same before its first step",
    OneSideWhy.HELD_OTHER: "{side} held another tensor there before its first step",
    OneSideWhy.KEPT_NOTHING: "only {other} keeps a tensor in this attribute",
    OneSideWhy.NO_UPDATE_TELLS: (
        "only {other} has this gradient, and no update in these steps tells whether one is made of"
        " it: capture one more step on both sides"
    ),
    OneSideWhy.PASSES_BY: (
        "the fed call gave a part of its input back, which was written into later: this gradient"
        " passes by"
    ),
    OneSideWhy.ADDS_NO_ZEROS: (
        "{other}'s is zero everywhere; {side} adds nothing, which is the same"
    ),
}


def remark_words(remark: PairRemark) -> str:
    """A remark that needs no row."""
    if isinstance(remark, BareRemark):
        return _BARE[remark]
    return (
        token_words(remark)
        or _of_ranks(remark)
        or _of_sequences(remark)
        or _why_alone(remark)
        or _about_runs(remark)
        or _of_numbers(remark)
    )


def _of_ranks(remark: PairRemark) -> str:
    """How the ranks' tensors make up golden's; ``""`` for any other remark."""
    match remark:
        case remarks.PartsMissing(ranks, lacking) if lacking:
            without = ranks_in_words(lacking)
            return f"{ranks_in_words(ranks)} recorded it; {without} did not, in the same step"
        case remarks.PartsMissing(ranks):
            return f"parts are missing or overlap: only {ranks_in_words(ranks)} recorded it"
        case remarks.NotRecordedOn(ranks):
            return f"{ranks_in_words(ranks)} should have recorded it"
        case remarks.UnknownLayout(shapes):
            held = ", ".join(str(list(shape)) for shape in shapes)
            return f"the ranks hold {held}, which fill golden's tensor in no known way"
        case remarks.RanksDiffer(ranks, wrong):
            off = f"; wrong on {ranks_in_words(wrong)}" if wrong else ", and differ by rounding"
            return f"{ranks_in_words(ranks)} hold it{off}"
        case remarks.ReducedHere(how, ranks):
            word = "mean" if how == "avg" else how
            return f"the {word} of what {ranks_in_words(ranks)} hold is golden's value"
        case remarks.SumUnknown(ranks):
            return (
                f"{ranks_in_words(ranks)} hold other values, which may be terms of a sum; capture"
                " with --mode sketch or tensors, and leave out --atol and --rtol of sketches"
            )
        case remarks.Swapped(ranks):
            order = ", ".join(map(str, ranks))
            return f"golden's value is made of the parts of ranks {order}, in this order"
        case remarks.Interleaved(layers):
            return f"{layers} layers are fused, and each rank has a part of each"
        case remarks.ShareOfSum(whole):
            what = "the sum of its layers' own" if whole else "its share of a sum"
            return (
                f"{what}; one side has fused the layers, and the sum is compared where it arrives"
            )
        case remarks.OtherFunction(taken):
            return (
                f"golden's module takes what {display_name(taken)} makes, the candidate's what the"
                " fused layer, or a part of it, makes"
            )
        case remarks.TimesRanks(times):
            return f"{times:g} times golden's, as each rank's loss is the mean of its own batch"
        case remarks.OwnClipping(factor):
            if factor > 1.0:
                return (
                    f"multiplied by {1 / factor:.4g}, by which golden's own code has clipped its"
                    " gradients, as the ranks clip after that"
                )
            return (
                f"divided by {factor:.4g}, by which the ranks' own code has clipped it, as golden"
            )
        case _:
            return ""


def _of_sequences(remark: PairRemark) -> str:
    """Which part of a sequence it is of; ``""`` for any other remark."""
    match remark:
        case remarks.CalledInParts(golden, candidate, of_experts):
            why = (
                "experts are given at once what golden gives them call by call; give golden all"
                " rows in one microbatch"
                if of_experts
                else "each rank has a part of the sequence"
            )
            return f"called {candidate} times for golden's {golden}, as {why}"
        case _:
            return ""


def _why_alone(remark: PairRemark) -> str:
    """Why one side has no record, or no baseline judges it; ``""`` for any other remark."""
    match remark:
        case remarks.NotInDump(gap, tool, kind):
            return _NOT_IN_DUMP[gap].format(tool=tool, kind=kind)
        case remarks.SameParameter(first):
            return f"the same parameter as {printable(first)}, under which a capture records it"
        case remarks.NotAsked(golden, option, value):
            return f"{_SIDE[golden]} was captured with {option} {value}"
        case remarks.NotOnSide(why, golden):
            return _NOT_ON_SIDE[why].format(side=_SIDE[golden], other=_SIDE[not golden])
        case remarks.OtherOptimizerState(ours, theirs):
            return f"golden's optimizer is {ours}, the candidate's {theirs}"
        case remarks.NeverCalled(kind, golden, candidate):
            alone = "golden" if golden else "candidate"
            return f"{kind}, never called" + ("" if golden and candidate else f" in {alone}")
        case remarks.Unreadable(error):
            return f"unreadable: {error}"
        case remarks.BaselineShape(shape):
            return f"the baseline's shape is {list(shape)}"
        case remarks.BaselineDtype(dtype):
            return f"the baseline's dtype is {dtype}"
    return ""


def _about_runs(remark: PairRemark) -> str:
    """What baselines, second runs and updates show; ``""`` for any other remark."""
    match remark:
        case remarks.ByRounding(calls, golden, candidate, baseline):
            what = "calls: golden makes" if calls else "golden is"
            ours, theirs, third = (
                str(each[0] if calls else list(each)) for each in (golden, candidate, baseline)
            )
            counts = f"{what} {ours}, the candidate {theirs}; the baseline {third}"
            return f"{counts}, so rounding changes it"
        case remarks.BeyondLikeBaseline(rel_l2, alone):
            error = "" if rel_l2 is None else f" (rel_l2 {rel_l2:.2e})"
            but = ", but not golden's own code on rounded values" if alone else ""
            return f"far beyond rounding, and so is the baseline{error}{but}"
        case remarks.TermsCancel(rel_l2):
            return f"its terms cancel: rounding them may make rel_l2 {rel_l2:.2e}"
        case remarks.BeyondInPart(rel_l2):
            return f"a part of it is far beyond rounding (rel_l2 {rel_l2:.2e})"
        case remarks.RunsApart(golden, apart):
            runs = "captures of golden" if golden else "runs of the candidate"
            return f"two {runs} differ by {apart:.2e} from each other"
        case remarks.NoReference(apart):
            return (
                "golden's value is no reference here: two runs of its own code differ by"
                f" {apart:.2e} from each other"
            )
        case remarks.NotReproduced(rel_l2):
            return (
                "golden's own code in golden's precision does not give golden's value here (rel_l2"
                f" {rel_l2:.2e})"
            )
        case remarks.FreeUpdates(most, steps):
            # a gradient that is 0 but for rounding is off by more than its size
            size = f"{most:.2g}" + (" times golden's own size" if most > 1 else "")
            return (
                "the weights were made by updates of other gradients; the baseline is up to"
                f" {size} off in {steps} step(s)"
            )
        case remarks.LeavesAsItIs(golden, dtype):
            return f"in {dtype}, so small a change may leave {_SIDE[golden]}'s value unchanged"
        case remarks.RoundedAway(rel_l2):
            return (
                "changed between two updates on this side alone, by no more than rounding:"
                f" relative L2 {rel_l2:.2g}"
            )
    return ""


def _of_numbers(remark: PairRemark) -> str:
    """A remark on measured values."""
    match remark:
        case remarks.NoneMayDiffer(different, elements):
            return f"{different} of {elements} differ, and none may"
        case remarks.NoRelativeLimit(max_abs):
            smallest = SmallestLimit("atol", max_abs)
            return f"golden is all zeros, so no relative limit would pass; {smallest} would"
        case remarks.ChoicesApart(different, elements, apart, baseline):
            return (
                f"{different} of {elements} differ, {apart:.3g} apart in L2 norm; the baseline is"
                f" {baseline:.3g}"
            )
        case remarks.ChoicesChanged(different, elements, baseline):
            return (
                f"{different} of {elements} differ; so do {baseline} in the baseline, by rounding"
                " alone"
            )
        case remarks.FewCarryNorm(few, elements):
            return (
                f"only {few:.1f} of {elements} elements carry golden's norm, so the limit is that"
                " of so few"
            )
        case remarks.BeyondLastPlace(different, elements, dtype, baseline):
            return (
                f"{different} of {elements} elements are off by more than rounding to {dtype} can"
                f" do; {baseline} of the baseline are"
            )
        case remarks.OneFactor(candidate, baseline):
            return (
                f"golden's times {candidate:.4f}, where the baseline has {baseline:.4f}: one factor"
                " on all elements is no rounding"
            )
    return ""
