"""What an all-clear does not cover stands in the verdict line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from tests.asked import grouped
from tests.combinations import once


def capture(
    out: Path,
    change: Callable[[nn.Module], object] = lambda model: None,
    train: bool = False,
    **options: Any,
) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 4))
    change(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.capture(model, out, **grouped(seed=0, **options)):
        output = model(torch.ones(2, 8))
        if train:
            output.square().sum().backward()
            optimizer.step()
    return out


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"only": "0.*"}, "captured with --only 0.*"),
        ({"skip": "1"}, "captured with --skip 1"),
        ({"roles": "forward,grads"}, "captured with --roles forward,grads"),
    ],
)
def test_what_captures_were_not_asked_for_is_told(
    tmp_path: Path, options: dict[str, str], told: str, fed: bool
) -> None:
    golden = capture(tmp_path / "golden", train=not fed, **options)
    candidate = capture(
        tmp_path / "candidate", train=not fed, **options, **({"feed": golden} if fed else {})
    )
    comparison = ac.diff(golden, candidate)
    assert comparison.passed
    assert f"golden and the candidate {told}" in comparison.conclusion


def test_what_a_diff_leaves_out_is_told(tmp_path: Path) -> None:
    golden, candidate = capture(tmp_path / "golden"), capture(tmp_path / "candidate")
    assert (
        "records left out by --only and --skip" in ac.diff(golden, candidate, only="0.*").conclusion
    )


def test_of_a_whole_capture_nothing_is_told(tmp_path: Path) -> None:
    golden, candidate = (
        capture(tmp_path / "golden", train=True),
        capture(tmp_path / "candidate", train=True),
    )
    told = "by digests alone, no values were read but losses and gradient norms of 1 step"
    assert ac.diff(golden, candidate).conclusion == f"identical; {told}"


def nudge(model: Any) -> None:
    with torch.no_grad():
        model[1].weight[0, 0] *= 1 + 2e-5


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (nudge, "given otherwise: 1 of 4 parameters differ: 1.weight"),
        (
            lambda model: (nudge(model), model.eval()),
            "run otherwise: train mode: golden on, candidate off",
        ),
    ],
)
@pytest.mark.parametrize("limits", [{}, {"atol": 1e-2}])
def test_weights_and_modes_that_differ_too_little_to_fail_are_told(
    tmp_path: Path, change: Callable[[nn.Module], object], told: str, limits: dict[str, float]
) -> None:
    comparison = ac.diff(
        capture(tmp_path / "golden"), capture(tmp_path / "candidate", change), **limits
    )
    assert comparison.passed
    assert told in comparison.conclusion


def test_rows_that_statistics_alone_judge_are_told(tmp_path: Path) -> None:
    golden, candidate = (
        capture(tmp_path / "golden", mode="stats"),
        capture(tmp_path / "candidate", nudge, mode="stats"),
    )
    assert "2 rows judged by statistics alone" in ac.diff(golden, candidate).conclusion


def test_a_number_that_an_optimizer_was_given_is_told_where_the_users_limit_is_larger(
    tmp_path: Path,
) -> None:
    for eps in (1e-8, 1e-6):
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = torch.optim.AdamW(model.parameters(), eps=eps)
        with ac.capture(model, tmp_path / str(eps)):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
    comparison = ac.diff(tmp_path / "1e-08", tmp_path / "1e-06", atol=10.0)
    assert comparison.passed
    assert "eps: 1e-08 in golden, 1e-06 in the candidate" in comparison.conclusion


class Scaled(nn.Module):
    """A model whose own parameters, such as a class token, belong to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.fc = nn.Parameter(torch.rand(8)), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.fc(x * self.scale)
        return found


@pytest.mark.parametrize(
    ("lr", "fed", "told"), [(0.1, False, False), (0.1, True, False), (0.1001, True, True)]
)
def test_only_another_number_of_a_parameter_group_is_trained_otherwise(
    tmp_path: Path, lr: float, fed: bool, told: bool
) -> None:
    for name, dtype, rate in (("golden", torch.float64, 0.1), ("candidate", torch.float32, lr)):
        torch.manual_seed(0)
        model = Scaled().to(dtype)
        optimizer = torch.optim.Adam(model.parameters(), rate)
        with ac.capture(
            model,
            tmp_path / name,
            feed=tmp_path / "golden" if fed and name == "candidate" else None,
        ) as session:
            for _ in range(2):
                model(torch.ones(2, 8, dtype=dtype)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                session.step()
    comparison = ac.diff(
        tmp_path / "golden", tmp_path / "candidate", limits=ac.Tolerance(rel_l2=0.1)
    )
    assert (comparison.passed, "trained otherwise" in comparison.conclusion) == (True, told)


def _packed(values: torch.Tensor, dtype: str) -> torch.Tensor:
    return (values * 10).to(torch.uint8).view(getattr(torch, dtype))


FORMS: dict[str, Callable[[torch.Tensor], object]] = {
    "quantized": lambda values: torch.quantize_per_tensor(values, 0.1, 0, torch.qint8),
    "sparse": lambda values: values.relu().to_sparse(),
    "sparse rows": lambda values: values.relu().to_sparse_csr(),
    "sub-byte": lambda values: _packed(values, "uint4"),
    "two in a byte": lambda values: _packed(values, "float4_e2m1fn_x2"),
    "bits": lambda values: _packed(values, "bits8"),
    "numpy": lambda values: values.numpy(),
    "set": lambda values: set(values.flatten().tolist()),
    "generator": lambda values: (each for each in values),
}


class _Ends(nn.Module):
    """A model that returns something else beside a tensor."""

    def __init__(self, form: str, off: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.form, self.off = nn.Linear(4, 6), form, off

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, object]:
        found = self.fc(x)
        return found, FORMS[self.form](found + self.off)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("form", "fed"), once(FORMS, [False, True]))
def test_an_output_that_cannot_be_compared_is_told_with_the_all_clear_and_numpys_fail(
    tmp_path: Path, form: str, fed: bool
) -> None:
    for name, off in (("golden", 0.0), ("candidate", 0.5)):
        model = _Ends(form, off)
        with (
            ac.capture(model, tmp_path / name, feed=tmp_path / "golden" if fed and off else None),
            torch.no_grad(),
        ):
            model(torch.ones(3, 4))
    comparison = ac.diff(tmp_path / "golden", tmp_path / "candidate")
    assert ("could not be" in comparison.conclusion) is (form != "numpy")
    assert comparison.exit_code == 1 if form == "numpy" else comparison.exit_code != 1
    assert not comparison.conclusion.startswith("identical;")


def test_parts_that_are_called_without_their_model_are_no_whole(tmp_path: Path) -> None:
    model = _Ends("numpy", 0.0)
    for name in ("golden", "candidate"):
        with ac.capture(model, tmp_path / name), torch.no_grad():
            model.forward(torch.ones(3, 4))
    conclusion = ac.diff(tmp_path / "golden", tmp_path / "candidate").conclusion
    assert conclusion.startswith("identical in what was compared; only parts of the model")


def test_weights_that_differ_where_nothing_was_computed_of_them_are_no_all_clear(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))
    for name in ("golden", "candidate"):
        with ac.capture(model, tmp_path / name), torch.no_grad():
            model(torch.arange(5))
        model[0].weight.data[8] += 1
    comparison = ac.diff(tmp_path / "golden", tmp_path / "candidate")
    assert comparison.exit_code == 2
    assert comparison.conclusion.endswith("does not depend on parameters that differ: 0.weight")
