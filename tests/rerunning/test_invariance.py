"""``accucompare invariance`` on real models, right ones and faulty ones."""

from __future__ import annotations

import json
import warnings
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accucompare as ac
from accucompare.compare.reruns import (
    BatchAxes,
    Invariance,
    InvarianceAnswer,
    NotVariedWhy,
    Variant,
    VariantOutcome,
    Variation,
)
from accucompare.errors import CaseError
from planted.batch_faults import BATCH_CLEAN, BATCH_FAULTS
from tests.conftest import ROOT, Run

#: In turns: in a half type, what hides in its rounding is looked for in float64.
DTYPES = (None, "bfloat16")
#: Left out here, for others are like them; `benchmarks.computed` tries all.
ALIKE = {
    "scale of the whole batch",
    "norm over the batch",
    "sort over the batch",
    "hidden state kept between calls",
    "statistics over padding",
    "llama",
}

CASE = """
import functools, os
from planted.batch_faults import clean, faulty
def case():
    return (faulty if os.environ["FAULTY"] == "1" else clean)(os.environ["NAME"])
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    source = tmp_path / "batches.py"
    source.write_text(CASE)

    def run(name: str, faulty: bool = False, **options: Any) -> ac.InvarianceCheck:
        monkeypatch.setenv("NAME", name)
        monkeypatch.setenv("FAULTY", str(int(faulty)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ac.check_invariance(str(source), "cpu", **options)

    return run


def test_a_mean_loss_of_the_batch_is_of_no_sample() -> None:
    check = ac.check_invariance(f"{ROOT}/fixtures/gpt2.py:training", "cpu")
    assert (check.exit_code, check.outcomes[0].left) == (0, 1)


@pytest.mark.parametrize(
    ("name", "dtype"), [each for each in zip(BATCH_CLEAN, cycle(DTYPES)) if each[0] not in ALIKE]
)
def test_a_right_model_differs_by_rounding_at_most(
    name: str, dtype: str | None, check: Any
) -> None:
    found = check(name, dtype=dtype, batch_axis=int(name == "sequence first"))
    assert [(each.variant, each.first_more) for each in found.failing] == []
    assert (found.exit_code, found.unseen) == (0, [])


@pytest.mark.parametrize(
    ("name", "dtype"), [each for each in zip(BATCH_FAULTS, cycle(DTYPES)) if each[0] not in ALIKE]
)
def test_a_fault_is_more_than_rounding_and_named(name: str, dtype: str | None, check: Any) -> None:
    fault = BATCH_FAULTS[name]
    found = check(name, faulty=True, dtype=dtype)
    assert found.exit_code == 1
    shown = {each.variant.kind: each for each in found.failing}
    assert fault.shows in shown
    outcome = shown[fault.shows]
    seen = outcome if outcome.fails_itself else outcome.exact
    assert seen is not None
    first = seen.first_more
    assert first is not None
    assert first.name == fault.place


def test_what_is_not_looked_at_is_said(check: Any) -> None:
    assert check("cnn").not_looked_at == {
        Variation.RIGHT: NotVariedWhy.NO_MASK,
        Variation.LEFT: NotVariedWhy.NO_MASK,
        Variation.UNPADDED: NotVariedWhy.NO_MASK,
    }
    assert check("pooled").not_looked_at == {Variation.LEFT: NotVariedWhy.NO_POSITIONS}


SMALL = """
import torch
from torch import nn
from torch.nn import functional as F
from accucompare import Case
class Drops(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, True)
class Scalar(nn.Module):
    def forward(self, x):
        return x.sum()
def batch_norm():
    return Case(nn.Sequential(nn.BatchNorm1d(8)), torch.randn(4, 8))
def dropout():
    return Case(nn.Sequential(nn.Dropout(0.5)), torch.randn(4, 8))
def own_dropout():
    return Case(Drops().eval(), torch.randn(4, 8))
def one():
    return Case(nn.Linear(8, 8), torch.randn(1, 8))
def scalar():
    return Case(Scalar(), torch.randn(4, 8))
def leaky():
    return Case(nn.Sequential(nn.Linear(8, 8), nn.Softmax(0)), torch.randn(4, 8))
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(SMALL)
    return str(tmp_path / "small.py")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("batch_norm", "BatchNorm in training mode"),
        ("dropout", "dropout is on"),
        ("own_dropout", "draws random numbers"),
        ("one", "axis 0 of .* has 1 sample"),
    ],
)
def test_what_depends_on_its_batch_by_design_is_refused_with_the_cure(
    name: str, message: str, small: str
) -> None:
    with pytest.raises(CaseError, match=message):
        ac.check_invariance(f"{small}:{name}")


def test_outputs_without_samples_are_no_pass(small: str) -> None:
    found = ac.check_invariance(f"{small}:scalar")
    assert (found.answer, found.exit_code) in (
        (InvarianceAnswer.NOT_SURE, 2),
        (InvarianceAnswer.BROKEN, 1),
    )


def test_the_command_shows_runs_layers_and_the_answer(cli: Run, small: str) -> None:
    done = cli("invariance", f"{small}:leaky", "--json", "found.json")
    assert done.returncode == 1
    assert "more than rounding" in done.stdout
    assert "MORE          alone, sample 0: from 1 (Softmax), output" in done.stdout
    assert "Layers whose bits change" in done.stdout
    written = json.loads((Path(small).parent / "found.json").read_text())
    assert (written["answer"], written["exit_code"]) == ("more than rounding", 1)
    assert written["runs"][0]["first_more"]["name"] == "1"
    assert cli("invariance", f"{small}:one").returncode == 2


def outcome_of(changed: int) -> VariantOutcome:
    return VariantOutcome(Variant(Variation.ALONE, (0,)), 2, 0, 1, changed=changed)


@pytest.mark.parametrize(("bitwise", "changed", "code"), [(0, 1, 0), (1, 1, 1), (1, 0, 0)])
def test_rounding_fails_for_those_who_need_bits(bitwise: int, changed: int, code: int) -> None:
    found = Invariance("c", "cpu", "float32", 2, True, [outcome_of(changed)], {}, bool(bitwise))
    assert found.exit_code == code


@pytest.mark.parametrize("last", [False, True])
def test_the_samples_of_an_axis_are_found(last: bool) -> None:
    axes = BatchAxes(3, None)
    whole = np.arange(3 * 4 * 2).reshape(3, 4, 2)
    laid = (whole.swapaxes(0, 1) if last else whole).reshape(12, 2)
    place = axes.found((12, 2), (4, 2))
    assert place is not None
    place = place._replace(last=last)
    pair = axes.rows(laid, whole[1], place, Variant(Variation.ALONE, (1,)))
    assert pair is not None
    assert pair[0].tolist() == pair[1].tolist() == whole[1].reshape(-1).tolist()


def test_only_tokens_that_are_no_padding_are_compared() -> None:
    tokens = np.array([[True, True, False], [True, True, True]])
    axes = BatchAxes(2, tokens)
    golden = np.arange(12).reshape(2, 3, 2)
    padded = np.full((2, 5, 2), -1)
    padded[:, 2:] = golden
    variant = Variant(Variation.LEFT, (0, 1), before=2, length=5)
    place = axes.found(golden.shape, (1, 3, 2))
    assert place is not None
    pair = axes.rows(golden, padded, place, variant)
    assert pair is not None
    assert pair[0].tolist() == pair[1].tolist() == [*range(4), *range(6, 12)]


def test_shapes_that_do_not_go_together_are_not_compared() -> None:
    axes = BatchAxes(3, None)
    assert axes.found((3, 3), (1, 1)) is None
    assert axes.found((5, 2), (2, 2)) is None
