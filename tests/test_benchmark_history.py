"""The benchmark of historical bugs: its arithmetic and its catalogue. `make bench-history` alone installs the releases and runs them."""

from __future__ import annotations

import pytest

from benchmarks.history_catalogue import BUGS, Bug
from benchmarks.history_environments import transformers
from benchmarks.history_report import sums, table, wrong
from benchmarks.history_trial import CLEAN_DIFF, CLEAN_LOCATE, DIFF, LOCATE, Said, Trial, first_named

QUIET = {CLEAN_DIFF: Said(0, "PASS", "", False, ""), CLEAN_LOCATE: Said(0, "PASS  identical", "", False, "")}
FOUND = Trial("found", {DIFF: Said(1, "FAIL", "norm", True, ""), LOCATE: Said(1, "FAIL  bug: norm", "norm", True, ""), **QUIET})
CLEARED = Trial("cleared", {DIFF: Said(1, "FAIL", "layers.1", False, ""), LOCATE: Said(0, "PASS  rounding", "", False, ""), **QUIET})


def bug(*places: str) -> Bug:
    return Bug("found", transformers("4.52.1"), transformers("4.51.3"), "", "", places)


def test_the_sums_count_what_was_named_right_what_was_cleared_and_what_was_quiet() -> None:
    assert sums([FOUND, CLEARED]) == [
        "diff names 1 of 2",
        "locate names 1 of 2",
        "exit 0 for a bug: 1 (must be 0)",
        "same release clean: 2 of 2",
    ]


def test_a_bug_with_exit_0_is_not_right_and_one_that_is_named_is() -> None:
    assert wrong([FOUND, CLEARED]) == ["cleared, locate: exit 0 for a bug"]


@pytest.mark.parametrize("code", [1, 2])
def test_a_clean_pair_that_is_not_cleared_is_not_right(code: int) -> None:
    loud = Trial("found", {**FOUND.said, CLEAN_LOCATE: Said(code, "FAIL  bug: head", "head", False, "")})
    assert wrong([loud]) == [f"found, {CLEAN_LOCATE}: exit {code}: FAIL  bug: head"]
    assert sums([loud])[-1] == "same release clean: 0 of 1"


def test_a_case_that_did_not_run_is_not_right_and_not_counted() -> None:
    failed = Trial("found", {}, "golden: ended with 2")
    assert wrong([failed]) == ["found: did not run: golden: ended with 2"]
    assert sums([FOUND, failed])[0] == "diff names 1 of 1"
    assert table([failed], {"found": bug()}).row_count == 2


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
def test_a_module_is_right_if_a_place_matches_its_whole_name(place: str, named: str, right: bool) -> None:
    assert bug("elsewhere", place).is_at(named) is right


def test_the_first_culprit_is_named_and_without_one_the_first_row_that_differs() -> None:
    assert first_named({"culprits": [{"name": "norm"}, {"name": "head"}], "first_divergence": "head output"}) == "norm"
    assert first_named({"culprits": [{"name": ""}], "first_divergence": None}) == "(root)"
    assert first_named({"culprits": [], "first_divergence": "layers.0.norm output"}) == "layers.0.norm"
    assert first_named({"culprits": [], "first_divergence": None}) == ""


def test_every_bug_has_a_case_places_and_an_environment_of_its_own_on_each_side() -> None:
    assert len({each.name for each in BUGS}) == len(BUGS) >= 8
    for each in BUGS:
        compile(each.case.read_text(encoding="utf-8"), str(each.case), "exec")
        assert each.places
        assert each.right.packages != each.wrong.packages


def test_environments_of_one_name_hold_the_same_packages() -> None:
    packages: dict[str, tuple[str, ...]] = {}
    for environment in (each for one in BUGS for each in (one.right, one.wrong)):
        assert packages.setdefault(environment.name, environment.packages) == environment.packages
