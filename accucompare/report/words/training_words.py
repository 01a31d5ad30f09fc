"""What every report says of the steps of two runs of training."""

from __future__ import annotations

from collections.abc import Iterator

from accucompare.compare.result import Result
from accucompare.compare.runs import (
    Acceptance,
    JudgedBy,
    Met,
    Rung,
    TrainingResult,
    Wander,
    percent,
)

_SETTINGS_SHOWN = 5

_JUDGED_BY = {
    JudgedBy.GIVEN: "the limits that were given",
    JudgedBy.BASELINE: "the baseline",
    JudgedBy.REPEAT: "golden's second run",
}


def steps_sentence(comparison: Result) -> str:
    """``The runs part at step 12 in the gradients: …``, or how far they agree; ``""`` where nothing
    of training was compared.
    """
    training = comparison.training
    if training is None or training.judged_by is JudgedBy.NOTHING or not training.compared:
        return ""
    if training.parting is not None:
        sentence = str(training.parting)
        rank = f" (rank {training.parting.rank})" if training.several_ranks else ""
        return f"{sentence[0].upper()}{sentence[1:]}{rank}; judged by {judged_by(training)}"
    if training.other_bits is None:
        steps = (
            "The one step has"
            if training.compared == 1
            else f"All {training.compared:,} steps have"
        )
        return f"{steps} the same losses and gradient norms, bit for bit"
    return f"The runs do not part in {training.compared:,} steps, judged by {judged_by(training)}"


def judged_by(training: TrainingResult) -> str:
    """What said how far the runs may be apart."""
    return _JUDGED_BY.get(
        training.judged_by,
        f"the default limits of {training.dtype}: no baseline, nor a second golden run, tells more",
    )


def settings(training: TrainingResult) -> list[str]:
    """What the two sides were told to do otherwise, one line each."""
    lines = [str(setting) for setting in training.settings[:_SETTINGS_SHOWN]]
    more = len(training.settings) - len(lines)
    return lines + ([f"and {more} more settings"] if more else [])


def details(comparison: Result, training: TrainingResult) -> Iterator[str]:
    """What more there is to say of the steps: where bits first differ, drift and scatter, steps on
    one side, what was not compared.
    """
    bits = training.other_bits
    if bits is not None and bits != training.parting and training.same_type:
        before = (
            "the very first step holds other bits"
            if bits.step == training.pairs[0].step
            else f"the same bits until step {bits.step}"
        )
        yield f"{before}, in the {bits.rung.value}: {bits.evidence}"
    for name, found, expected in (
        ("loss", training.loss, training.expected_loss),
        ("gradient norm", training.norm, training.expected_norm),
    ):
        if found is not None and found.steps > 1 and (found.drift or found.scatter):
            yield f"{name}: {_wander(found)}" + (
                f"; of what judges: {_wander(expected)}" if expected is not None else ""
            )
    if (
        training.parting is not None
        and comparison.series_only
        and training.parting.rung not in (Rung.DATA, Rung.WEIGHTS)
    ):
        step = training.parting.step
        yield (
            f"which layer: capture golden with --backward --steps {step}-{step} --save-state, and"
            " give that bundle to locate --golden"
        )
    for side, count in zip(("golden", "the candidate"), training.alone, strict=True):
        if count:
            yield f"{_steps(count)} only {side} has, not compared"
    if training.same_batches is None:
        yield (
            "whether both were given the same batches is not known: their digests cannot be"
            " compared"
        )


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def _wander(found: Wander) -> str:
    bias = ", which is a bias: more than its scatter explains" if found.biased else ""
    return (
        f"drift {100 * found.drift:+.3g} %, scatter {100 * found.scatter:.3g} % over"
        f" {_steps(found.steps)}{bias}"
    )


def acceptance_sentence(acceptance: Acceptance) -> str:
    """Whether the standard is met, and how far that looked."""
    if acceptance.trouble:
        return acceptance.trouble
    verdict = "meets" if acceptance.passed else "does not meet"
    few = f"; it asks for {acceptance.preset.least_steps:,} steps" if acceptance.too_few else ""
    return (
        f"{verdict} the standard {acceptance.standard.value} over {_steps(acceptance.steps)}{few}"
    )


def measured(met: Met) -> str:
    """What was measured for a rule: ``0.0012, or 0.03 %``."""
    if not met.judged:
        return met.why_not
    parts = [] if met.rule.absolute is None or met.absolute is None else [f"{met.absolute:.3g}"]
    parts += [] if met.rule.relative is None or met.relative is None else [percent(met.relative)]
    return ", or ".join(parts)


def outcome(met: Met) -> str:
    """``pass``, ``FAIL`` or ``not judged``."""
    return ("pass" if met.passed else "FAIL") if met.judged else "not judged"
