"""Which maps are proposed for layers that another version calls otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accucompare as ac
from accucompare.asked import try_maps
from accucompare.bundle.format.manifest import Manifest
from accucompare.compare.pairing.proposals import propose
from accucompare.compare.pairing.renames import Renaming, check_maps
from accucompare.errors import UsageError
from accucompare.numbers.digests import fingerprint
from accucompare.numbers.dtypes import DTYPES, round_to
from tests.compare.builder import item, write

Layers = dict[str, tuple[str, dict[str, tuple[tuple[int, ...], str]]]]


def model(layers: Layers, **classes: str) -> dict[str, Any]:
    """A manifest's table: ``layers`` by name, each with its class, and the shapes and values of its
    parameters.
    """
    modules, parameters = {"": "Net"}, {}
    for name, (kind, own) in layers.items():
        parts = name.split(".")
        for depth in range(1, len(parts)):
            inside = ".".join(parts[:depth])
            modules.setdefault(inside, classes.get(inside.replace(".", "_"), "Container"))
        modules[name] = kind
        for leaf, (shape, value) in own.items():
            parameters[f"{name}.{leaf}"] = {
                "dtype": "float32",
                "shape": list(shape),
                "digests": {"float32": value},
            }
    return {"modules": modules, "parameters": parameters}


def linear(
    rows: int, columns: int, value: str
) -> tuple[str, dict[str, tuple[tuple[int, ...], str]]]:
    return "Linear", {"weight": ((rows, columns), value), "bias": ((rows,), f"{value} bias")}


def norm() -> tuple[str, dict[str, tuple[tuple[int, ...], str]]]:
    """As it is before training: every norm has the same values."""
    return "LayerNorm", {"weight": ((8,), "ones"), "bias": ((8,), "zeros")}


def blocks(
    prefix: str,
    count: int = 3,
    attention: str = "q k v",
    norms: str = "norm1 norm2",
    act: str = "act",
    of: str = "",
) -> Layers:
    found: Layers = {}
    for number in range(count):
        for name, value in zip(attention.split(), "qkv", strict=True):
            found[f"{prefix}.{number}.attn.{name}"] = linear(8, 8, f"{of}{number}{value}")
        for name in norms.split():
            found[f"{prefix}.{number}.{name}"] = norm()
        found[f"{prefix}.{number}.up"] = linear(16, 8, f"{of}{number}up")
        found[f"{prefix}.{number}.{act}"] = "GELU", {}
    return found


def renamed(layers: Layers, *prefixes: tuple[str, str]) -> Layers:
    def new(name: str) -> str:
        return next(
            (
                after + name.removeprefix(before)
                for before, after in prefixes
                if name.startswith(before)
            ),
            name,
        )

    return {new(name): layer for name, layer in layers.items()}


LLAVA: Layers = {
    **blocks("vision_tower.encoder.layers", 4, of="vision"),
    "multi_modal_projector.linear_1": linear(8, 8, "p1"),
    "language_model.model.embed_tokens": ("Embedding", {"weight": ((99, 8), "embedding")}),
    **blocks("language_model.model.layers"),
    "language_model.lm_head": ("Linear", {"weight": ((99, 8), "head")}),
}
OLD = model(LLAVA, language_model="LlamaForCausalLM", language_model_model="LlamaModel")
NEW = model(
    renamed(
        LLAVA,
        ("language_model.model", "model.language_model"),
        ("language_model.lm_head", "lm_head"),
        ("vision_tower", "model.vision_tower"),
        ("multi_modal_projector", "model.multi_modal_projector"),
    ),
    model="LlavaModel",
    model_language_model="LlamaModel",
)
WITH_AND_WITHOUT_VALUES = pytest.mark.parametrize(
    "fingerprints", [True, False], ids=["values", "shapes"]
)


@WITH_AND_WITHOUT_VALUES
def test_transformers_4_52_moved_the_parts_of_llava(fingerprints: bool) -> None:
    assert set(propose(OLD, NEW, fingerprints=fingerprints)) == {
        "language_model.model.*=model.language_model.*",
        "language_model.lm_head=lm_head",
        "vision_tower.*=model.vision_tower.*",
        "multi_modal_projector.*=model.multi_modal_projector.*",
    }
    assert len(propose(NEW, OLD, fingerprints=fingerprints)) == 4


@WITH_AND_WITHOUT_VALUES
def test_a_prefix_on_everything_is_one_map(fingerprints: bool) -> None:
    wrapped = model({f"model.{name}": layer for name, layer in LLAVA.items()}, model="Llava")
    assert propose(OLD, wrapped, fingerprints=fingerprints) == ["*=model.*"]
    assert propose(wrapped, OLD, fingerprints=fingerprints) == ["model.*=*"]


@WITH_AND_WITHOUT_VALUES
def test_a_wrapper_whose_name_is_a_layers_too_is_one_map(fingerprints: bool) -> None:
    inside = model({**blocks("model.layers"), "head": linear(9, 8, "head")}, model="Decoder")
    outside = model(
        {**blocks("model.model.layers"), "model.head": linear(9, 8, "head")},
        model="ForCausalLM",
        model_model="Decoder",
    )
    assert propose(inside, outside, fingerprints=fingerprints) == ["*=model.*"]


@WITH_AND_WITHOUT_VALUES
def test_numbered_layers_elsewhere_are_one_map(fingerprints: bool) -> None:
    assert propose(
        model(blocks("encoder.layer")), model(blocks("layers")), fingerprints=fingerprints
    ) == ["encoder.layer.*=layers.*"]


@WITH_AND_WITHOUT_VALUES
def test_what_is_renamed_inside_of_numbered_layers_is_one_map_each(fingerprints: bool) -> None:
    ours, theirs = (
        model(blocks("h")),
        model(blocks("layers", attention="query key value", norms="ln_1 ln_2", act="act_fn")),
    )
    found = propose(ours, theirs, fingerprints=fingerprints)
    assert set(found) == {
        "h.*=layers.*",
        "h.*.attn.q=layers.*.attn.query",
        "h.*.attn.k=layers.*.attn.key",
        "h.*.attn.v=layers.*.attn.value",
        "h.*.norm1=layers.*.ln_1",
        "h.*.norm2=layers.*.ln_2",
        "h.*.act=layers.*.act_fn",
    }
    # all of them together leave nothing
    assert propose(ours, theirs, [Renaming.parse(text) for text in found]) == []


def test_order_does_not_overrule_names() -> None:
    """By shape and order alone q would become the key."""
    theirs = model(blocks("layers", attention="key query value"))
    assert not {"q", "k"} & {
        text.partition("=")[0].rpartition(".")[2]
        for text in propose(model(blocks("h")), theirs, fingerprints=False)
    }


def test_values_overrule_order_and_names() -> None:
    layers = blocks("h", 1)
    swapped = renamed(layers, ("h.0.attn.q", "h.0.attn.key"), ("h.0.attn.k", "h.0.attn.query"))
    assert set(propose(model(layers), model(swapped))) == {
        "h.0.attn.q=h.0.attn.key",
        "h.0.attn.k=h.0.attn.query",
    }


def test_two_that_might_be_meant_are_none() -> None:
    layer = linear(8, 8, "x")
    ours, theirs = (
        model({"head": layer, "a": linear(3, 3, "a")}),
        model({"one": layer, "two": layer, "a": linear(3, 3, "a")}),
    )
    assert propose(ours, theirs) == propose(ours, theirs, fingerprints=False) == []


def test_other_values_are_another_layer() -> None:
    ours, theirs = model({"old": linear(8, 8, "x")}), model({"new": linear(8, 8, "y")})
    assert propose(ours, theirs) == []
    assert propose(ours, theirs, fingerprints=False) == ["old=new"]


def test_other_shapes_are_another_layer() -> None:
    for fingerprints in (True, False):
        assert (
            propose(
                model({"old": linear(8, 8, "x")}),
                model({"new": linear(8, 9, "x")}),
                fingerprints=fingerprints,
            )
            == []
        )


def test_a_prefix_with_one_layer_of_another_shape_inside_is_not_proposed_whole() -> None:
    theirs = renamed(blocks("h"), ("h", "layers"))
    theirs["layers.1.up"] = linear(17, 8, "1up")
    assert "h.*=layers.*" not in propose(model(blocks("h")), model(theirs), fingerprints=False)


def test_another_model_gets_no_proposal_for_the_little_that_fits() -> None:
    ours, theirs = (
        model({**blocks("h"), "tail": linear(2, 2, "t")}),
        model({"end": linear(2, 2, "t"), "body": linear(70, 70, "b")}),
    )
    assert propose(ours, theirs, fingerprints=False) == []


def test_values_are_compared_in_a_type_that_both_have() -> None:
    values = [1.0, 2.03125, -3.3]

    def side(name: str, dtype: str) -> dict[str, Any]:
        raw = round_to(np.array(values), DTYPES[dtype])
        digests = fingerprint(raw, DTYPES[dtype])
        return {
            "modules": {"": "Net", name: "Scale"},
            "parameters": {f"{name}.w": {"dtype": dtype, "shape": [3], "digests": digests}},
        }

    assert propose(side("old", "float32"), side("new", "bfloat16")) == ["old=new"]


def test_maps_that_are_given_come_first() -> None:
    ours, theirs = (
        model({**blocks("h"), "head": linear(9, 8, "head")}),
        model({**blocks("layers"), "lm_head": linear(9, 8, "head")}),
    )
    assert set(propose(ours, theirs)) == {"h.*=layers.*", "head=lm_head"}
    assert propose(ours, theirs, [Renaming.parse("h.*=layers.*")]) == ["head=lm_head"]


def test_the_same_names_and_empty_tables_need_no_map() -> None:
    assert propose(OLD, OLD) == propose({}, {}) == propose(OLD, {}) == propose({}, NEW) == []


def test_advice_can_be_pasted_into_a_shell() -> None:
    assert (
        try_maps(["a.*=b.*", "it's=x"])
        == """; try --map 'a.*=b.*' --map 'it'"'"'s=x', or --map auto"""
    )
    assert try_maps([]) == ""


def test_a_map_that_one_of_two_goldens_needs_is_no_mistake() -> None:
    maps = [Renaming.parse("language_model.model.*=model.language_model.*")]
    check_maps(maps, [(NEW, NEW), (OLD, NEW)])
    with pytest.raises(UsageError, match="matches none"):
        check_maps(maps, [(NEW, NEW)])


# in a comparison


def sides(tmp_path: Path) -> tuple[Path, Path]:
    tables = model({"old.fc": linear(2, 2, "x")}), model({"new.fc": linear(2, 2, "x")})
    records = [item("old.fc", [1.0])], [item("new.fc", [1.0])]
    golden, candidate = (
        write(tmp_path / name, *side)
        for name, *side in zip(("golden", "candidate"), records, strict=True)
    )
    for path, table in zip((golden, candidate), tables, strict=True):
        manifest = Manifest.read(path / "manifest.json")
        manifest.model = table
        manifest.write(path / "manifest.json")
    return golden, candidate


def test_a_comparison_proposes_maps(tmp_path: Path) -> None:
    comparison = ac.diff(*sides(tmp_path))
    assert comparison.proposed_maps == ["old.*=new.*"]
    (finding,) = [finding for finding in comparison.preflight if finding.topic == "map"]
    assert (
        finding.message
        == "the candidate has other names for some of golden's layers; try --map 'old.*=new.*', or"
        " --map auto"
    )
    assert (
        '"proposed_maps": [\n  "old.*=new.*"' in comparison.to_json(tmp_path / "x.json").read_text()
    )


def test_a_comparison_takes_them_if_asked_to(tmp_path: Path) -> None:
    comparison = ac.diff(*sides(tmp_path), map="auto")
    assert (comparison.passed, comparison.maps, comparison.proposed_maps) == (
        True,
        ["old.*=new.*"],
        [],
    )
    assert "--map auto took --map 'old.*=new.*'" in [
        finding.message for finding in comparison.preflight
    ]


def test_a_comparison_that_needs_no_map_says_that_auto_took_none(tmp_path: Path) -> None:
    golden, _ = sides(tmp_path)
    assert [finding.message for finding in ac.diff(golden, golden, map="auto").preflight] == [
        "--map auto found nothing to rename"
    ]


def test_a_comparison_says_which_layers_became_one(tmp_path: Path) -> None:
    golden, candidate = sides(tmp_path)
    found = [
        finding.message
        for finding in ac.diff(golden, candidate, map=["old.fc=new.fc", "old=new.fc"]).preflight
    ]
    assert (
        "--map: old and old.fc of golden both become new.fc; the first that runs is compared"
        " with it" in found
    )
