"""Environment variables and libraries that two captures had otherwise: evidence in pre-flight, and
what makes a proof due.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import accucompare as ac
from accucompare.devices.settings import variables
from accucompare.report.words import preflight_words
from tests.compare.builder import item, write


def environment(finding: ac.Comparison) -> list[str]:
    return [each.message for each in finding.preflight if each.topic == "environment"]


def around(**environment: Any) -> dict[str, Any]:
    return {"environment": {"variables": {}, "libraries": {}, **environment}}


@pytest.mark.parametrize(
    ("golden", "candidate", "said"),
    [
        (
            {},
            {"variables": {"KERNEL": "fast"}},
            ["environment: KERNEL=fast in the candidate, not set or not read in golden"],
        ),
        (
            {"variables": {"KERNEL": "fast"}},
            {},
            ["environment: KERNEL=fast in golden, not set or not read in the candidate"],
        ),
        (
            {"variables": {"A": "1", "B": "1"}},
            {"variables": {"A": "2", "B": "1"}},
            ["environment: A=2 in the candidate, 1 in golden"],
        ),
        (
            {"libraries": {"k.so": "1"}},
            {"libraries": {"k.so": "2"}},
            ["environment: k.so is another build in the candidate than in golden"],
        ),
        (
            {"variables": {"MKL_CBWR": "AVX2"}},
            {},
            ["environment: MKL_CBWR=AVX2 in golden, not set in the candidate"],
        ),
        ({"libraries": {"k.so": "1"}}, {"libraries": {"other.so": "2"}}, []),
        ({}, {}, []),
    ],
)
def test_what_differs_around_the_code_is_told(
    tmp_path: Path, golden: dict[str, Any], candidate: dict[str, Any], said: list[str]
) -> None:
    sides = [
        write(tmp_path / name, [item(values=[1.0])], **around(**own))
        for name, own in (("golden", golden), ("candidate", candidate))
    ]
    found = ac.diff(*sides)
    assert (environment(found), found.passed) == (said, True)


def test_an_older_bundle_says_nothing_of_it(tmp_path: Path) -> None:
    sides = (
        write(tmp_path / "golden", [item(values=[1.0])]),
        write(tmp_path / "new", [item(values=[1.0])], **around(variables={"A": "1"})),
    )
    assert environment(ac.diff(*sides)) == []


@pytest.mark.parametrize(
    ("made_with", "due"),
    [
        (
            {"variables": {"KERNEL": "fast"}},
            "KERNEL=fast in the baseline, not set or not read in golden",
        ),
        ({"libraries": {"k.so": "2"}}, "k.so is another build in the baseline than in golden"),
        ({"variables": {"OMP_NUM_THREADS": "4"}}, ""),
    ],
)
def test_a_baseline_that_was_not_proved_is_told_only_where_that_matters(
    tmp_path: Path, made_with: dict[str, Any], due: str
) -> None:
    golden = write(tmp_path / "golden", [item(values=[1.0])], **around(libraries={"k.so": "1"}))
    feed = {
        "capture": {
            "feed": {
                "golden": "golden",
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        }
    }
    for name in ("candidate", "baseline"):
        write(
            tmp_path / name,
            [item(values=[1.0 + 1e-3], dtype="bfloat16")],
            **around(**{"libraries": {"k.so": "1"}, **made_with}),
            **feed,
        )
    found = ac.diff(golden, tmp_path / "candidate", baseline=tmp_path / "baseline")
    assert preflight_words.not_proved_words(found.not_proved) == due
    assert (f"; the baseline is not proved: {due}" in found.conclusion) is bool(due)


def test_values_that_look_secret_are_digests() -> None:
    found = variables(
        {
            "HF_TOKEN": "abc",
            "VLLM_API_KEY": "abc",
            "OMP_NUM_THREADS": "2",
            "HF_ENDPOINT": "https://me:pw@host/x",
            "HOME": "/root",
            "MINE": "1",
        },
        ["MINE", "NOT_SET"],
    )
    assert found["HF_TOKEN"] == found["VLLM_API_KEY"]
    assert found["HF_TOKEN"].startswith("digest ")
    assert {name: found[name] for name in found if not found[name].startswith("digest")} == {
        "OMP_NUM_THREADS": "2",
        "HF_ENDPOINT": "https://host/x",
        "MINE": "1",
    }


def test_where_programs_and_caches_are_is_not_recorded() -> None:
    places = {
        "PATH": "/bin",
        "HOME": "/root",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/x",
        "TORCH_LOGS": "all",
    }
    assert variables(places, ["PATH", "HOME"]) == {"TORCH_LOGS": "all"}
