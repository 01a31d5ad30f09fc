"""What a golden of one device gives each rank of a parallel run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import accucompare as ac
from accucompare.bundle.format import Shard
from accucompare.compare.layouts import GoldenParts, check_layout
from accucompare.errors import UsageError
from tests.compare.builder import Item, edit_manifest, item, write

VALUES = np.random.default_rng(0).standard_normal((6, 8)).astype("f4")
OTHER = np.random.default_rng(1).standard_normal((6, 8)).astype("f4")


def held(name: str, values: Sequence[np.ndarray], shard: Any = None, **fields: Any) -> list[Item]:
    """One record on each rank; ``shard``: gives a rank's."""
    found = []
    for rank, each in enumerate(values):
        made = item(name, each, rank=rank, **fields)
        own = shard and shard(rank)
        found.append(made._replace(record=replace(made.record, shard=own)))
    return found


def _put(mesh: dict[str, list[int]], manifest: dict[str, Any]) -> None:
    manifest["mesh"] = mesh


def given(
    tmp_path: Path, golden: Sequence[Item], layout: Sequence[Item], mesh: str = "tp"
) -> list[dict[tuple[str, str], np.ndarray]]:
    """What each of two ranks is given of golden's values, by name and role."""
    write(tmp_path / "one", golden)
    free = write(tmp_path / "free", layout, ranks=2)
    for rank in range(2):
        name = f"rank{rank}/manifest.json" if rank else "manifest.json"
        edit_manifest(free, functools.partial(_put, {mesh: [rank, 2]}), name)
    found = []
    for rank in range(2):
        with ac.open_bundle(tmp_path / "one") as ours, ac.open_bundle(free) as theirs:
            parts = GoldenParts(ours, theirs, rank).records(0)
            assert parts is not None
            found.append({(each.name, each.role.value): ours.values(each) for each in parts})
    return found


@pytest.mark.parametrize("axis", [0, 1])
def test_a_rank_is_given_its_part_wherever_the_free_run_has_gone_wrong(
    tmp_path: Path, axis: int
) -> None:
    parts = np.split(OTHER, [2], axis)
    found = given(tmp_path, [item(values=VALUES)], held("fc", parts))
    for rank, part in enumerate(np.split(VALUES, [2], axis)):
        assert np.array_equal(found[rank]["fc", "output"], part)


def test_a_recorded_layout_tells_the_place(tmp_path: Path) -> None:
    def shard(rank: int) -> Shard:
        return Shard((6, 8), (3 - 3 * rank, 0), mesh=("tp",))

    found = given(tmp_path, [item(values=VALUES)], held("fc", [OTHER[3:], OTHER[:3]], shard))
    assert np.array_equal(found[0]["fc", "output"], VALUES[3:])


def test_a_replica_is_given_whole_though_one_is_wrong(tmp_path: Path) -> None:
    found = given(tmp_path, [item(values=VALUES)], held("fc", [VALUES, 1.05 * VALUES]))
    assert [np.array_equal(each["fc", "output"], VALUES) for each in found] == [True, True]


@pytest.mark.parametrize("role", ["output", "grad_input"])
@pytest.mark.parametrize("wrong", [0.0, 0.2], ids=["right", "the free run is wrong"])
def test_terms_of_a_sum_are_given_as_unlike_shares_so_that_a_missing_sum_shows(
    tmp_path: Path, wrong: float, role: str
) -> None:
    terms = [OTHER, VALUES - (1 - wrong) * OTHER]
    found = given(tmp_path, [item(values=VALUES, role=role)], held("fc", terms, role=role))
    for rank, share in enumerate((2, -1)):
        assert np.array_equal(found[rank]["fc", role], share * VALUES)


def test_values_far_from_goldens_tell_no_layout(tmp_path: Path) -> None:
    """The terms' sum is just near enough to golden, and just too far from it."""
    error = OTHER[::-1] * np.linalg.norm(VALUES) / np.linalg.norm(OTHER)
    for off, share in ((0.97, 2.0), (1.03, 1.0)):
        terms = [2 * OTHER, VALUES - 2 * OTHER + off * 0.5 * error]
        (tmp_path / str(off)).mkdir()
        found = given(tmp_path / str(off), [item(values=VALUES)], held("fc", terms))
        assert np.array_equal(found[0]["fc", "output"], share * VALUES)


@pytest.mark.parametrize("off", [False, True], ids=["near golden", "another size after a fault"])
def test_a_gradient_of_each_ranks_own_mean_is_given_as_such(tmp_path: Path, off: bool) -> None:
    one: list[Item] = []
    many: list[Item] = []
    batch = np.arange(18).reshape(6, 3)
    weight = np.random.default_rng(2).standard_normal((4, 4)).astype("f4")
    term: dict[str, Any] = {"role": "call_grad", "path": "weight"}
    whole: dict[str, Any] = {"role": "param_grad", "path": "weight", "parent": None}
    for rows, rank in ((range(6), None), (range(3), 0), (range(3, 6), 1)):
        own, times = list(rows), 1 if rank is None else 2
        # a fault may have made gradients that are nearest to golden's by chance
        values = VALUES + 0.4 * OTHER if off and rank is not None else times * VALUES
        made = [
            item("", batch[own], role="input", path="0", parent=None, rank=rank or 0),
            item("fc", values[own], role="grad_output", rank=rank or 0),
            # golden's is the mean of the ranks', whose calls' are their own
            item(
                "fc", weight if rank is None else (rank - 2) * OTHER[:4, :4], rank=rank or 0, **term
            ),
            item("fc", weight if rank is None else -1.5 * OTHER[:4, :4], rank=rank or 0, **whole),
        ]
        (one if rank is None else many).extend(made)
    found = given(tmp_path, one, many, "dp")
    assert np.array_equal(found[1]["fc", "grad_output"], 2 * VALUES[3:])


def test_fused_layers_are_cut_as_their_weights_are_where_values_tell_nothing(
    tmp_path: Path,
) -> None:
    def cut(values: np.ndarray, axis: int) -> list[np.ndarray]:
        halves = [np.split(each, 2, axis) for each in np.split(values, 2, axis)]
        return [np.concatenate([half[rank] for half in halves], axis) for rank in range(2)]

    weight = np.random.default_rng(2).standard_normal((8, 4)).astype("f4")
    before: dict[str, Any] = {"role": "param_before", "path": "weight", "parent": None}
    golden = [item(values=VALUES), item("fc", weight, **before)]
    layout = [*held("fc", cut(OTHER, 1)), *held("fc", cut(weight, 0), **before)]
    found = given(tmp_path, golden, layout)
    for rank in range(2):
        assert np.array_equal(found[rank]["fc", "output"], cut(VALUES, 1)[rank])


def test_a_gradient_that_nothing_sums_is_not_given(tmp_path: Path) -> None:
    """The update of the norm was given terms, too: its own gradient was left as them."""
    weight = np.random.default_rng(2).standard_normal((8,)).astype("f4")
    roles = {"fc": "grad_input", "norm": "grad_output"}
    golden = [item(name, VALUES, role=role) for name, role in roles.items()]
    golden.append(item("norm", weight, role="param_grad", path="weight", parent=None))
    layout = [
        each
        for name, role in roles.items()
        for each in held(name, [OTHER, VALUES - OTHER], role=role)
    ]
    terms = [0.3 * weight[::-1], weight - 0.3 * weight[::-1]]
    layout += held("norm", terms, role="param_grad", path="weight", parent=None)
    found = given(tmp_path, golden, layout)
    assert [*found[0]] == [("norm", "param_grad")]
    assert np.array_equal(found[0]["norm", "param_grad"], weight)


def test_a_padded_vocabulary_has_no_gradient(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"type": "Embedding", "role": "param_grad", "path": "weight"}

    def shard(rank: int) -> Shard:
        return Shard((6, 8), (3 * rank, 0), mesh=("tp",))

    padded = np.concatenate([VALUES[:5], np.zeros((1, 8), "f4")])
    layout = held("embed", np.split(OTHER, 2), shard, **fields)
    found = given(tmp_path, [item("embed", VALUES[:5], **fields)], layout)
    assert np.array_equal(found[1]["embed", "param_grad"], padded[3:])


def test_a_rank_may_hold_nothing_of_a_flat_part(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"role": "param_grad", "path": "weight"}

    def shard(rank: int) -> Shard:
        return Shard((6, 8), (48 * rank,), mesh=("dp",), flat=True)

    layout = held("fc", [OTHER.reshape(-1), np.zeros(0, "f4")], shard, **fields)
    found = given(tmp_path, [item(values=VALUES, **fields)], layout, "dp")
    assert [each["fc", "param_grad"].shape for each in found] == [(48,), (0,)]


@pytest.mark.parametrize(
    ("ranks", "changes", "said"),
    [
        (2, {"complete": False}, "is incomplete"),
        (4, {}, r"was captured by 2 rank\(s\), but this capture has 4"),
    ],
)
def test_a_bundle_of_other_ranks_tells_nothing(
    tmp_path: Path, ranks: int, changes: dict[str, Any], said: str
) -> None:
    write(tmp_path / "one", [item(values=VALUES)])
    write(tmp_path / "free", held("fc", [VALUES, VALUES]), ranks=2, **changes)
    with ac.open_bundle(tmp_path / "one") as ours, ac.open_bundle(tmp_path / "free") as theirs:  # noqa: SIM117
        with pytest.raises(UsageError, match=said):
            check_layout(ours, theirs, ranks)


@pytest.mark.parametrize("cut", [0, 1], ids=["rows", "tokens"])
def test_a_bundle_of_another_batch_tells_nothing(tmp_path: Path, cut: int) -> None:
    def given(name: str, tokens: np.ndarray, wrong: int) -> Path:
        parts = np.split(tokens, 2, cut) if name == "free" else [tokens]
        parts[-1] = parts[-1] + wrong  # of one rank: the fault, perhaps
        fields = {"role": "input", "path": "0", "parent": None}
        return write(tmp_path / name, held("", parts, **fields), ranks=len(parts))

    tokens = np.random.default_rng(0).integers(0, 1000, (4, 12))
    for other, wrong in ((tokens, 0), (tokens, 1000), (tokens + 5000, 0)):
        given("one", tokens, 0)
        given("free", other, wrong)
        with ac.open_bundle(tmp_path / "one") as ours, ac.open_bundle(tmp_path / "free") as theirs:
            if other is tokens:
                check_layout(ours, theirs, 2)
            else:
                with pytest.raises(UsageError, match="was given other inputs than golden"):
                    check_layout(ours, theirs, 2)


def test_a_call_with_other_rows_than_goldens_is_given_goldens(tmp_path: Path) -> None:
    def shard(rank: int) -> Shard:
        return Shard((6, 8), (0, 4 * rank), mesh=("tp",))

    golden = [item("fc", VALUES), item("fc", OTHER[:5], call=1)]
    parts = held("fc", np.split(VALUES, 2, 1), shard)
    parts += held("fc", np.split(OTHER[:4], 2, 1), call=1)  # a token less
    write(tmp_path / "one", golden)
    free = write(tmp_path / "free", parts, ranks=2)
    for rank in range(2):
        name = f"rank{rank}/manifest.json" if rank else "manifest.json"
        edit_manifest(free, functools.partial(_put, {"tp": [rank, 2]}), name)
    with ac.open_bundle(tmp_path / "one") as ours, ac.open_bundle(free) as theirs:
        records = GoldenParts(ours, theirs, 1).records(0)
        assert records is not None
        (found,) = [ours.values(each) for each in records if each.call == 1]
    assert np.array_equal(found, OTHER[:5, 4:])
