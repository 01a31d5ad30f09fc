"""Dumps that transformers' model debugger writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers.model_debugging_utils import model_addition_debugger_context

import accucompare as ac
from accucompare.bundle.reading.reader import open_bundle
from accucompare.compare.rows.rows import Reason, Status
from accucompare.dumps.importing import import_dump
from accucompare.errors import UsageError
from accucompare.report.words import verdict_words
from tests.data.msprobe.model import build, tokens


def dumped(
    model: nn.Module,
    folder: Path,
    *inputs: torch.Tensor,
    prune: bool = False,
    use_repr: bool = False,
) -> Path:
    printing = torch._tensor_str.PRINT_OPTS.sci_mode
    with model_addition_debugger_context(
        model, debug_path=str(folder), do_prune_layers=prune, use_repr=use_repr
    ):
        model(*inputs)
    torch.set_printoptions(sci_mode=printing)
    return folder


def captured(model: nn.Module, out: Path, *inputs: torch.Tensor) -> Path:
    with ac.capture(model, out), torch.no_grad():
        model(*inputs)
    return out


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.fc(x))


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(3, 3)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hugging_face")
    model = build().eval()
    import_dump(dumped(model, folder / "dump", tokens()), folder / "imported")
    captured(model, folder / "golden", tokens())
    return folder


def test_every_row_of_a_forward_is_identical_or_says_why_it_cannot_be_compared(
    folder: Path,
) -> None:
    found = ac.diff(folder / "golden", folder / "imported")
    assert {row.reason for row in found.rows} == {
        Reason.IDENTICAL,
        Reason.NOT_COMPARABLE,
        Reason.NOT_CALLED,
    }
    assert all(verdict_words.detail(row) for row in found.rows if row.status is Status.NOT_COMPARED)
    assert found.compared == 37
    assert found.passed


def test_two_dumps_pass_though_neither_holds_what_the_model_returned(folder: Path) -> None:
    """The debugger records the outputs of modules without children only."""
    found = ac.diff(folder / "imported", folder / "imported")
    assert found.passed


def test_a_fault_is_named(folder: Path, tmp_path: Path) -> None:
    model = build().eval()
    nn.init.constant_(model.get_parameter("transformer.h.0.ln_2.bias"), 0.1)
    found = ac.diff(captured(model, tmp_path / "faulty", tokens()), folder / "imported")
    assert found.culprits[0].name == "transformer.h.0.ln_2"


def test_calls_whose_values_a_later_call_has_overwritten_are_listed_and_not_compared(
    tmp_path: Path,
) -> None:
    dumped(Twice(), tmp_path / "dump", torch.ones(2, 3))
    import_dump(tmp_path / "dump", tmp_path / "bundle")
    with open_bundle(tmp_path / "bundle") as bundle:
        assert [(record.name, record.call, record.role.value) for record in bundle.records()] == [
            ("", 0, "input"),
            ("fc", 1, "input"),
            ("fc", 1, "output"),
        ]
        assert any("overwritten" in note for note in bundle.manifest.notes)


def test_layers_that_were_pruned_are_no_difference(tmp_path: Path) -> None:
    model, x = Deep(), torch.ones(2, 3)
    import_dump(dumped(model, tmp_path / "dump", x, prune=True), tmp_path / "bundle")
    rows = ac.diff(captured(model, tmp_path / "golden", x), tmp_path / "bundle").rows
    assert not [row.place for row in rows if row.status is Status.FAIL]
    pruned = [row for row in rows if "do_prune_layers" in verdict_words.detail(row) and row.golden]
    assert {row.golden.name for row in pruned if row.golden} == {
        "layers.1", "layers.1.0", "layers.2", "layers.2.0",
    }  # fmt: skip


def test_text_of_four_digits_is_refused_with_the_cure(tmp_path: Path) -> None:
    dumped(Twice(), tmp_path / "dump", torch.ones(2, 3), use_repr=True)
    with pytest.raises(
        UsageError, match=r"FULL_TENSORS.json: holds values as text .* write it with use_repr=False"
    ):
        import_dump(tmp_path / "dump", tmp_path / "bundle")


def test_two_models_in_one_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "dump", tmp_path / "dump")
    tree = next((tmp_path / "dump").glob("*FULL_TENSORS.json"))
    shutil.copy(tree, tree.with_name("Other_debug_tree_FULL_TENSORS.json"))
    with pytest.raises(UsageError, match="holds dumps of 2 models; import one of them"):
        import_dump(tmp_path / "dump", tmp_path / "bundle")


@pytest.mark.parametrize(
    ("text", "kept"),
    [("True", True), ("-3", -3), ("1e-05", 1e-05), ("0.1", 0.1), ("'2'", None), ("9" * 30, None)],
)
def test_numbers_are_read_from_their_text(text: str, kept: object, tmp_path: Path) -> None:
    (tmp_path / "M_debug_tree_FULL_TENSORS.json").write_text(
        json.dumps({"module_path": "M", "inputs": {"args": ["0", text]}})
    )
    import_dump(tmp_path, tmp_path / "bundle")
    with open_bundle(tmp_path / "bundle") as bundle:
        assert [bundle.values(record)[()] for record in bundle.records() if record.path == "1"] == (
            [] if kept is None else [kept]
        )
