"""What is said of how two bundles were captured, before any layer."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accucompare as ac
from accucompare.bundle.format.manifest import StepSeries
from accucompare.compare.preflight_facts import (
    About,
    BesideGolden,
    DigestTable,
    LowerPrecision,
    OtherDigests,
    OtherTypes,
)
from accucompare.numbers.digests import fingerprint
from accucompare.numbers.dtypes import DTYPES, round_to
from accucompare.report.words import ToldFinding
from tests.compare.builder import edit_manifest, item, write

VALUES = np.random.default_rng(0).normal(size=20)


def tensor(values: Any = VALUES, dtype: str = "float32") -> dict[str, Any]:
    """What a manifest says of a parameter, a buffer or an input."""
    raw = np.asarray(values) if dtype == "float64" else round_to(np.asarray(values), DTYPES[dtype])
    return {"dtype": dtype, "shape": list(raw.shape), "digests": fingerprint(raw, DTYPES[dtype])}


def findings(
    tmp_path: Path, golden: dict[str, Any], candidate: dict[str, Any]
) -> list[ToldFinding]:
    """The findings on two bundles that differ in their manifests only, but for the advice to
    capture a baseline.
    """
    sides = [
        write(tmp_path / name, [item("a", [1.0])], **manifest)
        for name, manifest in (("golden", golden), ("candidate", candidate))
    ]
    return [finding for finding in ac.diff(*sides).preflight if finding.topic != "baseline"]


def messages(found: list[ToldFinding]) -> list[str]:
    return [finding.message for finding in found]


def test_bundles_captured_alike_have_no_findings(tmp_path: Path) -> None:
    manifest = {
        "model": {"parameters": {"w": tensor()}, "buffers": {"b": tensor()}, "training": False},
        "inputs": {"0": {"x": tensor()}},
        "capture": {"seed": 0},
        "environment": {"flags": {"cuda.matmul.allow_tf32": True}},
    }
    assert findings(tmp_path, manifest, manifest) == []


@pytest.mark.parametrize(
    ("kind", "about"), [("parameters", About.WEIGHTS), ("buffers", About.GIVEN)]
)
def test_weights_that_differ_are_named(tmp_path: Path, kind: str, about: About) -> None:
    golden = {"model": {kind: {"a.weight": tensor(), "b.weight": tensor()}}}
    candidate = {"model": {kind: {"a.weight": tensor(), "b.weight": tensor(VALUES + 1)}}}
    found = findings(tmp_path, golden, candidate)
    fact = OtherDigests(DigestTable(kind), ("b.weight",), 2)
    assert found == [ToldFinding(fact, about=about)]
    assert messages(found) == [f"1 of 2 {kind} differ: b.weight"]


def test_weights_of_another_shape_differ(tmp_path: Path) -> None:
    golden, candidate = (
        {"model": {"parameters": {"w": tensor(values)}}}
        for values in (VALUES, VALUES.reshape(4, 5))
    )
    assert messages(findings(tmp_path, golden, candidate)) == ["1 of 1 parameters differ: w"]


@pytest.mark.parametrize(
    ("golden", "candidate"),
    [
        ("float32", "bfloat16"),
        ("bfloat16", "float32"),
        ("float64", "float16"),
        ("float64", "float32"),
        ("float32", "float16"),
    ],
)
def test_weights_that_are_the_same_after_rounding_are_no_serious_finding(
    tmp_path: Path, golden: str, candidate: str
) -> None:
    values = VALUES if {golden, candidate} == {"float64", "float32"} else VALUES.astype(np.float32)
    sides = (
        {"model": {"parameters": {"w": tensor(values, dtype)}}} for dtype in (golden, candidate)
    )
    found = findings(tmp_path, *sides)
    side = BesideGolden.CANDIDATE
    fact = OtherTypes(DigestTable("parameters"), golden, candidate, side, True, (), 1)
    assert found == [ToldFinding(fact, serious=False, about=About.GIVEN)]
    assert messages(found) == [
        f"parameters are {golden} in golden, {candidate} in the candidate; the same after rounding"
    ]


def test_weights_that_differ_by_more_than_rounding_are_found_across_dtypes(tmp_path: Path) -> None:
    sides = (
        {"model": {"parameters": {"w": tensor(*side)}}}
        for side in ((VALUES, "float32"), (VALUES * 1.01, "bfloat16"))
    )
    assert messages(findings(tmp_path, *sides)) == ["1 of 1 parameters differ: w"]


def test_more_than_three_names_are_counted(tmp_path: Path) -> None:
    sides = (
        {"model": {"parameters": {f"w{number}": tensor(VALUES + shift) for number in range(5)}}}
        for shift in (0, 1)
    )
    assert messages(findings(tmp_path, *sides)) == [
        "5 of 5 parameters differ: w0, w1, w2, and 2 more"
    ]


def test_parameters_on_one_side_only_are_named(tmp_path: Path) -> None:
    golden = {"model": {"parameters": {"w": tensor(), "extra": tensor()}}}
    assert messages(findings(tmp_path, golden, {"model": {"parameters": {"w": tensor()}}})) == [
        "1 parameters on one side only: extra"
    ]


def test_inputs_that_differ_are_named_by_step(tmp_path: Path) -> None:
    golden, candidate = (
        {"inputs": {"0": {"x": tensor()}, "1": {"x": tensor(VALUES + shift)}}} for shift in (0, 1)
    )
    assert messages(findings(tmp_path, golden, candidate)) == ["1 of 1 inputs of step 1 differ: x"]


def test_what_is_said_of_the_inputs_of_several_steps_is_said_once(tmp_path: Path) -> None:
    def inputs(shifts: Sequence[int], dtype: str = "float32") -> dict[str, Any]:
        return {
            "inputs": {
                str(step): {"x": tensor(VALUES + shift, dtype)} for step, shift in enumerate(shifts)
            }
        }

    shifted = findings(tmp_path, inputs([0] * 12), inputs([0, 1, 1, 1, 0, 1, 0, 0, 0, 0, 1, 1]))
    assert messages(shifted) == ["1 of 1 inputs of steps 1 to 3, 5, 10 to 11 differ: x"]
    rounded = findings(tmp_path, inputs([0] * 12), inputs([0] * 12, "bfloat16"))
    assert messages(rounded) == [
        "inputs of steps 0 to 11 are float32 in golden, bfloat16 in the candidate; the same after"
        " rounding"
    ]


@pytest.mark.parametrize(
    ("section", "golden", "candidate", "message", "serious"),
    [
        (
            "model",
            {"training": False},
            {"training": True},
            "train mode: golden off, candidate on",
            True,
        ),
        (
            "model",
            {"active_dropout": 0},
            {"active_dropout": 2},
            "active dropout modules: golden 0, candidate 2",
            True,
        ),
        ("capture", {"seed": 0}, {"seed": 1}, "seed: golden 0, candidate 1", True),
        (
            "environment",
            {"autocast": None},
            {"autocast": {"device": "npu"}},
            "autocast: golden none, candidate {'device': 'npu'}",
            True,
        ),
        (
            "environment",
            {"device": {"type": "cpu"}},
            {"device": {"type": "npu"}},
            "device: golden cpu, candidate npu",
            False,
        ),
        (
            "environment",
            {"versions": {"torch": "2.6"}},
            {"versions": {"torch": "2.7"}},
            "torch: golden 2.6, candidate 2.7",
            False,
        ),
        (
            "environment",
            {"git": {"commit": "abc"}},
            {"git": None},
            "git commit: golden abc, candidate none",
            False,
        ),
        ("capture", {"only": []}, {"only": ["a"]}, "--only: golden [], candidate ['a']", False),
    ],
)
def test_settings_that_differ_are_named(
    tmp_path: Path,
    section: str,
    golden: dict[str, Any],
    candidate: dict[str, Any],
    message: str,
    serious: bool,
) -> None:
    (found,) = findings(tmp_path, {section: golden}, {section: candidate})
    assert (found.message, found.serious) == (message, serious)


@pytest.mark.parametrize(
    "flag",
    ["cuda.matmul.allow_tf32", "cudnn.allow_tf32", "npu.matmul.allow_hf32", "npu.conv.allow_hf32"],
)
def test_reduced_precision_on_one_side_is_said_even_if_the_other_has_no_such_flag(
    tmp_path: Path, flag: str
) -> None:
    found = findings(
        tmp_path, {"environment": {"flags": {}}}, {"environment": {"flags": {flag: True}}}
    )
    assert found == [ToldFinding(LowerPrecision(BesideGolden.CANDIDATE, (flag,)))]


def test_a_flag_that_differs_is_named(tmp_path: Path) -> None:
    sides = (
        {"environment": {"flags": {"deterministic_algorithms": flag}}} for flag in (True, False)
    )
    assert messages(findings(tmp_path, *sides)) == [
        "deterministic_algorithms: golden on, candidate off"
    ]


def test_an_incomplete_bundle_says_where_it_stopped(tmp_path: Path) -> None:
    stopped = {"step": 2, "module": "encoder.fc1", "error": "RuntimeError: out of memory"}
    assert messages(findings(tmp_path, {}, {"complete": False, "stopped": stopped})) == [
        "candidate is incomplete: stopped in encoder.fc1 in step 2: RuntimeError: out of memory"
    ]


def test_a_killed_capture_says_so(tmp_path: Path) -> None:
    assert messages(findings(tmp_path, {"complete": False}, {})) == [
        "golden is incomplete: stopped: it was killed, or is still running"
    ]


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", [item("a", [1.0], rank=rank) for rank in range(3)], ranks=3)
    candidate = shutil.copytree(golden, tmp_path / "candidate")
    shutil.rmtree(candidate / "rank1")
    comparison = ac.diff(golden, candidate)
    assert "candidate lacks rank(s) 1 of 3" in messages(comparison.preflight)
    assert [row.reason.value for row in comparison.rows] == ["identical", "missing", "identical"]


def test_thousands_of_missing_ranks_are_counted(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", [item("a", [1.0])])
    candidate = write(tmp_path / "candidate", [item("a", [1.0])])
    edit_manifest(candidate, lambda manifest: manifest.update(ranks=2000))
    assert "candidate lacks rank(s) 1, 2, 3, and 1996 more of 2000" in messages(
        ac.diff(golden, candidate).preflight
    )


def test_serious_findings_come_first(tmp_path: Path) -> None:
    golden = {
        "notes": ["it was slow"],
        "model": {"parameters": {"w": tensor()}},
        "capture": {"only": []},
    }
    candidate = {"model": {"parameters": {"w": tensor(VALUES + 1)}}, "capture": {"only": ["a"]}}
    found = findings(tmp_path, golden, candidate)
    assert [finding.serious for finding in found] == [True, False, False]
    assert found[-1].message == "golden: it was slow"


def test_a_few_parameters_of_another_type_are_a_serious_finding_with_their_names(
    tmp_path: Path,
) -> None:
    golden = {"model": {"parameters": {"a.weight": tensor(), "b.weight": tensor()}}}
    candidate = {
        "model": {
            "parameters": {
                "a.weight": tensor(),
                "b.weight": tensor(VALUES.astype(np.float32), "bfloat16"),
            }
        }
    }
    golden["model"]["parameters"]["b.weight"] = tensor(VALUES.astype(np.float32), "float32")
    (found,) = findings(tmp_path, golden, candidate)
    assert found.serious
    assert (
        found.message
        == "1 of 2 parameters are float32 in golden, bfloat16 in the candidate: b.weight"
    )


@pytest.mark.parametrize("dtypes", [("int64", "int32"), ("uint8", "int32")])
def test_equal_integers_of_different_width_are_the_same_inputs(
    tmp_path: Path, dtypes: tuple[str, str]
) -> None:
    sides = ({"inputs": {"0": {"0": tensor(np.arange(5), dtype)}}} for dtype in dtypes)
    (found,) = findings(tmp_path, *sides)
    assert (found.serious, found.message.endswith("; the same after rounding")) == (False, True)


def test_all_nan_count_as_one_whatever_their_bits() -> None:
    one, other = (np.array([1.0, np.nan], "f4") for _ in range(2))
    other.view("u4")[1] ^= 1
    assert fingerprint(one, DTYPES["float32"]) == fingerprint(other, DTYPES["float32"])
    assert (
        fingerprint(one, DTYPES["float32"])["bfloat16"]
        == fingerprint(np.array([0x3F80, 0xFFFF], "u2"), DTYPES["bfloat16"])["bfloat16"]
    )


def test_types_that_are_no_rounding_of_each_other_are_not_called_different(tmp_path: Path) -> None:
    sides = (
        {"model": {"parameters": {"w": tensor(VALUES.astype(np.float32), dtype)}}}
        for dtype in ("float16", "bfloat16")
    )
    (found,) = findings(tmp_path, *sides)
    assert not found.serious
    assert "too different to say whether they agree" in found.message


def test_parameters_of_renamed_layers_are_found(tmp_path: Path) -> None:
    sides = (
        {"model": {"parameters": {f"{layer}.weight": tensor()}}} for layer in ("old.fc", "new.fc")
    )
    golden, candidate = (
        write(tmp_path / str(number), [item()], **side) for number, side in enumerate(sides)
    )
    comparison = ac.diff(golden, candidate, map="old.*=new.*")
    assert comparison.preflight == []


def test_integers_that_stay_integers_do_not_make_a_change_of_type_look_partial(
    tmp_path: Path,
) -> None:
    sides = (
        {
            "model": {
                "buffers": {
                    "mean": tensor(VALUES.astype(np.float32), dtype),
                    "count": tensor(np.arange(3), "int64"),
                }
            }
        }
        for dtype in ("float32", "bfloat16")
    )
    (found,) = findings(tmp_path, *sides)
    assert (found.serious, found.message) == (
        False,
        "buffers are float32 in golden, bfloat16 in the candidate; the same after rounding",
    )


def test_a_side_that_saturates_is_named(tmp_path: Path) -> None:
    candidate = write(
        tmp_path / "npu", [item()], environment={"flags": {"npu.inf_nan_mode": False}}
    )
    found = messages(ac.diff(write(tmp_path / "golden", [item()]), candidate).preflight)
    assert any(
        message.startswith("candidate saturates: what overflows becomes the largest finite value")
        for message in found
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "said"), [(None, 1024.0, True), (512.0, 1024.0, False), (None, None, False)]
)
def test_a_gradient_scaler_on_one_side_only_is_said(
    tmp_path: Path, ours: float | None, theirs: float | None, said: bool
) -> None:
    sides = (
        {"series": [StepSeries(0, losses=(1.0,), loss_scale=scale)]} for scale in (ours, theirs)
    )
    found = [each for each in messages(findings(tmp_path, *sides)) if "scaler" in each]
    assert found == (
        ["gradient scaler: golden none, candidate scales losses by 1024"] if said else []
    )
