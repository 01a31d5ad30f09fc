"""A module under two names, and two modules with one parameter, are one model: each may take the other's weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.errors import CaptureError

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


def captured(form: str, out: Path, seed: int, like: Path | None = None, feed: Path | None = None) -> Path:
    torch.manual_seed(seed)
    model = Net(form).eval()
    with ac.capture(model, out, save_state=True, like=like, feed=feed), torch.no_grad():
        model(X)
    return out


@pytest.mark.parametrize("forms", [("one module", "tied"), ("tied", "one module")])
def test_tied_weights_under_other_names_are_the_same_model(tmp_path: Path, forms: tuple[str, str]) -> None:
    golden = captured(forms[0], tmp_path / "golden", 0)
    found = ac.diff(golden, captured(forms[1], tmp_path / "candidate", 1, golden, golden))
    assert (found.exit_code, found.answer.value) == (0, "identical")
    assert not [finding for finding in found.preflight if finding.serious]


@pytest.mark.parametrize("forms", [("one module", "untied"), ("untied", "one module")])
def test_weights_that_are_not_tied_are_another_model(tmp_path: Path, forms: tuple[str, str]) -> None:
    golden = captured(forms[0], tmp_path / "golden", 0)
    with pytest.raises(CaptureError, match=r"tokens\.weight"):
        captured(forms[1], tmp_path / "candidate", 1, golden)
