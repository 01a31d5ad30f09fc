"""Starting from a bundle captured with its state: same weights, inputs, seed, selection and
mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.format.records import Role
from accucompare.devices import DeviceName
from accucompare.errors import BundleError, CaptureError, UsageError
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session import Within, recording
from accucompare.recorder.session.case_capture import capture_case
from accucompare.recorder.state.starting_state import put_together, take_apart
from accucompare.selection import FloatType
from tests.compare.builder import edit_manifest
from tests.recorded import Glue, Opened

CPU = DeviceName("cpu")

CASE = """
import torch
from torch import nn
from accucompare import Case

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer(
            "table", torch.arange(4.0), persistent=False
        )  # computed, so that it is the same each time

    def forward(self, ids, options=None, scale=1.0):
        return self.head(self.drop(self.norm(self.embed(ids))) * self.table * scale)

def case():
    return Case(
        Net().train(),
        [
            ((torch.randint(0, 9, (5,)), {"x": [None, 2, "word"]})),
            {"ids": torch.randint(0, 9, (3,)), "scale": 0.5},
        ],
    )

def nothing_but_code():
    torch.manual_seed(999)
    return Case(Net().eval())
"""


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(CASE)
    return capture_case(
        f"{tmp_path}/net.py",
        tmp_path / "golden",
        CPU,
        CaptureOptions(seed=11, save_state=True, skip=["norm"]),
    )


def test_weights_that_golden_replaced_are_named(golden: Path, tmp_path: Path) -> None:
    """Else an all-clear would say nothing of a model whose own weights are wrong."""
    capture_case(f"{tmp_path}/net.py", tmp_path / "same", CPU, CaptureOptions(like=golden))
    capture_case(
        f"{tmp_path}/net.py:nothing_but_code", tmp_path / "other", CPU, CaptureOptions(like=golden)
    )
    same, other = (ac.diff(golden, tmp_path / name) for name in ("same", "other"))
    assert same.answer.value == "identical"
    assert other.conclusion.startswith(
        "identical; 1 of the case's own weights were not golden's, and were replaced by them"
        " (embed.weight)"
    )
    assert (
        "candidate: start (--like): 1 of the model's weights held other values before: embed.weight"
        in [finding.message for finding in other.preflight]
    )


def test_a_case_that_has_only_the_models_code_repeats_the_golden_run(
    golden: Path, tmp_path: Path
) -> None:
    capture_case(
        f"{tmp_path}/net.py:nothing_but_code", tmp_path / "again", CPU, CaptureOptions(like=golden)
    )
    comparison = ac.diff(golden, tmp_path / "again")
    assert set(comparison.counts()) == {"identical"}
    assert comparison.passed


def test_seed_selection_and_mode_are_taken_over_and_noted(
    golden: Path, tmp_path: Path, opened: Opened
) -> None:
    capture_case(
        f"{tmp_path}/net.py:nothing_but_code", tmp_path / "again", CPU, CaptureOptions(like=golden)
    )
    manifest = opened(tmp_path / "again").manifest
    assert manifest.capture["seed"] == 11
    assert manifest.capture["skip"] == ["norm"]
    assert manifest.capture["like"] == str(golden)
    assert manifest.model["training"] is True


def test_a_seed_and_a_selection_given_win(golden: Path, tmp_path: Path, opened: Opened) -> None:
    capture_case(
        f"{tmp_path}/net.py:nothing_but_code",
        tmp_path / "again",
        CPU,
        CaptureOptions(like=golden, seed=12, only=["head"]),
    )
    manifest = opened(tmp_path / "again").manifest
    assert (manifest.capture["seed"], manifest.capture["only"], manifest.capture["skip"]) == (
        12,
        ["head"],
        [],
    )


def test_the_state_can_be_taken_over_in_another_dtype(
    golden: Path, tmp_path: Path, opened: Opened
) -> None:
    capture_case(
        f"{tmp_path}/net.py:nothing_but_code",
        tmp_path / "bf16",
        CPU,
        CaptureOptions(like=golden),
        dtype=FloatType.BFLOAT16,
    )
    first, second = opened(golden).manifest.model, opened(tmp_path / "bf16").manifest.model
    for kind in ("parameters", "buffers"):
        for name, entry in first[kind].items():
            dtype = second[kind][name]["dtype"]
            assert entry["digests"][dtype] == second[kind][name]["digests"][dtype], name
    assert second["parameters"]["head.weight"]["dtype"] == "bfloat16"


def test_a_modules_own_mode_is_taken_over(tmp_path: Path) -> None:
    def build() -> nn.Sequential:
        return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))

    model, other = build().train(), build().eval()
    model[1].eval()
    with ac.capture(model, tmp_path / "golden", save_state=True):
        model(torch.randn(3, 2))
    with ac.capture(other, tmp_path / "other", start=tmp_path / "golden"):
        assert [module.training for module in other.modules()] == [True, True, False, True]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64], ids=str
)
def test_weights_of_any_dtype_buffers_and_tied_weights_come_back(
    dtype: torch.dtype, tmp_path: Path, opened: Opened
) -> None:
    def build() -> nn.Module:
        model = nn.Module()
        model.weight = nn.Parameter(torch.randn(3, 2, dtype=dtype))
        model.tied = model.weight
        model.register_buffer("count", torch.randint(0, 99, ()))
        model.register_buffer("mask", torch.rand(4) > 0.5)
        model.register_buffer("nothing", None)
        return model

    first, second = build(), build()
    with ac.capture(first, tmp_path / "golden", save_state=True):
        pass
    with ac.capture(second, tmp_path / "out", start=tmp_path / "golden"):
        pass
    for name, tensor in first.state_dict().items():
        assert torch.equal(second.state_dict()[name], tensor), name
    assert second.tied is second.weight
    state = list(opened(tmp_path / "golden").state())
    assert {entry.name for entry in state if entry.role is Role.PARAM} == {"weight", "tied"}
    assert len({entry.member for entry in state if entry.role is Role.PARAM}) == 1


def test_the_state_is_that_before_the_run(tmp_path: Path) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2))
    with ac.capture(model, tmp_path / "golden", save_state=True):
        model(torch.randn(3, 2) + 5)
    assert model[0].running_mean.abs().sum() > 0.1
    with ac.capture(model, tmp_path / "out", start=tmp_path / "golden"):
        assert model[0].running_mean.tolist() == [0, 0]


def test_wrapped_and_unwrapped_models_share_their_state(tmp_path: Path) -> None:
    first, second = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    with ac.capture(nn.DataParallel(first), tmp_path / "golden", save_state=True):
        pass
    with ac.capture(second, tmp_path / "out", start=tmp_path / "golden"):
        pass
    assert torch.equal(first[0].weight, second[0].weight)


# what does not fit


def saved(model: nn.Module, path: Path) -> Path:
    with ac.capture(model, path, save_state=True):
        pass
    return path


def module(**children: nn.Module) -> nn.Module:
    return Glue(lambda self: None, **children)


@pytest.mark.parametrize(
    ("golden", "other", "message"),
    [
        (
            lambda: module(encoder=nn.Linear(2, 2, bias=False)),
            lambda: module(encoder1=nn.Linear(2, 2, bias=False)),
            (
                r"golden has a parameter that the model lacks: 'encoder\.weight' \(1 in all; the"
                r" nearest is 'encoder1\.weight'\)"
            ),
        ),
        (
            lambda: module(a=nn.Linear(2, 2, bias=False)),
            lambda: module(a=nn.Linear(2, 2)),
            r"the model has a parameter that .*golden lacks: 'a\.bias' \(1 in all\)",
        ),
        (
            lambda: module(a=nn.Linear(2, 2)),
            lambda: module(a=nn.Linear(2, 3)),
            r"'a\.(weight|bias)' is \[3.*\] in the model but \[2",
        ),
    ],
    ids=["renamed", "more", "shape"],
)
def test_a_model_that_does_not_fit_is_refused_with_the_nearest_name(
    golden: Any, other: Any, message: str, tmp_path: Path
) -> None:
    path = saved(golden(), tmp_path / "golden")
    with (
        pytest.raises(CaptureError, match=message),
        ac.capture(other(), tmp_path / "out", start=path),
    ):
        pass
    assert not (tmp_path / "out").exists()


def test_a_refused_model_keeps_its_weights(tmp_path: Path) -> None:
    path = saved(module(a=nn.Linear(2, 2), b=nn.Linear(2, 2)), tmp_path / "golden")
    model = module(a=nn.Linear(2, 2), b=nn.Linear(3, 3))
    before = model.a.weight.clone()
    with pytest.raises(CaptureError), ac.capture(model, tmp_path / "out", start=path):
        pass
    assert torch.equal(model.a.weight, before)


def test_a_buffer_on_one_side_only_is_noted(tmp_path: Path, opened: Opened) -> None:
    class Extra(nn.Linear):
        def __init__(self, name: str) -> None:
            super().__init__(2, 2)
            self.register_buffer(name, torch.ones(1))

    with ac.capture(Extra("new"), tmp_path / "out", start=saved(Extra("old"), tmp_path / "golden")):
        pass
    notes = opened(tmp_path / "out").manifest.notes
    assert "buffer 'new' is only in the model" in notes
    assert "buffer 'old' is only in the saved state" in notes


def test_a_bundle_without_state_says_how_to_make_one(tmp_path: Path) -> None:
    with ac.capture(nn.Linear(1, 1), tmp_path / "golden"):
        pass
    with pytest.raises(BundleError, match="holds no model state; capture it with save_state=True"):  # noqa: SIM117
        with ac.capture(nn.Linear(1, 1), tmp_path / "out", start=tmp_path / "golden"):
            pass


def test_a_bundle_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(BundleError, match="none"),
        ac.capture(nn.Linear(1, 1), tmp_path / "out", start=tmp_path / "none"),
    ):
        pass


def test_inputs_that_cannot_be_saved_are_named(tmp_path: Path) -> None:
    inputs = [((torch.ones(1), {"mask": {1, 2}}), {})]
    message = r"save_state \(--save-state\): inputs of step 0, 0, 1, 'mask': cannot save a set"
    with (
        pytest.raises(CaptureError, match=message),
        recording(
            nn.Linear(1, 1),
            tmp_path / "out",
            CaptureOptions(save_state=True),
            within=Within(inputs=inputs),
        ),
    ):
        pass
    with ac.open_bundle(tmp_path / "out") as bundle:
        assert not bundle.complete


def test_weights_that_cannot_be_saved_are_named(tmp_path: Path) -> None:
    model = nn.Linear(1, 1, device="meta")
    with (
        pytest.raises(CaptureError, match=r"save_state \(--save-state\): param 'weight' is meta"),
        ac.capture(model, tmp_path / "out", save_state=True),
    ):
        pass


def test_a_damaged_structure_of_inputs_is_an_error_without_traceback(
    golden: Path, tmp_path: Path
) -> None:
    edit_manifest(golden, lambda manifest: manifest["capture"].update(inputs=[{"tensor": "77"}]))
    with pytest.raises(CaptureError, match=r"the inputs saved in .* are damaged"):
        capture_case(
            f"{tmp_path}/net.py:nothing_but_code",
            tmp_path / "again",
            CPU,
            CaptureOptions(like=golden),
        )


def test_a_bundle_may_not_replace_the_one_it_starts_from(
    golden: Path, tmp_path: Path, opened: Opened
) -> None:
    with pytest.raises(
        UsageError, match="cannot be both what the capture starts from and what it writes"
    ):
        capture_case(
            f"{tmp_path}/net.py:nothing_but_code",
            golden,
            CPU,
            CaptureOptions(like=golden, overwrite=True),
        )
    capture_case(
        f"{tmp_path}/net.py:nothing_but_code", tmp_path / "again", CPU, CaptureOptions(like=golden)
    )
    assert ac.diff(golden, tmp_path / "again").passed


def test_as_many_steps_are_run_as_the_bundle_has_that_it_starts_from(
    tmp_path: Path, golden: Path, opened: Opened
) -> None:
    target = f"{tmp_path}/net.py:nothing_but_code"
    capture_case(
        target, tmp_path / "long", CPU, CaptureOptions(like=golden, save_state=True, steps=5)
    )
    capture_case(target, tmp_path / "again", CPU, CaptureOptions(like=tmp_path / "long"))
    assert len(opened(tmp_path / "again").steps()) == 5


def test_a_value_taken_apart_is_put_together_again() -> None:
    x = torch.randn(2)
    tensors: list[torch.Tensor] = []
    value = {
        "a": (x, [None, True, 1.5, "word"]),
        "again": x,
        "size": torch.Size([2, 3]),
        "dtype": torch.float8_e4m3fn,
    }
    structure = json.loads(json.dumps(take_apart(value, tensors, "value")))
    assert tensors == [x]
    assert put_together(structure, lambda number: tensors[int(number)]) == {**value, "size": (2, 3)}


def test_what_cannot_be_saved_is_left_out_where_that_is_allowed() -> None:
    structure = take_apart({"a": [print]}, [], "kwargs", lambda value, place: value is print)
    assert put_together(structure, int, lambda place: place) == {"a": ["kwargs, 'a', 0"]}
    with pytest.raises(ValueError, match="was not saved"):
        put_together(structure, int)


def test_a_dtype_that_is_none_is_damage() -> None:
    with pytest.raises(ValueError, match="load is no dtype"):
        put_together({"dtype": "load"}, int)
