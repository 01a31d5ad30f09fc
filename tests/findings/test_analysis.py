"""Reading what a watch wrote: answers, hints, trails, histories, several ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from accucompare.errors import UsageError
from accucompare.findings.analysis.analysis import Ranks, analyse, read_logs
from accucompare.findings.log.events import Cause, Direction, ScaleChange, Site
from accucompare.findings.log.log import log_path
from accucompare.findings.origins import operator_name
from accucompare.report.watch_words import (
    answer,
    described,
    finding_headline,
    hints_for,
    printable_value,
    said,
)
from tests.findings.logs import NASTY, end, found, passed, seen, start, step, training, write

BACKWARD: dict[str, Any] = {"direction": Direction.BACKWARD}


def half(role: str = "output", **more: Any) -> Any:
    return seen(
        role, "", **{"dtype": "float16", "low": -1.0, "high": "inf", "nan": 0, "inf": 3, **more}
    )


def overflow(**more: Any) -> Any:
    return found(**{"kinds": ["+Inf"], "tensors": [seen(dtype="float16"), half()], **more})


# The answer


def test_answer_says_what_where_how_from_what_and_where_more_is() -> None:
    run = training(rank=1)
    (one,) = (event for event in run if getattr(event, "origin", False))
    lines = answer(one, run[0], Path("watch")).splitlines()  # type: ignore[arg-type]
    assert (
        lines[0]
        == "+Inf in transformer.h.3.attn (glue, before c_proj) (GPT2Attention), forward, step 3,"
        " rank 1 (tp 1, pp 0, dp 0)"
    )
    assert (
        lines[1]
        == "made inside by aten.bmm.default at model.py:57: what went in was finite, but near the"
        " limit of its dtype"
    )
    assert (
        lines[2]
        == "in: input 0 float16 [2, 12, 1024, 1024] |x| up to 61000 → out: output float16 [2, 12,"
        " 1024, 1024] |x| up to inf, 7 Inf"
    )
    assert lines[3].startswith("try: what goes in is near the limit already (61000 of 65504)")
    assert (
        lines[4]
        == "reproducer: watch/step3-transformer.h.3.attn/reproduce.py; log: watch/rank1.jsonl"
    )
    assert len(lines) == 5


@pytest.mark.parametrize("name", NASTY)
@pytest.mark.parametrize("site", Site)
def test_answer_has_five_lines_at_most_whatever_the_names(name: str, site: Site) -> None:
    one = found(
        name, site=site, type=name, near=name, operator=name, line=name, kinds=[name],
        parameters=[name] * 9, legal=[name] * 5,
        notes=[name], reproducer=name, weights=[seen("weight", name)] * 9,
        tensors=[seen(path=name)] * 9,
    )  # fmt: skip
    text = answer(one, start(coordinates={name: 1}), Path("out"))
    assert len(text.splitlines()) <= 5
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"site": Site.LOSS, **BACKWARD}, "NaN in the loss, backward, step 0"),
        ({"site": Site.INPUT, "name": ""}, "NaN in (root), input 0 (Linear), forward, step 0"),
        (
            {"site": Site.SUM, **BACKWARD},
            "NaN in fc1 (sum of gradients), backward (Linear), step 0",
        ),
        (
            {"call": 2, "kinds": ["NaN", "-Inf"]},
            "NaN and -Inf in fc1 call 2 (Linear), forward, step 0",
        ),
    ],
)
def test_headline_says_the_place_and_the_pass(more: dict[str, Any], said: str) -> None:
    assert finding_headline(found(**more), start()) == said


def test_answer_names_parameters_whose_gradients_are_not_finite() -> None:
    one = found(parameters=["a", "b", "c", "d", "e"], **BACKWARD)
    assert "gradients not finite: a; b; c; and 2 more" in answer(one, start())


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (seen(low=1.0, high=3.0), "input 0 float32 [4, 8] |x| 1..3"),
        (seen(low=-3.0, high=-1.0), "input 0 float32 [4, 8] |x| 1..3"),
        (seen(low=-3.0, high=1.0), "input 0 float32 [4, 8] |x| up to 3"),
        (seen(low="nan", high="nan"), "input 0 float32 [4, 8]: NaN"),
        (seen(low="nan", high="nan", nan=1234, inf=2), "input 0 float32 [4, 8]: 1,234 NaN, 2 Inf"),
        (seen(low="-inf", high=1.0), "input 0 float32 [4, 8] |x| up to inf, Inf"),
        (seen("weight", "weight", shape=()), "weight float32 [] |x| up to 2"),
    ],
)
def test_a_tensor_in_words(one: Any, said: str) -> None:
    assert described(one) == said


def test_long_names_keep_both_ends() -> None:
    assert printable_value("a" * 100 + "b" * 100, 21) == "a" * 10 + "…" + "b" * 10


# Hints


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        ("aten.log_.default", "log"), ("aten._softmax.default", "softmax"), ("LogBackward0",
        "log"), ("aten.div.Tensor", "div"),
        ("LinalgVectorNormBackward0", "linalg_vector_norm"),
        ("aten.native_layer_norm_backward.default", "native_layer_norm"),
        ("npu.npu_fusion_attention.default", "npu_fusion_attention"), ("", ""), ("...", ""),
        ("weird", "weird"),
    ],
)  # fmt: skip
def test_operators_plain_names(operator: str, name: str) -> None:
    assert operator_name(operator) == name


MASKED = seen(low="-inf", high=0.0)


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (found(operator="aten.log.default"), "log of 0"),
        (found(operator="aten.div.Tensor"), "division by 0"),
        (found(operator="aten.sqrt.default"), "root of a negative"),
        (found(operator="aten.rsqrt.default"), "1/sqrt of 0"),
        (found(operator="SqrtBackward0", **BACKWARD), "slope of a root"),
        (found(operator="LinalgVectorNormBackward0", **BACKWARD), "slope of a root or a norm"),
        (found(operator="LogBackward0", **BACKWARD), "slope is 1/0"),
        (overflow(operator="aten.exp.default"), "exp of more than"),
        (found(operator="aten._softmax.default", tensors=[MASKED]), "a row of -Inf has no softmax"),
        (found(type="T5Attention", legal=["attention_mask"]), "a row of -Inf has no softmax"),
        (found(tensors=[MASKED]), "-Inf went in and NaN came out"),
        (overflow(), "keep fc1 in float32, or use bfloat16: float16 ends at 65504"),
        (overflow(tensors=[half(dtype="bfloat16")]), "float32 does not help"),
        (overflow(operator="aten.bmm.default"), "scale one side before it"),
        (
            overflow(cause=Cause.NEAR, tensors=[seen(dtype="float16", high=6e4), half()]),
            "near the limit already (60000 of 65504)",
        ),
        (overflow(site=Site.GLUE, operator="aten.add.Tensor"), "grows from block to block"),
        (overflow(**BACKWARD), "lower the loss scale"),
        (found(site=Site.WEIGHTS, step=7), "look at the update before this step"),
        (found(site=Site.WEIGHTS), "look at the checkpoint"),
        (found(site=Site.INPUT), "look at the data of step 0"),
        (found(site=Site.LOSS, **BACKWARD), "labels that are all ignored"),
        (overflow(kinds=["saturated"]), "gives the largest number in place of Inf: 65504"),
        (passed(), "this one only passed it on"),
        (
            found(
                operator="aten.pow.Tensor_Scalar",
                operator_tensors=[seen(low=0.0, high=2.0), half()],
            ),
            "0 to a negative power",
        ),
        (
            overflow(
                operator="aten.pow.Tensor_Scalar",
                operator_tensors=[seen(low=-1e4, high=1e4, dtype="float16"), half()],
            ),
            "keep fc1 in",
        ),
        (found(site=Site.LOSS, legal=["output"], **BACKWARD), "the model gave an Inf, as masks do"),
        (found(type="LayerNorm"), "equal values have no variance"),
        (found(), "--level op"),
    ],
)
def test_hints_follow_from_the_finding(one: Any, told: str) -> None:
    shown = hints_for(one, start())
    assert any(told in hint for hint in shown), shown


@pytest.mark.parametrize(
    "one",
    [
        found(operator="aten.log.default"),
        found(site=Site.WEIGHTS),
        passed(),
        overflow(operator="aten.div.Tensor"),
    ],
)
def test_float32_is_no_hint_where_the_range_is_not_the_cause(one: Any) -> None:
    assert not any("keep " in hint for hint in hints_for(one, start()))


@pytest.mark.parametrize(("low", "high"), [(-1e4, 1e4), (300.0, 400.0)])
def test_a_square_that_overflows_is_no_power_of_0(low: float, high: float) -> None:
    square = overflow(
        operator="aten.pow.Tensor_Scalar",
        operator_tensors=[seen(low=low, high=high, dtype="float16"), half()],
    )
    assert not any("negative power" in hint for hint in hints_for(square, start()))


def test_the_update_is_not_blamed_before_the_first_one() -> None:
    assert not any(
        "update" in hint for hint in hints_for(found(site=Site.WEIGHTS, step=0), start())
    )


def test_another_ranks_log_is_a_hint_only_with_several_ranks() -> None:
    one = found(site=Site.SUM, **BACKWARD)
    assert [
        sum("another rank" in hint for hint in hints_for(one, start(ranks=ranks)))
        for ranks in (1, 2)
    ] == [0, 1]


def test_an_overflow_of_gradients_is_normal_only_under_a_loss_scale() -> None:
    shown = [hints_for(overflow(**BACKWARD), start(), scale) for scale in (None, 1.0, 65536.0)]
    assert [any("now and then are normal" in hint for hint in each) for each in shown] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("site", Site)
@pytest.mark.parametrize("direction", Direction)
def test_there_is_a_hint_for_an_origin_at_every_site(site: Site, direction: Direction) -> None:
    assert hints_for(found(site=site, direction=direction), start())


# A run


def test_findings_are_in_execution_order_not_as_written() -> None:
    run = analyse(
        [
            start(),
            found("d", step=1, order=1),
            found("c", order=9),
            found("a", order=2),
            found("b", order=3),
        ]
    )
    assert [one.name for one in run.findings] == ["a", "b", "c", "d"]


def test_what_an_origin_passed_through_is_its_trail() -> None:
    run = analyse(
        [
            start(),
            found("a", order=1),
            passed("b", order=2),
            passed("c", order=3),
            found("d", order=4),
            passed("e", step=1),
        ]
    )
    trails = [
        (trail.origin and trail.origin.name, [one.name for one in trail.passed])
        for trail in run.trails
    ]
    assert trails == [("a", ["b", "c"]), ("d", []), (None, ["e"])]


@pytest.mark.parametrize(
    ("norms", "steps"),
    [
        ([1, 1, 1, 1, 1], []),
        ([1, 2, 1.5, 30, 1], [3]),
        ([1, 100], []),  # too few before it
        ([1, 1, 1, "nan", "inf", "nan", 1, "inf"], [3, 7]),
        (["nan", 1], [0]),
        ([0, 0, 0, 1e-9], [3]),
        ([None, None], []),
    ],
)
def test_steps_in_which_grad_norm_jumped(norms: list[Any], steps: list[int]) -> None:
    run = analyse([start(), *(step(number, grad_norm=norm) for number, norm in enumerate(norms))])
    assert [jump.step.step for jump in run.jumps] == steps


@pytest.mark.parametrize(
    ("scaled", "alarm"),
    [
        (ScaleChange(5, 32768.0, True, 1), False),
        (ScaleChange(5, 256.0, True, 8), False),
        (ScaleChange(5, 1.0, True, 1), True),
        (ScaleChange(5, 1024.0, True, 2, alarm=True), True),
        (ScaleChange(5, 131072.0, False, 0), False),
    ],
)
def test_an_occasional_skip_is_normal_and_many_or_a_scale_at_1_are_an_alarm(
    scaled: ScaleChange, alarm: bool
) -> None:
    assert bool(analyse([start(), scaled]).alarms) is alarm


def test_a_run_without_an_end_was_killed() -> None:
    assert "killed" in said(analyse([start(), step(0)]).ending)
    assert (
        said(analyse([start(), step(0), end(5, 1, "interrupted")]).ending)
        == "ended after 5 steps, 1 watched: interrupted"
    )


# Ranks


def directory(path: Path, *runs: list[Any]) -> Ranks:
    for rank, run in enumerate(runs):
        write(log_path(path, rank), start(rank=rank, ranks=len(runs)), *run)
    return read_logs(path)


def test_the_first_origin_of_all_ranks_is_by_step_and_then_by_order(tmp_path: Path) -> None:
    runs = [
        [found("a", step=3, order=1)],
        [found("b", step=2, order=9)],
        [found("c", step=2, order=4)],
        [passed("d", step=0)],
    ]
    ranks = directory(tmp_path, *([*run, step(3), end()] for run in runs))
    assert ranks.first is not None
    assert (ranks.first[0].start.rank, ranks.first[1].name) == (2, "c")
    assert [one.name for _, one in ranks.findings] == ["d", "c", "b", "a"]


def test_a_rank_that_ends_before_the_others_is_named(tmp_path: Path) -> None:
    ranks = directory(tmp_path, [step(0), step(1), end(2)], [step(0)], [])
    assert [said(note).split(";")[0] for note in ranks.notes] == [
        "rank 1 ends at step 0, others go on to step 1",
        "rank 2 has no step, others go on to step 1",
    ]
    assert ranks.trouble is not None
    assert "killed" in said(ranks.trouble)


def test_a_rank_without_a_log_makes_silence_no_pass(tmp_path: Path) -> None:
    write(log_path(tmp_path, 1), start(rank=1, ranks=6), step(0), end())
    ranks = read_logs(tmp_path)
    assert list(map(said, ranks.notes)) == ["no log of rank 0, 2-5 of 6"]
    assert ranks.trouble is not None
    assert "not in every rank's log" in said(ranks.trouble)


def test_a_log_that_cannot_be_read_is_noted_and_the_others_are_told(tmp_path: Path) -> None:
    write(log_path(tmp_path, 0), start(rank=0, ranks=2), found(), step(0), end())
    log_path(tmp_path, 1).write_bytes(b"")
    ranks = read_logs(tmp_path)
    assert len(ranks.findings) == 1
    assert "rank1.jsonl: holds no events" in said(ranks.notes[0])


def test_logs_of_an_earlier_run_with_more_ranks_are_left_out(tmp_path: Path) -> None:
    for rank in range(3):
        write(
            log_path(tmp_path, rank),
            start(rank=rank, ranks=3, time="2026-01-01T00:00:00Z"),
            found(),
            step(0),
            end(),
        )
    write(log_path(tmp_path, 0), start(time="2026-01-02T00:00:00Z"), step(0), end())
    ranks = read_logs(tmp_path)
    assert ([run.start.ranks for run in ranks.ranks], ranks.findings, ranks.trouble) == (
        [1],
        [],
        None,
    )
    assert len(ranks.notes) == 2


def test_of_two_runs_the_last_is_told(tmp_path: Path) -> None:
    log = write(tmp_path / "x.jsonl", start(), found(), step(0), end(), start(), step(0), end())
    assert (read_logs(log).findings, read_logs(log).trouble) == ([], None)


def test_no_watched_step_proves_nothing(tmp_path: Path) -> None:
    trouble = read_logs(write(tmp_path / "x", start(), end(5, 0))).trouble
    assert trouble is not None
    assert "no step was watched" in said(trouble)


def test_an_overflow_flag_without_a_finding_is_no_silence(tmp_path: Path) -> None:
    ranks = read_logs(write(tmp_path / "x", start(), step(0), step(1, overflowed=True), end(2)))
    assert [one.step for _, one in ranks.unexplained] == [1]


def test_a_directory_without_a_log_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no log of a watch"):
        read_logs(tmp_path)


def test_abs_max_of_what_holds_a_nan_is_nan() -> None:
    assert math.isnan(seen(low="nan", high="nan").abs_max)
