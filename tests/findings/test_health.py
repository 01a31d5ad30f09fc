"""The checklist on logs built by hand: each check complains of its fault, is silent about the sound
run, and says when it cannot look.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from accucompare.errors import UsageError
from accucompare.findings.analysis.analysis import Analysis, Ranks
from accucompare.findings.checklist.checks import CheckStatus, Need, Point, spikes
from accucompare.findings.checklist.health_checklist import CHECKS, judge_log, read_thresholds
from accucompare.findings.log.events import (
    Alert,
    AlertKind,
    End,
    Ending,
    ScaleChange,
    Step,
    WatchStart,
)
from accucompare.findings.log.vital_events import (
    Applied,
    Given,
    Labels,
    LoadedBatch,
    Lookup,
    LossInput,
    Narrowed,
    ParameterFacts,
    Targets,
    TrainingSetup,
    Vitals,
)
from accucompare.report.watch_words import CHECK_WORDS, said

STEPS = 60
PARAMETERS = [
    ParameterFacts("up.weight", (8, 4), "bfloat16", "Linear", True, "AdamW.0", 0.01, eps=1e-8),
    ParameterFacts("up.bias", (8,), "bfloat16", "Linear", True, "AdamW.1", 0.0, eps=1e-8),
    ParameterFacts("down.weight", (4, 8), "bfloat16", "Linear", True, "AdamW.0", 0.01, eps=1e-8),
]


def rate(step: int) -> float:
    """A decay, from the fifth step on."""
    return 1e-3 * min(1.0, (step + 1) / 5) * (1 - step / 100)


def vital(step: int) -> Vitals:
    """A step of a sound training."""
    wave = 1 + 0.05 * math.sin(step)
    return Vitals(
        step,
        backwards=1,
        updates=1,
        lr={"AdamW.0": rate(step)},
        loss=2.0 / (1 + step / 20) * wave,
        norm=0.5 * wave,
        norm_at_update=0.3 * wave,
        scale=1024.0,
        schedulers={"CosineAnnealingLR": Applied(step, [rate(step)])},
        given=[
            Given(
                "ids",
                "int64",
                (4, 6),
                0.0,
                9.0,
                f"{step}",
                padding_rows=0.0,
                unmasked_padding=0.0,
                masked_content=0.0,
                pads_left=False,
            ),
            Given("x", "float32", (4, 6), -3.0, 3.0, f"{step}x", constant=0.0, whole=False),
        ],
        targets=Targets(10, "float32", 0.0, 9.0, 0.1, 1.5, padding=0.0),
        losses=[LossInput("cross_entropy", "linear"), LossInput("mse_loss", shape=(4, 1))],
        labels=[Labels("head.weight", 24, 0.0, 9.0, 0b1111111111)],
        lookups=[Lookup("embed", 10, 0.0, 9.0)],
        entered=("up", -3.0, 3.0),
        layers={
            "grad": [0.4 * wave, 0.3 * wave, 0.3],
            "weight": [3.0, 0.5, 2.0],
            "update": [1e-3, 2e-3, 1e-3],
            "moved": [0.9, 0.9, 0.9],
            "v": [1e-4, 1e-4, 1e-4],
        },
        idle={"act": 0.1},
        buffers={"norm.running_var": (0.5, 2.0)},
        outputs={"up": (-1.0 * wave, 1.0 * wave)},
    )


@dataclasses.dataclass
class Log:
    """The parts of a run, to be spoilt."""

    setup: TrainingSetup
    vitals: list[Vitals]
    steps: list[Step]
    scaled: list[ScaleChange] = dataclasses.field(default_factory=list)
    warnings: list[Alert] = dataclasses.field(default_factory=list)
    others: list[Log] = dataclasses.field(default_factory=list)
    earlier: Log | None = None
    rank: int = 0
    ending: str = ""

    def change(self, step: int | slice, **fields: Any) -> None:
        """Exchange fields in one step's numbers, or in several."""
        chosen = range(STEPS)[step] if isinstance(step, slice) else [step]
        for each in chosen:
            self.vitals[each] = replace(self.vitals[each], **fields)

    def layer(self, name: str, values: Any, step: int | slice = slice(None)) -> None:
        for each in range(STEPS)[step] if isinstance(step, slice) else [step]:
            self.change(each, layers={**self.vitals[each].layers, name: values})

    def given(self, which: int, step: int | slice = slice(None), **fields: Any) -> None:
        for each in range(STEPS)[step] if isinstance(step, slice) else [step]:
            given = list(self.vitals[each].given)
            given[which] = replace(given[which], **fields)
            self.change(each, given=given)

    def analysis(self) -> Analysis:
        start = WatchStart("1", "2026-01-01", self.rank, 1 + len(self.others), "Net", 40, "cpu")
        how = (self.ending, Ending.FAILED) if self.ending else ("finished", Ending.FINISHED)
        error = self.ending.partition(":")[0]
        end = End(STEPS, STEPS, *how, weights=[3.0, 0.5], error=error)
        earlier = None if self.earlier is None else self.earlier.analysis()
        return Analysis(
            start,
            [],
            self.warnings,
            [],
            self.scaled,
            self.steps,
            end,
            None,
            [self.setup],
            self.vitals,
            earlier,
        )

    def ranks(self) -> Ranks:
        return Ranks(Path("watch"), [self.analysis(), *(other.analysis() for other in self.others)])


def sound() -> Log:
    setup = TrainingSetup(
        0,
        PARAMETERS,
        ["AdamW"],
        {"AdamW": 5},
        {"CosineAnnealingLR": 0},
        {"CosineAnnealingLR": 100},
        switched=2,
        seeds={"torch": 1},
        pad=0,
    )
    setup = replace(
        setup, vocabulary=10, generators={"python": "a", "numpy": "n"}, dropouts={"drop": 0.1}
    )
    steps = [
        Step(step, True, 0.5 * (1 + 0.05 * math.sin(step)), scale=1024.0) for step in range(STEPS)
    ]
    return Log(setup, [vital(step) for step in range(STEPS)], steps)


def several() -> Log:
    """Two ranks, and a run before, which began with other weights."""
    log = sound()
    log.others = [sound()]
    log.others[0].rank = 1
    log.others[0].given(0, digest="other")
    log.earlier, log.others[0].earlier = sound(), sound()
    log.others[0].earlier.given(0, digest="other")
    log.layer("weight", [2.0, 0.4], 0)
    for each in (log.others[0], log.earlier, log.others[0].earlier):
        each.layer("weight", [2.0, 0.4], 0)
    return log


FAULTS: dict[str, Callable[[Log], None]] = {}


def apart(log: Log, mine: int | None, theirs: int | None) -> None:
    """On two ranks, labels of these classes."""
    for each, classes, ends in ((log, mine, (0.0, 4.0)), (log.others[0], theirs, (5.0, 9.0))):
        each.change(slice(None), labels=[Labels("head.weight", 24, *ends, classes)])


def spoilt(check: str) -> Callable[[Callable[[Log], None]], Callable[[Log], None]]:
    def add(spoil: Callable[[Log], None]) -> Callable[[Log], None]:
        FAULTS[check] = spoil
        return spoil

    return add


FAULTS |= {
    "input-constant": lambda log: log.given(1, constant=1.0),
    "input-type": lambda log: log.given(1, slice(30, None), dtype="float64"),
    "labels-range": lambda log: log.change(7, targets=Targets(10, "float32", 0.0, 10.0)),
    "labels-ignored": lambda log: log.change(
        7, targets=Targets(10, "float32", ignored=1.0), loss="nan"
    ),
    "input-shape": lambda log: log.given(0, 17, shape=(6,)),
    "batch-on-two-ranks": lambda log: log.others[0].change(7, given=log.vitals[7].given),
    "padding-rows": lambda log: log.given(0, 7, padding_rows=0.25),
    "mask-padding": lambda log: log.given(0, 7, unmasked_padding=0.3),
    "tokenizer": lambda log: log.given(0, pads_left=True),
    "drawn-behind": lambda log: log.change(7, drawn=["python"]),
    "same-first-step": lambda log: log.change(0, loss=3.0),
    "frozen-with-gradient": lambda log: log.change(7, frozen=["up.bias"]),
    "dead-units": lambda log: log.change(slice(None), idle={"act": 0.95}),
    "output-constant": lambda log: log.change(slice(None), outputs={"up": (-1.5, 1.0)}),
    "training-mode": lambda log: log.change(slice(30, None), evaluated=2),
    "evaluation-mode": lambda log: log.change(slice(9, None, 10), trained_without=2),
    "buffers": lambda log: log.change(30, buffers={"norm.running_var": (0.5, 1e5)}),
    "without-gradient": lambda log: log.layer("grad", [None, None, 0.3]),
    "entropy": lambda log: log.change(
        slice(None), targets=Targets(10, "float32", 0.0, 9.0, 0.1, 1e-6, missed=5.0)
    ),
    "loss-type": lambda log: log.change(
        slice(None), targets=Targets(10, "bfloat16", 0.0, 9.0, 0.1, 1.5)
    ),
    "label-smoothing": lambda log: log.change(
        7, targets=Targets(10, "float32", 0.0, 9.0, 0.1, 1.5, smoothing=0.9)
    ),
    "autocast-types": lambda log: log.change(
        7, narrowed=[Narrowed("rotary", "position_ids", "bfloat16", 512.0)]
    ),
    "update-lost": lambda log: log.layer("moved", [0.1, 0.2]),
    "underflow": lambda log: log.warnings.append(
        Alert(AlertKind.UNDERFLOW, "act: 20% of gradients are subnormal", 3, "act")
    ),
    "near-limit": lambda log: log.warnings.append(
        Alert(AlertKind.NEAR, "act: values up to 6e4", 3, "act")
    ),
    "gradient-vanishes": lambda log: log.layer("grad", [1e-6, 0.3, 0.3]),
    "gradient-explodes": lambda log: log.layer("grad", [0.4, 0.3, 400.0]),
    "update-ratio": lambda log: log.layer("update", [1e-8, 2e-3, 1e-8]),
    "second-moment": lambda log: log.layer("v", [1e-16, 1e-4, 1e-15]),
    "zero-grad": lambda log: log.change(slice(1, None), kept=2),
    "update-skipped": lambda log: log.change(7, updates=0),
    "lr-range": lambda log: log.change(50, lr={"AdamW.0": -1e-5}),
    "schedule-order": lambda log: log.change(
        0, schedulers={"CosineAnnealingLR": Applied(1, [rate(0)])}
    ),
    "clip-share": lambda log: log.change(slice(None), norm_at_update=1e-6),
    "gradients-grow": lambda log: log.change(7, norm_at_update=4.0, grown=(8.0, 8.0)),
    "loss-spike": lambda log: log.change(40, loss=30.0),
    "loss-finite": lambda log: log.change(slice(50, 55), loss="nan"),
    "loss-input": lambda log: log.change(7, losses=[LossInput("cross_entropy", "softmax")]),
    "loss-shape": lambda log: log.change(
        7, losses=[LossInput("mse_loss", shape=(4, 1), spread=(4, 4))]
    ),
    "one-class": lambda log: log.change(
        slice(None), labels=[Labels("head.weight", 24, 3.0, 3.0, 0b1000)]
    ),
    "padding-in-loss": lambda log: log.change(
        7, targets=Targets(10, "float32", 0.0, 9.0, padding=0.3)
    ),
    "labels-by-rank": lambda log: apart(log, 0b0000011111, 0b1111100000),
    "ranks-agree": lambda log: log.others[0].layer("weight", [3.0000001, 0.5], 7),
}


@spoilt("input-finite")
def _(log: Log) -> None:
    log.given(1, 7, high="nan")
    log.steps[7] = replace(log.steps[7], finite=False)


@spoilt("input-range")
def _(log: Log) -> None:
    log.given(1, 7, high=2e4)
    log.change(7, outputs={"up": (-3e4, 1.0)})


@spoilt("batch-repeated")
def _(log: Log) -> None:
    for step in (7, 8):
        log.change(step, given=log.vitals[7].given, loaded=LoadedBatch(0, step, 20, True))


@spoilt("order-repeated")
def _(log: Log) -> None:
    for step in range(STEPS):
        log.change(
            step, given=log.vitals[step % 20].given, loaded=LoadedBatch(0, 1 + step // 20, 20, True)
        )


@spoilt("lr-jump")
def _(log: Log) -> None:
    for step in range(STEPS):
        log.change(
            step, lr={"AdamW.0": 1e-5 * (step + 1) if step < 30 else 1e-3 * (1 - step / 100)}
        )


@spoilt("schedule-applied")
def _(log: Log) -> None:
    for step in range(20, STEPS):
        log.change(step, schedulers={"CosineAnnealingLR": Applied(step, [5e-2])})


@spoilt("loss-trend")
def _(log: Log) -> None:
    for step in range(STEPS):
        log.change(step, targets=Targets(10, "float32", 0.0, 9.0, 0.1, 1.5, missed=0.5 + step / 10))


@spoilt("seeded")
def _(log: Log) -> None:
    log.setup = replace(log.setup, default_seed=True)


@spoilt("in-no-optimizer")
def _(log: Log) -> None:
    log.setup = replace(
        log.setup, parameters=[PARAMETERS[0], replace(PARAMETERS[1], group=""), PARAMETERS[2]]
    )


@spoilt("dropout")
def _(log: Log) -> None:
    log.setup = replace(log.setup, dropouts={"drop": 0.95})


@spoilt("ended")
def _(log: Log) -> None:
    log.ending = "IndexError: Target 4 is out of bounds."


@spoilt("shared-by-mistake")
def _(log: Log) -> None:
    log.setup = replace(log.setup, twins=[("layers.0", "layers.1")])


@spoilt("decay-of-biases")
def _(log: Log) -> None:
    log.setup = replace(log.setup, parameters=[PARAMETERS[0], replace(PARAMETERS[1], decay=0.5)])


@spoilt("state-restored")
def _(log: Log) -> None:
    log.setup = replace(log.setup, taken={"AdamW": 0}, schedulers={"CosineAnnealingLR": 500})


@spoilt("lr-length")
def _(log: Log) -> None:
    log.setup = replace(log.setup, scheduler_lengths={"CosineAnnealingLR": 40})


@spoilt("schedule-steps")
def _(log: Log) -> None:
    for step in range(STEPS):
        log.change(step, schedulers={"CosineAnnealingLR": Applied(2 * step, [rate(step)])})


@spoilt("clip-before-unscale")
def _(log: Log) -> None:
    for step in range(STEPS):
        scale = 1024.0 * 2 ** (step // 20)
        log.change(step, scale=scale, norm_at_update=1 / scale)


@spoilt("finite")
def _(log: Log) -> None:
    log.steps[7] = replace(log.steps[7], finite=False, overflowed=True)


@spoilt("scale-falling")
def _(log: Log) -> None:
    log.scaled += [ScaleChange(step, 1024.0, True, step - 9) for step in range(10, 16)]


@spoilt("scale-at-one")
def _(log: Log) -> None:
    log.steps[7] = replace(log.steps[7], scale=1.0)


@spoilt("scale-growing")
def _(log: Log) -> None:
    log.steps[20:] = [replace(step, grad_norm=0.0, scale=4096.0) for step in log.steps[20:]]


@spoilt("norm-spike")
def _(log: Log) -> None:
    log.steps[40] = replace(log.steps[40], grad_norm=50.0)


@spoilt("seeds-of-ranks")
def _(log: Log) -> None:
    log.others[0].setup = replace(log.others[0].setup, seeds={"torch": 2})
    log.others[0].layer("weight", [2.1, 0.4], 0)


@spoilt("seeded-others")
def _(log: Log) -> None:
    log.setup = replace(log.setup, generators={"python": "b", "numpy": "n"})
    log.change(7, drawn_between=["python"])


@pytest.fixture(scope="module")
def unspoilt() -> dict[str, Any]:
    return {each.check.id: each for each in judge_log(several().ranks()).results}


@pytest.mark.parametrize("check", [check.id for check in CHECKS if check.judge is not None])
def test_a_check_complains_of_its_fault_and_of_no_sound_run(
    check: str, unspoilt: dict[str, Any]
) -> None:
    assert unspoilt[check].status is CheckStatus.PASS, said(unspoilt[check].outcome.measured)
    log = several()
    FAULTS[check](log)
    found = {each.check.id: each for each in judge_log(log.ranks()).results}[check]
    assert found.status in (CheckStatus.WARN, CheckStatus.FAIL)
    assert said(found.outcome.measured)
    assert CHECK_WORDS[check].cure


def ranks_with_one_batch(log: Log) -> None:
    log.others[0].change(7, given=log.vitals[7].given)


def log_of_zero(log: Log) -> None:
    log.given(1, 7, low="-inf", high=2.0)
    log.steps[7] = replace(log.steps[7], finite=False)


def ids_below_zero(log: Log) -> None:
    log.given(0, 7, path="input_ids", low=-1.0)


def large_below_zero(log: Log) -> None:
    log.given(1, 7, low=-1e6, high=5.0)
    log.change(7, outputs={"up": (-3e4, 1.0)})


def other_first_token(log: Log) -> None:
    assert log.earlier is not None
    log.given(0, first=(5.0, 5.0))
    log.earlier.given(0, first=(1.0, 1.0))


def infinite_variance(log: Log) -> None:
    log.change(30, buffers={"norm.running_var": (0.5, "inf")})


def a_nan_beside_a_small_moment(log: Log) -> None:
    log.layer("v", ["nan", 1e-4, 1e-16])


def weights_that_are_replaced(log: Log) -> None:
    log.layer("update", [5.0, 2e-3, 4.0], 10)
    for step in range(STEPS):
        log.change(step, loss=2.0)


def a_loss_that_diverges(log: Log) -> None:
    log.change(slice(50, None), loss=1e6)


def no_labels_at_all(log: Log) -> None:
    log.change(slice(None), targets=Targets(10, "float32", ignored=1.0))


def an_id_beyond_an_embedding(log: Log) -> None:
    log.change(7, lookups=[Lookup("embed", 10, 0.0, 10.0)])


def a_step_that_died_of_a_label(log: Log) -> None:
    log.vitals.append(Vitals(STEPS, targets=Targets(10, "float32", 0.0, 10.0), died=True))


def a_first_step_that_died_of_an_id(log: Log) -> None:
    log.vitals = [Vitals(0, lookups=[Lookup("embed", 10, -1.0, 9.0)], died=True)]


def bytes_at_the_first_layer(log: Log) -> None:
    log.change(slice(None), entered=("up", 0.0, 255.0))


def coarse_values_beside_weights_in_float32(log: Log) -> None:
    log.setup = replace(
        log.setup, parameters=[replace(each, dtype="float32") for each in PARAMETERS]
    )
    log.given(1, dtype="bfloat16", high=600.0)


def no_gradient_at_all(log: Log) -> None:
    log.change(slice(None), backwards=0, elsewhere=1)
    log.layer("grad", [None, None])


def parameters_of_no_model(log: Log) -> None:
    log.change(slice(None), strangers=2)


def no_weight_moved(log: Log) -> None:
    log.layer("moved", [0.0, 0.0])


def gradients_cleared_unused(log: Log) -> None:
    log.change(slice(None), thrown=3)


def three_optimizers_without_state(log: Log) -> None:
    log.change(slice(30, None), renewed=3)


def clipped_behind_the_update(log: Log) -> None:
    log.change(slice(None), clipped_behind=True)


def a_gradient_larger_than_its_weight(log: Log) -> None:
    log.layer("weight", [3e-3, 0.5, 2.0])


def a_cross_entropy_over_one_class(log: Log) -> None:
    log.change(7, targets=Targets(1, "float32", 0.0, 0.0))


def labels_apart_of_many_classes(log: Log) -> None:
    apart(log, None, None)


@pytest.mark.parametrize(
    ("check", "spoil"),
    [
        ("labels-range", an_id_beyond_an_embedding),
        ("labels-range", a_step_that_died_of_a_label),
        ("labels-range", a_first_step_that_died_of_an_id),
        ("input-range", bytes_at_the_first_layer),
        ("input-type", coarse_values_beside_weights_in_float32),
        ("without-gradient", no_gradient_at_all),
        ("without-gradient", parameters_of_no_model),
        ("update-skipped", no_weight_moved),
        ("zero-grad", gradients_cleared_unused),
        ("state-restored", three_optimizers_without_state),
        ("clip-share", clipped_behind_the_update),
        ("gradient-explodes", a_gradient_larger_than_its_weight),
        ("one-class", a_cross_entropy_over_one_class),
        ("labels-by-rank", labels_apart_of_many_classes),
        ("seeds-of-ranks", ranks_with_one_batch),
        ("input-finite", log_of_zero),
        ("input-range", large_below_zero),
        ("labels-range", ids_below_zero),
        ("tokenizer", other_first_token),
        ("buffers", infinite_variance),
        ("second-moment", a_nan_beside_a_small_moment),
        ("update-ratio", weights_that_are_replaced),
        ("loss-trend", a_loss_that_diverges),
        ("labels-ignored", no_labels_at_all),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_another_form_of_a_fault_is_seen(check: str, spoil: Callable[[Log], None]) -> None:
    log = several()
    spoil(log)
    found = {each.check.id: each for each in judge_log(log.ranks()).results}[check]
    assert found.status in (CheckStatus.WARN, CheckStatus.FAIL), found.outcome


def targets_of_a_binary_cross_entropy(log: Log) -> None:
    log.given(1, path="labels", low=0.0, high=1.0, whole=True)


def one_mask_for_all_samples(log: Log) -> None:
    log.given(1, path="attention_mask", low="-inf", high=0.0, constant=1.0)


def an_input_that_was_once_constant(log: Log) -> None:
    log.given(1, constant=1.0)
    for step in range(STEPS):
        log.change(
            step,
            given=[
                *log.vitals[step].given,
                Given("y", "float32", (4, 6), -3.0, 3.0, constant=float(step == 7)),
            ],
        )


def a_table_that_is_frozen(log: Log) -> None:
    log.setup = replace(
        log.setup,
        parameters=[
            *PARAMETERS,
            ParameterFacts("positions.weight", (8, 4), "float32", "Embedding", False),
        ],
    )
    log.change(slice(None), outputs={"up": (-1.0, 1.0), "positions": (-1.0, 1.0)})
    for step in range(STEPS):
        log.change(step, outputs={**vital(step).outputs, "positions": (-1.0, 1.0)})


def positions_that_no_update_moves(log: Log) -> None:
    no_weight_moved(log)
    log.change(slice(None), outputs={"up": (-1.5, 1.0)})


def outputs_that_are_nan(log: Log) -> None:
    log.change(slice(None), outputs={"up": ("nan", "nan")})


def a_scale_of_one_from_the_start(log: Log) -> None:
    log.steps = [replace(step, scale=1.0) for step in log.steps]


def gradients_that_the_loop_averages_over_ranks(log: Log) -> None:
    log.change(7, norm=0.2, norm_at_update=0.5)
    log.others[0].change(7, norm=1.0, norm_at_update=0.5)


def a_run_that_goes_on_from_a_checkpoint(log: Log) -> None:
    log.setup = replace(log.setup, taken={"AdamW": 60})
    log.change(0, loss=1.0)


def a_smoothing_of_a_tenth(log: Log) -> None:
    log.change(slice(None), targets=Targets(10, "float32", 0.0, 9.0, 0.1, 1.5, smoothing=0.1))


def python_seeded_otherwise_and_not_used(log: Log) -> None:
    log.setup = replace(log.setup, generators={"python": "b", "numpy": "n"})


def values_that_bfloat16_holds_one_by_one(log: Log) -> None:
    log.setup = replace(
        log.setup, parameters=[replace(each, dtype="float32") for each in PARAMETERS]
    )
    log.given(1, dtype="bfloat16", high=256.0)


def coarse_values_beside_weights_as_coarse(log: Log) -> None:
    log.given(1, dtype="bfloat16", high=600.0)


def values_up_to_254(log: Log) -> None:
    log.change(slice(None), entered=("up", 0.0, 254.0))


def bytes_less_their_mean(log: Log) -> None:
    log.change(slice(None), entered=("up", -124.0, 255.0))


def gradients_cleared_unused_now_and_then(log: Log) -> None:
    log.change(slice(0, None, 2), thrown=1)


def two_optimizers_without_state(log: Log) -> None:
    log.change(slice(30, None), renewed=2)


def clipped_before_and_behind_the_update(log: Log) -> None:
    log.change(slice(None), clipped=True, clipped_behind=True)


def a_gradient_once_larger_than_its_weight(log: Log) -> None:
    log.layer("weight", [3e-3, 0.5, 2.0], slice(0, -1))


def a_thousand_labels_of_one_class_less_one(log: Log) -> None:
    log.change(slice(None), labels=[])
    log.change(0, labels=[Labels("head.weight", 999, 3.0, 3.0)])


def a_label_in_common(log: Log) -> None:
    apart(log, 0b0000011111, 0b1111110000)


def a_user_who_ends_the_run(log: Log) -> None:
    log.ending = "SystemExit: 0"


def a_little_padding(log: Log) -> None:
    log.change(7, targets=Targets(10, "float32", 0.0, 9.0, padding=0.02))


def dropout_of_nine_tenths(log: Log) -> None:
    log.setup = replace(log.setup, dropouts={"drop": 0.9})


@pytest.mark.parametrize(
    ("check", "sound_too"),
    [
        ("input-type", values_that_bfloat16_holds_one_by_one),
        ("input-type", coarse_values_beside_weights_as_coarse),
        ("input-range", values_up_to_254),
        ("input-range", bytes_less_their_mean),
        ("zero-grad", gradients_cleared_unused_now_and_then),
        ("state-restored", two_optimizers_without_state),
        ("clip-share", clipped_before_and_behind_the_update),
        ("gradient-explodes", a_gradient_once_larger_than_its_weight),
        ("one-class", a_thousand_labels_of_one_class_less_one),
        ("labels-by-rank", a_label_in_common),
        ("ended", a_user_who_ends_the_run),
        ("padding-in-loss", a_little_padding),
        ("dropout", dropout_of_nine_tenths),
        ("input-type", targets_of_a_binary_cross_entropy),
        ("input-constant", one_mask_for_all_samples),
        ("input-constant", an_input_that_was_once_constant),
        ("input-finite", one_mask_for_all_samples),
        ("output-constant", a_table_that_is_frozen),
        ("output-constant", positions_that_no_update_moves),
        ("output-constant", outputs_that_are_nan),
        ("scale-at-one", a_scale_of_one_from_the_start),
        ("gradients-grow", gradients_that_the_loop_averages_over_ranks),
        ("same-first-step", a_run_that_goes_on_from_a_checkpoint),
        ("label-smoothing", a_smoothing_of_a_tenth),
        ("seeded-others", python_seeded_otherwise_and_not_used),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_what_looks_like_a_fault_and_is_none_is_left_alone(
    check: str, sound_too: Callable[[Log], None]
) -> None:
    log = several()
    sound_too(log)
    found = {each.check.id: each for each in judge_log(log.ranks()).results}[check]
    assert found.status in (CheckStatus.PASS, CheckStatus.NOT_LOOKED_AT), found.outcome


def test_a_check_without_numbers_is_not_passed() -> None:
    log = sound()
    log.change(slice(None), loss="nan")
    found = {each.check.id: each for each in judge_log(log.ranks()).results}
    assert found["loss-spike"].status is CheckStatus.NOT_LOOKED_AT


def test_a_scheduler_that_says_no_rates_is_not_said_to_be_followed() -> None:
    log = sound()
    log.change(slice(None), schedulers={"Own": Applied(1, [])})
    found = {each.check.id: each for each in judge_log(log.ranks()).results}
    assert found["schedule-applied"].status is CheckStatus.NOT_LOOKED_AT


def test_the_floor_of_a_smoothed_loss_is_the_entropy_of_its_labels() -> None:
    """Against torch's own loss of an output that is the smoothed label itself."""
    log = sound()
    log.change(slice(None), targets=Targets(4, "float32", 0.0, 3.0, 0.0, 1.0, smoothing=0.2))
    measured = {each.check.id: each for each in judge_log(log.ranks()).results}[
        "label-smoothing"
    ].outcome.measured
    label = np.array([0.85, 0.05, 0.05, 0.05])
    assert said(measured).endswith(f"below {-(label * np.log(label)).sum():.4g}")


def test_a_log_that_ends_in_the_middle_of_its_first_step_is_judged() -> None:
    log = sound()
    log.vitals, log.steps = log.vitals[:1], []
    log.change(0, schedulers={"CosineAnnealingLR": Applied(1, [rate(0)])})
    found = {each.check.id: each for each in judge_log(log.ranks()).results}
    assert found["schedule-order"].status is CheckStatus.WARN


def test_what_nobody_looks_at_is_listed_with_the_reason() -> None:
    unbuilt = [each for each in judge_log(sound().ranks()).results if each.check.judge is None]
    assert unbuilt
    assert all(
        each.status is CheckStatus.NOT_LOOKED_AT and said(each.outcome.measured) for each in unbuilt
    )


def test_a_log_of_an_earlier_version_is_not_called_sound() -> None:
    log = sound()
    log.vitals, log.steps = [], [Step(step, True) for step in range(3)]
    found = judge_log(log.ranks())
    assert {each.status for each in found.results if each.check.needs[:1] == (Need.VITALS,)} == {
        CheckStatus.NOT_LOOKED_AT
    }


def test_the_range_of_floating_inputs_is_not_looked_at_where_there_are_none() -> None:
    log = sound()
    log.given(1, dtype="int64")
    found = {each.check.id: each for each in judge_log(log.ranks()).results}["input-range"]
    assert (found.status, said(found.outcome.measured)) == (
        CheckStatus.NOT_LOOKED_AT,
        "the model was given no floating input",
    )


def test_two_looks_are_too_few_to_say_that_a_gradient_explodes() -> None:
    log = sound()
    log.change(slice(2, None), layers={})
    found = {each.check.id: each for each in judge_log(log.ranks()).results}["gradient-explodes"]
    assert said(found.outcome.measured) == "too few looks: 2, and 3 are needed"


@pytest.mark.parametrize(("check", "period"), [("batch-repeated", 1), ("order-repeated", 20)])
@pytest.mark.parametrize("loaded", [None, LoadedBatch(0, 1, 20, False)])
def test_batches_that_come_again_are_judged_by_the_loader_that_gave_them(
    check: str, period: int, loaded: LoadedBatch | None
) -> None:
    log = sound()
    for step in range(STEPS):
        log.change(step, given=log.vitals[step % period].given, loaded=loaded)
    found = {each.check.id: each for each in judge_log(log.ranks()).results}[check]
    assert found.status is (CheckStatus.NOT_LOOKED_AT if loaded is None else CheckStatus.PASS)


def test_one_rank_is_said_to_be_one() -> None:
    found = {each.check.id: each for each in judge_log(sound().ranks()).results}
    assert (found["ranks-agree"].status, said(found["ranks-agree"].outcome.measured)) == (
        CheckStatus.NOT_LOOKED_AT,
        "one rank",
    )


def test_a_run_that_goes_on_with_an_empty_optimizer_is_seen_by_its_weights() -> None:
    log = several()
    log.setup = replace(log.setup, taken={"AdamW": 0})
    log.layer("weight", [3.0, 0.5], 0)  # those that the run before ended with
    found = {each.check.id: each for each in judge_log(log.ranks()).results}["state-restored"]
    assert (found.status, said(found.outcome.measured).split(";")[0]) == (
        CheckStatus.FAIL,
        "the run goes on with the weights of the one before, whose optimizer had taken 60 steps",
    )


def test_a_threshold_takes_the_default_s_place_and_stands_in_the_result() -> None:
    log = sound()
    FAULTS["loss-spike"](log)
    found = {each.check.id: each for each in judge_log(log.ranks(), {"loss-spike": 1e3}).results}[
        "loss-spike"
    ]
    assert (found.status, found.limits["loss-spike"]) == (CheckStatus.PASS, 1e3)


def test_thresholds_are_read_from_options_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "thresholds.toml"
    file.write_text("loss-spike = 20\ndead-units = 0.8\n")
    assert read_thresholds(["loss-spike=30"], file) == {"loss-spike": 30.0, "dead-units": 0.8}


@pytest.mark.parametrize(
    "text",
    [
        "loss-spike",
        "loss-spike=much",
        "no-such=1",
        "loss-spike=nan",
        "loss-spike=-5",
        "loss-spike=1e999",
    ],
)
def test_a_threshold_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--threshold"):
        read_thresholds([text])


@pytest.mark.parametrize("value", ["-5", "inf"])
def test_a_threshold_of_a_file_that_makes_no_sense_is_refused(tmp_path: Path, value: str) -> None:
    file = tmp_path / "thresholds.toml"
    file.write_text(f"loss-spike = {value}\n")
    with pytest.raises(UsageError, match="finite number that is not negative"):
        read_thresholds([], file)


def test_a_spike_is_measured_from_the_median_in_logarithms() -> None:
    """Against the definition, by NumPy: a fall by a tenth in each step is no spread, and what was
    noise in it is.
    """
    noise = np.random.default_rng(0).normal(0, 0.2, 60)
    logs = noise - 0.1 * np.arange(60)
    points = [Point(step, math.exp(value)) for step, value in enumerate([*logs, 2.0])]
    (found,) = spikes(points, 10, floor=0.1)
    steps = np.diff(logs)
    spread = 1.4826 * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2)
    assert found.point.step == 60
    assert found.usual == pytest.approx(np.exp(np.median(logs[-10:])))
    assert found.spreads == pytest.approx((2.0 - np.median(logs[-10:])) / spread)
