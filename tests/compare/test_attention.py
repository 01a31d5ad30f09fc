"""One model with two implementations of attention: masks of another kind and weights that one alone
gives are no bug.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import accucompare as ac
from accucompare.compare.decide import Answer
from accucompare.compare.rows.rows import UNMATCHED, Status
from tests.asked import grouped

transformers = pytest.importorskip("transformers")
SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}
MODELS = {
    "llama": lambda **options: transformers.LlamaModel(
        transformers.LlamaConfig(**SMALL, num_key_value_heads=2, **options)
    ),
    "bert": lambda **options: transformers.BertModel(transformers.BertConfig(**SMALL, **options)),
}


def captured(
    kind: str, attention: str, out: Path, dtype: torch.dtype = torch.float32, **options: Any
) -> Path:
    torch.manual_seed(0)
    model = MODELS[kind](attn_implementation=attention).eval().to(dtype)
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    with ac.capture(model, out, **grouped(**options)):
        model(input_ids=torch.arange(3, 19).reshape(2, 8), attention_mask=mask)
    return out


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_sdpa_against_eager_is_no_bug_and_what_both_have_agrees(
    tmp_path: Path, kind: str, fed: bool
) -> None:
    golden = captured(kind, "sdpa", tmp_path / "golden")
    options = {"feed": golden} if fed else {}
    candidate = captured(kind, "eager", tmp_path / "candidate", **options)
    baseline = (
        captured(kind, "sdpa", tmp_path / "baseline", torch.float64, **options) if fed else None
    )
    comparison = ac.diff(golden, candidate, baseline=baseline)
    assert comparison.answer is not Answer.BUG
    assert not comparison.culprits
    assert {row.reason for row in comparison.rows if row.status is Status.FAIL} <= set(UNMATCHED)
    # there is a mask
    assert any(
        row.golden is not None and row.golden.dtype == "bool" and row.golden.shape
        for row in comparison.rows
    )


@pytest.mark.parametrize("kind", MODELS)
def test_sdpa_against_eager_with_a_fault_is_named(tmp_path: Path, kind: str) -> None:
    golden = captured(kind, "sdpa", tmp_path / "golden")
    name = "layers.0.mlp.down_proj" if kind == "llama" else "encoder.layer.0.output.dense"
    torch.manual_seed(0)
    model = MODELS[kind](attn_implementation="eager").eval()
    module = model.get_submodule(name)
    module.forward = lambda x: 1.01 * torch.nn.Linear.forward(module, x)
    with ac.capture(model, tmp_path / "candidate", feed=golden):
        mask = torch.ones(2, 8, dtype=torch.long)
        mask[1, 5:] = 0
        model(input_ids=torch.arange(3, 19).reshape(2, 8), attention_mask=mask)
    baseline = captured(kind, "sdpa", tmp_path / "baseline", torch.float64, feed=golden)
    assert ac.diff(golden, tmp_path / "candidate", baseline=baseline).culprits[0].name == name
