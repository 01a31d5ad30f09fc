"""What must hold between the ranks of one run; each violation is found, named, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import accucompare as ac
from accucompare.bundle.format import Shard
from accucompare.compare.invariants import (
    NotSeenWhy,
    RankAnswer,
    RankOutcome,
    RankStatus,
    rank_facts,
)
from accucompare.errors import BundleError, UsageError
from accucompare.numbers import digest
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


def given(ranks: int, *batches: int) -> list[Item]:
    """What the model is given: by rank, the number of its batch."""
    return [
        item("", [1.0 + batch], role="input", path="0", parent=None, rank=rank)
        for rank, batch in enumerate(batches or range(ranks))
    ]


def parameters(parts: Sequence[np.ndarray], shards: Sequence[Shard | None] = ()) -> list[Any]:
    """Each rank's description of one weight, ``fc.weight``."""
    return [
        {
            "fc.weight": {
                "dtype": "float32",
                "shape": list(part.shape),
                "digests": {"float32": digest(np.ascontiguousarray(part))},
                **({"shard": msgspec.to_builtins(shards[rank])} if shards else {}),
            }
        }
        for rank, part in enumerate(parts)
    ]


def checked(
    tmp_path: Path,
    items: Sequence[Item],
    mesh: dict[str, int] | None = None,
    weights: Sequence[Any] = (),
    ranks: int = 2,
    **of_ranks: Sequence[Any],
) -> ac.RankChecks:
    """The checks of a run; ``of_ranks``: a table of the manifest for each rank."""
    out = write(tmp_path / "run", items, ranks=ranks)
    for rank in range(ranks):
        left, place = rank, {}
        for dimension, size in reversed((mesh or {}).items()):
            left, index = divmod(left, size)
            place = {dimension: [index, size], **place}

        def change(manifest: dict[str, Any], rank: int = rank, place: Any = place) -> None:
            manifest["mesh"] = place
            if weights:
                manifest["model"]["parameters"] = weights[rank]
            for name, tables in of_ranks.items():
                if isinstance(manifest.get(name), dict):
                    manifest[name] |= tables[rank]
                else:
                    manifest[name] = tables[rank]

        edit_manifest(out, change, f"rank{rank}/manifest.json" if rank else "manifest.json")
    return ac.check_ranks(out)


def failed(checks: ac.RankChecks, *names: str) -> RankOutcome:
    """The first of the checks that fail, which are these."""
    assert [each.check.value for each in checks.of(RankStatus.FAIL)] == list(names)
    assert checks.exit_code == 1
    return checks[names[0]]


def unseen(checks: ac.RankChecks, name: str) -> NotSeenWhy:
    fact = checks[name].measured
    assert isinstance(fact, rank_facts.NotSeen)
    return fact.why


WHOLE = parameters([VALUES, VALUES])
PARTS = [Shard((6, 8), (at, 0), mesh=("tp",)) for at in (0, 3)]
HALVES = VALUES[:3], VALUES[3:]
GRAD = {"role": "param_grad", "path": "weight"}
CALL = {"role": "call_grad", "path": "weight"}
WEIGHT = {"role": "param_before", "path": "weight"}


# what is there, and how it was set up


def test_one_rank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one rank"):
        ac.check_ranks(write(tmp_path / "one", [item(values=VALUES)]))


def test_where_nothing_can_be_looked_at_nothing_is_sure(tmp_path: Path) -> None:
    checks = checked(tmp_path, held("fc", [VALUES, VALUES]))
    assert not checks.of(RankStatus.FAIL)
    assert (checks.exit_code, checks.passed) == (2, False)


def test_a_rank_that_is_missing_is_told_and_no_pass(tmp_path: Path) -> None:
    checked(tmp_path, given(2), {"dp": 2}, WHOLE)
    for file in (tmp_path / "run" / "rank1").iterdir():
        file.unlink()
    checks = ac.check_ranks(tmp_path / "run")
    assert unseen(checks, "ranks-and-steps") is NotSeenWhy.RANKS_MISSING
    assert checks["ranks-and-steps"].place.ranks == (1,)
    assert checks.exit_code == 2


def test_the_parts_of_a_rank_that_is_missing_are_no_hole(tmp_path: Path) -> None:
    shards = [replace(each, mesh=("dp",)) for each in PARTS]
    items = [*given(2), *held("fc", HALVES, shards, **GRAD), *held("fc", [VALUES] * 2, **CALL)]
    checked(tmp_path, items, {"dp": 2}, parameters(HALVES, shards))
    for file in (tmp_path / "run" / "rank1").iterdir():
        file.unlink()
    checks = ac.check_ranks(tmp_path / "run")
    assert not checks.of(RankStatus.FAIL)
    assert unseen(checks, "reduction") is NotSeenWhy.RANKS_MISSING
    assert checks.exit_code == 2


@pytest.mark.parametrize(
    "change", [{"start": [4, 0]}, {"start": [0]}, {"mesh": 1}, {"shape": [6]}], ids=str
)
def test_a_layout_that_cannot_be_is_damage(tmp_path: Path, change: dict[str, Any]) -> None:
    weights = parameters(HALVES, PARTS)
    weights[1]["fc.weight"]["shard"] |= change
    with pytest.raises(BundleError, match=r"layout of fc\.weight in a manifest is impossible"):
        checked(tmp_path, given(2, 0, 0), {"tp": 2}, weights)


def test_unequal_numbers_of_steps_are_told_and_no_pass(tmp_path: Path) -> None:
    more = item("", [3.0], role="input", path="0", parent=None, step=1)
    checks = checked(tmp_path, [*given(2), more], {"dp": 2}, WHOLE)
    assert checks["ranks-and-steps"].measured == rank_facts.NotSeen(
        NotSeenWhy.STEPS_MISSING, (1,), (1,)
    )
    assert (checks.exit_code, checks.steps) == (2, [0])


@pytest.mark.parametrize(
    ("kind", "tables"),
    [
        ("version", [{"versions": {"torch": each}} for each in ("2.13.0", "2.12.0")]),
        ("flag", [{"flags": {"deterministic_algorithms": each}} for each in (True, False)]),
        ("variable", [{"variables": {"NCCL_ALGO": each}} for each in ("Ring", "Tree")]),
        ("library", [{"libraries": {"libgomp.so": each}} for each in ("1 byte", "2 bytes")]),
    ],
)
def test_settings_of_ranks_must_be_the_same(tmp_path: Path, kind: str, tables: Any) -> None:
    found = failed(checked(tmp_path, given(2), {"dp": 2}, WHOLE, environment=tables), "settings")
    assert isinstance(found.measured, rank_facts.SettingApart)
    assert found.measured.kind == kind


def test_ranks_of_two_runs_are_no_run(tmp_path: Path) -> None:
    tables = [{"run": each} for each in ("1234", "5678")]
    found = failed(checked(tmp_path, given(2), {"dp": 2}, WHOLE, capture=tables), "settings")
    assert isinstance(found.measured, rank_facts.SettingApart)
    assert found.measured.values == (("1234", (0,)), ("5678", (1,)))


def test_a_rank_may_know_its_number(tmp_path: Path) -> None:
    tables = [{"variables": {"LOCAL_RANK": each}} for each in ("0", "1")]
    checks = checked(tmp_path, given(2), {"dp": 2}, WHOLE, environment=tables)
    assert checks.exit_code == 0


# weights


def test_other_weights_on_one_rank_of_three_name_it(tmp_path: Path) -> None:
    weights = parameters([VALUES, OTHER, VALUES])
    found = failed(checked(tmp_path, given(3), {"dp": 3}, weights, ranks=3), "weights")
    assert (found.place.name, found.place.ranks) == ("fc.weight", (1,))


@pytest.mark.parametrize(("written", "fails"), [(True, False), (False, True)])
def test_a_buffer_that_is_another_on_one_rank(tmp_path: Path, written: bool, fails: bool) -> None:
    entries = [{"dtype": "float32", "shape": [4], "digests": {"float32": each}} for each in "ab"]
    models = [
        {"parameters": own, "buffers": {"norm.running_mean": entry}}
        for own, entry in zip(WHOLE, entries, strict=True)
    ]
    items = given(2)
    if written:  # as a BatchNorm does in train mode
        items += held("norm", HALVES, role="buffer_update", path="running_mean")
    checks = checked(tmp_path, items, {"dp": 2}, model=models)
    assert checks.exit_code == int(fails)
    if fails:
        assert failed(checks, "weights").place.name == "norm.running_mean"


def test_parts_that_leave_a_hole(tmp_path: Path) -> None:
    shards = [PARTS[0], replace(PARTS[1], start=(2, 0))]
    checks = checked(tmp_path, given(2, 0, 0), {"tp": 2}, parameters(HALVES, shards))
    assert isinstance(failed(checks, "weights").measured, rank_facts.PartsApart)


def test_replicas_of_parts_along_another_dimension(tmp_path: Path) -> None:
    parts = [HALVES[0], HALVES[1], HALVES[0], OTHER[3:]]
    checks = checked(
        tmp_path, given(4, 0, 0, 1, 1), {"dp": 2, "tp": 2}, parameters(parts, PARTS * 2), ranks=4
    )
    assert failed(checks, "weights").place.ranks == (1, 3)


def test_parts_that_the_code_cut_by_hand_are_not_looked_at(tmp_path: Path) -> None:
    items = [*given(2, 0, 0), *held("fc", HALVES, **GRAD), *held("fc", HALVES, **WEIGHT)]
    checks = checked(tmp_path, items, {"tp": 2}, parameters(HALVES))
    assert unseen(checks, "weights") is NotSeenWhy.NO_LAYOUT
    assert not checks.of(RankStatus.FAIL)


@pytest.mark.parametrize(
    ("stage", "status"), [(False, RankStatus.FAIL), (True, RankStatus.NOT_LOOKED_AT)]
)
def test_without_a_mesh_ranks_with_rows_of_their_own_hold_the_same(
    tmp_path: Path, stage: bool, status: RankStatus
) -> None:
    """Unless what a rank is given comes from another stage of a pipeline."""
    items = [each._replace(record=replace(each.record, requires_grad=stage)) for each in given(2)]
    checks = checked(tmp_path, items, None, parameters([VALUES, OTHER]))
    assert checks["weights"].status is status


def test_stages_norms_that_begin_alike_are_no_replicas(tmp_path: Path) -> None:
    items = [each._replace(record=replace(each.record, requires_grad=True)) for each in given(2)]
    items += held("fc", [VALUES, VALUES * 1.5], role="param_update", path="weight")
    assert not checked(tmp_path, items, None, WHOLE).of(RankStatus.FAIL)
    # where the mesh tells the stages, parts of one name are other layers
    weights = parameters([*HALVES, *(2 * each for each in HALVES)], PARTS * 2)
    items = held("fc", [*HALVES, *HALVES], PARTS * 2, role="param_update", path="weight")
    found = checked(tmp_path, [*given(4, 0, 0, 0, 0), *items], {"pp": 2, "tp": 2}, weights, 4)
    assert not found.of(RankStatus.FAIL)


def test_an_update_of_one_rank_alone(tmp_path: Path) -> None:
    items = [*given(2), *held("fc", [VALUES, VALUES * 1.5], role="param_update", path="weight")]
    found = failed(checked(tmp_path, items, {"dp": 2}, WHOLE), "updates")
    assert found.measured == rank_facts.ReplicasApart(pytest.approx(0.5))


def test_a_part_that_changes_between_updates_on_one_rank(tmp_path: Path) -> None:
    changed = item("fc", HALVES[1], role="param_changed", path="weight", rank=1)
    shards = [replace(each, mesh=("dp",)) for each in PARTS]
    checks = checked(tmp_path, [*given(2), changed], {"dp": 2}, parameters(HALVES, shards))
    found = failed(checks, "updates")
    assert (found.measured, found.place.ranks) == (rank_facts.ChangedBetween(), (1,))


@pytest.mark.parametrize("gathered", ["all", "nothing", "another's"])
def test_a_weight_that_one_rank_steps_for_all(tmp_path: Path, gathered: str) -> None:
    # as ranks share out an optimizer: rank 1 steps nothing, and has what the loop gave it
    stepped = [
        item("fc", value, step=step, **WEIGHT) for step, value in enumerate((VALUES, OTHER, VALUES))
    ]
    told = [
        item("fc", rank=1, step=step, layout="opaque", digest="none", **GRAD) for step in range(3)
    ]
    grads = [item("fc", VALUES, step=step, **GRAD) for step in range(3)]
    updates = [
        item("fc", VALUES, step=step, role="param_update", path="weight") for step in range(3)
    ]
    given_there = [
        item("fc", value, rank=1, step=step, call=1, role="param_changed", path="weight")
        for step, value in enumerate((OTHER, VALUES if gathered == "all" else OTHER))
    ]
    items = [*given(2), *stepped, *told, *grads, *updates]
    if gathered != "nothing":
        items += given_there
    checks = checked(tmp_path, items, {"dp": 2}, WHOLE)
    if gathered == "all":
        assert (checks["updates"].status, checks.exit_code) == (RankStatus.PASS, 0)
    else:
        found = failed(checks, "updates")
        step = 1 if gathered == "nothing" else 2
        assert (found.place.name, found.place.step) == ("fc.weight", step)
        assert found.place.ranks == (1,)


@pytest.mark.parametrize(("second", "fails"), [("one", False), ("other", True)])
def test_weights_of_which_optimizers_step_parts(tmp_path: Path, second: str, fails: bool) -> None:
    items = [*given(2), *held("fc", HALVES, step=1)]
    tables = [
        [{"step": step, "own_weights": each} for step, each in enumerate(own)]
        for own in (("zero", "one"), ("zero", second))
    ]
    checks = checked(tmp_path, items, {"dp": 2}, WHOLE, series=tables)
    if not fails:
        assert (checks["updates"].status, checks.exit_code) == (RankStatus.PASS, 0)
        return
    found = failed(checks, "updates")
    assert (found.place.step, found.place.ranks) == (1, (0, 1))


def test_tied_weights_that_are_apart(tmp_path: Path) -> None:
    items = [
        *given(2),
        *held("fc", [VALUES, VALUES], **WEIGHT),
        *held("head", [VALUES, OTHER], **WEIGHT),
    ]
    weights = [{**each, "head.weight": each["fc.weight"]} for each in WHOLE]
    tied = [{"tied": {"head.weight": "fc.weight"}, "parameters": each} for each in weights]
    found = failed(checked(tmp_path, items, {"dp": 2}, model=tied), "weights", "tied-weights")
    assert found.place.name == "head.weight"


# gradients


def gradients(grads: Sequence[np.ndarray], calls: Sequence[np.ndarray]) -> list[Item]:
    return [*given(len(grads)), *held("fc", calls, **CALL), *held("fc", grads, **GRAD)]


@pytest.mark.parametrize(("factor", "reduced"), [(0.5, "mean"), (1.0, "sum")])
def test_a_gradient_is_the_mean_or_the_sum(tmp_path: Path, factor: float, reduced: str) -> None:
    grad = (VALUES + OTHER) * np.float32(factor)
    checks = checked(tmp_path, gradients([grad, grad], [VALUES, OTHER]), {"dp": 2}, WHOLE)
    held_up = checks["reduction"].measured
    assert isinstance(held_up, rank_facts.AllHold)
    assert held_up.reduced == reduced
    assert checks.exit_code == 0


@pytest.mark.parametrize("factor", [0.25, 2.0], ids=["a divisor of all ranks", "reduced twice"])
def test_a_factor_of_another_number_of_ranks_is_stated(tmp_path: Path, factor: float) -> None:
    grad = (VALUES + OTHER) * np.float32(factor)
    items = gradients([grad] * 4, [VALUES, VALUES, OTHER, OTHER])
    items = [*given(4, 0, 0, 1, 1), *items[4:]]
    checks = checked(tmp_path, items, {"dp": 2, "tp": 2}, parameters([VALUES] * 4), ranks=4)
    assert failed(checks, "reduction").measured == rank_facts.ScaledGradient(factor * 2, 2)


def test_a_gradient_that_was_not_reduced(tmp_path: Path) -> None:
    items = gradients([VALUES, OTHER], [VALUES, OTHER])
    checks = checked(tmp_path, items, {"dp": 2}, WHOLE)
    failed(checks, "gradients", "reduction")
    assert checks["reduction"].measured == rank_facts.UnevenGradient(
        (((0,), 0, 1.0), ((1,), 0, 0.0))
    )


def test_one_gradient_of_three_that_is_no_sum(tmp_path: Path) -> None:
    items = gradients([VALUES, VALUES], [VALUES, VALUES])
    for name, grad in (("up", VALUES), ("down", np.concatenate([VALUES[:3], OTHER[3:]]))):
        items += [*held(name, [VALUES] * 2, **CALL), *held(name, [grad] * 2, **GRAD)]
    weights = [
        {f"{name}.weight": each["fc.weight"] for name in ("fc", "up", "down")} for each in WHOLE
    ]
    found = failed(checked(tmp_path, items, {"dp": 2}, weights), "reduction")
    assert isinstance(found.measured, rank_facts.OtherGradient)
    assert found.place.name == "down.weight"


@pytest.mark.parametrize(("error", "fails"), [(0.96, False), (1.04, True)])
def test_a_gradient_may_be_off_by_rounding(tmp_path: Path, error: float, fails: bool) -> None:
    aside = OTHER - VALUES * (np.vdot(OTHER, VALUES) / np.vdot(VALUES, VALUES))
    aside *= error * 2.0**-7 * np.linalg.norm(VALUES) / np.linalg.norm(aside)
    items = given(2)
    for name, grad in (("fc", VALUES), ("up", VALUES), ("down", VALUES + aside)):
        items += [*held(name, [VALUES] * 2, **CALL), *held(name, [grad] * 2, **GRAD)]
    weights = [
        {f"{name}.weight": each["fc.weight"] for name in ("fc", "up", "down")} for each in WHOLE
    ]
    checks = checked(tmp_path, items, {"dp": 2}, weights)
    assert (checks["reduction"].status is RankStatus.FAIL) is fails


def test_what_one_rank_alone_uses_has_the_mean_over_all(tmp_path: Path) -> None:
    half = VALUES * np.float32(0.5)
    items = [*given(2), item("fc", VALUES, **CALL), *held("fc", [half, half], **GRAD)]
    checks = checked(tmp_path, items, {"dp": 2}, WHOLE)
    assert checks["reduction"].status is RankStatus.PASS


def test_the_losss_scale_is_taken_back(tmp_path: Path) -> None:
    grad = (VALUES + OTHER) * np.float32(0.5)
    items = gradients([grad, grad], [1024 * VALUES, 1024 * OTHER])
    table = series(2, loss_scale=[1024.0] * 2)
    checks = checked(tmp_path, items, {"dp": 2}, WHOLE, series=table)
    assert checks["reduction"].measured == rank_facts.AllHold(
        1, 1, error=pytest.approx(0, abs=1e-7), reduced="mean"
    )


def test_of_many_terms_the_sum_is_looked_at(tmp_path: Path) -> None:
    terms = [VALUES * np.float32(1 + rank) for rank in range(20)]
    grad = np.mean(terms, 0, dtype="f8").astype("f4")
    items = gradients([grad] * 20, terms)
    checks = checked(tmp_path, items, {"dp": 20}, parameters([VALUES] * 20), ranks=20)
    assert checks["reduction"].status is RankStatus.PASS


def test_a_factor_that_all_gradients_have_may_be_the_loops(tmp_path: Path) -> None:
    items = given(2)
    for name in ("fc", "up", "down"):
        grad = (VALUES + OTHER) * np.float32(1 / 12)
        items += [*held(name, [VALUES, OTHER], **CALL), *held(name, [grad] * 2, **GRAD)]
    weights = [
        {f"{name}.weight": each["fc.weight"] for name in ("fc", "up", "down")} for each in WHOLE
    ]
    checks = checked(tmp_path, items, {"dp": 2}, weights)
    measured = checks["reduction"].measured
    assert isinstance(measured, rank_facts.AllHold)
    assert measured.factor == pytest.approx(1 / 6)
    assert checks.exit_code == 0


# calls


def test_a_replica_with_a_layout_that_is_apart(tmp_path: Path) -> None:
    shard = Shard((6, 8), (0, 0), mesh=("tp",))
    items = [*given(2, 0, 0), *held("fc", [VALUES, OTHER], [shard, shard])]
    found = failed(checked(tmp_path, items, {"tp": 2}), "layouts")
    assert (found.place.name, found.place.role) == ("fc", "output")


def test_what_is_recorded_of_two_batches_has_no_replicas(tmp_path: Path) -> None:
    shard = Shard((6, 8), (0, 0), mesh=("tp",))
    items = [*given(4, 0, 0, 1, 1), *held("fc", [VALUES, VALUES, OTHER, OTHER], [shard] * 4)]
    checks = checked(tmp_path, items, {"dp": 2, "tp": 2}, ranks=4)
    assert checks["layouts"].status is RankStatus.PASS
    assert checks.exit_code == 0


def called(outputs: Sequence[np.ndarray], name: str = "fc") -> list[Item]:
    inputs = held(name, [VALUES] * len(outputs), role="input", path="0")
    return [*inputs, *held(name, outputs)]


def test_of_equal_calls_the_innermost_is_named(tmp_path: Path) -> None:
    items = [
        *given(3, 0, 0, 0),
        *called([VALUES, VALUES, VALUES], "block.up"),
        *called([OTHER, OTHER, VALUES], "block.down"),
        *called([OTHER, OTHER, VALUES], "block"),
    ]
    found = failed(checked(tmp_path, items, {"tp": 3}, ranks=3), "calls")
    assert (found.place.name, found.place.ranks, found.count) == ("block.down", (2,), 1)


def test_a_backward_that_is_another_on_one_rank(tmp_path: Path) -> None:
    items = [
        *given(3, 0, 0, 0),
        *called([OTHER] * 3),
        *held("fc", [VALUES] * 3, role="grad_output"),
        *held("fc", [OTHER, VALUES, OTHER], role="grad_input", path="0"),
    ]
    found = failed(checked(tmp_path, items, {"tp": 3}, ranks=3), "calls")
    assert (found.place.role, found.place.ranks) == ("grad_input", (1,))
    assert isinstance(found.measured, rank_facts.OutputsApart)
    assert found.measured.backward


def test_of_a_number_a_rank_may_make_what_its_part_of_the_sequence_needs(tmp_path: Path) -> None:
    length = {"layout": "scalar", "role": "input", "path": "0", "digest": "8"}
    for mesh, code in (({"cp": 2}, 2), ({"tp": 2}, 1)):
        items = [item("rotary", dtype="int64", rank=rank, **length) for rank in range(2)]
        items += [*given(2, 0, 0), *held("rotary", [VALUES, OTHER])]
        assert checked(tmp_path / next(iter(mesh)), items, mesh).exit_code == code


def test_calls_with_other_weights_may_give_something_else(tmp_path: Path) -> None:
    items = [*given(2, 0, 0), *called([VALUES, OTHER])]
    checks = checked(tmp_path, items, {"tp": 2}, parameters([VALUES, OTHER]))
    assert unseen(checks, "calls") is NotSeenWhy.NO_SAME_CALL


# batches


def test_a_batch_given_twice(tmp_path: Path) -> None:
    checks = checked(tmp_path, given(3, 0, 1, 0), {"dp": 3}, parameters([VALUES] * 3), ranks=3)
    found = failed(checks, "batches")
    assert (found.measured, found.place.ranks) == (rank_facts.BatchTwice(), (0, 2))


def test_parts_of_sequences_that_are_padding_are_no_batch_given_twice(tmp_path: Path) -> None:
    fields = {"role": "input", "path": "0", "parent": None}
    tokens = [np.arange(4), np.zeros(4, int), np.zeros(4, int)]
    outputs = held("", [VALUES, VALUES, OTHER], parent=None)  # of positions of their own
    items = [*held("", tokens, **fields), *outputs]
    checks = checked(tmp_path, items, {"dp": 3}, ranks=3)
    assert not checks.of(RankStatus.FAIL)


def test_another_batch_in_a_group_that_shares_one(tmp_path: Path) -> None:
    checks = checked(tmp_path, given(3, 0, 1, 0), {"tp": 3}, parameters([VALUES] * 3), ranks=3)
    found = failed(checks, "batches")
    assert (found.measured, found.place.ranks) == (rank_facts.BatchApart(), (1,))


@pytest.mark.parametrize("mesh", [None, {"x": 2}])
def test_who_shares_a_batch_is_not_guessed(tmp_path: Path, mesh: dict[str, int] | None) -> None:
    checks = checked(tmp_path, given(2, 0, 0), mesh, WHOLE)
    assert unseen(checks, "batches") is NotSeenWhy.NO_MESH


# dropout


def dropped(seeds: Sequence[int], inputs: Sequence[np.ndarray]) -> list[Item]:
    outputs = [
        each * (np.random.default_rng(seed).random((20, 8)) > 0.5)
        for seed, each in zip(seeds, inputs, strict=True)
    ]
    fields = {"type": "Dropout"}
    arrived = held("drop", inputs, role="input", path="0", **fields)
    return [*arrived, *held("drop", outputs, **fields)]


DROPPED = [np.random.default_rng(seed).standard_normal((20, 8)) for seed in (2, 3)]


def test_dropout_of_replicas_must_be_equal(tmp_path: Path) -> None:
    items = [*given(2, 0, 0), *dropped([0, 1], [DROPPED[0]] * 2)]
    checks = checked(tmp_path, items, {"tp": 2})
    failed(checks, "calls", "dropout")
    assert isinstance(checks["dropout"].measured, rank_facts.MasksApart)


def test_dropout_of_other_batches_must_be_another(tmp_path: Path) -> None:
    items = [*given(2), *dropped([0, 0], DROPPED)]
    assert failed(checked(tmp_path, items, {"dp": 2}), "dropout").measured == (
        rank_facts.MasksAlike(160)
    )


@pytest.mark.parametrize("elements", [63, 64])
def test_few_elements_may_be_dropped_alike_by_chance(tmp_path: Path, elements: int) -> None:
    inputs = [np.ones(160), np.where(np.arange(160) < elements, 2.0, 0.0)]
    items = dropped([0, 0], [each.reshape(20, 8) for each in inputs])
    checks = checked(tmp_path, [*given(2), *items], {"dp": 2})
    assert (checks["dropout"].status is RankStatus.FAIL) is (elements == 64)


@pytest.mark.parametrize(("seeds", "batches"), [([0, 0], (0, 0)), ([0, 1], (0, 1))])
def test_right_dropout_passes(tmp_path: Path, seeds: list[int], batches: tuple[int, ...]) -> None:
    inputs = [DROPPED[batch] for batch in batches]
    mesh = {"tp": 2} if batches == (0, 0) else {"dp": 2}
    checks = checked(tmp_path, [*given(2, *batches), *dropped(seeds, inputs)], mesh)
    assert checks["dropout"].status is RankStatus.PASS


def test_dropout_that_the_capture_drew_says_nothing(tmp_path: Path) -> None:
    items = [*given(2), *dropped([0, 0], DROPPED)]
    checks = checked(tmp_path, items, {"dp": 2}, capture=[{"seed": 0}] * 2)
    assert unseen(checks, "dropout") is NotSeenWhy.SEEDED_ALIKE


# the loop


def series(ranks: int, steps: int = 1, **fields: Sequence[Any]) -> list[list[dict[str, Any]]]:
    """The numbers of steps by rank; ``fields``: by rank, or of all steps of all ranks."""
    return [
        [
            {"step": step, **{name: each[rank] for name, each in fields.items()}}
            for step in range(steps)
        ]
        for rank in range(ranks)
    ]


@pytest.mark.parametrize(
    ("fields", "number"),
    [
        ({"lr": [{"AdamW.0": 0.01}, {"AdamW.0": 0.02}]}, rank_facts.LoopNumber.LEARNING_RATE),
        ({"loss_scale": [1024.0, 512.0]}, rank_facts.LoopNumber.LOSS_SCALE),
        ({"skipped": [False, True]}, rank_facts.LoopNumber.SKIPPED),
        ({"updates": [1, 2]}, rank_facts.LoopNumber.UPDATES),
        ({"grad_norm": [2.0, 2.0], "clipped_norm": [1.0, 0.9]}, rank_facts.LoopNumber.CLIP_FACTOR),
    ],
)
def test_numbers_of_the_loop_must_be_the_same(
    tmp_path: Path, fields: dict[str, Any], number: rank_facts.LoopNumber
) -> None:
    checks = checked(tmp_path, given(2), {"dp": 2}, WHOLE, series=series(2, **fields))
    found = failed(checks, "loop").measured
    assert isinstance(found, rank_facts.NumberApart)
    assert found.what is number


@pytest.mark.parametrize(("batches", "code"), [((0, 0), 1), ((0, 1), 0)])
def test_losses_of_one_batch_must_be_the_same(
    tmp_path: Path, batches: tuple[int, int], code: int
) -> None:
    mesh = {"dp": 2} if code == 0 else {"tp": 2}
    table = series(2, losses=[[1.0], [1.1]])
    assert checked(tmp_path, given(2, *batches), mesh, WHOLE, series=table).exit_code == code


@pytest.mark.parametrize(
    ("dtype", "off", "code"),
    [
        ("float32", 0.0, 0),
        ("float32", 0.96e-4, 0),
        ("float32", 1.04e-4, 1),
        ("bfloat16", 0.0075, 0),
        ("bfloat16", 0.0081, 1),
    ],
)
def test_the_norm_that_clips_is_that_of_all_gradients(
    tmp_path: Path, dtype: str, off: float, code: int
) -> None:
    """In the second step gradients are twice as large, and their factor must be half."""
    items, table = given(2), series(2, 2)
    for step, factor in enumerate((0.5, 0.25 * (1 - off))):
        grad = VALUES * np.float32(step + 1)
        items += [
            *(
                item("", [10.0 * step + rank], role="input", path="0", step=step, rank=rank)
                for rank in (0, 1)
            ),
            *held("fc", [grad, grad], step=step, dtype=dtype, **GRAD),
        ]
        for rank in (0, 1):
            norm = float(np.linalg.norm(grad.astype("f8")))
            table[rank][step] |= {"grad_norm": norm, "clipped_norm": factor * norm}
    checks = checked(tmp_path, items[2:], {"dp": 2}, WHOLE, series=table)
    assert checks["clipped-norm"].status is (RankStatus.FAIL if code else RankStatus.PASS)
    assert checks.exit_code == code


def test_every_answer_has_its_exit_code() -> None:
    assert rank_facts.RANK_EXIT_CODES == {
        RankAnswer.HOLDS: 0,
        RankAnswer.BROKEN: 1,
        RankAnswer.NOT_SURE: 2,
    }


def test_one_clipped_step_tells_nothing(tmp_path: Path) -> None:
    norm = float(np.linalg.norm(VALUES.astype("f8")))
    table = series(2, grad_norm=[norm] * 2, clipped_norm=[norm / 2] * 2)
    items = [*given(2), *held("fc", [VALUES, VALUES], **GRAD)]
    checks = checked(tmp_path, items, {"dp": 2}, WHOLE, series=table)
    assert unseen(checks, "clipped-norm") is NotSeenWhy.CLIPPED_ONCE


def local(*of_ranks: Sequence[float]) -> list[Any]:
    """The parameters of ranks: experts' matrices with these values, and a norm that all have."""
    names = ("mlp.experts.0.up", "mlp.experts.0.down")
    return [
        {
            f"{name}.weight": {
                "dtype": "float32",
                "shape": [2, 2],
                "digests": {"float32": digest(np.full((2, 2), value, "f4"))},
            }
            for name, value in zip((*names, "head"), (*values, 0.5), strict=True)
        }
        for values in of_ranks
    ]


@pytest.mark.parametrize(
    ("held_there", "fails"),
    [
        ([(1, 2), (3, 4)], False),
        ([(1, 2), (3, 4), (1, 2), (3, 4)], False),
        ([(1, 2), (1, 4)], True),  # of replicas, one is wrong
        ([(1, 2), (3, 4), (1, 2), (1, 2)], True),
    ],
    ids=["two ranks", "two and two", "one matrix", "one rank"],
)
def test_experts_of_each_rank_are_no_replicas(
    tmp_path: Path, held_there: list[tuple[float, float]], fails: bool
) -> None:
    ranks = len(held_there)
    checks = checked(tmp_path, given(ranks), weights=local(*held_there), ranks=ranks)
    assert (checks["weights"].status is RankStatus.FAIL) is fails
