"""Which modules to keep: places and their globs, estimates, and the order of choices."""

from __future__ import annotations

import numpy as np
import pytest

from accucompare.compare.fits import LEAVING, LOW, CalledTree, ErrorTerms, KeepingSearch, KeptPlaces

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
    assert found.expected(nothing) == pytest.approx(5e-3)
    assert found.expected(kept(tree, "head")) == pytest.approx(4e-3)
    assert found.shares([[tree.numbers["head"]], [tree.numbers["layers.0.norm"]]]) == pytest.approx(
        [0.36, 0.64]
    )


def test_errors_of_a_small_output_cancel(tree: CalledTree) -> None:
    found = terms(tree, {"head": 3e-3, "layers.0.norm": -3e-3}, exact=True)
    assert found.expected(np.zeros(len(tree), bool)) == pytest.approx(0)
    assert found.expected(kept(tree, "head")) == pytest.approx(3e-3)


def test_what_leaves_a_kept_module_is_rounded_for_a_lower_caller(tree: CalledTree) -> None:
    products = np.zeros((1, 3, len(tree), 1))
    products[0, LEAVING, tree.numbers["head"], 0] = 2e-3
    found = ErrorTerms(tree, products, np.array([1]), np.array([False]))
    assert found.expected(kept(tree, "head")) == pytest.approx(2e-3)
    assert found.expected(kept(tree, "")) == pytest.approx(0)


def test_an_overflow_is_within_no_tolerance(tree: CalledTree) -> None:
    found = terms(tree, {"head": np.inf, "layers.0.norm": 1e-3})
    assert found.expected(np.zeros(len(tree), bool)) > 1
    assert found.expected(kept(tree, "head")) == pytest.approx(1e-3)


def test_modules_that_share_a_weight_are_kept_together() -> None:
    called = ["", "embed", "head", "norm"]
    tensors = [f"{name}.weight" for name in called[1:]]
    tied = {"head.weight": "embed.weight"}
    tree = CalledTree.of(called, dict.fromkeys(called, "Module"), tensors, tied)
    found = terms(tree, {"head": 8e-3, "norm": 4e-3})
    search = KeepingSearch(tree, found, np.array([0.1, 0.8, 0.0, 0.1]))
    assert all(each.kept[1] == each.kept[2] for each in search.path)
    assert search.best_within(0.5)[0].kept.tolist() == [False, False, False, True]
    assert len(search.best_within(1.0)) == 1  # of modules and of blocks the same: one run


def test_the_cheapest_choice_comes_first_and_runs_correct_it(tree: CalledTree) -> None:
    found = terms(tree, {"head": 8e-3, "layers.0.mlp": 4e-3, "layers.1.mlp": 4e-3})
    cost = np.ones(len(tree))
    search = KeepingSearch(tree, found, cost)
    choice = search.cheapest_module_choice(7e-3, 1.0)
    assert choice is not None
    assert choice.kept[tree.numbers["head"]]
    assert not choice.kept[tree.numbers["layers.0.mlp"]]
    assert choice.expected == pytest.approx(4e-3 * 2**0.5)
    search.saw(choice.kept, choice.expected * 2)  # a run is twice as far off
    other = search.cheapest_module_choice(7e-3, 1.0)
    assert other is not None
    assert other.share > choice.share
    assert not search.misled
    search.saw(choice.kept, choice.expected * 20)
    assert search.misled


def test_the_best_for_a_budget_stays_within_it(tree: CalledTree) -> None:
    found = terms(tree, {"head": 8e-3, "layers.0.mlp": 4e-3})
    search = KeepingSearch(tree, found, np.ones(len(tree)))
    choices = search.best_within(0.2)
    assert choices
    assert all(each.share <= 0.2 for each in choices)
    assert min(each.expected for each in choices) < 8e-3
