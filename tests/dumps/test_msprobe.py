"""msprobe's dumps, as msprobe wrote them: ``tests/data/msprobe/make.py`` says how.
``tests/dumps/test_hostile.py`` has damaged ones.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.api import Comparison
from accucompare.bundle.format.records import Record, Role
from accucompare.bundle.reading.reader import open_bundle
from accucompare.compare.rows.rows import Reason, Status
from accucompare.dumps.importing import import_dump
from accucompare.errors import UsageError
from accucompare.report.words import verdict_words
from tests.data.msprobe.model import build, tokens, train

DATA = Path(__file__).parent.parent / "data" / "msprobe"
FAULTY = "transformer.h.0.mlp.c_fc"


def captured(
    out: Path, steps: int, spoil: Callable[[nn.Module], object] = lambda model: None
) -> Path:
    model = build()
    spoil(model)
    with ac.capture(model, out) as session:
        train(model, tokens(), steps, after=session.step)
    return out


def scale_output(model: nn.Module) -> None:
    layer = model.get_submodule(FAULTY)
    right = layer.forward
    layer.forward = lambda x: right(x) * 1.02


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``tensor`` and ``statistics``: the dumps; ``from_tensor`` and ``from_statistics``: the
    bundles; ``golden``: a capture of the same.
    """
    folder = tmp_path_factory.mktemp("msprobe")
    for name in ("tensor", "statistics"):
        shutil.unpack_archive(DATA / f"{name}.zip", folder / name)
        import_dump(folder / name, folder / f"from_{name}")
    captured(folder / "golden", steps=2)
    captured(folder / "faulty", 1, scale_output)
    return folder


@pytest.fixture(scope="module")
def comparison(folder: Path) -> Comparison:
    return ac.diff(folder / "golden", folder / "from_tensor")


def records(bundle: Path, *roles: Role, step: int = 0) -> list[Record]:
    with open_bundle(bundle) as opened:
        return [
            record for record in opened.records() if record.role in roles and record.step == step
        ]


def names(found: list[Record]) -> list[tuple[str, str, str]]:
    return [(record.name, record.role.value, record.path) for record in found if record.dtype]


def test_every_row_of_a_training_step_is_within_tolerance_or_says_why_it_cannot_be_compared(
    comparison: Comparison,
) -> None:
    rows = [row for row in comparison.rows if row.record is not None and row.record.step == 0]
    assert {row.status for row in rows} == {Status.PASS, Status.NOT_COMPARED}
    assert all(verdict_words.detail(row) for row in rows if row.status is Status.NOT_COMPARED)
    compared = {
        row.record.role for row in rows if row.status is Status.PASS and row.record is not None
    }
    assert compared == {Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.PARAM_GRAD}


def test_every_tensor_of_a_layer_that_a_capture_has_of_those_roles_is_compared(
    comparison: Comparison,
) -> None:
    left = [
        row.place
        for row in comparison.rows
        if row.golden is not None
        and row.golden.step == 0
        and row.golden.name
        and row.golden.dtype
        and row.golden.role
        in (Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.PARAM_GRAD)
        and row.status is not Status.PASS
    ]
    assert left == []


def test_a_fault_in_one_of_the_two_is_named(folder: Path) -> None:
    found = ac.diff(folder / "from_tensor", folder / "faulty")
    assert found.passed is False
    assert found.culprits[0].name == FAULTY
    assert found.first_divergence is not None
    assert found.first_divergence.place == f"{FAULTY} output"


def test_each_layer_can_be_given_what_the_dump_says_it_was_given(
    folder: Path, tmp_path: Path
) -> None:
    model = build()
    scale_output(model)
    with ac.capture(model, tmp_path / "answers", feed=folder / "from_tensor") as session:
        train(model, tokens(), 1, after=session.step)
    found = ac.diff(folder / "from_tensor", tmp_path / "answers")
    failing = {
        row.record.name
        for row in found.rows
        if row.status is Status.FAIL and row.record is not None
    }
    assert found.fed
    assert failing == {FAULTY}


def test_another_dumps_weights_are_refused_before_anything_is_fed(
    folder: Path, tmp_path: Path
) -> None:
    model = build()
    nn.init.constant_(model.get_parameter(f"{FAULTY}.bias"), 0.5)
    with (
        pytest.raises(
            UsageError, match=f"is of other weights: parameter '{FAULTY}.bias': it differs"
        ),
        ac.capture(model, tmp_path / "answers", feed=folder / "from_tensor"),
    ):
        pass


def test_the_forward_comes_in_the_order_in_which_a_capture_records_it(folder: Path) -> None:
    ours, theirs = (
        names(records(folder / name, Role.INPUT, Role.OUTPUT)) for name in ("golden", "from_tensor")
    )
    assert theirs == [place for place in ours if place[0]]


def test_calls_know_in_which_call_they_were_made(folder: Path) -> None:
    ours, theirs = (
        {record.name: record.parent for record in records(folder / name, Role.OUTPUT)}
        for name in ("golden", "from_tensor")
    )
    assert {name: ours[name] for name in theirs} == theirs


def test_without_construct_json_names_tell_in_which_call_each_was_made(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "tensor", tmp_path / "dump")
    next((tmp_path / "dump").rglob("construct.json")).unlink()
    import_dump(tmp_path / "dump", tmp_path / "bundle")
    assert names(records(tmp_path / "bundle", *Role)) == names(
        records(folder / "from_tensor", *Role)
    )


def test_weights_are_held_against_those_of_the_capture(folder: Path, tmp_path: Path) -> None:
    def other_bias(model: nn.Module) -> None:
        nn.init.constant_(model.get_parameter(f"{FAULTY}.bias"), 0.5)

    found = ac.diff(captured(tmp_path / "other", 1, other_bias), folder / "from_tensor")
    assert [
        finding.message
        for finding in found.preflight
        if finding.serious and "parameters" in finding.topic
    ] == [f"1 of 17 parameters differ: {FAULTY}.bias"]


def test_what_the_dump_does_not_tell_is_no_difference_and_is_said_once(
    comparison: Comparison,
) -> None:
    said = [finding.message for finding in comparison.preflight if finding.topic == "import"]
    assert len(said) == 1
    assert "was imported from msprobe, whose dumps do not tell: train mode" in said[0]
    assert {finding.topic for finding in comparison.preflight if finding.serious} <= {"steps"}


def test_statistics_alone_pass_only_with_a_word_of_what_they_do_not_show(folder: Path) -> None:
    found = ac.diff(folder / "golden", folder / "from_statistics")
    assert found.passed
    assert found.by_statistics
    judged = [
        row
        for row in found.rows
        if row.status is Status.PASS
        and row.reason is not Reason.IDENTICAL
        and row.record
        and row.record.shape
    ]
    assert judged
    assert all(verdict_words.detail(row).startswith("by statistics alone") for row in judged)
    assert not [
        row
        for row in found.rows
        if row.reason is Reason.IDENTICAL and row.record and row.record.dtype == "float32"
    ]


def test_statistics_alone_show_a_fault(folder: Path) -> None:
    found = ac.diff(folder / "from_statistics", folder / "faulty")
    assert found.first_divergence is not None
    assert found.first_divergence.place == f"{FAULTY} output"


def test_each_step_and_each_tensor_has_its_own_statistics(folder: Path) -> None:
    index = json.loads(next((folder / "statistics" / "step1").rglob("dump.json")).read_text())[
        "data"
    ]
    for name in ("ln_1.LayerNorm", "ln_2.LayerNorm"):
        said = index[f"Module.transformer.h.0.{name}.forward.0"]["output"][0]
        kept = next(
            r
            for r in records(folder / "from_statistics", Role.OUTPUT, step=1)
            if r.name.endswith(name.partition(".")[0])
        )
        assert kept.statistics is not None
        assert (kept.statistics.max, kept.statistics.l2) == (said["Max"], said["Norm"])


def test_calls_of_functions_are_listed_and_not_imported(folder: Path) -> None:
    with open_bundle(folder / "from_statistics") as bundle:
        imported = bundle.manifest.options.imported
        assert imported is not None
        functions = [each.what for each in imported.left_out if each.what.startswith("Functional.")]
        index = json.loads(next((folder / "statistics" / "step0").rglob("dump.json")).read_text())[
            "data"
        ]
        assert len(functions) == 2 * len([key for key in index if key.startswith("Functional.")])
        assert any("a call of a function" in note for note in bundle.manifest.notes)


def test_ranks_are_ranks(folder: Path, tmp_path: Path) -> None:
    dump = next((folder / "statistics" / "step0").iterdir())
    for rank in (0, 1):
        shutil.copytree(dump, tmp_path / "dump" / "step3" / f"rank{rank}")
    import_dump(tmp_path / "dump", tmp_path / "bundle")
    with open_bundle(tmp_path / "bundle") as bundle:
        assert bundle.complete
        assert [(rank, entry.step) for rank, entry in bundle.steps()] == [(0, 3), (1, 3)]


def test_with_megatron_the_call_around_comes_with_a_number(tmp_path: Path) -> None:
    # b ran inside a, whatever its name
    data = {f"Module.{name}.Block.forward.0": {"output": [statistics()]} for name in ("b", "a")}
    (tmp_path / "step0" / "rank0").mkdir(parents=True)
    construct = {
        "Module.a.Block.forward.0": [None, 0],
        "Module.b.Block.forward.0": ["Module.a.Block.forward.0", 0],
    }
    (tmp_path / "step0" / "rank0" / "construct.json").write_text(json.dumps(construct))
    assert [(record.name, record.parent) for record in of_index(tmp_path, data)] == [
        ("b", ("a", 0)),
        ("a", ("", 0)),
    ]


def test_two_processes_of_one_step_are_refused_for_nobody_knows_which_is_meant(
    folder: Path, tmp_path: Path
) -> None:
    dump = next((folder / "statistics" / "step0").iterdir())
    for process in (1, 2):
        shutil.copytree(dump, tmp_path / "dump" / "step0" / f"proc{process}")
    with pytest.raises(
        UsageError, match=r"two dumps of step 0.*proc1 and .*proc2; import one of them"
    ):
        import_dump(tmp_path / "dump", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def statistics(**of: Any) -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [3],
        "Max": 2.0,
        "Min": 1.0,
        "Mean": 1.5,
        "Norm": 2.7,
        **of,
    }


def of_index(folder: Path, data: dict[str, Any]) -> list[Record]:
    """The records of a dump that has these lines in its index."""
    (folder / "step0" / "rank0").mkdir(parents=True, exist_ok=True)
    (folder / "step0" / "rank0" / "dump.json").write_text(
        json.dumps({"task": "statistics", "data": data})
    )
    import_dump(folder, folder / "bundle")
    with open_bundle(folder / "bundle") as bundle:
        return list(bundle.records())


@pytest.mark.parametrize("name", ["=1+1", "层1", "a b", "x/../y", "\u202eabc", "a" * 300])
def test_a_name_is_kept_as_it_is(name: str, tmp_path: Path) -> None:
    found = of_index(tmp_path, {f"Module.{name}.Linear.forward.0": {"output": [statistics()]}})
    assert [(record.name, record.type, record.call) for record in found] == [(name, "Linear", 0)]


@pytest.mark.parametrize(
    "prefix", ["module.", "module.module.", "_orig_mod.", "_fsdp_wrapped_module."]
)
def test_the_prefixes_of_wrappers_are_taken_off(prefix: str, tmp_path: Path) -> None:
    data = {
        f"Module.{prefix}{name}.Linear.forward.{call}": {"output": [statistics()]}
        for name, call in (("a", 0), ("b.c", 7))
    }
    assert [(record.name, record.call) for record in of_index(tmp_path, data)] == [
        ("a", 0),
        ("b.c", 7),
    ]


def test_nan_and_infinity_that_another_tool_does_not_count_are_known_to_be_there(
    tmp_path: Path,
) -> None:
    outputs = [
        statistics(Max=float("nan"), Mean=float("nan")),
        statistics(Min=float("-inf"), Norm=float("inf")),
        statistics(Norm=None),
    ]
    found = of_index(tmp_path, {"Module.a.Linear.forward.0": {"output": outputs}})
    kept = [
        (each.statistics.nan, each.statistics.inf, each.statistics.max, each.statistics.l2)
        for each in found
        if each.statistics
    ]
    assert kept == [(1, 0, None, None), (0, 1, None, None), (0, 0, 2.0, None)]


def test_gradients_of_several_backwards_are_listed_since_a_bundle_holds_their_sum(
    tmp_path: Path,
) -> None:
    data = {
        f"Module.a.Linear.parameters_grad.{call}": {"weight": [statistics()]} for call in (0, 1)
    }
    found = of_index(tmp_path, {"Module.a.Linear.forward.0": {"output": [statistics()]}, **data})
    assert [record.role for record in found] == [Role.OUTPUT]
    with open_bundle(tmp_path / "bundle") as bundle:
        assert any("several backwards" in note for note in bundle.manifest.notes)


def test_a_layer_that_the_dump_could_hold_and_does_not_is_missing(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "tensor", tmp_path / "dump")
    index = next((tmp_path / "dump").rglob("dump.json"))
    content = json.loads(index.read_text())
    del content["data"]["Module.transformer.h.0.mlp.act.NewGELUActivation.forward.0"]
    index.write_text(json.dumps(content))
    import_dump(tmp_path / "dump", tmp_path / "bundle")
    rows = ac.diff(folder / "faulty", tmp_path / "bundle").rows
    missing = [row.place for row in rows if row.reason is Reason.MISSING]
    assert missing == ["transformer.h.0.mlp.act input.0", "transformer.h.0.mlp.act output"]


def test_progress_ends_with_all_that_there_is(folder: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    found = import_dump(
        folder / "statistics",
        tmp_path / "bundle",
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] >= found.records


class Tuple(nn.Module):
    """A layer that returns a tuple of one, which msprobe's index does not tell from a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Flatten()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.fc(x)[0]
        return first


def test_a_tuple_of_one_is_compared_with_what_the_dump_says_is_one_output(tmp_path: Path) -> None:
    model, x = Tuple(), torch.tensor([[1.0, 2.0, 3.0]])
    model.fc.forward = lambda given: (given,)
    with ac.capture(model, tmp_path / "golden"):
        model(x)
    alike = statistics(shape=[1, 3], Max=3.0, Min=1.0, Mean=2.0, Norm=14.0**0.5)
    of_index(tmp_path, {"Module.fc.Flatten.forward.0": {"input_args": [alike], "output": [alike]}})
    rows = ac.diff(tmp_path / "golden", tmp_path / "bundle").rows
    assert [row.place for row in rows if row.status is Status.PASS] == ["fc input.0", "fc output.0"]
    assert not [row.place for row in rows if row.status is Status.FAIL]
