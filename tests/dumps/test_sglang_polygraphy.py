"""Dumps that SGLang's dumper and Polygraphy wrote themselves (tests/data, beside the scripts that
made them), and hostile ones.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import os
import pickle
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import accucompare as ac
from accucompare.bundle.format.records import Role
from accucompare.compare.rows.rows import Reason, Status
from accucompare.dumps import onnx_graph
from accucompare.dumps.importing import import_dump
from accucompare.dumps.items import Naming
from accucompare.errors import BundleError, UsageError
from tests.conftest import Run

DATA = Path(__file__).parent.parent / "data"


@cache
def small_model() -> Any:
    """The module of the models that the dumps are of."""
    spec = importlib.util.spec_from_file_location("small_model", DATA / "small_model.py")
    assert spec is not None
    assert spec.loader is not None
    small = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(small)
    return small


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our own capture of the model that the dumps are of."""
    small = small_model()
    path = tmp_path_factory.mktemp("dumps") / "golden"
    model = small.model()
    with ac.capture(model, path, seed=0):
        model(small.inputs()).square().mean().backward()
    return path


def name_of(name: str, index: int = 1, **tags: Any) -> str:
    """A file's name, as SGLang writes it."""
    return (
        "___".join(
            f"{key}={value}"
            for key, value in {
                "step": 0,
                "rank": 0,
                "dump_index": index,
                "name": name,
                **tags,
            }.items()
        )
        + ".pt"
    )


def test_every_tensor_of_sglang_s_hooks_is_the_same_as_in_a_capture(
    golden: Path, tmp_path: Path
) -> None:
    shutil.unpack_archive(DATA / "sglang" / "dump.zip", tmp_path / "dump")
    found = import_dump(tmp_path / "dump", tmp_path / "out")
    assert (found.records, len(found.left_out), found.unreadable) == (36, 9, [])
    assert {each.why.split(";")[0] for each in found.left_out} == {
        "the gradient of a tensor by all that use it"
    }
    compared = ac.diff(golden, tmp_path / "out", limits=ac.Tolerance(rel_l2=1e-5))
    # SGLang records no such
    assert {row.reason for row in compared.rows if not (row.golden and row.candidate)} == {
        Reason.NOT_COMPARABLE
    }
    rows = [row for row in compared.rows if row.golden and row.candidate]
    assert len(rows) == 36
    assert {row.status for row in rows} == {Status.PASS}
    assert {row.golden.role for row in rows if row.golden} == {
        Role.INPUT,
        Role.OUTPUT,
        Role.GRAD_OUTPUT,
    }


def test_gradients_that_sglang_was_not_asked_for_are_no_difference(
    golden: Path, tmp_path: Path
) -> None:
    shutil.unpack_archive(DATA / "sglang" / "dump.zip", tmp_path / "dump")
    for path in (tmp_path / "dump").glob("*name=grad__*"):
        path.unlink()
    import_dump(tmp_path / "dump", tmp_path / "out")
    assert ac.diff(golden, tmp_path / "out", limits=ac.Tolerance(rel_l2=1e-5)).passed


def test_a_tensor_that_sglang_should_have_is_told(golden: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(DATA / "sglang" / "dump.zip", tmp_path / "dump")
    next((tmp_path / "dump").glob("*layers.1.act.output__*")).unlink()
    import_dump(tmp_path / "dump", tmp_path / "out")
    compared = ac.diff(golden, tmp_path / "out", limits=ac.Tolerance(rel_l2=1e-5))
    assert [row.place for row in compared.rows if row.reason is Reason.ONE_SIDED] == [
        "layers.1.act output"
    ]
    assert "1 row on one side only, the first layers.1.act output" in compared.conclusion


def test_a_fault_in_a_dump_of_sglang_is_named(golden: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(DATA / "sglang" / "dump.zip", tmp_path / "dump")
    (path,) = (tmp_path / "dump").glob("*layers.1.act.output__*")
    content = torch.load(path, weights_only=True)
    content["value"] = content["value"].detach() * 1.1
    torch.save(content, path)
    import_dump(tmp_path / "dump", tmp_path / "out")
    found = ac.diff(golden, tmp_path / "out", limits=ac.Tolerance(rel_l2=1e-5))
    assert found.first_divergence is not None
    assert found.first_divergence.place == "layers.1.act output"


def test_tags_of_sglang_say_step_rank_call_parameter_and_recomputation(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    dump.mkdir()
    names = [
        name_of("non_intrusive__attention.output.output", 1),
        name_of("non_intrusive__attention.output.output", 2),
        name_of("non_intrusive__attention.output.dense.inputs.0.key", 3, rank=1, step=2),
        name_of("grad__param__fc.weight", 4),
        name_of("hidden_states", 5, layer_id=3),
        name_of("non_intrusive__fc.output", 6, recompute_status="recompute"),
    ]
    for name in names:
        torch.save({"value": torch.ones(2, dtype=torch.bfloat16), "meta": {}}, dump / name)
    torch.save({"value": 3, "meta": {}}, dump / name_of("count", 7))
    (dump / "other.pt").write_bytes(b"")
    found = import_dump(dump, tmp_path / "out")
    assert [each.what.split(" ")[0] for each in found.left_out] == [
        "other.pt",
        "non_intrusive__fc.output",
    ]
    with ac.open_bundle(tmp_path / "out") as bundle:
        keys = {(*record.key, record.dtype) for record in bundle.records()}
    assert keys == {
        (0, 0, "attention.output", 0, Role.OUTPUT, "", "bfloat16"),
        (0, 0, "attention.output", 1, Role.OUTPUT, "", "bfloat16"),
        (1, 2, "attention.output.dense", 0, Role.INPUT, "0.key", "bfloat16"),
        (0, 0, "fc", 0, Role.PARAM_GRAD, "weight", "bfloat16"),
        (0, 0, "hidden_states.3", 0, Role.OUTPUT, "", "bfloat16"),
        (0, 0, "count", 0, Role.OUTPUT, "", "int64"),
    }


def test_one_rank_of_sglang_alone_is_rank_0_and_says_which_it_was(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    torch.save({"value": torch.ones(2), "meta": {}}, tmp_path / "dump" / name_of("a", rank=3))
    found = import_dump(tmp_path / "dump", tmp_path / "out")
    assert "of rank 3 alone, which is rank 0 here" in found.notes
    with ac.open_bundle(tmp_path / "out") as bundle:
        assert [record.rank for record in bundle.records()] == [0]
    torch.save({"value": torch.ones(2), "meta": {}}, tmp_path / "dump" / name_of("a", 2, rank=2))
    with pytest.raises(BundleError, match="lacks rank 0"):
        import_dump(tmp_path / "dump", tmp_path / "both")


class _Runs:
    """What runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def test_code_in_a_file_of_sglang_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dump").mkdir()
    torch.save(
        {"value": torch.ones(2), "meta": {"hook": _Runs()}}, tmp_path / "dump" / name_of("a")
    )
    (tmp_path / "dump" / name_of("b", 2)).write_bytes(pickle.dumps(_Runs()))
    (tmp_path / "dump" / name_of("c", 3)).write_bytes(
        (tmp_path / "dump" / name_of("a")).read_bytes()[:-50]
    )
    torch.save({"value": ["text"], "meta": {}}, tmp_path / "dump" / name_of("d", 4))
    found = import_dump(tmp_path / "dump", tmp_path / "out")
    reasons = [
        "holds more than tensors",
        "is truncated",
        "is truncated",
        "holds a list, and no tensor",
    ]
    assert len(found.unreadable) == 4
    assert all(reason in said for reason, said in zip(reasons, found.unreadable, strict=True)), (
        found.unreadable
    )
    assert not (tmp_path / "ran").exists()


def test_gradients_that_megatron_keeps_in_main_grad_are_those_of_a_capture(tmp_path: Path) -> None:
    model = small_model().model()
    with ac.capture(model, tmp_path / "golden", seed=0):
        model(small_model().inputs()).square().mean().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
    shutil.unpack_archive(DATA / "sglang" / "main_grad.zip", tmp_path / "dump")
    found = import_dump(tmp_path / "dump", tmp_path / "out")
    assert (found.records, found.left_out) == (14, [])
    compared = ac.diff(tmp_path / "golden", tmp_path / "out", limits=ac.Tolerance(rel_l2=1e-5))
    rows = [row for row in compared.rows if row.golden and row.candidate]
    assert {row.status for row in rows} == {Status.PASS}
    assert [row.golden.role for row in rows if row.golden] == [Role.PARAM_GRAD] * 14


def test_a_link_out_of_a_dump_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    torch.save({"value": torch.ones(2)}, tmp_path / "secret.pt")
    (tmp_path / "dump" / name_of("a")).symlink_to(tmp_path / "secret.pt")
    with pytest.raises(BundleError, match="leads out of the dump; refused"):
        import_dump(tmp_path / "dump", tmp_path / "out")


def test_outputs_of_polygraphy_are_those_of_the_modules(golden: Path, tmp_path: Path) -> None:
    found = import_dump(DATA / "polygraphy" / "outputs.json", tmp_path / "out")
    assert (found.records, [each.what.split(" ")[0] for each in found.left_out]) == (
        11,
        ["layers.1.norm.bias", "layers.1.norm.weight"],
    )
    compared = ac.diff(golden, tmp_path / "out", limits=ac.Tolerance(rel_l2=1e-5))
    assert compared.passed
    rows = [row for row in compared.rows if row.golden and row.candidate]
    modules = [
        f"layers.{n}{part}" for n in (0, 1) for part in (".norm", ".up", ".act", ".down", "")
    ]
    assert [row.module for row in rows] == [*modules, ""]
    assert {row.status for row in rows} == {Status.PASS}


def captured(name: str, path: Path) -> None:
    model, inputs = small_model().EXPORTED[name]
    module = model()
    with ac.capture(module, path, seed=0):
        module(inputs())


#: By the model that ran, of how many calls the outputs are known.
EXPORTED = {
    "sequential-older": 4,
    "sequential-default": 4,
    "twice-older": 15,
    "twice-default": 17,
    "repeated-older": 10,
    "repeated-default": 9,
    "convolutions-older": 5,
    "convolutions-default": 6,
}


@pytest.mark.parametrize("name", EXPORTED)
def test_what_a_sound_onnx_model_computes_is_what_its_modules_compute(
    name: str, tmp_path: Path
) -> None:
    dump = DATA / "polygraphy" / name
    captured(name.split("-")[0], tmp_path / "golden")
    import_dump(dump / "outputs.json", tmp_path / "out", naming=Naming(onnx=dump / "model.onnx"))
    compared = ac.diff(tmp_path / "golden", tmp_path / "out", limits=ac.Tolerance(rel_l2=1e-5))
    assert compared.passed
    assert len([row for row in compared.rows if row.golden and row.candidate]) == EXPORTED[name]


@pytest.mark.parametrize("name", [name for name in EXPORTED if name.endswith("older")])
def test_a_sound_onnx_model_passes_by_the_names_of_its_values_too(
    name: str, tmp_path: Path
) -> None:
    captured(name.split("-")[0], tmp_path / "golden")
    import_dump(DATA / "polygraphy" / name / "outputs.json", tmp_path / "out")
    assert ac.diff(tmp_path / "golden", tmp_path / "out", limits=ac.Tolerance(rel_l2=1e-5)).passed


def test_names_that_say_no_module_are_told_with_what_to_type(cli: Run, tmp_path: Path) -> None:
    captured("twice", tmp_path / "golden")
    done = cli(
        "import", DATA / "polygraphy" / "twice-default" / "outputs.json", "--out", tmp_path / "out"
    )
    assert "--onnx MODEL.onnx says which module computes what" in done.stdout
    assert cli("diff", tmp_path / "golden", tmp_path / "out", "--report", "none").returncode == 2


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("linear_1", "fc call 1 output"),
        ("gelu_1", "layers.1.act output"),
        ("linear_5", "layers.1.down output"),
        ("linear_7", "fc_1 output"),
    ],
)
def test_a_fault_in_a_value_of_an_onnx_model_is_named(
    value: str, place: str, tmp_path: Path
) -> None:
    captured("twice", tmp_path / "golden")
    content = json.loads((DATA / "polygraphy" / "twice-default" / "outputs.json").read_text())
    outputs = content["lst"][0][1][0]["outputs"]
    array = np.load(io.BytesIO(base64.b64decode(outputs[value]["values"]["array"])))
    outputs[value]["values"]["array"] = encoded(array * 1.01)
    (tmp_path / "x.json").write_text(json.dumps(content))
    import_dump(
        tmp_path / "x.json",
        tmp_path / "out",
        naming=Naming(onnx=DATA / "polygraphy" / "twice-default" / "model.onnx"),
    )
    found = ac.diff(tmp_path / "golden", tmp_path / "out", limits=ac.Tolerance(rel_l2=1e-5))
    assert found.first_divergence is not None
    assert found.first_divergence.place == place


def test_a_module_named_like_a_second_call_is_told_by_its_weights(tmp_path: Path) -> None:
    computed = onnx_graph.calls_of(["/fc", "/fc_1", "/act", "/act_1"], ["fc_1.weight"])
    assert computed["/fc_1"] == onnx_graph.OnnxCall("fc_1", 0)
    assert computed["/act_1"] == onnx_graph.OnnxCall("act", 1)


@pytest.mark.parametrize("cut", [0, 1, 100, 1000, -1])
def test_a_damaged_onnx_model_is_refused(cut: int, tmp_path: Path) -> None:
    dump = DATA / "polygraphy" / "twice-older"
    (tmp_path / "model.onnx").write_bytes((dump / "model.onnx").read_bytes()[:cut])
    with pytest.raises(BundleError, match=r"model.onnx: is damaged, or no ONNX model"):
        import_dump(
            dump / "outputs.json", tmp_path / "out", naming=Naming(onnx=tmp_path / "model.onnx")
        )


def test_a_model_that_is_not_there_is_told(tmp_path: Path) -> None:
    dump = DATA / "polygraphy" / "twice-older"
    with pytest.raises(
        UsageError, match=r"missing.onnx: cannot be read \(No such file or directory\)"
    ):
        import_dump(
            dump / "outputs.json", tmp_path / "out", naming=Naming(onnx=tmp_path / "missing.onnx")
        )


def test_a_model_is_refused_for_dumps_that_are_of_none(tmp_path: Path) -> None:
    (tmp_path / "x.output.npy").write_bytes(base64.b64decode(NPY))
    with pytest.raises(UsageError, match=r"--onnx: dumps of .* are of no ONNX model; leave it out"):
        import_dump(tmp_path, tmp_path / "out", naming=Naming(onnx=tmp_path / "model.onnx"))


def test_a_fault_in_outputs_of_polygraphy_is_named(golden: Path, tmp_path: Path) -> None:
    content = json.loads((DATA / "polygraphy" / "outputs.json").read_text())
    outputs = content["lst"][0][1][0]["outputs"]
    outputs["/layers.1/act/Gelu_output_0"] = outputs["/layers.0/act/Gelu_output_0"]
    (tmp_path / "x.json").write_text(json.dumps(content))
    import_dump(tmp_path / "x.json", tmp_path / "out")
    found = ac.diff(golden, tmp_path / "out", limits=ac.Tolerance(rel_l2=1e-5))
    assert found.first_divergence is not None
    assert found.first_divergence.place == "layers.1.act output"


def polygraphy(path: Path, *runs: Any) -> Path:
    path.write_text(json.dumps({"lst": list(runs)}))
    return path


def run(**outputs: Any) -> Any:
    values = {
        name: {"values": {"array": array}, "polygraphy_class": "LazyArray"}
        for name, array in outputs.items()
    }
    return ["runner", [{"outputs": values}]]


def encoded(array: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


NPY = encoded(np.ones(3))
HUGE = base64.b64encode(
    b"\x93NUMPY\x01\x00v\x00"
    + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }".ljust(117)
    + b"\n"
).decode()


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (NPY[:-9], "is no base64"),
        ("%%%%", "is no base64"),
        (NPY[:120], "is truncated, or no .npy"),
        (
            base64.b64encode(base64.b64decode(NPY)[:-8]).decode(),
            "its header says 24 bytes of data, but there are 16",
        ),
        (HUGE, "its header says 8796093022208 bytes of data"),
        (encoded(np.array([{}], object)), "holds objects, and not numbers; refused"),
        ({"values": {"values": {}}}, "holds no array of NumPy's"),
        (base64.b64encode(b"PK\x03\x04").decode(), "is truncated, or no .npy"),
    ],
    ids=["cut", "garbage", "cut header", "cut data", "huge", "pickle", "none", "zip"],
)
def test_a_damaged_array_of_polygraphy_is_named_and_the_others_are_read(
    array: Any, said: str, tmp_path: Path
) -> None:
    found = import_dump(polygraphy(tmp_path / "x.json", run(bad=array, good=NPY)), tmp_path / "out")
    assert (len(found.unreadable), found.records) == (1, 2)
    assert "x.json: bad: " in found.unreadable[0]
    assert said in found.unreadable[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"lst": [["r", [{"outputs": {"a"', "it is not valid JSON"),
        ('{"lst": [["r", [{"outputs": ' + "[" * 100_000, "it is not valid JSON"),
        (
            '{"lst": [3], "outputs": 0}',
            "is damaged, or not what Polygraphy's --save-outputs writes",
        ),
        ('{"lst": [["r", [{"outputs": 3}]]]}', "an iteration has no outputs"),
    ],
    ids=["truncated", "deep", "other", "no outputs"],
)
def test_a_damaged_file_of_polygraphy_is_refused(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(BundleError, match=said):
        import_dump(tmp_path / "x.json", tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_name_pattern_says_what_names_of_onnx_that_say_no_module_are(
    golden: Path, tmp_path: Path
) -> None:
    gelu = json.loads((DATA / "polygraphy" / "outputs.json").read_text())["lst"][0][1][0][
        "outputs"
    ]["/layers.1/act/Gelu_output_0"]
    dump = polygraphy(tmp_path / "x.json", run(gelu_1=gelu["values"]["array"], other=NPY))
    found = import_dump(dump, tmp_path / "out", naming=Naming("{name}_{call}"))
    assert [(each.what.split(" ")[0], each.why) for each in found.left_out] == [
        ("other", "its name does not match --name-pattern '{name}_{call}'")
    ]
    import_dump(dump, tmp_path / "plain", naming=Naming("{name}"))
    compared = ac.diff(
        golden, tmp_path / "plain", map="layers.1.act=gelu_1", limits=ac.Tolerance(rel_l2=1e-5)
    )
    assert [row.place for row in compared.rows if row.golden and row.candidate] == [
        "layers.1.act output"
    ]
    assert compared.passed
    with pytest.raises(UsageError, match="iterations are the steps"):
        import_dump(dump, tmp_path / "no", naming=Naming("{step}/{name}"))


def test_runs_of_two_runners_are_refused_with_the_command_to_type(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"holds 2 runs \(runner, runner\); save each apart: polygraphy run"
    ):
        import_dump(polygraphy(tmp_path / "x.json", run(a=NPY), run(a=NPY)), tmp_path / "out")
