"""How nested values are taken apart and their parts named."""

from __future__ import annotations

import enum
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from accucompare.capture.values import leaves


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
        ({(1, 2): 1, Color.RED: 2, True: 3, None: 4}, ["[(1, 2)]", "[<Color.RED: 1>]", "[True]", "[None]"]),
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
    assert [(entry.path, bundle.values(entry).tolist()) for entry in inputs] == [("0.[key]", [0]), ("0.[key]#2", [1])]


def test_a_type_registered_with_pytree_is_taken_apart() -> None:
    class Box:
        def __init__(self, *parts: Any) -> None:
            self.parts = parts

    pytree.register_pytree_node(Box, lambda box: (list(box.parts), None), lambda parts, _: Box(*parts))
    assert paths({"box": Box(1, [2])}) == ["box.0", "box.1.0"]


def test_a_value_that_appears_twice_is_recorded_in_both_places() -> None:
    same = [1]
    assert paths([same, same]) == ["0.0", "1.0"]
