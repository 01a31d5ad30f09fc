"""The beginnings of sound trainings that look like faults to whom judges by what is usual: the
checklist says nothing of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from accucompare.findings.analysis.analysis import read_logs
from accucompare.findings.checklist.checks import CheckStatus
from accucompare.findings.checklist.health_checklist import judge_log
from accucompare.report.watch_words import said
from benchmarks.health_sound import watch_loop

#: Long enough for what is judged by several looks at every tenth step.
STEPS = 45


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "DCGAN, both watched",
        "WGAN with a gradient penalty, both watched",
        "a GAN in autocast: real images in float32, made ones in bfloat16",
        "two optimizers that take turns with one model and one batch",
        "a whole model in eval, of which only the last layer is trained",
        "adversarial training: the attack in eval, the update in train",
        "mean teacher: the same model without gradients in each step, in training",
        "BYOL: a teacher inside of the model that follows its student",
        "several tasks, of which a batch has one, and one has no data yet",
        "one batch learnt by heart, until the loss is 0",
        "a line by gradient descent on all points, until nothing is left",
        "counts by a Poisson regression, with missing numbers that the model fills in",
        "prices as they are: targets in hundred thousands, a table that batch norm makes even",
        "factors of a matrix: users and films, small at first",
        "a bag of words: inputs that are mostly 0",
        "SimCLR: -1e9 on the diagonal, temperature 0.1",
        "CLIP: a scale that is learnt, up to 100",
        "Lion: signs, weight decay 0.2",
        "noise added to clipped gradients of single samples",
        "gradients of two tasks that are put in place by hand",
        "a warm-up, and then a rate that falls where the loss stays",
        "groups of which one has a rate of 0 for a while, others smaller ones",
        "float16 autocast with a loss scale, clipped",
        "float16 autocast, a loss scale that begins at 2**32",
        "float16 autocast, a margin that all samples come to keep: the loss is 0",
        "word_language_model: updates by hand, a state that is carried on, clipping to 0.25",
    ],
)
def test_a_sound_training_is_left_alone(name: str, tmp_path: Path) -> None:
    watch_loop(name, tmp_path, STEPS)
    health = judge_log(read_logs(tmp_path))
    assert {
        each.check.id: said(each.outcome.measured)
        for each in health.of(CheckStatus.WARN, CheckStatus.FAIL)
    } == {}
