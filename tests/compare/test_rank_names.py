"""Names of stages, chunks and local experts are put back to golden's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from accucompare.bundle.format import Manifest
from accucompare.compare.layouts import (
    NameEvidence,
    RankNames,
    StageOf,
    UnderGoldenNames,
    names_of_ranks,
)
from accucompare.compare.pairing import Renaming

BLOCK = {"": "Block", "norm": "LayerNorm", "up": "Linear"}


def model(
    layers: Sequence[str],
    names: Sequence[str],
    around: Mapping[str, str] | None = None,
    within: str = "",
    shard: bool = False,
) -> dict[str, Any]:
    """A manifest's model. ``layers``: what tells the weights of each layer apart; ``names``: of
    these; ``around``: of other modules with weights."""
    modules, parameters = {"": "Model", within: "Decoder"}, {}
    held = [
        *((name, digest, BLOCK) for name, digest in zip(names, layers, strict=True)),
        *((name, digest, {"": "Linear"}) for name, digest in (around or {}).items()),
    ]
    for name, digest, parts in held:
        for part, kind in parts.items():
            module = ".".join(filter(None, (within, name, part)))
            modules[module] = kind
            modules.setdefault(module.rpartition(".")[0], "ModuleList")
            if kind != "Block":
                # norms are all ones
                value = "ones" if kind == "LayerNorm" else f"{digest}.{part}"
                entry = {"dtype": "float32", "shape": [4], "digests": {"float32": value}}
                parameters[f"{module}.weight"] = entry | (
                    {"shard": {"shape": [4], "start": [0]}, "digests": {}} if shard else {}
                )
    return {"modules": modules, "parameters": parameters, "buffers": {}}


GOLDEN = model("abcd", [f"blocks.{n}" for n in range(4)], {"embed": "e", "head": "h"})


def counted(layers: Sequence[str], **options: Any) -> dict[str, Any]:
    return model(layers, [f"layers.{n}" for n in range(len(layers))], **options)


def layers(names: RankNames) -> dict[str, str]:
    return {own: name for own, name in names.modules.items() if own.split(".")[-1].isdecimal()}


def test_stages_that_count_from_0_have_golden_names_by_their_weights() -> None:
    stages = {0: counted("a", around={"embed": "e"}), 1: counted("bcd", around={"head": "h"})}
    found = names_of_ranks(GOLDEN, stages)
    assert layers(found[0]) == {"layers.0": "blocks.0"}
    assert layers(found[1]) == {f"layers.{n}": f"blocks.{n + 1}" for n in range(3)}
    # also what equal weights do not tell apart
    assert found[1].module("layers.2.norm") == "blocks.3.norm"
    assert found[1].parameter("layers.2.norm.weight") == "blocks.3.norm.weight"
    assert found[0].stages[""] == StageOf("", begins=True, ends=False)
    assert found[1].stages[""] == StageOf("", begins=False, ends=True)
    assert {each.evidence for each in found[1].put_back} == {NameEvidence.WEIGHTS}


def test_a_live_rank_alone_finds_its_names() -> None:
    assert layers(names_of_ranks(GOLDEN, {1: counted("cd")})[1]) == {
        "layers.0": "blocks.2",
        "layers.1": "blocks.3",
    }


def test_layers_that_have_each_others_weights_stay_in_order() -> None:
    found = names_of_ranks(GOLDEN, {0: counted("ab"), 1: counted("dc")})
    assert layers(found[1]) == {"layers.0": "blocks.2", "layers.1": "blocks.3"}


def test_a_layer_with_other_weights_stands_beside_its_neighbour() -> None:
    found = names_of_ranks(GOLDEN, {0: counted("ab"), 1: counted("cx")})
    assert layers(found[1]) == {"layers.0": "blocks.2", "layers.1": "blocks.3"}


def test_parts_of_weights_tell_nothing_so_the_order_of_the_stages_does() -> None:
    parts = [counted("ab", around={"embed": "e"}, within="net", shard=True)] * 2
    parts += [counted("cd", around={"head": "h"}, within="net", shard=True)] * 2
    found = names_of_ranks(GOLDEN, dict(enumerate(parts)))
    assert [layers(found[rank])["net.layers.0"] for rank in range(4)] == [
        *["blocks.0"] * 2,
        *["blocks.2"] * 2,
    ]
    assert found[0].module("net.embed") == "embed"
    assert {each.evidence for each in found[3].put_back} == {NameEvidence.ORDER}


def test_the_mesh_tells_the_order_of_the_stages() -> None:
    stages = {0: counted("cd", shard=True), 1: counted("ab", shard=True)}
    found = names_of_ranks(GOLDEN, stages, {0: {"pp": (1, 2)}, 1: {"pp": (0, 2)}})
    assert layers(found[0])["layers.0"] == "blocks.2"


def test_chunks_of_a_rank_follow_the_first_ones_of_all() -> None:
    ranks = {
        rank: model("xx", ["0.layers.0", "1.layers.0"], {"0.own": "o"}, shard=True)
        for rank in range(2)
    }
    found = names_of_ranks(GOLDEN, ranks)
    assert layers(found[0]) == {"0.layers.0": "blocks.0", "1.layers.0": "blocks.2"}
    assert layers(found[1]) == {"0.layers.0": "blocks.1", "1.layers.0": "blocks.3"}


def test_layers_of_which_nothing_tells_what_they_are_are_not_golden_ones_of_that_name() -> None:
    ranks = {0: counted("abc", shard=True), 1: counted("ddd", shard=True)}
    found = names_of_ranks(counted("abcd"), ranks)
    assert layers(found[1])["layers.0"] == "rank1:layers.0"


def test_golden_names_are_kept() -> None:
    kept = model("cd", ["blocks.2", "blocks.3"], {"head": "h"})
    first = model("ab", ["blocks.0", "blocks.1"], {"embed": "e"})
    found = names_of_ranks(GOLDEN, {0: first, 1: kept})
    assert not found[1].modules
    assert found[1].stages[""] == StageOf("", begins=False, ends=True)


def test_the_same_model_under_other_names_is_left_to_map() -> None:
    renamed = counted("abcd", around={"embed": "e", "head": "h"})
    assert names_of_ranks(GOLDEN, {0: renamed, 1: renamed}) == {}


def test_a_map_of_one_rank_overrules_the_weights() -> None:
    maps = [Renaming.parse("blocks.3.*=rank1:layers.0.*")]
    found = names_of_ranks(GOLDEN, {0: counted("ab"), 1: counted("cd")}, renamings=maps)
    assert found[1].module("layers.0.up") == "blocks.3.up"
    assert found[0].module("layers.0.up") == "blocks.0.up"


def test_local_experts_are_numbered_as_golden_does() -> None:
    def experts(which: Sequence[str], first: int = 0) -> dict[str, Any]:
        names = [f"blocks.0.moe.{first + n}" for n in range(len(which))]
        return model(which, names, {"blocks.0.gate": "g"})

    found = names_of_ranks(experts("abcd"), {0: experts("ab"), 1: experts("cd")})
    assert layers(found[1]) == {
        "blocks.0.moe.0": "blocks.0.moe.2",
        "blocks.0.moe.1": "blocks.0.moe.3",
    }
    assert not found[1].stages  # the layer is whole on each rank


def test_what_ranks_keep_in_attributes_has_golden_names() -> None:
    stages = {0: counted("ab"), 1: counted("cd")}
    left = {"numbers": {"layers.1.norm": {"calls": [0, 3]}}, "dropped": ["layers.1.norm.cache.k"]}
    kept = {"kept": ["layers.1.norm.cache.k", "cache"], "left": left}
    manifests = {rank: Manifest(ranks=2, model=each, capture=kept) for rank, each in stages.items()}
    bundle: Any = SimpleNamespace(manifests=manifests, manifest=manifests[0], ranks=2)
    golden: Any = SimpleNamespace(manifest=Manifest(model=GOLDEN))
    named = UnderGoldenNames.of(golden, bundle, []).bundle.manifests
    assert [named[rank].options.kept for rank in (0, 1)] == [
        ("blocks.1.norm.cache.k", "cache"),
        ("blocks.3.norm.cache.k", "cache"),
    ]
    found = named[1].options.left
    assert found is not None
    assert found.numbers == {"blocks.3.norm": {"calls": (0, 3)}}
    assert found.dropped == ("blocks.3.norm.cache.k",)
