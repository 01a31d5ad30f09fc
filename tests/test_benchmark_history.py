"""The benchmark of historical bugs: its arithmetic and its catalogue. `make bench-history` alone
installs the releases and runs them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from accucompare import Case
from benchmarks.history_catalogue import BUGS, REFACTORS, Bug, Found, Refactor
from benchmarks.history_environments import Environment, transformers
from benchmarks.history_plain import OF_A_BUG, first_difference, save
from benchmarks.history_report import missed, sums, table, wrong
from benchmarks.history_trial import (
    CLEAN_DIFF,
    CLEAN_LOCATE,
    DIFF,
    LOCATE,
    Said,
    Trial,
    first_named,
)

QUIET = {
    CLEAN_DIFF: Said(0, "PASS", "", False, ""),
    CLEAN_LOCATE: Said(0, "PASS  identical", "", False, ""),
}
FOUND = Trial(
    "found",
    {
        DIFF: Said(1, "FAIL", "norm", True, ""),
        LOCATE: Said(1, "FAIL  bug: norm", "norm", True, ""),
        **QUIET,
    },
)
CLEARED = Trial(
    "cleared",
    {
        DIFF: Said(1, "FAIL", "layers.1", False, ""),
        LOCATE: Said(0, "PASS  rounding", "", False, ""),
        **QUIET,
    },
)
ELSEWHERE = Trial(
    "elsewhere",
    {
        DIFF: Said(1, "FAIL", "norm", True, ""),
        LOCATE: Said(1, "FAIL  bug: head", "head", False, ""),
        **QUIET,
    },
)
SAME = Trial(
    "same", {DIFF: Said(0, "PASS", "", False, ""), LOCATE: Said(0, "IDENTICAL", "", False, "")}
)
ALARM = Trial(
    "alarm",
    {DIFF: Said(0, "PASS", "", False, ""), LOCATE: Said(2, "FAIL  not sure", "", False, "")},
)


def bug(*places: str, **told: Any) -> Bug:
    return Bug("found", transformers("4.52.1"), transformers("4.51.3"), "", "", places, **told)


HERE = Environment("this", ())
PAIRS: dict[str, Bug | Refactor] = {
    **dict.fromkeys(("found", "cleared", "elsewhere"), bug("norm")),
    **dict.fromkeys(("same", "alarm"), Refactor("same", HERE, HERE, "")),
}


def test_the_sums_count_what_was_named_right_what_was_cleared_and_what_was_quiet() -> None:
    assert sums([FOUND, CLEARED, SAME, ALARM], PAIRS) == [
        "diff names 1 of 2",
        "locate names 1 of 2",
        "exit 0 for a bug: 1 (must be 0)",
        "same release clean: 2 of 2",
        "diff clears 2 of 2 refactors",
        "locate clears 1 of 2 refactors",
    ]


def test_a_bug_with_exit_0_or_named_elsewhere_is_not_right_and_one_that_is_named_is() -> None:
    assert wrong([FOUND, CLEARED, ELSEWHERE], PAIRS) == [
        "cleared, locate: exit 0 for a bug",
        "elsewhere, locate: names head: FAIL  bug: head",
    ]


def test_a_refactor_that_is_not_cleared_is_not_right() -> None:
    assert wrong([SAME, ALARM], PAIRS) == ["alarm, locate: exit 2: FAIL  not sure"]


@pytest.mark.parametrize("code", [1, 2])
def test_a_clean_pair_that_is_not_cleared_is_not_right(code: int) -> None:
    loud = Trial(
        "found", {**FOUND.said, CLEAN_LOCATE: Said(code, "FAIL  bug: head", "head", False, "")}
    )
    assert wrong([loud], PAIRS) == [f"found, {CLEAN_LOCATE}: exit {code}: FAIL  bug: head"]
    assert sums([loud], PAIRS)[3] == "same release clean: 0 of 1"
    assert missed([loud], PAIRS) == ["the same release is not clean: found"]


def test_a_case_that_did_not_run_is_not_right_and_not_counted() -> None:
    failed = Trial("found", {}, "golden: ended with 2")
    assert wrong([failed], PAIRS) == ["found: did not run: golden: ended with 2"]
    assert missed([failed], PAIRS) == ["found did not run"]
    assert sums([FOUND, failed], PAIRS)[0] == "diff names 1 of 1"
    assert table([failed], {"found": bug()}).row_count == 2


@pytest.mark.parametrize(
    ("trials", "short"),
    [
        ([FOUND] * 19 + [ELSEWHERE], []),
        ([FOUND] * 18 + [ELSEWHERE] * 2, ["locate names 18 of 20: less than 95%"]),
        ([FOUND] * 99 + [CLEARED], ["exit 0 for a bug: 1"]),
        ([SAME] * 11 + [ALARM], []),
        ([SAME] * 10 + [ALARM] * 2, ["locate clears 10 of 12 refactors: less than 11 of 12"]),
    ],
)
def test_a_target_is_missed_on_its_far_side_alone(trials: list[Trial], short: list[str]) -> None:
    assert missed(trials, PAIRS) == short


@pytest.mark.parametrize(
    ("place", "named", "right"),
    [
        ("layers.*.mixer", "layers.0.mixer", True),
        ("layers.*.mixer", "layers.0.mixer.norm", False),
        ("*layers.?", "model.layers.0", True),
        ("*layers.?", "model.layers.0.mlp", False),
        ("(root)", "", False),
    ],
)
def test_a_module_is_right_if_a_place_matches_its_whole_name(
    place: str, named: str, right: bool
) -> None:
    assert bug("elsewhere", place).is_at(Found(named)) is right


@pytest.mark.parametrize(
    ("found", "right"),
    [
        (Found("norm", "update", 1), True),
        (Found("norm", "backward", 1), False),
        (Found("norm", "update", 3), False),
        (Found("norm"), False),
    ],
)
def test_a_bug_of_training_is_right_in_its_part_of_the_first_step_that_has_it(
    found: Found, right: bool
) -> None:
    assert bug("norm", stages=("update",), step=1).is_at(found) is right


def test_the_first_culprit_is_named_and_without_one_the_first_row_that_differs() -> None:
    culprits = [
        {"name": "norm", "stage": "update", "row": 2},
        {"name": "head", "stage": "forward", "row": 1},
    ]
    assert first_named({"culprits": culprits, "rows": [{"step": 0}, {"step": 4}]}) == Found(
        "norm", "update", 4
    )
    assert first_named({"culprits": [{"name": "", "stage": "loss", "row": None}]}) == Found(
        "(root)", "loss"
    )
    assert first_named({"culprits": [], "first_divergence": "layers.0.norm output"}) == Found(
        "layers.0.norm"
    )
    assert first_named({"culprits": [], "first_divergence": None}) == Found("")


def test_every_bug_has_a_case_places_and_an_environment_of_its_own_on_each_side() -> None:
    assert len({each.name for each in BUGS}) == len(BUGS) >= 24
    for each in BUGS:
        compile(each.case.read_text(encoding="utf-8"), str(each.case), "exec")
        assert each.places
        assert each.right.packages != each.wrong.packages


def test_every_refactor_has_two_ways_to_compute_the_same() -> None:
    assert len({each.name for each in REFACTORS}) == len(REFACTORS) >= 12
    for each in REFACTORS:
        found = {
            node.name
            for node in ast.parse(each.case.read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef)
        }
        assert set(each.functions) <= found
        assert each.right.packages != each.other.packages or len(set(each.functions)) == 2


def small(loss: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.mean, **options: Any) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, **options)
    return Case(model, [torch.ones(2, 4)] * 3, loss, optimizer)


def frozen() -> Case:
    case = small()
    case.model[1].bias.requires_grad_(False)
    return case


@pytest.mark.parametrize(
    ("candidate", "step"),
    [
        (small, None),
        (lambda: small(foreach=True), None),
        (lambda: small(lambda output: output.mean() + 0.5), 0),
        (lambda: small(momentum=0.9, nesterov=False), 1),
        (frozen, 0),
    ],
)
def test_plain_torch_tells_a_refactor_from_a_bug_and_the_first_step_of_it(
    candidate: Callable[[], Case], step: int | None, tmp_path: Path
) -> None:
    save(small(), tmp_path / "golden.pt")
    save(candidate(), tmp_path / "candidate.pt")
    found = first_difference(tmp_path / "golden.pt", tmp_path / "candidate.pt", OF_A_BUG)
    assert (found and found[0]) == step


def test_environments_of_one_name_hold_the_same_packages() -> None:
    packages: dict[str, tuple[str, ...]] = {}
    for environment in (each for pair in (*BUGS, *REFACTORS) for each in pair.environments):
        assert packages.setdefault(environment.name, environment.packages) == environment.packages
