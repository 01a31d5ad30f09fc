"""Which modules to keep: places and their globs, estimates, and the order of choices."""

from __future__ import annotations

import numpy as np
import pytest

from accucompare.compare.fits import LEAVING, LOW, CalledTree, ErrorTerms, KeepingSearch, KeptPlaces
from accucompare.compare.fits.learned_errors import LearnedErrors

CLASSES = {
    "": "Net",
    "layers": "ModuleList",
    **{
        f"layers.{number}{part}": "Linear"
        for number in (0, 1, 10)
        for part in ("", ".norm", ".mlp", ".mlp.act", ".mlp.bare")
    },
    "head": "Linear",
}
TENSORS = [
    f"{name}.weight"
    for name in CLASSES
    if name.endswith((".norm", ".mlp", ".bare")) or name == "head"
]


@pytest.fixture
def tree() -> CalledTree:
    called = [name for name in CLASSES if not name.endswith(("layers", "bare"))]
    return CalledTree.of(called, CLASSES, TENSORS)


def terms(tree: CalledTree, own: dict[str, float], exact: bool = False) -> ErrorTerms:
    products = np.zeros((1, 3, len(tree), 1))
    for name, error in own.items():
        products[0, LOW, tree.numbers[name], 0] = error
    return ErrorTerms(tree, products, np.array([1]), np.array([exact]))


def expected(found: ErrorTerms, mask: np.ndarray) -> float:
    return float(found.estimates(mask[None]).errors[0])


def kept(tree: CalledTree, *names: str) -> np.ndarray:
    return tree.mask([tree.numbers[name] for name in names])


def test_what_has_no_weights_counts_as_its_callers_code(tree: CalledTree) -> None:
    assert "layers.0.mlp.act" not in tree.names
    assert tree.numbers["layers.0.mlp.act"] == tree.numbers["layers.0.mlp"]


def test_names_that_differ_in_numbers_are_one_glob(tree: CalledTree) -> None:
    norms = [f"layers.{number}.norm" for number in (0, 1, 10)]
    assert tree.places(kept(tree, *norms)) == KeptPlaces(("layers.*.norm",))
    assert tree.places(kept(tree, *norms[:2])) == KeptPlaces(("layers.0.norm", "layers.1.norm"))
    assert tree.places(np.ones(len(tree), bool)).are_all


def test_own_code_is_named_with_what_it_computes_with(tree: CalledTree) -> None:
    mlp, root = tree.numbers["layers.1.mlp"], 0
    own = tree.places(tree.mask([], [mlp, root]))
    # nothing in it is called, so that its own code is all of it
    assert own == KeptPlaces(("layers.1.mlp",), ("",))
    block = tree.numbers["layers.1"]
    assert tree.places(tree.mask([], [block])) == KeptPlaces((), ("layers.1",))


def test_errors_at_right_angles_add_as_squares(tree: CalledTree) -> None:
    found = terms(tree, {"head": 3e-3, "layers.0.norm": 4e-3})
    nothing = np.zeros(len(tree), bool)
    assert expected(found, nothing) == pytest.approx(5e-3)
    assert expected(found, kept(tree, "head")) == pytest.approx(4e-3)
    assert found.shares([[tree.numbers["head"]], [tree.numbers["layers.0.norm"]]]) == pytest.approx(
        [0.36, 0.64]
    )


def test_errors_of_a_small_output_cancel(tree: CalledTree) -> None:
    found = terms(tree, {"head": 3e-3, "layers.0.norm": -3e-3}, exact=True)
    assert expected(found, np.zeros(len(tree), bool)) == pytest.approx(0)
    assert expected(found, kept(tree, "head")) == pytest.approx(3e-3)


def test_what_leaves_a_kept_module_is_rounded_for_a_lower_caller(tree: CalledTree) -> None:
    products = np.zeros((1, 3, len(tree), 1))
    products[0, LEAVING, tree.numbers["head"], 0] = 2e-3
    found = ErrorTerms(tree, products, np.array([1]), np.array([False]))
    assert expected(found, kept(tree, "head")) == pytest.approx(2e-3)
    assert expected(found, kept(tree, "")) == pytest.approx(0)


def test_an_overflow_is_within_no_tolerance(tree: CalledTree) -> None:
    found = terms(tree, {"head": np.inf, "layers.0.norm": 1e-3})
    assert expected(found, np.zeros(len(tree), bool)) > 1
    assert expected(found, kept(tree, "head")) == pytest.approx(1e-3)


def test_modules_that_share_a_weight_are_kept_together() -> None:
    called = ["", "embed", "head", "norm"]
    tensors = [f"{name}.weight" for name in called[1:]]
    tied = {"head.weight": "embed.weight"}
    tree = CalledTree.of(called, dict.fromkeys(called, "Module"), tensors, tied)
    found = terms(tree, {"head": 8e-3, "norm": 4e-3})
    search = KeepingSearch(tree, found, np.array([0.1, 0.8, 0.0, 0.1]))
    assert all(each.kept[1] == each.kept[2] for each in search.path())
    best = search.best_within(0.5, above=1.0)
    assert best is not None
    assert best.kept.tolist() == [False, False, False, True]


def test_the_cheapest_choice_comes_first_and_runs_correct_it(tree: CalledTree) -> None:
    found = terms(tree, {"head": 8e-3, "layers.0.mlp": 4e-3, "layers.1.mlp": 4e-3})
    search = KeepingSearch(tree, found, np.ones(len(tree)))
    choice = search.module_choice(7e-3, 1.0)
    assert choice is not None
    assert choice.kept[tree.numbers["head"]]
    assert choice.expected < 7e-3
    assert choice.share < 0.3
    search.saw(choice.kept, choice.expected * 2)  # a run is twice as far off
    other = search.module_choice(7e-3, 1.0)
    assert other is not None
    (off,) = (
        number
        for number in (tree.numbers["layers.0.mlp"], tree.numbers["layers.1.mlp"])
        if not choice.kept[number]
    )
    assert other.kept[off]  # which was all that the run was off by
    assert not search.misled
    search.saw(choice.kept, choice.expected * 20)
    assert search.misled


def test_a_run_tells_of_choices_that_are_off_by_the_same(tree: CalledTree) -> None:
    found = terms(tree, {"head": 8e-3, "layers.0.mlp": 8e-3, "layers.1.mlp": 8e-3})
    without_head = ~kept(tree, "head")  # off by the head alone
    without_first = ~kept(tree, "layers.0.mlp")
    learned = LearnedErrors(found)
    before = learned.expected(np.stack([without_head, without_first]))
    learned.saw(without_head, 16e-3)
    after = learned.expected(np.stack([without_head, without_first]))
    assert after.errors[0] == pytest.approx(16e-3, rel=0.1)
    assert 8e-3 < after.errors[1] < 13e-3
    assert after.deviations[0] < after.deviations[1] < before.deviations[1]
    low = learned.corrected_terms().squares[0, LOW]
    assert low[tree.numbers["head"]] > 1.5 * low[tree.numbers["layers.0.mlp"]] > 1.5 * 8e-3**2


def test_runs_of_blocks_and_of_kinds_tell_which_module_is_off(tree: CalledTree) -> None:
    own = np.full(len(tree), 1e-4)
    own[tree.numbers["layers.1.norm"]] = 5e-3
    groupings = [tree.parts(np.ones(len(tree))), tree.kinds]
    errors = [[float(np.linalg.norm(own[[*group]])) for group in way] for way in groupings]
    (found,) = ErrorTerms.of_runs(tree, groupings, errors).squares
    assert np.sqrt(found[LOW, tree.numbers["layers.1.norm"]]) == pytest.approx(5e-3, rel=0.05)
    assert found[LOW].sum() == pytest.approx(np.square(own).sum())


def test_the_best_for_a_budget_stays_within_it(tree: CalledTree) -> None:
    found = terms(tree, {"head": 8e-3, "layers.0.mlp": 4e-3})
    search = KeepingSearch(tree, found, np.ones(len(tree)))
    best = search.best_within(0.1, above=8e-3)
    assert best is not None
    assert best.share <= 0.1
    assert best.kept[tree.numbers["head"]]
    assert search.best_within(0.1, above=3e-3) is None
