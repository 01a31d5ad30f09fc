"""Folders of .safetensors, .npy, .npz and .pt, read by a naming rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import accucompare as ac
from accucompare.bundle.format.records import Record
from accucompare.bundle.reading.reader import open_bundle
from accucompare.compare.rows.rows import Reason, Status
from accucompare.dumps.importing import import_dump
from accucompare.dumps.items import Naming
from accucompare.dumps.name_pattern import DEFAULT_PATTERN, NamePattern
from accucompare.errors import UsageError

VALUES = torch.arange(6, dtype=torch.float32).reshape(2, 3) / 7


def imported(folder: Path, pattern: str | None = None) -> list[Record]:
    import_dump(folder, folder.parent / "bundle", naming=Naming(pattern))
    with open_bundle(folder.parent / "bundle") as bundle:
        assert bundle.complete
        return list(bundle.records())


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    (tmp_path / "dump").mkdir()
    return tmp_path / "dump"


@pytest.mark.parametrize(
    ("pattern", "text", "place"),
    [
        (DEFAULT_PATTERN, "(root).output", ("", "output", "", 0, 0, 0)),
        (DEFAULT_PATTERN, "fc1.output", ("fc1", "output", "", 0, 0, 0)),
        (
            DEFAULT_PATTERN,
            "step2/rank1/h.0.fc1.call3.input.1.mask",
            ("h.0.fc1", "input", "1.mask", 3, 2, 1),
        ),
        (DEFAULT_PATTERN, "layers.0.output", ("layers.0", "output", "", 0, 0, 0)),
        (DEFAULT_PATTERN, "fc1.param_grad.weight", ("fc1", "param_grad", "weight", 0, 0, 0)),
        ("{name}_{call}_{_}_{role}", "h.1.fc_0_Linear_out", ("h.1.fc", "output", "", 0, 0, 0)),
        ("{step}/{name}.{call}.{role}.{path}", "7/=1+1.2.in.0", ("=1+1", "input", "0", 2, 7, 0)),
        ("{name}", "层1/x", ("层1/x", "output", "", 0, 0, 0)),
        ("{name}.{role}", "h.0.fc.weight.param", ("h.0.fc", "param", "weight", 0, 0, 0)),
        ("{name}.{role}", "fc.sideways", None),
    ],
)
def test_a_pattern_says_what_is_what_in_a_name(
    pattern: str, text: str, place: tuple[object, ...] | None
) -> None:
    found = NamePattern.parse(pattern).place(text)
    assert (
        found and (found.name, found.role.value, found.path, found.call, found.step, found.rank)
    ) == place


@pytest.mark.parametrize(
    "pattern", ["{role}", "{name}{name}", "{layer}.{name}", "{name", "{name}[.{call}", "name", ""]
)
def test_a_pattern_that_makes_no_sense_is_refused_with_an_example(pattern: str) -> None:
    with pytest.raises(UsageError, match=r"^--name-pattern "):
        NamePattern.parse(pattern)


def test_names_that_do_not_match_are_an_error_that_shows_one_and_an_example(dump: Path) -> None:
    np.save(dump / "layer1-result.npy", VALUES.numpy())
    with pytest.raises(
        UsageError,
        match=r"the tensor 'layer1-result' does not match .* such as --name-pattern '\{name\}'",
    ):
        import_dump(dump, dump.parent / "bundle")
    assert not (dump.parent / "bundle").exists()


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.int64,
        torch.bool,
    ],
)
@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_every_type_comes_with_its_bits(dtype: torch.dtype, ending: str, dump: Path) -> None:
    values = (VALUES * 8).to(dtype)
    if ending == "pt":
        torch.save(
            {"fc.0.output": values, "fc.0.input": [values[0], values[:, 1]]}, dump / "step0.pt"
        )
    else:
        save_file(
            {
                "fc.0.output": values,
                "fc.0.input/0": values[0].clone(),
                "fc.0.input/1": values[:, 1].clone(),
            },
            dump / "step0.safetensors",
        )
    found = imported(dump, "step{step}/{name}.{call}.{role}[/{path}]")
    assert [(each.role.value, each.path, each.dtype, each.shape) for each in found] == [
        ("input", "0", str(dtype)[6:], (3,)),
        ("input", "1", str(dtype)[6:], (2,)),
        ("output", "", str(dtype)[6:], (2, 3)),
    ]
    with open_bundle(dump.parent / "bundle") as bundle:
        assert np.array_equal(bundle.values(found[2]), values.to(torch.float64).numpy())
        assert np.array_equal(bundle.values(found[1]), values[:, 1].to(torch.float64).numpy())


@pytest.mark.parametrize("order", ["C", "F", ">"])
def test_arrays_of_any_order_come_with_their_values(order: str, dump: Path) -> None:
    array = (
        VALUES.numpy().astype(">f4") if order == ">" else np.asarray(VALUES.numpy(), order=order)
    )  # type: ignore[call-overload]
    np.save(dump / "a.output.npy", array)
    np.savez(dump / "b.npz", output=array)
    np.savez_compressed(dump / "c.npz", output=array)
    found = imported(dump, "{name}[.{role}][/output]")
    assert [each.name for each in found] == ["a", "b", "c"]
    with open_bundle(dump.parent / "bundle") as bundle:
        assert all(np.array_equal(bundle.values(each), VALUES.numpy()) for each in found)


def test_calls_come_in_natural_order_inputs_before_outputs(dump: Path) -> None:
    for name in ("h.10", "h.9"):
        for role in ("output", "input"):
            np.save(dump / f"{name}.fc.{role}.npy", VALUES.numpy())
    assert [(each.name, each.role.value) for each in imported(dump)] == [
        ("h.9.fc", "input"),
        ("h.9.fc", "output"),
        ("h.10.fc", "input"),
        ("h.10.fc", "output"),
    ]


def test_what_is_no_tensor_is_listed(dump: Path) -> None:
    torch.save({"fc.output": VALUES, "when": "today"}, dump / "x.pt")
    (dump / "notes.txt").write_text("hello")
    import_dump(dump, dump.parent / "bundle", naming=Naming("x/{name}.{role}"))
    with open_bundle(dump.parent / "bundle") as bundle:
        assert bundle.manifest.options.imported is not None
        left = {each.what: each.why for each in bundle.manifest.options.imported.left_out}
    assert left == {
        "notes.txt (step 0, rank 0)": "no .safetensors, .npy, .npz or .pt",
        "x/when (step 0, rank 0)": "a str, and no tensor",
    }


def test_a_folder_of_one_layer_is_compared_with_a_capture_of_the_same(
    dump: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    with ac.capture(model, tmp_path / "golden"), torch.no_grad():
        model(VALUES)
    with torch.no_grad():
        wrong = torch.relu(model[0](VALUES)) * 1.01
        for name, role, values in (
            ("0", "output", model[0](VALUES)),
            ("1", "output", wrong),
            ("2", "output", model[2](wrong)),
        ):
            np.save(dump / f"{name}.{role}.npy", values.numpy())
        np.save(dump / "2.param.bias.npy", model[2].bias.numpy())
    import_dump(dump, tmp_path / "npu")
    found = ac.diff(tmp_path / "golden", tmp_path / "npu")
    assert found.first_divergence is not None
    assert found.first_divergence.place == "1 output"
    assert [row.place for row in found.rows if row.status is Status.PASS] == ["0 output"]
    # it has no input of any layer
    assert not [row.place for row in found.rows if row.reason is Reason.MISSING]


def test_a_layer_with_a_number_and_its_only_input_without_a_path_find_golden_s(
    dump: Path, tmp_path: Path
) -> None:
    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[0](input=x)  # type: ignore[no-any-return]

    model = Named()
    with ac.capture(model, tmp_path / "golden"), torch.no_grad():
        answer = model(VALUES)
    np.save(dump / "layers.0.output.npy", answer.numpy())
    np.save(dump / "layers.0.input.npy", VALUES.numpy())
    import_dump(dump, tmp_path / "npu")
    rows = ac.diff(tmp_path / "golden", tmp_path / "npu").rows
    assert [row.place for row in rows if row.golden and row.candidate] == [
        "layers.0 input.input",
        "layers.0 output",
    ]
    assert not [row.place for row in rows if row.status is Status.FAIL]


def test_a_bundle_is_no_dump_of_another_tool(dump: Path) -> None:
    with ac.capture(model := torch.nn.Linear(3, 2), dump, overwrite=True):
        model(VALUES)
    with pytest.raises(UsageError, match="is a bundle already, and needs no import"):
        import_dump(dump, dump.parent / "out")
