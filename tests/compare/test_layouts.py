"""Tensors of several ranks are put together and compared with those of one device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import accucompare as ac
from accucompare.bundle.format import Box, GlobalRecord, Record, Shard, StepSeries
from accucompare.compare.layouts import sizes_of_fed_sums
from accucompare.compare.layouts.mesh import Mesh
from accucompare.compare.pairing import Pair
from accucompare.compare.preflight_facts import SeveralRuns
from accucompare.compare.remarks import (
    CalledInParts,
    Interleaved,
    PartsMissing,
    RanksDiffer,
    ReducedHere,
    SumUnknown,
    Swapped,
    TimesRanks,
)
from accucompare.compare.rows import Reason, Row, Status
from accucompare.errors import UsageError
from accucompare.numbers import DTYPES, summarize
from accucompare.report.words import preflight_words, training_words
from accucompare.selection import Mode
from tests.compare.builder import Item, edit_manifest, item, write

VALUES = np.random.default_rng(0).standard_normal((6, 8)).astype("f4")
OTHER = np.random.default_rng(1).standard_normal((6, 8)).astype("f4")


def held(
    name: str, values: Sequence[np.ndarray], shards: Sequence[Shard | None] = (), **fields: Any
) -> list[Item]:
    """One record on each rank."""
    found = []
    for rank, each in enumerate(values):
        made = item(name, each, rank=rank, **fields)
        shard = shards[rank] if shards else None
        found.append(made._replace(record=replace(made.record, shard=shard)))
    return found


def compared(
    tmp_path: Path,
    golden: Sequence[Item],
    candidate: Sequence[Item],
    mesh: dict[str, int] | None = None,
    mode: Mode = Mode.TENSORS,
) -> ac.Comparison:
    """The comparison of one device's records with those of two or four ranks."""
    ranks = 1 + max(each.record.rank for each in candidate)
    out = write(tmp_path / "ranks", candidate, ranks=ranks, mode=mode)
    for rank in range(ranks):
        left, place = rank, {}
        for dimension, size in reversed((mesh or {}).items()):
            left, index = divmod(left, size)
            place = {dimension: [index, size], **place}
        name = f"rank{rank}/manifest.json" if rank else "manifest.json"
        edit_manifest(out, lambda manifest, place=place: manifest.update(mesh=place), name)
    return ac.diff(write(tmp_path / "one", golden, mode=mode), out)


def compared_fed(
    tmp_path: Path,
    golden: Sequence[Item],
    candidate: Sequence[Item],
    mesh: dict[str, int] | None = None,
) -> ac.Comparison:
    """As ``compared``, of two ranks whose calls were given golden's values."""
    free = compared(tmp_path, golden, candidate, mesh)
    identity = ac.open_bundle(free.golden.path).identity()
    feed = {"golden": "one", "identity": identity, "not_fed": []}
    for file in ("manifest.json", "rank1/manifest.json"):
        edit_manifest(free.candidate.path, lambda made: made["capture"].update(feed=feed), file)
    return ac.diff(free.golden.path, free.candidate.path)


def row(comparison: ac.Comparison, name: str = "fc") -> Row:
    (found,) = [each for each in comparison.rows if each.module == name]
    return found


@pytest.mark.parametrize("axis", [0, 1])
def test_unlike_parts_along_one_dimension_make_up_the_whole(tmp_path: Path, axis: int) -> None:
    parts = np.split(VALUES, [2], axis)
    found = row(compared(tmp_path, [item(values=VALUES)], held("fc", parts)))
    assert found.status.value == "pass"
    assert found.metrics is not None
    assert found.metrics.max_abs == 0
    assert found.candidate is not None
    assert found.candidate.shape == VALUES.shape


def test_a_recorded_layout_places_the_parts(tmp_path: Path) -> None:
    shards = [Shard((6, 8), (3, 0), mesh=("tp",)), Shard((6, 8), (0, 0), mesh=("tp",))]
    parts = held("fc", [VALUES[3:], VALUES[:3]], shards)
    found = row(compared(tmp_path, [item(values=VALUES)], parts, {"tp": 2}))
    assert found.status.value == "pass"


def test_parts_of_a_recorded_layout_lie_within_that_of_another_dimension(tmp_path: Path) -> None:
    """Each ``dp`` has three rows, which its ranks record as one and two."""
    shards = [Shard((3, 8), (at, 0), mesh=("tp",)) for at in (0, 1)] * 2
    parts = held("fc", np.split(VALUES, [1, 3, 4]), shards)
    found = row(compared(tmp_path, [item(values=VALUES)], parts, {"dp": 2, "tp": 2}))
    assert found.status.value == "pass"


def test_a_recorded_sum_is_made(tmp_path: Path) -> None:
    shard = Shard((6, 8), (0, 0), "sum", ("tp",), ("tp",))
    parts = held("fc", [VALUES - OTHER, OTHER], [shard, shard])
    found = row(compared(tmp_path, [item(values=VALUES)], parts, {"tp": 2}))
    assert found.status.value == "pass"


def test_a_flat_part_is_a_run_of_the_flattened_whole(tmp_path: Path) -> None:
    flat = VALUES.reshape(-1)
    shards = [Shard((6, 8), (at,), mesh=("dp",), flat=True) for at in (0, 11)]
    parts = held("fc", [flat[:11], flat[11:]], shards, role="param_grad", path="weight")
    golden = [item(values=VALUES, role="param_grad", path="weight")]
    assert row(compared(tmp_path, golden, parts, {"dp": 2})).status.value == "pass"


def test_of_two_dimensions_each_shards_its_own_axis(tmp_path: Path) -> None:
    parts = [part for half in np.split(VALUES, 2, 0) for part in np.split(half, 2, 1)]
    found = row(compared(tmp_path, [item(values=VALUES)], held("fc", parts), {"dp": 2, "tp": 2}))
    assert found.status.value == "pass"


def test_a_hole_in_a_recorded_layout_is_incomplete_and_no_pass(tmp_path: Path) -> None:
    shards = [Shard((6, 8), (0, 0), mesh=("tp",)), Shard((6, 8), (4, 0), mesh=("tp",))]
    parts = held("fc", [VALUES[:3], VALUES[4:]], shards)
    comparison = compared(tmp_path, [item(values=VALUES)], parts, {"tp": 2})
    assert row(comparison).reason is Reason.INCOMPLETE
    assert comparison.exit_code == 2


@pytest.mark.parametrize("layout", ["parts", "replicas"])
def test_a_rank_without_the_last_update_that_others_made_is_named(
    tmp_path: Path, layout: str
) -> None:
    shards: list[Shard | None] = []
    values = [VALUES, VALUES]
    if layout == "parts":
        values = [VALUES[:3], VALUES[3:]]
        shards = [Shard((6, 8), (start, 0), mesh=("dp",)) for start in (0, 3)]
    fields = {"role": "param_update", "path": "weight"}
    parts = held("out", [VALUES, VALUES], step=1)
    parts += [each for step in (0, 1) for each in held("fc", values, shards, step=step, **fields)]
    golden = [item("out", VALUES, step=1)]
    golden += [item("fc", VALUES, step=step, **fields) for step in (0, 1)]
    assert compared(tmp_path / "whole", golden, parts, {"dp": 2}).passed
    comparison = compared(tmp_path / "lacking", golden, parts[:-1], {"dp": 2})
    assert comparison.exit_code == 1
    (found,) = [each for each in comparison.rows if each.status is Status.FAIL]
    assert (found.reason, found.golden.step) == (Reason.RANKS_DISAGREE, 1)
    assert found.verdict.remarks == (PartsMissing((0,), (1,)),)


def test_a_rank_that_has_frozen_what_others_train_is_named(tmp_path: Path) -> None:
    fields = {"path": "weight"}
    parts = held("fc", [VALUES, VALUES], role="param_before", **fields)
    golden = [item(values=VALUES, role=role, **fields) for role in ("param_before", "param_grad")]
    grads = held("fc", [VALUES, VALUES], role="param_grad", **fields)
    assert compared(tmp_path / "both", golden, parts + grads, {"tp": 2}).passed
    comparison = compared(tmp_path / "one", golden, parts + grads[:1], {"tp": 2})
    (culprit,) = comparison.culprits
    assert culprit.row.verdict.remarks == (PartsMissing((0,), (1,)),)
    assert comparison.exit_code == 1


def test_the_rank_whose_step_was_told_otherwise_is_named(tmp_path: Path) -> None:
    series = [StepSeries(0, losses=(1.0,), updates=1, lr={"AdamW.0": 0.1})]
    parts = [item(values=VALUES, rank=rank) for rank in range(3)]
    out = write(tmp_path / "ranks", parts, ranks=3, series=series)

    def without_update(manifest: dict[str, Any]) -> None:
        manifest["series"][0] |= {"updates": 0, "lr": {}}

    edit_manifest(out, without_update, "rank1/manifest.json")
    golden = write(tmp_path / "one", [item(values=VALUES)], series=series)
    comparison = ac.diff(golden, out)
    assert comparison.exit_code == 1
    assert comparison.training is not None
    assert [each.ranks for each in comparison.training.settings] == [(1,), (1,)]
    assert "on rank 1" in training_words.settings(comparison.training)[0]


@pytest.mark.parametrize(
    "terms", [(1.0, 2.0), (2.0, 4.0), (3.0, 3.0)], ids=["sum", "mean", "of one batch"]
)
def test_the_ranks_losses_are_averaged_or_added_as_terms(
    tmp_path: Path, terms: tuple[float, float]
) -> None:
    series = [StepSeries(0, losses=(3.0,), updates=1)]
    parts = [item(values=VALUES, rank=rank) for rank in range(2)]
    out = write(tmp_path / "ranks", parts, ranks=2, series=series)
    for name, loss in zip(("manifest.json", "rank1/manifest.json"), terms, strict=True):
        edit_manifest(out, lambda each, own=loss: each["series"][0].update(losses=[own]), name)
    comparison = ac.diff(write(tmp_path / "one", [item(values=VALUES)], series=series), out)
    assert comparison.training is not None
    assert comparison.training.parting is None


@pytest.mark.parametrize(
    ("golden", "ranks"),
    [
        ((3.0, 5.0), ((1.0, 4.0), (2.0, 1.0))),
        ((1.0, 2.0, 3.0, 4.0), ((2.0, 4.0), (6.0, 8.0))),
        ((1.0, 2.0, 3.0, 4.0), ((1.0, 3.0), (2.0, 4.0))),
    ],
    ids=["terms", "each on one rank, a rank's in a row", "in turn"],
)
def test_losses_of_microbatches_are_added_or_taken_each(
    tmp_path: Path, golden: tuple[float, ...], ranks: tuple[tuple[float, ...], ...]
) -> None:
    series = [StepSeries(0, losses=golden, updates=1)]
    parts = [item(values=VALUES, rank=rank) for rank in range(2)]
    out = write(tmp_path / "ranks", parts, ranks=2, series=series)
    for name, losses in zip(("manifest.json", "rank1/manifest.json"), ranks, strict=True):
        edit_manifest(out, lambda each, own=losses: each["series"][0].update(losses=own), name)
    comparison = ac.diff(write(tmp_path / "one", [item(values=VALUES)], series=series), out)
    assert comparison.training is not None
    assert (comparison.training.parting, comparison.training.settings) == (None, ())


def test_runs_of_parts_in_bfloat16_are_judged_by_its_limits(tmp_path: Path) -> None:
    parameter = {"dtype": "bfloat16", "shape": [3, 8], "digests": {}}
    parts = held("fc", np.split(VALUES, 2))
    series = [StepSeries(0, losses=(3.01,), updates=1)]
    out = write(tmp_path / "ranks", parts, ranks=2, series=series)
    for rank, name in enumerate(("manifest.json", "rank1/manifest.json")):
        shard = msgspec.to_builtins(Shard((6, 8), (3 * rank, 0), mesh=("dp",)))
        held_there = {"fc.weight": {**parameter, "shard": shard}}
        edit_manifest(out, lambda each, own=held_there: each["model"].update(parameters=own), name)
    series = [StepSeries(0, losses=(3.0,), updates=1)]
    comparison = ac.diff(write(tmp_path / "one", [item(values=VALUES)], series=series), out)
    assert comparison.training is not None
    assert (comparison.training.dtype, comparison.training.parting) == ("bfloat16", None)


def test_a_dimension_that_lies_along_another_is_none_of_the_mesh(tmp_path: Path) -> None:
    # as Megatron's expert parallel, among the ranks that share out the rows
    parts = held("fc", [VALUES[:2], VALUES[2:]])
    out = write(tmp_path / "ranks", parts, ranks=2)
    for rank, name in enumerate(("manifest.json", "rank1/manifest.json")):
        place = {"tp": [0, 1], "dp": [rank, 2], "ep": [rank, 2]}
        edit_manifest(out, lambda each, own=place: each.update(mesh=own), name)
    with ac.open_bundle(out) as bundle:
        mesh = Mesh.of(bundle.manifests, 2)
    assert dict(mesh.sizes) == {"tp": 1, "dp": 2}


@pytest.mark.parametrize(("rest", "code"), [(0.0, 0), (0.1, 1)], ids=["padding", "words"])
def test_golden_may_have_more_padding_than_the_ranks(
    tmp_path: Path, rest: float, code: int
) -> None:
    fields = {"role": "param_grad", "path": "weight", "type": "Embedding", "parent": None}
    shards = [Shard((6, 8), (at, 0), mesh=("tp",)) for at in (0, 3)]
    whole = np.concatenate([VALUES, np.full((2, 8), rest, "f4")])
    candidate = held("embed", np.split(VALUES, 2), shards, **fields)
    found = compared(tmp_path, [item("embed", whole, **fields)], candidate, {"tp": 2})
    assert found.exit_code == code


@pytest.mark.parametrize(("factor", "code"), [(0.25, 0), (0.125, 1)], ids=["golden's", "another"])
def test_gradients_that_the_ranks_loop_clips_are_judged_as_before(
    tmp_path: Path, factor: float, code: int
) -> None:
    norm = float(np.linalg.norm(VALUES))
    golden = StepSeries(0, updates=1, grad_norm=norm, clipped_norm=norm / 4)
    own = StepSeries(0, updates=1, grad_norm=norm * factor)
    fields: dict[str, Any] = {"role": "param_grad", "path": "weight"}
    shard = Shard((6, 8), (0, 0), mesh=("tp",))
    held_there = held("fc", np.split(VALUES * np.float32(factor), 2), **fields)
    parts = [
        each._replace(record=replace(each.record, shard=replace(shard, start=(3 * rank, 0))))
        for rank, each in enumerate(held_there)
    ]
    out = write(tmp_path / "ranks", parts, ranks=2, series=[own])
    one = write(tmp_path / "one", [item(values=VALUES, **fields)], series=[golden])
    comparison = ac.diff(one, out)
    assert comparison.exit_code == code


@pytest.mark.parametrize(("factor", "code"), [(0.25, 0), (0.125, 1)], ids=["the ranks'", "another"])
def test_gradients_that_goldens_loop_clips_are_judged_as_clipped(
    tmp_path: Path, factor: float, code: int
) -> None:
    norm = float(np.linalg.norm(VALUES))
    golden = StepSeries(0, updates=1, grad_norm=norm / 4)
    own = StepSeries(0, updates=1, grad_norm=norm, clipped_norm=norm * factor)
    fields: dict[str, Any] = {"role": "param_grad", "path": "weight"}
    shards = [Shard((6, 8), (3 * rank, 0), mesh=("tp",)) for rank in range(2)]
    out = write(tmp_path / "ranks", held("fc", np.split(VALUES, 2), shards, **fields), ranks=2)
    for rank in range(2):
        name = f"rank{rank}/manifest.json" if rank else "manifest.json"
        series = msgspec.to_builtins([own])
        edit_manifest(out, lambda each: each.update(series=series, mesh={"tp": [rank, 2]}), name)  # noqa: B023
    one = write(tmp_path / "one", [item(values=VALUES / 4, **fields)], series=[golden])
    assert ac.diff(one, out).exit_code == code


def test_a_baseline_of_several_ranks_is_refused_with_the_cure(tmp_path: Path) -> None:
    out, baseline = (
        write(tmp_path / name, held("fc", [VALUES, VALUES]), ranks=2) for name in ("tp2", "base")
    )
    golden = write(tmp_path / "one", [item(values=VALUES)])
    with pytest.raises(UsageError, match=r"a baseline of 2 ranks cannot judge .*--as-layout"):
        ac.diff(golden, out, baseline=baseline)


def test_digests_of_parts_are_no_pass(tmp_path: Path) -> None:
    parts = held("fc", np.split(VALUES, 2))
    out = write(tmp_path / "ranks", parts, ranks=2, mode=Mode.DIGEST)
    comparison = ac.diff(write(tmp_path / "one", [item(values=VALUES)]), out)
    assert row(comparison).reason is Reason.NOT_COMPARABLE
    assert comparison.exit_code == 2


LARGE, TERM = np.random.default_rng(2).standard_normal((2, 60, 200)).astype("f4")


@pytest.mark.parametrize("right", [True, False])
def test_sketches_of_recorded_parts_add_up(tmp_path: Path, right: bool) -> None:
    parts = [np.ascontiguousarray(each) for each in np.split(LARGE, [70], 1)]
    if not right:  # which no statistics tell
        parts[1] = np.ascontiguousarray(parts[1][::-1])
    shards = [Shard((60, 200), (0, at), mesh=("tp",)) for at in (0, 70)]
    candidate = held("fc", parts, shards)
    found = row(compared(tmp_path, [item(values=LARGE)], candidate, {"tp": 2}, Mode.SKETCH))
    assert found.metrics is not None
    assert found.metrics.deviation > 0
    assert (found.status is Status.PASS) is right


@pytest.mark.parametrize(
    ("mode", "right", "reason"),
    [
        (Mode.SKETCH, True, Reason.OK),
        (Mode.SKETCH, False, Reason.INTRODUCED),
        (Mode.STATS, True, Reason.NOT_COMPARABLE),
    ],
)
def test_sketches_of_terms_add_up(tmp_path: Path, mode: Mode, right: bool, reason: Reason) -> None:
    fields = {"role": "call_grad", "path": "weight"}
    parts = held("fc", [2 * LARGE - TERM, TERM if right else 1.1 * TERM], **fields)
    golden = [item(values=LARGE, **fields)]
    found = row(compared(tmp_path, golden, parts, {"dp": 2}, mode))
    assert found.reason is reason
    if mode is Mode.STATS:
        assert SumUnknown((0, 1)) in found.verdict.remarks


def test_ranks_of_two_runs_are_told(tmp_path: Path) -> None:
    out = write(tmp_path / "ranks", held("fc", [VALUES] * 3), ranks=3)
    for rank, run in enumerate(("1234", "5678", "1234")):
        name = f"rank{rank}/manifest.json" if rank else "manifest.json"
        edit_manifest(out, lambda manifest, run=run: manifest["capture"].update(run=run), name)
    comparison = ac.diff(write(tmp_path / "one", [item(values=VALUES)]), out)
    (found,) = [each for each in comparison.preflight if isinstance(each.fact, SeveralRuns)]
    assert found.serious
    assert found.fact.ranks == ((0, 2), (1,))


def test_what_a_lost_rank_would_have_held_is_no_failure(tmp_path: Path) -> None:
    golden = [item("fc", VALUES), item("expert", VALUES)]
    parts = held("fc", [VALUES, VALUES])
    parts += held("expert", [VALUES, VALUES])[1:]  # of rank 1 alone
    compared(tmp_path, golden, parts, {"ep": 2})
    for file in (tmp_path / "ranks" / "rank1").iterdir():
        file.unlink()
    found = ac.diff(tmp_path / "one", tmp_path / "ranks")
    assert row(found, "expert").verdict.remarks == (PartsMissing((0,)),)
    assert found.exit_code == 2


def test_parts_that_fill_golden_in_no_way_are_not_comparable(tmp_path: Path) -> None:
    parts = held("fc", [VALUES[:2], VALUES[2:5]])
    comparison = compared(tmp_path, [item(values=VALUES)], parts)
    assert row(comparison).reason is Reason.NOT_COMPARABLE
    assert comparison.exit_code == 2


def test_a_wrong_replica_is_named(tmp_path: Path) -> None:
    parts = held("fc", [VALUES, VALUES, VALUES * 1.1, VALUES])
    found = row(compared(tmp_path, [item(values=VALUES)], parts))
    assert found.reason is Reason.RANKS_DISAGREE
    assert RanksDiffer((0, 1, 2, 3), (2,)) in found.verdict.remarks


def test_of_parts_all_ranks_that_are_wrong_are_named(tmp_path: Path) -> None:
    parts = np.split(VALUES, [2, 4])
    wrong = held("fc", [2 * parts[0], parts[1], 1.1 * parts[2]])
    (found,) = compared(tmp_path / "two", [item(values=VALUES)], wrong, {"tp": 3}).culprits
    assert found.wrong == (0, 2)
    # a sum over the ranks is wrong everywhere if one's weight is
    fields = {"role": "param_before", "path": "weight"}
    golden = [item(values=VALUES), item(values=VALUES, **fields)]
    both = held("fc", [2 * VALUES] * 2) + held("fc", [VALUES[:3], -VALUES[3:]], **fields)
    for ways in (compared, compared_fed):
        found = ways(tmp_path / ways.__name__, golden, both, {"tp": 2}).culprits[0]
        assert (found.row.record.role.value, found.wrong) == ("output", (1,))
    # of two fused layers, each rank has a part of both
    fused = [VALUES[[0, 1, 3, 4]], 2 * VALUES[[2, 5]]]
    one = [item(values=VALUES)]
    (found,) = compared(tmp_path / "fused", one, held("fc", fused), {"tp": 2}).culprits
    assert found.wrong == (1,)
    fused[1] *= -1
    (found,) = compared(tmp_path / "sign", one, held("fc", fused), {"tp": 2}).culprits
    assert found.wrong == (1,)
    # but what golden's value is multiplied by tells nothing of a layout
    turned = held("fc", np.split(-VALUES, 2))
    (found,) = compared(tmp_path / "turned", one, turned, {"tp": 2}).culprits
    assert found.row.metrics is not None
    assert found.row.metrics.rel_l2 == 2.0
    # a run of a flattened whole
    flat = VALUES.reshape(-1)
    shards = [Shard((6, 8), (at,), mesh=("dp",), flat=True) for at in (0, 11)]
    fields = {"role": "param_grad", "path": "weight"}
    runs = held("fc", [flat[:11], 2 * flat[11:]], shards, **fields)
    made = compared(tmp_path / "flat", [item(values=VALUES, **fields)], runs, {"dp": 2})
    assert made.culprits[0].wrong == (1,)


def test_replicas_apart_by_rounding_pass_and_say_so(tmp_path: Path) -> None:
    parts = held("fc", [VALUES, VALUES * np.float32(1 + 1e-7)])
    found = row(compared(tmp_path, [item(values=VALUES)], parts))
    assert found.status.value == "pass"
    assert RanksDiffer((0, 1)) in found.verdict.remarks


@pytest.mark.parametrize(
    ("made_as", "passes"), [(None, True), ({"tp": 2}, False), ({"tp": 8}, True)]
)
def test_a_baseline_that_adds_up_as_the_ranks_do_allows_for_no_more_sums(
    tmp_path: Path, made_as: dict[str, int] | None, passes: bool
) -> None:
    made = np.random.default_rng(2)
    values, one, other = made.standard_normal((3, 64, 64)).astype("f4")
    parts = held("fc", [*np.split(values + 0.026 * one, 2, axis=1)], dtype="bfloat16")
    free = compared(tmp_path, [item(values=values)], parts, {"tp": 2})
    baseline = write(tmp_path / "base", [item(values=values + 0.01 * other, dtype="bfloat16")])
    layout = made_as and {"bundle": "ranks", "ranks": 2, "mesh": made_as}
    edit_manifest(baseline, lambda manifest: manifest["capture"].update(as_layout=layout))
    found = row(ac.diff(free.golden.path, free.candidate.path, baseline=baseline))
    assert (found.status.value == "pass") is passes


def test_terms_of_a_sum_that_was_not_made_are_unreduced(tmp_path: Path) -> None:
    found = row(compared(tmp_path, [item(values=VALUES)], held("fc", [VALUES - OTHER, OTHER])))
    assert found.reason is Reason.UNREDUCED
    assert ReducedHere("sum", (0, 1)) in found.verdict.remarks


def test_fed_a_missing_sum_comes_before_larger_errors_and_a_wrong_sum_after_them(
    tmp_path: Path,
) -> None:
    shard = Shard((6, 8), (0, 0), "sum", ("tp",), ("tp",))
    names = ("sum", "own", "unreduced")
    golden = [item(name, VALUES) for name in names]
    parts = held("sum", [VALUES - OTHER, 2 * OTHER], [shard, shard])
    parts += held("own", [1e3 * VALUES, 1e3 * VALUES])
    parts += held("unreduced", [VALUES - OTHER / 9, OTHER / 9])
    found = compared_fed(tmp_path, golden, parts, {"tp": 2}).culprits
    assert [culprit.name for culprit in found] == ["unreduced", "own", "sum"]


def test_fed_the_gradient_of_a_wrong_loss_comes_before_its_value(tmp_path: Path) -> None:
    fields = {"role": "grad_output", "parent": None}
    series = [StepSeries(0, losses=(1.0,))]
    one = write(tmp_path / "one", [item("", VALUES, **fields)], series=series)
    parts = held("", [VALUES, 1.001 * VALUES], **fields)
    ranks = write(tmp_path / "ranks", parts, ranks=2, series=[StepSeries(0, losses=(9.0,))])
    feed = {"golden": "one", "identity": ac.open_bundle(one).identity(), "not_fed": []}
    for file in ("manifest.json", "rank1/manifest.json"):
        edit_manifest(ranks, lambda made: made["capture"].update(feed=feed), file)
    first, second = ac.diff(one, ranks).culprits
    assert [each.row.record.role.value for each in (first, second)] == ["grad_output", "loss"]


@pytest.mark.parametrize(("name", "passes"), [("moe.experts", True), ("moe.seen", False)])
def test_counts_of_experts_tokens_are_terms_where_ranks_have_rows_of_their_own(
    tmp_path: Path, name: str, passes: bool
) -> None:
    counts = np.array([[2, 1], [1, 2]])
    ranks = with_batch([(0, 0, (0, 1, 2)), (1, 0, (3, 4, 5))])
    ranks += held(name, counts, role="input", path="1")
    one = [*ONE, item(name, counts.sum(0), role="input", path="1")]
    found = row(compared(tmp_path, one, ranks, {"dp": 2}), name)
    assert (found.status is Status.PASS) is passes


def test_terms_that_the_caller_adds_up_pass(tmp_path: Path) -> None:
    golden = [item(values=VALUES), item("", VALUES, parent=None)]
    parts = held("fc", [VALUES - OTHER, OTHER]) + held("", [VALUES, VALUES], parent=None)
    assert row(compared(tmp_path, golden, parts)).status.value == "pass"


@pytest.mark.parametrize(("after", "fed"), [(1.0, False), (1.0, True), (2.0, False)])
def test_what_one_rank_holds_whole_and_the_other_lost_is_a_term_where_a_sum_is_made(
    tmp_path: Path, after: float, fed: bool
) -> None:
    golden = [item(values=VALUES, role="input", path="0"), item(values=VALUES)]
    parts = held("fc", [VALUES, 0 * VALUES], role="input", path="0")
    parts += held("fc", [after * VALUES, after * VALUES])
    comparison = (compared_fed if fed else compared)(tmp_path, golden, parts)
    found = comparison.rows[0]
    if after == 1.0 and not fed:  # fed, a sum would be twice golden's
        assert found.status is Status.PASS
    else:
        assert found.verdict.remarks == (RanksDiffer((0, 1), (1,)),)


def test_a_gradient_of_a_call_may_be_a_term_of_the_mean(tmp_path: Path) -> None:
    fields = {"role": "call_grad", "path": "weight"}
    parts = held("fc", [2 * VALUES - OTHER, OTHER], **fields)
    found = row(compared(tmp_path, [item(values=VALUES, **fields)], parts))
    assert found.status.value == "pass"


def test_a_gradient_is_rounded_as_the_fed_shares_are_that_it_is_the_sum_of() -> None:
    """Those of eight ranks are 2 and -1, three times multiplied: 125 ** 0.5 times as large."""

    def pair(name: str, role: str, terms: int, scale: float = 1.0) -> Pair:
        made = [each.record for each in held(name, [VALUES] * 8, role=role, path="0")]
        golden = replace(made[0], statistics=summarize(scale * VALUES, DTYPES["float32"]))
        fields = {each: getattr(golden, each) for each in Record.__struct_fields__}
        replicas = () if terms > 1 else tuple((each,) for each in made[1:])
        box = Box((0, 0), tuple(made[:terms]), replicas=replicas)
        return Pair(golden, GlobalRecord(**{**fields, "boxes": (box,)}))

    pairs = [pair("head", "grad_input", 8), pair("norm", "grad_output", 1, 0.5)]
    assert sizes_of_fed_sums(pairs) == {1: pytest.approx(2 * 125**0.5)}
    pairs[0] = pair("head", "grad_input", 1)
    assert set(sizes_of_fed_sums(pairs).values()) == {1.0}


def test_a_gradient_for_the_update_may_not(tmp_path: Path) -> None:
    fields = {"role": "param_grad", "path": "weight"}
    parts = held("fc", [2 * VALUES - OTHER, OTHER], **fields)
    found = row(compared(tmp_path, [item(values=VALUES, **fields)], parts))
    assert found.reason is Reason.UNREDUCED


def test_swapped_parts_are_told(tmp_path: Path) -> None:
    parts = held("fc", [VALUES[:, 4:], VALUES[:, :4]])
    found = row(compared(tmp_path, [item(values=VALUES)], parts, {"tp": 2}))
    assert found.status.value == "fail"
    assert Swapped((1, 0)) in found.verdict.remarks


@pytest.mark.parametrize("first", [1, 2], ids=["one head each", "two heads and one"])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 1, 1)], ids=["gate and up", "query, key, value"])
def test_fused_layers_are_interleaved(tmp_path: Path, sizes: tuple[int, ...], first: int) -> None:
    heads = first + 1
    whole = np.random.default_rng(2).standard_normal((6, heads * sum(sizes))).astype("f4")
    layers = np.split(whole, heads * np.cumsum(sizes)[:-1], 1)
    cut = [np.split(layer, [first * size], 1) for layer, size in zip(layers, sizes, strict=True)]
    parts = [np.concatenate([layer[rank] for layer in cut], 1) for rank in (0, 1)]
    found = row(compared(tmp_path, [item(values=whole)], held("fc", parts), {"tp": 2}))
    assert found.status.value == "pass"
    assert Interleaved(len(sizes)) in found.verdict.remarks


def test_a_given_layout_places_the_parts_that_nothing_else_tells(tmp_path: Path) -> None:
    gate, up = np.split(VALUES, [6], 1)  # fused layers of odd widths
    parts = [
        np.concatenate(
            [
                each[:, :half] if rank == 0 else each[:, half:]
                for each, half in ((gate, 3), (up, 1))
            ],
            1,
        )
        for rank in (0, 1)
    ]
    compared(tmp_path, [item(values=VALUES)], held("fc", parts), {"tp": 2})
    file = tmp_path / "layout.toml"
    file.write_text('[[layout]]\nlayer = "f*"\ndims = "rows columns[tp]"\nfused = [3, 1]\n')
    found = row(ac.diff(tmp_path / "one", tmp_path / "ranks", layout=file))
    assert found.status.value == "pass"


def test_a_given_layout_of_nothing_is_told(tmp_path: Path) -> None:
    compared(tmp_path, [item(values=VALUES)], held("fc", np.split(VALUES, 2, 1)), {"tp": 2})
    file = tmp_path / "layout.toml"
    rules = ("f*", "qkv.*")
    file.write_text("".join(f'[[layout]]\nlayer = "{each}"\ndims = "a b[tp]"\n' for each in rules))
    found = ac.diff(tmp_path / "one", tmp_path / "ranks", layout=file).preflight
    said = [preflight_words.message(each) for each in found]
    (about,) = [each for each in said if each.startswith("--layout")]
    assert about.startswith("--layout: the rule for qkv.* applies to none")


def test_a_given_layout_that_lies_does_not_pass(tmp_path: Path) -> None:
    parts = held("fc", np.split(VALUES, 2, 1))
    compared(tmp_path, [item(values=VALUES)], parts, {"tp": 2})
    file = tmp_path / "layout.toml"
    file.write_text('[[layout]]\ndims = "rows[tp] columns"\n')
    comparison = ac.diff(tmp_path / "one", tmp_path / "ranks", layout=file)
    assert row(comparison).reason is Reason.NOT_COMPARABLE
    assert comparison.exit_code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[layout]]\ndims = "a b[pp]"', "no dimension 'pp'; it has tp"),
        ('[[layout]]\ndim = "a"', "unknown field"),
        ("layout = 3", "no file of"),
    ],
)
def test_a_file_of_layouts_that_makes_no_sense_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    compared(tmp_path, [item(values=VALUES)], held("fc", np.split(VALUES, 2, 1)), {"tp": 2})
    file = tmp_path / "layout.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        ac.diff(tmp_path / "one", tmp_path / "ranks", layout=file)


BATCH = np.arange(18).reshape(6, 3)


def with_batch(cut: Sequence[tuple[int, int, Sequence[int]]], **fields: Any) -> list[Item]:
    """The model's input and a layer's output, on ranks whose calls have these rows."""
    found = []
    for rank, call, rows in cut:
        own = list(rows)
        found += [
            item("", BATCH[own], role="input", path="0", parent=None, rank=rank, call=call),
            item("fc", VALUES[own], parent=("", call), rank=rank, call=call, **fields),
        ]
    return found


ONE = with_batch([(0, 0, range(6))])


@pytest.mark.parametrize(
    "cut",
    [
        [(0, 0, (0, 2, 4)), (1, 0, (1, 3, 5))],
        [(0, 0, (3, 4)), (1, 0, (0, 1, 2, 5))],
        [(0, 0, (0, 1)), (0, 1, (2,)), (1, 0, (4, 5)), (1, 1, (3,))],
    ],
    ids=["a sampler's stride", "any rows", "micro-batches"],
)
def test_rows_are_found_by_their_digests(
    tmp_path: Path, cut: list[tuple[int, int, tuple[int, ...]]]
) -> None:
    comparison = compared(tmp_path, ONE, with_batch(cut), {"dp": 2})
    assert [each.status.value for each in comparison.rows] == ["pass", "pass"]


def test_an_experts_rows_are_not_cut_as_the_batch_is(tmp_path: Path) -> None:
    rows = np.random.default_rng(2).standard_normal((12, 8)).astype("f4")  # of 6, some twice
    ranks = with_batch([(0, 0, (0, 1, 2)), (1, 0, (3, 4, 5))])
    for rank, own in enumerate((rows[:9], rows[9:])):
        ranks.append(item("experts", own, parent=("", 0), rank=rank))
    one = [*ONE, item("experts", rows, parent=("", 0))]
    found = row(compared(tmp_path, one, ranks, {"dp": 2}), "experts")
    assert found.status is Status.PASS


def test_a_batch_given_twice_is_no_pass(tmp_path: Path) -> None:
    cut = [(0, 0, (0, 1, 2)), (1, 0, (0, 1, 2))]
    comparison = compared(tmp_path, ONE, with_batch(cut), {"dp": 2})
    assert comparison.exit_code != 0


@pytest.mark.parametrize(
    ("mode", "calls"),
    [(Mode.TENSORS, 1), (Mode.TENSORS, 2), (Mode.STATS, 1)],
    ids=["one call", "a call for each rank", "one call, statistics"],
)
def test_a_gradient_of_each_ranks_own_mean_loss_is_so_many_times_goldens(
    tmp_path: Path, mode: Mode, calls: int
) -> None:
    def side(cut: list[tuple[int, int, range]], times: int) -> list[Item]:
        items = with_batch(cut)
        for rank, call, rows in cut:
            grad = times * VALUES[list(rows)]
            items.append(item("fc", grad, role="grad_output", rank=rank, call=call))
        return items

    halves = range(3), range(3, 6)
    one = side([(0, 0, range(6))] if calls == 1 else [(0, 0, halves[0]), (0, 1, halves[1])], 1)
    two = side([(0, 0, halves[0]), (1, 0, halves[1])], 2)
    comparison = compared(tmp_path, one, two, {"dp": 2}, mode)
    found = [each for each in comparison.rows if each.record.role.value == "grad_output"]
    assert [each.status.value for each in found] == ["pass"] * calls
    assert all(TimesRanks(2) in each.verdict.remarks for each in found)


@pytest.mark.parametrize("spread", [True, False], ids=["parts", "one device"])
def test_golden_may_have_parts_of_sequences(tmp_path: Path, spread: bool) -> None:
    def side(cut: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Item]:
        items = with_sequence(cut)
        for rank, (_, part) in enumerate(cut):
            loss = len(cut) * HIDDEN[:, list(part)]  # of the rank's own mean
            items.append(item("fc", loss, role="grad_output", rank=rank))
        return items

    zigzag = side([(range(3), (0, 1, 6, 7)), (range(3), (2, 3, 4, 5))])
    chunks = [(range(3), range(4)), (range(3), range(4, 8))]
    golden = write(tmp_path / "golden", zigzag, ranks=2)
    other = side(chunks if spread else [(range(3), range(8))])
    candidate = write(tmp_path / "candidate", other, ranks=1 + spread)
    edit_manifest(candidate, lambda manifest: manifest.update(inputs={"0": {}}))  # not golden's
    comparison = ac.diff(golden, candidate)
    assert [each.status.value for each in comparison.rows] == ["pass"] * 3


def test_a_rank_that_recorded_fewer_steps_is_told(tmp_path: Path) -> None:
    shard = Shard((6, 8), (0, 0), mesh=("tp",))
    steps = [item("fc", VALUES, rank=rank, step=step) for rank, step in ((0, 0), (0, 1), (1, 0))]
    parts = [each._replace(record=replace(each.record, shard=shard)) for each in steps]
    golden = [item("fc", VALUES, step=step) for step in (0, 1)]
    comparison = compared(tmp_path, golden, parts, {"tp": 2})
    assert [each.reason for each in comparison.rows] == [Reason.IDENTICAL, Reason.INCOMPLETE]
    assert comparison.exit_code == 2


def test_dropout_that_each_rank_drew_by_itself_is_not_judged(tmp_path: Path) -> None:
    compared(tmp_path, [item(values=VALUES)], held("fc", np.split(VALUES * 2, 2, 0)))
    edit_manifest(tmp_path / "ranks", lambda m: m["capture"].update(unplaced_draws=3))
    comparison = ac.diff(tmp_path / "one", tmp_path / "ranks")
    assert comparison.exit_code == 2
    assert "capture both with dropout at 0" in comparison.conclusion


@pytest.mark.parametrize("terms", [(1.0, 2.0), (2.0, 4.0)], ids=["sum", "mean"])
def test_a_loss_of_each_ranks_own_batch_is_a_term(
    tmp_path: Path, terms: tuple[float, float]
) -> None:
    def losses(values: Sequence[float]) -> list[Item]:
        return [
            item("", np.float32(each), parent=None, path="loss", rank=rank)
            for rank, each in enumerate(values)
        ]

    halves = [(0, 0, range(3)), (1, 0, range(3, 6))]
    candidate = [*with_batch(halves), *losses(terms)]
    comparison = compared(tmp_path, [*ONE, *losses([3.0])], candidate, {"dp": 2})
    assert {each.status.value for each in comparison.rows} == {"pass"}


#: Rows of tokens of which many are alike, and are padding at the end.
TOKENS = np.array([[1, 2, 1, 2, 3, 1, 1, 0], [2, 2, 1, 3, 0, 0, 0, 0], [1, 3, 1, 3, 2, 2, 0, 0]])
HIDDEN = np.random.default_rng(3).standard_normal((3, 8, 4)).astype("f4")


def with_sequence(
    cut: Sequence[tuple[Sequence[int], Sequence[int]]], tokens: np.ndarray = TOKENS
) -> list[Item]:
    """The model's input and a layer's output, on ranks that have these tokens of these rows."""
    found = []
    for rank, place in enumerate(cut):
        own = np.ix_(*place)
        found += [
            item("", tokens[own], role="input", path="0", parent=None, rank=rank),
            item("fc", HIDDEN[own], parent=("", 0), rank=rank),
        ]
    return found


ALL = range(3), range(8)
WHOLE = with_sequence([ALL])


@pytest.mark.parametrize(
    "cut",
    [
        [(ALL[0], range(4)), (ALL[0], range(4, 8))],
        [(ALL[0], (0, 1, 6, 7)), (ALL[0], (2, 3, 4, 5))],
        [(ALL[0], range(0, 8, 2)), (ALL[0], range(1, 8, 2))],
        [(ALL[0], (2, 3, 4, 5, 6, 7)), (ALL[0], (0, 1))],
        [(ALL[0], (0, 3)), (ALL[0], (1, 2, 4, 7)), (ALL[0], (5, 6))],
        [(ALL[0], (0, 1, 6, 7))] * 2 + [(ALL[0], (2, 3, 4, 5))] * 2,
        [((row, *more), part) for row, *more in ((2, 0), (1,)) for part in (range(4), range(4, 8))],
    ],
    ids=[
        "contiguous",
        "zigzag",
        "striped",
        "unequal parts",
        "each document in a zigzag",
        "with replicas",
        "with rows of a sampler",
    ],
)
def test_tokens_are_found_by_their_digests(
    tmp_path: Path, cut: list[tuple[Sequence[int], Sequence[int]]]
) -> None:
    comparison = compared(tmp_path, WHOLE, with_sequence(cut))
    assert [each.metrics and each.metrics.max_abs for each in comparison.rows] == [0.0, 0.0]


def test_a_sequence_may_be_the_first_axis(tmp_path: Path) -> None:
    def side(cut: Sequence[Sequence[int]]) -> list[Item]:
        found = []
        for rank, own in enumerate(map(list, cut)):
            given = {"role": "input", "path": "0", "parent": None}
            found += [
                item("", TOKENS.T[own], rank=rank, **given),
                item("fc", HIDDEN.swapaxes(0, 1)[own], parent=("", 0), rank=rank),
            ]
        return found

    comparison = compared(tmp_path, side([range(8)]), side([(0, 1, 6, 7), (2, 3, 4, 5)]))
    assert [each.metrics and each.metrics.max_abs for each in comparison.rows] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("whole", "parts"),
    [
        (HIDDEN.reshape(24, 4), [HIDDEN[:, [0, 1, 6, 7]], HIDDEN[:, 2:6]]),
        (HIDDEN, [HIDDEN[..., :2], HIDDEN[..., 2:]]),
        (HIDDEN, [HIDDEN[:, [0, 1, 6, 7, 2, 3, 4, 5]]] * 2),
    ],
    ids=["rows and tokens are one axis", "heads in place of tokens", "gathered, in ranks' order"],
)
def test_of_parts_of_sequences(tmp_path: Path, whole: np.ndarray, parts: list[np.ndarray]) -> None:
    zigzag = with_sequence([(ALL[0], (0, 1, 6, 7)), (ALL[0], (2, 3, 4, 5))])
    made = [part.reshape(-1, 4) if whole.ndim == 2 else part for part in parts]
    golden = [*WHOLE, item("mixed", whole)]
    comparison = compared(tmp_path, golden, [*zigzag, *held("mixed", made)])
    found = row(comparison, "mixed")
    assert found.metrics is not None
    assert found.metrics.max_abs == 0


def test_alike_tokens_of_parts_of_sequences_are_not_exchanged(tmp_path: Path) -> None:
    """Where another tensor is odd, experts are looked for; integers may be their numbers."""
    embedded = np.eye(4, dtype="f4")[TOKENS]

    def side(cut: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Item]:
        found = with_sequence(cut)
        for rank, place in enumerate(cut):
            fields = {"role": "input", "parent": ("", 0), "rank": rank}
            own = np.ix_(*place)
            odd = HIDDEN if len(cut) == 1 else HIDDEN[:, : 2 + rank]
            found += [
                item("block", embedded[own], path="0", **fields),
                item("block", HIDDEN[own], path="1", **fields),
                item("odd", odd, path="0", **fields),
            ]
        return found

    zigzag = [(ALL[0], (0, 1, 6, 7)), (ALL[0], (2, 3, 4, 5))]
    comparison = compared(tmp_path, side([ALL]), side(zigzag))
    told = [each.status.value for each in comparison.rows if each.module == "block"]
    assert told == ["pass", "pass"]


def test_a_chunk_given_twice_is_told_of_its_rank(tmp_path: Path) -> None:
    zigzag = [(ALL[0], (0, 1, 6, 7)), (ALL[0], (0, 1, 6, 7))]
    found = row(compared(tmp_path, WHOLE, with_sequence(zigzag)), "fc")
    assert found.status.value == "fail"
    assert found.candidate is not None
    assert found.candidate.holders(found.metrics.max_abs_index) == [1]


def test_a_module_that_a_ring_calls_for_each_part_is_not_compared(tmp_path: Path) -> None:
    zigzag = with_sequence([(ALL[0], (0, 1, 6, 7)), (ALL[0], (2, 3, 4, 5))])
    golden = [*WHOLE, item("part", HIDDEN)]
    ring = [each for call in (0, 1) for each in held("part", [HIDDEN[:, :4]] * 2, call=call)]
    comparison = compared(tmp_path, golden, [*zigzag, *ring])
    told = [each for each in comparison.rows if each.module == "part"]
    assert [each.reason for each in told] == [Reason.NOT_COMPARABLE] * 2
    assert CalledInParts(1, 2) in told[0].verdict.remarks


def test_a_ring_is_wrong_where_a_part_is_first_given_again(tmp_path: Path) -> None:
    """Rank 1 goes on with its own part, and hands it on to rank 2 in place of rank 0's."""
    chunks = [range(3), range(3, 6), range(6, 8)]
    parts = [HIDDEN[:, own] for own in chunks]
    golden = [*WHOLE, item("ring", HIDDEN)]
    candidate = with_sequence([(ALL[0], own) for own in chunks])
    candidate += held("ring", [parts[0], 2 * parts[1], 2 * parts[2]])
    for call, given in enumerate([(0, 1, 2), (2, 1, 1), (1, 1, 1)]):
        keys = [parts[number] for number in given]
        candidate += held("part", keys, role="input", path="1", call=call, parent=("ring", 0))
    found = next(each for each in compared(tmp_path, golden, candidate).culprits)
    assert (found.name, found.wrong) == ("ring", (1,))
