"""Two bundles that are not of one model: that is said, in place of culprits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import accucompare as ac
from tests.compare.builder import Item, item, write

LAYERS = ("embed", "a.up", "a.down", "b.up", "b.down", "head")


def net(width: int, names: tuple[str, ...] = LAYERS) -> list[Item]:
    return [
        item(name, np.full((2, width), [[number], [number + 1]], np.float32))
        for number, name in enumerate(names)
    ]


def model(width: int, names: tuple[str, ...] = LAYERS) -> dict[str, Any]:
    entry = {"dtype": "float32", "shape": [width, width], "digests": {"float32": f"of {width}"}}
    return {
        "modules": dict.fromkeys(names, "Linear"),
        "parameters": {f"{name}.weight": entry for name in names},
    }


def test_two_configurations_of_a_model_are_told_in_place_of_culprits(tmp_path: Path) -> None:
    golden, candidate = (
        write(tmp_path / str(width), net(width), model=model(width)) for width in (8, 16)
    )
    comparison = ac.diff(golden, candidate)
    told = (
        "these are two different models, or two configurations of one: only 0 of 6 rows have the"
        " same name and shape on both sides"
    )
    assert (comparison.passed, comparison.culprits, comparison.conclusion) == (
        False,
        [],
        f"different: {told}",
    )
    assert told in [finding.message for finding in comparison.preflight if finding.serious]


def test_two_models_of_other_names_are_told_and_a_map_brings_them_together(tmp_path: Path) -> None:
    others = tuple(f"net.{name}" for name in LAYERS)
    golden = write(tmp_path / "golden", net(8), model=model(8))
    candidate = write(
        tmp_path / "candidate",
        [*net(8, others), item("head", np.ones((2, 8), np.float32))],
        model=model(8, others),
    )
    assert ac.diff(golden, candidate).other_model is not None
    assert (
        ac.diff(golden, candidate, map=[f"{name}=net.{name}" for name in LAYERS]).other_model
        is None
    )


def test_one_fault_that_gives_every_value_another_shape_is_still_a_culprit(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", net(8), model=model(8))
    candidate = write(
        tmp_path / "candidate",
        [item(each.record.name, each.array[:1]) for each in net(8)],
        model=model(8),
    )
    comparison = ac.diff(golden, candidate)
    assert (comparison.other_model, comparison.culprits[0].name) == (None, "embed")


def test_other_parameters_that_compute_the_same_values_are_one_model(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", net(8), model=model(8))
    candidate = write(
        tmp_path / "candidate",
        net(8),
        model={**model(8), "parameters": {"packed": model(4)["parameters"]["head.weight"]}},
    )
    assert ac.diff(golden, candidate).other_model is None
