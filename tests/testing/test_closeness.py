"""``assert_layers_close``: what passes, what fails, and what the error says."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.errors import UsageError
from tests.compare.builder import Item, item, write

X = torch.linspace(-1, 1, 24).reshape(3, 8)
DRAW = np.random.default_rng(5).normal(size=(20, 16)).astype(np.float32)


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def broken(factor: float = 1.01) -> nn.Sequential:
    """The same with a fault in layer 2."""
    faulty = model()
    with torch.no_grad():
        faulty[2].weight *= factor
    return faulty


def message(*sides: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as raised:
        ac.assert_layers_close(*sides, **options)
    return str(raised.value)


def limits_in(text: str) -> dict[str, float]:
    """What a message says would pass, as options."""
    (line,) = re.findall(r"^Would pass(?:, by [a-z ]+)?: (.*)$", text, re.MULTILINE)
    return {name: float(value) for name, value in (part.split("=") for part in line.split(", "))}


def test_models_that_agree_pass() -> None:
    ac.assert_layers_close(model(), model(), inputs=X)


def test_the_first_line_names_the_culprit_and_counts_the_rows() -> None:
    assert (
        message(broken(), model(), inputs=X).splitlines()[0]
        == "Layers are not close! First: 2; 6 of 12 rows fail"
    )


def test_the_limits_that_it_says_would_pass_do_pass_and_a_little_less_does_not() -> None:
    asked: dict[str, float]
    for asked in (
        {},
        {"rel_l2": 1e-5},
        {"atol": 1e-6, "rtol": 1e-9},
        {"rtol": 1e-6},
        {"atol": 1e-6, "cosine": 0.9999999},
    ):
        found = limits_in(message(broken(), model(), inputs=X, **asked))
        ac.assert_layers_close(broken(), model(), inputs=X, **found)
        tighter = {
            name: 1 - (1 - value) * 0.9 if name == "cosine" else value * 0.97
            for name, value in found.items()
        }
        message(broken(), model(), inputs=X, **tighter)


def test_one_limit_for_all_rows_would_pass_where_a_table_by_dtype_judged(tmp_path: Path) -> None:
    half = lambda error: item("half", DRAW * (1 + error), "bfloat16")  # noqa: E731
    golden = write(tmp_path / "golden", [item("fine", DRAW), half(0.0)])
    # within bfloat16's limit, over what fine needs
    npu = write(tmp_path / "npu", [item("fine", DRAW * np.float32(1.0003)), half(0.03)])
    found = limits_in(message(npu, golden))
    assert 0.02 < found["rel_l2"] < 0.04
    ac.assert_layers_close(npu, golden, **found)


def test_where_golden_is_zero_an_absolute_limit_would_pass(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", [item("zero", DRAW * 0), item("fc", DRAW)])
    npu = write(
        tmp_path / "npu",
        [item("zero", DRAW * np.float32(1e-3)), item("fc", DRAW * np.float32(1.001))],
    )
    found = limits_in(message(npu, golden))
    assert list(found) == ["atol"]
    ac.assert_layers_close(npu, golden, **found)


@pytest.mark.parametrize(
    ("mode", "how"), [("stats", "by statistics alone"), ("sketch", "by sketches")]
)
def test_of_bundles_without_values_what_they_tell_would_pass(
    mode: str, how: str, tmp_path: Path
) -> None:
    own, many = model(), X.repeat(50, 1)  # more values than a sketch has
    with ac.capture(own, tmp_path / "golden", record=mode):
        own(many)
    text = message(broken(), tmp_path / "golden", inputs=many)
    assert f"Would pass, {how}: rel_l2=" in text
    ac.assert_layers_close(broken(), tmp_path / "golden", inputs=many, **limits_in(text))


@pytest.mark.parametrize(
    ("golden", "candidate", "reason"),
    [
        ([item("fc", DRAW)], [item("fc", DRAW[:3])], "shape"),
        ([item("fc", DRAW), item("gone", DRAW)], [item("fc", DRAW)], "missing"),
        ([item("fc", DRAW)], [item("fc", np.where(DRAW > 2, np.nan, DRAW))], "non-finite"),
        ([item("ids", np.arange(5))], [item("ids", np.arange(5)[::-1])], "introduced"),
    ],
)
def test_what_no_tolerance_would_pass_is_said(
    golden: list[Item], candidate: list[Item], reason: str, tmp_path: Path
) -> None:
    text = message(write(tmp_path / "npu", candidate), write(tmp_path / "golden", golden))
    assert re.search(
        rf"^No tolerance would pass (fc|gone|ids) output \({reason}\)$", text, re.MULTILINE
    )


def test_every_culprit_is_listed(tmp_path: Path) -> None:
    names = [f"block.{number}" for number in range(7)]
    golden = [item(name, DRAW + number) for number, name in enumerate(names)]
    npu = [item(name, (DRAW + number) * np.float32(1.1)) for number, name in enumerate(names)]
    text = message(write(tmp_path / "npu", npu), write(tmp_path / "golden", golden))
    assert {
        name
        for name in names
        if re.search(rf"^  \d\. {re.escape(name)}: module, introduced", text, re.MULTILINE)
    } == set(names)


def test_nothing_compared_is_a_failure(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty", [])
    assert message(empty, empty).startswith(
        "Layers could not be shown to be close! nothing could be compared"
    )
    ours, theirs = (
        write(tmp_path / "ours", [item("a", DRAW)]),
        write(tmp_path / "theirs", [item("zzz", DRAW + 1)]),
    )
    assert message(theirs, ours, map=()).startswith("Layers could not be shown to be close!")


def test_a_capture_that_did_not_end_is_a_failure_although_what_there_is_agrees(
    tmp_path: Path,
) -> None:
    golden, npu = (
        write(tmp_path / "golden", [item("a", DRAW)]),
        write(tmp_path / "npu", [item("a", DRAW)], complete=False),
    )
    assert "the capture of the candidate did not run to its end" in message(npu, golden)


def test_a_baseline_judges_by_what_rounding_does() -> None:
    half = ac.Case(model().bfloat16(), X.bfloat16())
    ac.assert_layers_close(
        half, model(), inputs=X, baseline=ac.Case(model().bfloat16(), X.bfloat16())
    )
    faulty = ac.Case(broken(1.2).bfloat16(), X.bfloat16())
    assert "excess" in message(faulty, model(), inputs=X, baseline=half)


def test_each_kind_of_side_is_taken(tmp_path: Path) -> None:
    own = model()
    with ac.capture(own, tmp_path / "one") as ended:
        own(X)
        ended.step()
    with ac.open_bundle(tmp_path / "one") as opened:
        for candidate in (
            str(tmp_path / "one"),
            tmp_path / "one",
            opened,
            ended,
            model(),
            ac.Case(model(), X),
        ):
            ac.assert_layers_close(candidate, opened, inputs=X)
            assert "First: 2;" in message(broken(), candidate, inputs=X)


def test_gradients_and_updates_of_a_case_are_compared() -> None:
    def training(turn: int) -> ac.Case:
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
                return grads[0].roll(turn)

        class Wrong(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return Scaled.apply(x)  # type: ignore[no-any-return,no-untyped-call]

        net = nn.Sequential(model()[0], Wrong(), model()[2])
        return ac.Case(
            net,
            X,
            loss=lambda y: y.square().sum(),
            optimizer=torch.optim.SGD(net.parameters(), 0.1),
        )

    ac.assert_layers_close(training(0), training(0))
    assert "the backward of 1" in message(training(3), training(0))


@pytest.mark.parametrize("side", [model(), ac.Case(model())])
def test_a_model_without_inputs_is_refused(side: Any) -> None:
    with pytest.raises(UsageError, match=r"golden is a model and needs inputs: give inputs=…"):
        ac.assert_layers_close(model(), side)


def test_what_is_no_side_is_refused() -> None:
    with pytest.raises(
        UsageError,
        match=(
            "candidate must be a model, a Case, a bundle or the session of a capture, but is a"
            " Tensor"
        ),
    ):
        ac.assert_layers_close(torch.zeros(2), model(), inputs=X)  # type: ignore[arg-type]


def test_the_models_the_inputs_and_the_random_numbers_are_left_as_they_were() -> None:
    net, other, given = model(), model(), X.clone()
    before = copy.deepcopy(net.state_dict())
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    ac.assert_layers_close(net, other, inputs=given)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(given, X)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize(
    ("name", "begins"), [("layers.xlsx", b"pk"), ("layers.html", b"<!doctype html>")]
)
def test_a_failure_writes_the_report_and_names_it(name: str, begins: bytes, tmp_path: Path) -> None:
    report = tmp_path / "reports" / name
    assert message(broken(), model(), inputs=X, report=report).endswith(f"\nReport: {report}")
    assert report.read_bytes().lower().startswith(begins)


def test_a_report_that_cannot_be_written_does_not_hide_what_failed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    text = message(broken(), model(), inputs=X, report=tmp_path / "file" / "x.html")
    assert text.startswith("Layers are not close! First: 2; 6 of 12 rows fail")
    assert text.splitlines()[-1].startswith(f"No report: {tmp_path}/file/x.html: cannot be written")


def test_a_report_of_no_known_kind_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match=r"'x\.pdf'.*\.xlsx .* \.html"):
        ac.assert_layers_close(model(), model(), inputs=X, report="x.pdf")


def test_nan_on_both_sides_fails_unless_it_is_meant(tmp_path: Path) -> None:
    values = DRAW.copy()
    values[2, 3] = np.nan
    sides = [
        write(tmp_path / name, [item("fc", values), item("out", DRAW)])
        for name in ("candidate", "golden")
    ]
    assert (
        "NaN on both sides, of which nothing can be compared! First: fc output; 1 of 2 rows"
        in message(*sides)
    )
    ac.assert_layers_close(*sides, equal_nan=True)


def test_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    name = "a\x1b[31m\u202eb\nReport: /tmp/evil"
    sides = (
        write(tmp_path / side, [item(name, values)])
        for side, values in (("npu", DRAW * 2), ("golden", DRAW))
    )
    text = message(*sides)
    assert "a\\x1b[31m\\u202eb\\nReport: /tmp/evil" in text
    assert not re.search("[\x1b\u202e]|^Report", text, re.MULTILINE)


def test_bundles_are_compared_without_torch(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", [item("fc", DRAW)])
    program = (
        "import sys, accucompare as ac; ac.assert_layers_close(sys.argv[1], sys.argv[1]);"
        " sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, golden], check=False).returncode == 0
