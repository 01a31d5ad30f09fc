"""A module under two names, and a parameter under two, are one model: each may take the other's
weights, and computes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import accucompare as ac
from accucompare.bundle.format.records import Role
from accucompare.compare.preflight_facts import About
from accucompare.compare.rows.rows import Reason, Status
from accucompare.errors import CaptureError
from tests.combinations import once

X = torch.arange(6)[None]


class Net(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.shared, self.fc = nn.Embedding(16, 8), nn.Linear(8, 8)
        self.tokens = self.shared if form == "one module" else nn.Embedding(16, 8)
        if form == "tied":
            self.tokens.weight = self.shared.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.fc(self.tokens(ids)) @ self.shared.weight.T


def captured(
    form: str, out: Path, seed: int, like: Path | None = None, feed: Path | None = None
) -> Path:
    torch.manual_seed(seed)
    model = Net(form).eval()
    with ac.capture(model, out, save_state=True, feed=feed, start=like), torch.no_grad():
        model(X)
    return out


@pytest.mark.parametrize("forms", [("one module", "tied"), ("tied", "one module")])
def test_tied_weights_under_other_names_are_the_same_model(
    tmp_path: Path, forms: tuple[str, str]
) -> None:
    golden = captured(forms[0], tmp_path / "golden", 0)
    found = ac.diff(golden, captured(forms[1], tmp_path / "candidate", 1, golden, golden))
    assert (found.exit_code, found.answer.value) == (0, "identical")
    assert not [finding for finding in found.preflight if finding.serious]


@pytest.mark.parametrize("forms", [("one module", "untied"), ("untied", "one module")])
def test_weights_that_are_not_tied_are_another_model(
    tmp_path: Path, forms: tuple[str, str]
) -> None:
    golden = captured(forms[0], tmp_path / "golden", 0)
    with pytest.raises(CaptureError, match=r"tokens\.weight"):
        captured(forms[1], tmp_path / "candidate", 1, golden)


class Uses(nn.Module):
    """A module that uses one weight as an embedding or as a head."""

    def __init__(
        self, weight: nn.Parameter, use: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__()
        self.weight, self.use = weight, use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(x, self.weight)


class Given(nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, weight)


class Block(nn.Module):
    def __init__(self, tokens: nn.Module) -> None:
        super().__init__()
        self.tokens, self.fc = tokens, nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.fc(self.tokens(ids)).tanh()


def embedding(weight: nn.Parameter) -> nn.Embedding:
    made = nn.Embedding(*weight.shape, device="meta")
    made.weight = weight
    return made


def linear(weight: nn.Parameter) -> nn.Linear:
    made = nn.Linear(*reversed(weight.shape), bias=False, device="meta")
    made.weight = weight
    return made


class Tied(nn.Module):
    """A small language model, whose one weight embeds the tokens and makes the logits, written in
    several ways.
    """

    def __init__(self, form: str, wrong: str = "") -> None:
        super().__init__()
        self.form, self.wrong = form, wrong
        fc, weight = Block(nn.Identity()).fc, nn.Parameter(torch.randn(16, 8))
        if form == "head first":
            self.head = linear(weight)
        if form == "list":
            self.weights = nn.ParameterList([weight])
        if form == "shared":
            self.shared = embedding(weight)
        self.block = Block(self.shared if form == "shared" else embedding(weight))
        self.block.fc = fc
        if form == "head":
            self.head = linear(
                nn.Parameter(weight.detach() * (1.0 if wrong == "untied" else 1.1))
                if "untied" in wrong
                else weight
            )
        elif form == "own module":
            self.head = Uses(weight, functional.linear)
        elif form == "argument":
            self.head = Given()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, weight = (
            self.block(ids),
            self.weights[0] if self.form == "list" else self.block.tokens.weight,
        )
        if self.form in ("function", "shared", "list"):
            return functional.linear(x, weight)
        if self.form == "argument":
            return self.head(x, weight)
        if self.wrong == "detached":
            return functional.linear(x, self.head.weight.detach())
        return self.head(x) * (1.01 if self.wrong == "scaled" else 1.0)


def trained(model: Tied, out: Path, like: Path | None = None, feed: Path | None = None) -> Path:
    """Two steps of training."""
    if model.wrong == "its gradient is scaled":
        model.head.weight.register_hook(lambda grad: grad * 1.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with ac.capture(model, out, save_state=True, feed=feed, start=like) as session:
        for factor in (1, 5):
            optimizer.zero_grad()
            model(X * factor % 16).square().mean().backward()
            optimizer.step()
            session.step()
    return out


def built(form: str, seed: int, wrong: str = "") -> Tied:
    torch.manual_seed(seed)
    return Tied(form, wrong)


FORMS = [
    ("function", "head"),
    ("head", "function"),
    ("function", "head first"),
    ("head first", "shared"),
    ("shared", "own module"),
    ("list", "head first"),
    ("head", "list"),
    ("argument", "function"),
    ("head", "argument"),
]


@pytest.mark.parametrize(("forms", "fed"), once(FORMS, [False, True]))
def test_a_weight_that_is_tied_in_another_way_trains_the_same(
    tmp_path: Path, forms: tuple[str, str], fed: bool
) -> None:
    golden = trained(built(forms[0], 0), tmp_path / "golden")
    candidate = trained(built(forms[1], 1), tmp_path / "candidate", golden, golden if fed else None)
    found = ac.diff(golden, candidate)
    assert (found.exit_code, found.culprits) == (0, [])
    assert not [
        finding for finding in found.preflight if finding.about in (About.WEIGHTS, About.GIVEN)
    ]
    parameters = {
        row.record.role.value
        for row in found.rows
        if row.record is not None and row.reason is Reason.IDENTICAL
    }
    assert {"param_grad", "param_before", "state_before", "param_update"} <= parameters


@pytest.mark.parametrize(
    "wrong", ["untied", "untied, of other values", "detached", "scaled", "its gradient is scaled"]
)
@pytest.mark.parametrize("form", ["function", "shared", "list"])
def test_a_fault_in_a_tied_head_is_none_of_a_refactoring(
    tmp_path: Path, form: str, wrong: str
) -> None:
    golden = trained(built(form, 0), tmp_path / "golden")
    candidate = trained(built("head", 0, wrong), tmp_path / "candidate")
    assert ac.diff(golden, candidate).exit_code == 1


def test_an_update_is_fed_under_another_first_name(tmp_path: Path) -> None:
    golden = trained(built("function", 0), tmp_path / "golden")
    candidate = trained(
        built("head first", 0, "its gradient is scaled"), tmp_path / "candidate", feed=golden
    )
    failing = {
        row.record.role
        for row in ac.diff(golden, candidate).rows
        if row.record is not None and row.status is Status.FAIL
    }
    assert Role.PARAM_GRAD in failing
    assert not failing & {Role.PARAM_BEFORE, Role.STATE_BEFORE, Role.PARAM_UPDATE, Role.STATE_AFTER}


@pytest.mark.parametrize(
    ("wrong", "code"), [("", 0), ("scaled", 1), ("detached", 1), ("its gradient is scaled", 1)]
)
def test_a_part_of_a_gradient_in_another_call_is_the_same_bits_where_the_sum_is_not_known(
    tmp_path: Path, wrong: str, code: int
) -> None:
    with ac.capture(model := built("function", 0), tmp_path / "golden"):
        model(X).square().mean().backward()
    with ac.capture(
        model := built("head", 0, "" if "gradient" in wrong else wrong), tmp_path / "candidate"
    ):
        if "gradient" in wrong:  # of the head alone
            model.head.forward = lambda x: functional.linear(
                x, model.head.weight + 0.05 * (model.head.weight - model.head.weight.detach())
            )
        model(X).square().mean().backward()
    assert ac.diff(tmp_path / "golden", tmp_path / "candidate").exit_code == code
