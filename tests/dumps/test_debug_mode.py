"""Logs of hashes that torch's DebugMode wrote itself (tests/data/debug_mode, beside the script that
made them), and hostile ones.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.compare.decide import Answer
from accucompare.compare.rows.rows import Reason
from accucompare.dumps.importing import import_dump
from accucompare.errors import BundleError
from accucompare.report.words import verdict_words
from accucompare.report.words.culprit_words import identical_until
from tests.conftest import Run

DATA = Path(__file__).parent.parent / "data" / "debug_mode"
BOTH = (DATA / "both.txt").read_text()
NORM = (DATA / "norm.txt").read_text()


def bundle(tmp_path: Path, name: str, text: str) -> Path:
    log = tmp_path / f"{name}.txt"
    log.write_text(text)
    import_dump(log, tmp_path / name)
    return tmp_path / name


def rows_of(path: Path) -> dict[str, object]:
    """Every hash, by name, call, role and path."""
    with ac.open_bundle(path) as opened:
        return {
            f"{each.name} {each.call} {each.role}.{each.path}": opened.values(each).item()
            for each in opened.records()
        }


def logged(call: str, line: str) -> str:
    return f"    {call}(t: f32[3])  ->  t: f32[3]  # {line}\n"


@pytest.mark.parametrize("text", [NORM, BOTH], ids=["norm", "both"])
def test_equal_logs_are_no_more_than_rounding_by_hashes(text: str, tmp_path: Path) -> None:
    found = ac.diff(bundle(tmp_path, "golden", text), bundle(tmp_path, "candidate", text))
    assert found.passed
    assert found.answer is Answer.ROUNDING
    assert found.conclusion.startswith(
        "rounding at most; by hashes of another tool: no values were read"
    )


@pytest.mark.parametrize(
    ("text", "old", "new", "place"),
    [
        (
            NORM,
            r"(Net\.layers\.1\.down\n.*\n.*addmm.*'hash': )[\d.]+",
            r"\g<1>3.25",
            "layers.1.down.addmm output.norm",
        ),
        (
            NORM,
            r"(Net\.layers\.1\.down\n.*\n.*addmm.*'hash': )[\d.]+",
            r"\g<1>nan",
            "layers.1.down.addmm output.norm",
        ),
        (
            BOTH,
            r"(Net\.head\n.*\n.*addmm.*'hash': \([\d.]+, \d+)\d\)",
            r"\g<1>1)",
            "head.addmm output.hash_tensor",
        ),
        (
            BOTH,
            r"(Net\.layers\.0\.act\n.*gelu.*'input_hash': \(\(\()[\d.]+",
            r"\g<1>1.5",
            "layers.0.act.gelu input.0.norm",
        ),
    ],
    ids=["norm", "nan", "the last digit of an XOR", "an input"],
)
def test_the_first_operator_whose_hash_differs_is_named(
    text: str, old: str, new: str, place: str, tmp_path: Path
) -> None:
    changed = re.sub(old, new, text, count=1)
    assert changed != text
    found = ac.diff(bundle(tmp_path, "golden", text), bundle(tmp_path, "candidate", changed))
    assert not found.passed
    assert found.first_divergence is not None
    assert found.first_divergence.place == place
    assert identical_until(found).startswith(f"equal hashes until {place}: ")


def test_with_limits_of_the_user_s_an_all_clear_is_by_them_and_still_by_hashes(
    tmp_path: Path,
) -> None:
    golden, candidate = (
        bundle(tmp_path, "golden", NORM),
        bundle(tmp_path, "candidate", NORM.replace("'hash': 15.04", "'hash': 15.05")),
    )
    assert not ac.diff(golden, candidate).passed
    found = ac.diff(golden, candidate, limits=ac.Tolerance(rel_l2=1e-2))
    assert found.answer is Answer.WITHIN
    assert "by hashes of another tool: no values were read" in found.conclusion


def test_an_operator_that_ran_on_one_side_only_is_no_all_clear(tmp_path: Path) -> None:
    less = "".join(line for line in NORM.splitlines(keepends=True) if "gelu_backward" not in line)
    assert not ac.diff(bundle(tmp_path, "golden", NORM), bundle(tmp_path, "candidate", less)).passed


def test_what_only_one_log_hashes_is_no_difference(tmp_path: Path) -> None:
    norms = re.sub(r"'input_hash': .*, 'hash': ", "'hash': ", BOTH)
    found = ac.diff(
        bundle(tmp_path, "golden", re.sub(r"\(([\d.e+-]+), \d+\)", r"\1", norms)),
        bundle(tmp_path, "candidate", BOTH),
    )
    assert found.passed
    alone = {verdict_words.detail(row) for row in found.rows if row.reason is Reason.NOT_COMPARABLE}
    assert alone == {
        "this log of DebugMode has no hash_tensor",
        "DebugMode does not record this role",
    }


def test_against_a_capture_nothing_is_said(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with ac.capture(model, tmp_path / "capture", seed=0):
        model(torch.ones(1, 2))
    log = bundle(tmp_path, "log", NORM)
    for sides in ((log, tmp_path / "capture"), (tmp_path / "capture", log)):
        found = ac.diff(*sides)
        assert found.answer is Answer.NOT_SURE
        assert "with another log of hashes" in found.trouble


def test_names_calls_and_paths_are_those_of_modules_operators_and_tensors(tmp_path: Path) -> None:
    text = (
        "    [nn.Mod] Net\n      [nn.Mod] Net.fc\n        aten::add.Tensor(t: f32[3], ['# {'])  -> "
        " t: f32[3]  # {'input_hash': ((1.0, [2.0, None]), {'alpha': 3.0}), 'hash': 4.5}\n     "
        " aten::max.dim(t: f32[3])  ->  ('t: f32[3]', 't: i64[3]')  # {'hash': ((inf, 5), (2.0,"
        " 3))}\n      [nn.Mod] Net.fc\n        aten::add.Tensor(t: f32[3])  ->  t: f32[3]  #"
        " {'hash': 5.5}\n    aten::mul(t: f32[3])  ->  t: f32[3]  # {'hash':"
        " 18446744073709551615}\n    aten::empty([3])  ->  t: f32[3]\n    # File: train.py:3 in"
        " step, code: x\n\n    [triton] kernel(x)\n"
    )
    log = tmp_path / "log.txt"
    log.write_text(text)
    found = import_dump(log, tmp_path / "out")
    assert [(each.what.split(" (")[0], each.why) for each in found.left_out] == [
        ("empty call 0", "it has no hash"),
        (["line 11, [triton] kernel(x)"][0], "it is no operator's"),
    ]
    assert rows_of(tmp_path / "out") == {
        "fc.add.Tensor 0 input.0.norm": 1.0,
        "fc.add.Tensor 0 input.1.0.norm": 2.0,
        "fc.add.Tensor 0 input.alpha.norm": 3.0,
        "fc.add.Tensor 0 output.norm": 4.5,
        "max.dim 0 output.0.norm": float("inf"),
        "max.dim 0 output.0.hash_tensor": 5,
        "max.dim 0 output.1.norm": 2.0,
        "max.dim 0 output.1.hash_tensor": 3,
        "fc.add.Tensor 1 output.norm": 5.5,
        "mul 0 output.hash_tensor": 18446744073709551615,
    }


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (logged("aten::add", "{'hash': __import__('os').system('true')}"), "line 1 is damaged"),
        (logged("aten::add", "{'hash': " + "(" * 5_000), "line 1 is damaged"),
        (logged("aten::add", "{'hash': " + "-" * 500_000 + "1}"), "line 1 is damaged"),
        (logged("aten::add", "{'hash': 1.0"), "line 1 is damaged"),
        (logged("aten::add", "{'hash': -1}"), "line 1 is damaged"),
        (logged("aten::add", "{'hash': 'text'}"), "line 1 is damaged"),
        (logged("aten::add", "{'input_hash': 3, 'hash': 1.0}"), "line 1 is damaged"),
        (logged("aten::add", "{1, 2}"), "line 1 is damaged"),
        (logged("aten::add", "{'hash': 1.0}" + " " * (1 << 20)), "has a line of more than"),
        (logged("aten::add", "{'hash': None}"), "holds no hash; log them"),
    ],
    ids=["code", "nested", "signs", "cut", "negative", "text", "inputs", "a set", "long", "none"],
)
def test_a_damaged_line_is_named_and_nothing_runs(line: str, why: str, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(line)
    with pytest.raises(BundleError, match=why):
        import_dump(log, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_log_that_is_no_text_and_a_huge_one_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(logged("aten::add", "{'hash': 1.0}").encode() + b"\xff\xfe")
    with pytest.raises(BundleError, match="is no text"):
        import_dump(log, tmp_path / "out")
    with log.open("r+b") as file:
        file.truncate(1 << 34)
    with pytest.raises(BundleError, match="is larger than 256 MiB"):
        import_dump(log, tmp_path / "out")


def test_the_command_says_it_in_one_line(cli: Run, tmp_path: Path) -> None:
    for side in ("golden", "candidate"):
        assert cli("import", DATA / "both.txt", "--out", side).returncode == 0
    ran = cli("diff", "golden", "candidate", "--report", "none")
    assert ran.returncode == 0
    assert ran.stdout.startswith(
        "PASS  candidate against golden: rounding at most; by hashes of another tool: no values"
        " were read"
    )
