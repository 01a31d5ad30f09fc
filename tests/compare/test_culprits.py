"""Where errors are made: reasons of fed rows, ranking, and what is concluded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import accucompare as ac
from accucompare.api import Comparison
from accucompare.bundle.format.manifest import StepSeries
from accucompare.compare.limits import LimitsInForce
from accucompare.compare.origins.describing import differing_choices
from accucompare.compare.shape_facts import ErrorShape, OtherChoices
from accucompare.report.words import limit_words, verdict_words
from tests.compare.builder import Item, item, write

DRAW = np.random.default_rng(3)
VALUES = DRAW.normal(size=300).astype(np.float32)
NOISE = [
    direction / np.linalg.norm(direction) * np.linalg.norm(VALUES)
    for direction in DRAW.normal(size=(2, 300))
]

#: A root with a block of two children in each of two layers, in execution order: name, role,
# parent.
ORDER: list[tuple[str, str, tuple[str, int] | None]] = [
    ("", "input", None),
    *(
        entry
        for layer in ("a", "b")
        for entry in (
            (layer, "input", ("", 0)),
            (f"{layer}.fc", "input", (layer, 0)),
            (f"{layer}.fc", "output", (layer, 0)),
            (f"{layer}.norm", "input", (layer, 0)),
            (f"{layer}.norm", "output", (layer, 0)),
            (layer, "output", ("", 0)),
        )
    ),
    ("", "output", None),
]

Places = dict[str, float]


def net(errors: Places, usual: float = 1e-3, direction: int = 0, steps: int = 1) -> list[Item]:
    """Its records with the relative L2 errors of the places named (``b.fc output``), all others
    with the usual one.
    """
    return [
        item(
            name,
            (VALUES + NOISE[direction] * errors.get(f"{name} {role}", usual)).astype(np.float32),
            role=role,
            parent=parent,
            step=step,
        )
        for step in range(steps)
        for name, role, parent in ORDER
    ]


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., Comparison]:
    """Compares a candidate with such errors: fed or not, with a baseline or without."""

    def compare(
        errors: Places,
        *,
        fed: bool = True,
        baseline: bool = True,
        usual: float = 1e-3,
        not_fed: Iterable[dict[str, Any]] = (),
        **options: Any,
    ) -> Comparison:
        golden = write(tmp_path / "golden", net({}, 0.0), model=options.pop("golden_model", {}))
        identity = ac.open_bundle(golden).identity()
        feed = (
            {
                "capture": {
                    "feed": {"golden": "golden", "identity": identity, "not_fed": list(not_fed)}
                }
            }
            if fed
            else {}
        )
        candidate = write(
            tmp_path / "candidate", net(errors, usual), **feed, model=options.pop("model", {})
        )
        if baseline:
            options["baseline"] = write(tmp_path / "baseline", net({}, 1e-3, 1), **feed)
        return ac.diff(golden, candidate, **options)

    return compare


def reasons(comparison: Comparison) -> dict[str, str]:
    """Of the rows that fail."""
    return {row.place: row.reason.value for row in comparison.rows if row.status.value == "fail"}


def places(comparison: Comparison) -> list[str]:
    return [culprit.place for culprit in comparison.culprits]


# Fed


def test_without_a_fault_there_is_no_culprit(compared: Callable[..., Comparison]) -> None:
    comparison = compared({})
    assert (comparison.passed, comparison.culprits, comparison.conclusion) == (True, [], "rounding")


@pytest.mark.parametrize(
    ("place", "reason", "named"),
    [
        ("a.fc output", "introduced", "a.fc"),
        ("b.norm output", "introduced", "b.norm"),
        ("b.norm input", "glue", "b (glue, before norm)"),
        ("b output", "glue", "b (glue, at its end)"),
        ("b input", "glue", "(root) (glue, before b)"),
        (" output", "glue", "(root) (glue, at its end)"),
    ],
)
def test_fed_every_error_is_its_own(
    compared: Callable[..., Comparison], place: str, reason: str, named: str
) -> None:
    comparison = compared({place: 3e-2})
    assert list(reasons(comparison).values()) == [reason]
    (culprit,) = comparison.culprits
    assert (culprit.place, culprit.excess) == (named, pytest.approx(30.0, rel=1e-3))
    assert comparison.conclusion == f"bug: {named}, excess 30"


def test_the_shape_of_a_culprits_error_is_described(compared: Callable[..., Comparison]) -> None:
    (culprit,) = compared({"a.fc output": 3e-2}).culprits
    assert isinstance(culprit.shape, ErrorShape)
    assert culprit.shape.patterns


def test_two_faults_at_once_are_both_named(compared: Callable[..., Comparison]) -> None:
    comparison = compared({"a.fc output": 3e-2, "b.norm output": 0.5})
    assert places(comparison) == ["b.norm", "a.fc"]
    assert comparison.conclusion == "bug: b.norm, excess 500; and a.fc, excess 30"


def test_of_about_equal_excesses_outputs_come_before_glue_and_what_is_inside_first(
    compared: Callable[..., Comparison],
) -> None:
    comparison = compared(
        {"b input": 0.05, "b output": 0.051, "b.fc output": 0.048, "a.fc output": 0.5}
    )
    assert places(comparison) == ["a.fc", "b.fc", "b (glue, at its end)", "(root) (glue, before b)"]


def test_an_error_of_the_models_inputs_is_no_culprit(compared: Callable[..., Comparison]) -> None:
    comparison = compared({" input": 0.5})
    assert (reasons(comparison), comparison.culprits) == ({"(root) input": "inputs differ"}, [])
    assert comparison.conclusion == "different: the two models were given different inputs"


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        (
            "input",
            {
                "b.fc input": "glue",
                "b.fc output": "inherited",
                "b.norm input": "inherited",
                "b output": "inherited",
            },
        ),
        (
            "output",
            {
                "b.fc input": "glue",
                "b.fc output": "introduced",
                "b.norm input": "inherited",
                "b output": "inherited",
            },
        ),
    ],
)
def test_what_was_computed_from_values_that_were_not_fed_is_inherited(
    compared: Callable[..., Comparison], role: str, expected: dict[str, str]
) -> None:
    errors = dict.fromkeys(expected, 3e-2)
    not_fed = [
        {"step": 0, "name": "b.fc", "call": 0, "role": role, "path": "", "why": "another shape"}
    ]
    comparison = compared(errors, not_fed=not_fed)
    assert reasons(comparison) == expected
    assert f"not fed: 1 value of golden: b.fc {role} (another shape)" in [
        finding.message for finding in comparison.preflight
    ]


def test_what_was_not_fed_but_right_taints_nothing(compared: Callable[..., Comparison]) -> None:
    not_fed = [
        {"step": 0, "name": "b.fc", "call": 0, "role": "input", "path": "", "why": "another shape"}
    ]
    assert reasons(compared({"b.fc output": 3e-2}, not_fed=not_fed)) == {
        "b.fc output": "introduced"
    }


@pytest.mark.parametrize("passes", [True, False])
def test_fed_without_baseline_32_roundings_are_the_limit_in_float32(
    compared: Callable[..., Comparison], passes: bool
) -> None:
    limit = 32 * 2.0**-24
    comparison = compared(
        {"a.fc output": limit * (0.9 if passes else 1.2)}, usual=1e-8, baseline=False
    )
    (row,) = (row for row in comparison.rows if row.place == "a.fc output")
    assert (limit_words.rule(row.verdict.limit), row.verdict.rel_l2_limit, row.verdict.excess) == (
        "fed",
        limit,
        None,
    )
    assert places(comparison) == ([] if passes else ["a.fc"])


@pytest.mark.parametrize(
    ("rounding", "limit"),
    [(2.0**-8, 2.0**-6), (2.0**-12, 2.0**-10), (2.0**-24, 2.0**-19), (2.0**-53, 2.0**-48)],
)
def test_fed_without_baseline_coarse_types_may_round_4_times_and_fine_ones_32(
    rounding: float, limit: float
) -> None:
    dtype = {2.0**-8: "bfloat16", 2.0**-53: "float64"}.get(rounding, "float32")
    tolerances = LimitsInForce(fed=True, rounding=rounding)
    record = item("fc", np.zeros(1, np.float32)).record
    assert tolerances.tolerance_for(record, record, dtype).rel_l2 == limit


def test_the_same_site_in_several_steps_is_one_culprit_with_its_largest_error(
    tmp_path: Path,
) -> None:
    golden = write(tmp_path / "golden", net({}, 0.0, steps=3))
    feed = {
        "capture": {
            "feed": {
                "golden": "golden",
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        }
    }
    steps = [net({"a.fc output": error}, steps=3) for error in (0.03, 0.5, 1e-3)]
    candidate = write(
        tmp_path / "candidate",
        [each for step, side in enumerate(steps) for each in side if each.record.step == step],
        **feed,
    )
    comparison = ac.diff(
        golden, candidate, baseline=write(tmp_path / "baseline", net({}, 1e-3, 1, steps=3), **feed)
    )
    (culprit,) = comparison.culprits
    assert (culprit.name, culprit.seen, culprit.excess) == (
        "a.fc",
        2,
        pytest.approx(500.0, rel=1e-3),
    )
    assert comparison.conclusion == "bug: a.fc in step 1, excess 500"


def in_steps(tmp_path: Path, errors: list[Places], updated: bool) -> Comparison:
    """A fed comparison whose steps have these errors, and made updates or did not."""
    series = [StepSeries(step, updates=int(updated), losses=(1.0,)) for step in range(len(errors))]
    records = [[*net({}, 0.0, steps=len(errors))], []]
    for step, each in enumerate(errors):
        records[1] += [one._replace(record=replace(one.record, step=step)) for one in net(each)]
    golden = write(tmp_path / "golden", records[0], series=series)
    feed = {
        "capture": {
            "feed": {
                "golden": "golden",
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        }
    }
    baseline = write(tmp_path / "baseline", net({}, 1e-3, 1, len(errors)), series=series, **feed)
    return ac.diff(
        golden, write(tmp_path / "candidate", records[1], series=series, **feed), baseline=baseline
    )


@pytest.mark.parametrize(
    ("first", "updated", "named", "step"),
    [
        (
            0.1,
            True,
            "a.fc",
            0,
        ),  # the first step that fails leads, though a later one is further off
        (0.1, False, "b.fc", 1),  # several inputs are no training: the strongest evidence leads
        (8e-3, True, "b.fc", 1),  # what is hardly over its limit may be chance
    ],
)
def test_of_steps_that_train_the_first_with_a_clear_error_leads(
    tmp_path: Path, first: float, updated: bool, named: str, step: int
) -> None:
    comparison = in_steps(tmp_path, [{"a.fc output": first}, {"b.fc output": 10.0}], updated)
    culprit = comparison.culprits[0]
    assert (culprit.name, culprit.row.record.step) == (named, step)
    assert len(comparison.culprits) == 2


def test_a_fault_of_every_step_is_named_in_the_first(tmp_path: Path) -> None:
    comparison = in_steps(
        tmp_path,
        [{}, {"a.fc output": 0.1}, {"a.fc output": 0.5}, {"a.fc output": 5.0}],
        updated=True,
    )
    assert [(culprit.row.record.step, culprit.seen) for culprit in comparison.culprits] == [(1, 3)]


def test_within_a_step_that_trains_the_ranking_stays(tmp_path: Path) -> None:
    comparison = in_steps(
        tmp_path, [{"a.fc output": 0.1, "b.fc output": 1.0}, {"a.fc output": 10.0}], updated=True
    )
    assert places(comparison) == ["b.fc", "a.fc"]


def test_only_the_faulty_one_of_several_calls_is_named(tmp_path: Path) -> None:
    def calls(errors: tuple[float, float], direction: int = 0) -> list[Item]:
        return [
            item("fc", (VALUES + NOISE[direction] * error).astype(np.float32), call=call)
            for call, error in enumerate(errors)
        ]

    golden = write(tmp_path / "golden", calls((0.0, 0.0)))
    feed = {
        "capture": {
            "feed": {
                "golden": "golden",
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        }
    }
    candidate = write(tmp_path / "candidate", calls((1e-3, 0.1)), **feed)
    (culprit,) = ac.diff(
        golden, candidate, baseline=write(tmp_path / "baseline", calls((1e-3, 1e-3), 1), **feed)
    ).culprits
    assert (culprit.place, culprit.call, culprit.seen) == ("fc call 1", 1, 1)


def test_nan_comes_first_where_it_begins(compared: Callable[..., Comparison]) -> None:
    comparison = compared({"a.fc output": 0.5, "b.norm output": math.nan})
    assert places(comparison) == ["b.norm", "a.fc"]
    verdict = comparison.culprits[0].row.verdict
    assert verdict.begins
    assert verdict_words.detail(comparison.culprits[0].row).endswith("; begins here")
    assert comparison.conclusion == "bug: b.norm, non-finite; and a.fc, excess 500"


@pytest.mark.parametrize(
    ("detail", "expected"),
    [("Thing", ["b.fc", "a.fc"]), ("transformers.cache_utils.DynamicCache", ["a.fc", "b.fc"])],
)
def test_what_may_have_come_in_unfed_and_unseen_ranks_last(
    tmp_path: Path, detail: str, expected: list[str]
) -> None:
    def calls(**errors: float) -> list[Item]:
        given = item("a.fc", role="input", path="1", layout="opaque", detail=detail)
        return [
            given,
            *(
                item(name, VALUES + NOISE[0] * errors.get(name[0], 0.0))
                for name in ("a.fc", "b.fc")
            ),
        ]

    golden = write(tmp_path / "golden", calls())
    not_fed = [
        {
            "step": 0,
            "name": "a.fc",
            "call": 0,
            "role": "input",
            "path": "1",
            "why": f"it is a {detail}, which cannot be looked into",
        }
    ]
    feed = {"golden": "golden", "identity": ac.open_bundle(golden).identity(), "not_fed": not_fed}
    comparison = ac.diff(
        golden, write(tmp_path / "candidate", calls(a=0.5, b=1e-2), capture={"feed": feed})
    )
    assert places(comparison) == expected
    assert [row.place for row in comparison.rows if row.verdict.not_all_fed] == (
        ["a.fc output"] if expected[0] == "b.fc" else []
    )


def test_what_was_computed_in_another_shape_from_another_shape_is_inherited(tmp_path: Path) -> None:
    def calls(length: int) -> list[Item]:
        return [
            item("a", VALUES[:length]),
            *(item("b", VALUES[:length], role=role) for role in ("input", "output")),
        ]

    golden = write(tmp_path / "golden", calls(300))
    not_fed = [
        {
            "step": 0,
            "name": "b",
            "call": 0,
            "role": "input",
            "path": "",
            "why": "golden's shape is [300], this one's [9]",
        }
    ]
    feed = {"golden": "golden", "identity": ac.open_bundle(golden).identity(), "not_fed": not_fed}
    comparison = ac.diff(golden, write(tmp_path / "candidate", calls(9), capture={"feed": feed}))
    assert reasons(comparison) == {"a output": "shape", "b input": "shape", "b output": "inherited"}
    assert places(comparison) == ["a", "(root) (glue, before b)"]


def test_integers_are_said_to_differ_by_their_number(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", [item("a", np.arange(1000))])
    feed = {
        "capture": {
            "feed": {
                "golden": "golden",
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        }
    }
    comparison = ac.diff(
        golden,
        write(
            tmp_path / "candidate", [item("a", np.arange(1000) + (np.arange(1000) > 996))], **feed
        ),
    )
    assert (
        comparison.conclusion
        == "different: a, 3 of 1000 differ; by fixed limits; a baseline tells rounding from a bug"
    )
    assert comparison.culprits[0].shape == OtherChoices()
    assert differing_choices(comparison.culprits[0].row) == 3


def test_the_conclusion_names_its_answer_whatever_the_module_is_called(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", [item("bug", np.arange(1000))])
    feed = {
        "capture": {
            "feed": {
                "golden": "golden",
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        }
    }
    candidate = write(
        tmp_path / "candidate", [item("bug", np.arange(1000) + (np.arange(1000) > 996))], **feed
    )
    assert (
        ac.diff(golden, candidate).conclusion
        == "different: bug, 3 of 1000 differ; by fixed limits; a baseline tells rounding from a bug"
    )


def test_glue_names_the_call_that_it_is_before(tmp_path: Path) -> None:
    def calls(*errors: float) -> list[Item]:
        given = [
            item("a", VALUES + NOISE[0] * error, role="input", call=call)
            for call, error in enumerate(errors)
        ]
        return [*given, item("", VALUES, parent=None)]

    golden = write(tmp_path / "golden", calls(0.0, 0.0))
    feed = {
        "capture": {
            "feed": {
                "golden": "golden",
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        }
    }
    comparison = ac.diff(golden, write(tmp_path / "candidate", calls(0.0, 0.5), **feed))
    assert places(comparison) == ["(root) (glue, before a call 1)"]


# Free-running


BEHIND_A_FC = [
    "a.fc output",
    "a.norm input",
    "a.norm output",
    "a output",
    "b input",
    "b.fc input",
    "b.fc output",
    "b.norm input",
]
ALL_BEHIND_A_FC = [*BEHIND_A_FC, "b.norm output", "b output", " output"]


def test_free_running_the_culprit_is_where_the_excess_jumps(
    compared: Callable[..., Comparison],
) -> None:
    comparison = compared(
        {place: 3e-2 * (1 + 0.1 * count) for count, place in enumerate(ALL_BEHIND_A_FC)}, fed=False
    )
    assert reasons(comparison)["a.fc output"] == "introduced"
    assert reasons(comparison)["a output"] == "inherited"
    (culprit,) = comparison.culprits
    assert (culprit.name, culprit.site, culprit.jump) == (
        "a.fc",
        "module",
        pytest.approx(30.0, rel=1e-3),
    )
    assert comparison.conclusion == "bug: a.fc, excess 30"


def test_free_running_a_second_jump_behind_the_first_is_a_culprit_too(
    compared: Callable[..., Comparison],
) -> None:
    errors = dict.fromkeys(ALL_BEHIND_A_FC, 1e-2) | dict.fromkeys(
        ["b.norm input", "b.norm output", "b output", " output"], 0.8
    )
    comparison = compared(errors, fed=False)
    assert places(comparison) == ["b (glue, before norm)", "a.fc"]


def test_a_jump_in_rows_that_given_limits_call_inherited_is_introduced_or_glue(
    compared: Callable[..., Comparison],
) -> None:
    errors = dict.fromkeys(ALL_BEHIND_A_FC, 1e-2) | dict.fromkeys(
        ["b.norm input", "b.norm output", "b output", " output"], 0.8
    )
    errors[" output"] = 50.0
    comparison = compared(errors, fed=False, limits=ac.Tolerance(rel_l2=1e-5))
    assert {culprit.row.reason.value for culprit in comparison.culprits} == {"inherited"}
    assert [(culprit.site, culprit.reason.value) for culprit in comparison.culprits[:3]] == [
        ("glue", "glue"),
        ("glue", "glue"),
        ("module", "introduced"),
    ]


def test_nan_that_was_passed_on_is_no_culprit(compared: Callable[..., Comparison]) -> None:
    comparison = compared(dict.fromkeys(ALL_BEHIND_A_FC, math.nan), fed=False)
    assert places(comparison) == ["a.fc"]
    begins = [row.place for row in comparison.rows if row.verdict.begins]
    assert begins == ["a.fc output"]


def test_without_a_baseline_the_first_over_tolerance_is_named_and_not_trusted(
    compared: Callable[..., Comparison],
) -> None:
    comparison = compared(dict.fromkeys(BEHIND_A_FC, 3e-2), fed=False, baseline=False, usual=1e-6)
    assert places(comparison)[0] == "a.fc"
    assert comparison.conclusion.startswith(
        "different: a.fc, x limit 300 is the first over tolerance; without a baseline"
    )


@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize(("noisy", "named"), [(1, "b.fc"), (5, "a.fc")])
def test_without_a_baseline_what_is_off_in_most_steps_comes_before_what_rounding_put_over_the_table(
    tmp_path: Path, fed: bool, noisy: int, named: str
) -> None:
    slightly = (
        {"a.fc output": 6e-5}
        if fed
        else dict.fromkeys((f"a.{each}" for each in ("fc output", "norm input")), 6e-5)
    )
    errors = [{**(slightly if step < noisy else {}), "b.fc output": 5e-5} for step in range(6)]
    golden = write(tmp_path / "golden", net({}, 0.0, steps=6))
    feed = (
        {
            "capture": {
                "feed": {
                    "golden": "golden",
                    "identity": ac.open_bundle(golden).identity(),
                    "not_fed": [],
                }
            }
        }
        if fed
        else {}
    )
    records = [
        one._replace(record=replace(one.record, step=step))
        for step, each in enumerate(errors)
        for one in net(each, 1e-8)
    ]
    found = ac.diff(
        golden, write(tmp_path / "candidate", records, **feed), limits=ac.Tolerance(rel_l2=4e-5)
    )
    assert found.culprits[0].name == named
    assert ("over tolerance in most steps" in found.conclusion) == (not fed and noisy == 1)


# Conclusions


def test_identical_bundles_are_identical(compared: Callable[..., Comparison]) -> None:
    assert (
        compared({}, fed=False, baseline=False, usual=0.0).conclusion
        == "identical; by digests alone, no values were read"
    )


def test_within_fixed_limits_it_is_rounding_as_far_as_those_tell(
    compared: Callable[..., Comparison],
) -> None:
    assert (
        compared({}, fed=False, baseline=False, usual=1e-6).conclusion
        == "rounding, as far as fixed limits tell"
    )


def test_other_weights_explain_everything(compared: Callable[..., Comparison]) -> None:
    models = [
        {"parameters": {"w": {"dtype": "float32", "shape": [1], "digests": {"float32": digest}}}}
        for digest in "ab"
    ]
    comparison = compared({"a.fc output": 0.5}, golden_model=models[0], model=models[1])
    assert comparison.conclusion == "different: 1 of 1 parameters differ: w"


def test_a_shape_comes_last(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", [item("a", VALUES), item("b", VALUES)])
    feed = {
        "capture": {
            "feed": {
                "golden": "golden",
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        }
    }
    candidate = write(
        tmp_path / "candidate", [item("a", VALUES[:3]), item("b", VALUES * 2)], **feed
    )
    assert places(ac.diff(golden, candidate)) == ["b", "a"]


def test_trouble_is_never_rounding(tmp_path: Path) -> None:
    sides = [write(tmp_path / name, [item(name, VALUES)]) for name in ("golden", "candidate")]
    assert ac.diff(*sides).conclusion == "not sure: nothing could be compared"


# A baseline of other code; glue that goes on


def test_what_a_refused_baseline_would_excuse_is_a_bug_by_fixed_limits(tmp_path: Path) -> None:
    """Golden's library is another release, and the baseline ran the candidate's: the bug is in
    both.
    """
    ours, theirs = (
        {"environment": {"versions": {"lib": version}}, "model": {"sources": {"lib.net": version}}}
        for version in "12"
    )
    golden = write(tmp_path / "golden", net({}, 0.0), **ours)
    feed = {
        "capture": {
            "feed": {
                "golden": "golden",
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        }
    }
    wrong = net({"a output": 0.3}, 1e-7)
    candidate, baseline = (
        write(tmp_path / name, wrong, **feed, **theirs) for name in ("candidate", "baseline")
    )
    comparison = ac.diff(golden, candidate, baseline=baseline)
    assert (comparison.answer.value, comparison.passed, comparison.trouble) == ("bug", False, "")
    assert comparison.conclusion.startswith("bug: a (glue, at its end), x limit ")
    assert "lib is 1 in golden, 2 here" in comparison.conclusion
    assert comparison.baseline is None


def test_an_all_clear_says_that_no_gradient_was_looked_at(tmp_path: Path) -> None:
    for loss, conclusion in (
        (
            True,
            (
                "identical; forward only: the case has a loss, but no gradient was compared;"
                " by digests alone, no values were read"
            ),
        ),
        (False, "identical; by digests alone, no values were read"),
    ):
        sides = [
            write(tmp_path / f"{name}{loss}", net({}, 0.0), capture={"loss": loss})
            for name in ("golden", "candidate")
        ]
        assert ac.diff(*sides).conclusion == conclusion


def test_an_all_clear_says_what_is_configured_otherwise(
    compared: Callable[..., Comparison],
) -> None:
    sides = ({"configuration": {"a.fc": {"approximate": way}}} for way in ("none", "tanh"))
    comparison = compared({}, golden_model=next(sides), model=next(sides))
    assert (
        comparison.conclusion
        == "rounding; configured otherwise: a.fc.approximate: golden 'none', candidate 'tanh'"
    )


def test_an_all_clear_says_how_many_steps_it_saw(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", net({}, 0.0), steps=3)
    candidate = write(tmp_path / "candidate", net({}, 0.0))
    assert (
        ac.diff(golden, candidate).conclusion
        == "identical; 1 of 3 steps; by digests alone, no values were read"
    )


def test_a_buffer_that_the_model_computes_otherwise_comes_first(tmp_path: Path) -> None:
    def side(scale: float, error: float) -> list[Item]:
        wrong = (VALUES * (1 + error)).astype(np.float32)
        frequencies = item(
            "rope",
            np.array([1.0, 0.5 * scale]),
            role="computed_buffer",
            path="inv_freq",
            parent=None,
            type="Rope",
        )
        return [
            frequencies,
            item("rope", wrong, type="Rope", parent=("", 0)),
            item("fc", wrong),
            item("", VALUES, parent=None),
        ]

    golden = write(tmp_path / "golden", side(1.0, 0.0))
    feed = {
        "capture": {
            "feed": {
                "golden": "golden",
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        }
    }
    comparison = ac.diff(golden, write(tmp_path / "candidate", side(3.0, 0.9), **feed))
    # what the buffer's own module makes of it is inherited
    assert places(comparison) == ["rope.inv_freq (computed buffer)", "fc"]
    assert comparison.conclusion.startswith(
        "bug: the model computes another rope.inv_freq: max rel diff 2; and fc"
    )


def test_another_shape_does_not_come_before_another_number(tmp_path: Path) -> None:
    def side(mask: int, error: float) -> list[Item]:
        values = (VALUES * (1 + error)).astype(np.float32)
        return [
            item("a", np.zeros(mask, np.float32), role="input", path="mask"),
            item("a", VALUES),
            item("b", np.zeros(mask, np.float32), role="input", path="mask"),
            item("b", values),
        ]

    golden = write(tmp_path / "golden", side(4, 0.0))
    feed = {
        "capture": {
            "feed": {
                "golden": "golden",
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        }
    }
    comparison = ac.diff(golden, write(tmp_path / "candidate", side(5, 0.5), **feed))
    assert places(comparison) == ["b", "(root) (glue, before b)", "(root) (glue, before a)"]
    alone = ac.diff(golden, write(tmp_path / "alone", side(5, 0.0), **feed))
    assert alone.conclusion.startswith(
        "identical in what was compared; 2 of 4 rows could not be compared, the first a input.mask"
    )


def test_a_baseline_of_code_that_was_edited_is_none(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", net({}, 0.0), model={"sources": {"net": "0", "lib": "1"}})
    feed = {
        "capture": {
            "feed": {
                "golden": "golden",
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        }
    }
    candidate = write(tmp_path / "npu", net({}, 1e-7), **feed, model={"sources": {"ported": "2"}})
    for sources, edited in (({"net": "0", "other": "3"}, False), ({"net": "9"}, True)):
        baseline = write(
            tmp_path / f"cpu{edited}", net({}, 1e-7, 1), **feed, model={"sources": sources}
        )
        comparison = ac.diff(golden, candidate, baseline=baseline)
        if edited:
            assert comparison.refused is not None
            assert comparison.refused.why.edited == ("net",)
            assert comparison.trouble.startswith(
                "everything is within fixed limits, which miss small faults, and the baseline "
            )
            assert comparison.conclusion == f"not sure: {comparison.trouble}"
            same = ac.diff(
                golden, write(tmp_path / "same", net({}, 0.0), **feed), baseline=baseline
            )
            assert same.exit_code == 0
            assert same.conclusion.startswith(
                "identical; the baseline was not used: it does not run golden's code (net "
            )
        else:
            assert (comparison.trouble, comparison.conclusion) == ("", "rounding")


def test_fed_glue_that_goes_on_with_its_own_error_is_named_where_it_begins(
    compared: Callable[..., Comparison],
) -> None:
    comparison = compared({"a input": 3e-2, "b input": 5e-2, " output": 4e-2})
    assert places(comparison) == ["(root) (glue, before a)"]
    assert reasons(comparison) == {
        "a input": "glue",
        "b input": "inherited",
        "(root) output": "inherited",
    }


def test_fed_glue_that_is_much_further_off_later_is_named_there_too(
    compared: Callable[..., Comparison],
) -> None:
    comparison = compared({"a input": 1e-2, "b input": 0.5})
    assert set(places(comparison)) == {"(root) (glue, before a)", "(root) (glue, before b)"}


def test_fed_a_choice_that_differs_hides_no_glue_behind_it(tmp_path: Path) -> None:
    """An index that differs has no measure of how wrong what follows in the same code is."""

    def side(index: int, error: float, direction: int = 0) -> list[Item]:
        values = [(VALUES + NOISE[direction] * each).astype(np.float32) for each in (1e-3, error)]
        return [
            item("pick", np.array([index, 5]), role="input", path="0"),
            item("pick", values[0]),
            item("fc", values[1], role="input"),
            item("fc", values[0]),
            item("", values[0], parent=None),
        ]

    golden = write(tmp_path / "golden", side(1, 0.0))
    feed = {
        "capture": {
            "feed": {
                "golden": "golden",
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        }
    }
    candidate = write(tmp_path / "candidate", side(2, 0.3), **feed)
    comparison = ac.diff(
        golden, candidate, baseline=write(tmp_path / "baseline", side(1, 1e-3, 1), **feed)
    )
    assert set(places(comparison)) == {"(root) (glue, before pick)", "(root) (glue, before fc)"}


@pytest.mark.parametrize(("off", "answer"), [(1.006, "rounding"), (1.013, "not sure")])
def test_what_is_configured_otherwise_must_not_be_near_its_fixed_limit(
    tmp_path: Path, off: float, answer: str
) -> None:
    """A wrong eps in a bfloat16 LayerNorm of a script, which has no baseline."""
    values = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    golden = write(
        tmp_path / "golden",
        [item("norm", values)],
        model={"configuration": {"norm": {"eps": 1e-5}}},
    )
    candidate = write(
        tmp_path / "candidate",
        [item("norm", values * np.float32(off), "bfloat16")],
        model={"configuration": {"norm": {"eps": 0.05}}},
        capture={
            "feed": {
                "golden": "golden",
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        },
    )
    comparison = ac.diff(golden, candidate)
    assert comparison.answer.value == answer
    assert "norm.eps" in comparison.conclusion
