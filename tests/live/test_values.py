"""How nested values are taken apart and their parts named."""

from __future__ import annotations

import enum
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from accucompare.live.values.values import leaves, replaced


def paths(value: Any) -> list[str]:
    return [path for path, _ in leaves(value)]


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a.b": 1, "a": {"b": 2}}, ["['a.b']", "a.b"]),
        ({7: 1, "7": 2}, ["7", "['7']"]),
        ({"": 1, " ": 2}, ["['']", " "]),
        ({"['a']": 1, "a": 2}, ["[\"['a']\"]", "a"]),
        (
            {(1, 2): 1, Color.RED: 2, True: 3, None: 4},
            ["[(1, 2)]", "[<Color.RED: 1>]", "[True]", "[None]"],
        ),
        ([[1], (2, [3])], ["0.0", "1.0", "1.1.0"]),
        (1, [""]),
        (None, []),
        ([None, 1], ["1"]),
        (torch.Size([2, 3]), ["0", "1"]),
    ],
)
def test_paths_tell_every_part_apart(value: Any, expected: list[str]) -> None:
    assert paths(value) == expected


def test_two_keys_that_look_alike_get_numbered_records(record: Any) -> None:
    class Key:
        def __repr__(self) -> str:
            return "key"

    bundle = record(torch.nn.Identity(), {Key(): torch.zeros(1), Key(): torch.ones(1)})
    inputs = [entry for entry in bundle.records() if entry.role.value == "input"]
    assert [(entry.path, bundle.values(entry).tolist()) for entry in inputs] == [
        ("0.[key]", [0]),
        ("0.[key]#2", [1]),
    ]


def test_a_type_registered_with_pytree_is_taken_apart() -> None:
    class Box:
        def __init__(self, *parts: Any) -> None:
            self.parts = parts

    pytree.register_pytree_node(
        Box, lambda box: (list(box.parts), None), lambda parts, _: Box(*parts)
    )
    assert paths({"box": Box(1, [2])}) == ["box.0", "box.1.0"]


def test_a_value_that_appears_twice_is_recorded_in_both_places() -> None:
    same = [1]
    assert paths([same, same]) == ["0.0", "1.0"]


def test_exchanging_parts_leaves_the_old_value_alone_and_shares_what_did_not_change() -> None:
    kept, old = [1, 2], {"a": ([3], 4), "b": "x"}
    value = {"kept": kept, "old": old}
    new = replaced(value, {"old.a.0.0": 30})
    assert new == {"kept": [1, 2], "old": {"a": ([30], 4), "b": "x"}}
    assert value == {"kept": [1, 2], "old": {"a": ([3], 4), "b": "x"}}
    assert new["kept"] is kept


def test_without_anything_to_exchange_the_value_is_the_very_same() -> None:
    value = {"a": [1, (2,)]}
    assert replaced(value, {"elsewhere": 3}) is value


def test_a_value_that_is_no_container_is_exchanged_as_a_whole() -> None:
    assert replaced(1, {"": 2}) == 2
    assert replaced(None, {"": 2}) is None


def test_a_container_inside_itself_is_left_as_it_is() -> None:
    value: list[Any] = [1]
    value.append(value)
    new = replaced(value, {"0": 2})
    assert new[0] == 2
    assert new[1] is value


def test_pytree_nodes_are_built_anew_and_caches_are_not() -> None:
    class Point:
        def __init__(self, part: int) -> None:
            self.part = part

    class Cache(Point):
        pass

    try:
        for kind in (Point, Cache):
            pytree.register_pytree_node(
                kind, lambda point: ([point.part], type(point)), lambda parts, made: made(*parts)
            )
        point, cache = Point(1), Cache(1)
        assert replaced(point, {"0": 2}).part == 2
        assert point.part == 1
        assert replaced(cache, {"0": 2}) is cache
    finally:
        for kind in (Point, Cache):
            pytree.SUPPORTED_NODES.pop(kind, None)


def test_the_lists_and_mappings_that_were_built_anew_are_told() -> None:
    rebuilt: list[tuple[Any, Any]] = []
    value = {"a": [1], "b": (2,)}
    new = replaced(value, {"a.0": 3, "b.0": 4}, rebuilt)
    assert [(old is value or old is value["a"], type(fresh)) for old, fresh in rebuilt] == [
        (True, list),
        (True, dict),
    ]
    assert rebuilt[1][1] is new
