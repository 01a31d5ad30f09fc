"""The steps of two training runs in every report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from accucompare.compare.preflight_facts import BesideGolden
from accucompare.compare.result import Result
from accucompare.compare.runs import (
    Acceptance,
    JudgedBy,
    Met,
    OtherSetting,
    Parting,
    Rung,
    StandardMeasure,
    StandardRule,
    StandardTrouble,
    TrainingResult,
    Wander,
)
from accucompare.report.words import limit_words, preflight_words
from accucompare.report.words.layout_words import ranks_in_words
from accucompare.selection import Standard
from accucompare.text import counted

_SETTINGS_SHOWN = 5

_JUDGED_BY = {
    JudgedBy.GIVEN: "the limits that were given",
    JudgedBy.BASELINE: "the baseline",
    JudgedBy.REPEAT: "golden's second run",
}


def clipped(golden: float | None, candidate: float | None) -> str:
    """The norms to which both sides clip gradients; ``None`` for a side that clips none."""
    if golden is None or candidate is None:
        clips, other, norm = "the candidate", "golden", candidate
        if candidate is None:
            clips, other, norm = "golden", "the candidate", golden
        return f"the gradients are clipped to {number_words(norm)} in {clips}, not in {other}"
    clipped_to = f"{number_words(golden)} in golden, to {number_words(candidate)} in the candidate"
    times = candidate / golden if golden else 0.0
    factor = f": all updates are given {times:.4g} x golden's, the clip factor" if golden else ""
    return f"the gradients are clipped to {clipped_to}{factor}"


def percent(share: float) -> str:
    """A relative difference: ``5.3 %``, or ``2.1e-07``."""
    return f"{100 * share:.3g} %" if 1e-7 <= share < 100 or not share else f"{share:.2e}"


def number_words(value: float | None) -> str:
    """A number in a sentence; ``none`` for ``None``."""
    return "none" if value is None else f"{value:.6g}"


def setting(other: OtherSetting) -> str:
    """``learning rate of AdamW.0 from step 3 on: 0.1 in golden, 0.2 in the candidate``."""
    name = f" of {other.name}" if other.name else ""
    sides = _on_both(other.golden, other.candidate)
    more = f", on {ranks_in_words(other.ranks)}" if other.ranks else ""
    more += f", in {other.steps:,} steps" if other.steps > 1 else ""
    return f"{other.setting.value}{name} from step {other.step} on: {sides}{more}"


def _on_both(golden: float | None, candidate: float | None) -> str:
    return f"{number_words(golden)} in golden, {number_words(candidate)} in the candidate"


def parting_words(parting: Parting) -> str:
    """Where two runs part, and what shows it."""
    return f"the runs part at step {parting.step} in the {parting.rung.value}: {evidence(parting)}"


def evidence(parting: Parting) -> str:
    """What shows that two runs part."""
    apart = parting.apart
    if parting.setting is not None:
        return setting(parting.setting)
    if parting.optimizers is not None:
        ours, theirs = parting.optimizers
        return (
            f"the optimizer is {ours} in golden, {theirs} in the candidate, and the next step is"
            " the first that parts"
        )
    if parting.weights is not None:
        return preflight_words.message(parting.weights)
    if parting.clips_otherwise:
        both = (parting.golden, parting.candidate)
        return clipped(*(value if isinstance(value, float) else None for value in both))
    if parting.quantity is not None and apart is not None:
        found = f"{parting.quantity.value} {_on_both(apart.golden, apart.candidate)}"
        size = abs(apart.relative)
        if not math.isfinite(size):
            return found
        return f"{found}, {percent(size)} apart (limit {percent(apart.limit)})"
    if parting.row is not None:
        metrics = parting.row.metrics
        known = metrics is not None and not metrics.nothing_finite
        error = f", relative L2 {metrics.rel_l2:.2e}" if metrics is not None and known else ""
        judged = limit_words.judging_limits(parting.row.verdict.limit)
        return f"{parting.row.place}{error}" + (f" (limit {judged})" if judged else "")
    return f"other digests of the {'batch' if parting.rung is Rung.DATA else 'parameters'}"


def proves_nothing(training: TrainingResult) -> str:
    """Why steps within their limits prove nothing."""
    if training.beyond is not None:
        pair, quantity, apart = training.beyond
        off = percent(abs(apart.relative))
        return (
            f"the {quantity.value} at step {pair.step} is {off} off, far beyond rounding, and so is"
            " the run that judges"
        )
    missing, more = training.alone
    return (
        f"what was recorded agrees, but the candidate lacks {missing} of golden's"
        f" {len(training.pairs) - more} steps"
    )


#: For steps that have no sentence of their own.
FED_STEPS = (
    "Each step was fed golden's values: an error of its loss was made in the loss, or by rounding"
)


def steps_sentence(comparison: Result) -> str:
    """``The runs part at step 12 in the gradients: …``, or how far they agree; or ``""``."""
    training = comparison.training
    if training is None or training.judged_by is JudgedBy.NOTHING or not training.compared:
        return ""
    if training.parting is not None:
        sentence = parting_words(training.parting)
        rank = f" (rank {training.parting.rank})" if training.several_ranks else ""
        return f"{sentence[0].upper()}{sentence[1:]}{rank}; judged by {judged_by(training)}"
    if training.other_bits is None:
        all_steps = f"All {training.compared:,} steps have"
        steps = "The one step has" if training.compared == 1 else all_steps
        return f"{steps} the same losses and gradient norms, bit for bit"
    steps = counted(training.compared, "step")
    return f"The runs do not part in {steps}, judged by {judged_by(training)}"


def judged_by(training: TrainingResult) -> str:
    """The source of the steps' limits."""
    return _JUDGED_BY.get(
        training.judged_by,
        f"the default limits of {training.dtype}, for want of a baseline or a second golden run",
    )


def settings(training: TrainingResult) -> list[str]:
    """Settings of the two sides that differ, one line each."""
    lines = [setting(each) for each in training.settings[:_SETTINGS_SHOWN]]
    more = len(training.settings) - len(lines)
    return lines + ([f"and {more} more settings"] if more else [])


def details(comparison: Result, training: TrainingResult) -> Iterator[str]:
    """Where bits first differ, drift and scatter, one-sided steps, what was not compared."""
    bits = training.other_bits
    if bits is not None and bits != training.parting and training.same_type:
        before = (
            "other bits from the first step on"
            if bits.step == training.pairs[0].step
            else f"the same bits until step {bits.step}"
        )
        yield f"{before}, in the {bits.rung.value}: {evidence(bits)}"
    for name, found, expected in (
        ("loss", training.loss, training.expected_loss),
        ("gradient norm", training.norm, training.expected_norm),
    ):
        if found is not None and found.steps > 1 and (found.drift or found.scatter):
            judges = "" if expected is None else f"; the run that judges: {_wander(expected)}"
            yield f"{name}: {_wander(found)}{judges}"
    parting = training.parting if comparison.series_only else None
    if parting is not None and parting.rung not in (Rung.DATA, Rung.WEIGHTS):
        step = parting.step
        yield (
            f"which layer: capture golden with --backward --steps {step}-{step} --save-state, and"
            " give that bundle to locate --golden"
        )
    for side, count in zip(("golden", "the candidate"), training.alone, strict=True):
        if count:
            yield f"not compared: {counted(count, 'step')} that only {side} has"
    if training.same_batches is None:
        yield (
            "whether both were given the same batches is not known: their digests cannot be"
            " compared"
        )


def _wander(found: Wander) -> str:
    bias = ", which is a bias: more than its scatter explains" if found.biased else ""
    return (
        f"drift {100 * found.drift:+.3g} %, scatter {100 * found.scatter:.3g} % over"
        f" {counted(found.steps, 'step')}{bias}"
    )


_NOT_MEASURED = {
    StandardMeasure.FIRST_LOSS: "step 0 has no loss on both sides",
    StandardMeasure.MEAN_LOSS: "no step has a loss on both sides",
    StandardMeasure.MEAN_NORM: "no step has a gradient norm on both sides",
}


def why_not_measured(met: Met) -> str:
    """Why nothing could be measured for a rule; ``""`` if something was."""
    return "" if met.judged else _NOT_MEASURED[met.rule.measure]


def rule_limit(rule: StandardRule) -> str:
    """``< 0.005 or < 0.5 %``."""
    sign = "<" if rule.strict else "<="
    limits = [] if rule.absolute is None else [f"{sign} {rule.absolute:g}"]
    limits += [] if rule.relative is None else [f"{sign} {100 * rule.relative:g} %"]
    return " or ".join(limits)


def acceptance_trouble(
    acceptance: Acceptance, training: TrainingResult | None, incomplete: Sequence[BesideGolden]
) -> str:
    """Why the standard cannot be judged."""
    return _trouble(acceptance, acceptance.trouble_of(training, incomplete), training, incomplete)


def _trouble(
    acceptance: Acceptance,
    trouble: StandardTrouble | None,
    training: TrainingResult | None = None,
    incomplete: Sequence[BesideGolden] = (),
) -> str:
    name = acceptance.standard.value
    so_far = "the standard is met as far as it goes, but"
    match trouble:
        case StandardTrouble.NO_LOSSES:
            how = "capture both sides with --roles series, of a case with a loss"
            return f"there are no losses to judge by the standard {name}: {how}"
        case StandardTrouble.UNFINISHED:
            return f"{so_far} {preflight_words.unfinished_words(incomplete)}"
        case StandardTrouble.STEPS_LACKING:
            lacking = 0 if training is None else training.alone[0]
            return f"{so_far} the candidate lacks {lacking} of golden's steps"
        case StandardTrouble.NOT_MEASURED:
            missing = [
                f"{met.rule.measure.value}: {why_not_measured(met)}"
                for met in acceptance.rules
                if not met.judged
            ]
            return f"the standard {name} could not be judged ({'; '.join(missing)})"
        case StandardTrouble.TOO_FEW_STEPS:
            least, steps = acceptance.preset.least_steps, counted(acceptance.steps, "step")
            return f"meets the standard {name} over {steps} so far, but that asks for {least:,}"
    return ""


#: Where each standard is written.
STANDARD_SOURCES = {
    Standard.MINDFORMERS: "MindSpore Transformers, migration standard (docs, acc_optimize)"
}


def acceptance_sentence(acceptance: Acceptance) -> str:
    """Whether the standard is met, and how far that looked."""
    if acceptance.trouble is not None:
        return _trouble(acceptance, acceptance.trouble)
    verdict = "meets" if acceptance.passed else "does not meet"
    few = f"; it asks for {acceptance.preset.least_steps:,} steps" if acceptance.too_few else ""
    steps = counted(acceptance.steps, "step")
    return f"{verdict} the standard {acceptance.standard.value} over {steps}{few}"


def measured(met: Met) -> str:
    """A rule's measured value: ``0.0012, or 0.03 %``."""
    if not met.judged:
        return why_not_measured(met)
    parts = [] if met.rule.absolute is None or met.absolute is None else [f"{met.absolute:.3g}"]
    parts += [] if met.rule.relative is None or met.relative is None else [percent(met.relative)]
    return ", or ".join(parts)


def rule_words(met: Met) -> str:
    """``FAIL: mean loss is 0.02, or 1.5 % apart (limit < 0.01 or < 1 %)``."""
    return (
        f"{outcome(met)}: {met.rule.measure.value} is {measured(met)} apart (limit"
        f" {rule_limit(met.rule)})"
    )


def outcome(met: Met) -> str:
    """``pass``, ``FAIL`` or ``not judged``."""
    return ("pass" if met.passed else "FAIL") if met.judged else "not judged"
