"""Which earlier row gave a value."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from accucompare.compare.origins.module_calls import with_producers
from tests.compare.builder import Item, compare, item

X, Y = np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(3, 2)


def producers(tmp_path: Path, items: list[Item]) -> list[int | None]:
    return [producer for _, producer in with_producers(compare(tmp_path, items, items).rows)]


def test_a_value_leads_to_the_latest_call_that_gave_it_or_to_the_caller_that_handed_it_down(
    tmp_path: Path,
) -> None:
    items = [
        item("", X, role="input", path="0", parent=None),
        item("block", X, role="input", path="0"),
        item("block.fc", X, role="input", path="0", parent=("block", 0)),
        item("block.fc", Y, parent=("block", 0)),
        item("block", Y),
        item("head", Y, role="input", path="0"),
        item("head", X + 1),
    ]
    assert producers(tmp_path, items) == [None, 1, 2, None, 4, 5, None]


def test_what_went_into_a_neighbour_was_handed_down_by_the_caller_of_both(tmp_path: Path) -> None:
    items = [
        item("", X, role="input", path="0", parent=None),
        item("query", X, role="input", path="0"),
        item(
            "query", Y, role="op_input", path="aten.mm#0.self", type="aten.mm", parent=("query", 0)
        ),
        item("key", X, role="input", path="0"),
        item("", X + 1, role="op_output", path="aten.add#0", type="aten.add", parent=("", 0)),
        item("", X + 1, parent=None),
    ]
    assert producers(tmp_path, items) == [None, 1, None, 1, None, 5]


def test_an_input_alone_gives_nothing_and_numbers_are_equal_by_chance(tmp_path: Path) -> None:
    items = [
        item("a", X, role="input", path="0"),
        item("a", np.array(3.0)),
        item("b", X, role="input", path="0"),
        item("b", np.array(3.0), role="input", path="1"),
    ]
    assert producers(tmp_path, items) == [None] * 4


def test_a_step_does_not_give_to_another(tmp_path: Path) -> None:
    items = [item("a", X), item("b", X, role="input", path="0", step=1)]
    assert producers(tmp_path, items) == [None, None]
