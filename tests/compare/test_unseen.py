"""What could not be compared: where an error may hide in it there is no all-clear, and elsewhere it
costs none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.compare.decide import Answer
from tests.asked import grouped
from tests.compare.builder import Item, compare, item, write

WITHOUT_DATA = ("nested", "sparse", "quantized", "batched", "unreadable")
X = np.linspace(-1, 1, 64)


def value(name: str, by: float = 1e-7, **fields: object) -> tuple[Item, Item]:
    """The same record on both sides, apart by rounding."""
    return item(name, X.astype(np.float32), **fields), item(
        name, (X * (1 + by)).astype(np.float32), **fields
    )  # type: ignore[arg-type]


def without(name: str, layout: str, **fields: object) -> tuple[Item, Item]:
    one = item(
        name,
        dtype="" if layout == "opaque" else "float32",
        layout=layout,
        detail="odd.Thing",
        **fields,
    )  # type: ignore[arg-type]
    return one, one


def answer(tmp_path: Path, *pairs: tuple[Item, Item]) -> ac.Comparison:
    return compare(tmp_path, [ours for ours, _ in pairs], [theirs for _, theirs in pairs])


@pytest.mark.parametrize("layout", WITHOUT_DATA)
def test_an_output_between_compared_ones_that_could_not_be_compared_is_no_pass(
    tmp_path: Path, layout: str
) -> None:
    comparison = answer(
        tmp_path, value("a"), without("b", layout), without("c", layout), value("d"), value("e")
    )
    assert (comparison.answer, comparison.passed) == (Answer.NOT_SURE, False)
    assert "2 of 5 rows" in comparison.conclusion
    assert "b output" in comparison.conclusion


def test_the_last_output_that_could_not_be_compared_is_no_pass(tmp_path: Path) -> None:
    comparison = answer(tmp_path, value("a"), value("b"), without("", "nested", parent=None))
    assert comparison.answer is Answer.NOT_SURE


def test_a_call_that_gives_nothing_but_an_object_between_compared_ones_is_no_pass(
    tmp_path: Path,
) -> None:
    assert (
        answer(tmp_path, value("a"), without("b", "opaque"), value("c")).answer is Answer.NOT_SURE
    )


def test_an_object_beside_what_a_call_gives_and_one_given_to_calls_cost_no_pass(
    tmp_path: Path,
) -> None:
    calls = [
        pair
        for name in "abc"
        for pair in (
            without(name, "opaque", role="input", path="cache"),
            without(name, "opaque", role="input", path="config"),
            value(name, path="0"),
            without(name, "opaque", path="1"),
        )
    ]
    assert answer(tmp_path, *calls).answer is Answer.ROUNDING


def test_an_object_that_the_model_gives_at_its_end_costs_no_pass(tmp_path: Path) -> None:
    assert (
        answer(
            tmp_path, value("a"), without("b", "opaque"), without("", "opaque", parent=None)
        ).answer
        is Answer.ROUNDING
    )


def test_a_sparse_matrix_given_to_every_call_costs_no_pass(tmp_path: Path) -> None:
    calls = [
        pair
        for name in "abc"
        for pair in (
            value(name, role="input"),
            without(name, "sparse", role="input", path="1"),
            value(name),
        )
    ]
    assert answer(tmp_path, *calls).answer is Answer.ROUNDING


def test_more_inputs_that_could_not_be_compared_than_compared_rows_are_no_pass(
    tmp_path: Path,
) -> None:
    inputs = [without("a", "sparse", role="input", path=str(path)) for path in range(5)]
    assert answer(tmp_path, *inputs, value("a"), value("b")).answer is Answer.NOT_SURE


def test_a_meta_tensor_has_no_values_to_hide(tmp_path: Path) -> None:
    assert answer(tmp_path, value("a"), without("b", "meta"), value("c")).answer is Answer.ROUNDING


@pytest.mark.parametrize("role", ["call_grad", "param_grad"])
def test_a_sparse_gradient_hides_nothing_only_where_the_update_made_of_it_agrees(
    tmp_path: Path, role: str
) -> None:
    forward = value("a", 0.0), value("", 0.0, parent=None)
    gradient = without("a", "sparse", role=role, path="weight", parent=None)
    assert answer(tmp_path, *forward, gradient).answer is Answer.NOT_SURE
    assert (
        answer(
            tmp_path, *forward, gradient, value("a", role="param_update", path="bias", parent=None)
        ).answer
        is Answer.NOT_SURE
    )
    assert (
        answer(
            tmp_path,
            *forward,
            gradient,
            value("a", role="param_update", path="weight", parent=None),
        ).answer
        is Answer.ROUNDING
    )


def test_what_the_call_around_it_gives_bit_for_bit_proves_what_is_inside(tmp_path: Path) -> None:
    inside = value("a"), without("b", "nested"), value("c")
    assert answer(tmp_path, *inside, value("", 0.0, parent=None)).answer is Answer.ROUNDING
    assert answer(tmp_path, *inside, value("", parent=None)).answer is Answer.NOT_SURE


def test_a_call_s_equal_output_proves_nothing_of_the_one_beside_it(tmp_path: Path) -> None:
    beside = value("b", 0.0, path="0"), without("b", "nested", path="1")
    assert answer(tmp_path, value("a"), *beside, value("c")).answer is Answer.NOT_SURE


def test_a_failure_is_said_before_what_could_not_be_compared(tmp_path: Path) -> None:
    comparison = answer(tmp_path, value("a", 1.0), without("b", "nested"), value("c"))
    assert not comparison.trouble
    assert comparison.first_divergence is not None


def test_bundles_of_statistics_pass_as_far_as_these_tell(tmp_path: Path) -> None:
    sides = []
    for side, by in (("golden", 0.0), ("candidate", 1e-7)):
        values = [item(name, (X * (1 + by)).astype(np.float32)) for name in "abc"]
        sides.append(write(tmp_path / side, values, capture={"mode": "stats"}))
    assert ac.diff(*sides).answer is Answer.ROUNDING


@pytest.mark.parametrize(
    ("by", "fed", "passed"), [(1e-6, False, True), (1e-6, True, False), (0.0, True, True)]
)
def test_fed_a_result_proves_nothing_of_what_was_replaced_on_the_way(
    by: float, fed: bool, passed: bool, tmp_path: Path
) -> None:
    """The error of ``a`` shows in what ``b`` was given, within its limit; ``b`` then computed with
    golden's.
    """
    x = X.astype(np.float32)

    def side(factor: float) -> list[Item]:
        odd = item("a", dtype="float32", layout="sparse", detail="odd.Thing")
        given = item("b", (X * factor).astype(np.float32), role="input")
        return [item("a", x, role="input"), odd, given, item("b", x), item("", x, parent=None)]

    golden = write(tmp_path / "golden", side(1.0))
    feed = {"golden": "golden", "identity": ac.open_bundle(golden).identity(), "not_fed": []}
    candidate = write(
        tmp_path / "candidate", side(1 + by), **({"capture": {"feed": feed}} if fed else {})
    )
    assert ac.diff(golden, candidate).passed is passed


def test_fed_an_update_over_its_limit_that_was_made_of_a_gradient_that_was_not_fed_is_no_pass(
    tmp_path: Path,
) -> None:
    x = X.astype(np.float32)

    def side(factor: float) -> list[Item]:
        sparse = item(
            "a", dtype="float32", layout="sparse", role="param_grad", path="weight", parent=None
        )
        own = item("a", x, role="param_update", path="weight", parent=None)
        return [
            item("", x, parent=None),
            sparse,
            own,
            item("b", x * np.float32(factor), role="param_update", path="weight", parent=None),
        ]

    golden = write(tmp_path / "golden", side(1.0))
    not_fed = [
        {
            "step": 0,
            "name": "a",
            "call": 0,
            "role": "param_grad",
            "path": "weight",
            "why": "it has no plain data (sparse)",
        }
    ]
    feed = {
        "golden": "golden",
        "identity": ac.open_bundle(golden).identity(),
        "not_fed": not_fed,
        "backward": True,
    }
    comparison = ac.diff(golden, write(tmp_path / "candidate", side(1.5), capture={"feed": feed}))
    assert (comparison.answer, comparison.passed) == (Answer.NOT_SURE, False)
    assert "b param_update.weight" in comparison.conclusion


def test_a_model_that_returns_nothing_is_no_pass_for_its_inputs_unless_gradients_tell(
    tmp_path: Path,
) -> None:
    given, inside = value("", 0.0, role="input", path="0", parent=None), value("a", 0.0)
    comparison = answer(tmp_path, given, inside)
    assert not comparison.passed
    assert "nothing that the model returned for (root) input.0" in comparison.conclusion
    for name, pair in (
        ("output", value("", parent=None)),
        ("gradient", value("a", role="param_grad", path="weight", parent=None)),
    ):
        (tmp_path / name).mkdir()
        assert answer(tmp_path / name, given, inside, pair).passed


@pytest.mark.parametrize("chosen", [{"only": "0"}, {"skip": ["1", ""]}])
def test_a_model_whose_outputs_were_left_out_on_request_passes_by_what_was_chosen(
    tmp_path: Path, chosen: dict[str, Any]
) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    for name in ("golden", "candidate"):
        with ac.capture(model, tmp_path / name, **grouped(**chosen)):
            model(torch.ones(2, 3))
    assert ac.diff(tmp_path / "golden", tmp_path / "candidate").passed


class Sealed:
    """Nothing looks into it."""

    __slots__ = ("value",)

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("fed", [False, True])
def test_a_model_that_returns_an_object_alone_is_no_pass(
    tmp_path: Path, fed: bool, beside: bool
) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> object:
            y = self.a(x)
            return (Sealed(2 * y), y) if beside else Sealed(2 * y)

    for name in ("golden", "candidate"):
        with (
            torch.no_grad(),
            ac.capture(
                model := Net(),
                tmp_path / name,
                feed=tmp_path / "golden" if fed and name == "candidate" else None,
            ),
        ):
            model(torch.ones(2, 4))
    found = ac.diff(tmp_path / "golden", tmp_path / "candidate")
    assert found.answer is (Answer.IDENTICAL_SO_FAR if beside else Answer.NOT_SURE)
