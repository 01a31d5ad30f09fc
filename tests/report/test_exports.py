"""The exports: what Model Explorer and Perfetto are given of a comparison.

That the viewers open such files was seen once (docs/export.md); here stands what their code goes
by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import accucompare as ac
from accucompare.cli import cli
from tests.compare.builder import Item, item, write

JSON = dict[str, Any]
HOSTILE, LABEL = "a/b\x1b[31m\u202e=1+1", r"a/b\x1b[31m\u202e=1+1"


def values(error: float = 0.0, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(8, 4)) * (1 + error)).astype(np.float32)


def model(bug: float = 0.0, step: int = 0, rank: int = 0) -> list[Item]:
    """A root of a block with two layers, and a head; the gradient of the head; and a layer of a
    hostile name.
    """
    where: JSON = {"step": step, "rank": rank}
    return [
        item("", values(), role="input", path="0", parent=None, type="Net", **where),
        item("block", values(), role="input", path="0", type="Block", **where),
        item("block.fc", values(), role="input", path="0", parent=("block", 0), **where),
        item("block.fc", values(bug, 1), parent=("block", 0), **where),
        item("block.act", values(bug, 1), role="input", path="0", parent=("block", 0), **where),
        item("block.act", values(bug, 2), parent=("block", 0), **where),
        item("block", values(bug, 3), type="Block", **where),
        item("head", values(bug, 3), role="input", path="0", **where),
        item("head", values(bug, 4), **where),
        item(HOSTILE, values(bug, 5), **where),
        item("", values(bug, 4), parent=None, type="Net", **where),
        item("head", values(bug, 6), role="grad_output", **where),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps on two ranks, with a bug in one layer of one of them; golden alone has one layer,
    and one is not finite.
    """
    here = tmp_path_factory.mktemp("exports")
    places = [(step, rank) for rank in range(2) for step in range(2)]
    golden = [each for step, rank in places for each in model(step=step, rank=rank)]
    candidate = [
        each
        for step, rank in places
        for each in model(0.1 if (step, rank) == (1, 0) else 0.0, step, rank)
    ]
    golden += [item("only", values()), item("nan", values())]
    candidate += [item("nan", values() * np.nan)]
    sides = (
        write(here / name, items, steps=2, ranks=2)
        for name, items in (("golden", golden), ("npu", candidate))
    )
    ac.diff(*sides).to_json(here / "x.json")
    return here


def export(folder: Path, viewer: str, *more: str, name: str = "x.json") -> Result:
    return CliRunner().invoke(
        cli,
        [
            "export",
            str(folder / name),
            "--to",
            viewer,
            "--out",
            str(folder / f"{viewer}.json"),
            *more,
        ],
    )


@pytest.fixture(scope="module")
def graphs(folder: Path) -> dict[str, dict[str, JSON]]:
    """Each graph's nodes by namespace and label."""
    assert export(folder, "model-explorer").exit_code == 0
    found = json.loads((folder / "model-explorer.json").read_text())
    return {
        graph["id"]: {f"{node['namespace']}|{node['label']}": node for node in graph["nodes"]}
        for graph in found["graphs"]
    }


@pytest.fixture(scope="module")
def trace(folder: Path) -> list[JSON]:
    assert export(folder, "perfetto").exit_code == 0
    events: list[JSON] = json.loads((folder / "perfetto.json").read_text())["traceEvents"]
    return events


def test_a_step_of_a_rank_is_a_graph_for_each_direction(graphs: dict[str, dict[str, JSON]]) -> None:
    assert list(graphs) == [
        f"rank {r}, step {s}, {stage}"
        for r in (0, 1)
        for s in (0, 1)
        for stage in ("forward", "backward")
    ]


def test_modules_are_groups_and_edges_lead_from_what_made_a_value(
    graphs: dict[str, dict[str, JSON]],
) -> None:
    nodes = graphs["rank 1, step 0, forward"]
    assert list(nodes)[:7] == [
        "|into (root)",
        "block|into block",
        "block|fc",
        "block|act",
        "block|out of block",
        "|head",
        f"|{LABEL}",
    ]
    sources = {
        place: [edge["sourceNodeId"] for edge in node["incomingEdges"]]
        for place, node in nodes.items()
    }
    assert sources["block|fc"] == [nodes["block|into block"]["id"]]
    assert sources["block|act"] == [nodes["block|fc"]["id"]]
    assert sources["|head"] == [nodes["block|out of block"]["id"]]
    # not what ran before it: the same tensor, by its digest
    assert sources["|out of (root)"] == [nodes["|head"]["id"]]
    # no one made it: what ran before
    assert sources["block|out of block"] == [nodes["block|act"]["id"]]


def test_edges_and_node_data_name_nodes_that_are_there(
    graphs: dict[str, dict[str, JSON]], folder: Path
) -> None:
    for suffix in ("limit", "rel-l2"):
        data = json.loads((folder / f"model-explorer-{suffix}.json").read_text())
        assert list(data) == list(graphs)
        for title, nodes in graphs.items():
            ids = [node["id"] for node in nodes.values()]
            assert len(set(ids)) == len(ids)
            assert set(data[title]["results"]) <= set(ids)
            assert {
                edge["sourceNodeId"] for node in nodes.values() for edge in node["incomingEdges"]
            } <= set(ids)


def test_failing_layers_stand_out_and_where_the_error_is_made_most(
    graphs: dict[str, dict[str, JSON]], folder: Path
) -> None:
    right, wrong = graphs["rank 1, step 1, forward"], graphs["rank 0, step 1, forward"]
    colors = {place: node["style"]["backgroundColor"] for place, node in wrong.items()}
    assert right["block|fc"]["style"]["backgroundColor"] == colors["block|into block"] == "#E2F0D9"
    assert colors["block|fc"] == "#EF7B7B"
    assert colors["|head"] == "#FFC7CE"
    results = json.loads((folder / "model-explorer-rel-l2.json").read_text())[
        "rank 0, step 1, forward"
    ]["results"]
    assert results[wrong["block|fc"]["id"]] == {"value": -1.0, "bgColor": "#EF7B7B"}
    assert results[wrong["block|into block"]["id"]] == {"value": -20.0}  # log10 of 0, as documented


def test_a_layer_of_one_side_is_shown_in_words_and_nan_as_an_error_without_bound(
    graphs: dict[str, dict[str, JSON]], folder: Path
) -> None:
    results = json.loads((folder / "model-explorer-limit.json").read_text())[
        "rank 0, step 0, forward"
    ]["results"]
    nodes = graphs["rank 0, step 0, forward"]
    assert results[nodes["|only"]["id"]]["value"] == "one-sided"
    assert results[nodes["|nan"]["id"]]["value"] == 20.0


def test_a_hostile_name_is_one_printable_part_of_a_namespace(
    graphs: dict[str, dict[str, JSON]], trace: list[JSON], folder: Path
) -> None:
    text = (folder / "model-explorer.json").read_text() + (folder / "perfetto.json").read_text()
    assert "\\u001b" not in text
    assert "\\u202e" not in text.replace("\\\\u202e", "")
    assert graphs["rank 1, step 0, forward"][f"|{LABEL}"]["namespace"] == ""


def test_both_sides_are_tracks_of_slices_that_nest(trace: list[JSON]) -> None:
    slices = [event for event in trace if event["ph"] == "X"]
    titles = {
        event["tid"]: event["args"]["name"] for event in trace if event["name"] == "thread_name"
    }
    assert [title.split(":")[0] for title in titles.values()] == ["golden", "candidate"] * 4
    assert set(titles) == {event["tid"] for event in slices}
    for track in titles:
        stack: list[JSON] = []
        for event in (event for event in slices if event["tid"] == track):
            while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
                stack.pop()
            assert not stack or event["ts"] + event["dur"] < stack[-1]["ts"] + stack[-1]["dur"]
            event["depth"] = len(stack)
            stack.append(event)
    # the forward's
    depths = {
        event["name"]: event["depth"] for event in reversed(slices) if event["tid"] == min(titles)
    }
    assert [depths[name] for name in ("forward", "(root)", "block", "fc", "head")] == [
        0,
        1,
        2,
        3,
        2,
    ]
    assert {event["dur"] for event in slices if event["name"] in ("fc", "act", "head")} == {1000}


def test_an_arrow_joins_each_pair_and_what_one_side_lacks_is_a_gap(trace: list[JSON]) -> None:
    begins, ends = (
        {event["id"]: event for event in trace if event["ph"] == kind} for kind in ("s", "f")
    )
    assert begins.keys() == ends.keys()
    assert all(
        ends[number]["tid"] == begins[number]["tid"] + 1 and ends[number]["bp"] == "e"
        for number in begins
    )
    assert [event["tid"] % 10 for event in trace if event["name"].startswith("only")] == [1]


def test_a_failing_slice_says_why_and_how_far(trace: list[JSON]) -> None:
    fc = next(event for event in trace if event["name"] == "fc [introduced]")
    assert fc["args"]["output"]["relative L2"] == "0.1"
    assert fc["args"]["layer"] == "block.fc"
    assert {event["args"]["log10"] for event in trace if event["ph"] == "C"} == {-20.0, -1.0}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b'{"golden":"g","candidate":"c","conclusion":"","rows":[]}',
            "compares no call of any layer",
        ),
        (b"{", "is not a comparison of this version"),
        (b'{"rows": []}', "is not a comparison of this version"),
        (b"[" * 100_000, "is not a comparison of this version"),
        (
            b'{"golden":"g","candidate":"c","conclusion":"","rows":[{"name":"a"}]}',
            "`accucompare diff GOLDEN CANDIDATE --json bad.json`",
        ),
    ],
    ids=["empty", "truncated", "other", "deep", "old"],
)
def test_a_file_that_is_none_of_ours_is_refused_with_the_command_to_type(
    content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    done = export(tmp_path, "perfetto", name="bad.json")
    assert said in str(done.exception)
    assert not (tmp_path / "perfetto.json").exists()


def test_a_parquet_file_is_not_proposed_to_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "npu.parquet").write_bytes(b"PAR1\xc0")
    assert "`accucompare diff GOLDEN CANDIDATE --json npu.json`" in str(
        export(tmp_path, "perfetto", name="npu.parquet").exception
    )


@pytest.mark.parametrize("viewer", ["model-explorer", "perfetto"])
def test_calls_inside_each_other_do_no_harm(viewer: str, folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / "x.json").read_text())
    for row in content["rows"]:
        row["parent"] = [row["name"], row["call"]]
    (tmp_path / "x.json").write_text(json.dumps(content))
    assert export(tmp_path, viewer).exit_code == 0


def test_a_name_that_is_half_a_surrogate_is_shown(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(
        (folder / "x.json").read_text().replace('"block.fc"', r'"block.f\udc80"')
    )
    assert export(tmp_path, "perfetto").exit_code == 0
    assert r"f\\udc80" in (tmp_path / "perfetto.json").read_text()


def test_the_comparison_itself_is_not_overwritten(folder: Path) -> None:
    done = CliRunner().invoke(
        cli, ["export", str(folder / "x.json"), "--to", "perfetto", "--out", str(folder / "x.json")]
    )
    assert "is the same file as COMPARISON" in str(done.exception)


def test_values_of_which_nothing_is_known_are_reported_all_the_same(tmp_path: Path) -> None:
    sides = (write(tmp_path / side, [item(), item("a", values())]) for side in "gc")
    comparison = ac.diff(*sides)
    for path in (comparison.to_json(tmp_path / "x.json"), comparison.to_excel(tmp_path / "x.xlsx")):
        assert path.exists()
    details = {row["detail"] for row in json.loads((tmp_path / "x.json").read_text())["rows"]}
    assert details == {""}
