"""Hints that once misled: a soft cap left out, softmax applied twice, whole rows, another GELU. No
hint beats a wrong one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.compare.origins.sites import Culprit
from accucompare.compare.shape.patterns import describe_error
from accucompare.compare.shape_facts import ErrorCause, ErrorShape, Pattern, PatternKind


def culprit(tmp_path: Path, golden: nn.Module, candidate: nn.Module, x: torch.Tensor) -> Culprit:
    """The first culprit of a candidate fed with golden, judged by a baseline in float64."""
    candidate.load_state_dict(golden.state_dict())
    with ac.capture(golden.eval(), tmp_path / "golden"):
        golden(x)
    with ac.capture(candidate.eval(), tmp_path / "candidate", feed=tmp_path / "golden"):
        candidate(x)
    with ac.capture(golden.double(), tmp_path / "baseline", feed=tmp_path / "golden"):
        golden(x.double() if x.is_floating_point() else x)
    return ac.diff(
        tmp_path / "golden", tmp_path / "candidate", baseline=tmp_path / "baseline"
    ).culprits[0]


def assert_no_rounding(found: Culprit) -> None:
    assert isinstance(found.shape, ErrorShape)
    assert PatternKind.ROUNDING not in {each.kind for each in found.shape.patterns}
    assert not found.shape.causes


@pytest.mark.parametrize("cap", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_gemma_s_soft_cap_left_out_is_not_called_rounding(tmp_path: Path, cap: str) -> None:
    transformers = pytest.importorskip("transformers")
    models = []
    for value in (5.0, None):
        torch.manual_seed(0)
        config = transformers.Gemma2Config(
            vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, attn_implementation="eager", initializer_range=0.5, **{cap: value},
        )  # fmt: skip
        models.append(transformers.Gemma2ForCausalLM(config))
    found = culprit(tmp_path, *models, torch.arange(3, 67).reshape(2, 32))
    assert_no_rounding(found)


class Attention(nn.Module):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.qkv, self.drop, self.out = (
            times,
            nn.Linear(64, 192),
            nn.Identity(),
            nn.Linear(64, 64),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = 4 * q @ k.transpose(-1, -2) / 8
        for _ in range(self.times):
            weights = weights.softmax(-1)
        result: torch.Tensor = self.out(self.drop(weights) @ v)
        return result


def test_a_softmax_applied_twice_is_named(tmp_path: Path) -> None:
    torch.manual_seed(0)
    found = culprit(tmp_path, Attention(1), Attention(2), 3 * torch.randn(2, 48, 64))
    assert found.place == "(root) (glue, before drop)"
    assert found.shape == ErrorShape(
        patterns=(Pattern(PatternKind.SOFTMAX_AGAIN),), causes=(ErrorCause.SOFTMAX,)
    )


@pytest.mark.parametrize(("tokens", "sharp"), [(12, 1.0), (64, 1.0), (64, 4.0), (64, 12.0)])
@pytest.mark.parametrize("causal", [False, True])
def test_what_comes_of_a_softmax_applied_twice_has_no_wrong_hint(
    tokens: int, sharp: float, causal: bool
) -> None:
    torch.manual_seed(0)
    mask = (
        torch.ones(tokens, tokens).tril().bool()
        if causal
        else torch.ones(tokens, tokens, dtype=torch.bool)
    )
    scores = sharp * sharp * torch.randn(2, 4, tokens, tokens).double()
    once = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    twice = once.masked_fill(~mask, -torch.inf).softmax(-1)
    values = torch.randn(2, 4, tokens, 16).double()
    for golden, candidate in ((once, twice), (once @ values, twice @ values)):
        assert set(describe_error(golden.numpy(), candidate.numpy()).causes) <= {ErrorCause.SOFTMAX}


def test_a_whole_row_that_is_wrong_says_where_and_guesses_no_cause() -> None:
    random = np.random.default_rng(0)
    golden = random.normal(size=(2, 64, 128))
    candidate = golden.copy()
    candidate[:, 40] = random.normal(size=(2, 128))
    found = describe_error(golden, candidate)
    assert found.place is not None
    assert [(each.axis.dim, each.few) for each in found.place.slices] == [(1, (40,))]
    assert not found.causes
    candidate[:, 40] = 0
    assert not describe_error(golden, candidate).causes


@pytest.mark.parametrize("size", [0.1, 0.2])
def test_rows_scaled_far_from_one_are_no_wrong_eps(size: float) -> None:
    random = np.random.default_rng(0)
    golden = random.normal(size=(64, 128))
    candidate = golden * random.uniform(size, 3 * size, size=(64, 1))
    found = describe_error(golden, candidate)
    assert [each.kind for each in found.patterns] == [PatternKind.SCALES]
    assert not found.causes


class Gelu(nn.Module):
    def __init__(self, approximate: str, alone: bool) -> None:
        super().__init__()
        self.up, self.act, self.down, self.approximate = (
            nn.Linear(64, 256),
            nn.GELU(approximate),
            nn.Linear(256, 64),
            approximate,
        )
        self.alone = alone

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x)
        h = self.act(h) if self.alone else nn.functional.gelu(h, approximate=self.approximate)
        result: torch.Tensor = self.down(h)
        return result


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("size", [0.02, 0.3, 1.0, 4.0])
def test_another_gelu_is_not_called_rounding(tmp_path: Path, alone: bool, size: float) -> None:
    torch.manual_seed(0)
    found = culprit(
        tmp_path, Gelu("none", alone), Gelu("tanh", alone), size * torch.randn(2, 32, 64)
    )
    assert found.place == ("act" if alone else "(root) (glue, before down)")
    assert_no_rounding(found)


def test_a_gelu_behind_a_product_has_no_hint() -> None:
    torch.manual_seed(0)
    for size in (0.2, 1.0, 3.0):
        x, weight = size * torch.randn(2, 64, 128).double(), torch.randn(128, 128).double() / 11
        sides = [nn.functional.gelu(x, approximate=how) @ weight for how in ("none", "tanh")]
        assert not describe_error(*(side.numpy() for side in sides)).causes
