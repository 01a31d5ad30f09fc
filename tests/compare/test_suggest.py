"""The command that captures the baseline that is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import accucompare as ac
from accucompare.cli.scripts import OF_CASES
from tests.compare.builder import item, write


def parameters(dtype: str) -> dict[str, Any]:
    return {"parameters": {"w": {"dtype": dtype, "shape": [1], "digests": {}}}}


def suggested(tmp_path: Path, golden: dict[str, Any], candidate: dict[str, Any]) -> str:
    sides = [
        write(tmp_path / name, [item("a", [1.0])], **manifest)
        for name, manifest in (("golden", golden), ("candidate", candidate))
    ]
    return ac.suggest_baseline(*sides).replace(str(tmp_path), "DIR")


FED = {"feed": {"golden": "golden", "identity": "", "not_fed": []}}


@pytest.mark.parametrize(
    ("golden", "candidate", "expected"),
    [
        (
            {"model": parameters("float32")},
            {"model": parameters("bfloat16")},
            "CASE --device cpu --dtype bfloat16 --out cpu-bf16",
        ),
        (
            {"model": parameters("float32")},
            {"capture": {"dtype": "float16"}},
            "CASE --device cpu --dtype float16 --out cpu-fp16",
        ),
        (
            {"model": parameters("float32")},
            {"model": parameters("float32")},
            "CASE --device cpu --dtype float64 --out cpu-fp64",
        ),
        (
            {"model": parameters("float32"), "capture": {"round_weights": "bfloat16"}},
            {"model": parameters("float32")},
            "CASE --device cpu --dtype float64 --round-weights bfloat16 --out cpu-fp64",
        ),
        (
            {
                "model": parameters("float32"),
                "capture": {"round_weights": "bfloat16", "like": "first"},
            },
            {"model": parameters("bfloat16")},
            (
                "CASE --device cpu --dtype bfloat16 --round-weights bfloat16 --like first --out"
                " cpu-bf16"
            ),
        ),
        (
            {"model": parameters("float32"), "capture": {"round_weights": "bfloat16"}},
            {"model": parameters("bfloat16"), "capture": FED},
            "CASE --device cpu --dtype bfloat16 --feed DIR/golden --out cpu-bf16-fed",
        ),
        (
            {"environment": {"case": "my case.py:case"}, "capture": {"seed": 3, "steps": 2}},
            {"model": parameters("bfloat16"), "capture": {**FED, "skip": ["*.dropout"]}},
            (
                "'my case.py:case' --device cpu --dtype bfloat16 --feed DIR/golden --seed 3 --steps"
                " 2 --skip '*.dropout' --out cpu-bf16-fed"
            ),
        ),
        (
            {"model": parameters("float32")},
            {
                "model": parameters("float32"),
                "environment": {
                    "flags": {"npu.matmul.allow_hf32": False, "npu.conv.allow_hf32": True}
                },
            },
            "CASE --device cpu --dtype float64 --emulate hf32 --out cpu-hf32",
        ),
        (
            {"model": parameters("float64")},
            {
                "model": parameters("float32"),
                "environment": {"flags": {"cuda.matmul.allow_tf32": True}},
            },
            "CASE --device cpu --dtype float32 --emulate tf32 --out cpu-tf32",
        ),
        (
            {"model": parameters("float32")},
            {
                "model": parameters("float32"),
                "environment": {"flags": {"mkldnn.matmul.fp32_precision": "bf16"}},
            },
            "CASE --device cpu --dtype float64 --emulate bf16 --out cpu-bf16",
        ),
        (
            {"model": parameters("float32")},
            {
                "model": parameters("float32"),
                "environment": {"flags": {"mkldnn.matmul.fp32_precision": "ieee"}},
            },
            "CASE --device cpu --dtype float64 --out cpu-fp64",
        ),
        (
            {"model": parameters("float32")},
            {"model": parameters("float32"), "capture": {"emulate": "hf32"}},
            "CASE --device cpu --dtype float64 --emulate hf32 --out cpu-hf32",
        ),
    ],
)
def test_the_baseline_computes_as_the_candidate_does(
    tmp_path: Path, golden: dict[str, Any], candidate: dict[str, Any], expected: str
) -> None:
    assert suggested(tmp_path, golden, candidate) == f"accucompare capture {expected}"


SCRIPT = {"script": True, "seed": 3, "steps": 2, "round_weights": "bfloat16", "like": "first"}


@pytest.mark.parametrize("sides", ["both", "golden", "candidate"])
@pytest.mark.parametrize("fed", [False, True])
def test_of_a_script_the_baseline_is_that_script_and_no_option_of_cases_is_named(
    tmp_path: Path, sides: str, fed: bool
) -> None:
    golden = {"model": parameters("float32"), "capture": SCRIPT if sides != "candidate" else {}}
    captured = {
        **(SCRIPT if sides != "golden" else {}),
        **(FED if fed else {}),
        "level": "op",
        "only": ["a"],
    }
    command, *ran = suggested(
        tmp_path, golden, {"model": parameters("bfloat16"), "capture": captured}
    ).split(" -- ")
    assert (command.startswith("accucompare capture "), ran) == (True, ["COMMAND"])
    assert not {f"--{name.replace('_', '-')}" for name in OF_CASES} & {*command.split()}
    assert ("--feed DIR/golden" in command) is fed
    assert command.endswith(
        "--level op --only a --out cpu-bf16-fed" if fed else "--level op --only a --out cpu-bf16"
    )


def test_of_a_script_the_preflight_says_in_which_type_it_has_to_compute(tmp_path: Path) -> None:
    sides = [
        write(
            tmp_path / dtype, [item("a", [1.0])], model=parameters(dtype), capture={"script": True}
        )
        for dtype in ("float32", "bfloat16")
    ]
    (found,) = [
        finding.message for finding in ac.diff(*sides).preflight if finding.topic == "baseline"
    ]
    assert (
        "accucompare capture --out cpu-bf16 -- COMMAND (COMMAND: golden's script, computing in"
        " bfloat16 on the CPU), then" in found
    )


def test_of_ranks_the_baseline_computes_in_their_parts(tmp_path: Path) -> None:
    golden, candidate = {"model": parameters("float32")}, {"model": parameters("bfloat16")}
    command = suggested(tmp_path, golden, {**candidate, "ranks": 2})
    assert "--dtype bfloat16 --as-layout DIR/candidate --out cpu-bf16" in command
    assert "--as-layout" not in suggested(tmp_path, {**golden, "ranks": 2}, candidate)


def test_a_case_is_named_where_the_other_side_is_a_script(tmp_path: Path) -> None:
    named = {"environment": {"case": "net.py:case"}, "model": parameters("bfloat16")}
    found = suggested(
        tmp_path, {"model": parameters("float32"), "capture": {"script": True}}, named
    )
    assert found == "accucompare capture net.py:case --device cpu --dtype bfloat16 --out cpu-bf16"


@pytest.mark.parametrize("names", [("golden", "cpu-bf16"), ("cpu-bf16", "candidate")])
def test_the_baseline_overwrites_neither_golden_nor_the_candidate(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    dtypes = ("float32", "bfloat16")
    sides = [
        write(tmp_path / name, [item("a", [1.0])], model=parameters(dtype))
        for name, dtype in zip(names, dtypes, strict=True)
    ]
    assert ac.suggest_baseline(*sides).endswith("--out cpu-bf16-baseline")


def test_a_diff_in_another_dtype_without_baseline_says_how_to_make_one(tmp_path: Path) -> None:
    sides = [
        write(tmp_path / dtype, [item("a", [1.0])], model=parameters(dtype))
        for dtype in ("float32", "bfloat16")
    ]
    found = [
        finding.message for finding in ac.diff(*sides).preflight if finding.topic == "baseline"
    ]
    then = f"accucompare diff {sides[0]} {sides[1]} --baseline cpu-bf16"
    assert found == [
        f"a baseline tells rounding from a bug: {ac.suggest_baseline(*sides)}, then {then}"
    ]
    assert then.rpartition(" ")[2] == ac.suggest_baseline(*sides).rpartition(" ")[2], (
        "the directory that the first command writes"
    )
    assert not [
        finding for finding in ac.diff(sides[0], sides[0]).preflight if finding.topic == "baseline"
    ]


def test_a_baseline_of_other_weights_or_inputs_is_said(tmp_path: Path) -> None:
    def manifest(weight: str, given: str) -> dict[str, Any]:
        return {
            "model": {
                "parameters": {
                    "w": {"dtype": "float32", "shape": [1], "digests": {"float32": weight}}
                }
            },
            "inputs": {
                "0": {"x": {"dtype": "float32", "shape": [1], "digests": {"float32": given}}}
            },
        }

    tables = {
        "golden": manifest("a", "a"),
        "candidate": manifest("a", "a"),
        "baseline": manifest("b", "b"),
    }
    paths = {
        name: write(tmp_path / name, [item("a", [1.0])], **table) for name, table in tables.items()
    }
    other = write(tmp_path / "other", [item("a", [1.0 + 1e-15])], **tables["candidate"])
    comparison = ac.diff(paths["golden"], other, baseline=paths["baseline"])
    assert [(finding.message, finding.serious) for finding in comparison.preflight] == [
        ("baseline: 1 of 1 parameters differ: w", True),
        ("baseline: 1 of 1 inputs of step 0 differ: x", True),
    ]
    assert comparison.conclusion == "not sure: baseline: 1 of 1 parameters differ: w"
    same = ac.diff(paths["golden"], paths["candidate"], baseline=paths["baseline"])
    assert same.conclusion.startswith(
        "identical; the baseline was not used: 1 of 1 parameters differ: w; "
    )
    assert (same.answer.value, same.exit_code) == ("identical", 0)


def test_a_baseline_in_full_precision_of_a_candidate_that_may_round_products_is_said(
    tmp_path: Path,
) -> None:
    flags = {"environment": {"flags": {"npu.conv.allow_hf32": True}}}
    paths = [
        write(
            tmp_path / name,
            [item("a", [1.0])],
            model=parameters("float32"),
            **(flags if name == "candidate" else {}),
        )
        for name in ("golden", "candidate", "baseline")
    ]
    found = [
        finding
        for finding in ac.diff(paths[0], paths[1], baseline=paths[2]).preflight
        if finding.topic == "baseline"
    ]
    assert [finding.message for finding in found] == [
        "the candidate may round what goes into float32 products to hf32, the baseline does not:"
        f" {ac.suggest_baseline(paths[0], paths[1])}"
    ]


def test_golden_with_weights_that_are_not_rounded_as_a_fed_candidates_are_is_said(
    tmp_path: Path,
) -> None:
    golden = write(tmp_path / "golden", [item("a", [1.0])], model=parameters("float32"))
    feed = {"golden": "golden", "identity": ac.open_bundle(golden).identity(), "not_fed": []}
    candidate = write(
        tmp_path / "candidate",
        [item("a", [1.0])],
        model=parameters("bfloat16"),
        capture={"feed": feed},
    )
    message = (
        "golden's weights are not rounded to bfloat16 as the candidate's are, which hides small"
        " errors"
    )
    assert f"{message}; capture it with --round-weights bfloat16" in [
        finding.message for finding in ac.diff(golden, candidate).preflight
    ]
