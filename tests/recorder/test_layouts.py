"""What a rank records of a model that lies on several: its part, and its place in the whole.

``fixtures/parallel.py`` trains one model in each layout. What the ranks have recorded, put
together, is what one device computes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import accucompare as ac
from accucompare.bundle.format import GRADIENT_ROLES, UPDATE_ROLES, Record, Role, Shard
from accucompare.bundle.reading import Bundle
from accucompare.errors import BundleError
from accucompare.live.around import collectives
from accucompare.live.autograd import Sum
from fixtures.parallel import LAYOUTS, ones, train, whole_model
from tests.groups import leave
from tests.made_once import made_once
from tests.parts import put_together
from tests.recorded import Opened

#: The layouts, by the number of ranks, with the largest error of a gradient, relative.
TWO = {
    "ddp2": 1e-6,
    "fsdp1_2": 1e-6,
    "fsdp2": 1e-6,
    "fsdp2_bfloat16": 0.1,
    "tp2": 1e-6,
    "sp2": 1e-6,
    "llama_tp2": 1e-5,
    "mixtral_tp2": 1e-5,
}
FOUR = {"tp2dp2": 1e-6, "hsdp4": 1e-6}
SHARDED = [name for name in (*TWO, *FOUR) if name != "ddp2"]

Key = tuple[str, int, Role, str]


def work(rank: int, ranks: int, folder: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["PARALLEL_WEIGHTS"] = folder
    if ranks > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store{ranks}", rank=rank, world_size=ranks
        )
    if ranks == 4:  # PyTorch works out how each operator of an optimizer's is spread: SGD has few
        for name in FOUR:
            LAYOUTS[name] = dataclasses.replace(LAYOUTS[name], optimizer=momentum)
    for name in {1: ("one", "llama_one", "mixtral_one"), 2: TWO, 4: FOUR}[ranks]:
        results, counts = [], []
        for out in (None, Path(folder, name)):
            before = collectives() if ranks > 1 else 0
            results.append(
                train(name, out, steps=1, save_state=True) if out else train(name, None, 1)
            )
            counts.append((collectives() or 0) - (before or 0) if ranks > 1 else 0)
        Path(f"{folder}/{name}-{rank}.json").write_text(
            json.dumps({"same": results[0] == results[1], "collectives": counts})
        )
    if ranks < 4:
        drops(ranks, Path(folder))
        flat(rank, ranks, Path(folder))
        borrows(rank, ranks, Path(folder))
    if ranks == 2:
        (Path(folder) / f"sums-{rank}.json").write_text(json.dumps(sums()))
        (Path(folder) / f"waits-{rank}.json").write_text(json.dumps(waits(Path(folder))))
        falls_silent(rank, Path(folder))
    elif ranks > 1:
        leave()


def momentum(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, foreach=False)


def drops(ranks: int, folder: Path) -> None:
    """Dropout on seven rows, on one rank or on two, and on a plain tensor."""
    rows = torch.arange(1.0, 29.0).reshape(7, 4)
    given = rows
    if ranks > 1:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        given = distribute_tensor(rows, init_device_mesh("cpu", (2,)), [Shard(0)])
    model = torch.nn.Dropout(0.5)
    with ac.capture(model, str(folder / f"dropped{ranks}"), seed=3):
        model(given)
        model(rows)
        next(iter(torch.utils.data.DataLoader([0])))  # draws a number


def flat(rank: int, ranks: int, folder: Path) -> None:
    """FSDP1 with all parameters as one tensor, of an odd number of elements."""
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Linear(4, 3)
    if ranks > 1:
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(
            model, use_orig_params=False, device_id=torch.device("cpu")
        )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    each = 2 // ranks
    with ac.capture(model, str(folder / f"flat{ranks}"), loop=optimizer) as session:
        for step in range(2):
            rows = torch.arange(8.0).reshape(2, 4) + step
            model(rows[rank * each : (rank + 1) * each]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()


class Borrowing(torch.nn.Module):
    """Uses the weights of a child, and does not call it, as ``nn.MultiheadAttention`` does."""

    def __init__(self) -> None:
        super().__init__()
        self.child = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.child.weight, self.child.bias)


def borrows(rank: int, ranks: int, folder: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(Borrowing(), torch.nn.Linear(3, 2))
    if ranks > 1:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    with ac.capture(
        model, str(folder / f"borrows{ranks}"), loop=torch.optim.SGD(model.parameters(), 0.1)
    ) as session:
        rows, each = torch.arange(8.0).reshape(2, 4), 2 // ranks
        model(rows[rank * each : (rank + 1) * each]).square().mean().backward()
        session.step()


class Reduced(torch.nn.Module):
    """The ranks' sum, for which nobody has waited yet."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed import _functional_collectives as functional

        return functional.all_reduce(x, "sum", torch.distributed.group.WORLD)


def waits(folder: Path) -> dict[str, list[Any]]:
    """By mode: how often anybody has waited before and after the model does; which digests the
    result has where it leaves one module and enters the other."""
    from torch.distributed import _functional_collectives as functional

    model, own = torch.nn.Sequential(Reduced(), torch.nn.Flatten(0), torch.nn.ReLU()), []
    counted, given = functional.wait_tensor, torch.arange(6.0).reshape(2, 3)
    functional.wait_tensor = lambda tensor: (own.append(1), counted(tensor))[1]
    model[2].register_forward_pre_hook(lambda *_: found.append(len(own)))
    results = {}
    for mode in ("digest", "tensors"):
        out, found = folder / f"waits_{mode}", list[Any]()
        own.clear()
        with ac.capture(model, str(out), record=ac.Recorded(mode=mode)):
            model(given)
        found.append(len(own))
        with ac.open_bundle(out) as bundle:
            found += [
                each.digest
                for each in bundle.records()
                if each.rank == 0 and (each.name, each.role) in (("0", "output"), ("2", "input"))
            ]
        results[mode] = found
    functional.wait_tensor = counted
    return results


def sums() -> dict[str, Any]:
    """Of two parts of a gradient that lie as the names say: how the sum lies, this rank's part of
    it, and how many collectives that took."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = init_device_mesh("cpu", (2,))
    lying = {"replicas": Replicate(), "terms": Partial(), "cut": Shard(0)}
    parts = {
        name: DTensor.from_local(
            torch.full((1 if name == "cut" else 2,), 2.0), mesh, [placement], run_check=False
        )
        for name, placement in lying.items()
    }
    found: dict[str, Any] = {}
    for one, other in itertools.combinations_with_replacement(parts, 2):
        before = collectives()
        got: list[Any] = []
        total = Sum(got.append)
        total.expect()
        total.expect()
        total.add(parts[one])
        total.add(parts[other])
        (whole,) = got
        found[f"{one}, {other}"] = (
            total.apart,
            None if whole is None else str(whole.placements[0]),
            None if whole is None else whole.to_local().tolist(),
            (collectives() or 0) - (before or 0),
        )
    return found


def falls_silent(rank: int, folder: Path) -> None:
    """Rank 1 is gone without a word after two of three steps."""
    model = whole_model()
    with ac.capture(model, str(folder / "dead"), record=ac.Recorded(mode="stats")) as session:
        for number in range(3):
            if rank and number == 2:
                os._exit(0)
            model(torch.full((1, 2), number + rank))
            session.step()
            while rank and len(session._writer.published.steps) <= number:
                pass
    os._exit(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one, two and four processes have written; they are started once for all tests."""
    program = (
        "import sys, torch.multiprocessing as mp; from tests.recorder.test_layouts import work\n"
        "import torch.distributed.fsdp, torch.distributed.tensor.parallel\n"
        "import transformers.distributed\n"
        # once, and not once a process
        "from transformers import LlamaForCausalLM, MixtralForCausalLM\n"
        "work(0, 1, sys.argv[1])\n"  # here: what is imported and kept for later, the ranks have
        "for ranks in (2, 4): mp.start_processes(work, (ranks, sys.argv[1]), nprocs=ranks,"
        " start_method='fork')"
    )
    return made_once(tmp_path_factory, "layouts", program)


def by_key(bundle: Bundle) -> dict[Key, list[Record]]:
    found: dict[Key, list[Record]] = {}
    for each in bundle.records():
        found.setdefault((each.name, each.call, each.role, each.path), []).append(each)
    return found


def of_group(bundle: Bundle, records: list[Record]) -> list[list[Record]]:
    """The records of ranks that a layout speaks of: those with one place along all other
    dimensions."""
    groups: dict[Any, list[Record]] = {}
    for each in records:
        assert each.shard is not None
        mesh = bundle.manifests[each.rank].mesh
        place = tuple(mesh[name] for name in mesh if name not in each.shard.mesh)
        groups.setdefault(place, []).append(each)
    return [groups[place] for place in sorted(groups)]


def test_a_digest_is_taken_when_the_model_waits_for_a_collective(folder: Path) -> None:
    found = json.loads((folder / "waits-0.json").read_text())
    assert found["digest"][0] == 0 < found["digest"][1]
    assert found["tensors"][0] > 0
    (digest,) = {*found["digest"][2:], *found["tensors"][2:]}
    assert digest is not None


@pytest.mark.parametrize("name", [*TWO, *FOUR])
def test_a_capture_changes_nothing_and_asks_no_rank(name: str, folder: Path) -> None:
    for rank in range(LAYOUTS[name].ranks):
        found = json.loads((folder / f"{name}-{rank}.json").read_text())
        assert found["same"]
        plain, captured = found["collectives"]
        assert captured == plain + 2, "only the start of a capture talks: is the directory free?"


@pytest.mark.parametrize("name", SHARDED)
def test_the_weights_put_together_are_those_of_one_device_bit_for_bit(
    name: str, folder: Path, opened: Opened
) -> None:
    bundle, one = opened(folder / name), opened(folder / ones(name))
    parts = by_key(bundle)
    weights = [key for key in by_key(one) if key[2] is Role.PARAM_BEFORE]
    assert weights
    for key in weights:
        (golden,) = by_key(one)[key]
        if parts[key][0].shard is None:  # not parallelized: whole on each rank
            assert {each.digest for each in parts[key]} == {golden.digest}
        else:
            assert np.array_equal(put_together(bundle, parts[key]), one.values(golden)), key
    for rank, manifest in bundle.manifests.items():
        described = manifest.model["parameters"]
        assert described.keys() == one.manifest.model["parameters"].keys()
        placed = {
            f"{each.name}.{each.path}": each.shard
            for each in bundle.records()
            if each.rank == rank and each.role is Role.PARAM_BEFORE
        }
        assert {key: _built(shard) for key, shard in placed.items()} == {
            key: entry.get("shard") for key, entry in described.items()
        }


def _built(shard: Shard | None) -> Any:
    return None if shard is None else json.loads(msgspec.json.encode(shard))


@pytest.mark.parametrize("name", SHARDED)
def test_all_that_has_a_layout_put_together_is_what_one_device_computes(
    name: str, folder: Path, opened: Opened
) -> None:
    bundle, one = opened(folder / name), opened(folder / ones(name))
    golden = by_key(one)
    seen: set[Role] = set()
    for key, records in by_key(bundle).items():
        if all(each.shard is None for each in records) or key[2] in (
            Role.PARAM_UPDATE,  # AdamW's first is the gradient's sign
            Role.STATE_AFTER,
        ):
            continue
        wholes = [put_together(bundle, part) for part in of_group(bundle, records)]
        values = np.asarray(one.values(golden[key][0]), np.float64)
        if key[2] in UPDATE_ROLES:
            whole = wholes[0]  # whatever lies along the other dimensions, has the same
        elif key[2] is Role.CALL_GRAD:
            whole = np.mean(wholes, 0)  # of other rows; FSDP takes the mean
        else:
            whole = np.concatenate(wholes)
            whole /= LAYOUTS[name].data_ranks if key[2] in GRADIENT_ROLES else 1
        error = np.linalg.norm(whole - values)
        assert error <= (TWO | FOUR)[name] * np.linalg.norm(values), key
        seen.add(key[2])
    assert seen >= {Role.PARAM_GRAD, Role.PARAM_BEFORE}
    if "tp" in LAYOUTS[name].mesh and not LAYOUTS[name].transformer:
        assert seen >= {Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.CALL_GRAD}


def shard_of(bundle: Bundle, name: str, role: Role, path: str, rank: int = 1) -> Shard | None:
    return next(each.shard for each in by_key(bundle)[name, 0, role, path] if each.rank == rank)


def test_a_class_is_the_users_own_whatever_fully_shard_makes_of_it(
    folder: Path, opened: Opened
) -> None:
    one, bundle = opened(folder / "one"), opened(folder / "tp2dp2")
    assert {each.name: each.type for each in bundle.records()} == {
        each.name: each.type for each in one.records()
    }
    for part in ("class", "modules", "classes", "class_sources", "signatures"):
        assert bundle.manifest.model[part] == one.manifest.model[part]


def test_what_hooks_make_local_keeps_the_layout_that_it_had(folder: Path, opened: Opened) -> None:
    tp, sp = opened(folder / "tp2"), opened(folder / "sp2")
    up = "blocks.0.mlp.up"
    on_tp = functools.partial(Shard, mesh=("tp",))
    assert shard_of(tp, up, Role.OUTPUT, "") == on_tp((4, 6, 24), (0, 0, 12))
    assert shard_of(tp, "blocks.0.mlp.act", Role.INPUT, "0") == on_tp((4, 6, 24), (0, 0, 12))
    assert shard_of(tp, up, Role.GRAD_INPUT, "0") == on_tp((4, 6, 16), (0, 0, 0), "sum", ("tp",))
    down = "blocks.0.mlp.down"
    assert shard_of(tp, down, Role.OUTPUT, "") == on_tp((4, 6, 16), (0, 0, 0))
    assert shard_of(sp, down, Role.OUTPUT, "") == on_tp((4, 6, 16), (0, 3, 0))
    norm = "blocks.0.norm1"
    assert shard_of(sp, norm, Role.PARAM_GRAD, "weight") == on_tp((16,), (0,), "sum", ("tp",))
    assert shard_of(sp, norm, Role.PARAM_BEFORE, "weight") == on_tp((16,), (0,))


def test_the_type_in_which_fsdp_computes_is_told(folder: Path, opened: Opened) -> None:
    told = {"device": "cpu", "dtype": "bfloat16", "by": "MixedPrecisionPolicy"}
    assert opened(folder / "fsdp2_bfloat16").manifest.environment["autocast"] == told


def test_weights_that_a_module_uses_without_a_call_have_gradients_of_its_call(
    folder: Path, opened: Opened
) -> None:
    for ranks in (1, 2):
        grads = {
            each.path
            for each in opened(folder / f"borrows{ranks}").records()
            if each.role is Role.CALL_GRAD and each.name == "0"
        }
        assert grads == {"/0.child.weight", "/0.child.bias"}


def test_flat_parameters_lie_in_parts_and_are_no_all_clear(folder: Path, opened: Opened) -> None:
    bundle = opened(folder / "flat2")
    grads = [each for each in bundle.records() if each.role is Role.PARAM_GRAD and not each.step]
    assert [each.shard for each in grads] == [Shard((16,), (at,), mesh=("dp",)) for at in (0, 8)]
    assert ac.check_ranks(folder / "flat2").exit_code == 0
    comparison = ac.diff(folder / "flat1", folder / "flat2")
    assert comparison.exit_code == 2
    assert "use_orig_params=True" in comparison.conclusion


def test_parts_may_be_uneven(folder: Path, opened: Opened) -> None:
    """29 words on two ranks, or on two by two."""
    rows = {
        name: [
            (each.shard.start[0], each.shape[0])
            for each in by_key(opened(folder / name))["head", 0, Role.PARAM_GRAD, "weight"]
            if each.shard is not None
        ]
        for name in ("fsdp2", "tp2", "tp2dp2")
    }
    assert rows == {
        "fsdp2": [(0, 15), (15, 14)],
        "tp2": [(0, 15), (15, 14)],
        "tp2dp2": [(0, 8), (15, 7), (8, 7), (22, 7)],
    }


def test_a_part_may_be_no_single_box(folder: Path, opened: Opened) -> None:
    """Of gate and up, which transformers joins, each rank has half of each."""
    gate_up = "model.layers.0.mlp.experts", Role.PARAM_GRAD, "gate_up_proj"
    shard = shard_of(opened(folder / "mixtral_tp2"), *gate_up)
    assert shard is not None
    assert (shard.start, shard.runs[1]) == ((0, 12, 0), ((12, 12), (36, 12)))


def test_each_rank_knows_its_place_along_the_mesh(folder: Path, opened: Opened) -> None:
    meshes = {
        name: [each.mesh for each in opened(folder / name).manifests.values()]
        for name in ("one", *TWO, *FOUR)
    }
    two = {name: [{name: (index, 2)} for index in (0, 1)] for name in ("dp", "tp", "fsdp")}
    assert meshes == {
        "one": [{}],
        "ddp2": two["dp"],
        "fsdp1_2": two["dp"],
        "fsdp2": two["fsdp"],  # the mesh that FSDP2 makes has no names
        "fsdp2_bfloat16": two["dp"],
        "tp2": two["tp"],
        "sp2": two["tp"],
        "llama_tp2": two["tp"],
        "mixtral_tp2": two["tp"],
        "tp2dp2": [{"dp": (row, 2), "tp": (column, 2)} for row in (0, 1) for column in (0, 1)],
        "hsdp4": [
            {"dp_replicate": (row, 2), "dp_shard": (column, 2)}
            for row in (0, 1)
            for column in (0, 1)
        ],
    }


@pytest.mark.parametrize("mesh", [{"tp": [2, 2]}, {"tp": [0, 3]}, {"tp": [0]}, {"tp": "0"}, []])
def test_an_impossible_mesh_is_damage(mesh: Any, folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / "tp2" / "manifest.json").read_text())
    content = {**content, "mesh": mesh}
    for seal in ("sealed", "digest"):
        del content[seal]
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(BundleError, match="damaged; a field is malformed"):
        ac.open_bundle(tmp_path)


@pytest.mark.parametrize("name", ["fsdp2", "sp2", "tp2dp2"])
def test_one_device_starts_from_the_weights_that_ranks_have_saved(
    name: str, folder: Path, tmp_path: Path, opened: Opened
) -> None:
    model = whole_model(seed=6)
    with ac.capture(model, str(tmp_path / "one"), start=ac.StartFrom(like=str(folder / name))):
        pass
    ours, golden = model.state_dict(), whole_model().state_dict()
    assert all(torch.equal(ours[each], golden[each]) for each in golden)


def test_parts_of_a_gradient_are_added_without_the_other_ranks(folder: Path) -> None:
    for rank in (0, 1):
        found = json.loads((folder / f"sums-{rank}.json").read_text())
        assert found == {
            "replicas, replicas": [False, "R", [4, 4], 0],
            "replicas, terms": [False, "P(sum)", [3, 3], 0],  # half of a replica on each rank
            "replicas, cut": [False, "S(0)", [4], 0],
            "terms, terms": [False, "P(sum)", [4, 4], 0],
            "terms, cut": [True, None, None, 0],
            "cut, cut": [False, "S(0)", [4], 0],
        }


def test_ranks_drop_what_one_device_drops(folder: Path, opened: Opened) -> None:
    """Each rank draws the whole mask and takes its part, where a tensor knows its layout."""
    one, two = opened(folder / "dropped1"), opened(folder / "dropped2")
    golden = one.load("", role="output")
    assert 0 < (golden == 0).sum() < golden.size
    parts = by_key(two)["", 0, Role.OUTPUT, ""]
    assert [each.shape for each in parts] == [(4, 4), (3, 4)]
    assert np.array_equal(put_together(two, parts), golden)
    assert one.manifest.options.unplaced_draws == 0
    assert two.manifest.options.unplaced_draws == 1  # of the plain tensor


def test_a_rank_that_is_gone_leaves_the_steps_of_all(folder: Path, opened: Opened) -> None:
    bundle = opened(folder / "dead")
    steps = [[each.step for each in manifest.steps] for manifest in bundle.manifests.values()]
    assert steps == [[0, 1, 2], [0, 1]]
    assert {(each.rank, each.step) for each in bundle.records()} == {
        (rank, step) for rank in (0, 1) for step in steps[rank]
    }
    assert (bundle.manifests[0].complete, bundle.manifests[1].complete) == (True, False)
